"""One stream over both tiers: a reader asks for offsets or times, never for tiers.

::

    wanted offsets ─┬─ windows (rows pruned by time) ─> plan.read.plan_tiers ─> batches of each tier ─> records
    wanted times  ──┘

Offsets below the committed end come from the bucket, the others from disk. Nothing is skipped silently (rules:
``plan.read``). Batches stay encoded. Records are decoded batch by batch as the caller iterates. This module has steps
only; ``topic`` runs them on threads, ``aio.topic`` on asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tiered.arguments import offset_or_none
from tiered.errors import ConfigError, OffsetGapError, OffsetOutOfRangeError, TieredError
from tiered.format import kernels
from tiered.format.batch import (
    BatchHeader,
    consumer_records,
    decode_records,
    read_header,
    rebuild_batch,
    verify_batch,
)
from tiered.format.batch_scanner import BatchRun, walk_headers
from tiered.format.kernel_values import Shown
from tiered.format.kernels import ConsumerRecord
from tiered.format.locks import Signal
from tiered.model import AbortedTxn, EpochEntry, Positions, TopicPartition
from tiered.plan.read import LocalSpan, RemoteSpan, Tier, earliest_offset, latest_offset, plan_tiers
from tiered.plan.visibility import Hidden
from tiered.store.base import Emit, Steps
from tiered.store.steps import blocking
from tiered.times import Time, parse_time

if TYPE_CHECKING:
    from tiered.local.partition.read_log import ReadLog
    from tiered.remote.reader import RemotePartition

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
ON_TRIMMED = ("raise", "jump")
MAX_REPLANS = 8
"""Largest number of plans in a row without progress. A plan is repeated if retention or an upload moves offsets."""


class TierBatch(NamedTuple):
    """One whole encoded batch, and the tier that it came from."""

    tier: Tier
    header: BatchHeader
    data: bytes | memoryview


Shape = Callable[[TierBatch], Any]
"""Function from a batch to the emitted value; None emits nothing."""


RunShape = Callable[[Tier, BatchRun], Any]
"""Function from a run of batches to the emitted value. If it returns None, each batch goes to the ``Shape``."""

Through = Callable[[Iterator[ConsumerRecord]], Iterator[ConsumerRecord]]


Window = tuple[int, int | None]
"""Range of offsets in which wanted records may be: start and exclusive end, None: to the latest."""


class Part(NamedTuple):
    """Range of offsets that a reader of one isolation level can see. ``hidden``: the aborted transactions in it, None:
    show all.
    """

    start: int
    end: int | None
    hidden: Hidden | None


class Cursor:
    """Mutable position of a read. All wanted records below offset ``at`` were emitted."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Range of one partition to read, by offsets or by times; ends are exclusive. All None: the whole partition.

    A record without a timestamp is in no range of times, even in a segment whose other records match.
    """

    start: int | str | None = None
    end: int | str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.start is not None and self.since_ms is not None:
            raise ConfigError("start (an offset) and since (a time) exclude each other", hint="give one of them")
        if self.end is not None and self.until_ms is not None:
            raise ConfigError("end (an offset) and until (a time) exclude each other", hint="give one of them")

    @property
    def least_ms(self) -> int | None:
        """Return the lowest timestamp that a record in the range can have, None if times do not matter.

        Records without a timestamp (-1) are below every such value.
        """
        return 0 if self.since_ms is None and self.until_ms is not None else self.since_ms

    @classmethod
    def from_times(
        cls,
        since: Time | None,
        until: Time | None,
        *,
        now_ms: int,
        start: int | str | None = None,
        end: int | str | None = None,
    ) -> ReadRange:
        """Return the range for times and offsets as users give them. ``now_ms``: the time for relative times.

        Raises ConfigError for a wrong offset, or an offset and a time on one side. Raises InvalidTimestampError for a
        wrong time.
        """
        return cls(
            offset_or_none("start", start),
            offset_or_none("end", end),
            None if since is None else parse_time(since, now_ms=now_ms),
            None if until is None else parse_time(until, now_ms=now_ms),
        )


class ReadRequest(NamedTuple):
    """Checked arguments of a read. ``all_partitions``: the caller named no partition.

    ``idle_s``: seconds without a record after which a read that follows ends; None: never.
    """

    partitions: Sequence[int]
    span: ReadRange
    isolation: str = "read_uncommitted"
    on_trimmed: str = "raise"
    follow: bool = False
    all_partitions: bool = False
    idle_s: float | None = None


class TierStream:
    """Both tiers of one partition; ``local`` or ``remote`` may be None, not both. Not thread-safe: one per reader."""

    def __init__(self, tp: TopicPartition, *, local: ReadLog | None, remote: RemotePartition | None) -> None:
        self.tp = tp
        self._local = local
        self._remote = remote

    def refresh(self) -> Steps[None]:
        """Read the newest catalog. An unreadable catalog raises an error, and never counts as "no remote tier"."""
        if self._remote is not None:
            yield from self._remote.refresh()

    def release(self) -> Steps[None]:
        """End the stream and delete its pin from the bucket (``remote.pins``). Never raises."""
        if self._remote is not None:
            yield from self._remote.release()

    def spans(self) -> Steps[tuple[LocalSpan | None, RemoteSpan | None]]:
        """Return the offset ranges (local, remote), None for a missing tier. Remote: as of the last refresh."""
        local = LocalSpan.from_positions(self._local.positions()) if self._local is not None else None
        if self._remote is None:
            return local, None
        pinned = yield from self._remote.snapshot()
        return local, RemoteSpan(pinned.start_offset, pinned.next_offset) if pinned is not None else None

    def earliest(self) -> Steps[int]:
        """Return the smallest offset over both tiers."""
        return earliest_offset(*(yield from self.spans()))

    def latest(self) -> Steps[int]:
        """Return the exclusive end over both tiers."""
        return latest_offset(*(yield from self.spans()))

    def watch(self, signal: Signal) -> bool:
        """Arrange that each append of this process sets ``signal``. Return False if other processes may add records."""
        return self._local is not None and self._local.watch(signal)

    def unwatch(self, signal: Signal) -> None:
        """Stop setting ``signal``."""
        if self._local is not None:
            self._local.unwatch(signal)

    @property
    def in_bucket(self) -> bool:
        """Return True if records can come from a bucket."""
        return self._remote is not None

    @property
    def on_disk(self) -> bool:
        """Return True if records can come from a disk."""
        return self._local is not None

    def stamp(self) -> Steps[object]:
        """Return a value that normally changes with each append of another process (directory and file state).

        An equal value means "probably no append". None without a local tier.
        """
        return None if self._local is None else (yield from blocking(self._local.stamp))

    def leader_epochs(self) -> Steps[tuple[EpochEntry, ...]]:
        """Return leader epochs and their first offsets, from the disk, or from the bucket without a local tier."""
        if self._local is not None:
            return self._local.leader_epochs()
        return () if self._remote is None else (yield from self._remote.leader_epochs())

    def flushed_offset(self) -> int:
        """Return the exclusive end of the fsynced records on this disk, 0 without a local tier."""
        return self._local.positions().flushed_offset if self._local is not None else 0

    def positions(self) -> Steps[Positions]:
        """Return the partition's positions over both tiers. Without a local tier all records count as uploaded."""
        local, remote = yield from self.spans()
        committed = remote.end_offset if remote is not None else 0
        return Positions(
            start_offset=earliest_offset(local, remote),
            local_start_offset=local.start_offset if local is not None else committed,
            uploaded_offset=committed,
            flushed_offset=max(committed, self.flushed_offset()),
            end_offset=latest_offset(local, remote),
        )

    def last_stable_offset(self) -> Steps[int]:
        """Return the end of ``read_committed``: the oldest open transaction's first offset, otherwise the latest."""
        local, remote = yield from self.spans()
        if self._local is not None and local is not None and (remote is None or local.end_offset >= remote.end_offset):
            return (yield from blocking(self._local.last_stable_offset))
        if self._remote is None:
            return latest_offset(local, remote)
        return (yield from self._remote.last_stable_offset())

    def offset(self, wanted: int | str) -> Steps[int]:
        """Return ``wanted`` as an offset. ``"earliest"`` (``"beginning"``) and ``"latest"`` (``"end"``) are looked up.

        Decimal text is an offset, too. Raises ConfigError for other texts and negative numbers.
        """
        checked = offset_or_none("offset", wanted)
        if checked in ("earliest", "beginning"):
            return (yield from self.earliest())
        if checked in ("latest", "end"):
            return (yield from self.latest())
        return int(checked or 0)

    def first_offset(self, start: int | str, since_ms: int | None) -> Steps[int]:
        """Return where a read begins: at ``start``, or at the first record of time ``since_ms`` or later.

        If there is no such record, return the latest offset.
        """
        if since_ms is None:
            return (yield from self.offset(start))
        found = yield from self.offset_for_time(since_ms)
        return (yield from self.latest()) if found is None else found[0]

    def offset_for_time(self, timestamp: int) -> Steps[tuple[int, int] | None]:
        """Return (offset, timestamp) of the first record with a timestamp of at least ``timestamp``, None without one.

        Searches both tiers. The first record is the one with the lowest offset. ``timestamp``: milliseconds.
        """
        local, remote = yield from self.spans()
        if self._remote is not None and remote is not None:
            if self._local is not None and local is not None and local.start_offset < remote.start_offset:
                found = yield from blocking(partial(self._local.offset_for_time, timestamp))
                if found is not None and found[0] < min(local.uploaded_offset, remote.start_offset):
                    return found  # trimmed in the bucket, still on this disk
            found = yield from self._remote.offset_for_time(timestamp)
            if found is not None:
                return found
        return (yield from self._local_offset_for_time(timestamp, remote))

    def _local_offset_for_time(self, timestamp: int, remote: RemoteSpan | None) -> Steps[tuple[int, int] | None]:
        if self._local is None:
            return None
        found = yield from blocking(partial(self._local.offset_for_time, timestamp))
        committed = remote.end_offset if remote is not None else 0
        if found is None or found[0] >= committed:
            return found

        def matching(batch: TierBatch) -> tuple[int, int] | None:
            if batch.header.max_timestamp >= timestamp:
                for record in decode_records(batch.data):
                    if record.timestamp >= timestamp and record.offset >= committed:
                        return record.offset, record.timestamp
            return None

        # The disk's answer is below the committed end, where the catalog had no match: search from there on.
        first: tuple[int, int] | None = yield from _first(self.batches(committed, shape=matching))
        return first

    def windows(self, wanted: ReadRange) -> Steps[list[Window]]:
        """Return the offset windows that may hold wanted records, in order, with remote segments pruned by time."""
        start = yield from (self.offset(wanted.start) if wanted.start is not None else self.earliest())
        end = (yield from self.offset(wanted.end)) if wanted.end is not None else None
        if wanted.since_ms is None and wanted.until_ms is None:
            return [(start, end)] if end is None or start < end else []
        local, remote = yield from self.spans()
        if start > latest_offset(local, remote) and (end is None or start < end):
            return [(start, end)]  # reading it raises OffsetOutOfRangeError
        windows: list[Window] = []
        local_from = start
        if self._remote is not None and remote is not None:
            local_from = max(start, remote.end_offset)
            stop = remote.end_offset if end is None else min(end, remote.end_offset)  # a newer catalog may hold more
            windows = yield from self._windows_below(wanted, start, min(stop, remote.start_offset))
            windows += yield from self._remote_windows(self._remote, wanted, max(start, remote.start_offset), stop)
        if local is not None and (end is None or local_from < end):
            # Offsets in neither tier have no known times: keep them, so that reading them raises that they are missing.
            if wanted.since_ms is not None and local.start_offset <= local_from:
                found = yield from self._local_offset_for_time(wanted.since_ms, remote)
                if found is None:
                    return windows
                local_from = max(local_from, found[0])
            windows.append((local_from, end))
        return windows

    def _windows_below(self, wanted: ReadRange, start: int, end: int) -> Steps[list[Window]]:
        """Return offsets ``start`` to ``end`` (exclusive), which are below the catalog's rows, as one window."""
        if start < end and wanted.since_ms is not None and self._local is not None:
            found = yield from blocking(partial(self._local.offset_for_time, wanted.since_ms))
            start = end if found is None else max(start, found[0])
        return [(start, end)] if start < end else []

    def _remote_windows(self, remote: RemotePartition, wanted: ReadRange, start: int, end: int) -> Steps[list[Window]]:
        windows: list[Window] = []
        at = start
        while at < end and len(rows := (yield from remote.piece(at))):
            for row in rows:
                low, high = max(row.base, start), min(row.next, end)
                too_old = wanted.least_ms is not None and row.max_ts < wanted.least_ms
                too_new = wanted.until_ms is not None and row.min_ts >= wanted.until_ms
                if low >= high or too_old or too_new:
                    continue
                if windows and windows[-1][1] == low:
                    windows[-1] = windows[-1][0], high
                else:
                    windows.append((low, high))
            at = rows.end_offset
        return windows

    def batches(
        self,
        start: int,
        end: int | None = None,
        *,
        on_trimmed: str = "raise",
        shape: Shape | None = None,
        run_shape: RunShape | None = None,
        cursor: Cursor | None = None,
    ) -> Steps[None]:
        """Emit the whole batches that hold offsets ``start`` to ``end``, in order, from the tier that has them.

        ``end``: exclusive; None: the latest. ``shape`` maps a batch to the emitted value, ``run_shape`` a run of them.
        ``on_trimmed="jump"`` continues at the earliest offset if retention deleted the wanted one. ``cursor`` moves to
        after each emitted batch. Raises OffsetOutOfRangeError, OffsetGapError, CorruptionError, the store's errors.
        """
        replans = 0
        cursor = cursor or Cursor(start)

        def passed(tier: Tier, stop: int, header: BatchHeader, data: bytes | memoryview) -> object:
            at, next_offset = cursor.at, header.next_offset
            if next_offset <= at or header.base_offset >= stop:
                return None
            batch = TierBatch(tier, header, data)
            if header.base_offset < at and at != start:
                batch = _cut(batch, at)
            cursor.at = next_offset
            return batch if shape is None else shape(batch)

        def passed_run(tier: Tier, stop: int, run: BatchRun) -> Iterator[object]:
            if run_shape is not None and (cursor.at == start or run.base_offset >= cursor.at):
                made = run_shape(tier, run)
                if made is not None:
                    cursor.at = run.next_offset
                    yield made
                    return
            for header, data in _batches_of(run):
                taken = passed(tier, stop, header, data)
                if taken is not None:
                    yield taken

        while end is None or cursor.at < end:
            before = cursor.at
            local, remote = yield from self.spans()
            try:
                ranges = plan_tiers(self.tp, before, end, local=local, remote=remote)
                if not ranges:
                    return
                for tier_range in ranges:
                    tier, stop = tier_range.tier, tier_range.end
                    if tier is Tier.LOCAL:
                        yield from self._read_local(cursor.at, stop, partial(passed_run, tier, stop))
                    elif self._remote is not None:
                        take, take_run = partial(passed, tier, stop), partial(passed_run, tier, stop)
                        yield from self._remote.read(cursor.at, stop, take, run_shape=take_run)
                    cursor.at = max(cursor.at, stop)
                if end is None:
                    end = cursor.at  # the latest offset when the stream was planned: a stream ends
            except (OffsetOutOfRangeError, OffsetGapError) as error:
                # Offsets that left one tier may be in the other by now. They are gone only if a refresh finds neither.
                replans = replans + 1 if cursor.at == before else 0
                yield from self.refresh()
                now = yield from self.spans()
                earliest, latest = earliest_offset(*now), latest_offset(*now)
                if cursor.at < earliest and on_trimmed == "jump":
                    cursor.at = earliest
                    continue
                still_missing = isinstance(error, OffsetGapError) and now == (local, remote)
                if still_missing or replans > MAX_REPLANS or not earliest <= cursor.at <= latest:
                    raise

    def batch_runs(self, start: int, end: int | None = None, *, on_trimmed: str = "raise") -> Steps[None]:
        """Emit the encoded batches with offsets ``start`` to ``end`` as iterators, each over several batches.

        ``end``: exclusive; None: the latest. ``on_trimmed="jump"`` continues at the earliest offset if retention
        deleted the wanted one. Raises OffsetOutOfRangeError, OffsetGapError, CorruptionError, the store's errors.
        """
        run_shape = partial(_batches_of_run, start)
        yield from self.batches(start, end, on_trimmed=on_trimmed, shape=_alone, run_shape=run_shape)

    def _read_local(self, start: int, end: int, take: Callable[[BatchRun], Iterator[object]]) -> Steps[None]:
        """Emit the values that ``take`` returns for each run of batches on disk from ``start`` to ``end`` (exclusive).

        Batches before a damaged one are emitted, too.
        """
        if self._local is None:
            return
        reading = yield from blocking(partial(self._local.read_runs, start, end))
        try:
            while (run := (yield from blocking(partial(next, reading, None)))) is not None:
                for taken in take(run):
                    yield Emit(taken)
        finally:
            close = getattr(reading, "close", None)
            if close is not None:
                close()

    def records(
        self,
        wanted: ReadRange,
        *,
        isolation: str = "read_uncommitted",
        on_trimmed: str = "raise",
        through: Through | None = None,
    ) -> Steps[None]:
        """Emit iterators of decoded records of ``wanted``, each over one or more batches, without control records.

        ``read_committed`` also leaves out aborted records, and ends before the first open transaction. ``through`` maps
        each iterator to the emitted one. ``on_trimmed="jump"`` continues at the earliest offset if retention deleted
        the wanted one; "raise" raises OffsetOutOfRangeError.
        """
        for part in (yield from self.shown(wanted, isolation)):
            yield from self.part_records(part, wanted, on_trimmed=on_trimmed, through=through)

    def part_records(
        self,
        part: Part,
        wanted: ReadRange,
        *,
        on_trimmed: str = "raise",
        through: Through | None = None,
        cursor: Cursor | None = None,
    ) -> Steps[None]:
        """Emit iterators of the decoded records of ``part``, each over one or more batches, without hidden records.

        ``wanted``: bounds of the timestamps. ``on_trimmed``: "raise", or "jump" over records that retention deleted.
        ``through`` maps each iterator to the emitted one. ``cursor`` moves to after each emitted batch.
        """
        start, end, hidden = part
        shape: Shape = partial(_shown, self.tp, wanted, start, end, hidden)
        run_shape: RunShape = partial(_run_shown, self.tp, wanted, start, end, hidden)
        if through is not None:
            shape = partial(_passed, through, shape)
            run_shape = partial(_passed, through, run_shape)
        yield from self.batches(start, end, on_trimmed=on_trimmed, shape=shape, run_shape=run_shape, cursor=cursor)

    def shown(self, wanted: ReadRange, isolation: str) -> Steps[list[Part]]:
        """Return the parts of ``wanted`` that a reader of this isolation level can see, in order; empty if none.

        Raises OffsetOutOfRangeError if ``wanted`` starts after the latest offset.
        """
        committed_only = isolation == "read_committed"
        bound = (yield from self.last_stable_offset()) if committed_only else None
        found: list[Part] = []
        for start, stop in (yield from self.windows(wanted)):
            end = stop if bound is None else bound if stop is None else min(stop, bound)
            if end is None or start < end:
                found.append(Part(start, end, (yield from self.hidden(start, end)) if committed_only else None))
            elif stop is None or start < stop:
                yield from self._check_begun(start)
        return found

    def hidden(self, start: int, end: int | None) -> Steps[Hidden]:
        """Return the filter that hides aborted records from ``start`` to ``end`` (exclusive; None: the latest)."""
        return Hidden((yield from self._aborted(start, end)))

    def _check_begun(self, start: int) -> Steps[None]:
        """Raise OffsetOutOfRangeError if ``start`` is after the latest offset. Lower offsets become readable later."""
        if start > (yield from self.latest()):
            yield from self.refresh()
            local, remote = yield from self.spans()
            if start > latest_offset(local, remote):
                plan_tiers(self.tp, start, local=local, remote=remote)  # raises

    def _aborted(self, start: int, end: int | None) -> Steps[list[AbortedTxn]]:
        stop = (yield from self.latest()) if end is None else end
        found: set[AbortedTxn] = set()
        if self._local is not None:
            found.update((yield from blocking(partial(self._local.aborted_txns, start, stop))))
        if self._remote is not None:
            kept = self._local.positions().local_start_offset if self._local is not None else 0
            pinned = yield from self._remote.snapshot()
            if kept > (pinned.next_offset if pinned is not None else 0):
                # Segments and their indexes left the disk since the last refresh: a newer catalog has them.
                pinned = yield from self._remote.refresh()
            if pinned is not None:
                found.update((yield from self._remote.aborted_txns(start, stop)))
        return sorted(found, key=lambda txn: txn.first_offset)


