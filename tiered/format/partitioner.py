"""Choice of a record's partition, as in Kafka's Java client.

With a key: ``toPositive(murmur2(key)) % partitions``. Without one: partitions take turns, one batch each (Kafka's
sticky partitioner without its queue-length term). So a key has the same partition here and in a Kafka topic with as
many partitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit murmur2 of ``data`` with Kafka's seed (``Utils.murmur2`` in Kafka's clients)."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little")
        k = (k * _M) & _MASK
        k ^= k >> 24
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    tail = data[whole:]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


class Partitioner:
    """Choice of the partition of each record, for a topic of ``partitions`` partitions. Thread-safe."""

    def __init__(self, partitions: int, hashed: Callable[[bytes], int] = murmur2) -> None:
        """Make a partitioner. ``hashed``: the murmur2 function, which may be a faster one."""
        self._partitions = partitions
        self._hashed = hashed
        self._turn = itertools.count()

    def partition_for(self, key: bytes | None) -> int:
        """Return the partition for a key, 0 to ``partitions - 1``. The same key always has the same partition.

        ``key`` None: each call returns the next partition in turn.
        """
        if self._partitions == 1:
            return 0
        if key is None:
            return next(self._turn) % self._partitions
        return (self._hashed(key) & 0x7FFFFFFF) % self._partitions
