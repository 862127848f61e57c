"""One round of keyed compaction over a partition of the bucket: the cleaner of the hot tier, without a disk.

::

    first dirty .. first uncleanable  ── OffsetMapBuilder ──>  newest offset of every key, up to map end
    rows from the start .. map end    ── BatchFilter ───────>  a new segment for each group ──> its own ``replace``
    map end                           ───────────────────────>  with the last of them: the clean end in the root

A group whose new segment is the old one is left as it is. A round that ends early leaves each group as it was or
cleaned; the next one begins where this one began, and loses the two newest groups at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tiered.config import MAX_LONG
from tiered.errors import CorruptionError, TieredError
from tiered.format.batch import BatchHeader, least_timestamp, read_header
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot
from tiered.format.root import Cleaned
from tiered.format.txn_index import encode_txns
from tiered.model import AbortedTxn, Row
from tiered.plan.batch_filter import BatchFilter, CleaningReport
from tiered.plan.cleaning import CleaningCandidate, LogState, SegmentState, group_segments
from tiered.plan.maintenance import MAX_GROUP_ROWS
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES, OffsetMap, OffsetMapBuilder
from tiered.remote.fetch import SegmentGone
from tiered.remote.rewrite import Rows, SegmentOutput, Workshop, in_turn
from tiered.remote.snapshot import Snapshot
from tiered.store.base import NewId, Steps

Commit = Callable[[Sequence[Row], Row, Cleaned | None], Steps[None]]
"""Puts the second in the place of the first, and notes how far the partition is compacted."""


class Compaction:
    """One round over ``snapshot``, whose rows ``state`` and ``candidate`` were made of."""

    def __init__(
        self,
        shop: Workshop,
        snapshot: Snapshot,
        state: LogState,
        candidate: CleaningCandidate,
        *,
        now_ms: int,
        memory_bytes: int = DEDUPE_BUFFER_BYTES,
    ) -> None:
        self._shop = shop
        self._snapshot = snapshot
        self._state = state
        self._candidate = candidate
        self._now_ms = now_ms
        self._map = OffsetMap(memory_bytes)
        self.report = CleaningReport(candidate.first_dirty)

    def run(self, commit: Commit) -> Steps[CleaningReport]:
        """All of it. Raises CorruptionError, SegmentGone, and what ``commit`` raises."""
        state, candidate, report, lookup = self._state, self._candidate, self.report, self._shop.lookup
        aborted = yield from lookup.aborted_txns(self._snapshot, 0, state.end_offset)
        producers = decode((yield from lookup.producer_snapshot(self._snapshot)))
        yield from self._build_map(aborted)
        kept = BatchFilter(
            self._map,
            first_uncleanable=candidate.first_uncleanable,
            now_ms=self._now_ms,
            delete_retention_ms=state.config.delete_retention_ms,
            producers=producers,
            aborted=aborted,
        )
        groups = group_segments(
            state.segments,
            map_end=self._map.end_offset,
            first_uncleanable=candidate.first_uncleanable,
            config=state.config,
            most_segments=MAX_GROUP_ROWS,
        )
        waiting: tuple[Sequence[Row], Row] | None = None  # for the next one: the last carries the clean end
        for group in groups:
            rows = yield from self._rows(group)
            # Of all groups one is written in any case: only a ``replace`` can note the clean end.
            row = yield from self._rewrite(rows, kept, always=group is groups[-1] and waiting is None)
            if row is None:
                continue
            if waiting is not None:
                yield from commit(*waiting, None)
            waiting = rows, row
            report.groups.append(tuple(segment.base_offset for segment in group))
        if waiting is not None:
            horizon_ms = min(self._now_ms + state.config.delete_retention_ms, MAX_LONG)
            yield from commit(*waiting, Cleaned(self._map.end_offset, horizon_ms))
        report.conclude(kept.stats, self._map)
        return report

    def _build_map(self, aborted: Sequence[AbortedTxn]) -> Steps[None]:
        first, end = self._candidate.first_dirty, self._candidate.first_uncleanable
        builder = OffsetMapBuilder(self._map, start_offset=first, aborted=aborted)
        full = False

        def take(header: BatchHeader, batch: memoryview) -> Steps[bool]:
            nonlocal full
            yield from ()
            self.report.bytes_read += len(batch)
            if header.last_offset >= first:
                full = builder.add(batch, header)
            return not full

        def ended(row: Row) -> None:
            builder.end_segment(row.next)

        yield from self._shop.read(self._dirty(first, end), take, ended)
        if not full:
            builder.end_segment(end)

    def _dirty(self, first: int, end: int) -> Rows:
        """The rows from the one that holds ``first`` up to ``end``, a piece of the catalog at a time."""
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

    def _rows(self, group: Sequence[SegmentState]) -> Steps[list[Row]]:
        """The rows of a group, which are neighbours."""
        found: list[Row] = []
        while len(found) < len(group):
            rows = yield from self._snapshot.piece(group[len(found)].base_offset)
            found += list(rows.slice(0, len(group) - len(found)))
        return found

    def _rewrite(self, rows: Sequence[Row], kept: BatchFilter, *, always: bool) -> Steps[Row | None]:
        """The group as one new segment; None if it would be the old one, and need not be."""
        output = SegmentOutput(self._shop, rows, (yield NewId()))

        def take(header: BatchHeader, batch: memoryview) -> Steps[bool]:
            cleaned = kept.clean(batch, header)
            if cleaned is not None:
                after = header if cleaned is batch else read_header(cleaned)
                least = least_timestamp(after, cleaned)
                output.stats.count(after.records_count, least, after.max_timestamp)
                yield from output.append(cleaned, after)
            return True

        try:
            kept.begin_segment()
            yield from self._shop.read(in_turn(rows), take)
            txns = kept.take_aborted()
            same = not always and len(rows) == 1 and output.written == (rows[0].size, rows[0].crc)
            # A hole at the end would take the newest producers with it: nothing tells them behind it.
            ends = not output.written[0] and rows[-1].next == self._snapshot.next_offset
            if same or ends:
                yield from output.abandon()
                return None
            snapshot, epochs = yield from self._shop.beside(rows)
            row = yield from output.finish(encode_txns(txns), snapshot, epochs)
        except (TieredError, SegmentGone):
            yield from output.abandon()
            raise
        if (row.base, row.next) != (rows[0].base, rows[-1].next):
            raise CorruptionError(f"{self._shop.tp}: {rows[0].base} to {rows[-1].next} became {row}")
        return row


def decode(snapshot: bytes) -> Sequence[ProducerEntry]:
    """Producers of a snapshot file, none of an empty one."""
    return decode_snapshot(snapshot) if snapshot else ()
