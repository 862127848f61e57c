"""Locks and events in pure Python: an exception at any instruction leaves no other thread waiting for ever."""

from __future__ import annotations

import os
import threading

import pytest

from tests.crash.striking import strike
from tiered.format.locks import PlainLock, SafeEvent


def use_lock(lock: PlainLock) -> None:
    with lock:
        pass


@pytest.mark.no_cover
def test_an_interrupted_lock_is_free_for_another_thread() -> None:
    lock, at = PlainLock(), 1
    while strike(lambda: use_lock(lock), at):
        at += 1
        thread = threading.Thread(target=use_lock, args=[lock], daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert at > 10


@pytest.mark.no_cover
def test_an_interrupted_event_is_set_by_another_thread_and_wakes_its_waiters() -> None:
    event, at = SafeEvent(), 1
    while strike(event.set, at) or strike(lambda: event.wait(0), at):
        at += 1
        event.clear()
        thread = threading.Thread(target=event.wait, daemon=True)
        thread.start()
        event.set()
        thread.join(60)
        assert not thread.is_alive()
        event.clear()
    assert at > 10


def test_an_event_that_stays_clear_ends_the_wait_with_false() -> None:
    assert [SafeEvent().wait(0), SafeEvent().wait(0.001), SafeEvent().wait(-1)] == [False, False, False]


def test_a_waiter_of_a_lock_comes_when_it_is_released() -> None:
    lock, order = PlainLock(), []

    def wait() -> None:
        with lock:
            order.append("waiter")

    thread = threading.Thread(target=wait, daemon=True)
    with lock:
        thread.start()
        while not lock._waiters._waiting:
            pass
        order.append("holder")
    thread.join()
    assert order == ["holder", "waiter"]


def test_a_thread_that_takes_a_lock_again_at_once_lets_others_in() -> None:
    lock, ended = PlainLock(), threading.Event()

    def take_again() -> None:
        while not ended.is_set():
            with lock:
                os.write(pipe, b"")  # gives the interpreter to a woken thread, which finds the lock taken

    pipe = os.open(os.devnull, os.O_WRONLY)
    thread = threading.Thread(target=take_again, daemon=True)
    thread.start()
    for _ in range(20):
        assert lock.hold(60)
        lock.release()
    ended.set()
    thread.join()
    os.close(pipe)
