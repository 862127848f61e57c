"""Plans the repair of a root that is missing, damaged, or older than what the bucket proves.

::

    copies: versions of the object, hist/, snapshots ── the newest good one ──┐
    bundles of uploads behind its end ── a chain without a gap ───────────────┼──> new root ──> PUT If-Match
    decisions of sinks that the copy has not committed ───────────────────────┘

The new root has a version and claims above all that anything in the bucket proves. It belongs to no volume (of sinks:
to ``spark``), so a disk that wrote the partition goes on after ``tiered repair rejoin``. What only the replaced root
named goes into its trash: going back may have been a mistake.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tiered.check.segment_check import judge_index
from tiered.erase.notes import Undone, undone_steps
from tiered.errors import ConfigError, CorruptionError, NotFoundError
from tiered.format.decision import COMMITTED, Decision
from tiered.format.framed_object import MAX_OBJECT_BYTES
from tiered.format.kernels import crc32c
from tiered.format.keys import (
    DECISIONS_PREFIX,
    FLAG_MAINTAINER,
    FLAG_STAGED,
    MAX_INT32,
    MAX_INT64,
    Role,
    aside_key,
    join_uid,
    parse_decision_key,
    root_key,
    segment_key,
)
from tiered.format.page import PageKind, Pointers
from tiered.format.root import STATE_OPEN, Root
from tiered.format.rows import NO_TRASH, Rows, Trash
from tiered.model import TRASH_LIST, TRASH_MAINTAINER, TRASH_OBJECT, TRASH_PAGE, TRASH_ROWS, EpochEntry, Row, TrashEntry
from tiered.plan.catalog_edit import Garbage, spill
from tiered.plan.commit import Stamp
from tiered.plan.invariants import VERSION_STEP, check_root
from tiered.plan.ownership import SPARK_VOLUME, Refusal
from tiered.plan.rebuild import Objects, chain, rebuilt
from tiered.plan.sink_commit import StageIntent
from tiered.remote.catalog_view import CatalogView, PageCache, read_pages, store_pages
from tiered.remote.conditional_put import (
    COMMIT_DEADLINE_MS,
    Cell,
    NextBody,
    conditional_put,
    deadline_after,
    read_cell,
    replace_once,
    stored_bytes,
)
from tiered.remote.gc.garbage import page_key_of, trash_page
from tiered.remote.root_history import copy_root, find_newest_copy
from tiered.remote.root_view import root_get
from tiered.remote.roots import root_body
from tiered.remote.segment_rewriter import hole
from tiered.remote.sink_commit import read_decision
from tiered.repair.copies import (
    Copies,
    PartitionObjects,
    decode_matching_root,
    fill,
    find_copies,
    list_objects,
    read_all_pages,
    rows_of,
    uploads_after,
)
from tiered.repair.plan import Ground, RepairAction, Workbench
from tiered.repair.segments import plan_hole
from tiered.store.base import ABSENT, NewId, Now, Object, Put, Steps
from tiered.store.steps import list_all
from tiered.times import format_time

KEPT_SHOWN = 20
"""Versions of a root in the error of one that is not kept, at most."""


class StoredRoot(NamedTuple):
    """Object under the root's key: bytes and ETag (None and ``""`` without an object), and ``root`` if undamaged."""

    data: bytes | None
    etag: str
    root: Root | None


class RebuiltContent(NamedTuple):
    """Content of a new root: a copy, the rows of the copy, and those of later uploads (``since``).

    ``where``: place of the copy. ``holes``: rows without records, for the gaps between these uploads.

    ``lost``: offsets without an object: those of ``holes``, and those up to the end of a newer copy. ``seen``: the
    newest version whose existence is proven. ``now``: the current root, if it is undamaged and is replaced by an
    earlier version. ``copied_ms``: commit time of the copied root.
    """

    copy: Root
    where: str
    rows: list[Row]
    since: list[Row]
    holes: list[Row]
    lost: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()
    seen: int = 0
    now: Root | None = None
    copied_ms: int = 0

    @property
    def end(self) -> int:
        """Return the end offset of the new root."""
        rows = [*self.rows, *self.since]
        return rows[-1].next if rows else self.copy.next_offset


