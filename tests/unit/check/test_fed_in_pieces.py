"""An inspection says the same however its bytes are cut, and holds no more of them than it needs."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tiered.check.findings import Finding, Findings
from tiered.check.inspection import BatchFeed, Expectations, LogInspection, LogScan
from tiered.format.batch import encode_batch
from tiered.format.kernels import crc32c
from tiered.model import NewRecord, SealedIndexes
from tiered.plan.side_files import Follower

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
