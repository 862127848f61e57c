"""Reads of segment objects: the bounded caches, one read with the checks of its answer, and read-ahead.

Kafka's rule for indexes: docs/kafka-semantics.md#index-cache.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from tiered.errors import CorruptionError, TieredError
from tiered.model import Row, TopicPartition
from tiered.plan.read import ByteRange, RequestSizes, SegmentRange
from tiered.store.base import Begin, Get, Missing, Object, Steps, Take

MEMORY_CACHE_BYTES = 32 * 1024 * 1024
"""Most bytes of a :class:`ByteCache` (``read.buffer.bytes``)."""

INDEX_CACHE_BYTES = 16 * 1024 * 1024
"""Most bytes of index bundles that all streams of one log or reader cache together."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Cache of values by key. The least recently used are evicted first. Thread-safe.

    ``size_of`` returns the bytes of a value in memory, and ``max_bytes`` bounds their sum. A value larger than half of
    the cache is not cached, so that one value does not evict all others.
    """

    def __init__(self, max_bytes: int, size_of: Callable[[V], int]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._held: OrderedDict[K, V] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Return the bytes in the cache."""
        return self._size_bytes

    def get(self, key: K) -> V | None:
        """Return the cached value of ``key``, None without one."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> None:
        """Cache ``value`` in place of an earlier one. Evicts the least recently used values if the cache is full."""
        size_bytes = self._size_of(value)
        with self._lock:
            self._forget(key)
            if size_bytes > self._max_bytes // 2:
                return
            self._held[key] = value
            self._size_bytes += size_bytes
            while self._size_bytes > self._max_bytes:
                self._forget(next(iter(self._held)))

    def _forget(self, key: K) -> None:
        old = self._held.pop(key, None)
        if old is not None:
            self._size_bytes -= self._size_of(old)


class ByteCache(Cache[tuple[str, int], bytes]):
    """Cache of whole index bundles, sections of them, and aligned chunks of segments. Several readers may share it.

    Keys are (object key, position). Objects are immutable and names are never reused, so no entry is ever stale.
    """

    def __init__(self, max_bytes: int = MEMORY_CACHE_BYTES) -> None:
        super().__init__(max_bytes, len)

    def drop(self, key: str) -> None:
        """Drop all bytes of the object ``key``, because they did not match their checksums."""
        with self._lock:
            for entry in [entry for entry in self._held if entry[0] == key]:
                self._forget(entry)


class SegmentGone(Exception):
    """Error for a missing object that the pinned root names. Readers catch it and read a newer root."""

    def __init__(self, key: str, row: Row) -> None:
        super().__init__(key)
        self.key = key
        self.row = row


@dataclass(frozen=True, slots=True)
class Fetch:
    """One read of the bytes ``range`` of a segment's ``.log``.

    ``chunk_bytes`` above 0: first read at a new place, which reads and caches whole aligned chunks of this size. 0:
    sequential read, which bypasses the cache, so that a scan never evicts it.
    """

    segment: SegmentRange
    key: str
    range: ByteRange
    chunk_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Return the number of bytes in ``range``."""
        return self.range.size_bytes

    def steps(self, tp: TopicPartition, cache: ByteCache) -> Steps[memoryview]:
        """Return the bytes of ``range``, from the cache or by one GET."""
        start, end = self.range.start, self.range.end
        if not self.chunk_bytes:
            return self.received(tp, (yield self.request()))
        chunk_start = start - start % self.chunk_bytes
        held = cache.get((self.key, chunk_start))
        if held is None:
            row = self.segment.row
            chunk_end = min(max(chunk_start + self.chunk_bytes, end), row.size)
            held = yield from read_range(tp, self.key, row, chunk_start, chunk_end, row.size)
            cache.put((self.key, chunk_start), held)
        return memoryview(held)[start - chunk_start : end - chunk_start]

    def request(self) -> Get:
        """Return the GET of exactly ``range``. Only a sequential read sends it; a first read gets a whole chunk."""
        return Get(self.key, self.range.start, self.range.end, lend=True)

    def received(self, tp: TopicPartition, found: object) -> memoryview:
        """Return the bytes in ``found``, the store's answer to :meth:`request`."""
        row = self.segment.row
        return memoryview(_checked(tp, self.request(), row, found, row.size).body)


