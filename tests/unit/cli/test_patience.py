"""A store that does not answer: told after two seconds, given up after ``--timeout``; settings for other stores."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.errors import RemoteUnavailableError
from tiered.program.application import Application
from tiered.program.patience import GRACE_SECONDS, PATIENCE_SECONDS, SILENCE_SECONDS, Patience
from tiered.testing.clock import FakeClock


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append(b"here")
    return tmp_path / "log"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The endpoint of a server that takes connections and never answers."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def watched(timeout_seconds: float | None = None) -> tuple[Patience, FakeClock, list[str]]:
    """Patience with a clock that is moved by hand, its words in a list, its thread not started."""
    app = Application({"remote": "s3://bucket/prefix"})
    clock = FakeClock()
    said: list[str] = []
    app.clock = clock
    app.out.caution = said.append  # type: ignore[method-assign, assignment]  # stderr
    return Patience(app, timeout_seconds=timeout_seconds), clock, said


def test_silence_is_told_once() -> None:
    patience, clock, said = watched()
    patience.look()
    clock.advance(60)
    patience.look()
    assert said == []
    with patience.waiting():
        clock.advance(SILENCE_SECONDS - 0.5)
        patience.look()
        assert said == []
        clock.advance(0.5)
        patience.look()
        patience.look()
    assert said == [f"s3://bucket/prefix does not answer; it is asked again for up to {PATIENCE_SECONDS:g} s"]


def test_a_record_that_is_printed_is_no_silence_of_the_store() -> None:
    patience, clock, said = watched()

    def records() -> Iterator[int]:
        yield 1
        clock.advance(3)
        patience.look()
        yield 2

    for _ in patience.over(records()):
        clock.advance(60)
        patience.look()
    assert len(said) == 1


def test_the_timeout_is_the_sum_of_all_waiting() -> None:
    patience, clock, _ = watched(10)
    with patience.waiting():
        clock.advance(4)
    clock.advance(60)
    assert patience.left_seconds == 6
    with patience.waiting():
        clock.advance(7)
    assert patience.left_seconds == 0


def test_the_end_of_patience() -> None:
    for timeout_seconds, limit in ((None, PATIENCE_SECONDS), (4, 4)):
        patience, clock, _ = watched(timeout_seconds)
        with patience.waiting():
            clock.advance(limit + GRACE_SECONDS - 0.5)
            assert not patience.look()
            clock.advance(0.5)
            assert patience.look()
        assert not patience.look()


def test_a_request_that_hangs_is_left() -> None:
    before = signal.getsignal(signal.SIGALRM)
    app = Application({"remote": "s3://bucket/prefix"})
    patience = Patience(app, timeout_seconds=0, grace_seconds=0)
    with pytest.raises(RemoteUnavailableError, match="did not answer"), patience, patience.waiting():
        signal.pause()
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_append_gives_up_on_a_silent_store(
    cli: Cli, directory: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.program.patience.GRACE_SECONDS", 0.0)
    line = ("append", "t", "--log-dir", directory, "--remote", "s3://bucket", "--endpoint-url", silent)
    late = cli(*line, "--timeout", "0.4", stdin=b"x\n")
    assert late.code == 75
    assert "s3://bucket did not answer within 0.4 s; nothing was appended" in late.err
    assert cli("cat", "t", "--log-dir", directory).out == b"here\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_hanging_request_of_a_status_leaves_the_local_part(
    cli: Cli, directory: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.program.patience.PATIENCE_SECONDS", 0.4)
    monkeypatch.setattr("tiered.program.patience.GRACE_SECONDS", 0.0)
    seen = cli("status", "--log-dir", directory, "--remote", "s3://bucket", "--endpoint-url", silent)
    assert seen.code == 75
    assert "t-0   end 1" in seen.text
    assert "the bucket cannot be reached: s3://bucket did not answer" in seen.text


@pytest.mark.usefixtures("silent")
def test_an_append_says_that_the_store_is_down(cli: Cli, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with tiered.open(directory, f"file://{tmp_path / 'bucket'}") as log:
        log.topic("t")
        log.sync(timeout=60)
    remote = ("--remote", "s3://bucket", "--endpoint-url", "http://127.0.0.1:9")
    done = cli("append", "t", "--log-dir", directory, *remote, stdin=b"x\n")
    assert done.code == 0
    assert "warning: s3://bucket cannot be reached now: what was uploaded from here before goes on" in done.err


@pytest.mark.parametrize("command", ["cat t", "tail t", "offsets t", "status", "topics list", "segments t"])
def test_settings_of_the_environment_do_not_concern_a_folder(
    cli: Cli, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path / 'bucket'}"
    monkeypatch.setenv("TIERED_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TIERED_REGION", "eu-central-1")
    assert cli("append", "t", "--log-dir", directory, "--remote", url, "--durability", "remote", stdin=b"x").code == 0
    assert cli(*command.split(), "--log-dir", directory, "--remote", url).code == 0
    config = tmp_path / "tiered.toml"
    config.write_text('region = "eu-central-1"\n')
    monkeypatch.delenv("TIERED_REGION")
    refused = cli(*command.split(), "--remote", url, "--config", config)
    assert refused.code == 2
    assert f"region (file {config}) means nothing to file://" in refused.err
