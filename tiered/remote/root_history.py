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

A copy also proves that a root went back to an older version. Such a root names nothing that was committed since, and
looks like the newest. A copy of a later version, or of the same version with another commit, was stored for a commit
that this root has lost.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from uuid import UUID

from tiered.errors import (
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.kernels import crc32c
from tiered.format.keys import (
    hist_key,
    hist_prefix,
    parse_hist_key,
    parse_page_key,
    parse_segment_key,
    partition_prefix,
)
from tiered.format.root import STATE_DELETING, Root, decode_root, encode_root
from tiered.remote.conditional_put import Cell, Deadline, NextBody, Planned, Tagged, read_cell, update
from tiered.remote.root_view import OLDER_HINT, RootView
from tiered.store.base import ABSENT, Get, List, ListPage, Object, Put, Steps, Together
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
    return after.state != STATE_DELETING and after.commit.op in REMOVALS


def is_copied_after(after: Root) -> bool:
    """Return True if the version of ``after`` is a multiple of ``HIST_EVERY``. Such a root is copied after its commit.

    Roots of a topic that is being deleted are not copied.
    """
    return after.state != STATE_DELETING and after.version % HIST_EVERY == 0


def store_copy(root: Root, deadline: Deadline) -> Steps[None]:
    """Store the history copy of ``root`` and wait for the store's confirmation.

    Raises RemoteUnavailableError if there is no confirmation by ``deadline``, CorruptionError if the copy of this
    version has another commit: then the root went back to an older version. Raises any refusal of the store.
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
            f"{root.where}: the store did not confirm the history copy {key}: {error.message}",
            hint="try again; nothing was removed",
        ) from error


def copy_root(root: Root) -> Steps[None]:
    """Store the history copy of ``root``, in one attempt. Log a warning if that fails: no removal depends on it."""
    body = encode_root(root)
    try:
        yield Put(hist_key(root.topic_id, root.partition, root.version), body, ABSENT, crc32c(body))
    except TieredError as error:
        LOGGER.warning("hist_not_kept key=%s error=%s", root.key, error.message)


def _compare(root: Root, copy: Root, key: str) -> None:
    if copy.commit.id != root.commit.id:
        raise CorruptionError(
            f"{root.where}: {key} is a copy of another commit of version {root.version}: the root was set "
            "back to an older version, then changed",
            path_or_key=key,
            hint=f"nothing was removed; `tiered check {root.topic}` shows both versions",
        )


def history(root: Root) -> Steps[list[int]]:
    """Return the versions of the history copies of the partition of ``root``, oldest first. Sends a LIST."""
    listed = yield from list_all(hist_prefix(root.topic_id, root.partition))
    versions = [parse_hist_key(entry.key) for entry in listed]
    return sorted(version for version in versions if version is not None)


def copied_commit(root: Root) -> Steps[str]:
    """Return the commit id in the stored copy of this root's version, ``""`` without a readable copy."""
    key = hist_key(root.topic_id, root.partition, root.version)
    got = yield Get(key)
    try:
        return decode_root(got.data, key=key).commit.id if isinstance(got, Object) else ""
    except (CorruptionError, ConfigError):
        return ""


def prune_history(root: Root) -> Steps[None]:
    """Delete history copies of the partition of ``root``, in the role of a maintainer.

    Keeps the newest ``HIST_KEPT``, and all that are at most ``HIST_AGE_MS`` older than the newest. Logs a warning if
    the deletion fails; the next claim tries again.
    """
    try:
        listed = yield from list_all(hist_prefix(root.topic_id, root.partition))
        copies = sorted((entry for entry in listed if parse_hist_key(entry.key) is not None), key=lambda one: one.key)
        newest_ms = max((entry.last_modified_ms for entry in copies), default=0)
        old = [one.key for one in copies[:-HIST_KEPT] if one.last_modified_ms < newest_ms - HIST_AGE_MS]
        yield from delete_keys(old)
    except TieredError as error:
        LOGGER.warning("hist_not_pruned key=%s error=%s", root.key, error.message)


@dataclass(frozen=True, slots=True)
class NewestCopy:
    """Newest history copy of a partition. ``version``: 0 without a copy.

    ``commit``: commit id of the copy if it has the same version as the root; otherwise, or if it is unreadable, empty.
    """

    version: int
    commit: str = ""

    def contradicts(self, root: Root) -> str:
        """Return why this copy proves that ``root`` is not the newest root, ``""`` if it does not.

        ``root`` must have been read after the copies were listed.
        """
        if root.version < self.version:
            return f"`hist/` has a copy of version {self.version}, the root has version {root.version}"
        if self.commit and root.version == self.version and root.commit.id != self.commit:
            return f"`hist/` has another commit of version {root.version}: the root went back and was committed to"
        return ""


def find_newest_copy(root: Root) -> Steps[NewestCopy]:
    """Return the newest history copy of the partition of ``root``. Sends a LIST, then at most one GET.

    Read the root again before :meth:`NewestCopy.contradicts`.
    """
    version = max((yield from history(root)), default=0)
    return NewestCopy(version, (yield from copied_commit(root)) if version == root.version else "")


def find_proof_of_root(topic_id: UUID, partition: int) -> Steps[str]:
    """Return the key of an object that proves that the partition had a root, ``""`` without one.

    Such objects are written only after the root was made. Sends four LISTs of one key each.
    """
    prefix = partition_prefix(topic_id, partition)
    lists = [List(prefix + folder, limit=1) for folder in ("hist/", "p/", "s/m", "s/w")]
    pages: list[ListPage] = yield Together(tuple(lists))
    for page in pages:
        for entry in page.entries:
            named = parse_segment_key(entry.key) or parse_page_key(entry.key)
            if named is not None or parse_hist_key(entry.key) is not None:
                return entry.key
    return ""


def require_newest_root(view: RootView, *, must_list: bool = True) -> Steps[None]:
    """Raise CorruptionError if the partition's root is an older one that was put back.

    Call this before a claim, because the new version of a claim would hide that the root is older. ``must_list``: if
    the role may not list ``hist/``, True raises RemotePermissionError, False skips the check.
    """
    root = yield from view.load()
    if root is None:
        return
    try:
        newest = yield from find_newest_copy(root)
    except RemotePermissionError:
        if must_list:
            raise
        return
    root = (yield from view.load()) or root  # commits that were made while the copies were listed
    older = newest.contradicts(root)
    if older:
        raise CorruptionError(
            f"{root.where}: the catalog {root.key} is out of date: {older}", path_or_key=root.key, hint=OLDER_HINT
        )
