"""Transactions: markers, coordinator epochs, what is stable, what the index gets."""

from __future__ import annotations

import pytest

from tests.unit.plan.producers.building import PID, Log, data, marker
from tiered.errors import InvalidTxnStateError, ProducerFencedError
from tiered.model import AbortedTxn
from tiered.plan.producer import Origin, ProducerBatch
from tiered.plan.producer_state import ProducerSnapshot, ProducerState


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_case_52_an_older_coordinator_is_fenced(reload: bool, empty: bool) -> None:
    log = Log()
    for coordinator in (1, 1, 2):
        if not empty:
            log.append(data(0, txn=True), origin=Origin.COORDINATOR)
        log.mark(marker(coordinator=coordinator))
    if reload:
        log.state.load(ProducerSnapshot(log.end, log.state.entries()), log_start=0, now_ms=2000)
    with pytest.raises(ProducerFencedError, match="coordinator epoch 1, 2 was seen"):
        log.mark(marker(coordinator=1))


class Writer:
    """Producers of case 53, each with its own sequence."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}
        self.batches: list[ProducerBatch] = []

    def data(self, pid: int, count: int) -> None:
        for _ in range(count):
            sequence = self.sequences.get(pid, 0)
            self.sequences[pid] = sequence + 1
            self.batches.append(data(sequence, pid=pid, txn=True, base=self.log.end))
            self.log.append(data(sequence, pid=pid, txn=True))

    def end(self, pid: int, *, abort: bool = False) -> None:
        self.batches.append(marker(pid=pid, abort=abort, base=self.log.end))
        self.log.mark(marker(pid=pid, abort=abort))


def interleaved() -> Writer:
    log = Log()
    w = Writer(log)
    w.data(1, 5)
    log.plain(3)
    w.data(2, 2)
    w.data(1, 4)
    w.data(3, 3)
    log.plain(2)
    w.data(1, 10)
    w.end(1, abort=True)
    w.data(2, 6)
    w.data(4, 3)
    log.plain(10)
    w.data(3, 9)
    w.end(3)
    w.data(4, 8)
    w.data(2, 7)
    w.end(2, abort=True)
    log.plain(10)
    w.data(4, 4)
    w.end(4)
    return w


EXPECTED = [AbortedTxn(1, 0, 29, 8), AbortedTxn(2, 8, 74, 36)]


def test_case_53_interleaved_transactions() -> None:
    log = interleaved().log
    assert [t.index_entry for t in log.completed if t.is_aborted] == EXPECTED
    assert [t.index_entry for t in log.completed if not t.is_aborted] == [None, None]
    assert log.state.first_unstable_offset is None
    assert log.state.last_stable_offset(log.end) == log.end


def test_a_set_that_ends_a_transaction_may_go_on_outside_of_it() -> None:
    log = Log()
    log.append(data(0, txn=True), marker(), data(1), origin=Origin.COORDINATOR)
    with pytest.raises(InvalidTxnStateError) as caught:
        log.append(data(2, 3, txn=True), data(5), origin=Origin.COORDINATOR)
    assert caught.value.index == 3


def test_what_lies_below_the_start_of_the_log_is_decided() -> None:
    log = Log()
    log.append(data(0, txn=True))
    log.mark(marker())
    log.plain(3)
    log.state.raise_log_start(4)
    assert log.state.first_unstable_offset is None
    assert log.state.map_end_offset == 5
    empty = ProducerState()
    empty.raise_log_start(9)
    assert (empty.map_end_offset, empty.pending_snapshot()) == (9, None)


def test_a_cleaned_marker_changes_nothing() -> None:
    log = Log()
    log.append(data(0, txn=True))
    before = log.state.entries()
    log.mark(marker()._replace(marker=None))
    assert log.state.entries() == before


def test_two_transactions_that_end_in_one_append() -> None:
    log = Log()
    log.append(data(0, pid=1, txn=True))
    log.append(data(0, pid=2, txn=True))
    log.append(marker(pid=1, abort=True), marker(pid=2, abort=True), origin=Origin.COORDINATOR)
    assert [t.index_entry for t in log.completed] == [AbortedTxn(1, 0, 2, 1), AbortedTxn(2, 1, 3, 4)]


def test_a_transaction_that_begins_and_ends_in_one_append() -> None:
    log = Log()
    batches = (data(0, txn=True), marker(abort=True), data(1, txn=True))
    log.append(*batches, origin=Origin.COORDINATOR)
    assert [t.index_entry for t in log.completed] == [AbortedTxn(PID, 0, 1, 2)]
    assert log.state.first_unstable_offset == 2
    assert log.state.last_stable_offset(1) == 1
