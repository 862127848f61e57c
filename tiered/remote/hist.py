"""Copies of roots under ``hist/``: what a partition was before each change that takes something away, and now and then.

A copy is made create-only, after the commit that it belongs to was acknowledged, in one attempt: it is there for people
(``repair rebuild-catalog``, reading as of a time), no protocol rests on it. An upload costs no copy but every
``HIST_EVERY`` versions; a trim, a replacement or a change of state keeps the version before it. Maintainers, who may
delete, leave the newest ``HIST_KEPT``.
"""

from __future__ import annotations

import logging

from tiered.errors import TieredError
from tiered.format.crc import crc32c
from tiered.format.keys import Role, hist_key, hist_prefix, parse_hist_key
from tiered.format.root import STATE_DELETING, Root, encode_root
from tiered.store.base import ABSENT, Delete, Put, Steps, list_all

LOGGER = logging.getLogger("tiered.remote")

HIST_EVERY = 256
"""Every version that is a multiple of this is kept."""
HIST_KEPT = 100
"""Copies that a maintainer leaves."""
TAKES_AWAY = frozenset({"trim", "replace", "state"})
"""Ops before which the version is kept."""


def kept_version(before: Root, after: Root) -> Root | None:
    """Which of two versions a commit keeps.

    None of a topic that is being deleted: a copy that comes late would lie there when all else is gone, for ever.
    """
    if after.state == STATE_DELETING:
        return None
    if TAKES_AWAY.intersection(after.commit.op.split(",")):
        return before
    return after if after.version % HIST_EVERY == 0 else None


def keep_version(root: Root) -> Steps[None]:
    """Copies ``root``. Never raises: a commit that was acknowledged does not fail by its copy."""
    body = encode_root(root)
    key = hist_key(root.topic_id, root.partition, root.version)
    try:
        yield Put(key, body, ABSENT, crc32c(body))
    except TieredError as error:
        LOGGER.warning("hist_not_kept key=%s error=%s", key, error.message)


def history(root: Root) -> Steps[list[int]]:
    """The versions that are kept, oldest first."""
    listed = yield from list_all(hist_prefix(root.topic_id, root.partition))
    versions = [parse_hist_key(entry.key) for entry in listed]
    return sorted(version for version in versions if version is not None)


def outlived(root: Root) -> Steps[int]:
    """The version that a kept copy proves to have been there; list before ``root`` is read. 0 without a copy.

    A copy is made after the commit that it belongs to: one that is not a multiple proves the version behind it.
    """
    newest = max((yield from history(root)), default=0)
    return newest + 1 if newest % HIST_EVERY else newest


def prune_history(root: Root) -> Steps[None]:
    """Deletes all but the newest copies. Never raises: what is left is deleted another time."""
    try:
        versions = yield from history(root)
        for at in range(0, len(versions) - HIST_KEPT, 1000):
            old = versions[at : min(at + 1000, len(versions) - HIST_KEPT)]
            yield Delete(tuple([hist_key(root.topic_id, root.partition, version) for version in old]))
    except TieredError as error:
        LOGGER.warning("hist_not_pruned key=%s error=%s", root.key, error.message)


def may_prune(role: Role) -> bool:
    """A writer deletes nothing: a stolen key of one cannot take history away."""
    return role is Role.MAINTAINER