def plan_root(ground: Ground) -> Steps[tuple[list[RepairAction], CatalogView | None]]:
    """Return the actions for a partition's root, and the catalog after them. None: it has no usable catalog then.

    Raises CorruptionError if two roots are possible, NotFoundError if the chosen version has no copy, ConfigError if
    it cannot be restored.
    """
    topic_id, tp, options = ground.entry.topic_id, ground.tp, ground.options
    there = yield from _read_root(ground)
    if options.to_version is not None:
        return (yield from _planned(ground, there, "as was asked", (yield from _go_back(ground, there))))
    there, why = yield from _flaw(ground, there)
    if not why:
        return (yield from _with_pages(ground, there))
    copies = yield from find_copies(topic_id, tp, there.root)
    # mutant two-ends-of-a-log-are-refused
    if copies.forked is not None and options.from_version is None:
        raise _two_ends(ground, *copies.forked)
    base = yield from _base(ground, there, copies)
    if base is None:
        remedy = "no copy of the root is kept: what a log directory holds can be uploaded to a new prefix"
        return [RepairAction(tp, root_key(topic_id, tp.partition), why, remedy)], None
    return (yield from _planned(ground, there, why, base))


def _with_pages(ground: Ground, there: StoredRoot) -> Steps[tuple[list[RepairAction], CatalogView | None]]:
    """Return the actions for damaged pages of the root in ``there``, and the catalog after them, None without one."""
    root = there.root
    if root is None:
        return [], None
    pages = yield from read_all_pages(ground, root)
    if not pages.lost:
        return pages.actions, CatalogView.from_root(root, pages.cache)
    copies = yield from find_copies(ground.entry.topic_id, ground.tp, root)
    rows = yield from fill(root, pages, copies)
    first = pages.lost[0]
    why = f"{len(pages.lost)} pages are missing or damaged, the first of offsets {first.base} to {first.next}"
    if rows is None:
        versions = ", ".join([str(version) for version in copies.roots if version < root.version][:5])
        remedy = f"no version, copy or bundle proves what they named: `{ground.command} --from-version V` goes on from"
        remedy += f" an older copy ({versions or 'none is kept'})"
        return [RepairAction(ground.tp, root.page_key(first), why, remedy)], None
    base = RebuiltContent(root, "itself", rows, [], [], seen=copies.seen, copied_ms=root.commit.ts_ms)
    return (yield from _planned(ground, there, why, base))


def plan_shorter(ground: Ground) -> Steps[tuple[list[RepairAction], CatalogView | None]]:
    """Return the action that goes back to the newest copy whose objects all exist, and the catalog after it.

    For a bucket that was copied while it was written: its root may name objects that were not copied. Return
    ``([], None)`` without such a copy of the root, or if any object after the end of that copy exists.
    """
    there = yield from _read_root(ground)
    if there.root is None:
        return [], None
    copies = yield from find_copies(ground.entry.topic_id, ground.tp, there.root)
    base = yield from _base(ground, there, copies)
    if base is None or base.copy.version >= there.root.version or not base.lost:
        return [], None
    start, end = base.lost[-1]
    why = f"objects of offsets {start} to {end} are missing, as in a copy of a bucket"
    return (yield from _planned(ground, there, why, base))


def _read_root(ground: Ground) -> Steps[StoredRoot]:
    key = root_key(ground.entry.topic_id, ground.tp.partition)
    got = yield root_get(key)
    if not isinstance(got, Object):
        return StoredRoot(None, "", None)
    return StoredRoot(bytes(got.data), got.etag, decode_matching_root(got.data, key, ground.entry.topic_id, ground.tp))


