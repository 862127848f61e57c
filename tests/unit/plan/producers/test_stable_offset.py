"""Transactions: markers, coordinator epochs, what is stable, what the index gets."""

from __future__ import annotations

import pytest

from tests.unit.plan.producers.building import PID, Log, data, marker
from tiered.errors import InvalidTxnStateError
from tiered.model import AbortedTxn
from tiered.plan.producer import Origin
from tiered.plan.producer_state import ProducerState


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
