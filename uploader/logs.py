"""Log lines: one event a line with a stable name, as JSON or as text. Secrets are never logged."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from typing import Any

LOGGER_NAME = "tiered.uploader"
EVENT = "tiered_event"
FIELDS = "tiered_fields"


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
    """Formatter of ``LEVEL event topic-partition message``, without a time, which the journal adds."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, FIELDS, {})
        place = f" {fields['topic']}-{fields['partition']}" if "topic" in fields and "partition" in fields else ""
        text = f"{record.levelname:<7} {getattr(record, EVENT, record.name)}{place}: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def configure(form: str, *, debug: bool = False, brief: bool = False) -> logging.Handler:
    """Send all loggers to stderr, those of SDKs only from WARNING. For programs, not libraries.

    In text mode the final error is left to the program's last line. ``brief``: log only what that line does not say.
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
    """Log one line."""
    logging.getLogger(LOGGER_NAME).log(level, "%s", message, extra={EVENT: event, FIELDS: fields}, exc_info=error)


def _said_at_the_end(record: logging.LogRecord, brief: bool) -> bool:
    event = getattr(record, EVENT, "")
    if event == "ended":
        return brief or record.levelno > logging.INFO
    failed = event in ("failed", "still_failing") and record.levelno >= logging.ERROR
    return brief and (failed or (record.name == LOGGER_NAME and record.levelno < logging.WARNING))


def _iso(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