def _flaw(ground: Ground, there: StoredRoot) -> Steps[tuple[StoredRoot, str]]:
    """Return the stored root, which is ``there`` or was read again, and its problem; ``""`` without one."""
    if there.root is None:
        return there, "the root is missing" if there.data is None else "the root is damaged"
    if ground.options.from_version is not None:
        return there, f"the operator chose version {ground.options.from_version}"
    newest = yield from find_newest_copy(there.root)
    if newest.contradicts(there.root):
        there = yield from _read_root(ground)  # commits that were made while the copies were listed are no proof
    older = newest.contradicts(there.root) if there.root is not None else "it is gone"
    return there, f"an older root was put back: {older}" if older else ""


def _two_ends(ground: Ground, one: Root, other: Root) -> CorruptionError:
    ends = [
        f"version {root.version} of {root.commit.owner or 'an unknown program'} ends at offset {root.next_offset} "
        f"(commit {root.commit.id})"
        for root in (one, other)
    ]
    return CorruptionError(
        f"{ground.tp}: the root was set back to an older version, then changed: {ends[0]}, {ends[1]}",
        path_or_key=one.key,
        offset=min(one.next_offset, other.next_offset),
        hint=f"`{ground.command} --from-version V` continues from the version that you choose; nothing was changed",
    )


# -- what the new root goes on from ----------------------------------------------------------------------------------


def _base(ground: Ground, there: StoredRoot, copies: Copies) -> Steps[RebuiltContent | None]:
    """Return the content of a new root from the newest usable copy, or from the one that the operator chose.

    Return None without such a copy. Raises NotFoundError if the chosen version has no copy. Raises CorruptionError if
    the current root has rows that the new one would lack, or later uploads are damaged.
    ``there``: the stored root.
    """
    topic_id, tp, chosen = ground.entry.topic_id, ground.tp, ground.options.from_version
    listed = yield from list_objects(topic_id, tp.partition)
    if chosen is not None and chosen not in copies.roots:
        raise NotFoundError(
            f"{tp}: no copy of version {chosen} exists",
            hint=_kept(list(copies.roots.values())),
        )
    floor = max([root.gc_floor for root, _ in copies.roots.values()], default=0)
    first: RebuiltContent | None = None
    for version, (copy, where) in copies.roots.items():
        if version != chosen if chosen is not None else version < floor:
            continue
        try:
            rows = yield from rows_of(copy)
        except CorruptionError:
            continue  # a page is lost: an older copy may be whole
        whole = all(listed.holds(topic_id, tp.partition, row) for row in rows)
        if first is not None and not whole:
            continue
        base = (yield from _with_since(ground, copy, where, rows, listed))._replace(seen=copies.seen)
        first = first or base
        if whole:
            end, last = base.end, first.end
            # The bucket was copied while it was written: the objects after this end came later than the root.
            # One of them, without its other half or between those that are missing, says that the others were lost.
            if end < last and not any(
                listed.has_any(topic_id, tp.partition, row) for row in first.rows if row.base >= end
            ):
                first = base._replace(lost=(*base.lost, (end, last)))
            break
    if first is not None:
        yield from _need_all_of(ground, there, first)
    return first


def _need_all_of(ground: Ground, there: StoredRoot, base: RebuiltContent) -> Steps[None]:
    """Raise CorruptionError if the root in ``there`` has rows that ``base``, the content of the new root, lacks.

    They are of commits that were made after an older root was put back.
    """
    if there.root is None or ground.options.from_version is not None:
        return
    rows = [*base.rows, *base.since]
    named = {(row.id_hi, row.id_lo, row.base) for row in rows}
    for row in (yield from rows_of(there.root)):
        passed = (row.id_hi, row.id_lo, row.base) in named or row.next <= base.copy.start_offset or not row.size
        passed = passed or any(start <= row.base < end for start, end in base.lost)
        if not passed and not any(new.flags & FLAG_MAINTAINER and new.base <= row.base < new.next for new in rows):
            raise _two_ends(ground, there.root, base.copy)


