"""Where servers are installed and where each keeps its state. Standard library only: nothing is installed yet."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST_PORT = 10_000
SAMPLE = 200
"""Ports that are tried; most are free."""
POLL_SECONDS = 0.05
EXEC_SECONDS = 5
STOP_SECONDS = 30


class ServerError(Exception):
    """A server could not be installed, started or stopped; the text says what to do."""


def say(text: str) -> None:
    """Progress goes to stderr: stdout carries only what a shell evaluates."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def cache_dir() -> Path:
    """``$TIERED_CACHE_DIR``, or ``.cache`` in the checkout (ignored by git)."""
    return Path(os.environ.get("TIERED_CACHE_DIR") or ROOT / ".cache").resolve()


def _first_ephemeral() -> int:
    """Where the ports begin that the kernel gives to connections and to whoever asks for any."""
    try:
        return int(EPHEMERAL_PORTS.read_text().split()[0])
    except OSError:
        return 32768  # not Linux; macOS begins at 49152


def free_ports(count: int) -> list[int]:
    """``count`` different loopback ports that nobody listens on right now.

    They lie below the ephemeral ones: a server binds its port seconds later, and until then no connection takes it.
    """
    first = _first_ephemeral()
    candidates = random.SystemRandom().sample(range(FIRST_PORT, first), SAMPLE) if first - FIRST_PORT > SAMPLE else []
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for port in (*candidates, *(0 for _ in range(count))):
            if len(found) == count:
                break
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind((HOST, port))
                found.append(int(one.getsockname()[1]))
        return found


def listening(port: int) -> bool:
    """Whether anybody accepts connections on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Polls ``ready`` for about ``seconds``; returns whether it came true."""
    pause = threading.Event()
    for _ in range(int(seconds / POLL_SECONDS)):
        if ready():
            return True
        pause.wait(POLL_SECONDS)
    return ready()


def home_of(name: str, version: str) -> Path:
    """Where ``name`` lies once it is installed; it is complete if it exists."""
    return cache_dir() / "servers" / f"{name}-{version}"


def install(name: str, version: str, build: Callable[[Path], None]) -> Path:
    """The folder of ``name`` at exactly ``version``, built once for all processes.

    ``build`` fills an empty folder; only a complete one is renamed into place, so a build that was cut off is
    started afresh. Other versions of ``name`` are left alone (another checkout may share the cache).
    """
    home = home_of(name, version)
    if home.exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            say(f"installing {name} {version} into {home}")
            partial = home.with_name(f"{home.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            build(partial)
            partial.rename(home)
    return home


def run(command: list[str], **env: str) -> None:
    """Runs an installer; its output is shown only when it fails."""
    try:
        subprocess.run(
            command,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
        )
    except FileNotFoundError:
        raise ServerError(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        tail = b"\n".join(error.output.splitlines()[-20:]).decode(errors="replace")
        raise ServerError(f"{' '.join(command)} failed with {error.returncode}:\n{tail}") from None


def virtualenv(folder: Path, requirements: Path) -> None:
    """A virtual environment with exactly the pinned packages, byte-compiled.

    Programs are started as ``bin/python -m ...`` or are plain binaries: the paths inside the environment's own
    scripts name the folder it was built in and are not used. The pins are complete, so nothing is resolved.
    """
    run([sys.executable, "-m", "venv", str(folder)])
    python = str(folder / "bin" / "python")
    run([python, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "-r", str(requirements)])
    run([python, "-m", "pip", "uninstall", "--yes", "pip", "setuptools"])
    run([python, "-m", "compileall", "-q", "-j", "0", str(folder / "lib")])


def _cmdline(pid: int) -> str:
    """The command line of a live process; empty for one that is gone or a zombie."""
    proc = Path(f"/proc/{pid}/cmdline")
    if Path("/proc/self/cmdline").exists():
        with contextlib.suppress(OSError):
            return proc.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return ""
    shown = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], check=False, capture_output=True, text=True)
    return shown.stdout.strip()


class Process:
    """One background process, remembered in ``folder/process.json`` so that another command can stop it.

    The command line is kept with the pid and compared before a signal is sent: pids are reused.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self._note = folder / "process.json"

    def facts(self) -> dict[str, str | int]:
        """What was noted at the start, if that process still lives; else empty."""
        try:
            facts: dict[str, str | int] = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return {}
        return facts if facts["command"] and _cmdline(int(facts["pid"])) == facts["command"] else {}

    def start(self, command: list[str], env: dict[str, str], **facts: str | int) -> subprocess.Popen[bytes]:
        """Starts ``command`` in a session of its own, output to ``server.log``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                cwd=self.folder,
                start_new_session=True,
            )
        before = {"", _cmdline(os.getpid())}  # what is seen around the child's exec
        wait_until(lambda: child.poll() is not None or _cmdline(child.pid) not in before, EXEC_SECONDS)
        self._note.write_text(json.dumps({"pid": child.pid, "command": _cmdline(child.pid), **facts}))
        return child

    def stop(self, *, kill: bool = False) -> bool:
        """TERM (KILL if asked, or if TERM does not help) and wait; returns whether there was anything to stop."""
        facts = self.facts()
        if not facts:
            return False
        pid = int(facts["pid"])
        os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        if not wait_until(lambda: not self.facts(), STOP_SECONDS):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not self.facts(), STOP_SECONDS)
        self._note.unlink(missing_ok=True)
        return True

    def tail(self) -> str:
        """The end of the log, for error messages."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        return ""


@contextlib.contextmanager
def errors_as_text() -> Iterator[None]:
    """Turns :class:`ServerError` into one message and exit status 1."""
    try:
        yield
    except ServerError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
