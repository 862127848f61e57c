"""A log that is always right: a list of batches. Property tests run it beside the real one.

The model has no files, segments or indexes. The real log decides some questions by its segments: which of them
retention takes, how far a round of cleaning gets. There the test passes in the outcome, and judges it elsewhere. Every
answer is computed from the whole list, by the shortest rule there is (Kafka's, where Kafka has one).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.config import TopicConfig
from tiered.errors import (
    ConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from tiered.format.control import ControlType, marker
from tiered.format.kernels import Record
from tiered.format.producer_snapshot import ProducerEntry
from tiered.model import NO_TIMESTAMP, AbortedTxn, EpochEntry, NewRecord

SEQUENCES = 2**31
WINDOW = 5

__all__ = ["ModelBatch", "ModelLog", "ModelProducer", "ModelStamp"]


class ModelStamp(NamedTuple):
    """Producer fields of a batch. ``sequence`` is that of the first record, -1 in a marker."""

    producer_id: int
    epoch: int
    sequence: int = -1


class Written(NamedTuple):
    """One of a producer's newest batches."""

    sequence: int
    first_offset: int
    last_offset: int
    timestamp: int

    @property
    def last_sequence(self) -> int:
        return (self.sequence + self.last_offset - self.first_offset) % SEQUENCES


