"""What the operator sees of the work: log lines, counters, the service manager's watchdog."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping

from tiered.clock import Clock
from tiered.engine.reports import Level, Report, Step, StepKind
from tiered.engine.runner import TICK_MS
from tiered.errors import TieredError
from tiered.model import TopicPartition
from uploader import logs
from uploader.metrics import Metrics

REPEAT_SECONDS = 300.0
"""The same trouble outside the state is told this often."""

STOP_SPARE_MS = 10_000
"""What the service manager is asked to wait beyond the time of the drain: for what is cancelled, and the last notes."""

_LEVELS = {Level.INFO: logging.INFO, Level.WARN: logging.WARNING, Level.ERROR: logging.ERROR}


class Telemetry:
    """On the event loop only."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        *,
        notify: Notify | None = None,
        each_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.metrics = metrics
        self.has_warned = False
        self._each_tick = each_tick
        self._clock = clock
        self._notify = notify or Notify("")
        self.committed: dict[TopicPartition, int] = {}
        self.disk_used_percent = 0
        self._told: dict[tuple[str, str], float] = {}

    def report(self, report: Report) -> None:
        """One line for what the state says."""
        self.has_warned |= report.level is not Level.INFO
        fields: dict[str, str | int] = dict(report.fields)
        if report.tp is not None:
            fields |= {"topic": report.tp.topic, "partition": report.tp.partition}
        logs.emit(_LEVELS[report.level], report.event, report.message, fields)

    def ended(self, step: Step, error: BaseException | None, seconds: float) -> None:
        """Count the end of a step."""
        result = "ok" if error is None else error.code if isinstance(error, TieredError) else "internal"
        if error is not None:
            self.metrics.errors.labels(result).inc()
        if step.kind is StepKind.COMMIT and step.tp is not None:
            self.metrics.commits.labels(result).inc()
            self.metrics.commit_seconds.observe(seconds)
            if error is None:
                self.committed[step.tp] = self.committed.get(step.tp, 0) + step.records
                self.metrics.last_commit.set(self._clock.now_ms() / 1000)
        elif step.kind is StepKind.UPLOAD and error is None:
            self.metrics.upload_seconds.observe(seconds)
            self.metrics.uploaded_bytes.inc(step.size_bytes)

    def disk(self, free_bytes: int, used_percent: int) -> None:
        """Free bytes of the log's disk, and how many percent of it are used."""
        self.metrics.disk_free_bytes, self.disk_used_percent = free_bytes, used_percent

    def trouble(self, event: str, error: BaseException) -> None:
        """Something beside the orders failed: told at once, repeats rarely."""
        self.has_warned = True
        key = (event, str(error))
        now = self._clock.monotonic()
        if now - self._told.get(key, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            self._told = {known: at for known, at in self._told.items() if now - at < REPEAT_SECONDS}
            self._told[key] = now
            logs.emit(logging.WARNING, event, str(error), {})

    def bug(self, error: BaseException) -> None:
        """An error that is in no tree: always with its traceback, for the report to the developers."""
        logs.emit(logging.ERROR, "internal_error", f"{type(error).__name__}: {error}", {}, error=error)

    def tick(self, partitions: int, behind: int) -> None:
        """Tells the service manager that the loop lives, and in one line what it does."""
        self._notify.send(f"WATCHDOG=1\nSTATUS={partitions} partitions, {behind} behind")
        self._each_tick()


class Notify:
    """systemd's ``sd_notify`` protocol; nothing happens without ``NOTIFY_SOCKET``.

    ``WATCHDOG=1`` is sent by the event loop alone, once a second or twice in each ``WATCHDOG_USEC``: a loop that is
    stuck is silent, and the service manager restarts it.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "") if address is None else address

    @staticmethod
    def tick_ms(environ: Mapping[str, str] = os.environ) -> int:
        """How often the loop has to say that it lives."""
        limit, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        if not limit.isdigit() or pid not in ("", str(os.getpid())):  # another process's watchdog, inherited from it
            return TICK_MS
        return max(1, min(TICK_MS, int(limit) // 2_000))

    def reloading(self, monotonic: float) -> None:
        """SIGHUP was heard: until ``ready`` the settings are those of before. ``monotonic`` seconds."""
        self.send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic * 1_000_000)}")

    def ready(self, status: str) -> None:
        """It works, under the settings that it has now."""
        self.send(f"READY=1\nSTATUS={status}")

    def stopping(self, wait_ms: int) -> None:
        """The end has begun, and may take ``wait_ms``: it is not to be killed before."""
        self.send(f"STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={(wait_ms + STOP_SPARE_MS) * 1_000}")

    def send(self, text: str) -> None:
        """One datagram; a service manager that does not listen is no reason to stop, and may listen later.

        Its queue is short (10 datagrams, often): while it is busy a message is lost, and the next one is sent again.
        """
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(text.encode("utf-8", "backslashreplace"), address)  # a path may hold what is no UTF-8
