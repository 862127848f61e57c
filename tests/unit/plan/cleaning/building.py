"""Builds logs in memory the way writers do: idempotent batches, transactions with their index, rolls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.support.model_cleaning import ProducerTails
from tests.unit.plan.cleaning.rounds import MemoryLog, MemorySegment
from tiered.config import MAX_LONG, TopicConfig
from tiered.format.batch import BatchProducer, encode_batch, read_header
from tiered.format.control import ControlType, marker
from tiered.model import AbortedTxn, NewRecord

Pairs = Sequence[tuple[bytes | None, bytes | None]]


def compacted(**settings: object) -> TopicConfig:
    """Topic settings with ``cleanup.policy=compact``; dots as underscores."""
    return TopicConfig.from_properties({"cleanup.policy": "compact", **settings})


class LogBuilder:
    """Appends to the last segment; ``time`` is the timestamp of what is appended."""

    def __init__(self, config: TopicConfig | None = None) -> None:
        self.config = config or compacted()
        self.time = 1_000
        self.end_offset = 0
        self._segments: list[MemorySegment] = []
        self._sequences: dict[tuple[int, int], int] = {}
        self._open: dict[int, int] = {}
        self._start(0)

    def _start(self, base: int) -> None:
        self._base, self._data, self._aborted = base, bytearray(), list[AbortedTxn]()

    def append(
        self, pairs: Pairs, *, producer: int = -1, epoch: int = 0, transactional: bool = False, **more: object
    ) -> int:
        """One batch of (key, value); returns its base offset."""
        sequence = -1
        if producer >= 0:
            sequence = self._sequences.get((producer, epoch), 0)
            self._sequences[producer, epoch] = sequence + len(pairs)
        if transactional:
            self._open.setdefault(producer, self.end_offset)
        records = [NewRecord(value, key, self.time + i) for i, (key, value) in enumerate(pairs)]
        of = BatchProducer(producer, epoch if producer >= 0 else -1, sequence, transactional=transactional)
        return self._write(records, {"producer": of} | more)

    def keys(self, *keys: int, producer: int = -1, epoch: int = 0, transactional: bool = False) -> int:
        """One batch with these keys, and values that name the offset."""
        pairs = [(b"%d" % key, b"%d@%d" % (key, self.end_offset + i)) for i, key in enumerate(keys)]
        return self.append(pairs, producer=producer, epoch=epoch, transactional=transactional)

    def end(self, producer: int, kind: ControlType, epoch: int = 0) -> int:
        """The marker that ends the producer's transaction; an abort goes to the transaction index."""
        offset = self.end_offset
        first = self._open.pop(producer, None)
        if first is not None and kind is ControlType.ABORT:
            stable = min(self._open.values(), default=offset + 1)
            self._aborted.append(AbortedTxn(producer, first, offset, stable))
        of = BatchProducer(producer, epoch, transactional=True, control=True)
        return self._write([marker(kind, 0, self.time)], {"producer": of})

    def roll(self) -> None:
        """Seals what was appended, if anything was; the next append goes to a new segment."""
        if not self._data:
            return
        self._segments.append(MemorySegment(self._base, bytes(self._data), tuple(self._aborted)))
        self._start(self.end_offset)

    def build(self, checkpoint: int | None = None, *, live: bool = True) -> MemoryLog:
        """The log so far, with an active segment; ``live``: its producers are still known."""
        active = MemorySegment(self._base, bytes(self._data), tuple(self._aborted))
        log = MemoryLog((*self._segments, active), self.config, checkpoint)
        if not live:
            return log
        tails = ProducerTails()
        for batch in log.batches:
            tails.observe(read_header(batch))
        return MemoryLog(log.segments, self.config, checkpoint, producers=tails.live(0, MAX_LONG))

    def adopt(self, log: MemoryLog) -> None:
        """Goes on from a cleaned log."""
        *sealed, active = log.segments
        self._segments = sealed
        self._base, self._data, self._aborted = active.base_offset, bytearray(active.data), list(active.aborted)

    def _write(self, records: list[NewRecord], fields: Mapping[str, object]) -> int:
        offset = self.end_offset
        self._data += encode_batch(records, base_offset=offset, leader_epoch=0, **fields)  # type: ignore[arg-type]  # by name
        self.end_offset += len(records)
        return offset
