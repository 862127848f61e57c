"""Real daemon processes: started, listened to, killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[3]
WAIT_SECONDS = 120.0


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def command(verb: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "uploader", verb, *options]


def call(verb: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(verb, *options),
        env=environment(**more),
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def status(*options: str, **more: str) -> tuple[int, list[str], dict[str, Any]]:
    """What ``tiered status`` says: its exit code, its lines, its JSON."""
    found = []
    for form in ((), ("--json",)):
        words = [sys.executable, "-m", "tiered", "status", *options, *form]
        found.append(
            subprocess.run(
                words,
                env=environment(**more),
                cwd=ROOT,
                text=True,
                capture_output=True,
                timeout=WAIT_SECONDS,
                check=False,
            )
        )
    text, machine = found
    assert text.returncode == machine.returncode, text.stderr + machine.stderr
    return text.returncode, text.stdout.splitlines(), json.loads(machine.stdout.splitlines()[-1])


class Daemon:
    """``tiered-uploader run`` as a context manager; killed at the end if it still runs."""

    def __init__(self, *options: str, **more: str) -> None:
        self.process = subprocess.Popen(
            command("run", "--http", "127.0.0.1:0", "--log-format", "json", *options),
            env=environment(**more),
            cwd=ROOT,
            text=True,
            stderr=subprocess.PIPE,
        )
        self.lines: list[dict[str, Any]] = []
        self.talk: list[str] = []
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.talk.append(line)
            if line.startswith("{"):
                self._queue.put(json.loads(line))
        self._queue.put(None)

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next line of that event."""
        while True:
            line = self._queue.get(timeout=WAIT_SECONDS)
            assert line is not None, f"the daemon ended without {event}: {''.join(self.talk)}"
            self.lines.append(line)
            if line["event"] == event:
                return line

    def get(self, path: str, port: int) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> int:
        status = self.process.wait(WAIT_SECONDS)
        self._reader.join(WAIT_SECONDS)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
