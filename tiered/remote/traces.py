"""Traces: what newer roots of a partition have left behind, under an older one that was put back.

A root that went back names nothing of what came since: to who sees no other it looks like the newest. Four things
outlive a root: copies below ``hist/``, snapshots, the audit lines of collections and sweeps, and the claims, whose
epochs stand in the keys of what was uploaded. Each is written after the version that it tells of was committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from tiered.errors import CorruptionError, RemotePermissionError
from tiered.format.keys import Role, parse_hist_key, parse_page_key, parse_segment_key, partition_prefix
from tiered.format.root import Root
from tiered.remote.audit import audited
from tiered.remote.hist import copied_commit, newest_copy
from tiered.remote.past import survey_snapshots
from tiered.remote.root_view import OLDER_HINT, RootView
from tiered.store.base import List, Page, Steps, Together, advanced

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Traces:
    """Versions that are proven to have been there, 0 where nothing tells; ``claims``: by role the newest epoch above
    the one that the root knows, and a key of it. ``commit``: the commit of the newest copy, if it has the root's
    version."""

    copied: int
    audited: int
    kept: int
    claims: Mapping[Role, tuple[int, str]]
    commit: str = ""

    @property
    def version(self) -> int:
        """The newest version that is proven."""
        return max(self.copied, self.audited, self.kept)

    def older(self, root: Root) -> str:
        """Why ``root``, read after the traces were listed, is not the newest: a sentence, ``""`` if nothing says so."""
        told = {"`hist/`": self.copied, "a snapshot": self.kept, "an audit line below `jobs/gc/`": self.audited}
        for what, version in told.items():
            if root.version < version:
                return f"{what} tells of version {version}, the root has version {root.version}"
        if self.commit and root.version == self.copied and root.commit.id != self.commit:
            return f"`hist/` has another commit of version {root.version}: the root went back and was committed to"
        for role, (epoch, key) in self.claims.items():
            known = root.roles[role.value].epoch
            if known < epoch:
                return f"{key} is of claim {epoch} of the {role.word}, version {root.version} knows {known}"
        return ""


def find_traces(root: Root, refused: list[RemotePermissionError] | None = None) -> Steps[Traces]:
    """What tells of roots that are newer than ``root``; read the root again before it is held against them.

    Seven LISTs, and a GET of each snapshot. ``refused`` takes what a role may not list, which counts as no trace;
    without it RemotePermissionError is raised.
    """
    copied = yield from _allowed(newest_copy(root), 0, refused)
    noted = yield from _allowed(audited(root), 0, refused)
    kept = yield from _allowed(_kept(root), 0, refused)
    commit = (yield from _allowed(copied_commit(root), "", refused)) if copied == root.version else ""
    return Traces(copied, noted, kept, (yield from _allowed(_claims(root), {}, refused)), commit)


def _allowed(steps: Steps[T], otherwise: T, refused: list[RemotePermissionError] | None) -> Steps[T]:
    try:
        return (yield from steps)
    except RemotePermissionError as refusal:
        if refused is None:
            raise
        refused.append(refusal)
        return otherwise


def _kept(root: Root) -> Steps[int]:
    """The newest version that a snapshot holds, 0 without one."""
    taken, _ = yield from survey_snapshots(RootView(root.topic_id, root.partition, root.topic))
    return max((each.version for each in taken), default=0)


def left_without_root(topic_id: UUID, partition: int) -> Steps[str]:
    """The key of an object that comes after the first claim, and so after the root; ``""`` without one. Call it where
    there is no root, and nothing says that there was one: four LISTs of one key each."""
    prefix = partition_prefix(topic_id, partition)
    lists = [List(prefix + folder, limit=1) for folder in ("hist/", "p/", "s/m", "s/w")]
    pages: list[Page] = yield Together(tuple(lists))
    for page in pages:
        for entry in page.entries:
            named = parse_segment_key(entry.key) or parse_page_key(entry.key)
            if named is not None or parse_hist_key(entry.key) is not None:
                return entry.key
    return ""


def need_newest(view: RootView, *, all_traces: bool = True) -> Steps[None]:
    """Call before a claim, which would hide it, and before a disk is made of it. Raises CorruptionError under an older
    root that was put back: what the lost roots named looks like orphans under it. Without ``all_traces`` those count
    that the role may list."""
    root = yield from view.load()
    if root is None:
        return
    traces = yield from find_traces(root, None if all_traces else [])
    root = (yield from view.load()) or root  # commits that were made while these were listed
    older = traces.older(root)
    if older:
        raise CorruptionError(f"{root.where}, {root.key}: {older}", path_or_key=root.key, hint=OLDER_HINT)


def _claims(root: Root) -> Steps[dict[Role, tuple[int, str]]]:
    """By role an epoch above the one that ``root`` knows, of which an object is there, and its key.

    A claim comes before the first object of its epoch. Four LISTs of one key each.
    """
    asked = [(role, folder) for role in Role for folder in ("s/", "p/")]
    prefix = partition_prefix(root.topic_id, root.partition)
    lists = [
        List(
            f"{prefix}{folder}{role.value}",
            start_after=f"{prefix}{folder}{role.value}{root.roles[role.value].epoch + 1:08x}/",
            limit=1,
        )
        for role, folder in asked
    ]
    found: dict[Role, tuple[int, str]] = {}
    pages: list[Page] = yield Together(tuple(lists))
    for (role, _), request, page in zip(asked, lists, pages, strict=True):
        for entry in advanced(request, page).entries:
            parsed = parse_segment_key(entry.key) or parse_page_key(entry.key)
            if parsed is not None and parsed.name.epoch > found.get(role, (0, ""))[0]:
                found[role] = parsed.name.epoch, entry.key
    return found