def _with_since(
    ground: Ground, copy: Root, where: str, rows: list[Row], listed: PartitionObjects
) -> Steps[RebuiltContent]:
    """Return the content of a new root: the copy, and the uploads or sink batches that came after its end.

    ``where``, ``rows``: place and rows of the copy.
    """
    copied_ms = copy.commit.ts_ms
    if copy.writer.volume == SPARK_VOLUME:
        copy, since, notes = yield from _decided(ground, copy)
        return RebuiltContent(copy, where, rows, since, [], notes=notes, copied_ms=copied_ms)
    found = yield from uploads_after(copy, listed.sizes, skip_damaged=ground.options.accept_loss)
    key_of = partial(segment_key, copy.topic_id, copy.partition)
    since, holes = chain(found, copy.next_offset, copy.writer.epoch, key_of), list[Row]()
    while True:
        end, claim, epoch = copy.next_offset, copy.writer.epoch, copy.leader_epoch
        if since:
            end, claim, epoch = since[-1].next, since[-1].claim_epoch, since[-1].leader_epoch
        behind = [row for row in found if row.base > end and row.claim_epoch >= claim]
        if not behind:  # a root that ends before a gap would make orphans of the uploads after it
            lost = tuple([(each.base, each.next) for each in holes])
            return RebuiltContent(copy, where, rows, since, holes, lost, copied_ms=copied_ms)
        holes.append(hole(end, behind[0].base, (yield NewId()), 1, epoch))
        since += [holes[-1], *chain(found, behind[0].base, claim, key_of)]


def _decided(ground: Ground, copy: Root) -> Steps[tuple[Root, list[Row], tuple[str, ...]]]:
    """Return the copy with the sink batches that have a decision and that it lacks, their rows, and notes about them.

    Raises CorruptionError for a damaged decision, and without ``accept_loss`` for several batches, whose order is not
    proven.
    """
    target = copy.topic_id, copy.partition
    waiting: list[Decision] = []
    for entry in (yield from list_all(DECISIONS_PREFIX)):
        parsed = parse_decision_key(entry.key)
        if parsed is None or parsed.batch <= copy.last_batch(parsed.txn):
            continue
        try:
            decision = yield from read_decision(entry.key)
        except CorruptionError as damage:
            raise CorruptionError(
                f"{ground.tp}: the decision of batch {parsed.batch} of {parsed.txn} is damaged, and may have "
                f"been committed after version {copy.version}, from which the root is rebuilt",
                path_or_key=entry.key,
                offset=copy.next_offset,
                hint=damage.hint,
            ) from damage
        if decision is not None and decision.state == COMMITTED and decision.partitions.get(target):
            waiting.append(decision)
    waiting.sort(key=lambda each: (each.seen.get(target, 0), each.txn, each.batch))
    root, notes = copy, list[str]()
    for each in waiting:
        stamp = Stamp((yield NewId()), (yield Now()).now_ms, Role.WRITER, root.writer.epoch, "repair")
        intent = StageIntent(each.txn, each.batch, each.partitions[target], each.seen.get(target, 0))
        outcome = intent.apply(root, stamp)
        if not isinstance(outcome, Refusal):  # refused: it was committed so long ago that the copy forgot it
            root = outcome
            notes.append(f"batch {each.batch} of {each.txn} is committed by its decision")
    if len(notes) > 1 and not ground.options.accept_loss:
        raise CorruptionError(
            f"{ground.tp}: {len(notes)} Spark batches were decided after version {copy.version}, and "
            "their order is not known",
            path_or_key=copy.key,
            offset=copy.next_offset,
            hint=f"`{ground.command} --accept-loss` commits them in the order of their decisions; nothing was changed",
        )
    since = (yield from rows_of(root, copy.next_offset)) if notes else []
    return root, since, tuple(notes)


