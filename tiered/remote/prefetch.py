"""Reads of a sequential stream, begun ahead of its consumer.

The first read happens when it is asked for; only when the consumer comes back for more are reads begun ahead
(``store.base.Begin``). Results come in order. What was read, or is being read, and was not yet handed on never exceeds
``max_bytes``; a consumer that stops leaves at most that much behind, and nothing is begun for it any more.
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
"""Requests of one reader under way at once."""

BUFFER_BYTES = 32 * 1024 * 1024
"""Bytes read ahead of one consumer."""


class Prefetch:
    """What ``source`` gives, fetched. ``source`` is advanced no further than the reads go."""

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
        """The next read with its bytes, None behind the last. Raises what a read raises, at its turn."""
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
        del found  # the consumer's is to be the only reference
        yield from self._fill()  # goes on while the consumer is at work
        return fetch, data

    def abandon(self) -> Steps[None]:
        """Waits for what was begun: for a consumer that stops and goes on with something else in the same steps."""
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
                    self._failure = error  # for its turn: what was begun before comes first
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
