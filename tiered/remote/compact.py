"""One round of keyed compaction over a partition of the bucket: the cleaner of the hot tier, without a disk.

::

    first dirty .. first uncleanable  ── OffsetMapBuilder ──>  newest offset of every key, up to map end
    rows from the start .. map end    ── BatchFilter ───────>  a new segment for each group ──> its own ``replace``
    map end                           ───────────────────────>  with the last of them: the clean end in the root

A group is left alone if its new segment equals the old one. A round that ends early leaves each group as it was or
cleaned. The next round starts from the same offset, and repeats the two newest groups at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tiered.config import MAX_LONG, TopicConfig
from tiered.errors import TieredError
from tiered.format.batch import BatchHeader, least_timestamp, read_header
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot
from tiered.format.root import CompactedRange
from tiered.format.segment_indexes import encode_txns
from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.plan.batch_filter import BatchFilter, CleaningReport
from tiered.plan.cleaning import CleaningCandidate, GroupScan, LogState, SegmentState
from tiered.plan.maintenance import MAX_GROUP_ROWS, CompactionPlanner, RowPlanner, segment_state
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES, OffsetMap, OffsetMapBuilder
from tiered.remote.catalog_view import CatalogView
from tiered.remote.fetch import SegmentGone, still_named
from tiered.remote.root_view import RootView
from tiered.remote.segment_rewriter import RewriteContext, Rows, SegmentOutput, in_turn
from tiered.store.base import NewId, Steps

Commit = Callable[[Sequence[Row], Row, CompactedRange | None], Steps[None]]
"""Replaces rows by a new row in the catalog, and records how far the partition is compacted (None: as before)."""


class Compaction:
    """One round of keyed compaction over the partition whose catalog is ``snapshot``. Call :meth:`run` once.

    ``candidate``: range of offsets to clean, planned from the rows of ``snapshot``. ``memory_bytes``: memory for the
    map of keys. If the map is full before the end of the range, the round ends there.
    """

    def __init__(
        self,
        context: RewriteContext,
        snapshot: CatalogView,
        config: TopicConfig,
        candidate: CleaningCandidate,
        *,
        now_ms: int,
        memory_bytes: int = DEDUPE_BUFFER_BYTES,
    ) -> None:
        self._context = context
        self._snapshot = snapshot
        self._config = config
        self._candidate = candidate
        self._now_ms = now_ms
        self._map = OffsetMap(memory_bytes)
        self.report = CleaningReport(candidate.first_dirty)

    def run(self, commit: Commit) -> Steps[CleaningReport]:
        """Run the round and return its report. ``commit`` is called once for each new segment, in order."""
        candidate, report, lookup = self._candidate, self.report, self._context.lookup
        retention_ms = self._config.delete_retention_ms
        aborted = yield from lookup.aborted_txns(self._snapshot, 0, self._snapshot.next_offset)
        producers = decode((yield from lookup.producer_snapshot(self._snapshot)))
        yield from self._build_map(aborted)
        kept = BatchFilter(
            self._map,
            first_uncleanable=candidate.first_uncleanable,
            now_ms=self._now_ms,
            delete_retention_ms=retention_ms,
            producers=producers,
            aborted=aborted,
        )
        groups = self._groups()
        waiting: tuple[Sequence[Row], Row] | None = None  # committed after the next one: the last has the clean end
        following = yield from groups()
        while (group := following) is not None:
            following = yield from groups()
            rows = yield from self._rows(group)
            # One group is written in any case, because only a ``replace`` can note the clean end.
            always = following is None and waiting is None
            row = yield from rewrite_group(
                self._context, rows, kept, next_offset=self._snapshot.next_offset, always=always
            )
            if row is None:
                continue
            if waiting is not None:
                yield from commit(*waiting, None)
            waiting = rows, row
            report.groups.append(tuple(segment.base_offset for segment in group))
        if waiting is not None:
            horizon_ms = min(self._now_ms + retention_ms, MAX_LONG)
            yield from commit(*waiting, CompactedRange(self._map.end_offset, horizon_ms))
        report.conclude(kept.stats, self._map)
        return report

    def _build_map(self, aborted: Sequence[AbortedTxn]) -> Steps[None]:
        first, end = self._candidate.first_dirty, self._candidate.first_uncleanable
        builder = OffsetMapBuilder(self._map, start_offset=first, aborted=aborted)
        full = False

        def add_batch(header: BatchHeader, batch: memoryview) -> Steps[bool]:
            nonlocal full
            yield from ()
            self.report.bytes_read += len(batch)
            if header.last_offset >= first:
                full = builder.add(batch, header)
            return not full

        def ended(row: Row) -> None:
            builder.end_segment(row.next)

        yield from self._context.read(self._dirty(first, end), add_batch, ended)
        if not full:
            builder.end_segment(end)

    def _dirty(self, first: int, end: int) -> Rows:
        """Return a function whose steps return the next row from ``first`` to ``end`` (exclusive), None after the last.

        At most ``PIECE_ROWS`` rows of the catalog are read at a time.
        """
        at, held = first, deque[Row]()

        def following() -> Steps[Row | None]:
            nonlocal at
            if not held and at < end:
                held.extend((yield from self._snapshot.piece(at)))
            if not held or held[0].base >= end:
                return None
            at = held[0].next
            return held.popleft()

        return following

    def _groups(self) -> Callable[[], Steps[tuple[SegmentState, ...] | None]]:
        """Return a function whose steps return the next group of rows that become one segment, None after the last.

        The groups cover the offsets from the log's start to the end of the map of keys.
        """
        config, map_end = self._config, self._map.end_offset
        scan = GroupScan(
            first_uncleanable=self._candidate.first_uncleanable, config=config, most_segments=MAX_GROUP_ROWS
        )
        at, whole = self._snapshot.start_offset, deque[tuple[SegmentState, ...]]()

        def following() -> Steps[tuple[SegmentState, ...] | None]:
            nonlocal at
            while not whole and at < map_end:
                rows = yield from self._snapshot.piece(at)
                found = [scan.add(segment_state(row, config)) for row in rows if row.base < map_end]
                whole.extend(group for group in found if group is not None)
                at = rows.end_offset
                if at >= map_end:
                    whole.extend(scan.end())
            return whole.popleft() if whole else None

        return following

    def _rows(self, group: Sequence[SegmentState]) -> Steps[list[Row]]:
        found: list[Row] = []
        while len(found) < len(group):
            rows = yield from self._snapshot.piece(group[len(found)].base_offset)
            found += list(rows.slice(0, len(group) - len(found)))
        return found


def rewrite_group(
    context: RewriteContext, rows: Sequence[Row], kept: BatchFilter, *, next_offset: int, always: bool
) -> Steps[Row | None]:
    """Store one new segment in place of adjacent ``rows``, with the batches that the filter ``kept`` leaves.

    Return its row; commits nothing. Return None, and store nothing, if ``rows`` end at ``next_offset``, the end of the
    log, and no batch is left. The same holds if the new segment would equal the old one, unless ``always`` is True.
    Raises CorruptionError for damage, SegmentGone for a missing object.
    """
    output = SegmentOutput(context, rows, (yield NewId()))

    def add_batch(header: BatchHeader, batch: memoryview) -> Steps[bool]:
        cleaned = kept.clean(batch, header)
        if cleaned is not None:
            after = header if cleaned is batch else read_header(cleaned)
            least = least_timestamp(after, cleaned)
            output.stats.count(after.records_count, least, after.max_timestamp)
            yield from output.append(cleaned, after)
        return True

    try:
        kept.start_segment()
        yield from context.read(in_turn(rows), add_batch)
        txns = kept.drain_aborted()
        same = not always and len(rows) == 1 and output.written == (rows[0].size, rows[0].crc)
        # A hole at the end would lose the newest producers, because nothing after it has them.
        ends = not output.written[0] and rows[-1].next == next_offset
        if same or ends:
            yield from output.abandon()
            return None
        snapshot, epochs = yield from context.state_at_end(rows)
        row = yield from output.finish(encode_txns(txns), snapshot, epochs)
    except (TieredError, SegmentGone):
        yield from output.abandon()
        raise
    return row


def compaction_planner(
    tp: TopicPartition, config: TopicConfig, snapshot: CatalogView, *, start: int, stable: int, now_ms: int
) -> CompactionPlanner:
    """Return a planner for the rows of ``snapshot`` from ``start`` on, below the last stable offset ``stable``."""
    bounds = LogState(
        tp=tp,
        config=config,
        segments=(),
        log_start_offset=start,
        end_offset=snapshot.next_offset,
        last_stable_offset=stable,
        active_base_offset=snapshot.next_offset,
        checkpoint=max((entry.end_offset for entry in snapshot.root.cleaned), default=None),
    )
    return CompactionPlanner(bounds, now_ms)


def feed(snapshot: CatalogView, at: int, planners: Sequence[RowPlanner]) -> Steps[None]:
    """Add the rows of ``snapshot`` from offset ``at`` on to each planner, one page of the catalog at a time."""
    while planners and len(rows := (yield from snapshot.piece(at))):
        for planner in planners:
            planner.add(rows)
        at = rows.end_offset


def raise_if_still_named(tp: TopicPartition, view: RootView, gone: SegmentGone) -> Steps[None]:
    """Raise CorruptionError if the newest root still names the missing object ``gone``.

    Otherwise another process has replaced or trimmed its row, which is no damage.
    """
    snapshot = yield from view.pin()
    if snapshot is not None and (yield from snapshot.at(gone.row.base)) == gone.row:
        raise still_named(tp, gone, snapshot.version, gone.row.base, "nothing was replaced")


def decode(snapshot: bytes) -> Sequence[ProducerEntry]:
    """Return the producers in the bytes of a ``.snapshot`` file, none for an empty one."""
    return decode_snapshot(snapshot) if snapshot else ()
