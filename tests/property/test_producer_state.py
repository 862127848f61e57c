"""The producer state beside a log that is read from its first batch each time it is asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import InvalidRecordError, OutOfOrderSequenceError, ProducerFencedError
from tiered.plan.producer import SEQUENCES, Marker, Origin, ProducerBatch
from tiered.plan.producer_state import Duplicate, ProducerSnapshot, ProducerState

START = SEQUENCES - 4  # the wrap is met early

actions = st.lists(
    st.tuples(
        st.sampled_from(("data", "data", "data", "repeat", "skip", "commit", "abort", "stale", "load")),
        st.integers(0, 2),  # producer
        st.integers(1, 3),  # records, or how far back a repetition goes
        st.booleans(),  # transactional, or: the marker raises the epoch
    ),
    max_size=40,
)


class Model:
    """All batches ever written, and nothing else. Every answer is computed from the beginning."""

    def __init__(self) -> None:
        self.batches: list[ProducerBatch] = []
        self.end = 0
        self.loads: dict[int, int] = {}

    def of(self, pid: int) -> list[ProducerBatch]:
        return [b for b in self.batches if b.producer_id == pid]

    def epoch(self, pid: int) -> int:
        return max((b.producer_epoch for b in self.of(pid)), default=0)

    def in_epoch(self, pid: int) -> list[ProducerBatch]:
        return [b for b in self.of(pid) if b.producer_epoch == self.epoch(pid) and b.marker is None]

    def due(self, pid: int) -> int:
        mine = self.in_epoch(pid)
        if mine:
            return (mine[-1].last_sequence + 1) % SEQUENCES
        return 0 if self.of(pid) else START

    def first_open(self, pid: int) -> int | None:
        first = None
        for b in self.of(pid):
            if b.marker is not None:
                first = None
            elif b.transactional and first is None:
                first = b.base_offset
        return first

    def known(self, pid: int) -> list[ProducerBatch]:
        """The five newest of the epoch; of those before the last load only the newest."""
        mine = self.in_epoch(pid)
        old = [b for b in mine if b.base_offset < self.loads.get(pid, 0)][-1:]
        return [*old, *(b for b in mine if b.base_offset >= self.loads.get(pid, 0))][-5:]

    def stable(self) -> int:
        return min((f for pid in range(3) if (f := self.first_open(pid)) is not None), default=self.end)


def batch(model: Model, pid: int, sequence: int, count: int, *, txn: bool, epoch: int) -> ProducerBatch:
    return ProducerBatch(model.end, count - 1, pid, epoch, sequence, (sequence + count - 1) % SEQUENCES, model.end, txn)


def write(state: ProducerState, model: Model, one: ProducerBatch, origin: Origin = Origin.CLIENT) -> None:
    assert state.prepare([one], origin) is None
    others = [f for pid in range(3) if pid != one.producer_id and (f := model.first_open(pid)) is not None]
    first = model.first_open(one.producer_id)
    completed = state.apply([one], [one.base_offset])
    assert bool(completed) is (one.marker is not None and first is not None)
    for txn in completed:
        assert (txn.first_offset, txn.last_offset) == (first, model.end)
        assert txn.last_stable_offset == min(others, default=model.end + 1)
    model.batches.append(one)
    model.end += one.offset_delta + 1
    state.complete_append(completed, model.end)


def repeat(state: ProducerState, model: Model, pid: int, back: int) -> None:
    mine = model.in_epoch(pid)
    if len(mine) < back:
        return
    old = mine[-back]
    try:
        answer = state.prepare([old._replace(base_offset=model.end)])
    except (OutOfOrderSequenceError, InvalidRecordError):
        assert old not in model.known(pid)
    else:
        assert old in model.known(pid)
        assert answer == Duplicate(old.base_offset, old.base_offset + old.offset_delta, old.timestamp)


def expect(error: type[Exception], state: ProducerState, one: ProducerBatch) -> None:
    before = state.entries()
    try:
        state.prepare([one])
    except error:
        assert state.entries() == before
    else:
        raise AssertionError(f"{one} was accepted")


def step(state: ProducerState, model: Model, action: str, pid: int, *, number: int, flag: bool) -> None:
    epoch, due, is_open = model.epoch(pid), model.due(pid), model.first_open(pid) is not None
    if action == "data":
        write(state, model, batch(model, pid, due, number, txn=flag or is_open, epoch=epoch))
    elif action == "repeat":
        repeat(state, model, pid, number)
    elif action == "skip" and model.of(pid):
        wrong = batch(model, pid, (due + number) % SEQUENCES, 1, txn=is_open, epoch=epoch)
        expect(OutOfOrderSequenceError, state, wrong)
    elif action in ("commit", "abort"):
        ending = Marker(action == "abort", 0, model.end)
        one = ProducerBatch(model.end, 0, pid, epoch + flag, -1, -1, model.end, True, True, ending)
        write(state, model, one, Origin.COORDINATOR)
    elif action == "stale" and epoch > 0:
        expect(ProducerFencedError, state, batch(model, pid, due, 1, txn=is_open, epoch=epoch - 1))
    elif action == "load":
        state.load(ProducerSnapshot(model.end, state.entries()), log_start=0, now_ms=0)
        model.loads = dict.fromkeys(range(3), model.end)


@given(actions)
def test_every_answer_is_the_one_read_from_the_log(drawn: list[tuple[str, int, int, bool]]) -> None:
    state, model = ProducerState(), Model()
    for action, pid, number, flag in drawn:
        step(state, model, action, pid, number=number, flag=flag)
        assert state.last_stable_offset(model.end) == model.stable()
        assert state.map_end_offset == model.end
    replayed = ProducerState()
    for one in model.batches:
        replayed.replay(one)
    assert replayed.entries() == state.entries()