def still_named(tp: TopicPartition, gone: SegmentGone, version: int, offset: int, then: str) -> CorruptionError:
    """Return the error for the missing object ``gone``, which version ``version`` of the catalog still names.

    ``offset``: first offset that cannot be read. ``then``: the end of the hint.
    """
    return CorruptionError(
        f"{tp}: {gone.key} is gone and version {version} of the catalog still names it (offsets {gone.row.base} to "
        f"{gone.row.next})",
        path_or_key=gone.key,
        position=0,
        offset=offset,
        hint=f"`tiered check {tp.topic}` lists missing objects; find the lifecycle rule or person that deletes them; "
        f"{then}",
    )


def fetches(
    segment: SegmentRange, key: str, wanted: ByteRange, sizes: RequestSizes, *, seek: bool = True
) -> Iterator[Fetch]:
    """Yield the fetches of the bytes ``wanted`` of one segment, in order.

    ``sizes`` gives their sizes, which grow from fetch to fetch, also across segments. ``seek``: the first fetch is at a
    new place, so that it reads whole chunks into the cache.
    """
    position = wanted.start
    while position < wanted.end:
        piece = sizes.next_request(position, wanted.end)
        yield Fetch(segment, key, piece, sizes.chunk_bytes if seek else 0)
        position, seek = piece.end, False


def read_range(tp: TopicPartition, key: str, row: Row, start: int, end: int, size: int) -> Steps[bytes]:  # noqa: PLR0917
    """Return exactly the bytes ``start`` to ``end`` (exclusive) of one of the objects of ``row``.

    ``size``: size of that object.
    """
    wanted = Get(key, start, end)
    return _checked(tp, wanted, row, (yield wanted), size).data


def _checked(tp: TopicPartition, wanted: Get, row: Row, found: object, size: int) -> Object:
    """Return ``found``, the store's answer to ``wanted``, a GET of one of the objects of ``row``.

    Raises SegmentGone without an object, CorruptionError unless the object has ``size`` bytes and all wanted ones came.
    """
    key, start, end = wanted.key, wanted.start, wanted.end or 0
    if isinstance(found, Missing):
        raise SegmentGone(key, row)
    if not isinstance(found, Object):
        raise TypeError(f"a GET gave {found!r}")
    if len(found.body) != end - start or found.size != size:
        raise CorruptionError(
            f"{tp}: a read of bytes {start} to {end} of {key} returned {len(found.body)}; the object has "
            f"{found.size} bytes, the catalog says {size}",
            path_or_key=key,
            position=start + len(found.body),
            offset=row.base,
            hint=f"run `tiered check {tp.topic}`: the object is not the committed one",
        )
    return found


REQUESTS_AHEAD = 4
"""Concurrent requests of one reader."""

BUFFER_BYTES = 32 * 1024 * 1024
"""Bytes read ahead of one consumer."""


class Prefetch:
    """Read-ahead of fetches. Each call of ``source`` returns the steps of the next fetch, None after the last.

    ``source`` is called for at most one fetch more than reads were begun. The first read is sent when the consumer asks
    for it. Read-ahead (``store.base.Begin``) starts only when the consumer comes back for more. Results come in order.
    Bytes read or being read, and not yet consumed, never exceed ``max_bytes``, or one fetch if that is larger. After
    the consumer stops, at most that much is wasted and no read is begun.
    """

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
        """Return the next fetch with its bytes, None after the last.

        An error of a read, or of ``source``, is raised after the results of all reads before it were returned.
        """
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
        """Wait for all reads that are in flight. For a consumer that stops early but continues with other steps."""
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
