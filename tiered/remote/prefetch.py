"""Read-ahead for a sequential stream.

The first read is sent when the consumer asks for it. Read-ahead (``store.base.Begin``) starts only when the consumer
comes back for more. Results come in order. Bytes read or being read, and not yet consumed, never exceed ``max_bytes``.
After the consumer stops, at most that much is wasted and nothing more is begun.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from tiered.errors import TieredError
from tiered.model import TopicPartition
from tiered.remote.cache import ByteCache
from tiered.remote.fetch import Fetch, SegmentGone
from tiered.store.base import Begin, Steps, Take

REQUESTS_AHEAD = 4
"""Concurrent requests of one reader."""

BUFFER_BYTES = 32 * 1024 * 1024
"""Bytes read ahead of one consumer."""


class Prefetch:
    """Read-ahead of the fetches that ``source`` returns. ``source`` is advanced no further than the reads."""

    def __init__(
        self,
        source: Callable[[], Steps[Fetch | None]],
        tp: TopicPartition,
        cache: ByteCache,
        *,
        max_bytes: int = BUFFER_BYTES,
        max_requests: int = REQUESTS_AHEAD,
    ) -> None:
        self._source = source
        self._tp = tp
        self._cache = cache
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self._begun = False
        self._ended = False
        self._failure: Exception | None = None
        self._waiting: Fetch | None = None
        self._ahead: deque[tuple[Fetch, object]] = deque()
        self._ahead_bytes = 0

    def next(self) -> Steps[tuple[Fetch, memoryview] | None]:
        """Return the next fetch with its bytes, None after the last. Raises the error of a read at its turn."""
        if not self._begun:
            self._begun = True
            first = yield from self._source()
            if first is None:
                self._ended = True
                return None
            return first, (yield from first.steps(self._tp, self._cache))
        yield from self._fill()
        if not self._ahead:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return None
        fetch, ticket = self._ahead.popleft()
        found = yield Take(ticket)
        self._ahead_bytes -= fetch.size_bytes
        data = fetch.received(self._tp, found)
        del found  # so that the consumer has the only reference
        yield from self._fill()  # these requests run while the consumer works
        return fetch, data

    def abandon(self) -> Steps[None]:
        """Wait for all reads that were begun, for a consumer that stops early but continues with other steps."""
        self._ended, self._waiting = True, None
        while self._ahead:
            _, ticket = self._ahead.popleft()
            with contextlib.suppress(TieredError):
                yield Take(ticket)
        self._ahead_bytes = 0

    def _fill(self) -> Steps[None]:
        while not self._ended:
            if self._waiting is None:
                try:
                    self._waiting = yield from self._source()
                except (TieredError, SegmentGone) as error:
                    self._failure = error  # raised in its turn, after the reads that were begun before it
                if self._waiting is None:
                    self._ended = True
                    return
            fetch = self._waiting
            full = self._ahead and self._ahead_bytes + fetch.size_bytes > self._max_bytes
            if full or len(self._ahead) >= self._max_requests:
                return
            self._ahead.append((fetch, (yield Begin(fetch.request()))))
            self._ahead_bytes += fetch.size_bytes
            self._waiting = None
