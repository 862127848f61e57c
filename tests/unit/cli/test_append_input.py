"""What ``append`` says of input that it cannot take, and of input that is not there."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.cli import append


def test_a_csv_without_a_header_is_nothing_to_do(cli: Cli, tmp_path: Path) -> None:
    line = ("append", "t", "--log-dir", tmp_path / "d", "--create", "--format", "csv")
    empty = cli(*line, "--json")
    assert (empty.code, empty.summary["exit_code"], empty.summary["records"]) == (4, 4, 0)
    assert "warning: the input is empty" in empty.err
    assert cli(*line, stdin=b"a,b\n").code == 0
    assert cli("append", "t", "--log-dir", tmp_path / "d").code == 0


def test_a_bucket_in_memory_is_said_to_keep_nothing(cli: Cli, tmp_path: Path) -> None:
    done = cli("append", "t", "--create", "--log-dir", tmp_path / "d", "--remote", "memory://m", stdin=b"x\n")
    assert (done.code, "warning: memory://m keeps nothing" in done.err) == (0, True)


def test_a_long_field_of_a_csv_is_a_field(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own limit is 128 KiB, and its error blamed the quotes."""
    line = ("append", "t", "--log-dir", tmp_path / "d", "--create", "--format", "csv")
    text = "x" * 500_000
    done = cli(*line, "--set", "max.message.bytes=1MiB", stdin=f"a,b\n{text},1\n".encode())
    assert (done.code, done.err.count("error:")) == (0, 0)
    with tiered.open_reader(log_dir=tmp_path / "d") as reader:
        (record,) = reader.topic("t").read()
    assert json.loads(record.value or b"") == {"a": text, "b": "1"}
    monkeypatch.setattr("tiered.program.records.MAX_FIELD_CHARS", 1000)
    done = cli(*line, stdin=f"a,b\n{text},1\n".encode())
    assert done.code == 2
    assert "line 2 of the input has a field of more than 1,000 characters" in done.err
    assert "quote" not in done.err


def test_a_record_that_is_refused_is_counted_once(cli: Cli, tmp_path: Path) -> None:
    topic = ["--log-dir", tmp_path / "d"]
    assert cli("topic", "create", "c", *topic, "--set", "cleanup.policy=compact").code == 0
    refused = cli("append", "c", *topic, stdin=b"v\n")
    assert refused.code == 2
    assert "error: record 1 of the input has no key, and the topic is compacted; 0 records" in refused.err


def test_a_full_disk_is_the_error_and_earlier_records_are_counted(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close fails, too. Its error is only a warning."""
    monkeypatch.setattr(append, "CHUNK_RECORDS", 2)
    write, full = os.pwrite, []

    def pwrite(handle: int, data: bytes, position: int) -> int:
        if full or b"the last straw" in bytes(data):
            full.append(handle)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    line = ("append", "t", "--log-dir", tmp_path / "d", "--create", "--partitions", "1")
    seen = cli(*line, stdin=b"1\n2\n3\n4\nthe last straw\n6\n")
    path = tmp_path / "d" / "t-0" / f"{0:020}.log"
    assert seen.code == 75
    assert f"error: cannot write {path}: No space left on device; 4 records of the input were appended\n" in seen.err
    assert f"warning: close_failed path={tmp_path / 'd'} error=" in seen.err
    monkeypatch.setattr(os, "pwrite", write)
    assert cli("cat", "t", "--log-dir", tmp_path / "d").out == b"1\n2\n3\n4\n"


@pytest.mark.parametrize(("form", "text"), [("json", b"{}\n\n"), ("csv", b"a\n1\n\r\n"), ("lines", b"1\n")])
def test_a_record_is_in_the_log_before_more_input_is_waited_for(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, text: bytes
) -> None:
    """Blank lines behind it make no difference, where they are nothing."""
    seen: list[int] = []

    class Slow:
        def read1(self, _size: int, /) -> bytes:
            if not seen:
                seen.append(0)
                return text
            with tiered.open_reader(log_dir=tmp_path / "d") as reader:
                seen.append(len(list(reader.topic("t").read())))
            return b""

    monkeypatch.setattr(append, "_standard_input", lambda _app: Slow())
    assert cli("append", "t", "--log-dir", tmp_path / "d", "--create", "--format", form).code == 0
    assert seen == [0, 1]


@pytest.mark.parametrize(
    ("member", "key"),
    [
        ("0.12345678901234567891", "0.12345678901234567891"),
        ("1.10", "1.10"),
        ("1e999", "1e999"),
        ("-0", "-0"),
        ("12345678901234567890123", "12345678901234567890123"),
        ('"1.10"', "1.10"),
        ("true", "true"),
        ('[1.10, {"\\u00e4": -1E+2, "b": null}, [], "x\\"y"]', '[1.10,{"ä":-1E+2,"b":null},[],"x\\"y"]'),
    ],
)
def test_a_number_is_the_key_that_stands_there(cli: Cli, tmp_path: Path, member: str, key: str) -> None:
    value = f'{{"k": {member}, "t": 1357016400001}}'
    line = ("append", "t", "--log-dir", tmp_path / "d", "--create", "--format", "json", "--key-field", "k")
    assert cli(*line, "--timestamp-field", "t", stdin=value.encode()).code == 0
    (seen,) = cli("cat", "t", "--log-dir", tmp_path / "d", "--json").messages[:-1]
    assert (seen["key"], seen["value"], seen["timestamp"]) == (key, value, 1_357_016_400_001)


@pytest.mark.parametrize("number", ["1.5", "1e400", "-1", "9" * 30, "9" * 5000])
def test_a_number_that_is_no_time_names_its_line(cli: Cli, tmp_path: Path, number: str) -> None:
    line = ("append", "t", "--log-dir", tmp_path / "d", "--create", "--format", "json", "--timestamp-field", "t")
    seen = cli(*line, stdin=b'{"t": %s}' % number.encode())
    assert (seen.code, "line 1 of the input has a bad 't'" in seen.err) == (2, True)


def test_a_key_that_is_too_deep_names_its_line(cli: Cli, tmp_path: Path) -> None:
    line = ("append", "t", "--log-dir", tmp_path / "d", "--create", "--format", "json", "--key-field", "k")
    seen = cli(*line, stdin=b'{"k": ' + b"[" * 900 + b"]" * 900 + b"}")
    assert (seen.code, "line 1 of the input" in seen.err) == (2, True)
