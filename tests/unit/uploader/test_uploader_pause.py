"""``tiered-uploader pause`` and ``resume``: what they write, what they say, what they refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.integration.uploader.logs import make_log
from tiered.errors import ConfigError, NotFoundError, TieredError, UnknownTopicError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PauseFile
from tiered.plan.pacing import ALL_TOPICS
from uploader.cli import main, program


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    make_log(tmp_path / "log", records=2, partitions=1)
    make_log(tmp_path / "log", records=2, partitions=1, topic="u")
    return tmp_path / "log"


def call(log_dir: Path, *words: str) -> str:
    done = CliRunner().invoke(program, [*words, "--log-dir", str(log_dir)], catch_exceptions=True)
    if isinstance(done.exception, TieredError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output.strip()


def paused(log_dir: Path) -> dict[str, str]:
    return {name: each.reason for name, each in PauseFile(log_dir, PosixFiles()).read().items()}


def test_topics_are_paused_and_resumed_by_name(log_dir: Path) -> None:
    assert call(log_dir, "pause", "t", "--dry-run").startswith("dry run: uploads of t have been paused for 0s;")
    assert paused(log_dir) == {}
    told = call(log_dir, "pause", "t", "u", "--reason", "the bucket moves")
    assert told.splitlines() == [
        f"uploads of {name} have been paused for 0s: the bucket moves; unblocked by `tiered-uploader resume {name}`"
        for name in ("t", "u")
    ]
    assert call(log_dir, "resume", "t", "--dry-run").splitlines()[0] == "dry run: would resume t"
    assert call(log_dir, "resume", "t").startswith("resumed t\nuploads of u have been paused for")
    assert paused(log_dir) == {"u": "the bucket moves"}
    assert ": the bucket moves;" in call(log_dir, "pause", "u")
    assert call(log_dir, "resume") == "resumed all topics"
    assert call(log_dir, "resume") == f"no uploads from {log_dir} are paused"
    assert paused(log_dir) == {}


def test_all_are_paused_without_a_name(log_dir: Path) -> None:
    assert (
        call(log_dir, "pause") == "uploads of all topics have been paused for 0s; unblocked by `tiered-uploader resume`"
    )
    assert paused(log_dir) == {ALL_TOPICS: ""}
    with pytest.raises(ConfigError, match="topic t has no pause of its own") as raised:
        call(log_dir, "resume", "t")
    assert raised.value.hint == "all topics are paused together: resume without a name"


def test_another_reason_does_not_change_since_when(log_dir: Path) -> None:
    def since() -> int:
        document: dict[str, Any] = json.loads(call(log_dir, "pause", "t", "--json"))
        assert (document["message_type"], document["paused"][0]["topic"]) == ("pauses", "t")
        return int(document["paused"][0]["since_ms"])

    assert since() == since()


def test_a_topic_that_is_not_there_is_refused_and_nothing_is_written(log_dir: Path) -> None:
    with pytest.raises(UnknownTopicError, match="there is no topic v in") as raised:
        call(log_dir, "pause", "t", "v")
    assert raised.value.hint == "its topics are t, u"
    assert paused(log_dir) == {}
    with pytest.raises(NotFoundError, match=r"has no meta\.properties"):
        call(log_dir.parent, "pause")


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_an_error_is_json_too(
    verb: str, log_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tiered-uploader", verb, "v", "--json", "--log-dir", str(log_dir)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["message_type"], found["exit_code"]) == ("error", ended.value.code)
    assert err.startswith(f"error: {found['message']}\n")


def test_the_help_shows_whole_sentences() -> None:
    shown = CliRunner().invoke(program, ["--help"]).output.split("Commands:")[1]
    assert "..." not in shown
    assert "until `resume`." in " ".join(shown.split())
