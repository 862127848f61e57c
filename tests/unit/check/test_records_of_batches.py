"""A look at every record of a segment: the least timestamp, offsets outside their batch, bytes that are no record."""

from __future__ import annotations

import struct

import pytest

from tests.unit.format.twins import each_twin  # noqa: F401 - the fixture
from tiered.check.findings import Findings
from tiered.check.inspection import Expectations, LogInspection
from tiered.format.batch import encode_batch
from tiered.format.codecs import Codec, compress
from tiered.format.kernels import crc32c
from tiered.format.pure_kernels import encode_record_at
from tiered.model import NewRecord, TimestampType

TIMES = (1_700_000_000_500, 1_700_000_000_100, 1_700_000_000_900)
RECORDS = [NewRecord(b"v", b"k", time) for time in TIMES]


def batch_of(payload: bytes, codec: Codec = Codec.NONE) -> bytes:
    """Three offsets from 10 on, ``payload`` as their records, and a CRC that is right."""
    made = bytearray(encode_batch(RECORDS, base_offset=10, codec=codec)[:61]) + compress(codec, payload)
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
    batch = encode_batch(RECORDS, base_offset=10, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=7)
    assert looked_at(batch) == (7, [])