def _go_back(ground: Ground, there: StoredRoot) -> Steps[RebuiltContent]:
    """Return the content of a new root: the copy of ``to_version``, and all rows appended after it.

    Raises NotFoundError if that version has no copy. Raises ConfigError if it is not older, if the log is not open, or
    if a rewrite or trim crossed its end. Raises CorruptionError if the root in ``there`` is missing or damaged, and if
    objects of that version are gone.
    """
    topic_id, tp, version = ground.entry.topic_id, ground.tp, ground.options.to_version or 0
    now = there.root
    if now is None:
        raise CorruptionError(
            f"{tp}: the root is missing or damaged", path_or_key=root_key(topic_id, tp.partition),
            hint=f"`{ground.command} --dry-run` shows from which copy it can be rebuilt",
        )  # fmt: skip
    copies = yield from find_copies(topic_id, tp, now)
    older = _kept([each for each in copies.roots.values() if each[0].version < now.version])
    if now.state != STATE_OPEN:
        raise ConfigError(f"{now.where} is {now.state}: only an open one can go back to version {version}")
    if version >= now.version:
        raise ConfigError(f"{now.where} cannot go back to version {version}, which is not older", hint=older)
    if version not in copies.roots:
        raise NotFoundError(f"{tp}: version {version} is not kept", hint=older)
    copy, where = copies.roots[version]
    since = [row for row in (yield from rows_of(now, copy.next_offset)) if row.next > copy.next_offset]
    if (since[0].base if since else now.next_offset) != copy.next_offset:
        raise ConfigError(
            f"{tp}: version {version} cannot be restored: a later rewrite or trim changed segments around "
            f"its end, offset {copy.next_offset}",
            hint="name a newer version",
        )
    rows = yield from rows_of(copy)
    listed = yield from list_objects(topic_id, tp.partition)
    gone = [row for row in rows if not listed.holds(topic_id, tp.partition, row)]
    if gone:
        raise CorruptionError(
            f"{tp}: version {version} cannot be restored: {len(gone)} of its segments were deleted, the "
            f"first at offset {gone[0].base}",
            path_or_key=segment_key(topic_id, tp.partition, gone[0]),
            offset=gone[0].base,
            hint="name a newer version; nothing was changed",
        )
    copied_ms = copy.commit.ts_ms
    # Claims and batches of sinks are those of now: later commits stay.
    copy = replace(copy, roles=now.roles, commit=now.commit, txns=now.txns, txn_versions=now.txn_versions,
                   txns_floor=now.txns_floor, lineage=now.lineage if len(now.lineage) else copy.lineage)  # fmt: skip
    return RebuiltContent(copy, where, rows, since, [], seen=copies.seen, now=now, copied_ms=copied_ms)


def _kept(copies: Sequence[tuple[Root, str]]) -> str:
    """Return the hint that lists copies of a root, the newest ones, each with its time and offsets."""
    lines = [
        f"  {root.version}: {format_time(root.commit.ts_ms)}, offsets {root.start_offset} to {root.next_offset}"
        for root, _ in copies[:KEPT_SHOWN]
    ]
    return "\n".join(["versions that are kept:", *lines]) if lines else "no older version is kept"


# -- the new root ----------------------------------------------------------------------------------------------------


