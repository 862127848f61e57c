"""Inspection of the bytes of a segment: however they are cut, every record, and markers that a reader refuses."""

from __future__ import annotations

import struct
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.admin import check
from tests.unit.format.twins import each_twin  # noqa: F401 - the fixture
from tiered.check.findings import Finding, Findings
from tiered.check.inspection import BatchFeed, Expectations, LogInspection, LogScan
from tiered.errors import CorruptionError
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.codecs import Codec, compress
from tiered.format.kernels import crc32c
from tiered.format.pure_kernels import encode_record_at
from tiered.model import NewRecord, SealedIndexes, TimestampType
from tiered.plan.side_files import Follower
from tiered.reader import open_reader

RECORDS = [[NewRecord(b"%d" % n * size, None, 1_000 + n) for n in range(3)] for size in (1, 400, 30, 2_000, 5)]
BATCHES = [bytes(encode_batch(records, base_offset=3 * n)) for n, records in enumerate(RECORDS)]
WHOLE = b"".join(BATCHES)
FLIPPED = WHOLE[:200] + bytes([WHOLE[200] ^ 1]) + WHOLE[201:]

LOGS = {
    "empty": b"",
    "whole": WHOLE,
    "a wrong CRC": FLIPPED,
    "torn in a header": WHOLE + BATCHES[1][:12],
    "torn in a batch": WHOLE + BATCHES[3][:1_000],
    "zeros": WHOLE + bytes(700),
    "few zeros": WHOLE + bytes(5),
    "garbage": WHOLE + b"x" * 300,
    "garbage behind zeros": WHOLE + bytes(300) + b"x",
    "a gap": b"".join(BATCHES[:2] + BATCHES[3:]),
    "out of order": BATCHES[0] + BATCHES[3] + BATCHES[1],
    "a length beyond the end": WHOLE + BATCHES[0][:8] + (1 << 28).to_bytes(4, "big") + BATCHES[0][12:],
}


def inspected(data: bytes, piece_bytes: int) -> tuple[LogScan, list[Finding]]:
    findings = Findings("log")
    indexes = SealedIndexes(b"", b"", b"", b"")
    expected = Expectations(contiguous=True, decode=True)
    look = LogInspection(len(data), 0, findings, expected, indexes=indexes, follower=Follower(whole=True))
    for start in range(0, len(data), piece_bytes):
        look.feed(data[start : start + piece_bytes])
    return look.end(), findings.items


@pytest.mark.parametrize("name", LOGS)
def test_the_pieces_do_not_matter(name: str) -> None:
    data = LOGS[name]
    scan, findings = inspected(data, max(len(data), 1))
    assert (scan.crc32c, scan.size_bytes) == (crc32c(data), len(data))
    assert bool(findings) is (name not in ("empty", "whole"))
    for piece_bytes in (1, 7, 16, 17, 18, 61, 300, 4_096):
        cut, same = inspected(data, piece_bytes)
        assert (asdict(cut), same) == (asdict(scan), findings), piece_bytes


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("zeros", ["log_torn"]),
        ("torn in a header", ["log_torn"]),
        ("garbage", ["log_structure"]),
        ("garbage behind zeros", ["log_structure"]),
        ("a wrong CRC", ["log_crc"]),
        ("a gap", ["log_gap"]),
        ("out of order", ["log_gap", "log_order"]),
        ("a length beyond the end", ["log_torn"]),
    ],
)
def test_what_is_found(name: str, codes: list[str]) -> None:
    assert [finding.code for finding in inspected(LOGS[name], 100)[1]] == codes


def test_nothing_is_held_of_a_tail_that_no_batch_can_fill() -> None:
    data = LOGS["a length beyond the end"]
    feed = BatchFeed(len(data) + 1_000_000)
    assert len(list(feed.feed(data))) == len(BATCHES)
    assert feed.done
    for _ in range(10):
        assert list(feed.feed(bytes(100_000))) == []
    assert feed._held == []


TIMES = (1_700_000_000_500, 1_700_000_000_100, 1_700_000_000_900)
TIMED = [NewRecord(b"v", b"k", time) for time in TIMES]


def batch_of(payload: bytes, codec: Codec = Codec.NONE) -> bytes:
    """Three offsets from 10 on, ``payload`` as their records, and a CRC that is right."""
    made = bytearray(encode_batch(TIMED, base_offset=10, codec=codec)[:61]) + compress(codec, payload)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def at(*deltas: int) -> bytes:
    times = [time - TIMES[0] for time in TIMES]
    return b"".join(encode_record_at(delta, time, b"k", b"v", ()) for delta, time in zip(deltas, times, strict=True))


