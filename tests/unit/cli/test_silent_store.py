"""A store that does not answer is given up after the deadline of the store; settings for other stores."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli


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


def test_append_gives_up_on_a_silent_store(cli: Cli, directory: Path, silent: str) -> None:
    line = ("append", "t", "--log-dir", directory, "--remote", f"s3://bucket?endpoint={silent}")
    late = cli(*line, "--timeout", "0.4", stdin=b"x\n")
    assert late.code == 75
    assert "next: the store did not answer: check the endpoint" in late.err
    assert cli("cat", "t", "--log-dir", directory).out == b"here\n"


def test_a_hanging_request_of_a_status_leaves_the_local_part(
    cli: Cli, directory: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.program.open_store.STORE_DEADLINE_SECONDS", 0.4)
    seen = cli("status", "--log-dir", directory, "--remote", f"s3://bucket?endpoint={silent}")
    assert seen.code == 75
    assert "t-0   end 1" in seen.text
    assert "the bucket cannot be reached: " in seen.text
    assert "imeout on endpoint URL" in seen.text


@pytest.mark.usefixtures("silent")
def test_an_append_says_that_the_store_is_down(cli: Cli, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with tiered.open(directory, f"file://{tmp_path / 'bucket'}") as log:
        log.topic("t")
        log.sync(timeout=60)
    remote = ("--remote", "s3://bucket?endpoint=http://127.0.0.1:9")
    done = cli("append", "t", "--log-dir", directory, *remote, stdin=b"x\n")
    assert done.code == 0
    assert "warning: s3://bucket cannot be reached now: what was uploaded from here before goes on" in done.err


@pytest.mark.parametrize(
    "command", ["cat t", "cat t --last 1", "topic show t", "status", "topic list", "topic show t --segments"]
)
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
    assert f"region (file {config}) does not apply to file://" in refused.err
