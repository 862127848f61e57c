"""One S3 server for development and tests: install, start, stop, and the lines that point a program at it.

Each command of this folder names its server in a :class:`Server` and calls :func:`main`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import FrameType
from typing import ClassVar

import bucket
from bucket import Credentials
from place import (
    HOST,
    Process,
    ServerError,
    cache_dir,
    errors_as_text,
    free_ports,
    home_of,
    install,
    listening,
    say,
    wait_until,
)

START_SECONDS = 60
DEFAULT_BUCKET = "tiered"
PREFIX = "dev"


class Server(ABC):
    """What differs between servers."""

    name: ClassVar[str]
    version: ClassVar[str]
    port: ClassVar[int]
    health: ClassVar[str]
    credentials: ClassVar[Credentials] = Credentials("tiered", "tiered-secret")

    def installed(self) -> bool:
        """Whether :meth:`install` has nothing to do."""
        return home_of(self.name, self.version).exists()

    def install(self) -> Path:
        """Makes the program available; quick when it is. Returns its folder."""
        return install(self.name, self.version, self.build)

    @abstractmethod
    def build(self, folder: Path) -> None:
        """Fills an empty folder with the program."""

    @abstractmethod
    def command(self, home: Path, folder: Path, port: int) -> tuple[list[str], dict[str, str]]:
        """Command line and additional environment; ``folder`` is for its data, ``home`` from :meth:`install`."""


def exports(server: Server, port: int, name: str) -> str:
    """Shell lines that point this project, and any AWS SDK, at the server."""
    values = {
        "AWS_ACCESS_KEY_ID": server.credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": server.credentials.secret_key,
        "AWS_REGION": bucket.REGION,
        "TIERED_ENDPOINT_URL": f"http://{HOST}:{port}",
        "TIERED_REMOTE": f"s3://{name}/{PREFIX}",
    }
    return "".join(f"export {key}={shlex.quote(value)}\n" for key, value in values.items())


def _wait_ready(server: Server, process: Process, child: subprocess.Popen[bytes], port: int, name: str) -> None:
    answer = (0, b"")

    def ready() -> bool:
        nonlocal answer
        if child.poll() is not None:
            return True  # the answer below says that it is not well
        if bucket.request("GET", HOST, port, server.health)[0] != 200:
            return False
        answer = bucket.create(HOST, port, name, server.credentials)
        return answer[0] in bucket.EXISTS

    if wait_until(ready, START_SECONDS) and answer[0] in bucket.EXISTS:
        return
    said = f"exited with {child.returncode}" if child.poll() is not None else f"not ready after {START_SECONDS} s"
    process.stop(kill=True)
    raise ServerError(
        f"{server.name} on port {port}: {said}; last answer {answer[0]} {answer[1][:200]!r}.\n"
        f"End of {process.log}:\n{process.tail()}"
    )


def _start(server: Server, process: Process, port: int, name: str) -> subprocess.Popen[bytes]:
    home = server.install()
    process.folder.mkdir(parents=True, exist_ok=True)
    port = port or free_ports(1)[0]
    if listening(port):  # its answers would be taken for ours
        raise ServerError(f"port {port} is taken: choose another with --port, or 0 for any")
    command, env = server.command(home, process.folder, port)
    child = process.start(command, env, port=port, bucket=name)
    _wait_ready(server, process, child, port, name)
    say(f"{server.name} listens on http://{HOST}:{port}, data and log in {process.folder}")
    sys.stdout.write(exports(server, port, name))
    sys.stdout.flush()
    return child


def _run(server: Server, process: Process, port: int, name: str) -> int:
    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)
    try:
        child = _start(server, process, port, name)
        return child.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        process.stop()


def _arguments(server: Server) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"localstack/{server.name}",
        description=f"{server.name} on loopback. `start` and `run` print the variables that point programs at it: "
        f'eval "$(localstack/{server.name} start)"',
    )
    parser.add_argument(
        "action",
        choices=["start", "stop", "kill", "run", "env", "status", "install", "check"],
        help="start: in the background, and wait until it is healthy; run: in the foreground until Ctrl-C; stop: "
        "TERM; kill: KILL, to test crashes; env: print the variables again; status: exit 0 if it runs; "
        "install: download or build only; check: exit 0 if installed",
    )
    parser.add_argument("--port", type=int, default=server.port, help="0 picks a free one (default: %(default)s)")
    parser.add_argument("--bucket", default=DEFAULT_BUCKET, help="created if absent (default: %(default)s)")
    parser.add_argument("--dir", type=Path, help=f"data, log and pid (default: run/{server.name} in the cache)")
    return parser.parse_args()


def main(server: Server) -> None:
    """The command line of one server."""
    arguments = _arguments(server)
    folder = (arguments.dir or cache_dir() / "run" / server.name).resolve()
    process = Process(folder)
    facts = process.facts()
    with errors_as_text():
        match arguments.action:
            case "install":
                server.install()
            case "check":
                if not server.installed():
                    raise ServerError(f"not installed: localstack/{server.name} install")
            case "status" | "env" if not facts:
                raise ServerError(f"not running in {folder}: localstack/{server.name} start")
            case "status":
                say(f"pid {facts['pid']}, http://{HOST}:{facts['port']}, {folder}")
            case "env":
                sys.stdout.write(exports(server, int(facts["port"]), str(facts["bucket"])))
            case "start" | "run" if facts:
                say(f"already running, pid {facts['pid']}")
                sys.stdout.write(exports(server, int(facts["port"]), str(facts["bucket"])))
            case "start":
                _start(server, process, arguments.port, arguments.bucket)
            case "run":
                with contextlib.suppress(KeyboardInterrupt):
                    sys.exit(_run(server, process, arguments.port, arguments.bucket))
            case _:
                if not process.stop(kill=arguments.action == "kill"):
                    say("was not running")


def project_python() -> str:
    """The interpreter that has the project's test dependencies: the checkout's environment, else this one."""
    local = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"
    return str(local) if local.exists() else os.environ.get("PYTHON", sys.executable)
