"""The published format 1: a reader that shares no code with the writer finds all records, and so does the product."""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.golden import plain_reader
from tests.golden.release import ARCHIVE, GROUPS, records
from tiered.cli.main import run
from tiered.group.member import GroupSettings
from tiered.model import TopicPartition


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("format-1"))


def unpacked(folder: Path, path: Path = ARCHIVE) -> Path:
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def expected(release: Path) -> Any:
    return json.loads((release / "records.json").read_text())


def by_level(found: Iterator[tuple[str, int, list[plain_reader.Batch]]]) -> dict[str, dict[str, list[Any]]]:
    return {
        name: {
            level: [as_json(record) for record in plain_reader.visible(batches, start, committed=committed)]
            for level, committed in (("read_uncommitted", False), ("read_committed", True))
        }
        for name, start, batches in found
    }


def as_json(record: Any) -> list[Any]:
    offset, timestamp, key, value, headers = record
    return [offset, timestamp, text(key), text(value), [[name, text(content)] for name, content in headers]]


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def test_a_foreign_reader_finds_all_records_of_the_bucket(release: Path, expected: Any) -> None:
    assert by_level(plain_reader.bucket_partitions(release / "bucket")) == expected["bucket"]


def test_a_foreign_reader_finds_all_records_of_the_disk(release: Path, expected: Any) -> None:
    assert by_level(plain_reader.disk_partitions(release / "log")) == expected["log"]


def test_this_release_finds_all_records(release: Path, expected: Any) -> None:
    assert records(tiered.open_reader(f"file://{release / 'bucket'}")) == expected["bucket"]
    assert records(tiered.open_reader(log_dir=release / "log")) == expected["log"]


def test_this_release_checks_and_writes_on(tmp_path: Path) -> None:
    release = unpacked(tmp_path)
    remote = f"file://{release / 'bucket'}"
    assert run(["check", "--remote", remote, "--read-data"]) == 0
    with tiered.open(release / "log", remote=remote) as log:
        receipt = log.topic("shapes").append(b"of a later release")
        log.sync()
    with tiered.open_reader(remote) as reader:
        assert [each.value for each in reader.topic("shapes").read(0)][-1] == b"of a later release"
        assert receipt.offset == 3


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return unpacked(tmp_path, GROUPS)


def test_a_foreign_reader_finds_owners_and_positions_of_groups(groups: Path) -> None:
    expected = json.loads((groups / "groups.json").read_text())
    assert plain_reader.groups(groups / "bucket") == expected["bucket"]
    assert plain_reader.copied_positions(groups / "bucket") == expected["copies"]


def test_this_release_restores_the_positions_of_a_log(groups: Path, tmp_path: Path) -> None:
    directory = tmp_path / "restored"
    assert run(["restore", "--remote", f"file://{groups / 'bucket'}", "--log-dir", str(directory)]) == 0
    with tiered.open(directory) as log, log.consumer("reports", "orders") as consumer:
        found = consumer.committed()[TopicPartition("orders", 1)]
        assert (found.offset, found.metadata) == (7, "of the log")


def test_this_release_goes_on_at_the_positions_of_groups(groups: Path) -> None:
    expected = json.loads((groups / "groups.json").read_text())["bucket"]
    times = GroupSettings(heartbeat_ms=100, lease_ms=300)  # the member in the archive never beats again
    with tiered.open_reader(f"file://{groups / 'bucket'}") as reader:
        with reader.consumer("left & gone", "orders", stop_at="end") as consumer:
            assert list(consumer) == []
        with reader.consumer("billing", "orders", times=times) as consumer:
            unread = {
                (number, offset): b"%d" % (10 * number + offset)
                for number in range(3)
                for offset in range(expected["billing"][f"orders-{number}"][1], 10)
            }
            records = iter(consumer)
            found = [next(records) for _ in unread]
            assert {(record.partition, record.offset): record.value for record in found} == unread
            consumer.commit()
    left = {f"orders-{number}": ["", 10, ""] for number in range(3)}
    assert plain_reader.groups(groups / "bucket") == dict.fromkeys(expected, left)
