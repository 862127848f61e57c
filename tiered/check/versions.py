"""Test whether damage of a bucket could be repaired from older versions of its objects."""

from __future__ import annotations

from tiered.errors import TieredError
from tiered.format.keys import root_key
from tiered.remote.topics import list_topic_names, load_topic
from tiered.store.base import ListVersions, Steps, Versions

UNVERSIONED = "null"
"""Version id that S3 gives an object which was put while versioning was off."""
VERSION_DAYS = 30
"""Days for which the bucket of ``terraform/modules/bucket`` keeps old versions of segments."""


def keeps_versions() -> Steps[bool | None]:
    """Return whether the bucket keeps versions, by those of one root.

    None where nothing can be said: a store that has none by its kind, no topic, a missing right.
    """
    try:
        names = yield from list_topic_names()
        entry = (yield from load_topic(names[0])) if names else None
        if entry is None:
            return None
        page: Versions = yield ListVersions(root_key(entry.topic_id, 0))
    except TieredError:
        return None
    return page.entries[0].version != UNVERSIONED if page.supported and page.entries else None


def versions_warning(parts: int) -> Steps[str]:
    """Return why damage may find no older version, ``""`` if it may. ``parts``: one of so many is read each day."""
    kept = yield from keeps_versions()
    if kept is False:
        return "the bucket keeps no versions: what is damaged or deleted may be lost; turn bucket versioning on"
    if kept and parts > VERSION_DAYS:
        return (
            f"a scrub in {parts} parts, one a day, takes longer than {VERSION_DAYS} days, for which "
            "terraform/modules/bucket keeps old versions: damage may outlive them; read a larger part each day"
        )
    return ""
