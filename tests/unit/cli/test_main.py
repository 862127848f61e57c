"""How a run ends: signals, a closed pipe, defects, settings with their origins."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.cli import cat, main
from tiered.program import command_line
from tiered.program.output import Output, StdoutClosed, human_bytes, human_duration, printable


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append_many([b"%d" % i for i in range(3000)])
    return tmp_path / "log"


def _raise(error: BaseException) -> object:
    def call(*_: object, **__: object) -> int:
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (KeyboardInterrupt(), 130, "interrupted before the end, after 0 records"),
        (command_line.Terminated(), 143, "terminated"),
        (MemoryError(), 1, "no memory left"),
        (ZeroDivisionError("division by zero"), 1, "defect"),
        (OSError(28, "No space left on device", "x"), 75, "No space left"),
        (OSError(122, "Disk quota exceeded", "x"), 75, "Disk quota"),
        (FileNotFoundError(2, "No such file or directory", "x"), 10, "No such file"),
        (PermissionError(13, "Permission denied", "x"), 12, "Permission denied"),
    ],
)
def test_ends(
    cli: Cli, directory: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, word: str
) -> None:
    monkeypatch.setattr(cat, "open_reader", _raise(error))
    done = cli("cat", "t", "--log-dir", directory, "--json")
    assert done.code == code
    assert word in done.err
    assert "Traceback" not in done.err
    assert (done.summary["exit_code"], done.summary["complete"]) == (code, False)


def test_debug_shows_the_traceback(cli: Cli, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cat, "open_reader", _raise(ZeroDivisionError("division by zero")))
    assert "Traceback" in cli("cat", "t", "--log-dir", directory, "--debug").err
    monkeypatch.setenv("TIERED_DEBUG", "1")
    assert "Traceback" in cli("cat", "t", "--log-dir", directory).err


def test_sigterm_while_following(cli: Cli, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []

    def one_round(_: Output) -> None:
        rounds.append(1)
        if len(rounds) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Output, "need_reader", one_round)
    before = signal.getsignal(signal.SIGTERM)
    done = cli("cat", "-f", "t", "--log-dir", directory)
    assert (done.code, "terminated" in done.err) == (143, True)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_follower_ends_when_nobody_reads_although_nothing_comes(directory: Path) -> None:
    program = "import sys; sys.argv[0] = 'tiered'; from tiered.cli.main import main; main()"
    arguments = ("cat", "-f", "t", "--last", "0", "--log-dir", str(directory))
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        try:
            assert (process.wait(60), process.stderr.read()) == (0, b"")
        finally:
            process.kill()


def test_only_a_pipe_without_a_reader_ends_a_follower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as ours, (tmp_path / "file").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        Output().need_reader()
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        Output().need_reader()
        monkeypatch.setattr(sys, "stdout", ours)
        Output().need_reader()
        os.close(reader)
        with pytest.raises(StdoutClosed):
            Output().need_reader()


def test_help_and_version_of_every_command(cli: Cli) -> None:
    top = cli("--help")
    assert top.code == 0
    for name, entry in main.COMMANDS.items():
        assert f"  {name} " in top.text
        command = main.tiered.get_command(click.Context(main.tiered), name)
        assert command is not None
        first = (command.help or "").partition("\n\n")[0]
        assert (entry.about, entry.section in main.SECTIONS) == (first.replace("\n", " "), True)
        shown = cli(name, "-h")
        assert (name, shown.err, shown.code, "Global options:" in shown.text) == (name, "", 0, True)
    for group in (("topic", "list"), ("topic", "create"), ("topic", "show"), ("config",)):
        assert "Example" in cli(*group, "-h").text
    version = cli("--version")
    assert (version.code, version.text.startswith("tiered ")) == (0, True)
    assert "python" in version.text


def test_settings_and_their_origins(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tiered.toml"
    monkeypatch.setenv("STAGE", "prod")
    toml = 'remote = "s3://logs/${STAGE}"\nregion = "from-file"\nlog-dir = "from-file"\n'
    file.write_text(toml + '[uploader]\nscan = "9s"\n')
    monkeypatch.setenv("TIERED_REGION", "from-environment")
    monkeypatch.setenv("TIERED_LOG_DIR", "from-environment")
    shown = cli("config", "--log-dir", "from-flag", "--config", file, "--json").summary
    seen = shown["settings"]
    assert (seen["uploader.scan"], seen["uploader.uploads"]["value"]) == ({"value": "9s", "origin": f"file {file}"}, 4)
    assert {name: (each["value"], each["origin"]) for name, each in seen.items() if "uploader." not in name} == {
        "log_dir": ("from-flag", "flag --log-dir"),
        "remote": ("s3://logs/prod", f"file {file}"),
        "endpoint_url": (None, "default"),
        "region": ("from-environment", "environment TIERED_REGION"),
        "expected_bucket_owner": (None, "default"),
        "sse": (None, "default"),
        "sse_kms_key_id": (None, "default"),
        "json": (True, "flag --json"),
        "progress": ("auto", "default"),
        "debug": (False, "default"),
    }
    monkeypatch.setenv("TIERED_CONFIG", str(file))
    text = cli("config").text
    assert f"s3://logs/prod    file {file}" in text


def test_an_empty_name_of_a_file_is_not_passed_over(cli: Cli, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in (("--config", "", "cat", "t"), ("cat", "t", "--config", "")):
        refused = cli(*line, "--log-dir", directory)
        assert (refused.code, refused.out) == (2, b"")
        assert "error: --config is empty" in refused.err
    monkeypatch.setenv("TIERED_CONFIG", "")
    assert cli("cat", "t", "--log-dir", directory).code == 0


def test_a_key_in_a_url_is_not_printed(cli: Cli) -> None:
    shown = cli("config", "--remote", "s3://AKIA:secret@bucket/p")
    assert "secret" not in shown.text
    assert "s3://***@bucket/p" in shown.text


def test_global_options_may_stand_before_and_after(cli: Cli, directory: Path) -> None:
    before = cli("--log-dir", directory, "--json", "topic", "show", "t")
    after = cli("topic", "show", "t", "--log-dir", directory, "--json")
    assert before.summary == after.summary
    assert before.code == 0
    both = cli("--log-dir", "/nonexistent", "topic", "show", "t", "--log-dir", directory)
    assert both.code == 0


def test_quiet_and_progress(cli: Cli, tmp_path: Path) -> None:
    quiet = cli("append", "t", "--create", "--log-dir", tmp_path / "d", "-q", stdin=b"x\n")
    assert (quiet.code, quiet.err, quiet.out) == (0, "", b"")


def test_json_by_environment(cli: Cli, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_JSON", "1")
    assert cli("cat", "t", "--log-dir", directory, "-n", "1").summary["records"] == 1
    assert cli("cat", "u", "--log-dir", directory).messages[0]["code"] == "unknown_topic"
    misspelt = cli("cat", "t", "--log-dir", directory, "--form", "1")
    assert [(each["code"], each["exit_code"]) for each in misspelt.messages] == [("config", 2)]
    monkeypatch.setenv("TIERED_JSON", "0")
    assert cli("cat", "t", "--log-dir", directory, "--form", "1").out == b""


def test_units() -> None:
    assert [human_bytes(size) for size in (-1, 0, 1023, 1024, 11_744_051, 2**60)] == [
        "-",
        "0 B",
        "1023 B",
        "1.0 KiB",
        "11.2 MiB",
        "1024.0 PiB",
    ]
    assert [human_duration(ms) for ms in (-1, 999, 188_000, 4 * 3_600_000, 187_200_000)] == [
        "-",
        "0s",
        "3m08s",
        "4h00m",
        "2d04h",
    ]
    assert printable("a\x1b[2Jb\ud800") == "a\\x1b[2Jb\\ud800"


@pytest.mark.parametrize("group", ["topic", "repair", "snapshot", "disk", "transaction", "spark"])
def test_a_group_shows_whole_sentences(cli: Cli, group: str) -> None:
    shown = cli(group, "--help").text.split("Commands:")[1].split("Options:")[0]
    assert "..." not in shown
