"""Pieces of a segment, cut anywhere, become the batches that were written."""

from __future__ import annotations

import itertools
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.remote.building import batches
from tiered.errors import CorruptionError
from tiered.format.batch import read_header
from tiered.format.batch_scanner import BatchRun
from tiered.format.codecs import Codec, compress
from tiered.format.kernels import crc32c
from tiered.model import Row, TopicPartition
from tiered.remote.assembly import SegmentDiffers, SegmentScan

TP = TopicPartition("flights", 0)
PARTS = batches(0, 60)
DATA = b"".join(PARTS)
MAX_TS = read_header(PARTS[-1]).max_timestamp


def row(size: int = len(DATA), end: int = 60) -> Row:
    return Row(0, end, 0, MAX_TS, size, crc32c(DATA), 0, 1, 0, 1, 60, 0, 0)


def scan(start: int = 0, end: int = 60, *, position: int = 0, size: int = len(DATA)) -> SegmentScan:
    return SegmentScan(TP, "key.log", row(size), position=position, start=start, end=end)


@given(st.lists(st.integers(0, len(DATA)), max_size=12), st.integers(0, 59), st.integers(1, 60))
def test_wherever_the_pieces_are_cut(cuts: list[int], start: int, length: int) -> None:
    end = min(start + length, 60)
    edges = [0, *sorted(cuts), len(DATA)]
    reader = scan(start, end)
    found = [bytes(batch) for low, high in itertools.pairwise(edges) for _, batch in reader.feed(DATA[low:high])]
    reader.finish()
    assert found == PARTS[start // 10 : (end - 1) // 10 + 1]
    assert reader.done
    assert reader.next_offset == ((end - 1) // 10 + 1) * 10


@given(st.lists(st.integers(0, len(DATA)), max_size=12), st.integers(0, 5), st.integers(12, 15), st.integers(1, 60))
def test_what_no_batch_sums_is_missed_by_the_sum_of_all_wherever_it_is_cut(
    cuts: list[int], batch: int, place: int, end: int
) -> None:
    """A leader epoch that is another one: no CRC of a batch covers it. Pieces behind the wanted end count, too."""
    data = bytearray(DATA)
    data[sum(map(len, PARTS[:batch])) + place] ^= 1
    edges = [0, *sorted(cuts), len(DATA)]
    reader = scan(0, end)
    found = (each for low, high in itertools.pairwise(edges) for each in reader.feed(bytes(data[low:high])))
    with pytest.raises(SegmentDiffers, match="the catalog says"):
        list(found)


def test_the_batch_that_holds_the_first_wanted_offset_comes_by_itself_and_the_rest_as_a_run_to_the_end() -> None:
    reader = scan(15, 35)
    alone, run = reader.runs(DATA)
    assert not isinstance(alone, BatchRun)
    assert isinstance(run, BatchRun)
    assert (alone[0].base_offset, bytes(alone[1])) == (10, PARTS[1])
    assert (bytes(run.data), run.base_offset, run.next_offset) == (b"".join(PARTS[2:4]), 20, 40)
    assert (reader.done, reader.next_offset) == (True, 40)


def test_a_run_ends_before_damage_which_is_told_after_it() -> None:
    data = bytearray(DATA)
    data[len(PARTS[0]) + len(PARTS[1]) + 80] ^= 1
    # Of less than the whole segment: the checksum of the whole is not known.
    reader = SegmentScan(TP, "key.log", row()._replace(size=len(DATA) + 1), position=0, start=0, end=60)
    found = reader.runs(bytes(data))
    run = next(found)
    assert isinstance(run, BatchRun)
    assert (bytes(run.data), run.next_offset, reader.next_offset) == (b"".join(PARTS[:2]), 20, 20)
    with pytest.raises(CorruptionError) as error:
        next(found)
    assert (error.value.position, error.value.offset) == (len(PARTS[0]) + len(PARTS[1]), 20)


def test_a_run_with_a_timestamp_that_the_catalog_does_not_know_is_damage() -> None:
    found = row()._replace(max_ts=MAX_TS - 1, size=len(DATA) + 1)
    reader = SegmentScan(TP, "key.log", found, position=0, start=0, end=60)
    with pytest.raises(CorruptionError, match=f"has the timestamp {MAX_TS}, the catalog says"):
        list(reader.runs(DATA))


def test_bytes_that_end_before_the_offsets() -> None:
    for cut in (len(DATA) - 1, len(PARTS[0]), len(PARTS[0]) + 5, 3):
        reader = scan()
        list(reader.feed(DATA[:cut]))
        with pytest.raises(CorruptionError, match="the bytes end before offset 60"):
            reader.finish()


def test_records_that_the_catalog_counts_and_the_bytes_lack() -> None:
    reader = SegmentScan(TP, "key.log", row(end=61)._replace(records=61), position=0, start=0, end=61)
    assert len(list(reader.feed(DATA))) == 6
    with pytest.raises(CorruptionError, match="offsets 60 to 61 are missing") as error:
        reader.finish()
    assert (error.value.position, error.value.offset) == (len(DATA), 60)


@pytest.mark.parametrize("left_out", [0, 2])
def test_offsets_that_are_left_out_where_the_catalog_counts_a_record_for_each(left_out: int) -> None:
    """Told at the batch behind them: the bytes of a read need not come to the end, where the checksum would tell."""
    pieces = b"".join(PARTS[at] for at in range(4) if at != left_out)
    found = []
    with pytest.raises(CorruptionError, match=f"offsets {left_out * 10} to {left_out * 10 + 10} are missing") as error:
        found += [header.base_offset for header, _ in scan(0, 40).feed(pieces)]
    assert (error.value.position, error.value.offset) == (left_out * len(PARTS[0]), left_out * 10)
    sparse = SegmentScan(TP, "key.log", row()._replace(records=50), position=0, start=0, end=40)
    assert [header.base_offset for header, _ in sparse.feed(pieces)] == [at * 10 for at in range(4) if at != left_out]


def old_message(last_offset: int, count: int) -> bytes:
    """A compressed v1 message of ``count`` records: it says only where it ends."""
    inner = b"".join(_message(at, b"v", 0) for at in range(count))
    return _message(last_offset, compress(Codec.GZIP, inner), Codec.GZIP)


def _message(offset: int, value: bytes, attributes: int) -> bytes:
    body = struct.pack(">bbqii", 1, attributes, 1000, -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def old_scan(data: bytes, records: int) -> SegmentScan:
    found = Row(0, 10, 0, 1000, len(data), crc32c(data), 0, 1, 0, 1, records, 0, 0)
    return SegmentScan(TP, "key.log", found, position=0, start=0, end=10)


def test_old_messages_are_held_to_the_offsets_inside_of_them() -> None:
    good = old_message(3, 4) + old_message(9, 6)
    assert [header.base_offset for header, _ in old_scan(good, 10).feed(good)] == [0, 4]
    missing = old_message(3, 4) + old_message(9, 5)
    with pytest.raises(CorruptionError, match="offsets 4 to 5 are missing"):
        list(old_scan(missing, 10).feed(missing))
    assert [header.base_offset for header, _ in old_scan(missing, 9).feed(missing)] == [0, 5]
    twice = old_message(3, 4) + old_message(9, 7)
    with pytest.raises(CorruptionError, match="offsets 3 to 9 stands where 4 to 9 are expected") as error:
        list(old_scan(twice, 10).feed(twice))
    assert error.value.position == len(old_message(3, 4))


def test_a_base_offset_that_rotted_beyond_the_wanted_end_does_not_end_the_read() -> None:
    """The segment has gaps: the batch after it proves that no offsets were left out."""
    damaged = bytearray(DATA)
    struct.pack_into(">q", damaged, 2 * len(PARTS[0]), 45)
    reader = SegmentScan(TP, "key.log", row()._replace(records=59), position=0, start=0, end=30)
    found = []
    with pytest.raises(CorruptionError, match="offsets 30 to 39 stands where 55 to 59 are expected"):
        found += [header.base_offset for header, _ in reader.feed(damaged)]
    assert not reader.done
    whole = SegmentScan(TP, "key.log", row()._replace(records=59), position=0, start=0, end=30)
    assert [header.base_offset for header, _ in whole.feed(DATA)] == [0, 10, 20]
    assert whole.done


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1, len(DATA)])
def test_a_hostile_length_is_refused_before_anything_is_held(length: int) -> None:
    data = bytearray(DATA)
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptionError) as error:
        list(scan().feed(bytes(data)))
    assert (error.value.position, error.value.path_or_key) == (0, "key.log")


def test_a_batch_larger_than_a_reader_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.remote.assembly.MAX_BATCH_BYTES", 100)
    with pytest.raises(CorruptionError, match="larger than a reader accepts"):
        list(scan().feed(DATA))
