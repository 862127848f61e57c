"""Proof in ``hist/`` that a root went back to an older version.

Such a root names nothing that was committed since, and looks like the newest. A copy of a later version, or of the same
version with another commit, was stored for a commit that this root has lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tiered.errors import CorruptionError, RemotePermissionError
from tiered.format.keys import parse_hist_key, parse_page_key, parse_segment_key, partition_prefix
from tiered.format.root import Root
from tiered.remote.root_history import copied_commit, newest_copy
from tiered.remote.root_view import OLDER_HINT, RootView
from tiered.store.base import List, ListPage, Steps, Together


@dataclass(frozen=True, slots=True)
class NewestCopy:
    """Newest version in ``hist/``, 0 without one. ``commit``: its commit, if it has the version of the root."""

    version: int
    commit: str = ""

    def contradicts(self, root: Root) -> str:
        """Return why ``root``, read after the copies were listed, is not the newest; ``""`` if nothing proves that."""
        if root.version < self.version:
            return f"`hist/` has a copy of version {self.version}, the root has version {root.version}"
        if self.commit and root.version == self.version and root.commit.id != self.commit:
            return f"`hist/` has another commit of version {root.version}: the root went back and was committed to"
        return ""


def find_newest_copy(root: Root) -> Steps[NewestCopy]:
    """List ``hist/`` of a partition and return its newest copy. Read the root again before it is compared."""
    version = yield from newest_copy(root)
    return NewestCopy(version, (yield from copied_commit(root)) if version == root.version else "")


def left_without_root(topic_id: UUID, partition: int) -> Steps[str]:
    """Return the key of an object that is written only after the root was made; ``""`` without one.

    Sends four LISTs of one key each.
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
    """Raise CorruptionError if the root is an older one that was put back.

    Call it before a claim, because a claim would hide that. Objects that only the lost roots named look like orphans.
    Without ``must_list``, a role without the right to list skips the check.
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
        raise CorruptionError(f"{root.where}, {root.key}: {older}", path_or_key=root.key, hint=OLDER_HINT)