def _planned(
    ground: Ground, there: StoredRoot, why: str, base: RebuiltContent
) -> Steps[tuple[list[RepairAction], CatalogView | None]]:
    """Return the actions that write the new root, and the catalog after them.

    ``there``: the stored root. ``why``: its damage. ``base``: content of the new root. The catalog is None, and the
    action has no remedy, if offsets would be lost without ``accept_loss``. Raises CorruptionError if the new root would
    break a rule.
    """
    topic_id, tp = ground.entry.topic_id, ground.tp
    copy, rows = base.copy, [*base.rows, *base.since]
    listed = yield from list_objects(topic_id, tp.partition)
    claims = {role: max(listed.epochs[role], copy.roles[role.value].epoch, *_claims(there.root, role)) for role in Role}
    stamp = Stamp((yield NewId()), (yield Now()).now_ms, Role.MAINTAINER, 0, "repair")
    root = rebuilt(
        copy,
        Objects(tuple(rows), (yield from _epochs(ground, base)), claims),
        # mutant repaired-root-is-above-all-proven
        max(base.seen, copy.version) + VERSION_STEP,
        stamp,
    )
    root = replace(root, trash=NO_TRASH, gc_floor=max(copy.gc_floor, there.root.gc_floor if there.root else 0))
    try:
        # Objects that only the old root names wait for the grace time: going back may have been a mistake.
        named = {join_uid(row.id_hi, row.id_lo) for row in rows}
        root = replace(root, trash=(yield from left_behind(there.root or copy, root, stamp, named)))
    except CorruptionError:
        root = replace(root, gc_floor=0)  # a page is lost: its objects are orphans, which a sweep proves
    _need_sound(root)
    undone = yield from _undone(ground, base)
    remedy = (
        f"write version {root.version} from version {copy.version} ({base.where}): offsets {root.start_offset} to "
        f"{root.next_offset}, {len(base.since)} segments after the copy"
    )
    again = f"run `tiered erase {tp.topic}:{tp.partition}` again"
    notes = (*base.notes, "a disk that wrote it goes on after `tiered repair rejoin`")
    undo = tuple([each.sentence(tp, topic_id, again) for each in undone])
    action = RepairAction(tp, root.key, why, remedy, (), undo, notes, partial(_put_root, ground, root, there))
    gone = base.lost[len(base.holes) :]
    if base.lost and not ground.options.accept_loss:
        words = ", ".join([f"{start} to {end}" for start, end in base.lost])
        then = f"goes back to version {copy.version}, the newest one all of whose objects are there"
        remedy = f"no object holds offsets {words}: put the objects back; `{ground.command} --accept-loss` "
        remedy += then if gone else "makes a hole of the gap, after which uploads follow"
        return [replace(action, remedy=remedy, lost=base.lost, act=None)], None
    action = replace(action, lost=gone)
    pinned = CatalogView.from_root(root)
    actions = [action]
    for row in base.holes:
        actions += yield from plan_hole(ground, pinned, row)
    return actions, pinned


def _claims(root: Root | None, role: Role) -> list[int]:
    return [root.roles[role.value].epoch] if root is not None else [0]


def _epochs(ground: Ground, base: RebuiltContent) -> Steps[tuple[EpochEntry, ...]]:
    """Return the leader epochs up to the end of the last upload in ``base.since``, as its bundle has them.

    Empty without one, for a segment of a sink, for a damaged bundle, and with ``to_version``.
    """
    last = next((row for row in reversed(base.since) if row.size), None)
    if last is None or last.flags & FLAG_STAGED or base.now is not None:
        return ()
    judged = yield from judge_index(ground.entry.topic_id, ground.tp, last)
    return judged.bundle.indexes.leader_epochs if judged.bundle is not None else ()


def _undone(ground: Ground, base: RebuiltContent) -> Steps[tuple[Undone, ...]]:
    """Return the erasures that a new root with content ``base`` undoes, as it names segments from before them."""
    rows = base.rows
    if base.now is not None:  # only rows that are named again, not those named all the time
        named = {(row.id_hi, row.id_lo) for row in (yield from rows_of(base.now))}
        rows = [row for row in rows if (row.id_hi, row.id_lo) not in named]
    return (yield from undone_steps(ground.entry.topic_id, ground.tp.partition, rows, base.copied_ms))


def _need_sound(root: Root) -> None:
    """Raise CorruptionError for a root that breaks an invariant, or whose version or epoch allows no later one."""
    problems = [str(each) for each in check_root(root)]
    if root.version > MAX_INT64 or any(state.epoch > MAX_INT32 for state in root.roles.values()):
        problems.append("a key names a version or a claim that no root can follow")
    if problems:
        raise CorruptionError(
            f"{root.where}: the repaired catalog would break a rule: {problems[0]}",
            path_or_key=root.key,
            hint=f"run `tiered check {root.topic}`, and move away objects that were put into this partition by hand",
        )