def looked_at(batch: bytes) -> tuple[int, list[tuple[str, str, int, int]]]:
    findings = Findings("log")
    scan = LogInspection(len(batch), 10, findings, Expectations(decode=True))
    scan.feed(batch)
    end = scan.end()
    return end.min_timestamp, [(each.code, each.message, each.position, each.offset) for each in findings.items]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_all_records_are_looked_at(codec: Codec) -> None:
    assert looked_at(batch_of(at(0, 1, 2), codec)) == (TIMES[1], [])
    for deltas, offset in [((0, 1, 3), 13), ((0, 9, 2), 19), ((-1, 1, 2), 9)]:
        least, (found,) = looked_at(batch_of(at(*deltas), codec))
        assert (least, found) == (TIMES[1], ("record", f"a record has offset {offset} outside its batch", 0, -1))
    least, (found,) = looked_at(batch_of(at(0, 1, 2) + b"behind", codec))
    assert (least, found) == (TIMES[1], ("record", "6 bytes are left after 3 records", 0, 10))
    least, (found,) = looked_at(batch_of(at(0, 1, 2)[:-1], codec))
    assert (least, found[0], found[2:]) == (TIMES[1], "record", (0, 10))


def test_the_time_of_an_append_is_that_of_all_its_records() -> None:
    batch = encode_batch(TIMED, base_offset=10, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=7)
    assert looked_at(batch) == (7, [])


COMMIT, EPOCH = struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 7)
REFUSED = [
    (b"", EPOCH, "no type in its key"),
    (COMMIT[:3], EPOCH, "no type in its key"),
    (None, EPOCH, "no type in its key"),
    (struct.pack(">hh", -1, 1), EPOCH, "key version -1"),
    (COMMIT, EPOCH[:5], "no coordinator epoch"),
    (COMMIT, None, "no coordinator epoch"),
    (COMMIT, struct.pack(">hi", -1, 7), "value version -1"),
]
READ = [(COMMIT, EPOCH), (struct.pack(">hh", 0, 99), EPOCH), (struct.pack(">hh", 3, 1), EPOCH + b"more")]


def made(directory: Path, key: bytes | None, value: bytes | None) -> Path:
    """A log of three records of a transaction, and its marker at offset 3; its file."""
    folder = directory / "t-0"
    folder.mkdir(parents=True)
    (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAEAAAAAAAAAAQ\n")
    records = [NewRecord(b"v", b"k", 1_000 + number) for number in range(3)]
    data = encode_batch(records, leader_epoch=0, producer=BatchProducer(5, 0, 0, transactional=True))
    data += encode_batch(
        [NewRecord(value, key, 2_000)],
        base_offset=3,
        leader_epoch=0,
        producer=BatchProducer(5, 0, -1, transactional=True, control=True),
    )
    path = folder / "00000000000000000000.log"
    path.write_bytes(data)
    return path


def committed(directory: Path) -> int:
    with open_reader(log_dir=directory) as reader:
        return len(list(reader.topic("t").read(isolation="read_committed")))


@pytest.mark.parametrize(("key", "value", "why"), REFUSED)
def test_a_refused_marker_is_found(tmp_path: Path, key: bytes | None, value: bytes | None, why: str) -> None:
    path = made(tmp_path, key, value)
    with pytest.raises(CorruptionError, match=why):
        committed(tmp_path)
    (found,) = [item for item in check(tmp_path, None).findings if item.code == "record"]
    assert (why in found.message, found.offset, found.position) == (True, 3, path.stat().st_size - found_size(path))
    assert check(tmp_path, None).exit_code == 13


def found_size(path: Path) -> int:
    """Bytes of the marker's batch: all after the first one."""
    data = path.read_bytes()
    return len(data) - 12 - int.from_bytes(data[8:12], "big")


@pytest.mark.parametrize(("key", "value"), READ)
def test_a_marker_that_is_read_is_no_finding(tmp_path: Path, key: bytes, value: bytes) -> None:
    made(tmp_path, key, value)
    committed(tmp_path)
    assert [item for item in check(tmp_path, None).findings if item.code == "record"] == []
    assert check(tmp_path, None).exit_code == 0
