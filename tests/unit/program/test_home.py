"""A path that begins with ``~``: a shell replaces it, a file, a variable and a library call do not."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
import uploader.config
from tests.support.homes import no_home
from tests.unit.cli.conftest import Cli
from tiered.errors import ConfigError
from tiered.store.location import StoreLocation


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of a test, with a log in it; the current directory is another one, and stays empty."""
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    with tiered.open("~/log", remote="~/bucket") as log:
        log.topic("t", create=True).append(b"v")
        log.sync(timeout=60)
    return tmp_path / "home"


def test_the_library_finds_it(home: Path) -> None:
    assert {path.name for path in home.iterdir()} == {"log", "bucket"}
    with tiered.open_reader("~/bucket", log_dir=Path("~/log")) as reader:
        assert [record.value for record in reader.topic("t").read()] == [b"v"]
    assert not list(Path().iterdir())


def test_the_command_line_finds_it_in_a_file_and_in_the_environment(
    home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "tiered.toml").write_text('log_dir = "~/log"\nremote = "~/bucket"\n')
    assert cli("cat", "t", "--config", "~/tiered.toml").text == "v\n"
    assert cli("cat", "t", "--log-dir", "~/log").text == "v\n"
    monkeypatch.setenv("TIERED_REMOTE", "~/bucket")
    assert cli("cat", "t").text == "v\n"
    assert not list(Path().iterdir())


def test_the_daemon_finds_it_in_a_file_and_in_the_environment(home: Path) -> None:
    (home / "tiered.toml").write_text('log_dir = "~/log"\nremote = "~/bucket"\n')
    expected = (home / "log", StoreLocation.parse(home / "bucket"))
    assert uploader.config.resolve({}, {}, home / "tiered.toml").place() == expected
    environ = {"TIERED_LOG_DIR": "~/log", "TIERED_REMOTE": "~/bucket"}
    assert uploader.config.resolve({}, environ, None).place() == expected


def test_without_a_home_it_is_refused_and_no_folder_is_made(
    home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_home(monkeypatch)
    Path("tiered.toml").write_text('log_dir = "~/log"\n')
    for call in (
        lambda: tiered.open("~/log"),
        lambda: tiered.open_reader("~/bucket"),
        lambda: uploader.config.resolve({}, {}, Path("tiered.toml")),
    ):
        with pytest.raises(ConfigError, match="begins with ~, and that home directory is unknown") as refused:
            call()
        assert refused.value.hint == "set HOME, or write an absolute path"
    found = cli("append", "t", "--create", "--config", "tiered.toml", stdin=b"v\n")
    assert (found.code, found.out) == (2, b"")
    assert found.err.startswith("error: the log directory: ~/log begins with ~")
    assert [path.name for path in Path().iterdir()] == ["tiered.toml"]
