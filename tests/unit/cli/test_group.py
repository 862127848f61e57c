"""``tiered group``, and the lag of groups in ``status`` and ``metrics``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiered
from tiered.cli.main import run


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tiered.open(tmp_path / "data") as log:
        log.topic("t", create=True, partitions=2).append_many([b"x"] * 10, partition=0)
        with log.consumer("billing", "t") as consumer:
            consumer.poll(4)
            consumer.commit()
    return tmp_path / "data"


def result(capsys: pytest.CaptureFixture[str], directory: Path, *line: str) -> dict[str, object]:
    assert run([*line, "--log-dir", str(directory), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def positions(capsys: pytest.CaptureFixture[str], directory: Path) -> list[tuple[int, int, int]]:
    shown = result(capsys, directory, "group", "show", "billing")["positions"]
    assert isinstance(shown, list)
    return [(each["partition"], each["position"], each["lag_records"]) for each in shown]


def test_a_group_is_listed_shown_reset_and_deleted(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    listed = result(capsys, directory, "group", "list")["groups"]
    assert listed == [{"group": "billing", "where": "log", "partitions": 1, "lag_records": 6}]
    assert positions(capsys, directory) == [(0, 4, 6)]
    result(capsys, directory, "group", "reset", "billing", "t:0", "--to", "7", "--dry-run")
    assert positions(capsys, directory) == [(0, 4, 6)]
    for to, expected in (("7", 7), ("beginning", 0), ("end", 10), ("-1h", 0), ("+1h", 10)):
        result(capsys, directory, "group", "reset", "billing", "t:0", "--to", to, "--yes")
        assert positions(capsys, directory) == [(0, expected, 10 - expected)]
    with tiered.open(directory) as log, log.consumer("billing", "t", stop_at="end") as consumer:
        assert list(consumer) == []
    result(capsys, directory, "group", "delete", "billing", "--yes")
    assert result(capsys, directory, "group", "list")["groups"] == []


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (("show", "nosuch"), 10, "has committed no position here"),
        (("delete", "nosuch", "--yes"), 10, "has committed no position here"),
        (("reset", "billing", "t:0", "--to", "11", "--yes"), 2, "t-0 has no offset 11"),
        (("reset", "billing", "u", "--to", "end", "--yes"), 10, "there is no topic 'u'"),
        (("reset", "billing", "t", "--to", "x", "--yes"), 2, "2013-01-01, -3d or s@TIME\n"),
        (("reset", "", "t", "--to", "end", "--yes"), 2, "group is empty"),
        (("reset", "billing", "t:9", "--to", "end", "--yes"), 10, "no partition t:9 here"),
    ],
)
def test_a_wrong_name_is_refused(
    capsys: pytest.CaptureFixture[str], directory: Path, line: tuple[str, ...], code: int, says: str
) -> None:
    assert run(["group", *line, "--log-dir", str(directory)]) == code
    assert says in capsys.readouterr().err
    assert positions(capsys, directory) == [(0, 4, 6)]


@pytest.mark.parametrize("line", [("list",), ("show", "billing"), ("delete", "billing", "--yes")])
def test_damaged_positions_are_never_no_positions(
    capsys: pytest.CaptureFixture[str], directory: Path, line: tuple[str, ...]
) -> None:
    (path,) = (each for each in directory.glob("__consumer_offsets-*/*.log") if each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[70] ^= 0x55
    path.write_bytes(data)
    assert run(["group", *line, "--log-dir", str(directory)]) == 13
    out, err = capsys.readouterr()
    assert (out, err.partition(": CRC mismatch")[0]) == ("", f"error: {path} at byte 0")


def test_the_topic_of_the_positions_keeps_its_settings(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    line = ["topic", "set", "__consumer_offsets", "cleanup.policy=delete", "--log-dir", str(directory)]
    assert run(line) == 2
    assert "__consumer_offsets is internal and cannot be changed here" in capsys.readouterr().err


def test_status_and_metrics_have_the_lag(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    assert run(["status", "--log-dir", str(directory)]) == 0
    out = capsys.readouterr().out
    assert "group billing   lag 6 records" in out
    assert "__consumer_offsets" not in out
    assert run(["metrics", "--log-dir", str(directory)]) == 0
    assert 'tiered_group_lag_records{group="billing",topic="t",partition="0"} 6' in capsys.readouterr().out
