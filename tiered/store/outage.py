"""Reports once when a store stops to answer, and once when it answers again, however many requests fail between."""

from __future__ import annotations

import logging
import threading

from tiered.clock import Clock, SystemClock
from tiered.errors import RemoteUnavailableError
from tiered.store.base import AioStore, Outcome, PutResult, PutStatus, Store, StoreRequest

OUTAGE_ATTEMPTS = 3
"""Attempts in a row without an answer that make an outage: a single one is what repeats are for."""

_logger = logging.getLogger("tiered.store")


class Outages:
    """The word about one store. Thread-safe."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._url = url
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._failed = 0
        self._since = 0.0

    def failed(self, why: str) -> None:
        """An attempt got no answer."""
        with self._lock:
            self._failed += 1
            if self._failed == 1:
                self._since = self._clock.monotonic()
            begins = self._failed == OUTAGE_ATTEMPTS
        if begins:
            self._say(logging.WARNING, "outage_began", f"{self._url} does not answer, it is asked again: {why}")

    def answered(self) -> None:
        """An attempt got one, whatever it was."""
        if not self._failed:
            return
        with self._lock:
            ended, self._failed = self._failed >= OUTAGE_ATTEMPTS, 0
            seconds = self._clock.monotonic() - self._since
        if ended:
            self._say(logging.WARNING, "outage_ended", f"{self._url} answers again, after {seconds:.0f} s")

    def heard(self, outcome: Outcome) -> Outcome:
        """The same for the outcome of an attempt: a write that may have landed got no answer."""
        if isinstance(outcome, PutResult) and outcome.status is PutStatus.UNKNOWN:
            self.failed(outcome.cause)
        else:
            self.answered()
        return outcome

    def _say(self, level: int, event: str, text: str) -> None:
        # The daemon's lines are told apart by these two attributes (uploader.logs).
        _logger.log(level, "%s", text, extra={"tiered_event": event, "tiered_fields": {"remote": self._url}})


class NoticingStore:
    """Tells :class:`Outages` what becomes of each attempt."""

    def __init__(self, inner: Store, *, clock: Clock | None = None) -> None:
        self.inner = inner
        self._outages = Outages(inner.url, clock)

    @property
    def url(self) -> str:
        """That of the inner store."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"NoticingStore({self.inner!r})"

    def execute(self, request: StoreRequest) -> Outcome:
        """One attempt."""
        try:
            return self._outages.heard(self.inner.execute(request))
        except RemoteUnavailableError as error:
            self._outages.failed(error.message)
            raise

    def close(self) -> None:
        """Closes the inner store."""
        self.inner.close()


class AioNoticingStore:
    """The same for asyncio."""

    def __init__(self, inner: AioStore, *, clock: Clock | None = None) -> None:
        self.inner = inner
        self._outages = Outages(inner.url, clock)

    @property
    def url(self) -> str:
        """That of the inner store."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"AioNoticingStore({self.inner!r})"

    async def execute(self, request: StoreRequest) -> Outcome:
        """One attempt."""
        try:
            return self._outages.heard(await self.inner.execute(request))
        except RemoteUnavailableError as error:
            self._outages.failed(error.message)
            raise

    async def close(self) -> None:
        """Closes the inner store."""
        await self.inner.close()
