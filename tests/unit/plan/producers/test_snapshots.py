"""Which snapshots are written, loaded, kept."""

from __future__ import annotations

import pytest

from tests.unit.plan.producers.building import Log, data, marker
from tiered.plan.producer_state import ProducerSnapshot, ProducerState, loadable, out_of_range, points_of_rebuild, stray


def test_case_57_and_58_which_to_delete_and_which_to_try() -> None:
    offsets = [1, 2, 3, 4, 5]
    assert out_of_range(offsets, 1, 3) == [1, 4, 5]
    assert loadable(offsets, 1, 3) == [3, 2]
    assert loadable([], 0, 9) == []


@pytest.mark.parametrize(
    ("offsets", "bases", "expected"),
    [
        ([], [], []),
        ([5], [], []),
        ([2, 5, 9], [0, 5], [2]),
        ([2, 5, 9, 12], [0, 5], [2, 9]),
        ([2, 3], [0, 5], [2, 3]),
        ([5, 7], [0, 5, 7], []),
        ([6], [0, 5, 7], [6]),
    ],
)
def test_strays(offsets: list[int], bases: list[int], expected: list[int]) -> None:
    assert stray(offsets, bases) == expected


def test_a_rebuild_leaves_three() -> None:
    assert points_of_rebuild([0, 5, 7], 9) == [5, 7, 9]
    assert points_of_rebuild([0], 0) == [0]
    assert points_of_rebuild([], 4) == [4]


def test_a_truncation_needs_a_reload_unless_it_cuts_nothing() -> None:
    log = Log()
    log.append(data(0, 4))
    log.state.snapshot_taken(4)
    log.append(data(4, 2, txn=True))
    assert log.state.is_current(2, 6)
    assert not log.state.is_current(2, 5)
    entries = log.state.entries()
    log.state.load(ProducerSnapshot(4, entries[:0]), log_start=2, now_ms=1000)
    assert (len(log.state), log.state.map_end_offset, log.state.first_unstable_offset) == (0, 4, None)
    assert log.state.pending_snapshot() is None


def test_a_load_leaves_expired_producers_behind_and_keeps_open_transactions() -> None:
    log = Log()
    log.append(data(0, pid=1, ts=0))
    log.append(data(0, pid=2, ts=0, txn=True))
    log.append(data(0, pid=3, ts=500))
    state = ProducerState(expiration_ms=1000)
    state.load(ProducerSnapshot(3, log.state.entries()), log_start=0, now_ms=1000)
    assert [e.producer_id for e in state.entries()] == [2, 3]
    assert list(state.open_txns()) == [(1, 2)]


def test_open_transactions_are_ordered_by_offset_whatever_their_ids() -> None:
    log = Log()
    for pid in (9, 3, 5):
        log.append(data(0, pid=pid, txn=True))
    again = ProducerState()
    again.load(ProducerSnapshot(3, log.state.entries()), log_start=0, now_ms=1000)
    assert list(again.open_txns()) == [(0, 9), (1, 3), (2, 5)]
    assert again.first_unstable_offset == 0
    txn = again.replay(marker(pid=9, base=3))
    assert txn is not None
    assert txn.last_stable_offset == 1
