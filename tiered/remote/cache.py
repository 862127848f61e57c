"""What was read of a bucket and is kept in memory, by key: decoded pages and roots, and bytes of objects.

Kafka's rule for indexes: docs/kafka-semantics.md#index-cache.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MEMORY_CACHE_BYTES = 32 * 1024 * 1024
"""What a :class:`ByteCache` holds at most (``read.buffer.bytes``)."""

INDEX_CACHE_BYTES = 16 * 1024 * 1024
"""What the streams of one log or reader hold together at most of index bundles: the next read asks for none twice."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Values by key, bounded by their bytes in memory; the least recently used leave first. Thread-safe.

    A value larger than half of the cache is not kept: one value must not throw out everything else.
    """

    def __init__(self, max_bytes: int, size_of: Callable[[V], int]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._held: OrderedDict[K, V] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Bytes held now."""
        return self._size_bytes

    def get(self, key: K) -> V | None:
        """The value of ``key``, if it is held."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> None:
        """Keeps ``value`` in place of the one before it, at the cost of what was not used for longest."""
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
    """Whole index bundles, sections of them, and aligned chunks of segments; may serve many readers.

    Keys are (object key, position): objects are immutable and names are never reused, so that an entry can never be
    stale and a rewritten segment can never be served from the bytes of the old one.
    """

    def __init__(self, max_bytes: int = MEMORY_CACHE_BYTES) -> None:
        super().__init__(max_bytes, len)

    def drop(self, key: str) -> None:
        """Forgets all bytes of the object ``key``: they did not hold what their checksums say."""
        with self._lock:
            for entry in [entry for entry in self._held if entry[0] == key]:
                self._forget(entry)
