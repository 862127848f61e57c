"""Strays: objects below a topic id that no registry entry names, and that none can ever name again.

::

    keys of the bucket, listed first ── entries, read after the listing ── a topic id without an entry
        ├─ each partition with an audit line `destroyed`        a topic id is never reused: deleted
        └─ anything else                                        the entry may be lost or late: all of it stays
    objects below probe/, left by a process that died while it probed the store: deleted
    unfinished multipart uploads ── of partitions with an audit line `destroyed`: aborted

A process that stalls during a topic's destruction leaves the first kind. Nothing is deleted before it is a day old.
Listing the bucket costs about one LIST a partition.
"""

from __future__ import annotations

from uuid import UUID

from tiered.errors import ConfigError, RemotePermissionError
from tiered.format.keys import PROBE_PREFIX, parse_segment_key, parse_staged_key, partition_prefix, root_key
from tiered.plan.maintenance import ORPHAN_MS
from tiered.remote.gc.audit import note_destroyed, was_destroyed
from tiered.remote.gc.orphans import Swept
from tiered.remote.list_partitions import list_partitions
from tiered.remote.topics import list_topics
from tiered.store.base import AbortUpload, Now, Steps
from tiered.store.steps import Listing, delete_keys, list_unfinished


def sweep_strays(*, delete: bool) -> Steps[Swept]:
    """Find the strays of the whole bucket; with ``delete`` delete them.

    Raises CorruptionError for an unreadable registry entry: its topic is unknown then, and nothing is deleted.
    """
    listed = yield from list_partitions()
    named = {entry.topic_id for entry in (yield from list_topics())}
    found = Swept()
    for topic_id, partition in sorted(listed, key=lambda owner: (owner[0].hex, owner[1])):
        if topic_id not in named and (yield from was_destroyed(topic_id, partition)):
            yield from _sweep_destroyed(topic_id, partition, found, delete=delete)
    yield from _sweep_probes(found, delete=delete)
    try:
        yield from _sweep_uploads(found, abort=delete)
    except (RemotePermissionError, ConfigError) as error:  # a role that may not list, or a store that cannot
        found.unlisted = f"{error.message} ({error.hint})"
    return found


def _sweep_probes(found: Swept, *, delete: bool) -> Steps[None]:
    """Delete the objects of probes that were cut short, or whose role must not delete them."""
    listing = Listing("", PROBE_PREFIX)  # the maintainer's role may list "", and not each prefix below
    while listing.more:
        below = [entry for entry in (yield from listing.page()) if entry.key.startswith(PROBE_PREFIX)]
        old = [entry for entry in below if listing.age_ms(entry) >= ORPHAN_MS]
        found.add(old)
        if delete:
            found.failed += yield from delete_keys([entry.key for entry in old])
        if not listing.after.startswith(PROBE_PREFIX):
            return


def _sweep_uploads(found: Swept, *, abort: bool) -> Steps[None]:
    """Find, and with ``abort`` abort, old unfinished multipart uploads below destroyed partitions.

    Listings of objects do not show them. Without a lifecycle rule the bucket keeps their parts for ever.
    """
    listed, date_ms = yield from list_unfinished("")
    date_ms = date_ms or (yield Now()).now_ms
    destroyed: dict[tuple[UUID, int], bool] = {}
    for each in listed:
        parsed = parse_segment_key(each.key) or parse_staged_key(each.key)
        if parsed is None or date_ms - each.started_ms < ORPHAN_MS:
            continue
        owner = parsed.topic_id, parsed.partition
        if owner not in destroyed:
            destroyed[owner] = yield from was_destroyed(*owner)
        if destroyed[owner]:
            found.uploads.append((each.key, each.upload_id))
    for key, upload_id in found.uploads if abort else ():
        yield AbortUpload(key, upload_id)


def _sweep_destroyed(topic_id: UUID, partition: int, found: Swept, *, delete: bool) -> Steps[None]:
    """Find, and with ``delete`` delete, old objects below a destroyed partition, its root last."""
    last = root_key(topic_id, partition)
    noted = rooted = False
    listing = Listing(partition_prefix(topic_id, partition))
    while listing.more:
        old = [entry for entry in (yield from listing.page()) if listing.age_ms(entry) >= ORPHAN_MS]
        rooted = rooted or any(entry.key == last for entry in old)
        found.add(old)
        if delete and old and not noted:
            yield from note_destroyed(topic_id, partition, {"strays": len(old)})
            noted = True
        if delete:
            found.failed += yield from delete_keys([entry.key for entry in old if entry.key != last])
    if delete and rooted:
        found.failed += yield from delete_keys([last])  # the root last, as in ``destroy``
