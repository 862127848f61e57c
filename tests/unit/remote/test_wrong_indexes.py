"""Index entries that were wrong when they were uploaded, and base offsets that rotted: a scan or an error, no skip."""

from __future__ import annotations

import dataclasses
import logging
import struct
from collections.abc import Callable

import pytest

from tests.support.remote_face import RemoteFace
from tests.unit.remote.building import FIRST_MS, RemoteLog, batches, offsets, seal
from tiered.errors import CorruptionError
from tiered.format.keys import segment_key
from tiered.model import TopicPartition
from tiered.plan.read import ReadLimits
from tiered.remote.assembly import SegmentScan
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


@pytest.mark.parametrize(
    "change",
    [moved(2, 5), moved(2, -5), moved(3, 1), later],
    ids=["third by 5", "third by -5", "fourth by 1", "second at third"],
)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_an_entry_that_points_wrong_costs_a_scan(
    change: Callable[[bytes], bytes], sparse: bool, caplog: pytest.LogCaptureFixture
) -> None:
    right = made(bytes, sparse=sparse)
    doubted = 0
    for start in (*range(0, END, 20), *range(EACH - 1, END, EACH)):
        for end in (start + 1, start + 40, None):
            wrong = made(change, sparse=sparse)
            assert offsets(wrong.read_batches(start, end)) == offsets(right.read_batches(start, end))
            doubted += "index_wrong" in caplog.text
            caplog.clear()
    assert doubted


def test_times_are_found_by_a_wrong_offset_index(caplog: pytest.LogCaptureFixture) -> None:
    right = made(bytes, sparse=True)
    for at in range(0, END, 3):
        stamp = FIRST_MS + at * 10
        assert made(later, sparse=True).offset_for_time(stamp) == right.offset_for_time(stamp)


def test_a_time_entry_that_names_a_later_offset_skips_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def change(data: bytes) -> bytes:
        entries = list(struct.iter_unpack(">qi", data))
        entries[1] = entries[1][0], entries[3][1]
        return b"".join(struct.pack(">qi", *entry) for entry in (entries[0], entries[1], *entries[3:]))

    right = made(bytes, sparse=False)
    with caplog.at_level(logging.WARNING):
        for at in range(0, END, 3):
            stamp = FIRST_MS + at * 10
            assert made(bytes, change, sparse=False).offset_for_time(stamp) == right.offset_for_time(stamp)
    assert "time_index_wrong" in caplog.text


def read_all(scan: SegmentScan, data: bytes) -> None:
    list(scan.feed(data))
    scan.finish()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("new", [55, 95, 5000, 3], ids=str)
def test_a_base_offset_that_rotted_ends_no_read_early(sparse: bool, new: int) -> None:
    """Also where it hides the rest of what was asked for behind the end of the range."""
    parts = batches(0, END, each=EACH)
    if sparse:
        del parts[12]
    row = RemoteLog(MemoryStore()).add(seal(parts))
    data = bytearray(b"".join(parts))
    struct.pack_into(">q", data, sum(map(len, parts[:4])), new)
    key = segment_key(seal(parts).descriptor.topic_id, 0, row)
    for end in (END, 50):
        scan = SegmentScan(TopicPartition("flights", 0), key, row, position=0, start=0, end=end)
        with pytest.raises(CorruptionError):
            read_all(scan, bytes(data))
