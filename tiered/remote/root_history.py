"""Copies of roots under ``hist/{version}``, from which ``repair`` and ``restore --as-of`` go back.

===============================================  ===========================================================
copy                                             if it cannot be put
===============================================  ===========================================================
the last root before each commit that            the removal is not sent
removes rows (trim, replace, state)
the root of each commit of a Spark sink          the commit fails; its repetition settles by content
the root of a writer's claim                     a warning
every ``HIST_EVERY``-th version                  a warning
===============================================  ===========================================================

A copy is created once and never replaced. Maintainers, who may delete, keep the newest ``HIST_KEPT`` and all that are
at most ``HIST_AGE_MS`` older than the newest.
"""

from __future__ import annotations

import logging

from tiered.errors import CommitUnknownError, ConfigError, CorruptionError, RemoteUnavailableError, TieredError
from tiered.format.kernels import crc32c
from tiered.format.keys import Role, hist_key, hist_prefix, parse_hist_key
from tiered.format.root import STATE_DELETING, Root, decode_root, encode_root
from tiered.remote.conditional_put import Cell, Deadline, NextBody, Planned, Tagged, read_cell, update
from tiered.store.base import ABSENT, Get, Object, Put, Steps
from tiered.store.steps import delete_keys, list_all

LOGGER = logging.getLogger("tiered.remote")

HIST_EVERY = 64
"""Interval of versions that are copied."""
HIST_KEPT = 100
"""Copies that a maintainer keeps at any age."""
HIST_AGE_MS = 24 * 3_600_000
"""Age up to which a maintainer keeps all copies, by the store's clock: the default grace of garbage."""
REMOVALS = frozenset({"trim", "replace", "state"})
"""Commits that remove rows."""


def removes_rows(after: Root) -> bool:
    """Return True if the commit that made ``after`` removes rows, so that the root before it is copied first.

    The deletion of a topic does not count: a copy that arrives late would stay in the bucket for ever.
    """
    return after.state != STATE_DELETING and not REMOVALS.isdisjoint(after.commit.op.split(","))


def is_copied_after(after: Root) -> bool:
    """Return True if ``after`` is one of the versions that are copied at intervals."""
    return after.state != STATE_DELETING and after.version % HIST_EVERY == 0


def store_copy(root: Root, deadline: Deadline) -> Steps[None]:
    """Store a copy of ``root`` and wait for the store's confirmation.

    Raises RemoteUnavailableError without one by ``deadline``, CorruptionError if the copy of this version holds another
    commit: then the root went back to an older version. Raises any refusal of the store.
    """
    key = hist_key(root.topic_id, root.partition, root.version)

    def copy(_seen: Tagged[Root | None]) -> Planned[Root | None]:
        yield from ()
        return NextBody(encode_root(root), root)  # the same bytes each time, under a name that is never replaced

    def is_copy(found: Root | None, _sent: Root | None) -> bool:
        if found is not None:
            _compare(root, found, key)
        return found is not None

    look = read_cell(key, lambda got: decode_root(got.data, key=key))
    cell: Cell[Root | None] = Cell(key, f"{root.where}, a copy of it", look, is_copy)
    try:
        yield from update(cell, copy, deadline, seen=Tagged(None))
    except CommitUnknownError as error:
        raise RemoteUnavailableError(
            f"{key}: this copy of the root could not be stored: {error.message}",
            hint="try again; nothing was removed",
        ) from error


def copy_root(root: Root) -> Steps[None]:
    """Put a copy of ``root`` in one attempt. Log a warning if that fails: no removal depends on it."""
    try:
        yield _copy_of(root)
    except TieredError as error:
        LOGGER.warning("hist_not_kept key=%s error=%s", root.key, error.message)


def _copy_of(root: Root) -> Put:
    body = encode_root(root)
    return Put(hist_key(root.topic_id, root.partition, root.version), body, ABSENT, crc32c(body))


def _compare(root: Root, copy: Root, key: str) -> None:
    if copy.commit.id != root.commit.id:
        raise CorruptionError(
            f"{root.where}: {key} is a copy of another commit of version {root.version}: the root went back to an "
            "older version and was committed to since",
            path_or_key=key,
            hint=f"nothing was removed; `tiered check {root.topic}:{root.partition}` names both",
        )


def history(root: Root) -> Steps[list[int]]:
    """Return the versions of the stored copies, oldest first."""
    listed = yield from list_all(hist_prefix(root.topic_id, root.partition))
    versions = [parse_hist_key(entry.key) for entry in listed]
    return sorted(version for version in versions if version is not None)


def newest_copy(root: Root) -> Steps[int]:
    """Return the newest version with a stored copy, 0 without one. Call it before ``root`` is read."""
    return max((yield from history(root)), default=0)


def copied_commit(root: Root) -> Steps[str]:
    """Return the commit id in the stored copy of this version, empty without a readable copy."""
    key = hist_key(root.topic_id, root.partition, root.version)
    got = yield Get(key)
    try:
        return decode_root(got.data, key=key).commit.id if isinstance(got, Object) else ""
    except (CorruptionError, ConfigError):
        return ""


def prune_history(root: Root) -> Steps[None]:
    """Delete old copies. Log a warning if that fails; the next claim tries again."""
    try:
        listed = yield from list_all(hist_prefix(root.topic_id, root.partition))
        copies = sorted((entry for entry in listed if parse_hist_key(entry.key) is not None), key=lambda one: one.key)
        newest_ms = max((entry.last_modified_ms for entry in copies), default=0)
        old = [one.key for one in copies[:-HIST_KEPT] if one.last_modified_ms < newest_ms - HIST_AGE_MS]
        yield from delete_keys(old)
    except TieredError as error:
        LOGGER.warning("hist_not_pruned key=%s error=%s", root.key, error.message)


def may_prune(role: Role) -> bool:
    """Return True if ``role`` may delete copies. A writer deletes nothing, so a stolen key cannot erase history."""
    return role is Role.MAINTAINER
