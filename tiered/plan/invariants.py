"""Invariants that each root must satisfy. Each is a sentence with a check.

``check_root`` runs before every PUT of a root, after every GET, in ``check`` and in the tests: one function, so that
the rules of a commit and those of an auditor cannot drift apart. All checks are vectorised; 10,000 rows cost a
few milliseconds, nearly all of it row hashes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, FLAG_STAGED, KNOWN_FLAGS, Role
from tiered.format.page import NO_POINTERS, POINTER_MAINTAINER, Pointers
from tiered.format.root import SEALED_LIMIT, STATE_OPEN, TXNS_LIMIT, Root
from tiered.format.rows import NO_TALLY, Column, Rows
from tiered.model import TRASH_KINDS, TRASH_LIST, TRASH_ROWS


@dataclass(frozen=True, slots=True)
class Violation:
    """Rule that a root breaks. ``sentence``: the rule. ``found``: the values that contradict it."""

    sentence: str
    found: str

    def __str__(self) -> str:
        return f"{self.found}; the rule: {self.sentence}"


_Check = Callable[[Root], Iterator[str]]
_ChangeCheck = Callable[[Root, Root], Iterator[str]]

VERSION_STEP = 1 << 20
"""Distance of a rebuilt root from the newest proven version. Versions in pins and snapshots are below it."""

CHECKS: dict[str, _Check] = {}
"""Rules about one root, each with its check."""
CHANGE_CHECKS: dict[str, _ChangeCheck] = {}
"""Rules about a root and an earlier root, each with its check."""


def check_page(root: Root, content: Rows | Pointers) -> list[Violation]:
    """Return the rules that the rows of a leaf page of ``root`` break. For an inner page the list is empty."""
    if not isinstance(content, Rows):
        return []
    found = [*_impossible_rows(content), *_unclaimed_rows(root, content)]
    return [Violation("rows of a page obey the rules of a root", what) for what in found]


def check_root(root: Root, previous: Root | None = None) -> list[Violation]:
    """Return all rules that ``root`` breaks. With ``previous``, also rules about a change from that root to this
    one.
    """
    found = [Violation(sentence, what) for sentence, check in CHECKS.items() for what in check(root)]
    if previous is not None:
        found += [
            Violation(sentence, what) for sentence, check in CHANGE_CHECKS.items() for what in check(root, previous)
        ]
    return found


def _sentence(text: str) -> Callable[[_Check], _Check]:
    def register(check: _Check) -> _Check:
        CHECKS[text] = check
        return check

    return register


def _change(text: str) -> Callable[[_ChangeCheck], _ChangeCheck]:
    def register(check: _ChangeCheck) -> _ChangeCheck:
        CHANGE_CHECKS[text] = check
        return check

    return register


# -- one root --------------------------------------------------------------------------------------------------------


def _ranges(root: Root) -> tuple[Column, Column]:
    """Return bases and ends of inner pages, leaves and rows, concatenated."""
    if root.inner is NO_POINTERS and root.leaves is NO_POINTERS:
        return root.rows.columns["base"], root.rows.columns["next"]
    tables = (root.inner, root.leaves, root.rows)
    return (
        np.concatenate([table.columns["base"] for table in tables]),
        np.concatenate([table.columns["next"] for table in tables]),
    )


@_sentence("rows cover one range without gap or overlap, in pages and after them")
def _contiguous(root: Root) -> Iterator[str]:
    base, end = _ranges(root)
    for index in np.flatnonzero(base >= end)[:1]:
        yield f"entry {index} covers {base[index]}..{end[index]}"
    for index in np.flatnonzero(base[1:] != end[:-1])[:1]:
        yield f"entry {index} ends at {end[index]}, but the next begins at {base[index + 1]}"


@_sentence("rows reach from start_offset to next_offset")
def _coverage(root: Root) -> Iterator[str]:
    start, end = root.start_offset, root.next_offset
    if not 0 <= start <= end:
        yield f"start {start}, next {end}"
    bases, ends = _ranges(root)
    if not len(bases):
        if start != end:
            yield f"no rows for {start}..{end}"
        return
    if not bases[0] <= start < ends[0]:
        yield f"the first row covers {bases[0]}..{ends[0]}, the log starts at {start}"
    if ends[-1] != end:
        yield f"the last row ends at {ends[-1]}, the log at {end}"


@_sentence("live segments, bytes, records and row sums equal what was added minus what was removed")
def _balance(root: Root) -> Iterator[str]:
    live = root.held if root.dead == NO_TALLY else root.held - root.dead
    expected = root.added - root.removed
    for name in ("segments", "size_bytes", "records"):
        if getattr(live, name) != getattr(expected, name):
            yield f"{name}: {getattr(live, name)} live, {getattr(expected, name)} by the totals"
    if live.sum != expected.sum:
        yield f"row sum {live.sum:032x}, by the totals {expected.sum:032x}"


@_sentence("only the page in which the log starts has rows below its start")
def _dead(root: Root) -> Iterator[str]:
    if root.dead == NO_TALLY:
        return
    first = root.inner if len(root.inner) else root.leaves
    if not len(first):
        yield f"{root.dead.segments} rows below the start, and no page"
    elif not 0 < root.dead.segments < first.columns["rows"][0]:
        yield f"{root.dead.segments} rows below the start, the first page has {first.columns['rows'][0]}"
    elif first.columns["base"][0] >= root.start_offset:
        yield f"{root.dead.segments} rows below the start, the first page begins at it"


@_sentence("every row is possible: sizes, times, flags, checksum")
def _possible(root: Root) -> Iterator[str]:
    yield from _impossible_rows(root.rows)


def _impossible_rows(rows: Rows) -> Iterator[str]:
    """Yield the first row with an impossible size, time, flag or checksum, as text; nothing without such a row."""
    column = rows.columns
    hole = (column["flags"] & FLAG_HOLE) != 0
    bad = (
        (column["size"] < 0)
        | (column["records"] < 0)
        | (column["idx_len"] < 0)
        | ((column["size"] == 0) != hole)
        | (column["min_ts"] > column["max_ts"])
        | (column["crc"] < 0)
        | (column["crc"] >= 2**32)
        | ((column["flags"] & ~KNOWN_FLAGS) != 0)
        | (((column["flags"] & FLAG_STAGED) != 0) & ((column["flags"] & (FLAG_HOLE | FLAG_MAINTAINER)) != 0))
        | (column["base"] < 0)
    )
    for index in np.flatnonzero(bad)[:1]:
        yield str(rows.row(int(index)))


@_sentence("every pointer is possible: page, sizes, times, flags, checksum")
def _possible_pointers(root: Root) -> Iterator[str]:
    for pointers in (root.inner, root.leaves):
        if pointers is NO_POINTERS:
            continue
        if pointers.impossible is not None:
            yield str(pointers.pointer(pointers.impossible))


@_sentence("no object is named twice, or both live and in the trash")
def _unique(root: Root) -> Iterator[str]:
    rows, trash, inner, leaves = root.rows.columns, root.trash.columns, root.inner.columns, root.leaves.columns
    objects, whole = rows["size"] > 0, root.trash.kinds != TRASH_ROWS
    high = np.concatenate([rows["id_hi"][objects], trash["id_hi"][whole], inner["id_hi"], leaves["id_hi"]])
    ascending = np.sort(high)
    if not (ascending[1:] == ascending[:-1]).any():  # nearly always, as ids are random
        return
    low = np.concatenate([rows["id_lo"][objects], trash["id_lo"][whole], inner["id_lo"], leaves["id_lo"]])
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    same = np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1]))
    if len(same):
        yield f"{len(same)} ids twice"


@_sentence("every row was uploaded under an epoch that its role has claimed, and every page")
def _claimed(root: Root) -> Iterator[str]:
    yield from _unclaimed_rows(root, root.rows)
    for pointers in (root.inner, root.leaves):
        least, written, maintained = pointers.epochs
        if least < 1 or written > root.roles[Role.WRITER].epoch or maintained > root.roles[Role.MAINTAINER].epoch:
            by_maintainer = (pointers.columns["flags"] & POINTER_MAINTAINER) != 0
            yield from _unclaimed(root, pointers.columns["epoch"], by_maintainer, "page")


def _unclaimed_rows(root: Root, rows: Rows) -> Iterator[str]:
    """Yield a sentence about the first row whose epoch its role has not claimed; nothing if there is none."""
    yield from _unclaimed(root, rows.columns["claim_epoch"], (rows.columns["flags"] & FLAG_MAINTAINER) != 0, "row")


def _unclaimed(root: Root, epochs: Column, by_maintainer: npt.NDArray[np.bool_], what: str) -> Iterator[str]:
    limit = np.where(by_maintainer, root.roles[Role.MAINTAINER].epoch, root.roles[Role.WRITER].epoch)
    for index in np.flatnonzero((epochs < 1) | (epochs > limit))[:1]:
        yield f"{what} {index} has epoch {epochs[index]}, its role is at {limit[index]}"


@_sentence("lineage ascends, and no row has a leader epoch that it does not know")
def _lineage(root: Root) -> Iterator[str]:
    for before, after in itertools.pairwise(root.lineage):
        if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
            yield f"{after} follows {before}"
    if root.lineage and root.lineage[-1].start_offset > root.next_offset:
        yield f"epoch {root.lineage[-1].epoch} begins beyond the end {root.next_offset}"
    known = root.leader_epoch
    for table in (root.rows, *(pages for pages in (root.leaves, root.inner) if pages.leader_epoch > known)):
        epochs = table.columns["leader_epoch"]
        for index in np.flatnonzero(epochs > known)[:1]:
            yield f"entry {index} has {epochs[index]}, the newest is {known}"


@_sentence("sealed holds ended epochs only, each once, ascending, at most 64 of a role")
def _sealed(root: Root) -> Iterator[str]:
    ended: dict[str, list[int]] = {}
    for entry in root.sealed:
        ended.setdefault(entry.role, []).append(entry.epoch)
    for role in Role:
        epochs = ended.pop(role.value, [])
        if epochs != sorted(set(epochs)) or len(epochs) > SEALED_LIMIT:
            yield f"role {role.value}: {epochs[:8]}"
        current = root.roles[role].epoch
        if epochs and epochs[-1] >= current:
            yield f"role {role.value}: epoch {epochs[-1]} is sealed, the current one is {current}"
        if current > 1 and (not epochs or epochs[-1] != current - 1):
            yield f"role {role.value}: epoch {current - 1} is not sealed"
    if ended:
        yield "an unknown role"


@_sentence("the role that made this version names this commit as its last one")
def _committed(root: Root) -> Iterator[str]:
    commit = root.commit
    if not commit.id or commit.id == root.prev_commit_id:
        yield f"commit id {commit.id!r} after {root.prev_commit_id!r}"
    if commit.op == "create":
        if root.version != 1:
            yield f"version {root.version} is a creation"
        return
    state = root.roles.get(commit.role)
    if state is None or state.last_commit != commit.id or state.epoch != commit.epoch or state.seq != commit.seq:
        yield f"commit {commit.id} of {commit.role}{commit.epoch}, the role has {state}"


@_sentence("trash, floor and transactions stay inside their limits")
def _limits(root: Root) -> Iterator[str]:
    removed = root.trash.columns["removed_version"]
    if len(removed):
        if removed.max() > root.version or removed.min() < 1:
            yield f"trash of versions {removed.min()}..{removed.max()} in version {root.version}"
        if not np.isin(root.trash.kinds, TRASH_KINDS).all():
            yield f"trash of kinds {sorted(set(root.trash.kinds.tolist()))}"
    if root.gc_floor > root.version:
        yield f"gc_floor {root.gc_floor} in version {root.version}"
    different = len(dict(root.txns))
    if len(root.txns) > TXNS_LIMIT or different < len(root.txns):
        yield f"{len(root.txns)} transaction ids, {different} different"
    versions = root.txn_versions
    if versions and len(versions) != len(root.txns):
        yield f"{len(root.txns)} transaction ids, {len(versions)} versions"
    known = [*([root.txns_floor] if root.txns_floor else []), *versions]
    if known != sorted(set(known)) or max(known, default=0) > root.version:
        yield f"transactions of versions {versions[:8]} above {root.txns_floor} in version {root.version}"


@_sentence("compacted ranges ascend and end inside the log")
def _cleaned(root: Root) -> Iterator[str]:
    if not root.cleaned:
        return
    ends = [entry.end_offset for entry in root.cleaned]
    if ends != sorted(set(ends)) or ends[-1] > root.next_offset:
        yield f"{ends[:8]}, the log ends at {root.next_offset}"


# -- a root and an earlier one -----------------------------------------------------------------------------------------


@_change("identity never changes")
def _identity(root: Root, previous: Root) -> Iterator[str]:
    now = (root.topic_id, root.partition, root.topic, root.created_ms)
    before = (previous.topic_id, previous.partition, previous.topic, previous.created_ms)
    if now != before:
        yield f"{before} became {now}"


@_change("version, epochs, offsets, floor and totals never go back")
def _monotone(root: Root, previous: Root) -> Iterator[str]:
    is_rebuilt = root.version - previous.version >= VERSION_STEP  # its floor and totals begin again
    for name in ("version", "start_offset", "next_offset", *(() if is_rebuilt else ("gc_floor",))):
        now, before = getattr(root, name), getattr(previous, name)
        if now < before:
            yield f"{name} {before} became {now}: an older root was restored, or a stale one was served"
    for role in Role:
        if root.roles[role].epoch < previous.roles[role].epoch:
            yield f"epoch of {role.value}: {previous.roles[role].epoch} became {root.roles[role].epoch}"
    for name in () if is_rebuilt else ("segments", "size_bytes", "records"):
        for total in ("added", "removed"):
            now, before = getattr(getattr(root, total), name), getattr(getattr(previous, total), name)
            if now < before:
                yield f"{total} {name}: {before} became {now}"


@_change("one version is made by one commit, its time is above the time of the version before")
def _one_commit(root: Root, previous: Root) -> Iterator[str]:
    if root.version == previous.version and root.commit.id != previous.commit.id:
        yield f"version {root.version} was made by {previous.commit.id} and by {root.commit.id}"
    direct = root.version == previous.version + 1
    if direct != (root.prev_commit_id == previous.commit.id) and root.version > previous.version:
        yield f"version {root.version} says that it follows {root.prev_commit_id}, not {previous.commit.id}"
    if root.version > previous.version and root.commit.ts_ms <= previous.commit.ts_ms:
        yield f"ts_ms {previous.commit.ts_ms} became {root.commit.ts_ms}"


TAKES_ROLE = frozenset({"claim", "handover", "stage"})
"""Ops that may begin an epoch: ``stage`` only before a writer's first claim."""