@dataclass
class ModelProducer:
    """One idempotent or transactional producer, by Kafka's rules.

    -1 stands for none. ``window``: the newest batches of this epoch, at most five.
    """

    epoch: int = -1
    window: list[Written] = field(default_factory=list)
    coordinator: int = -1
    timestamp: int = -1
    txn_first_offset: int = -1

    def repeated(self, stamp: ModelStamp, count: int) -> Written | None:
        """Return the earlier batch that a batch of ``count`` records with ``stamp`` repeats, if any."""
        for written in self.window:
            same_length = written.last_offset - written.first_offset + 1 == count
            if stamp.epoch == self.epoch and written.sequence == stamp.sequence and same_length:
                return written
        return None

    def check(self, stamp: ModelStamp, transactional: bool) -> None:
        """Raise the error that refuses a client's next batch."""
        if stamp.epoch < self.epoch:
            raise ProducerFencedError("an old epoch")
        if self.epoch >= 0:
            known = self.window if stamp.epoch == self.epoch else []
            due = (known[-1].last_sequence + 1) % SEQUENCES if known else 0
            if stamp.sequence != due:
                raise OutOfOrderSequenceError("out of order", expected=due)
        if self.txn_first_offset >= 0 and not transactional:
            raise InvalidTxnStateError("its transaction is open")

    def append(self, stamp: ModelStamp, base: int, last: int, timestamp: int, transactional: bool) -> None:
        """Apply a data batch that was written."""
        self._enter(stamp.epoch)
        self.window = [*self.window, Written(stamp.sequence, base, last, timestamp)][-WINDOW:]
        self.timestamp = timestamp
        if transactional and self.txn_first_offset < 0:
            self.txn_first_offset = base

    def end(self, epoch: int, coordinator: int, timestamp: int) -> int:
        """Apply a marker. Return the first offset of the transaction that it ends, -1 if none was open."""
        self._enter(epoch)
        first, self.txn_first_offset = self.txn_first_offset, -1
        self.coordinator, self.timestamp = coordinator, timestamp
        return first

    def _enter(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.window = epoch, []

    def entry(self, producer_id: int) -> ProducerEntry:
        """Return the producer's entry in a snapshot."""
        last = self.window[-1] if self.window else None
        return ProducerEntry(
            producer_id,
            self.epoch,
            last.last_sequence if last else -1,
            last.last_offset if last else -1,
            last.last_offset - last.first_offset if last else 0,
            self.timestamp,
            self.coordinator,
            self.txn_first_offset,
        )


class ModelBatch(NamedTuple):
    """One batch, ``base`` to ``last`` inclusive; ``records`` has gaps, or is empty, once the log was cleaned.

    ``stamp`` is its producer's. ``kind`` is set for the marker that ends a transaction. ``timestamp`` is the greatest
    of its records when it was written.
    """

    base: int
    last: int
    records: tuple[Record, ...]
    timestamp: int
    epoch: int = 0
    stamp: ModelStamp | None = None
    transactional: bool = False
    kind: ControlType | None = None
    coordinator: int = -1
    horizon_ms: int | None = None


@dataclass
class ModelLog:
    """One partition: its batches, and how much of it was promised.

    Offsets below ``start`` were deleted, those below ``flushed`` survive a power cut, those below ``end`` a kill.
    ``remote_start`` is the first offset of the log in the bucket, -1 without one. ``batches`` are all that the disk may
    still hold, those below ``start`` included. ``history`` has every producer batch that was not truncated, even after
    cleaning or retention removed it.
    """

    start: int = 0
    end: int = 0
    flushed: int = 0
    config: TopicConfig = field(default_factory=TopicConfig)
    remote_start: int = -1
    batches: list[ModelBatch] = field(default_factory=list)
    call_ends: list[int] = field(default_factory=list)
    epochs: list[EpochEntry] = field(default_factory=lambda: [EpochEntry(0, 0)])
    leader_epoch: int = 0
    producers: dict[int, ModelProducer] = field(default_factory=dict)
    history: list[ModelBatch] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)

    # -- append ----------------------------------------------------------------------------------------------------

    def append(
        self,
        records: Sequence[NewRecord],
        now_ms: int,
        *,
        stamp: ModelStamp | None = None,
        transactional: bool = False,
        fill_times: bool = True,
    ) -> int:
        """Append one batch. Return its first offset; for a producer's repetition, that of the first attempt.

        ``fill_times``: a record without timestamp gets ``now_ms``. Raises the errors of the log, before any change.
        """
        self.check(records, now_ms)
        if stamp is not None:
            known = self.producers.get(stamp.producer_id, ModelProducer())
            repeated = known.repeated(stamp, len(records))
            if repeated is not None:
                return repeated.first_offset
            known.check(stamp, transactional)
        stamped = bool(self.config.timestamp_type)
        times = [now_ms if stamped or (fill_times and r.timestamp < 0) else r.timestamp for r in records]
        made = tuple(
            Record(self.end + i, time, record.key, record.value, list(record.headers or []))
            for i, (record, time) in enumerate(zip(records, times, strict=True))
        )
        first = self.end
        self._lead()
        self._put(ModelBatch(first, first + len(made) - 1, made, max(times), self.leader_epoch, stamp, transactional))
        return first

    def check(self, records: Sequence[NewRecord], now_ms: int) -> None:
        """Raise InvalidTimestampError if any timestamp is bad, InvalidRecordError if a key is missing."""
        config = self.config
        least, most = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
        times = [r.timestamp for r in records if r.timestamp != NO_TIMESTAMP]
        if not config.timestamp_type and any(not least <= time <= most for time in times):
            raise InvalidTimestampError("a timestamp is too old or too far ahead")
        if config.compacted and any(record.key is None for record in records):
            raise InvalidRecordError("a record has no key")

    def append_marker(self, stamp: ModelStamp, kind: ControlType, coordinator: int, timestamp: int, now_ms: int) -> int:
        """Append the end of a transaction, as a coordinator does. Return its offset. Raises ProducerFencedError."""
        known = self.producers.get(stamp.producer_id, ModelProducer())
        if stamp.epoch < known.epoch or coordinator < known.coordinator:
            raise ProducerFencedError("an old epoch")
        time = now_ms if self.config.timestamp_type else timestamp
        new = marker(kind, coordinator, time)
        record = Record(self.end, time, new.key, new.value, [])
        self._lead()
        one = ModelBatch(self.end, self.end, (record,), time, self.leader_epoch, stamp, True, kind, coordinator)
        self._put(one)
        return one.base

    def _lead(self) -> None:
        self.assign(self.leader_epoch, self.end)

    def _put(self, batch: ModelBatch) -> None:
        self.batches.append(batch)
        self.end = batch.last + 1
        self.call_ends.append(self.end)
        if batch.stamp is not None:
            self.history.append(batch)
            ended = note(self.producers, batch)
            if ended is not None:
                self.aborted.append(ended)

    # -- read ------------------------------------------------------------------------------------------------------

    @property
    def records(self) -> list[Record]:
        """Return all readable records, markers included, as a reader of batches finds them."""
        return self.read(self.start)

    def read(self, start: int, end: int | None = None) -> list[Record]:
        """Return the records from ``start`` to below ``end``."""
        limit = self.end if end is None else end
        return [r for batch in self.batches for r in batch.records if max(start, self.start) <= r.offset < limit]

    def read_committed(self, start: int) -> list[Record]:
        """Return the committed records from ``start``: no markers, none of aborted or open transactions."""
        stable = self.stable_offset()
        found = [b for b in self.batches if b.kind is None and not self.is_aborted(b)]
        return [r for b in found for r in b.records if max(start, self.start) <= r.offset < stable]

    def is_aborted(self, batch: ModelBatch) -> bool:
        """Return True if the transaction of a data batch was aborted."""
        if batch.stamp is None or not batch.transactional:
            return False
        pid = batch.stamp.producer_id
        return any(t.producer_id == pid and t.first_offset <= batch.base <= t.last_offset for t in self.aborted)

    @property
    def log_start(self) -> int:
        """Return the start over both tiers."""
        return self.start if self.remote_start < 0 else min(self.start, self.remote_start)

    def stable_offset(self) -> int:
        """Return the first offset of the oldest open transaction, at least the log's start; without one, the end."""
        firsts = [p.txn_first_offset for p in self.producers.values() if p.txn_first_offset >= 0]
        return max(min(firsts, default=self.end), self.log_start)

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record, by offset, at or after ``timestamp``."""
        for record in self.records:
            if record.timestamp >= timestamp:
                return record.offset, record.timestamp
        return None

    # -- leader epochs ---------------------------------------------------------------------------------------------

    def assign(self, epoch: int, offset: int) -> None:
        """Begin ``epoch`` at ``offset``, unless it is the current one. Forget entries that contradict that."""
        if self.epochs and self.epochs[-1].epoch == epoch and self.epochs[-1].start_offset <= offset:
            return
        self.epochs = [e for e in self.epochs if e.epoch < epoch and e.start_offset < offset]
        self.epochs.append(EpochEntry(epoch, offset))

    def new_leader_epoch(self, epoch: int) -> None:
        """Give later records ``epoch``. Raise ConfigError unless it is greater than all before."""
        if epoch <= max([self.leader_epoch, *(e.epoch for e in self.epochs)]):
            raise ConfigError("an old epoch")
        self.leader_epoch = epoch
        self.assign(epoch, self.end)

    # -- what goes -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Promise everything appended so far."""
        self.flushed = self.end

    def delete_before(self, offset: int) -> None:
        """Delete the records below ``offset``."""
        self.start = max(self.start, offset)

    def trim_epochs(self) -> None:
        """Begin the epoch that covers the start there. Forget older ones."""
        older = [e for e in self.epochs if e.start_offset <= self.start]
        if older:
            self.epochs = [EpochEntry(older[-1].epoch, self.start), *self.epochs[len(older) :]]

    def forget_below(self, base: int) -> None:
        """Forget batches below ``base``: they have left the disk and cannot come back."""
        self.batches = [b for b in self.batches if b.last >= base]
        self.aborted = [t for t in self.aborted if t.last_offset >= base]

    def truncate_to(self, offset: int) -> None:
        """End the log at ``offset``. A batch that reaches beyond is removed whole."""
        if offset >= self.end:
            self.epochs = [e for e in self.epochs if e.start_offset < self.end]
            return
        self._cut(offset)
        if self.batches:  # later offsets, left without records, are not promised: an open may find this end
            self.call_ends.append(self.batches[-1].last + 1)
        self.end = offset
        self.start, self.flushed = min(self.start, offset), min(self.flushed, offset)
        self.remote_start = min(self.remote_start, offset)
        self.epochs = [e for e in self.epochs if e.start_offset < offset]
        self.producers = replayed(self.history)

    def _cut(self, offset: int) -> None:
        self.batches = [b for b in self.batches if b.last < offset]
        self.history = [b for b in self.history if b.last < offset]
        self.aborted = [t for t in self.aborted if t.last_offset < offset]
        self.call_ends = [*(end for end in self.call_ends if end < offset), offset]

    def start_over(self, offset: int) -> None:
        """Forget everything and begin an empty log at ``offset``."""
        self._cut(-1)
        self.start = self.end = self.flushed = offset
        self.call_ends = [offset]
        self.remote_start = -1 if self.remote_start < 0 else offset
        self.epochs = []
        self.producers = {}

    def power_cut(self, end: int) -> None:
        """Accept ``end`` after a power cut: nothing promised is missing and no batch is cut in two."""
        lost = any(end <= batch.last < self.flushed for batch in self.batches)
        if lost or end > self.end:
            raise AssertionError(f"came back with end {end}; promised {self.flushed}, appended {self.end}")
        if end not in (self.start, self.flushed, *self.call_ends):
            raise AssertionError(f"came back with end {end}, in the middle of a call")
        self._cut(end)
        self.end = end
        self.producers = replayed(self.history)
        self.reopen()

    def reopen(self) -> None:
        """Open the log as a process does: it leads under the latest epoch that the log knows."""
        self.epochs = [e for e in self.epochs if e.start_offset <= self.end]
        if self.remote_start < 0:
            self.trim_epochs()
        if not self.epochs:
            self.assign(0, self.end)
        self.leader_epoch = self.epochs[-1].epoch


def note(producers: dict[int, ModelProducer], batch: ModelBatch) -> AbortedTxn | None:
    """Apply ``batch`` to its producer. Return the entry of the transaction that it aborts, if any."""
    stamp = batch.stamp
    if stamp is None:
        return None
    producer = producers.setdefault(stamp.producer_id, ModelProducer())
    if batch.kind is None:
        producer.append(stamp, batch.base, batch.last, batch.timestamp, batch.transactional)
        return None
    first = producer.end(stamp.epoch, batch.coordinator, batch.timestamp)
    if first < 0 or batch.kind is not ControlType.ABORT:
        return None
    others = [p.txn_first_offset for p in producers.values() if p.txn_first_offset >= 0]
    return AbortedTxn(stamp.producer_id, first, batch.last, min(others, default=batch.last + 1))


def replayed(batches: Iterable[ModelBatch]) -> dict[int, ModelProducer]:
    """Return the producers after these batches."""
    producers: dict[int, ModelProducer] = {}
    for batch in batches:
        note(producers, batch)
    return producers
