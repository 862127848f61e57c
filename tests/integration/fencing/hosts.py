"""Machines of a test: processes that run, are stopped and woken, and the one judgement of what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import tiered
from tests.integration.fencing.application import TOPIC
from tests.integration.uploader.daemons import ROOT, WAIT_SECONDS, Daemon, environment
from tiered.check.findings import Severity
from tiered.format.batch import decode_records
from tiered.local.directory.read_only_log import LogView
from tiered.model import TopicPartition
from tiered.store.location import open_store

TP = TopicPartition(TOPIC, 0)
Answer = dict[str, Any]


@dataclass(frozen=True)
class Remote:
    """A bucket, and the way to it: ``endpoint`` None for a store in files."""

    url: str
    endpoint: str | None = None

    def through(self, endpoint: str) -> Remote:
        """The same bucket over another way."""
        return Remote(self.url, endpoint)

    @property
    def options(self) -> tuple[str, ...]:
        """As the programs take it."""
        return ("--remote", self.url + (f"?endpoint={self.endpoint}" if self.endpoint else ""))


@dataclass
class Written:
    """What an application was told, by offset; ``uploaded``: up to where it was told that the bucket holds it."""

    acked: dict[int, str] = field(default_factory=dict)
    uploaded: int = 0

    def hear(self, answer: Answer) -> None:
        """Keeps what an answer acknowledges."""
        for offset, value in answer.get("acked", ()):
            assert offset not in self.acked, f"{offset} was acknowledged twice: {self.acked[offset]} and {value}"
            self.acked[offset] = value
        self.uploaded = max(self.uploaded, answer.get("uploaded_offset", 0))

    @property
    def safe(self) -> dict[int, str]:
        """What the bucket must hold."""
        return {offset: value for offset, value in self.acked.items() if offset < self.uploaded}


class Application:
    """``tests.integration.fencing.application`` on one log directory, as a context manager; killed at the end.

    Made when the log is open, or is not to be: ``opened`` says which.
    """

    def __init__(
        self, directory: Path, remote: Remote, *, component: bool = False, name: str = "", timestamp: int | None = None
    ) -> None:
        self.directory = directory
        self.written = Written()
        self.opened: Answer = {}
        words = [str(directory), remote.url, name or directory.name]
        words += ["--endpoint", remote.endpoint] if remote.endpoint else []
        words += ["--component"] if component else []
        words += ["--timestamp", str(timestamp)] if timestamp is not None else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.fencing.application", *words],
            env=environment(),
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.opened = self.answer()

    def send(self, command: str) -> None:
        """A command; ``answer`` hears what comes of it. It waits in the pipe while the process is stopped."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> Answer:
        """The next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the application ended with {self.process.wait(WAIT_SECONDS)}; it began with {self.opened}"
        answer: Answer = json.loads(line)
        self.written.hear(answer)
        return answer

    def ask(self, command: str) -> Answer:
        """A command and its answer."""
        self.send(command)
        return self.answer()

    def append(self, count: int) -> dict[int, str]:
        """What was acknowledged; an error fails the test."""
        before = set(self.written.acked)
        answer = self.ask(f"append {count}")
        assert "acked" in answer, answer
        return {offset: value for offset, value in self.written.acked.items() if offset not in before}

    def sync(self) -> int:
        """The committed end; an error fails the test."""
        answer = self.ask("sync 60")
        assert "uploaded_offset" in answer, answer
        return int(answer["uploaded_offset"])

    def end(self) -> int:
        """Closes the log; the exit status."""
        with contextlib.suppress(BrokenPipeError):
            self.send("end")
        return self.wait()

    def wait(self) -> int:
        """The exit status of a process that ends."""
        status = self.process.wait(WAIT_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()


@contextlib.contextmanager
def stopped(process: subprocess.Popen[Any]) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end: the process does nothing inside the ``with``, however long that takes."""
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"the process ended with {status}"
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def daemon(directory: Path, remote: Remote) -> Daemon:
    """The uploader of one directory, which looks often; it is at work."""
    one = Daemon("--log-dir", str(directory), *remote.options, "--scan", "50ms")
    one.wait_for("started")
    return one


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``tiered ARGUMENTS``, at work; killed at the end if it has not ended by itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tiered", *arguments],
        env=environment(),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=WAIT_SECONDS)


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``tiered ARGUMENTS``."""
    return subprocess.run(
        [sys.executable, "-m", "tiered", *arguments],
        env=environment(),
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def on_disk(directory: Path) -> dict[int, str]:
    """The records of a log directory by offset, each once and without a gap; the log may be open elsewhere."""
    with LogView.open(directory) as log:
        found = [record for batch in log.partition(TP).read_batches(0) for record in decode_records(batch)]
    first = found[0].offset if found else 0
    assert [record.offset for record in found] == list(range(first, first + len(found)))
    return {record.offset: (record.value or b"").rstrip(b".").decode() for record in found}


def judge(remote: Remote, *written: Written) -> dict[int, str]:
    """Raises AssertionError unless the bucket holds what was promised, once and without a gap; what it holds."""
    with tiered.open_reader(remote.url, endpoint_url=remote.endpoint) as reader:
        records = list(reader.topic(TOPIC).read())
    assert [record.offset for record in records] == list(range(len(records)))
    values = [(record.value or b"").rstrip(b".").decode() for record in records]
    assert len(set(values)) == len(values), "a record is there twice"
    held = dict(enumerate(values))
    for one in written:
        lost = {offset: value for offset, value in one.safe.items() if held.get(offset) != value}
        assert not lost, f"acknowledged as uploaded, and not there: {lost}"
    store = open_store(remote.url, endpoint_url=remote.endpoint)
    try:
        report = tiered.admin.check(None, store, read_data=True)
    finally:
        store.close()
    trouble = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    assert not trouble, trouble
    return held


def first_run(directory: Path, remote: Remote, count: int = 60) -> dict[int, str]:
    """A log of ``count`` records, all in the bucket, closed."""
    with Application(directory, remote, name="before") as writer:
        writer.append(count)
        assert writer.sync() == count
        assert writer.end() == 0
    return writer.written.acked
