"""Bounded memory caches of what was read from a bucket: decoded pages and roots, and bytes of objects.

Kafka's rule for indexes: docs/kafka-semantics.md#index-cache.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MEMORY_CACHE_BYTES = 32 * 1024 * 1024
"""Most bytes of a :class:`ByteCache` (``read.buffer.bytes``)."""

INDEX_CACHE_BYTES = 16 * 1024 * 1024
"""Most bytes of index bundles that all streams of one log or reader cache together."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Values by key, bounded by their bytes in memory, evicted least recently used first. Thread-safe.

    A value larger than half of the cache is not cached, so that one value does not evict all others.
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
        """Cache ``value``, replacing the one before it and evicting the least recently used."""
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

    Keys are (object key, position). Objects are immutable and names are never reused, so no entry is ever stale.
    """

    def __init__(self, max_bytes: int = MEMORY_CACHE_BYTES) -> None:
        super().__init__(max_bytes, len)

    def drop(self, key: str) -> None:
        """Drop all bytes of the object ``key``, because they did not match their checksums."""
        with self._lock:
            for entry in [entry for entry in self._held if entry[0] == key]:
                self._forget(entry)
