"""Drives the product over a traced disk and writes down what it promised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.crash.matrix.ledger import Kind, Ledger, Sent
from tests.crash.matrix.trace import Effect, Fail, Stopped, TraceFiles
from tests.support.given import move_start, start_over
from tiered.config import LogConfig, TopicConfig
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.codecs import Codec
from tiered.format.control import ControlType, marker
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord, RecordMetadata, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds

T = TopicPartition("t", 0)
OTHER = TopicPartition("other", 0)
SETTINGS = LogConfig(disk_reserve_bytes=0)
CONFIG = {
    "segment_bytes": 420,
    "index_interval_bytes": 100,
    "segment_index_bytes": 120,
    "seal_ms": -1,
    "file_delete_delay_ms": 5000,
}


class World:
    """One or several log directories under ``root``. What is appended has values that are never used twice."""

    def __init__(self, root: Path, fail: Fail | None = None, *, torn: float = 0.5, directories: int = 1) -> None:
        self.root = root
        self.clock = FakeClock()
        self.files = TraceFiles(root, fail, torn=torn)
        self.ledger = Ledger(lambda: len(self.files.effects))
        self.directories = [root / f"d{number}" for number in range(directories)]
        self.log: LocalLog | LocalTier | None = None
        self.expired: set[bytes] = set()
        self.forgotten: set[int] = set()
        self.untouched: tuple[TopicPartition, ...] = (OTHER,)
        self._count = 0
        self._sequences: dict[int, int] = {}

    def open(self) -> None:
        """Opens all directories; what a process before this one had is closed."""
        self.files.abandon()
        self.log = None
        self.log = self._opened()

    def _opened(self) -> LocalLog | LocalTier:
        ids = SeededIds(1)
        if len(self.directories) == 1:
            path = self.directories[0]
            return LocalLog.open(path, clock=self.clock, ids=ids, files=self.files, config=SETTINGS)
        return LocalTier.open(self.directories, clock=self.clock, ids=ids, files=self.files, config=SETTINGS)

    @property
    def logs(self) -> list[LocalLog]:
        """Every directory that is open."""
        assert self.log is not None
        return [self.log] if isinstance(self.log, LocalLog) else list(self.log.logs().values())

    def partition(self, tp: TopicPartition = T) -> WriteLog:
        """The partition as the product gives it."""
        assert self.log is not None
        return self.log.partition(tp)

    def create(self, name: str, partitions: int = 1, **config: Any) -> None:
        """A topic."""
        assert self.log is not None
        self.ledger.topic(name, "creating")
        self.log.create_topic(name, partitions, TopicConfig(**{**CONFIG, **config}))
        self.ledger.topic(name, "created")

    def delete(self, name: str) -> None:
        """No topic any more."""
        assert self.log is not None
        self.ledger.topic(name, "deleting")
        self.log.delete_topic(name)
        self.ledger.topic(name, "deleted")

    def _records(self, keys: Iterable[str | None], *, tombstone: bool = False) -> list[NewRecord]:
        records = []
        for key in keys:
            self._count += 1
            value = None if tombstone else b"value %04d" % self._count
            records.append(
                NewRecord(value, None if key is None else key.encode(), self.clock.now_ms() + self._count % 3)
            )
        return records

    def append(self, count: int = 1, *, tp: TopicPartition = T) -> None:
        """Records without key, through ``append``."""
        records = self._records([None] * count)
        self._send(tp, records, lambda _: self.partition(tp).append(records))

    def put(self, *keys: str, tp: TopicPartition = T, tombstone: bool = False) -> None:
        """A batch of one record for each key."""
        for key in keys:
            records = self._records([key], tombstone=tombstone)
            self._send(tp, records, lambda _, records=records: self.partition(tp).append(records))  # type: ignore[misc]  # mypy cannot infer a lambda's default

    def batches(self, *counts: int, codec: Codec, tp: TopicPartition = T) -> None:
        """Encoded batches in one call."""
        pieces = [self._records(["k"] * count) for count in counts]
        data = b"".join(encode_batch(piece, codec=codec) for piece in pieces)
        sents, base = [], self.partition(tp).positions().end_offset
        for piece in pieces:
            sents.append(Sent(base, values(piece)))
            base = sents[-1].end
        self._run(tp, sents, lambda: self.partition(tp).append_batches(data))

    def produce(self, pid: int, count: int = 1, *, txn: bool = False, tp: TopicPartition = T) -> None:
        """An idempotent producer's next batch."""
        records = self._records([f"k{pid}"] * count)
        sequence = self._sequences.get(pid, 0)
        data = encode_batch(records, producer=BatchProducer(pid, 0, sequence, transactional=txn))
        self._sequences[pid] = sequence + count
        fields = {"pid": pid, "transactional": txn, "raw": data}
        self._send(tp, records, lambda _: self.partition(tp).append_batches(data), **fields)

    def end(self, pid: int, *, abort: bool = False, tp: TopicPartition = T) -> None:
        """The marker of a transaction, as a coordinator appends it."""
        record = marker(ControlType.ABORT if abort else ControlType.COMMIT, 0, self.clock.now_ms())
        data = encode_batch([record], producer=BatchProducer(pid, 0, transactional=True, control=True))
        fields = {"pid": pid, "transactional": True, "marker": "abort" if abort else "commit"}
        self._send(tp, [record], lambda _: self.partition(tp).append_as_coordinator(data), **fields)

    def _send(
        self, tp: TopicPartition, records: list[NewRecord], call: Callable[[int], RecordMetadata], **fields: Any
    ) -> None:
        base = self.partition(tp).positions().end_offset
        result = self._run(tp, [Sent(base, values(records), **fields)], lambda: call(base))
        assert isinstance(result, RecordMetadata)
        assert (result.offset, result.end_offset) == (base, base + len(records)), result

    def _run(self, tp: TopicPartition, sents: list[Sent], call: Callable[[], Any]) -> Any:
        for sent in sents:
            self.ledger.note(tp, Kind.SENT, sent=sent)
        result = call()
        for sent in sents:
            self.ledger.note(tp, Kind.KEPT, sent=sent)
        self.note_flushed(tp)
        return result

    def note_flushed(self, tp: TopicPartition = T) -> None:
        """What the product says is durable, it must keep."""
        self.ledger.note(tp, Kind.DURABLE, self.partition(tp).positions().flushed_offset)

    def flush(self, tp: TopicPartition = T) -> None:
        """All that was kept becomes durable."""
        end = self.partition(tp).positions().end_offset
        self.partition(tp).flush()
        self.ledger.note(tp, Kind.DURABLE, end)

    def roll(self, tp: TopicPartition = T) -> None:
        """As a flush; the segment is sealed."""
        end = self.partition(tp).positions().end_offset
        self.partition(tp).roll()
        self.ledger.note(tp, Kind.DURABLE, end)

    def note_start(self, *, durable: bool, tp: TopicPartition = T) -> None:
        """Where the log begins now."""
        self.ledger.note(tp, Kind.START_DURABLE if durable else Kind.START_BEGUN, self.partition(tp).log_start)

    def delete_records(self, offset: int, tp: TopicPartition = T) -> None:
        """The log start moves; that is durable with the next checkpoint only, as in Kafka."""
        self.ledger.note(tp, Kind.START_BEGUN, offset)
        move_start(self.partition(tp), offset)

    def retain(self, limit: int, tp: TopicPartition = T) -> None:
        """A pass of retention that may take all below ``limit``; what it took stays away."""
        self.ledger.note(tp, Kind.START_BEGUN, limit)
        self.partition(tp).apply_retention()
        self.ledger.note(tp, Kind.START_DURABLE, self.partition(tp).segments.first_base)

    def truncate(self, offset: int, tp: TopicPartition = T) -> None:
        """The log ends at ``offset``."""
        self.ledger.note(tp, Kind.CUT_BEGUN, offset)
        self.partition(tp).truncate_to(offset)
        self.ledger.note(tp, Kind.CUT, offset)

    def restart(self, offset: int, tp: TopicPartition = T) -> None:
        """An empty log at ``offset``."""
        self.ledger.note(tp, Kind.RESTART_BEGUN, offset)
        start_over(self.partition(tp), offset)
        self.ledger.note(tp, Kind.RESTARTED, offset)

    def log_of(self, tp: TopicPartition) -> LocalLog:
        """The directory that holds it."""
        return next(log for log in self.logs if tp in log.roster)

    def move(self, tp: TopicPartition, number: int) -> None:
        """Into another of the directories."""
        assert isinstance(self.log, LocalTier)
        self.log.move(tp, self.directories[number])
        self.note_flushed(tp)
        self.note_start(durable=True, tp=tp)

    def expire_producers(self) -> None:
        """A day and more goes by: every producer is forgotten."""
        self.clock.advance(100_000)
        self.forgotten.update(self._sequences)
        for tp in self.ledger.events:
            self.partition(tp).maintenance.expire_producers(self.clock.now_ms())

    def epoch(self, epoch: int, tp: TopicPartition = T) -> None:
        """A new leader epoch."""
        self.partition(tp).new_leader_epoch(epoch)

    def clean(self, tp: TopicPartition = T) -> None:
        """A round of compaction."""
        self.log_of(tp).cleaner.clean(tp)

    def tick(self, seconds: float) -> None:
        """Time goes by, and everything that is due is done."""
        assert self.log is not None
        self.clock.advance(seconds)
        self.log.tick()

    def crash(self, stop: Callable[[Effect], bool], work: Callable[[], None]) -> None:
        """The process ends in the middle of ``work``, before the first call of which ``stop`` says so."""
        self.files.stop = stop
        with contextlib.suppress(Stopped):
            work()
        assert self.files.stop is None, "the work ended before"
        self.files.abandon()
        self.log = None

    def checkpoint(self) -> None:
        """Every offset checkpoint of every directory."""
        for log in self.logs:
            log.checkpoint()
        for tp in self.ledger.events:
            self.note_start(durable=True, tp=tp)

    def close(self) -> None:
        """A clean end: all is durable."""
        assert self.log is not None
        ends = {tp: self.partition(tp).positions().end_offset for tp in self.log.partitions()}
        starts = {tp: self.partition(tp).log_start for tp in ends}
        log, self.log = self.log, None
        log.close()
        for tp, end in ends.items():
            self.ledger.note(tp, Kind.DURABLE, end)
            self.ledger.note(tp, Kind.START_DURABLE, starts[tp])


def values(records: list[NewRecord]) -> tuple[tuple[bytes | None, bytes | None], ...]:
    """Key and value of each record."""
    return tuple((record.key, record.value) for record in records)
