"""One keyed compaction round split into parts, which many machines work on: the parts, and the steps on each.

::

    plan_round ──> Round, parts of whole groups           once; kept by the machine that runs the round
    scan_part ───> pairs of keys and codes, effects       phase 1, any machine; a shuffle makes survivors of the pairs
    rewrite_part ─> a new segment for each group          phase 2, any machine, under the claim of the committer
    inputs_of ───> rows that a commit replaces            before phase 2; one machine commits

A part contains a checksum of each row for which it was planned. If the catalog has other rows, NotFoundError is raised
before anything is written, and the round must be planned again. Rows that were trimmed meanwhile are left out. The
result equals that of one machine, batch for batch.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from tiered.config import TopicConfig
from tiered.errors import FencedError, NotFoundError, UnknownTopicError
from tiered.format.batch import BatchHeader
from tiered.format.keys import Role
from tiered.model import Row, TopicPartition
from tiered.plan.batch_filter import BatchFilter
from tiered.plan.cleaning import GroupScan, SegmentState
from tiered.plan.maintenance import MAX_GROUP_ROWS, segment_state
from tiered.plan.offset_map import TxnsBefore
from tiered.plan.survivors import KeyScan, Survivors
from tiered.remote.catalog import Catalog
from tiered.remote.catalog_view import CatalogView
from tiered.remote.compact import compaction_planner, decode, feed, raise_if_still_named, rewrite_group
from tiered.remote.fetch import SegmentGone
from tiered.remote.root_view import RootView
from tiered.remote.segment_rewriter import RewriteContext, in_turn
from tiered.store.base import Emit, Steps

CHECKSUM_BYTES = 6
"""Size of a row's checksum; a commit compares the rows themselves."""


