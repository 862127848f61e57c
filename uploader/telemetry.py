"""Log lines, counters and the service manager's watchdog, for the operator.

A log line is one event with a stable name, as JSON or as text. Secrets are never logged.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tiered.clock import Clock
from tiered.engine.reports import Report, Step, StepKind
from tiered.engine.runner import TICK_MS
from tiered.errors import TieredError
from tiered.model import TopicPartition
from uploader.metrics import Metrics

REPEAT_SECONDS = 300.0
"""Seconds after which the same problem outside the state is logged again."""

STOP_SPARE_MS = 10_000
"""Milliseconds that the service manager waits beyond the drain, for cancelled uploads and the last notes."""

LOGGER_NAME = "tiered.uploader"
EVENT = "tiered_event"
FIELDS = "tiered_fields"


class Telemetry:
    """Listener of the upload engine: it writes log lines and metrics. Use it on the event loop only.

    ``each_tick``: called in a regular interval, one second by default. ``committed``: number of offsets that this run
    has committed, by partition.
    """

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
        self._told: dict[tuple[str, str], float] = {}

    def report(self, report: Report) -> None:
        """Log a report of the engine."""
        self.has_warned |= report.level is not logging.INFO
        fields: dict[str, str | int] = dict(report.fields)
        if report.tp is not None:
            fields |= {"topic": report.tp.topic, "partition": report.tp.partition}
        emit(report.level, report.event, report.message, fields)

    def ended(self, step: Step, error: BaseException | None, seconds: float) -> None:
        """Count the end of a step in the metrics. ``error`` None: it succeeded. ``seconds``: how long it took."""
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
        """Set the metrics of the log's disk: free bytes and used percentage."""
        self.metrics.disk_free_bytes, self.metrics.disk_used_percent = free_bytes, used_percent

    def trouble(self, event: str, error: BaseException) -> None:
        """Log a failure outside of the steps, such as a failed scan.

        The same failure is logged once in ``REPEAT_SECONDS``.
        """
        self.has_warned = True
        key = (event, str(error))
        now = self._clock.monotonic()
        if now - self._told.get(key, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            self._told = {known: at for known, at in self._told.items() if now - at < REPEAT_SECONDS}
            self._told[key] = now
            emit(logging.WARNING, event, str(error), {})

    def bug(self, error: BaseException) -> None:
        """Log an unexpected exception with its traceback, for a report to the developers."""
        emit(logging.ERROR, "internal_error", f"{type(error).__name__}: {error}", {}, error=error)

    def tick(self, partitions: int, behind: int) -> None:
        """Send the watchdog message and a status line to the service manager. Then call ``each_tick``.

        ``partitions``: number of all partitions. ``behind``: number of partitions that wait for an upload.
        """
        self._notify.send(f"WATCHDOG=1\nSTATUS={partitions} partitions, {behind} behind")
        self._each_tick()


class Notify:
    """Client of systemd's ``sd_notify`` protocol. ``address``: its socket; None: that in ``NOTIFY_SOCKET``.

    Without an address nothing is sent. The event loop sends ``WATCHDOG=1`` once a second, or twice in each
    ``WATCHDOG_USEC`` if that is shorter. A stuck loop sends nothing, so the service manager restarts the process.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "") if address is None else address

    @staticmethod
    def tick_ms(environ: Mapping[str, str] = os.environ) -> int:
        """Return the period of watchdog messages in ms."""
        limit, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        if not limit.isdigit() or pid not in ("", str(os.getpid())):  # an inherited watchdog of another process
            return TICK_MS
        return max(1, min(TICK_MS, int(limit) // 2_000))

    def reloading(self, monotonic: float) -> None:
        """Report that a reload has begun, which ends with :meth:`ready`.

        ``monotonic``: time of the reload in seconds.
        """
        self.send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic * 1_000_000)}")

    def ready(self, status: str) -> None:
        """Report that the service runs with its current settings."""
        self.send(f"READY=1\nSTATUS={status}")

    def stopping(self, wait_ms: int) -> None:
        """Report that the service is about to end, which may take ``wait_ms``."""
        self.send(f"STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={(wait_ms + STOP_SPARE_MS) * 1_000}")

    def send(self, text: str) -> None:
        """Send one datagram to the service manager. Do nothing if the manager does not listen.

        The manager's queue is short (often 10 datagrams). A message to a full queue is lost.
        """
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(text.encode("utf-8", "backslashreplace"), address)  # a path may hold invalid UTF-8


class JsonFormatter(logging.Formatter):
    """Formatter of ``{"ts": ..., "level": ..., "event": ..., "message": ...}``. Other loggers have event ``log``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": _iso(record.created),
            "level": record.levelname.lower(),
            "event": getattr(record, EVENT, "log"),
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.name != LOGGER_NAME:
            line["logger"] = record.name
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Formatter of ``LEVEL event topic-partition message``. systemd's journal adds the time."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, FIELDS, {})
        place = f" {fields['topic']}-{fields['partition']}" if "topic" in fields and "partition" in fields else ""
        text = f"{record.levelname:<7} {getattr(record, EVENT, record.name)}{place}: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def configure(form: str, *, debug: bool = False, brief: bool = False) -> logging.Handler:
    """Send all log lines to stderr in the format ``form``. SDKs log from WARNING on. For programs, not for libraries.

    Return the new handler. ``form``: "json" or "text". ``debug``: log from DEBUG on. In text mode without ``debug`` the
    final error is not logged, because the program prints it as its last line. ``brief``: in that case also leave out
    failures that this line repeats, and the uploader's lines below WARNING.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    if form != "json" and not debug:
        handler.addFilter(lambda record: not _said_at_the_end(record, brief))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tiered").setLevel(logging.DEBUG if debug else logging.INFO)
    return handler


def emit(level: int, event: str, message: str, fields: dict[str, Any], *, error: BaseException | None = None) -> None:
    """Log one line. ``fields``: further values. ``error``: adds its traceback."""
    logging.getLogger(LOGGER_NAME).log(level, "%s", message, extra={EVENT: event, FIELDS: fields}, exc_info=error)


def _said_at_the_end(record: logging.LogRecord, brief: bool) -> bool:
    event = getattr(record, EVENT, "")
    if event == "ended":
        return brief or record.levelno > logging.INFO
    failed = event in ("failed", "still_failing") and record.levelno >= logging.ERROR
    return brief and (failed or (record.name == LOGGER_NAME and record.levelno < logging.WARNING))


def _iso(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
