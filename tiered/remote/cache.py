"""Bytes of remote objects kept in memory: whole index bundles, sections of them, and aligned chunks of segments.

Keys are (object key, position): objects are immutable and names are never reused, so that an entry can never be
stale and a rewritten segment can never be served from the bytes of the old one.

Kafka's rule for indexes: docs/kafka-semantics.md#index-cache.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

MEMORY_CACHE_BYTES = 32 * 1024 * 1024
"""What a :class:`ByteCache` holds at most (``read.buffer.bytes``)."""

INDEX_CACHE_BYTES = 16 * 1024 * 1024
"""What the streams of one log or reader hold together at most of index bundles: the next read asks for none twice."""


class ByteCache:
    """Least recently used entries first out, bounded by ``max_bytes``. Thread-safe; may serve many readers.

    An entry larger than half of the cache is not kept: one chunk must not throw out everything else.
    """

    def __init__(self, max_bytes: int = MEMORY_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    @property
    def size_bytes(self) -> int:
        """Bytes held now."""
        return self._size_bytes

    def get(self, key: str, position: int) -> bytes | None:
        """The bytes of ``key`` that begin at ``position``, if they are held."""
        with self._lock:
            data = self._entries.get((key, position))
            if data is None:
                self.misses += 1
                return None
            self._entries.move_to_end((key, position))
            self.hits += 1
            return data

    def put(self, key: str, position: int, data: bytes) -> None:
        """Keeps ``data``, at the cost of what was not used for longest."""
        if len(data) > self._max_bytes // 2:
            return
        with self._lock:
            self._forget((key, position))
            self._entries[key, position] = data
            self._size_bytes += len(data)
            while self._size_bytes > self._max_bytes:
                _, old = self._entries.popitem(last=False)
                self._size_bytes -= len(old)

    def drop(self, key: str) -> None:
        """Forgets all bytes of ``key``: they did not hold what their checksums say."""
        with self._lock:
            for entry in [entry for entry in self._entries if entry[0] == key]:
                self._forget(entry)

    def _forget(self, entry: tuple[str, int]) -> None:
        old = self._entries.pop(entry, None)
        if old is not None:
            self._size_bytes -= len(old)
