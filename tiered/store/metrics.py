"""What a store was asked, how it answered, how long that took and how many bytes went each way.

Every attempt counts: the metered store stands below the retries, so that its figures are those of the bill.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass, field

from tiered.clock import Clock, SystemClock
from tiered.errors import TieredError
from tiered.metrics import Metric, metric
from tiered.store.base import AioStore, Missing, NotModified, Object, Outcome, PutResult, Store, StoreRequest
from tiered.store.limit import sent_bytes

SECONDS_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram of request seconds; one more bucket holds what is above."""


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """One line of a snapshot. ``op`` is ``get``, ``put``, ...; ``status`` as :func:`status_of` says.

    ``buckets[i]`` counts the requests that took at most ``SECONDS_BOUNDS[i]`` and more than the bound before
    (the last: more than all).
    """

    op: str
    status: str
    requests: int
    seconds: float
    sent_bytes: int
    received_bytes: int
    buckets: tuple[int, ...]


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    seconds: float = 0.0
    sent: int = 0
    received: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BOUNDS) + 1))


class StoreMetrics:
    """Sums by operation and status. Thread-safe; one may serve many stores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, str], _Sums] = {}

    def record(self, op: str, status: str, seconds: float, *, sent: int = 0, received: int = 0) -> None:
        """Adds one request."""
        with self._lock:
            sums = self._sums.setdefault((op, status), _Sums())
            sums.requests += 1
            sums.seconds += seconds
            sums.sent += sent
            sums.received += received
            sums.buckets[bisect_left(SECONDS_BOUNDS, seconds)] += 1

    def snapshot(self) -> tuple[RequestFigures, ...]:
        """All sums since the start, ordered by operation and status."""
        with self._lock:
            return tuple(
                RequestFigures(op, status, s.requests, s.seconds, s.sent, s.received, tuple(s.buckets))
                for (op, status), s in sorted(self._sums.items())
            )

    def requests(self, op: str | None = None) -> int:
        """Requests of one operation, or of all."""
        with self._lock:
            return sum(sums.requests for (each, _), sums in self._sums.items() if op in (None, each))


def request_metrics(metrics: StoreMetrics) -> list[Metric]:
    """``tiered_store_requests_total``, ``tiered_store_bytes_total`` and ``tiered_store_request_seconds_total``."""
    found = []
    moved: dict[str, int] = {}
    took: dict[str, float] = {}
    for each in metrics.snapshot():
        found.append(metric("store_requests_total", each.requests, {"op": each.op, "status": each.status}))
        moved[each.op] = moved.get(each.op, 0) + each.sent_bytes + each.received_bytes
        took[each.op] = took.get(each.op, 0.0) + each.seconds
    found += [metric("store_bytes_total", size, {"op": op}) for op, size in moved.items()]
    return found + [metric("store_request_seconds_total", seconds, {"op": op}) for op, seconds in took.items()]


def op_of(request: StoreRequest) -> str:
    """``get``, ``head``, ``put``, ``delete``, ``list``, ``startupload``, ``uploadpart``, ..."""
    return type(request).__name__.lower()


def status_of(outcome: Outcome) -> str:
    """``ok``, ``missing``, ``not_modified``; of a PUT ``landed``, ``lost``, ``conflict``, ``absent`` or ``unknown``.

    A request that raises is recorded under the ``code`` of its error.
    """
    match outcome:
        case Missing():
            return "missing"
        case NotModified():
            return "not_modified"
        case PutResult(status=status):
            return status.value
        case _:
            return "ok"


class _Meter:
    def __init__(self, metrics: StoreMetrics, clock: Clock | None) -> None:
        self.metrics = metrics
        self.clock = clock or SystemClock()

    def landed(self, request: StoreRequest, outcome: Outcome, begun: float) -> None:
        received = len(outcome.data) if isinstance(outcome, Object) else 0
        seconds = self.clock.monotonic() - begun
        status = status_of(outcome)
        self.metrics.record(op_of(request), status, seconds, sent=sent_bytes(request), received=received)

    def raised(self, request: StoreRequest, error: BaseException, begun: float) -> None:
        status = error.code if isinstance(error, TieredError) else "cancelled"
        self.metrics.record(op_of(request), status, self.clock.monotonic() - begun, sent=sent_bytes(request))


class MeteredStore:
    """Records every attempt of ``inner`` in ``metrics``."""

    def __init__(self, inner: Store, metrics: StoreMetrics, *, clock: Clock | None = None) -> None:
        self.inner = inner
        self._meter = _Meter(metrics, clock)

    @property
    def url(self) -> str:
        """That of the inner store."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"MeteredStore({self.inner!r})"

    def execute(self, request: StoreRequest) -> Outcome:
        """One attempt, recorded."""
        begun = self._meter.clock.monotonic()
        try:
            outcome = self.inner.execute(request)
        except BaseException as error:
            self._meter.raised(request, error, begun)
            raise
        self._meter.landed(request, outcome, begun)
        return outcome

    def close(self) -> None:
        """Closes the inner store."""
        self.inner.close()


class AioMeteredStore:
    """The same for asyncio; a cancelled request counts as ``cancelled``."""

    def __init__(self, inner: AioStore, metrics: StoreMetrics, *, clock: Clock | None = None) -> None:
        self.inner = inner
        self._meter = _Meter(metrics, clock)

    @property
    def url(self) -> str:
        """That of the inner store."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"AioMeteredStore({self.inner!r})"

    async def execute(self, request: StoreRequest) -> Outcome:
        """One attempt, recorded."""
        begun = self._meter.clock.monotonic()
        try:
            outcome = await self.inner.execute(request)
        except BaseException as error:
            self._meter.raised(request, error, begun)
            raise
        self._meter.landed(request, outcome, begun)
        return outcome

    async def close(self) -> None:
        """Closes the inner store."""
        await self.inner.close()
