"""Both programs with streams that nobody reads, and with an interrupt at any moment of their start."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import tiered
from tiered.errors import LocalIOError, install_command
from tiered.program.command_line import as_error

PROGRAMS = ["tiered", "uploader"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        for _ in range(30):
            topic.append_many([b"x" * 100] * 1000)
    return tmp_path / "log"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    text = line.replace("tiered ", f"{sys.executable} -m tiered ").replace("daemon ", f"{sys.executable} -m uploader ")
    return subprocess.run(["bash", "-o", "pipefail", "-c", text], capture_output=True, text=True, check=False)


LINES = [
    ("tiered cat t --log-dir LOG | head -1", 0),
    ("tiered --help | true", 0),
    ("tiered cat t --log-dir LOG >&-", 1),
    ("tiered cat t --log-dir LOG --json >&-", 1),
    ("tiered status --log-dir LOG >&-", 1),
    ("tiered --help >&-", 1),
    ("tiered status --log-dir LOG 2>&-", 0),
    ("tiered status --log-dir LOG >&- 2>&- <&-", 1),
    ("tiered cat none --log-dir LOG 2>&-", 10),
    ("tiered cat none --log-dir LOG >&- 2>&-", 10),
    ("tiered cat none --log-dir LOG 2>&1 >&- | true", 10),
    ("daemon --help | true", 0),
    ("daemon pause --log-dir LOG | true", 0),
    ("daemon resume --log-dir LOG >&-", 1),
    ("daemon resume --log-dir LOG 2>&-", 0),
    ("daemon pause --log-dir LOG.none >&- 2>&-", 10),
    ("daemon pause --log-dir LOG.none 2>&1 >&- | true", 10),
    ("daemon --help >&-", 1),
]


@pytest.mark.parametrize(("command", "code"), LINES, ids=[line for line, _ in LINES])
def test_closed_streams(log: Path, command: str, code: int) -> None:
    done = shell(command.replace("LOG", str(log)))
    assert "Traceback" not in done.stderr + done.stdout
    assert "Exception ignored" not in done.stderr
    assert "Errno" not in done.stderr
    assert done.returncode == code, done.stderr
    if code == 1 and "2>&-" not in command:
        assert done.stderr == "error: standard output is closed\n  next: redirect it: > FILE, or > /dev/null\n"


def test_a_standard_input_that_is_closed_is_no_empty_one(tmp_path: Path) -> None:
    done = shell(f"tiered append t --create --log-dir {tmp_path / 'log'} <&-")
    assert done.stderr.startswith("error: standard input is closed\n")
    assert (done.returncode, (tmp_path / "log").exists()) == (2, False)
    done = shell(f"tiered append t --create --log-dir {tmp_path / 'log'} < /dev/null")
    assert (done.returncode, done.stderr) == (0, "appended 0 records to t\n")


def test_a_closed_descriptor_is_not_given_to_a_segment(tmp_path: Path) -> None:
    """Else what is printed lands in the file that was opened next."""
    done = shell(f"echo hello | tiered append t --create --log-dir {tmp_path / 'log'} -v >&- 2>&-")
    assert done.returncode == 0
    with tiered.open_reader(log_dir=tmp_path / "log") as reader:
        assert [record.value for record in reader.topic("t").read()] == [b"hello"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupt_while_it_starts(program: str) -> None:
    """At the moment when the program's own modules are being imported: a hook in place of the first of them."""
    module = {"tiered": "tiered.cli.main", "uploader": "uploader.cli"}[program]
    text = f"""
import importlib.abc, os, runpy, signal, sys
class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000): pass
sys.meta_path.insert(0, Hook())
sys.argv = [{program!r}, "--help"]
runpy.run_module({program!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stderr, done.stdout) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupt_between_the_import_and_the_command(program: str) -> None:
    text = """
import signal, sys
from tiered.program.run import run_program
def interrupted():
    signal.raise_signal(signal.SIGINT)
run_program(lambda: interrupted, extra="cli")
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stderr) == (130, ""), program


@pytest.mark.parametrize(("module", "extra"), [("tiered.cli.start", "cli"), ("uploader.start", "uploader")])
def test_a_program_whose_packages_are_not_installed_is_one_sentence(module: str, extra: str) -> None:
    text = f"""
import sys
sys.modules["click"] = None
from {module} import main
main()
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env=os.environ)
    assert done.stderr == f"error: click is not installed\n  next: {install_command(extra)}\n"
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "line",
    [
        "tiered status --log-dir {d}",
        "tiered status --log-dir {d} --json",
        "tiered cat t --log-dir {d}",
        "tiered --help",
        "tiered cat --help",
        "daemon pause --log-dir {d}",
        "daemon pause --log-dir {d} --json",
        "daemon --help",
        "daemon pause --help",
    ],
)
def test_an_output_that_is_full_is_one_sentence(tmp_path: Path, line: str) -> None:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append(b"x")
    done = shell(line.format(d=tmp_path / "log") + " > /dev/full")
    assert done.stderr == (
        "error: standard output: No space left on device\n"
        "  next: free space where the output goes, and run the command again\n"
    )
    assert done.returncode == 75


class FailingDisk(io.StringIO):
    """An output that goes where nothing can be written."""

    def write(self, _: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_what_the_system_refuses_of_the_output_is_no_defect() -> None:
    with pytest.raises(OSError) as caught:
        click.echo("x", file=FailingDisk())
    told = as_error(caught.value, "tiered-uploader")
    assert (told.message, told.hint) == ("standard output: Input/output error", "check the disk or pipe of the output")
    assert (told.exit_code, type(told)) == (1, LocalIOError)
    named = as_error(OSError(errno.EIO, "Input/output error", "uploader.toml"), "tiered-uploader")
    assert (named.message, named.hint) == ("uploader.toml: Input/output error", "")
    assert "this is a defect" in as_error(ValueError("x"), "tiered-uploader").hint
