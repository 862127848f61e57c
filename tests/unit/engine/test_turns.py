"""One run at a time of each partition: others go on, and an interrupt leaves none at work for ever."""

from __future__ import annotations

import threading

import pytest

from tests.crash.striking import strike
from tiered.engine.tiering import Turn, Turns
from tiered.errors import ReentrantCallError
from tiered.model import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def elsewhere(turns: Turns, tp: TopicPartition, seconds: float | None) -> bool:
    """Whether another thread gets a turn in time."""
    got: list[Turn | None] = []

    def run() -> None:
        turn = turns.acquire([tp], seconds)
        got.append(turn)
        if turn is not None:
            turns.end(turn)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return got[0] is not None


def test_runs_of_other_partitions_go_on() -> None:
    turns = Turns()
    turn = turns.acquire([A], None)
    assert turn is not None
    assert elsewhere(turns, B, 0)
    assert not elsewhere(turns, A, 0.01)
    assert turns.end(turn)
    assert elsewhere(turns, A, None)


def test_the_last_run_to_end_is_known() -> None:
    turns = Turns()
    first, second = turns.acquire([A], None), turns.acquire([B], None)
    assert first is not None
    assert second is not None
    assert (turns.end(first), turns.end(second)) == (False, True)


def test_a_run_inside_a_run_of_the_same_thread_is_refused() -> None:
    turns = Turns()
    turn = turns.acquire([A, B], None)
    assert turn is not None
    with pytest.raises(ReentrantCallError):
        turns.acquire([B], None)
    assert turns.end(turn)


@pytest.mark.no_cover
def test_an_interrupted_run_keeps_no_other_thread_out() -> None:
    turns, at = Turns(), 1

    def run() -> None:
        turn = turns.acquire([A], None)
        if turn is not None:
            turns.end(turn)

    while strike(run, at):
        at += 1
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert at > 10


def test_a_run_ends_with_its_function() -> None:
    turns = Turns()

    def interrupted() -> None:
        turns.acquire([A], None)
        raise MemoryError

    with pytest.raises(MemoryError) as kept:
        interrupted()
    assert elsewhere(turns, A, 0)
    assert kept.traceback  # that the frame is still referred to changes nothing
