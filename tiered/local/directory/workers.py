"""Where a background task runs that may take long: in the caller's thread, or on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Workers(Protocol):
    """Runs pieces of work for one log directory."""

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Begins ``work``, which raises nothing. ``name`` is for people."""

    def join(self, timeout_seconds: float) -> bool:
        """Waits until nothing that was begun is at work; False if the time was not enough."""


class InlineWorkers:
    """All at once, in the thread that asks: for tools, tests, and whoever calls ``tick`` on a thread of his own."""

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Returns when ``work`` is done."""
        del name
        work()

    def join(self, timeout_seconds: float) -> bool:
        """Nothing is ever left."""
        del timeout_seconds
        return True


class ThreadWorkers:
    """A daemon thread for each piece of work, which ends with it: a log at rest has no thread here."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Returns at once."""
        with self._changed:
            self._running += 1

        def run() -> None:
            try:
                work()
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

        try:
            threading.Thread(target=run, name=f"tiered-{name}", daemon=True).start()
        except BaseException:  # no thread can be made: nothing runs
            with self._changed:
                self._running -= 1
            raise

    def join(self, timeout_seconds: float) -> bool:
        """A thread that joins from inside of its own work would wait for itself: nobody does."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_seconds)
