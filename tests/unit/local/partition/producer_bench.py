"""A partition to which producers and coordinators send, and their batches."""

from __future__ import annotations

from typing import Any

from tests.unit.local.bench import CaseBench
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.control import ControlType, marker
from tiered.model import AbortedTxn, NewRecord, RecordMetadata
from tiered.plan.producer_state import ProducerState
from tiered.testing.clock import START_MS

PID = 7


def data(sequence: int, count: int = 1, *, pid: int = PID, epoch: int = 0, txn: bool = False, base: int = 0) -> bytes:
    records = [NewRecord(b"v", b"k", START_MS) for _ in range(count)]
    return encode_batch(records, base_offset=base, producer=BatchProducer(pid, epoch, sequence, transactional=txn))


def end(
    *, abort: bool = False, pid: int = PID, epoch: int = 0, coordinator: int = 0, base: int = 0, ts: int = START_MS
) -> bytes:
    record = marker(ControlType.ABORT if abort else ControlType.COMMIT, coordinator, ts)
    return encode_batch(
        [record], base_offset=base, producer=BatchProducer(pid, epoch, transactional=True, control=True)
    )


class ProducerBench(CaseBench):
    """Sends batches as clients and coordinators do; ``unclean`` is a killed process."""

    def send(self, sequence: int, count: int = 1, **fields: Any) -> RecordMetadata:
        return self.partition.append_batches(data(sequence, count, **fields))

    def mark(self, **fields: Any) -> RecordMetadata:
        return self.partition.append_as_coordinator(end(**fields))

    def plain(self, count: int) -> None:
        self.append(*[b"p"] * count)

    def unclean(self) -> None:
        self.kill()
        self.open()

    @property
    def end(self) -> int:
        return self.partition.positions().end_offset

    @property
    def lso(self) -> int:
        return self.partition.last_stable_offset()

    @property
    def state(self) -> ProducerState:
        state = self.partition.producers.state
        assert state is not None
        return state

    @property
    def snapshots(self) -> list[int]:
        return [int(name[:20]) for name in self.names(".snapshot")]

    def aborted(self) -> list[AbortedTxn]:
        return self.partition.aborted_txns(0, self.end)
