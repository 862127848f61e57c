"""A log that is always right: a list of batches. Property tests run it beside the real one.

It knows nothing of files, segments or indexes. Where the real log decides by its segments (which of them retention
takes, how far a round of cleaning gets), the test tells the model what happened and judges the decision elsewhere.
Every answer is computed from the whole list, by the shortest rule there is (Kafka's, where Kafka has one).
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

__all__ = ["ModelBatch", "ModelLog", "ModelProducer", "Stamp"]


class Stamp(NamedTuple):
    """What a producer writes into a batch; ``sequence`` of its first record, -1 in a marker."""

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

    def repeated(self, stamp: Stamp, count: int) -> Written | None:
        """The batch of which one of ``count`` records with ``stamp`` is the repetition."""
        for written in self.window:
            same_length = written.last_offset - written.first_offset + 1 == count
            if stamp.epoch == self.epoch and written.sequence == stamp.sequence and same_length:
                return written
        return None

    def check(self, stamp: Stamp, transactional: bool) -> None:
        """Raises what a client's next batch is refused with."""
        if stamp.epoch < self.epoch:
            raise ProducerFencedError("an old epoch")
        if self.epoch >= 0:
            known = self.window if stamp.epoch == self.epoch else []
            due = (known[-1].last_sequence + 1) % SEQUENCES if known else 0
            if stamp.sequence != due:
                raise OutOfOrderSequenceError("out of order", expected=due)
        if self.txn_first_offset >= 0 and not transactional:
            raise InvalidTxnStateError("its transaction is open")

    def append(self, stamp: Stamp, base: int, last: int, timestamp: int, transactional: bool) -> None:
        """A data batch was written."""
        self._enter(stamp.epoch)
        self.window = [*self.window, Written(stamp.sequence, base, last, timestamp)][-WINDOW:]
        self.timestamp = timestamp
        if transactional and self.txn_first_offset < 0:
            self.txn_first_offset = base

    def end(self, epoch: int, coordinator: int, timestamp: int) -> int:
        """A marker was written; the first offset of the transaction that it ends, -1 if none was open."""
        self._enter(epoch)
        first, self.txn_first_offset = self.txn_first_offset, -1
        self.coordinator, self.timestamp = coordinator, timestamp
        return first

    def _enter(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.window = epoch, []

    def entry(self, producer_id: int) -> ProducerEntry:
        """As a snapshot has it."""
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

    ``stamp`` is its producer's, ``kind`` is set for the marker that ends a transaction. ``timestamp`` is the greatest
    of its records when it was written.
    """

    base: int
    last: int
    records: tuple[Record, ...]
    timestamp: int
    epoch: int = 0
    stamp: Stamp | None = None
    transactional: bool = False
    kind: ControlType | None = None
    coordinator: int = -1
    horizon_ms: int | None = None


@dataclass
class ModelLog:
    """One partition: its batches, and how much of it was promised.

    Offsets below ``start`` were deleted, those below ``flushed`` survive a power cut, those below ``end`` a kill.
    ``remote_start``: where a bucket's part of the log begins, -1 without one.
    ``batches`` are all that the disk may still hold, those below ``start`` included; ``history`` is every producer's
    batch that was not cut off again, whether a cleaning or retention took it or not.
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
        stamp: Stamp | None = None,
        transactional: bool = False,
        fill_times: bool = True,
    ) -> int:
        """One batch; returns its first offset, that of the batch before if it is the repetition of a producer's.

        ``fill_times``: a record without timestamp gets ``now_ms``. Raises what the log raises; then nothing happened.
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
        """Raises what records are refused with: InvalidTimestampError if any time is bad, else InvalidRecordError."""
        config = self.config
        least, most = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
        times = [r.timestamp for r in records if r.timestamp != NO_TIMESTAMP]
        if not config.timestamp_type and any(not least <= time <= most for time in times):
            raise InvalidTimestampError("a timestamp is too old or too far ahead")
        if config.compacted and any(record.key is None for record in records):
            raise InvalidRecordError("a record has no key")

    def append_marker(self, stamp: Stamp, kind: ControlType, coordinator: int, timestamp: int, now_ms: int) -> int:
        """The end of a transaction, as a coordinator writes it; returns its offset. ProducerFencedError."""
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
        """All that is to be read, markers included, as a reader of batches finds them."""
        return self.read(self.start)

    def read(self, start: int, end: int | None = None) -> list[Record]:
        """Records from ``start`` to below ``end``."""
        limit = self.end if end is None else end
        return [r for batch in self.batches for r in batch.records if max(start, self.start) <= r.offset < limit]

    def read_committed(self, start: int) -> list[Record]:
        """What a reader of committed data sees: no markers, nothing aborted, nothing undecided."""
        stable = self.stable_offset()
        found = [b for b in self.batches if b.kind is None and not self.is_aborted(b)]
        return [r for b in found for r in b.records if max(start, self.start) <= r.offset < stable]

    def is_aborted(self, batch: ModelBatch) -> bool:
        """Whether the transaction that a data batch belongs to was aborted."""
        if batch.stamp is None or not batch.transactional:
            return False
        pid = batch.stamp.producer_id
        return any(t.producer_id == pid and t.first_offset <= batch.base <= t.last_offset for t in self.aborted)

    @property
    def log_start(self) -> int:
        """The start over both tiers."""
        return self.start if self.remote_start < 0 else min(self.start, self.remote_start)

    def stable_offset(self) -> int:
        """The first offset of the oldest open transaction, not below the log's start; else the end."""
        firsts = [p.txn_first_offset for p in self.producers.values() if p.txn_first_offset >= 0]
        return max(min(firsts, default=self.end), self.log_start)

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record, by offset, at or after ``timestamp``."""
        for record in self.records:
            if record.timestamp >= timestamp:
                return record.offset, record.timestamp
        return None

    # -- leader epochs ---------------------------------------------------------------------------------------------

    def assign(self, epoch: int, offset: int) -> None:
        """``epoch`` begins at ``offset``, unless it is the current one; what contradicts that is forgotten."""
        if self.epochs and self.epochs[-1].epoch == epoch and self.epochs[-1].start_offset <= offset:
            return
        self.epochs = [e for e in self.epochs if e.epoch < epoch and e.start_offset < offset]
        self.epochs.append(EpochEntry(epoch, offset))

    def new_leader_epoch(self, epoch: int) -> None:
        """Records from here on carry ``epoch``. ConfigError unless it is greater than all before."""
        if epoch <= max([self.leader_epoch, *(e.epoch for e in self.epochs)]):
            raise ConfigError("an old epoch")
        self.leader_epoch = epoch
        self.assign(epoch, self.end)

    # -- what goes -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Everything appended so far is promised."""
        self.flushed = self.end

    def delete_before(self, offset: int) -> None:
        """Records below ``offset`` are gone."""
        self.start = max(self.start, offset)

    def trim_epochs(self) -> None:
        """The epoch that covers the start begins there; older ones are forgotten."""
        older = [e for e in self.epochs if e.start_offset <= self.start]
        if older:
            self.epochs = [EpochEntry(older[-1].epoch, self.start), *self.epochs[len(older) :]]

    def forget_below(self, base: int) -> None:
        """What lies below ``base`` has left the disk: it cannot come back."""
        self.batches = [b for b in self.batches if b.last >= base]
        self.aborted = [t for t in self.aborted if t.last_offset >= base]

    def begin_at(self, base: int) -> None:
        """Offsets up to ``base`` are left out; a log without records starts there.

        One whose bucket holds records keeps its start, and only what is local begins there.
        """
        if not self.batches:
            self.start = base
            if self.remote_start == self.end:
                self.remote_start = base
        self.end = base
        self.call_ends.append(base)

    def truncate_to(self, offset: int) -> None:
        """The log ends at ``offset``; a batch that reaches beyond goes whole."""
        if offset >= self.end:
            self.epochs = [e for e in self.epochs if e.start_offset < self.end]
            return
        self._cut(offset)
        if self.batches:  # offsets behind it, left without records, are not promised: an open may find this end
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
        """Forgets everything; an empty log begins at ``offset``."""
        self._cut(-1)
        self.start = self.end = self.flushed = offset
        self.call_ends = [offset]
        self.remote_start = -1 if self.remote_start < 0 else offset
        self.epochs = []
        self.producers = {}

    def power_cut(self, end: int) -> None:
        """The log came back ending at ``end``: legal if nothing promised is missing and no batch is cut in two."""
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
        """A process opens the log: it leads under the latest epoch that the log knows."""
        self.epochs = [e for e in self.epochs if e.start_offset <= self.end]
        if self.remote_start < 0:
            self.trim_epochs()
        if not self.epochs:
            self.assign(0, self.end)
        self.leader_epoch = self.epochs[-1].epoch


def note(producers: dict[int, ModelProducer], batch: ModelBatch) -> AbortedTxn | None:
    """What ``batch`` does to its producer; the entry of the transaction that it aborts, if it does."""
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
    """The producers as these batches tell them."""
    producers: dict[int, ModelProducer] = {}
    for batch in batches:
        note(producers, batch)
    return producers
