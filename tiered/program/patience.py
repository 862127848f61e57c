"""Waiting for a store where a person looks on: a word after two seconds of silence, and an end.

::

    with Patience(app, timeout_seconds=10) as patience:
        with patience.waiting():                 # the store is asked in here; its silence is told
            topics = reader.topics()
        for record in patience.over(records):    # here too, but not while the record is printed

The end comes after ``timeout_seconds``, the sum of all that is spent in ``waiting`` (reading standard input does not
count), or, where none is given, after :data:`PATIENCE_SECONDS` of one silence: one request may hang for longer than the
store's own retries. A thread looks; a signal to the main thread ends what it does.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from tiered.errors import RemoteUnavailableError
from tiered.program.application import Application
from tiered.store.base import Outcome, Store, StoreAround, StoreRequest

PATIENCE_SECONDS = 15.0
"""How long a command goes on asking a store that does not answer."""

SILENCE_SECONDS = 2.0
"""Silence of the store that is worth a word."""

LOOK_SECONDS = 0.25
"""Between two looks of the thread that tells; the signal is repeated as often, should a finalizer swallow it."""

GRACE_SECONDS = 1.0
"""How long the store's own retries, whose error says more, go before the signal."""

T = TypeVar("T")


class OutOfTime(BaseException):
    """The store was waited for long enough; like KeyboardInterrupt it passes every ``except Exception`` of an SDK."""


class Patience:
    """Limits the waits of one command's main thread. Without a remote tier it does nothing."""

    def __init__(
        self, app: Application, *, timeout_seconds: float | None = None, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self._app = app
        self._grace_seconds = grace_seconds
        self._remote = app.remote
        self._timeout_seconds = timeout_seconds
        self._left_seconds = timeout_seconds
        self._since: float | None = None
        self._told = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._main = threading.main_thread()
        self._before: Any = None

    def __enter__(self) -> Self:
        if self._remote is not None:
            if threading.current_thread() is self._main:
                self._before = signal.signal(signal.SIGALRM, self._ring)
            self._thread = threading.Thread(target=self._watch, name="tiered-patience", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._before is not None:
            signal.signal(signal.SIGALRM, self._before)
        if isinstance(error, OutOfTime):
            raise self.silence() from None

    def silence(self) -> RemoteUnavailableError:
        """The error of a store that hangs."""
        return RemoteUnavailableError(
            f"{self._remote} did not answer for {PATIENCE_SECONDS:g} s",
            hint="try again; `tiered doctor` looks at the store, --log-dir without --remote reads this disk alone",
        )

    @property
    def left_seconds(self) -> float:
        """What is left of the timeout; :data:`PATIENCE_SECONDS` where none was given."""
        return PATIENCE_SECONDS if self._left_seconds is None else max(0.0, self._left_seconds)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """The store is asked in the block. Raises OutOfTime at the end of the patience."""
        begun = self._since = self._app.clock.monotonic()
        try:
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

    def look(self) -> bool:
        """Says, once for each silence, that the store does not answer. True when it was waited for long enough."""
        since = self._since
        if since is None:
            return False
        silent_seconds = self._app.clock.monotonic() - since
        if silent_seconds >= SILENCE_SECONDS and not self._told:
            self._told = True
            limit = PATIENCE_SECONDS if self._timeout_seconds is None else self._timeout_seconds
            self._app.out.caution(f"{self._remote} does not answer; it is asked again for up to {limit:g} s")
        return silent_seconds >= self.left_seconds + self._grace_seconds

    def _watch(self) -> None:
        while not self._over.is_set():
            self._app.clock.wait(self._over, LOOK_SECONDS)
            if self.look() and self._before is not None and self._main.ident is not None:
                signal.pthread_kill(self._main.ident, signal.SIGALRM)

    def _ring(self, _number: int, _frame: FrameType | None) -> None:
        # The answer may have come between the look and the signal.
        if self._since is not None:
            raise OutOfTime


class WatchedStore(StoreAround):
    """A store that reports each request as something that the command waits for."""

    def __init__(self, inner: Store, patience: Patience) -> None:
        super().__init__(inner)
        self._patience = patience

    def execute(self, request: StoreRequest) -> Outcome:
        """As the inner store does. Raises ``RemoteUnavailableError`` for one that hangs."""
        try:
            with self._patience.waiting():
                return self.inner.execute(request)
        except OutOfTime:
            raise self._patience.silence() from None
