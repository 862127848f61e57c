"""A coroutine on a thread with an event loop of its own, for callers without one."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tiered.engine import sync_run
from tiered.engine.sync_run import run_apart


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_the_coroutine_runs_on_another_thread() -> None:
    assert run_apart(name_of_thread) != threading.current_thread().name


def test_an_interrupt_before_the_thread_begins_leaves_no_loop_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(work: Callable[[], Any]) -> None:
        raise KeyboardInterrupt

    found: list[str] = []
    monkeypatch.setattr(sync_run._THREADS, "submit", interrupted)
    monkeypatch.setattr(sys, "unraisablehook", lambda each: found.append(str(each.exc_value)))
    with pytest.raises(KeyboardInterrupt):
        run_apart(name_of_thread)
    gc.collect()
    assert found == []


def test_a_run_that_is_cancelled_before_it_begins_ends_at_once() -> None:
    begun: list[str] = []

    async def begin() -> None:
        begun.append("begun")

    run = sync_run._Run(begin)
    run.cancel()
    run.main()
    assert begun == []
