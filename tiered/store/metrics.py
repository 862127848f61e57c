"""Counts of a store's requests (outcomes, seconds, bytes in each direction), and reports of its outages.

Every attempt counts: the metered store is below the retries, so that its figures are those of the bill.
"""

from __future__ import annotations

import itertools
import logging
import threading
from bisect import bisect_left
from dataclasses import dataclass, field, replace

from tiered.clock import Clock, SystemClock
from tiered.errors import RemoteUnavailableError, TieredError
from tiered.metrics import Metric, metric
from tiered.store.base import (
    Missing,
    NotModified,
    Object,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    StoreRequest,
    UploadPart,
    sent_bytes,
)
from tiered.store.layers import Attempt

SECONDS_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram of request seconds; one more bucket counts larger values."""


SILENT_SECONDS = 10.0
"""Time without a response after which a request is overdue."""

SLOW_BYTES_PER_SECOND = 250_000
"""Rate at which a request is granted more time for the bytes that it sends."""

_STATUSES: dict[type, str] = {Missing: "missing", NotModified: "not_modified"}


OUTAGE_ATTEMPTS = 3
"""Consecutive attempts without a response that make an outage: single failures are retried."""

_logger = logging.getLogger("tiered.store")


@dataclass(slots=True)
class RequestFigures:
    """Sums for one operation and status. ``op`` is ``get``, ``head``, ``put``, ``startupload``, ...

    ``status`` is ``ok``, ``missing`` or ``not_modified``. For a PUT it is ``landed``, ``lost``, ``conflict``,
    ``absent`` or ``unknown``. After a TieredError it is the error's ``code``, after another exception ``cancelled``.

    ``buckets[i]`` counts the requests that took at most ``SECONDS_BOUNDS[i]`` and more than the bound before (the last:
    more than all).
    """

    op: str
    status: str
    requests: int = 0
    seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BOUNDS) + 1))


@dataclass(slots=True)
class InFlight:
    """Request in flight. ``begun``, ``due``: monotonic seconds at which it was sent, and from which it is overdue."""

    op: str
    begun: float
    due: float


class StoreMetrics:
    """Counters of requests by operation and status, and the requests in flight. Thread-safe; stores may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, str], RequestFigures] = {}
        self._flights: dict[int, InFlight] = {}  # in the order in which they began
        self._numbers = itertools.count()
        self._silent_since: float | None = None  # when the first request without a response was sent

    def start(self, request: StoreRequest, now: float) -> int:
        """Record that a request is sent. Return its number, for :meth:`add`. ``now``: time in monotonic seconds."""
        sent = sent_bytes(request) if isinstance(request, Put | UploadPart) else 0
        flight = InFlight(type(request).__name__.lower(), now, now + SILENT_SECONDS + sent / SLOW_BYTES_PER_SECOND)
        with self._lock:
            number = next(self._numbers)
            self._flights[number] = flight
        return number

    def oldest(self) -> InFlight | None:
        """Return the request in flight that was sent first, None if there is none."""
        with self._lock:
            return next(iter(self._flights.values()), None)

    def oldest_seconds(self, now: float) -> float:
        """Return the age of the oldest request in flight, 0 without one. ``now``: time in monotonic seconds."""
        oldest = self.oldest()
        return 0.0 if oldest is None else max(0.0, now - oldest.begun)

    def overdue(self, now: float) -> InFlight | None:
        """Return the oldest overdue request in flight, None if there is none. ``now``: time in monotonic seconds."""
        with self._lock:
            return next((flight for flight in self._flights.values() if now >= flight.due), None)

    def silent_seconds(self, now: float) -> float:
        """Return the seconds without a response until ``now`` (monotonic), 0 if the last ended request got one."""
        since = self._silent_since
        return 0.0 if since is None else max(0.0, now - since)

    def add(
        self, request: StoreRequest, answer: Outcome | BaseException, seconds: float, number: int | None = None
    ) -> None:
        """Add a request that ended to the sums. ``answer``: its outcome or exception. ``seconds``: how long it took.

        ``number``: result of :meth:`start`; None: the request was not recorded there.
        """
        received = 0
        if isinstance(answer, Object):
            status, received = "ok", len(answer.body)
        elif isinstance(answer, PutResult):
            status = answer.status.value
        elif isinstance(answer, BaseException):
            status = answer.code if isinstance(answer, TieredError) else "cancelled"
        else:
            status = _STATUSES.get(type(answer), "ok")
        sent = sent_bytes(request) if isinstance(request, Put | UploadPart) else 0
        op = type(request).__name__.lower()
        with self._lock:
            flight = self._flights.pop(number, None) if number is not None else None
            if _silence(answer) is not None:
                if self._silent_since is None and flight is not None:
                    self._silent_since = flight.begun
            elif isinstance(answer, TieredError) or not isinstance(answer, BaseException):
                self._silent_since = None  # a refusal is a response, too; a cancelled request says nothing
            sums = self._sums.get((op, status))
            if sums is None:
                sums = self._sums[op, status] = RequestFigures(op, status)
            sums.requests += 1
            sums.seconds += seconds
            sums.sent_bytes += sent
            sums.received_bytes += received
            sums.buckets[bisect_left(SECONDS_BOUNDS, seconds)] += 1

    def snapshot(self) -> tuple[RequestFigures, ...]:
        """Return all sums since this object was created, ordered by operation and status."""
        with self._lock:
            return tuple(replace(each, buckets=list(each.buckets)) for _, each in sorted(self._sums.items()))

    def requests(self, op: str | None = None) -> int:
        """Return the number of requests of one operation; None: of all."""
        with self._lock:
            return sum(sums.requests for (each, _), sums in self._sums.items() if op in (None, each))


