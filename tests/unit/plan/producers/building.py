"""Short ways to say what a producer sends."""

from __future__ import annotations

from tiered.plan.producer import SEQUENCES, Marker, Origin, ProducerBatch
from tiered.plan.producer_state import Duplicate, PreparedBatches, ProducerState
from tiered.plan.visibility import CompletedTxn

PID = 7


def data(
    sequence: int, count: int = 1, *, pid: int = PID, epoch: int = 0, txn: bool = False, base: int = 0, ts: int = 1000
) -> ProducerBatch:
    last = (sequence + count - 1) % SEQUENCES if sequence >= 0 else -1
    return ProducerBatch(base, count - 1, pid, epoch, sequence, last, ts, txn)


def marker(
    *, abort: bool = False, pid: int = PID, epoch: int = 0, coordinator: int = 0, base: int = 0, ts: int = 2000
) -> ProducerBatch:
    return ProducerBatch(base, 0, pid, epoch, -1, -1, ts, True, True, Marker(abort, coordinator, ts))


class Log:
    """A partition that holds nothing but its state and its end."""

    def __init__(self, state: ProducerState | None = None, end: int = 0) -> None:
        self.state = ProducerState() if state is None else state
        self.end = end
        self.completed: list[CompletedTxn] = []

    def append(self, *batches: ProducerBatch, origin: Origin = Origin.CLIENT) -> PreparedBatches | Duplicate:
        answer = self.state.prepare(batches, origin)
        if isinstance(answer, Duplicate):
            return answer
        offsets = []
        for batch in batches:
            offsets.append(self.end)
            self.end += batch.offset_delta + 1
        completed = self.state.apply(answer, offsets)
        self.completed += completed
        self.state.complete_append(completed, self.end)
        return answer

    def mark(self, batch: ProducerBatch) -> PreparedBatches | Duplicate:
        return self.append(batch, origin=Origin.COORDINATOR)

    def plain(self, count: int) -> None:
        """Records of nobody."""
        self.end += count
        self.state.advance(self.end)
