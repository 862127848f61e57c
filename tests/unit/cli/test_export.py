"""``tiered export`` and ``tiered completion``."""

from __future__ import annotations

import csv
import errno
import io
import json
import tarfile
from pathlib import Path

import pyarrow.parquet
import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.cli import export
from tiered.model import NewRecord
from tiered.testing.clock import START_MS


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, str]:
    """Two partitions of ten records, in the bucket and on the disk; one key is binary, one value null."""
    with tiered.open(tmp_path / "log", f"file://{tmp_path / 'bucket'}") as log:
        topic = log.topic("t", partitions=2, create=True)
        for partition in (0, 1):
            records = [NewRecord(b"v%d" % at, b"k%d" % at, START_MS + at, [("h", b"x")]) for at in range(8)]
            records += [NewRecord(None, b"gone", START_MS + 8), NewRecord(b"v9", b"\xff", START_MS + 9)]
            topic.append_many(records, partition=partition)
        log.sync(timeout=60)
    return "--log-dir", str(tmp_path / "log")


def test_all_formats_have_the_same_records(cli: Cli, place: tuple[str, str], tmp_path: Path) -> None:
    for name in ("t.parquet", "t.csv", "t.jsonl"):
        done = cli("export", "t", tmp_path / name, *place, "--json")
        assert (done.code, done.summary["records"]) == (0, 20)
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert lines == cli("cat", "t", *place, "--json").messages[:-1]
    expected = [(0, at) for at in range(10)] + [(1, at) for at in range(10)]
    assert [(int(row["partition"]), int(row["offset"])) for row in rows] == expected
    assert list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)) == expected
    assert (rows[0]["key"], rows[0]["value"], rows[0]["headers"], rows[0]["encoding"]) == (
        "k0",
        "v0",
        '[["h", "x"]]',
        "utf-8",
    )
    assert (rows[8]["value"], rows[9]["key"], json.loads(rows[9]["encoding"])["key"]) == ("", "/w==", "base64")
    assert (table["value"][8].as_py(), table["key"][9].as_py()) == (None, b"\xff")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("words", "name"),
    [(("export", "t"), "t.csv"), (("check", "--metrics"), "check.prom"), (("doctor", "--bundle"), "report.tar.gz")],
)
def test_a_full_disk_names_the_file_and_leaves_no_part_of_it(
    cli: Cli, place: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str], name: str
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    before = sorted(tmp_path.iterdir())
    failed = cli(*words, tmp_path / name, *place)
    assert (failed.code, sorted(tmp_path.iterdir())) == (75, before)
    assert str(tmp_path / name) in failed.err


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.jsonl"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", "3", "--to", "5"), 2),
        (("--from", f"s@{START_MS + 7}", "--limit", "2"), 2),
        (("--limit", "0"), 0),
        (("--from", "end"), 0),
    ],
)
def test_a_part(
    cli: Cli, place: tuple[str, str], tmp_path: Path, name: str, options: tuple[str, ...], expected: int
) -> None:
    done = cli("export", "t:1", tmp_path / name, *options, *place, "--json")
    assert (done.code, done.summary["records"]) == (0, expected)
    if name == "t.parquet":
        assert pyarrow.parquet.read_table(tmp_path / name).num_rows == expected


def test_a_file_is_replaced_after_a_yes_and_only_by_a_whole_one(
    cli: Cli, place: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t.csv"
    target.write_text("older")
    assert cli("export", "t", target, *place).code == 2

    def broken(file: io.BytesIO, *_: object, **__: object) -> int:
        file.write(b"half")
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(export, "_write_lines", broken)
    assert cli("export", "t", target, *place, "--yes").code == 75
    assert target.read_text() == "older"
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli("export", "t", target, *place, "--yes").code == 0
    assert target.read_text().startswith("topic,partition,offset,")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bucket", "log", "t.csv"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_both_programs(cli: Cli, shell: str) -> None:
    done = cli("completion", shell)
    assert done.code == 0
    for variable in ("_TIERED_COMPLETE=", "_TIERED_UPLOADER_COMPLETE="):
        assert f"{variable}{shell}_complete" in done.text
