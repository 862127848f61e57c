"""Kafka's hash of a whole column of keys, by numpy; ``tiered.partitioner.murmur2`` is the oracle."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tiered.partitioner import murmur2

LONG_KEY_BYTES = 1024
"""Size above which keys are hashed one by one: in a column, each word of four bytes is a pass over all keys."""

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)


def murmur2_column(
    data: bytes, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Return the hash of each key ``data[starts[i] : starts[i] + lengths[i]]``. No length is negative."""
    words: npt.NDArray[np.uint32] = np.ndarray((len(data) + 1,), "<u4", data + bytes(4), strides=(1,))
    short = np.where(lengths > LONG_KEY_BYTES, 0, lengths)
    whole, rest = short >> 2, short & 3
    h = _SEED ^ short.astype(np.uint32)
    for word in range(int(whole.max(initial=0))):
        at = np.flatnonzero(whole > word)
        k = words[starts[at] + 4 * word] * _M
        h[at] = (h[at] * _M) ^ ((k ^ (k >> np.uint32(24))) * _M)
    at = np.flatnonzero(rest)
    tails = words[starts[at] + 4 * whole[at]] & _TAIL_MASKS[rest[at]]
    h[at] = (h[at] ^ tails) * _M
    h = (h ^ (h >> np.uint32(13))) * _M
    h ^= h >> np.uint32(15)
    for i in np.flatnonzero(lengths > LONG_KEY_BYTES):
        h[i] = murmur2(data[starts[i] : starts[i] + lengths[i]])
    return h


def partitions_of(hashes: npt.NDArray[np.uint32], partitions: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
    """Return the partition of each key by its hash, like ``Partitioner.partition_for``, among ``partitions``."""
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def rows_by_partition(partitions: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the row indexes of each partition, ascending; ``partitions`` gives that of each row, from 0 up."""
    if len(partitions) and partitions[0] == partitions.min() == partitions.max():
        return [np.arange(len(partitions))]
    narrow = partitions.max(initial=0) < 2**16
    order = np.argsort(partitions.astype(np.uint16) if narrow else partitions, kind="stable")  # 16 bits: by radix
    return np.split(order, np.flatnonzero(np.diff(partitions[order])) + 1)
