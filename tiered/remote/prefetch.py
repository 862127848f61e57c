"""Reads of a sequential stream, carried out ahead of its consumer on a few shared threads.

The first read happens on the caller's thread; only when the consumer comes back for more do threads start.
Results come in order. What was read, or is being read, and was not yet handed on never exceeds ``max_bytes``; a
consumer that stops leaves at most that much behind, and nothing is started for it any more.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

READ_THREADS = 8
"""Threads of one process that read ahead, for all its readers together."""

REQUESTS_AHEAD = 4
"""Requests of one reader under way at once."""

BUFFER_BYTES = 32 * 1024 * 1024
"""Bytes read ahead of one consumer (``read.buffer.bytes``)."""


class Sized(Protocol):
    """A request of known size."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it will bring."""


R = TypeVar("R", bound=Sized)
V = TypeVar("V")

_pools: dict[int, ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()


def _pool() -> ThreadPoolExecutor:
    pid = os.getpid()  # the threads of a parent do not exist in a forked child
    with _pools_lock:
        pool = _pools.get(pid)
        if pool is None:
            _pools.clear()
            pool = _pools[pid] = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="tiered-read")
        return pool


def fetch_ahead(
    requests: Iterator[R],
    fetch: Callable[[R], V],
    *,
    max_bytes: int = BUFFER_BYTES,
    max_requests: int = REQUESTS_AHEAD,
) -> Generator[tuple[R, V], None, None]:
    """Each request with what ``fetch`` made of it, in order. Raises what ``fetch`` raises, at that request's turn.

    ``requests`` is advanced on the consumer's thread only, and no further than the reads go.
    """
    first = next(requests, None)
    if first is None:
        return
    yield first, fetch(first)
    ahead: deque[tuple[R, Future[V]]] = deque()
    ahead_bytes = 0
    waiting = next(requests, None)
    try:
        while True:
            while waiting is not None and len(ahead) < max_requests:
                if ahead and ahead_bytes + waiting.size_bytes > max_bytes:
                    break
                ahead.append((waiting, _pool().submit(fetch, waiting)))
                ahead_bytes += waiting.size_bytes
                waiting = next(requests, None)
            if not ahead:
                return
            request, future = ahead.popleft()
            value = future.result()
            ahead_bytes -= request.size_bytes
            del future  # it holds the value: the consumer's is to be the only reference
            yield request, value
            del value
    finally:
        for _, pending in ahead:
            pending.cancel()
