"""Waiting for a store where a person looks on: a word after two seconds of silence, and an end after ``--timeout``.

::

    with Patience(app, timeout_seconds=10) as patience:
        with patience.waiting():                 # the store is asked in here; its silence is told
            topics = reader.topics()
        for record in patience.over(records):    # here too, but not while the record is printed

The timeout is the sum of all that is spent in ``waiting``: reading standard input does not count.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self, TypeVar

from tiered.cli.application import Application

PATIENCE_SECONDS = 15.0
"""How long a command goes on asking a store that does not answer."""

SILENCE_SECONDS = 2.0
"""Silence of the store that is worth a word."""

LOOK_SECONDS = 0.25
"""Between two looks of the thread that tells."""

AGAIN_SECONDS = 0.5
"""Between two rings of the alarm."""

T = TypeVar("T")


class OutOfTime(BaseException):
    """The timeout has passed; like KeyboardInterrupt it passes every ``except Exception`` of an SDK."""


class Patience:
    """Of one command. Without a remote tier it does nothing; the timeout needs the main thread."""

    def __init__(self, app: Application, *, timeout_seconds: float | None = None) -> None:
        self._app = app
        self._remote = app.remote
        self._timeout_seconds = timeout_seconds
        self._left_seconds = timeout_seconds
        self._since: float | None = None
        self._told = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._remote is not None:
            self._thread = threading.Thread(target=self._watch, name="tiered-patience", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def left_seconds(self) -> float:
        """What is left of the timeout; :data:`PATIENCE_SECONDS` where none was given."""
        return PATIENCE_SECONDS if self._left_seconds is None else max(0.0, self._left_seconds)

    @contextlib.contextmanager
    def waiting(self, *, grace_seconds: float = 0.0) -> Iterator[None]:
        """The store is asked in the block. Raises OutOfTime when the timeout and ``grace_seconds`` have passed."""
        begun = self._since = self._app.clock.monotonic()
        try:
            with _alarm(None if self._left_seconds is None else self.left_seconds + grace_seconds):
                yield
        finally:
            self._since, self._told = None, False
            if self._left_seconds is not None:
                self._left_seconds -= self._app.clock.monotonic() - begun

    def over(self, items: Iterator[T]) -> Iterator[T]:
        """``items``, each of which the store may keep us waiting for."""
        return items if self._remote is None else self._asked(items)

    def _asked(self, items: Iterator[T]) -> Iterator[T]:
        monotonic = self._app.clock.monotonic
        while True:
            self._since = monotonic()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self._since = None
            self._told = False
            yield item

    def look(self) -> None:
        """Says, once for each silence, that the store does not answer."""
        since = self._since
        if since is None or self._told or self._app.clock.monotonic() - since < SILENCE_SECONDS:
            return
        self._told = True
        limit = PATIENCE_SECONDS if self._timeout_seconds is None else self._timeout_seconds
        self._app.out.caution(f"{self._remote} does not answer; it is asked again for up to {limit:g} s")

    def _watch(self) -> None:
        while not self._over.is_set():
            self._app.clock.wait(self._over, LOOK_SECONDS)
            self.look()


@contextlib.contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    """OutOfTime in this thread after ``seconds``; an alarm that was set before goes on afterwards."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    # Zero would mean "never". It rings again: an exception in a finalizer that happens to run is swallowed.
    other = signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *other)
        signal.signal(signal.SIGALRM, before)
