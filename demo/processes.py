"""Child processes of the demo: jobs that report progress, and the daemon that is killed once.

Every child is started in this process's group, remembered, and ended by its own id when the demo ends,
on failure too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from demo.steps import peak_rss_bytes

STOP_TIMEOUT_S = 40
ROOT = Path(__file__).resolve().parent.parent


class DemoError(RuntimeError):
    """A child failed or a claim did not hold; the message is what the demo prints."""


class Children:
    """All child processes; ``close`` ends those that still run."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._running: list[subprocess.Popen[str]] = []

    def start(self, arguments: Sequence[str], *, log: str, stdout: int | None = None) -> subprocess.Popen[str]:
        """Starts ``python ARGUMENTS`` with stderr in a file of the scratch folder."""
        environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1", PYSPARK_PYTHON=sys.executable)
        with (self._scratch / log).open("ab") as err:
            child = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=subprocess.PIPE if stdout == subprocess.PIPE else err,
                stderr=err,
                stdin=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        self._running.append(child)
        return child

    def tail(self, log: str, lines: int = 12) -> str:
        """The last lines that a child wrote to its log."""
        path = self._scratch / log
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def close(self) -> None:
        """Ends, by their ids, the children that still run."""
        for child in self._running:
            if child.poll() is None:
                child.terminate()
        for child in self._running:
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


class Job:
    """One program of the demo; its JSON lines are read by a thread. ``pids``: a driver of Spark, once it has told."""

    def __init__(
        self, children: Children, arguments: Sequence[str], *, name: str, progress: Callable[[int, int], None] | None
    ) -> None:
        self._children = children
        self._name = name
        self._progress = progress
        self._result: dict[str, Any] | None = None
        self.pids: list[int] = []
        self.child = children.start(["-m", *arguments], log=f"{name}.log", stdout=subprocess.PIPE)
        self._thread = threading.Thread(target=self._read, name=f"demo-{name}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        stream = self.child.stdout
        if stream is None:
            return
        for line in stream:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if not isinstance(message, dict):
                continue
            if "result" in message:
                self._result = message["result"]
            elif "pids" in message:
                self.pids = message["pids"]
            elif "progress" in message and self._progress is not None:
                self._progress(message["progress"], message["total"])

    @property
    def running(self) -> bool:
        """Whether the process still runs."""
        return self.child.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends ``number`` to the processes of the driver that still run."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def result(self, timeout: float) -> dict[str, Any]:
        """Waits for the job; raises :class:`DemoError` with the end of its log if it failed."""
        try:
            status = self.child.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"{self._name} did not end within {timeout:.0f} s") from error
        self._thread.join(10)
        if status != 0 or self._result is None:
            raise DemoError(f"{self._name} ended with status {status}:\n{self._children.tail(f'{self._name}.log')}")
        return self._result


class Daemon:
    """``tiered-uploader run`` beside the writer."""

    def __init__(self, children: Children, *, log_dir: Path, remote: str, endpoint_url: str | None) -> None:
        self._children = children
        query = f"?endpoint={endpoint_url}" if endpoint_url else ""
        self._arguments = ["-m", "uploader", "run", "--log-dir", str(log_dir), "--remote", remote + query]
        self._arguments += ["--http", "off", "--scan", "200ms", "--log-format", "json"]
        self.peak_rss_bytes = 0
        self.child: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts it; its JSON log goes to ``daemon.log``."""
        self.child = self._children.start(self._arguments, log="daemon.log")

    def sample(self) -> None:
        """Takes the daemon's memory into ``peak_rss_bytes``; raises if it has ended by itself."""
        if self.child is None:
            return
        status = self.child.poll()
        if status is not None:
            raise DemoError(f"the daemon ended with status {status}:\n{self._children.tail('daemon.log')}")
        self.peak_rss_bytes = max(self.peak_rss_bytes, peak_rss_bytes(self.child.pid))

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is tidied up."""
        if self.child is not None:
            self.sample()
            self.child.send_signal(signal.SIGKILL)
            self.child.wait()
            self.child = None

    def stop(self) -> int:
        """SIGTERM: it drains; returns its exit status (0: nothing is left on this disk only)."""
        if self.child is None:
            return 0
        self.sample()
        self.child.terminate()
        try:
            status = self.child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"the daemon did not stop within {STOP_TIMEOUT_S} s of SIGTERM") from error
        self.child = None
        return status
