"""One stream over both tiers: a reader asks for offsets or times, never for tiers.

::

    wanted offsets ─┬─ windows (rows pruned by time) ─> plan.read.plan_tiers ─> batches of each tier ─> records
    wanted times  ──┘

Remote below the committed end, local above; nothing is skipped silently (``plan.read`` holds the rules). Batches are
handed on undecoded; records are decoded one batch at a time, only when the caller iterates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tiered.arguments import offset_or_none
from tiered.errors import ConfigError, OffsetGapError, OffsetOutOfRangeError
from tiered.format.batch import BatchHeader, ControlType, control_type, decode_records, read_header, rebuild_batch
from tiered.model import AbortedTxn, ConsumerRecord, Positions, TopicPartition
from tiered.plan.read import LocalSpan, RemoteSpan, Tier, earliest_offset, latest_offset, plan_tiers
from tiered.remote.reader import RemotePartition
from tiered.times import Time, parse_time

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
ON_TRIMMED = ("raise", "jump")
MAX_REPLANS = 8
"""Times that one stream plans anew because a tier moved under it, without having read anything in between."""


class TierBatch(NamedTuple):
    """One whole batch, undecoded, and the tier that it came from."""

    tier: Tier
    header: BatchHeader
    data: bytes | memoryview


class Window(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive; None: to the latest) that may hold wanted records."""

    start: int
    end: int | None


