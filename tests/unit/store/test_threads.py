"""The pool of plain daemon threads: bounds, ends, errors, a machine without threads, forks."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator

import pytest

from tiered.store import driver
from tiered.store.base import Get, Missing, Outcome, StoreRequest
from tiered.store.memory import MemoryStore
from tiered.store.threads import ThreadPool

PATIENCE_S = 30.0


@pytest.fixture
def free() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_no_more_work_is_done_at_once_than_there_are_threads(free: threading.Event) -> None:
    with ThreadPool(2, "two") as pool:
        both = threading.Barrier(3)
        first = [pool.submit(both.wait, PATIENCE_S) for _ in range(2)]
        both.wait(PATIENCE_S)
        assert sorted(each.result(PATIENCE_S) for each in first) != []
        held = [pool.submit(free.wait, PATIENCE_S) for _ in range(2)]
        third = pool.submit(threading.current_thread)
        assert not third.done()
        free.set()
        assert all(each.result(PATIENCE_S) for each in held)
        assert third.result(PATIENCE_S).daemon


def test_one_thread_serves_calls_that_follow_each_other() -> None:
    with ThreadPool(8, "eight") as pool:
        assert len({pool.submit(threading.get_ident).result(PATIENCE_S) for _ in range(20)}) == 1


def test_an_error_is_the_futures_and_the_thread_goes_on() -> None:
    with ThreadPool(1, "one") as pool:
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result(PATIENCE_S)
        with pytest.raises(SystemExit):
            pool.submit(exit).result(PATIENCE_S)
        assert pool.submit(lambda: 7).result(PATIENCE_S) == 7


def test_a_closed_pool_ends_what_it_has_and_takes_nothing_more(free: threading.Event) -> None:
    pool = ThreadPool(1, "one")
    begun = threading.Event()
    held = pool.submit(lambda: (begun.set(), free.wait(PATIENCE_S)))
    waits, dropped = pool.submit(lambda: 1), None
    assert begun.wait(PATIENCE_S)
    pool.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="the thread pool one is closed"):
        dropped = pool.submit(lambda: 2)
    free.set()
    pool.shutdown()
    assert held.done()
    assert waits.result(PATIENCE_S) == 1
    assert dropped is None


def test_work_that_has_not_begun_can_be_dropped(free: threading.Event) -> None:
    pool = ThreadPool(1, "one")
    begun = threading.Event()
    held = pool.submit(lambda: (begun.set(), free.wait(PATIENCE_S)))
    waits = pool.submit(lambda: 1)
    assert begun.wait(PATIENCE_S)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waits.cancelled()
    free.set()
    pool.shutdown()
    assert held.done()


def test_where_no_thread_can_be_started_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 does so once the main thread has ended."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    pool = ThreadPool(2, "two")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert pool.submit(threading.get_ident).result(0) == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(0)
    store = MemoryStore("memory://no-threads")
    assert list(pool.map(store.execute, [Get("a"), Get("b")])) == [Missing(), Missing()]
    monkeypatch.undo()
    assert pool.submit(threading.get_ident).result(PATIENCE_S) != threading.get_ident()
    pool.shutdown()


def test_a_forked_child_begins_with_threads_of_its_own(free: threading.Event) -> None:
    pool = ThreadPool(1, "one")
    pool.submit(free.wait, PATIENCE_S)
    child = os.fork()
    if not child:
        code = 1
        try:
            code = pool.submit(lambda: 0).result(PATIENCE_S)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    free.set()
    pool.shutdown()


def test_a_result_is_its_readers_alone() -> None:
    class Big:
        pass

    with ThreadPool(1, "one") as pool:
        future = pool.submit(Big)
        held = weakref.ref(future.result(PATIENCE_S))
        del future
        pool.submit(int).result(PATIENCE_S)
        gc.collect()
        assert held() is None


def test_a_store_that_sleeps_delays_no_stream_of_another(free: threading.Event) -> None:
    class Sleeping(MemoryStore):
        def execute(self, request: StoreRequest) -> Outcome:
            free.wait(PATIENCE_S)
            return super().execute(request)

    slow, quick = Sleeping("memory://slow"), MemoryStore("memory://quick")
    pool = driver._pool_of(slow)
    held = [pool.submit(slow.execute, Get("a")) for _ in range(driver.BACKGROUND_THREADS)]
    assert driver._pool_of(quick).submit(quick.execute, Get("a")).result(PATIENCE_S) == Missing()
    assert not any(each.done() for each in held)
    free.set()
    assert [each.result(PATIENCE_S) for each in held] == [Missing()] * driver.BACKGROUND_THREADS


def test_the_threads_of_a_store_that_is_gone_serve_the_next_one() -> None:
    gc.collect()  # stores of other tests: their threads would serve the next one, too
    store = MemoryStore("first")
    pool = driver._pool_of(store)
    del store
    gc.collect()
    assert driver._pool_of(MemoryStore("second")) is pool