def _alone(batch: TierBatch) -> tuple[TierBatch]:
    return (batch,)


def _batches_of_run(start: int, tier: Tier, run: BatchRun) -> Iterator[TierBatch] | None:
    """Return the batches of a run (consecutive batches) from ``start`` on. None: the caller must decode each alone."""
    return kernels.run_batches(run.data, TierBatch, BatchHeader, tier, start)


def _passed(through: Through, shape: Callable[..., Any], *found: object) -> Iterator[ConsumerRecord] | None:
    records = shape(*found)
    return None if records is None else through(records)


def _shown(  # noqa: PLR0917 - bound by ``records``, in the order of a read
    tp: TopicPartition, wanted: ReadRange, start: int, end: int | None, hidden: Hidden | None, batch: TierBatch
) -> Iterator[ConsumerRecord] | None:
    """Return the records of a batch in the times of ``wanted`` and from ``start`` to ``end`` (exclusive).

    Return None for a control batch, a batch that ``hidden`` hides, and one that is too old for ``wanted``.
    """
    header = batch.header
    if header.is_control or (hidden is not None and hidden.hides(header)):
        return None
    if wanted.least_ms is not None and header.max_timestamp < wanted.least_ms:
        return None
    return _decoded(tp, batch, start, end, wanted)


def _run_shown(  # noqa: PLR0917 - as ``_shown``
    tp: TopicPartition, wanted: ReadRange, start: int, end: int | None, hidden: Hidden | None, tier: Tier, run: BatchRun
) -> Iterator[ConsumerRecord] | None:
    """Return the records of a run of batches in the times of ``wanted`` and from ``start`` to ``end`` (exclusive).

    None: the caller must check and decode each batch alone.
    """
    if hidden is not None and hidden.hides_any:
        return None
    return kernels.run_records(run.data, Shown(*tp, 0, -1, tier.value, start, end, wanted.least_ms, wanted.until_ms))


