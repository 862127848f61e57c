"""A marker that a reader of committed records refuses is a finding, on the disk and in a bucket."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.support.admin import check
from tiered.check.findings import Findings
from tiered.check.inspection import Expectations, LogInspection
from tiered.errors import CorruptionError
from tiered.format.batch import BatchProducer, encode_batch
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.sealed import FileSource
from tiered.model import NewRecord
from tiered.reader import open_reader

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


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize(("key", "value", "why"), REFUSED)
def test_a_refused_marker_is_found_in_whatever_is_fed(
    tmp_path: Path, key: bytes | None, value: bytes | None, why: str, decode: bool
) -> None:
    """The bytes of a file and of an object: with or without a look into every record."""
    path, findings = made(tmp_path, key, value), Findings("object")
    source = FileSource(PosixFiles(), path, path.stat().st_size, sync=False)
    LogInspection(source.size, 0, findings, Expectations(decode=decode)).feed_all(source)
    source.close()
    assert [(item.code, item.offset, why in item.message) for item in findings.items] == [("record", 3, True)]


@pytest.mark.parametrize(("key", "value"), READ)
def test_a_marker_that_is_read_is_no_finding(tmp_path: Path, key: bytes, value: bytes) -> None:
    made(tmp_path, key, value)
    committed(tmp_path)
    assert [item for item in check(tmp_path, None).findings if item.code == "record"] == []
    assert check(tmp_path, None).exit_code == 0