@dataclass(frozen=True, slots=True)
class Round:
    """Data that all parts of one round share.

    ``start``, ``next_offset``: start and end of the log. ``first_dirty`` to ``first_uncleanable`` (exclusive): offsets
    in which only the newest record of each key stays. ``now_ms``: time of the plan. ``producers``: those at the end of
    the log, as a ``.snapshot`` file in base64.
    """

    topic: str
    partition: int
    start: int
    first_dirty: int
    first_uncleanable: int
    next_offset: int
    now_ms: int
    delete_retention_ms: int
    producers: str


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Adjacent rows that become one segment over offsets ``start`` to ``end`` (exclusive).

    ``inputs``: checksums of the rows, in order.
    """

    start: int
    end: int
    inputs: str

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.inputs) // (2 * CHECKSUM_BYTES)


@dataclass(frozen=True, slots=True)
class CompactionPart:
    """Adjacent groups that one task reads and rewrites.

    ``size_bytes``, ``records``: bytes and records of the ``.log`` objects that it reads.
    """

    groups: tuple[RowGroup, ...]
    size_bytes: int
    records: int

    @property
    def start(self) -> int:
        """Return the first offset of the part."""
        return self.groups[0].start

    @property
    def end(self) -> int:
        """Return the exclusive end offset of the part."""
        return self.groups[-1].end


@dataclass(frozen=True, slots=True)
class Scanned:
    """Result of phase 1 for a part. ``records``: number read. ``pairs``: number of (key, record) pairs emitted.

    ``effects``: effect of each group on the state of transactions, as JSON.
    """

    records: int
    pairs: int
    effects: list[dict[str, list[int]]]


def plan_round(
    view: Catalog, config: TopicConfig, context: RewriteContext, *, part_bytes: int
) -> Steps[tuple[Round, list[CompactionPart]] | None]:
    """Plan a round over the newest root, at any dirty ratio. Return the round and its parts.

    None: there is no root, nothing is dirty, or the topic's ``cleanup.policy`` lacks compact. A part has at least
    ``part_bytes``, except the last. Raises CorruptionError for damage, NotFoundError if rows were replaced or destroyed
    while they were read.
    """
    snapshot = yield from view.pin()
    if snapshot is None or not config.compacted:
        return None
    try:
        return (yield from _planned(snapshot, config, context, part_bytes, (yield from view.now_ms())))
    except SegmentGone as gone:
        yield from raise_if_still_named(context.tp, view, gone)
        raise _changed(context.tp, gone) from gone


def _planned(
    snapshot: CatalogView, config: TopicConfig, context: RewriteContext, part_bytes: int, now_ms: int
) -> Steps[tuple[Round, list[CompactionPart]] | None]:
    start, lookup = snapshot.start_offset, context.lookup
    stable = yield from lookup.last_stable_offset(snapshot)
    planner = compaction_planner(context.tp, config, snapshot, start=start, stable=stable, now_ms=now_ms)
    yield from feed(snapshot, start, [planner])
    candidate = planner.candidate()
    if not candidate.cleanable_bytes:
        return None
    producers = base64.b64encode((yield from lookup.producer_snapshot(snapshot))).decode()
    bounds = candidate.first_dirty, candidate.first_uncleanable, snapshot.next_offset
    parts = yield from _cut(snapshot, config, candidate.first_uncleanable, part_bytes)
    tp, retention_ms = context.tp, config.delete_retention_ms
    return Round(tp.topic, tp.partition, start, *bounds, now_ms, retention_ms, producers), parts


def _cut(snapshot: CatalogView, config: TopicConfig, end: int, part_bytes: int) -> Steps[list[CompactionPart]]:
    """Return the groups of a compaction of all offsets up to ``end`` (exclusive), in parts.

    A part has at least ``part_bytes``, except the last.
    """
    scan = GroupScan(first_uncleanable=end, config=config, most_segments=MAX_GROUP_ROWS)
    waiting, groups, parts = deque[Row](), list[RowGroup](), list[CompactionPart]()
    size = records = 0

    def place(group: Sequence[SegmentState]) -> None:
        nonlocal groups, size, records
        rows = [waiting.popleft() for _ in group]
        groups.append(RowGroup(rows[0].base, rows[-1].next, _checksums(rows)))
        size, records = size + sum(row.size for row in rows), records + sum(row.records for row in rows)
        if size >= part_bytes:
            close()

    def close() -> None:
        nonlocal groups, size, records
        parts.append(CompactionPart(tuple(groups), size, records))
        groups, size, records = [], 0, 0

    at = snapshot.start_offset
    while at < end and len(rows := (yield from snapshot.piece(at))):
        for row in rows:
            if row.base >= end:
                break
            waiting.append(row)
            whole = scan.add(segment_state(row, config))
            if whole is not None:
                place(whole)
        at = rows.end_offset
    for group in scan.end():
        place(group)
    if groups:
        close()
    return parts


def _checksums(rows: Sequence[Row]) -> str:
    return "".join([blake2b(repr(tuple(row)).encode(), digest_size=CHECKSUM_BYTES).hexdigest() for row in rows])


def inputs_of(snapshot: CatalogView, group: RowGroup) -> Steps[list[Row]]:
    """Return the rows for which a group was planned, without those trimmed since; empty if all were trimmed.

    Raises NotFoundError if the catalog has other rows.
    """
    if group.end <= snapshot.start_offset:
        return []
    rows: list[Row] = []
    at = start = max(group.start, snapshot.start_offset)
    while at < group.end and len(piece := (yield from snapshot.piece(at))):
        rows += [row for row in piece if row.base < group.end]
        at = piece.end_offset
    found = _checksums(rows)
    planned = group.inputs if start == group.start else group.inputs[-len(found) :]
    if not rows or found != planned or rows[0].base > start or rows[-1].next != group.end:
        raise NotFoundError(
            f"{snapshot.root.where}: the catalog holds other rows for offsets {group.start} to "
            f"{group.end} than when the compaction was planned",
            hint="run the command again",
        )
    return rows


def scan_part(
    view: RootView,
    context: RewriteContext,
    part: CompactionPart,
    *,
    number: int,
    first_dirty: int,
    most_keys: int,
) -> Steps[Scanned]:
    """Run phase 1 on one part: emit keys and the places of their records as :class:`~tiered.plan.survivors.Pairs`.

    Each emitted value has at most ``most_keys`` keys, plus those of one batch. ``number``: index of the part.
    ``first_dirty``: from this offset on only the newest record of a key counts, below it each one. Raises
    CorruptionError for damage, UnknownTopicError if the topic was deleted, NotFoundError if the catalog has other rows.
    """
    snapshot = yield from _pinned(view, context.tp)
    effects: list[dict[str, list[int]]] = []
    scan = KeyScan(number, part.start, first_dirty=first_dirty, most_keys=most_keys)

    def add_batch(header: BatchHeader, batch: memoryview) -> Steps[bool]:
        scan.add(batch, header)
        if scan.is_full:
            yield Emit(scan.drain())
        return True

    try:
        for group in part.groups:
            rows = yield from inputs_of(snapshot, group)
            aborted = yield from context.lookup.aborted_txns(snapshot, group.start, group.end)
            scan.start(group.start, aborted)
            yield from context.read(in_turn(rows), add_batch)
            effects.append(scan.effect.as_json())
    except SegmentGone as gone:
        yield from raise_if_still_named(context.tp, view, gone)
        raise _changed(context.tp, gone) from gone
    yield Emit(scan.drain())
    return Scanned(scan.records_read, scan.pairs_given, effects)


def rewrite_part(
    view: RootView,
    context: RewriteContext,
    round_: Round,
    groups: Sequence[tuple[RowGroup, TxnsBefore]],
    survivors: Survivors,
    *,
    always: bool,
) -> Steps[list[Row | None]]:
    """Run phase 2: store one new segment for each group, and return their rows in order. Commits nothing.

    None in place of a row: the group's rows stay as they are, or all were trimmed. ``groups``: each with the state of
    transactions before it. ``survivors``: records that stay, by phase 1.

    ``always``: also write a segment that equals the old one, since only a commit can record how far the log is clean.
    Raises FencedError if a newer claim exists than that of ``context``, UnknownTopicError if the topic was deleted.
    Raises CorruptionError for damage, NotFoundError if the catalog has other rows.
    """
    snapshot = yield from _pinned(view, context.tp)
    _need_epoch(snapshot, context.claim_epoch)
    context = replace(context, lineage=snapshot.root.lineage)
    producers = decode(base64.b64decode(round_.producers))
    made: list[Row | None] = []
    try:
        for group, before in groups:
            rows = yield from inputs_of(snapshot, group)
            if not rows:
                made.append(None)
                continue
            aborted = yield from context.lookup.aborted_txns(snapshot, group.start, group.end)
            kept = BatchFilter(
                survivors,
                first_uncleanable=round_.first_uncleanable,
                now_ms=round_.now_ms,
                delete_retention_ms=round_.delete_retention_ms,
                producers=producers,
                aborted=aborted,
                before=before,
            )
            row = yield from rewrite_group(context, rows, kept, next_offset=round_.next_offset, always=always)
            made.append(row)
    except SegmentGone as gone:
        yield from raise_if_still_named(context.tp, view, gone)
        raise _changed(context.tp, gone) from gone
    return made


def _pinned(view: RootView, tp: TopicPartition) -> Steps[CatalogView]:
    snapshot = yield from view.pin()
    if snapshot is None:
        raise UnknownTopicError(f"{tp}: the topic was deleted during the compaction", hint="see `tiered topic list`")
    return snapshot


def _need_epoch(snapshot: CatalogView, epoch: int) -> None:
    """Raise FencedError if a newer claim has ended epoch ``epoch``. A sweep may delete what that epoch writes."""
    state = snapshot.root.roles[Role.MAINTAINER.value]
    if state.epoch != epoch:
        raise FencedError(
            f"{snapshot.root.where}: {state.owner} became the maintainer (epoch {state.epoch}) during "
            f"this work (epoch {epoch}); nothing was written",
            hint="run only one maintainer at a time; the same command again continues the work",
        )


def _changed(tp: TopicPartition, gone: SegmentGone) -> NotFoundError:
    return NotFoundError(f"{tp}: {gone.key} was replaced while it was read", hint="run the command again")