@_change("a claim seals the last commit of the epoch that it ends; other commits keep all epochs and other roles")
def _roles_kept(root: Root, previous: Root) -> Iterator[str]:
    if root.version != previous.version + 1:
        return
    for role in Role:
        now, before = root.roles[role], previous.roles[role]
        if role.value != root.commit.role or root.commit.op == "create":
            if now != before:
                yield f"role {role.value} changed by a commit of {root.commit.role}"
            continue
        taken = root.commit.op in TAKES_ROLE and not (root.commit.op == "stage" and before.epoch)
        if not taken and now.epoch != before.epoch:
            yield f"{root.commit.op} changed the epoch of {role.value} to {now.epoch}"
        if now.epoch != before.epoch and before.epoch:
            entry = root.sealed_commit(role.value, before.epoch)
            if now.epoch != before.epoch + 1 or entry is None or entry.last_commit != before.last_commit:
                yield f"epoch {before.epoch} of {role.value} ended with {before.last_commit}, sealed is {entry}"


@_change("committed rows stay as they are, unless removed or replaced over the same range")
def _rows_kept(root: Root, previous: Root) -> Iterator[str]:
    if root.removed != previous.removed:
        return
    # Rows that left the tail are in pages now, where the sums prove that they are the same.
    count, before = len(root.rows), len(previous.rows)
    paged = root.rows.base[0] if count else root.next_offset
    rows = previous.rows
    if root.inner is not NO_POINTERS or root.leaves is not NO_POINTERS:
        gone = int(np.searchsorted(rows.base, paged))
        rows, before = rows.slice(gone), before - gone
    if count < before:
        yield f"{before} rows became {count}, and nothing was removed"
        return
    for name in root.rows.FIELDS:
        now, was = root.rows.columns[name][:before], rows.columns[name]
        if now.tobytes() != was.tobytes():
            index = int(np.flatnonzero(now != was)[0])
            yield f"{name} of row {index} was {was[index]}, is {now[index]}"


@_change("what leaves the trash was removed at or below gc_floor, or is listed in a page of the trash")
def _trash_kept(root: Root, previous: Root) -> Iterator[str]:
    if root.version != previous.version + 1 or root.trash is previous.trash:
        return
    kept = root.trash.slice(0, len(previous.trash))
    if len(kept) == len(previous.trash) and kept == previous.trash:
        return
    lists = root.trash.where(root.trash.kinds == TRASH_LIST)
    listed = int(lists.columns["removed_version"].max()) if len(lists) else 0
    gone = set(previous.trash) - set(root.trash)
    for entry in sorted(gone):
        if entry.removed_version > max(root.gc_floor, listed):
            yield f"{entry} is gone, the floor is {root.gc_floor}"
            return


@_change("a log that is sealed or being deleted is never opened again")
def _state(root: Root, previous: Root) -> Iterator[str]:
    if previous.state != STATE_OPEN and root.state == STATE_OPEN:
        yield f"{previous.state} became {root.state}"
