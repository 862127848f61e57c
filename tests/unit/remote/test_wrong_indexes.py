"""Index entries that were wrong when they were uploaded: the right records or an error, no skip."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable

import pytest

from tests.support.remote_face import RemoteFace
from tests.unit.remote.building import FIRST_MS, RemoteLog, batches, offsets, seal
from tiered.errors import CorruptionError
from tiered.plan.read import ReadLimits
from tiered.store.memory import MemoryStore

END = 200
EACH = 10


def made(index: Callable[[bytes], bytes], times: Callable[[bytes], bytes] = bytes, *, sparse: bool) -> RemoteFace:
    """A log of one segment whose bundle was uploaded with these indexes."""
    parts = batches(0, END, each=EACH)
    if sparse:
        del parts[7:9]
    segment = seal(parts)
    indexes = segment.sealed_indexes
    segment.sealed_indexes = dataclasses.replace(
        indexes, offset_index=index(indexes.offset_index), time_index=times(indexes.time_index)
    )
    log = RemoteLog(MemoryStore())
    log.add(segment)
    limits = ReadLimits(unindexed_bytes=0)  # the index is asked, however small the segment is
    return RemoteFace(log.store, log.topic, log.topic_id, log.partition, limits=limits)


def moved(entry: int, by: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        at = entry * 8 + 4
        (position,) = struct.unpack_from(">i", data, at)
        struct.pack_into(">i", changed, at, position + by)
        return bytes(changed)

    return change


def later(data: bytes) -> bytes:
    """The second entry points where the third does."""
    return data[:12] + data[20:24] + data[16:]


def named(data: bytes) -> bytes:
    """The second time is said to be that of a later batch."""
    entries = list(struct.iter_unpack(">qi", data))
    return b"".join(struct.pack(">qi", *entry) for entry in (entries[0], (entries[1][0], entries[3][1]), *entries[3:]))


@pytest.mark.parametrize("change", [moved(2, 5), moved(2, -5), moved(3, 1), later], ids=["+5", "-5", "+1", "later"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_an_offset_entry_that_points_wrong(change: Callable[[bytes], bytes], sparse: bool) -> None:
    right, wrong, refused = made(bytes, sparse=sparse), made(change, sparse=sparse), 0
    for start in (*range(0, END, 20), *range(EACH - 1, END, EACH)):
        for end in (start + 1, start + 40, None):
            try:
                assert offsets(wrong.read_batches(start, end)) == offsets(right.read_batches(start, end))
            except CorruptionError:
                refused += 1
    assert refused


@pytest.mark.parametrize("changes", [(later, bytes), (bytes, named)], ids=["offsets", "times"])
def test_a_time_is_not_found_elsewhere(changes: tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]) -> None:
    right, wrong, refused = made(bytes, sparse=True), made(*changes, sparse=True), 0
    for stamp in range(FIRST_MS, FIRST_MS + END * 10, 30):
        try:
            assert wrong.offset_for_time(stamp) == right.offset_for_time(stamp)
        except CorruptionError:
            refused += 1
    assert refused