def _decoded(
    tp: TopicPartition, batch: TierBatch, start: int, end: int | None, wanted: ReadRange
) -> Iterator[ConsumerRecord]:
    """Return a lazy iterator of the batch's records: decoding starts with the first record."""
    kind, epoch = int(batch.header.timestamp_type), batch.header.leader_epoch
    shown = Shown(*tp, kind, epoch, batch.tier.value, start, end, wanted.least_ms, wanted.until_ms)
    return chain.from_iterable(map(consumer_records, (batch.data,), (shown,)))


def _batches_of(run: BatchRun) -> Iterator[tuple[BatchHeader, memoryview]]:
    for position, header in walk_headers(run.data):
        data = run.data[position : position + header.size_bytes]
        if header.records_count < 0:  # a compressed v0 or v1 message: only its content has the first offset
            header = verify_batch(data, header)
        yield header, data


def _cut(batch: TierBatch, at: int) -> TierBatch:
    """Return the batch without records below ``at``, which the other tier has already served; a control batch whole."""
    if batch.header.is_control:
        return batch
    data = rebuild_batch(batch.header, [record for record in decode_records(batch.data) if record.offset >= at])
    return TierBatch(batch.tier, read_header(data), data)


class StepIterator:
    """Source of the values that ``steps`` emit, one at a time, for use in other steps."""

    END = object()

    def __init__(self, steps: Steps[object]) -> None:
        self._steps = steps

    def next(self) -> Steps[Any]:
        """Return the next emitted value, ``END`` after the last one."""
        outcome: object = None
        error: TieredError | None = None
        try:
            while True:
                request = self._steps.send(outcome) if error is None else self._steps.throw(error)
                if isinstance(request, Emit):
                    return request.value
                outcome = error = None
                try:
                    outcome = yield request
                except TieredError as raised:
                    error = raised
        except StopIteration:
            return StepIterator.END

    def close(self) -> None:
        """Close the steps. They run no further."""
        self._steps.close()


def _first(steps: Steps[object]) -> Steps[Any]:
    """Return the first value that ``steps`` emit, None without one. Stops there."""
    pieces = StepIterator(steps)
    try:
        found = yield from pieces.next()
        return None if found is StepIterator.END else found
    finally:
        pieces.close()