class LocalPartition(Protocol):
    """What a stream needs of the hot tier (``local.partition.PartitionLog`` is one)."""

    def positions(self) -> Positions:
        """Where this disk starts and ends."""

    def read_batches(self, start_offset: int, end_offset: int | None = None) -> Iterator[bytes | memoryview]:
        """Whole batches from the one that holds ``start_offset``."""

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """First (offset, timestamp) with a timestamp at or after the one given."""

    def aborted_txns(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Aborted transactions that touch the range."""

    def last_stable_offset(self) -> int:
        """Where ``read_committed`` ends."""

    def high_watermark(self) -> int:
        """Where ``read_uncommitted`` ends: the end, unless a leader or followers say otherwise."""


@dataclass(frozen=True, slots=True)
class ReadRange:
    """What to read of one partition: offsets, or times; both None on both sides means everything."""

    start: int | str | None = None
    end: int | str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.start is not None and self.since_ms is not None:
            raise ConfigError("start (an offset) and since (a time) exclude each other", hint="give one of them")
        if self.end is not None and self.until_ms is not None:
            raise ConfigError("end (an offset) and until (a time) exclude each other", hint="give one of them")

    @classmethod
    def of_times(
        cls,
        since: Time | None,
        until: Time | None,
        *,
        now_ms: int,
        start: int | str | None = None,
        end: int | str | None = None,
    ) -> ReadRange:
        """With times as users write them (``tiered.times``). Raises InvalidTimestampError, ConfigError."""
        return cls(
            offset_or_none("start", start),
            offset_or_none("end", end),
            None if since is None else parse_time(since, now_ms=now_ms),
            None if until is None else parse_time(until, now_ms=now_ms),
        )

    def wants(self, timestamp: int) -> bool:
        """Whether a record with this timestamp lies in the wanted times."""
        return (self.since_ms is None or timestamp >= self.since_ms) and (
            self.until_ms is None or timestamp < self.until_ms
        )


class PartitionStream:
    """Both tiers of one partition. ``local`` or ``remote`` may be None, not both. Not thread-safe: one per reader."""

    def __init__(self, tp: TopicPartition, *, local: LocalPartition | None, remote: RemotePartition | None) -> None:
        self.tp = tp
        self._local = local
        self._remote = remote

    def refresh(self) -> None:
        """Looks at the catalog anew; a catalog that cannot be read is an error, never "no remote tier"."""
        if self._remote is not None:
            self._remote.refresh()

    def spans(self) -> tuple[LocalSpan | None, RemoteSpan | None]:
        """What each tier holds now (the remote one as of the last refresh)."""
        local = LocalSpan.of(self._local.positions()) if self._local is not None else None
        pinned = self._remote.snapshot() if self._remote is not None else None
        return local, RemoteSpan(pinned.start_offset, pinned.next_offset) if pinned is not None else None

    def earliest(self) -> int:
        """The smallest offset over both tiers."""
        return earliest_offset(*self.spans())

    def latest(self) -> int:
        """The exclusive end over both tiers."""
        return latest_offset(*self.spans())

    def flushed_offset(self) -> int:
        """What this disk has fsynced (exclusive end); 0 without a local tier."""
        return self._local.positions().flushed_offset if self._local is not None else 0

    def last_stable_offset(self) -> int:
        """Where a ``read_committed`` stream ends: the first offset of the oldest open transaction, else the latest."""
        local, remote = self.spans()
        if self._local is not None and local is not None and (remote is None or local.end_offset >= remote.end_offset):
            return self._local.last_stable_offset()
        return self._remote.last_stable_offset() if self._remote is not None else self.latest()

    def _high_watermark(self) -> int | None:
        """Where ``read_uncommitted`` ends if not at the latest offset: a log that follows has records to come."""
        if self._local is None:
            return None
        end = self._local.positions().end_offset  # first: it may grow
        mark = self._local.high_watermark()
        return mark if mark < end else None

    def offset(self, wanted: int | str) -> int:
        """``wanted`` as a number: an int, ``"earliest"``, ``"latest"``. Raises ConfigError for anything else."""
        if isinstance(wanted, bool):
            raise ConfigError(f"{wanted!r} is not an offset", hint='an int >= 0, "earliest" or "latest"')
        if isinstance(wanted, int):
            if wanted < 0:
                raise ConfigError(f"{self.tp}: offset {wanted} is negative", hint='an int >= 0, "earliest" or "latest"')
            return wanted
        if wanted in ("earliest", "beginning"):
            return self.earliest()
        if wanted in ("latest", "end"):
            return self.latest()
        if wanted.isdecimal():
            return int(wanted)
        raise ConfigError(f"{wanted!r} is not an offset", hint='an int >= 0, "earliest" or "latest"')

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """First (offset, timestamp) with timestamp >= the one given, over both tiers; Kafka's rule (section 5.4)."""
        _, remote = self.spans()
        if self._remote is not None and remote is not None:
            found = self._remote.offset_for_time(timestamp)
            if found is not None:
                return found
        return self._local_offset_for_time(timestamp, remote)

    def _local_offset_for_time(self, timestamp: int, remote: RemoteSpan | None) -> tuple[int, int] | None:
        if self._local is None:
            return None
        found = self._local.offset_for_time(timestamp)
        committed = remote.end_offset if remote is not None else 0
        if found is None or found[0] >= committed:
            return found
        # The disk's own answer lies below the committed end, where the catalog has already said "none".
        for batch in self.batches(committed):
            if batch.header.max_timestamp < timestamp:
                continue
            for record in decode_records(batch.data):
                if record.timestamp >= timestamp and record.offset >= committed:
                    return record.offset, record.timestamp
        return None

    def windows(self, wanted: ReadRange) -> list[Window]:
        """Offset windows that may hold wanted records, in order: remote segments pruned by their timestamps."""
        start = self.offset(wanted.start) if wanted.start is not None else self.earliest()
        end = self.offset(wanted.end) if wanted.end is not None else None
        if wanted.since_ms is None and wanted.until_ms is None:
            return [Window(start, end)] if end is None or start < end else []
        windows: list[Window] = []
        local, remote = self.spans()
        local_from = start
        if self._remote is not None and remote is not None:
            local_from = max(start, remote.end_offset)
            for row in self._remote.rows():
                low, high = max(row.base, start, remote.start_offset), row.next
                if end is not None:
                    high = min(high, end)
                too_old = wanted.since_ms is not None and row.max_ts < wanted.since_ms
                too_new = wanted.until_ms is not None and row.min_ts >= wanted.until_ms
                if low >= high or too_old or too_new:
                    continue
                if windows and windows[-1].end == low:
                    windows[-1] = Window(windows[-1].start, high)
                else:
                    windows.append(Window(low, high))
        if local is not None and (end is None or local_from < end):
            # Nobody knows the times of offsets that are in neither tier: reading them says that they are missing.
            if wanted.since_ms is not None and local.start_offset <= local_from:
                found = self._local_offset_for_time(wanted.since_ms, remote)
                if found is None:
                    return windows
                local_from = max(local_from, found[0])
            windows.append(Window(local_from, end))
        return windows

    def pruned_segments(self, wanted: ReadRange) -> int:
        """Remote segments that a read of ``wanted`` never fetches because of their timestamps."""
        if self._remote is None or self._remote.snapshot() is None:
            return 0
        windows = self.windows(wanted)
        return sum(
            not any(row.base < (w.end if w.end is not None else row.next) and w.start < row.next for w in windows)
            for row in self._remote.rows()
        )

    def batches(self, start: int, end: int | None = None, *, on_trimmed: str = "raise") -> Iterator[TierBatch]:
        """Whole batches that hold offsets ``start`` to ``end``, in order, from whichever tier serves them.

        Raises OffsetOutOfRangeError, OffsetGapError, CorruptionError and the store's errors. ``on_trimmed="jump"``
        goes on at the new earliest offset where retention took the wanted one away.
        """
        at, replans = start, 0
        while end is None or at < end:
            before = at
            local, remote = self.spans()
            try:
                ranges = plan_tiers(self.tp, at, end, local=local, remote=remote)
                if not ranges:
                    return
                for tier_range in ranges:
                    for batch in self._tier_batches(tier_range.tier, at, tier_range.end):
                        if batch.header.next_offset > at:
                            yield batch if batch.header.base_offset >= at or at == start else _cut(batch, at)
                            at = batch.header.next_offset
                    at = max(at, tier_range.end)
                if end is None:
                    end = at  # the latest offset when the stream was planned: a stream ends
            except (OffsetOutOfRangeError, OffsetGapError) as error:
                # Offsets that left one tier may be in the other by now: only what a new look does not find is gone.
                replans = replans + 1 if at == before else 0
                planned_on = (local, remote)
                self.refresh()
                earliest, latest = self.earliest(), self.latest()
                if at < earliest and on_trimmed == "jump":
                    at = earliest
                    continue
                still_missing = isinstance(error, OffsetGapError) and self.spans() == planned_on
                if still_missing or replans > MAX_REPLANS or not earliest <= at <= latest:
                    raise

    def _tier_batches(self, tier: Tier, start: int, end: int) -> Iterator[TierBatch]:
        source = self._local if tier is Tier.LOCAL else self._remote
        if source is None:
            return
        for data in source.read_batches(start, end):
            header = read_header(data)
            if header.base_offset >= end:
                return
            yield TierBatch(tier, header, data)

    def records(
        self, wanted: ReadRange, *, isolation: str = "read_uncommitted", on_trimmed: str = "raise"
    ) -> Iterator[ConsumerRecord]:
        """Decoded records of ``wanted``, without control records; ``read_committed`` also without aborted ones."""
        committed_only = isolation == "read_committed"
        bound = self.last_stable_offset() if committed_only else self._high_watermark()
        for start, stop in self.windows(wanted):
            end = stop if bound is None else bound if stop is None else min(stop, bound)
            if end is not None and start >= end:
                continue
            aborted = _Aborted(self._aborted(start, end)) if committed_only else None
            for batch in self.batches(start, end, on_trimmed=on_trimmed):
                if batch.header.is_control:
                    if aborted is not None:
                        aborted.marker(batch)
                    continue
                if aborted is not None and aborted.hides(batch.header):
                    continue
                if wanted.since_ms is not None and batch.header.max_timestamp < wanted.since_ms:
                    continue
                yield from self._decoded(batch, start, end, wanted)

    def _decoded(self, batch: TierBatch, start: int, end: int | None, wanted: ReadRange) -> Iterator[ConsumerRecord]:
        topic, partition = self.tp
        kind, epoch, tier = int(batch.header.timestamp_type), batch.header.leader_epoch, batch.tier.value
        timed = wanted.since_ms is not None or wanted.until_ms is not None
        for offset, timestamp, key, value, headers in decode_records(batch.data):
            if offset < start or (timed and not wanted.wants(timestamp)):
                continue
            if end is not None and offset >= end:
                return
            yield ConsumerRecord(topic, partition, offset, timestamp, kind, key, value, headers, epoch, tier)

    def _aborted(self, start: int, end: int | None) -> list[AbortedTxn]:
        stop = self.latest() if end is None else end
        found: set[AbortedTxn] = set()
        if self._local is not None:
            found.update(self._local.aborted_txns(start, stop))
        if self._remote is not None:
            kept = self._local.positions().local_start_offset if self._local is not None else 0
            if kept > self._remote.next_offset:
                self.refresh()  # segments left the disk since the catalog was looked at, and their indexes with them
            if self._remote.snapshot() is not None:
                found.update(self._remote.aborted_txns(start, stop))
        return sorted(found, key=lambda txn: txn.first_offset)


def _cut(batch: TierBatch, at: int) -> TierBatch:
    """Without the records below ``at``: the other tier has given those offsets, perhaps with other records."""
    if batch.header.is_control:
        return batch
    data = rebuild_batch(batch.header, [record for record in decode_records(batch.data) if record.offset >= at])
    return TierBatch(batch.tier, read_header(data), data)


class _Aborted:
    """The client's rule (section 5.3): hide a producer from its transaction's first offset to the ABORT marker."""

    def __init__(self, txns: list[AbortedTxn]) -> None:
        self._coming = txns
        self._hidden: set[int] = set()

    def hides(self, header: BatchHeader) -> bool:
        """Whether this data batch belongs to an aborted transaction."""
        while self._coming and self._coming[0].first_offset <= header.last_offset:
            self._hidden.add(self._coming.pop(0).producer_id)
        return header.is_transactional and header.producer_id in self._hidden

    def marker(self, batch: TierBatch) -> None:
        """Takes note of a control batch: ABORT ends the hiding of its producer."""
        self.hides(batch.header)
        for record in decode_records(batch.data):
            if control_type(record) is ControlType.ABORT:
                self._hidden.discard(batch.header.producer_id)
