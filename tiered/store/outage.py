"""Reports once when a store stops responding, and once when it responds again, however many requests fail between."""

from __future__ import annotations

import logging
import threading

from tiered.clock import Clock, SystemClock
from tiered.errors import RemoteUnavailableError
from tiered.store.base import Outcome, PutResult, PutStatus

OUTAGE_ATTEMPTS = 3
"""Consecutive attempts without a response that make an outage: single failures are retried."""

_logger = logging.getLogger("tiered.store")


class Outages:
    """Logger of the outages of one store. Thread-safe."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._url = url
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._failed = 0
        self._since = 0.0

    def failed(self, why: str) -> None:
        """Count an attempt without a response."""
        with self._lock:
            self._failed += 1
            if self._failed == 1:
                self._since = self._clock.monotonic()
            begins = self._failed == OUTAGE_ATTEMPTS
        if begins:
            self._say(logging.WARNING, "outage_began", f"{self._url} does not answer, requests are retried: {why}")

    def answered(self) -> None:
        """Count an attempt with any response."""
        with self._lock:
            ended, self._failed = self._failed >= OUTAGE_ATTEMPTS, 0
            seconds = self._clock.monotonic() - self._since
        if ended:
            self._say(logging.WARNING, "outage_ended", f"{self._url} answers again, after {seconds:.0f} s")

    def heard(self, answer: Outcome | BaseException) -> None:
        """Count the outcome or exception of an attempt: a write that may have landed got no response."""
        if isinstance(answer, PutResult) and answer.status is PutStatus.UNKNOWN:
            self.failed(answer.cause)
        elif isinstance(answer, RemoteUnavailableError):
            self.failed(answer.message)
        elif self._failed and not isinstance(answer, BaseException):
            self.answered()

    def _say(self, level: int, event: str, text: str) -> None:
        # The daemon distinguishes its lines by these two attributes (uploader.logs).
        _logger.log(level, "%s", text, extra={"tiered_event": event, "tiered_fields": {"remote": self._url}})
