"""The transaction coordinator: every transition, every refusal, every crash."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tiered.errors import ConfigError, InvalidTxnStateError, ProducerFencedError
from tiered.format.coordinator_records import TxnState, TxnValue
from tiered.model import NewRecord, TopicPartition
from tiered.plan.transactions import MAX_TIMEOUT_MS, TransactionChange, TransactionCoordinator, TxnMarker

ID = "orders-writer"
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Directory:
    """A coordinator and its log; ``reopened`` is what a start after a crash sees."""

    def __init__(self, coordinator: TransactionCoordinator | None = None) -> None:
        self.coordinator = TransactionCoordinator(epoch=1) if coordinator is None else coordinator
        self.records: list[NewRecord] = []
        self.now_ms = 1000

    def do(self, step: TransactionChange | None) -> TxnValue | None:
        assert step is not None
        self.records.append(step.record)
        self.coordinator.apply(step)
        return step.after

    def init(self) -> None:
        new = self.coordinator.next_producer_id
        self.do(self.coordinator.init(ID, new_producer_id=new, now_ms=self.now_ms))

    @property
    def mine(self) -> dict[str, int]:
        txn = self.coordinator.find(ID)
        assert txn is not None
        return {"producer_id": txn.producer_id, "producer_epoch": txn.producer_epoch, "now_ms": self.now_ms}

    def begin(self, *partitions: TopicPartition) -> None:
        self.do(self.coordinator.add(ID, partitions or (A0,), **self.mine))

    def prepare(self, *, commit: bool = True) -> None:
        self.do(self.coordinator.prepare(ID, commit=commit, **self.mine))

    def complete(self) -> None:
        self.do(self.coordinator.complete(ID, now_ms=self.now_ms))

    def reopened(self) -> TransactionCoordinator:
        again = TransactionCoordinator(epoch=2)
        for record in self.records:
            assert record.key is not None
            again.replay(record.key, record.value)
        return again


def at(state: TxnState) -> Directory:
    directory = Directory()
    if state is TxnState.DEAD:
        return directory
    directory.init()
    if state is TxnState.EMPTY:
        return directory
    directory.begin()
    if state is TxnState.ONGOING:
        return directory
    directory.prepare(commit=state in (TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT))
    if state in (TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT):
        directory.complete()
    assert directory.coordinator.state(ID) is state
    return directory


def test_partitions_join_once() -> None:
    d = at(TxnState.EMPTY)
    d.begin(A0, B0)
    assert d.coordinator.add(ID, [B0], **d.mine) is None
    assert d.coordinator.add(ID, [], **d.mine) is None
    d.now_ms = 3000
    d.begin(A1)
    txn = d.coordinator.find(ID)
    assert txn is not None
    assert (txn.partitions, txn.start_ms, txn.last_update_ms) == ((A0, A1, B0), 1000, 3000)


ALL = list(TxnState)[:7]


@pytest.mark.parametrize("state", ALL)
def test_only_some_states_allow_each_call(state: TxnState) -> None:
    allowed = {
        "init": (TxnState.DEAD, TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT),
        "begin": (TxnState.EMPTY, TxnState.ONGOING, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT),
        "prepare": (TxnState.ONGOING,),
        "fence": (TxnState.ONGOING,),
        "markers": (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT),
        "complete": (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT),
    }
    for name, states in allowed.items():
        d = at(state)
        c = d.coordinator
        mine = {"producer_id": 0, "producer_epoch": 0, "now_ms": 1} if state is TxnState.DEAD else d.mine
        calls: dict[str, Callable[[], object]] = {
            "init": partial(c.init, ID, new_producer_id=5, now_ms=1),
            "begin": partial(c.add, ID, [B0], **mine),
            "prepare": partial(c.prepare, ID, commit=True, **mine),
            "fence": partial(c.fence, ID, now_ms=1),
            "markers": partial(c.markers, ID),
            "complete": partial(c.complete, ID, now_ms=1),
        }
        before = dict(c.transactions())
        if state in states:
            assert calls[name]() is not None
        else:
            with pytest.raises(InvalidTxnStateError, match=ID):
                calls[name]()
        assert dict(c.transactions()) == before  # nothing happens before apply


@pytest.mark.parametrize(("version", "commit"), [(2, True), (2, False), (0, True), (0, False)])
def test_an_answer_that_was_lost_is_asked_again(version: int, commit: bool) -> None:
    d = at(TxnState.EMPTY)
    mine = d.mine
    d.do(d.coordinator.add(ID, [A0], client_version=version, **mine))
    d.prepare(commit=commit)
    with pytest.raises((InvalidTxnStateError, ProducerFencedError)):
        d.coordinator.prepare(ID, commit=commit, **mine)
    d.complete()
    assert d.coordinator.prepare(ID, commit=commit, **mine) is None
    with pytest.raises((InvalidTxnStateError, ProducerFencedError)):
        d.coordinator.prepare(ID, commit=not commit, **mine)
    assert d.mine["producer_epoch"] == mine["producer_epoch"] + (version == 2)


@pytest.mark.parametrize("state", ALL)
def test_what_a_start_after_a_crash_must_do(state: TxnState) -> None:
    again = at(state).reopened()
    if state in (TxnState.DEAD, TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT):
        assert again.unfinished() == []
        return
    assert again.unfinished() == [ID]
    if state is TxnState.ONGOING:
        again.apply(again.fence(ID, now_ms=9))
    (owed,) = again.markers(ID)
    assert owed == TxnMarker(A0, 0, 1, 2, state is not TxnState.PREPARE_COMMIT)
    again.apply(again.complete(ID, now_ms=9))
    assert again.unfinished() == []
    again.apply(again.init(ID, new_producer_id=4, now_ms=9))
    assert again.find(ID) == TxnValue(0, 2, 60_000, TxnState.EMPTY, None, 9, client_version=2)


def test_two_steps_from_one_state_do_not_both_happen() -> None:
    d = at(TxnState.ONGOING)
    commit = d.coordinator.prepare(ID, commit=True, **d.mine)
    abort = d.coordinator.fence(ID, now_ms=1000)
    d.do(commit)
    with pytest.raises(InvalidTxnStateError, match="another step"):
        d.coordinator.apply(abort)
    assert d.coordinator.state(ID) is TxnState.PREPARE_COMMIT


def test_impossible_calls() -> None:
    c = TransactionCoordinator()
    for timeout_ms in (0, MAX_TIMEOUT_MS + 1):
        with pytest.raises(ConfigError, match="timeout"):
            c.init(ID, new_producer_id=0, now_ms=0, timeout_ms=timeout_ms)
    for transactional_id in ("", "x" * 32_768):
        with pytest.raises(ConfigError):
            c.init(transactional_id, new_producer_id=0, now_ms=0, timeout_ms=1)
    d = at(TxnState.EMPTY)
    with pytest.raises(ConfigError, match="100001 partitions"):
        d.coordinator.add(ID, [TopicPartition("t", n) for n in range(100_001)], **d.mine)


def test_a_fencing_that_an_older_coordinator_left_is_an_abort() -> None:
    d = at(TxnState.ONGOING)
    txn = d.coordinator.find(ID)
    assert txn is not None
    d.do(TransactionChange(ID, txn, TxnValue(0, 0, 60_000, TxnState.PREPARE_EPOCH_FENCE, (A0,), 1000, 1000)))
    assert d.coordinator.unfinished() == [ID]
    d.do(d.coordinator.fence(ID, now_ms=1000))
    assert d.coordinator.state(ID) is TxnState.PREPARE_ABORT
    d.do(TransactionChange(ID, d.coordinator.find(ID), TxnValue(0, 0, 60_000, TxnState.DEAD)))
    assert d.coordinator.find(ID) is None
