"""Directories that a real broker wrote are healthy; those that were damaged by hand are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.care.run import check
from tiered.findings import Severity


@pytest.mark.parametrize(
    "root", ["main", "compact-before", "compact-after2", "unclean-kill/before", "unclean-kill/after"]
)
def test_what_kafka_wrote_is_healthy(kafka_fixtures: Path, root: str) -> None:
    report = check(kafka_fixtures / root, None)
    assert [str(finding) for finding in report.findings if finding.severity is not Severity.INFO] == []
    assert report.local_segments > 1


@pytest.mark.parametrize(
    ("partition", "code", "severity"),
    [
        ("u-flipped-bit-0", "log_crc", Severity.ERROR),
        ("u-torn-0", "log_torn", Severity.INFO),
        ("u-trailing-zeros-0", "log_torn", Severity.INFO),
        ("u-index-truncated-0", "offset_index", Severity.ERROR),
        ("u-old-index-ragged-0", "offset_index", Severity.ERROR),
        ("u-old-index-zeroed-0", "offset_index", Severity.ERROR),
        ("u-timeindex-garbage-0", "time_index", Severity.ERROR),
        ("u-snapshot-bad-0", "producer_snapshot", Severity.WARNING),
    ],
)
def test_what_was_damaged_is_found(kafka_fixtures: Path, partition: str, code: str, severity: Severity) -> None:
    report = check(kafka_fixtures / "unclean-damaged/before", None)
    topic = partition.removesuffix("-0")
    assert (code, severity) in {
        (finding.code, finding.severity) for finding in report.findings if finding.topic == topic
    }
