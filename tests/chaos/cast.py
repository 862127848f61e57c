"""Who takes part: processes that are started, killed, stopped, woken and started again, and what they may end with."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.notes import read_notes
from tests.integration.uploader.daemons import ROOT, environment

MODULE = (sys.executable, "-m")
WAIT_SECONDS = 120.0

WEATHERED = frozenset({75, 12})
"""Exit statuses that faults of the store may come to: try again, and a refusal."""
FENCED = LOCKED = 11

TRACEBACK = "Traceback (most recent call last)"
AIOHTTP = "coro=<ClientRequest.write_bytes()"
"""A connection that is reset before the headers are sent leaves a task of aiohttp's whose error nobody asks for."""
LOOK_BACK = 400


class Violation(AssertionError):
    """A promise was broken, or a process ended as none may."""


@dataclass
class Actor:
    """One process. ``command`` gets the number of the run: no two runs give a record the same name."""

    name: str
    command: Callable[[int], Sequence[str]]
    folder: Path
    may_end: frozenset[int] = WEATHERED
    runs: int = 0
    paused: bool = False
    ends: Counter[int] = field(default_factory=Counter)
    process: subprocess.Popen[bytes] | None = None

    @property
    def talk(self) -> Path:
        """Where its standard output and error go."""
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """The next run."""
        self.runs += 1
        with self.talk.open("ab") as sink:
            self.process = subprocess.Popen(
                list(self.command(self.runs)),
                env=environment(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )

    @property
    def is_alive(self) -> bool:
        """Whether it was started, and nobody has seen its end."""
        return self.process is not None

    def tend(self) -> None:
        """Starts it again if it has ended as it may. Raises Violation for any other end."""
        if self.process is None or self.process.poll() is None:
            return
        self.judge(self.process.returncode, self.may_end)
        self.start()

    def judge(self, status: int, allowed: frozenset[int] | set[int]) -> None:
        """Raises Violation for a status that is not allowed, with the end of what the process said."""
        self.ends[status] += 1
        self.process = None
        if status not in allowed:
            last = "\n".join(self.talk.read_text(errors="replace").splitlines()[-25:])
            raise Violation(f"{self.name}, run {self.runs}, ended with {status}:\n{last}")

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        self.paused = False

    def pause(self) -> None:
        """SIGSTOP."""
        if self.process is not None and not self.paused:
            self.process.send_signal(signal.SIGSTOP)
            self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None and self.paused:
            self.process.send_signal(signal.SIGCONT)
        self.paused = False

    def stop(self, allowed: set[int]) -> None:
        """SIGTERM, then its own end, which must be one of ``allowed``. An end before the signal is the weather's."""
        self.tend()
        if self.process is None:
            self.start()
        assert self.process is not None
        self.process.terminate()
        self.judge(self.process.wait(WAIT_SECONDS), allowed)

    def finish(self, allowed: set[int]) -> None:
        """Its own end, without a signal."""
        if self.process is None:
            self.start()
        assert self.process is not None
        self.judge(self.process.wait(WAIT_SECONDS), allowed)

    def check_talk(self) -> None:
        """Raises Violation for a traceback: also one that a later run survived."""
        said = self.talk.read_text(errors="replace") if self.talk.exists() else ""
        before, *traces = said.split(TRACEBACK)
        for trace in traces:
            if AIOHTTP not in before[-LOOK_BACK:]:
                raise Violation(f"{self.name} has a traceback in {self.talk}:\n{trace[:3000]}")
            before = trace


@dataclass
class Host:
    """A log directory, its writer and whoever uploads for it. ``how``: daemon, component or inline (the writer)."""

    topic: str
    how: str
    generation: int
    directory: Path
    notes: Path
    writer: Actor
    daemon: Actor | None

    @classmethod
    def make(cls, folder: Path, remote: str, endpoint: str, topic: str, how: str, generation: int, seed: int) -> Host:
        """Not started. A generation is a directory of its own."""
        name = f"{topic}-g{generation}"
        directory, notes = folder / name, folder / f"{name}.notes"

        def write(run: int) -> Sequence[str]:
            words = [str(directory), remote, endpoint, topic, f"{name}.r{run}", str(notes), f"{seed}.{name}.{run}"]
            return [*MODULE, "tests.chaos.writer", *words, *(["--component"] if how == "component" else [])]

        def upload(_: int) -> Sequence[str]:
            place = ["--log-dir", str(directory), "--remote", f"{remote}?endpoint={endpoint}"]
            options = ["--http", "off", "--scan", "200ms", "--log-format", "json", "--drain-timeout", "60s"]
            return [*MODULE, "uploader", "run", *place, *options]

        writer = Actor(f"{name}-writer", write, folder)
        # A writer without a daemon syncs by itself: a daemon that comes at that moment is refused, and comes again.
        daemon = Actor(f"{name}-daemon", upload, folder, WEATHERED | {LOCKED}) if how == "daemon" else None
        return cls(topic, how, generation, directory, notes, writer, daemon)

    @property
    def is_open(self) -> bool:
        """Whether its log was opened once: the partitions are its own then."""
        return any(note["what"] == "opened" for note in read_notes(self.notes))

    def tend(self) -> None:
        """Its daemon is started once there is a log."""
        if self.daemon is not None and not self.daemon.runs and self.is_open:
            self.daemon.start()

    @property
    def actors(self) -> list[Actor]:
        """Writer first."""
        return [self.writer, *([self.daemon] if self.daemon else [])]


def maintainer(name: str, folder: Path, remote: str, endpoint: str) -> Actor:
    """Rounds of maintenance, one a second. A newer claim of the other one is told, and left for the next round."""
    command = [*MODULE, "tiered", "--remote", f"{remote}?endpoint={endpoint}", "maintain"]
    return Actor(name, lambda _: [*command, "--loop", "1s", "--yes"], folder)


def reader(name: str, folder: Path, remote: str, endpoint: str, seed: int) -> Actor:
    """Follows the whole bucket."""
    notes = folder / f"{name}.notes"
    words = [*MODULE, "tests.chaos.reader", remote, endpoint, str(notes)]
    return Actor(name, lambda run: [*words, f"{seed}.{name}.{run}"], folder)