def _silence(answer: Outcome | BaseException) -> str | None:
    """Return why an attempt got no response, None if it got one. An unknown outcome of a write is no response."""
    if isinstance(answer, PutResult) and answer.status is PutStatus.UNKNOWN:
        return answer.cause
    return answer.message if isinstance(answer, RemoteUnavailableError) else None


def request_metrics(metrics: StoreMetrics, now: float) -> list[Metric]:
    """Return the metrics of requests, bytes and seconds, and the time without a response at ``now`` (monotonic)."""
    found = [
        metric("store_oldest_request_seconds", metrics.oldest_seconds(now)),
        metric("store_silent_seconds", metrics.silent_seconds(now)),
    ]
    moved: dict[str, int] = {}
    took: dict[str, float] = {}
    for each in metrics.snapshot():
        found.append(metric("store_requests_total", each.requests, {"op": each.op, "status": each.status}))
        moved[each.op] = moved.get(each.op, 0) + each.sent_bytes + each.received_bytes
        took[each.op] = took.get(each.op, 0.0) + each.seconds
    found += [metric("store_bytes_total", size, {"op": op}) for op, size in moved.items()]
    return found + [metric("store_request_seconds_total", seconds, {"op": op}) for op, seconds in took.items()]


class Meter:
    """Layer that records every attempt in ``metrics``. A cancelled attempt has the status ``cancelled``.

    ``notice_outages``: log when the store stops responding, and when it responds again.
    """

    def __init__(
        self,
        url: str,
        metrics: StoreMetrics,
        *,
        clock: Clock | None = None,
        notice_outages: bool = False,
    ) -> None:
        self.clock = clock or SystemClock()
        self._metrics = metrics
        self._outages = Outages(url, self.clock) if notice_outages else None

    def attempt(self, request: StoreRequest) -> Attempt:
        """Return the generator that sends one request and records it."""
        begun = self.clock.monotonic()
        number = self._metrics.start(request, begun)
        answer: Outcome | BaseException
        try:
            outcome: Outcome = yield request
            answer = outcome
        except BaseException as error:
            answer = error
            raise
        finally:
            self._metrics.add(request, answer, self.clock.monotonic() - begun, number)
            if self._outages is not None:
                self._outages.heard(answer)
        return outcome

    def close(self) -> None:
        """Do nothing: the metrics are read after the store is closed."""


class Outages:
    """Logger of the outages of one store. Thread-safe."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = 0  # attempts in a row without a response
        self._since = 0.0

    def heard(self, answer: Outcome | BaseException) -> None:
        """Record an attempt by its outcome or exception. An unknown outcome of a write counts as no response."""
        if (why := _silence(answer)) is not None:
            self._count_failure(why)
        elif self._failed and not isinstance(answer, BaseException):
            with self._lock:
                ended, self._failed = self._failed >= OUTAGE_ATTEMPTS, 0
                seconds = self._clock.monotonic() - self._since
            if ended:
                self._warn("outage_ended", f"{self._url} answers again, after {seconds:.0f} s")

    def _count_failure(self, why: str) -> None:
        with self._lock:
            self._failed += 1
            if self._failed == 1:
                self._since = self._clock.monotonic()
            begins = self._failed == OUTAGE_ATTEMPTS
        if begins:
            self._warn("outage_began", f"{self._url} does not answer, requests are retried: {why}")

    def _warn(self, event: str, text: str) -> None:
        # The daemon distinguishes its lines by these two attributes (uploader.telemetry).
        _logger.warning("%s", text, extra={"tiered_event": event, "tiered_fields": {"remote": self._url}})
