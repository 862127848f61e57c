"""Our dump of files against what Kafka's own tool printed of the same files: line for line, byte for byte."""

from __future__ import annotations

import gzip
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.fixtures import ARCHIVE
from tests.support.kafka_dump import print_as_kafka

ODD_ARCHIVE = ARCHIVE.with_name("dump-tool.tar.gz")

SEGMENT_FILE = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)")
BLOCK = re.compile(
    r"(?=^(?:Mismatches in|Found timestamp mismatch in|Found out of order|Non-consecutive))", re.MULTILINE
)
CONTROLLER_RECORD = re.compile(
    r"(?<= )(LeaderChange:|SnapshotHeader|SnapshotFooter|KRaftVersion|KRaftVoters) \{.*$", re.MULTILINE
)
"""The fields of records that only Kafka's controllers write are not decoded here."""
DUMPS = 73
"""Stored outputs that are compared; the others decode whole records, which ``test_coordinators`` compares."""
LINES = 16727
ODD_RUNS = 16


def expected_dumps(fixtures: Path) -> list[Path]:
    """All stored outputs of Kafka's tool that ours prints, too."""
    return sorted((fixtures / "expected").rglob("*.dump.txt.gz"))


def blocks(text: str) -> list[str]:
    """What stands at the end: by file, in an order that a hash table of Kafka's chose."""
    return sorted(block for block in BLOCK.split(text) if block)


def test_every_dump_is_the_same(kafka_fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = lines = 0
    for path in expected_dumps(kafka_fixtures):
        root = kafka_fixtures / path.parent.relative_to(kafka_fixtures / "expected")
        partition = path.name.split(".")[0]
        monkeypatch.chdir(root)
        files = sorted(f"{partition}/{file.name}" for file in (root / partition).iterdir())
        files = [file for file in files if SEGMENT_FILE.fullmatch(Path(file).name)]
        code, printed, errors = print_as_kafka("--print-data-log", "--deep-iteration", *files)
        expected = CONTROLLER_RECORD.sub(r"\1", gzip.decompress(path.read_bytes()).decode())
        assert printed.split("\n") == expected[: len(printed)].split("\n"), path
        assert blocks(errors) == blocks(expected[len(printed) :]), path
        # One index was zeroed by hand, and the broker left it so.
        assert code == (13 if path.name.startswith("u-old-index-zeroed") and "damaged" in str(path) else 0), path
        compared, lines = compared + 1, lines + expected.count("\n")
    assert (compared, lines) == (DUMPS, LINES)


def odd_runs(directory: Path) -> Iterator[tuple[list[str], str]]:
    """Arguments and output of each run of Kafka's tool over the files that no broker of today would write."""
    with tarfile.open(ODD_ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    text = (directory / "output.txt").read_bytes().decode()
    for part in text.split("$ ")[1:]:
        arguments, _, output = part.partition("\n")
        if "decoder" not in arguments:
            yield arguments.split(" "), CONTROLLER_RECORD.sub(r"\1", output).replace(" UNKNOWN(9)", " UNKNOWN")


def test_old_formats_and_every_kind_of_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """v0 and v1 messages, every control record, broken UTF-8."""
    monkeypatch.chdir(tmp_path)
    runs = list(odd_runs(tmp_path))
    for (name, *flags), expected in runs:
        code, printed, _ = print_as_kafka(*flags, name)
        assert printed.split("\n") == expected.split("\n"), (name, flags)
        assert code == (13 if name.startswith("legacybad") else 0)
    assert len(runs) == ODD_RUNS
