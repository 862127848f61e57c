"""Conversion between times as users write them and whole milliseconds since 1970 UTC.

::

    1357016400000                 int: milliseconds; one that can only be seconds (1357016400) is refused
    "1357016400000"               the same on a command line
    datetime(..., tzinfo=UTC)     aware; a naive one is refused, because its zone would be a guess
    "2013-01-01"                  midnight UTC
    "2013-01-01T05:00:00Z"        ISO 8601 with a zone, "+02:00" included
    "-3d" or "3d"                 three days ago; units ms, s, m, h, d, w; "1h30m" adds up
    "+1h"                         an hour from now
    "now"                         now; "now-3d" and "now+1h" as well

The functions are pure: the caller passes "now".
"""

from __future__ import annotations

import datetime as dt
import operator
import re
from typing import SupportsIndex

from tiered.errors import InvalidTimestampError

Time = int | str | dt.datetime

MAX_TIME_MS = 253_402_300_799_999
"""Last millisecond of the year 9999. A larger number is most likely in micro- or nanoseconds."""

SECONDS_FROM, SECONDS_END = 631_152_000, 4_102_444_800
"""Numbers that can only be seconds: 1990 to 2099. As milliseconds they would be in the first weeks of 1970."""

MAX_TEXT_CHARS = 64
"""Longest text that is parsed as a time, in characters."""

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_STEP = re.compile(r"(\d{1,15})(ms|s|m|h|d|w)", re.ASCII)
_SPAN = re.compile(r"(?:now)?([+-])?((?:\d{1,15}(?:ms|s|m|h|d|w))+)", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_FORMS = "write 2013-01-01, 2013-01-01T05:00:00Z, milliseconds since 1970, -3d or now"


def parse_time(value: Time | SupportsIndex, *, now_ms: int) -> int:
    """Return ``value`` as milliseconds since 1970 UTC, 0 to :data:`MAX_TIME_MS`.

    ``now_ms``: the time that relative times count from. A relative time before 1970 becomes 0.

    Raises InvalidTimestampError for a naive datetime, a time outside the range, a number that must be seconds, a
    four-digit year, and any other text or type.
    """
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        raise InvalidTimestampError(f"{value!r} is not a time", hint=_FORMS)
    if isinstance(value, int):
        return _number(value, value)
    if isinstance(value, dt.datetime):
        return _from_datetime(value, value)
    if isinstance(value, str):
        return _from_text(value.strip(), now_ms)
    try:
        return _number(operator.index(value), value)  # numpy's integers
    except TypeError:
        raise InvalidTimestampError(f"a {type(value).__name__} is not a time", hint=_FORMS) from None


def format_time(timestamp_ms: int) -> str:
    """Return the time as ISO 8601 in UTC, with milliseconds unless they are 0.

    Return ``-`` for a negative time, which means "none", and for one after the year 9999.
    """
    if not 0 <= timestamp_ms <= MAX_TIME_MS:
        return "-"
    moment = _EPOCH + dt.timedelta(milliseconds=timestamp_ms)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    millis = timestamp_ms % 1000
    # strftime does not pad years below 1000, which cannot occur here.
    return f"{text}.{millis:03d}Z" if millis else f"{text}Z"


def _from_text(text: str, now_ms: int) -> int:
    if not text:
        raise InvalidTimestampError("an empty text is not a time", hint=_FORMS)
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidTimestampError(f"a text of {len(text)} characters is not a time", hint=_FORMS)
    if text == "now":
        return now_ms
    span = _SPAN.fullmatch(text)
    if span is not None:
        return _relative(span, now_ms, text)
    if text.isascii() and text.isdigit():
        if len(text) == 4 and 1900 <= int(text) <= 2199:
            raise InvalidTimestampError(
                f"{text!r} may be a year or milliseconds", hint=f"write {text}-01-01 for the year"
            )
        return _number(int(text), text)
    return _from_iso(text)


def _relative(span: re.Match[str], now_ms: int, text: str) -> int:
    length_ms = sum(int(count) * UNITS_MS[unit] for count, unit in _STEP.findall(span[2]))
    if span[1] == "+":
        return _checked(now_ms + length_ms, text)
    if text.startswith("now") and span[1] is None:
        raise InvalidTimestampError(f"{text!r} is not a time", hint="write now-3d or now+3d")
    return max(0, now_ms - length_ms)


def _from_iso(text: str) -> int:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTimestampError(f"{text!r} is not a time", hint=_FORMS) from None
    if moment.tzinfo is None and _DAY.fullmatch(text):
        moment = moment.replace(tzinfo=dt.UTC)
    return _from_datetime(moment, text)


def _from_datetime(moment: dt.datetime, shown: object) -> int:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidTimestampError(
            f"the time {shown!s} has no time zone", hint="add one: Z for UTC or an offset such as +02:00"
        )
    return _checked((moment - _EPOCH) // dt.timedelta(milliseconds=1), shown)


def check_no_seconds(number: int, shown: object = None, what: str = "", index: int = 0) -> None:
    """Raise InvalidTimestampError for a number that must be seconds instead of milliseconds.

    ``shown``: the value to show in the message; None: ``number``. ``what``: beginning of the message. ``index``: the
    record's position in the call, for the error.
    """
    if SECONDS_FROM <= number < SECONDS_END:
        raise InvalidTimestampError(
            f"{what}the time {number if shown is None else shown!s} can only be seconds",
            index=index,
            hint=f"times are milliseconds: write {number * 1000}",
        )


def _number(number: int, shown: object) -> int:
    check_no_seconds(number, shown)
    return _checked(number, shown)


def _checked(timestamp_ms: int, shown: object) -> int:
    if timestamp_ms < 0:
        raise InvalidTimestampError(f"the time {shown!s} lies before 1970", hint="times begin at 1970-01-01")
    if timestamp_ms > MAX_TIME_MS:
        raise InvalidTimestampError(
            f"the time {shown!s} lies after the year 9999",
            hint="divide microseconds or nanoseconds: times are in milliseconds",
        )
    return timestamp_ms