def _put_root(ground: Ground, root: Root, there: StoredRoot, bench: Workbench) -> Steps[None]:
    """Write ``root`` in place of ``there``, the object that the plan saw, after a copy of that below ``aside/``.

    Raises ConfigError if the object was replaced since.
    """
    deadline = yield from deadline_after(COMMIT_DEADLINE_MS)
    what = f"{ground.tp}, repair"
    if there.data is not None:
        key = aside_key(root.topic_id, root.partition, (yield NewId()))
        yield from conditional_put(Put(key, there.data, ABSENT, crc32c(there.data)), deadline, what)
    stamp = Stamp(root.commit.id, root.commit.ts_ms, Role.MAINTAINER, root.commit.epoch, bench.owner)
    stored = yield from store_pages(spill(root, stamp), deadline)
    body = root_body(stored)
    cell: Cell[bytes | None] = Cell(
        root.key, what, read_cell(root.key, stored_bytes, MAX_OBJECT_BYTES), operator.eq, "plan again"
    )
    done = yield from replace_once(cell, there.etag, NextBody(body, body), deadline)
    if not done.written:
        raise ConfigError(
            f"{ground.tp}: its root has changed since the repair was planned; nothing was replaced",
            hint="run `tiered repair` again",
        )
    yield from copy_root(stored)


# -- its trash ---------------------------------------------------------------------------------------------------------


def left_behind(now: Root, root: Root, stamp: Stamp, named: set[str]) -> Steps[Trash]:
    """Return the trash for ``root``, which replaces ``now``: objects that ``now`` or its trash names, and ``root`` does
    not.

    All pages of ``now`` are trash, because ``root`` names none of them. The entry of a page is for the page alone. The
    segments of its rows have entries of their own, except those that ``root`` names. ``named``: ids of the objects that
    ``root`` names. ``stamp``: author and time of the commit of ``root``. Raises CorruptionError if a page cannot be
    read.
    """
    garbage = Garbage(replace(now, version=root.version - 1, trash=NO_TRASH), stamp)
    cache = PageCache()
    garbage.objects(row for row in (yield from rows_of(now)) if not _is_named(row, named))
    for pointer in now.inner:
        (children,) = yield from read_pages(now, PageKind.INNER, (pointer,), cache)
        if isinstance(children, Pointers):
            garbage.pages(children)
    garbage.pages((*now.inner, *now.leaves))
    waiting: list[TrashEntry] = []
    for entry in now.trash:
        waiting += yield from _opened(now, entry, garbage, named)
    version, ts_ms = root.version, root.commit.ts_ms
    moved = [entry._replace(removed_version=version, removed_ms=ts_ms) for entry in waiting]
    # A leaf that a trim cut is there twice, and its rows, if a later trim took the rest of it.
    once = {(entry.id_hi, entry.id_lo): entry for entry in (*moved, *garbage.trash)}
    return Trash.from_entries(list(once.values()))


def _opened(now: Root, entry: TrashEntry, garbage: Garbage, named: set[str]) -> Steps[list[TrashEntry]]:
    """Return an entry as single pages and objects, without those that are ``named`` again.

    ``now``: root whose trash has the entry. ``garbage`` gets the rows of pages. A page that is missing was collected
    after all that it names.
    """
    if entry.what == TRASH_OBJECT:
        return [] if _is_named(entry, named) else [entry]
    if entry.what == TRASH_PAGE:
        return [entry]
    kinds = [PageKind.TRASH] if entry.what == TRASH_LIST else [PageKind.LEAF, PageKind.INNER]
    content = yield from trash_page(page_key_of(now, entry), kinds)
    waiting: list[TrashEntry] = []
    if content is None:
        return waiting
    if isinstance(content, Trash):
        for one in content:
            waiting += yield from _opened(now, one, garbage, named)
    elif isinstance(content, Pointers):
        for pointer in content:
            rows = yield from trash_page(now.page_key(pointer), [PageKind.LEAF])
            if isinstance(rows, Rows):
                garbage.objects(row for row in rows if not _is_named(row, named))
                garbage.pages((pointer,))
    else:
        below = entry.what == TRASH_ROWS
        rows = content.where((content.next > entry.base) & (content.next <= entry.end)) if below else content
        garbage.objects(row for row in rows if not _is_named(row, named))
        if below:
            return waiting  # the page itself is another entry, or one of the catalog's
    return [*waiting, entry._replace(kind=TRASH_PAGE | entry.kind & TRASH_MAINTAINER, end=0)]


def _is_named(one: Row | TrashEntry, named: set[str]) -> bool:
    return join_uid(one.id_hi, one.id_lo) in named
