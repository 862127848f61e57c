"""Positions in a log as users write them, in ``--from`` and ``--to`` of every command.

::

    beginning, end           the first offset, and where the next record goes
    4711                     an offset, of one partition
    2013-01-01, -3d, now     a time: the first record of that time or later
    s@1357016400000          a time in milliseconds; also any other form of a time
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tiered.errors import ConfigError, InvalidTimestampError
from tiered.times import parse_time

F = TypeVar("F", bound=Callable[..., Any])

MAX_OFFSET_DIGITS = 19
"""Most digits of an offset, which has 63 bits."""

_WORDS = {"beginning": "earliest", "end": "latest"}
_FORMS = "write beginning, end, an offset, 2013-01-01, -3d or s@TIME"


@dataclass(frozen=True, slots=True)
class LogPlace:
    """One end of a range: an ``offset`` (a number, ``earliest`` or ``latest``) or a time. Both None: not given.

    ``text``: the end as the user wrote it.
    """

    offset: int | str | None = None
    time_ms: int | None = None
    text: str = ""

    def offset_in(self, start: int, end: int, for_time: Callable[[int], tuple[int, int] | None]) -> int:
        """Return the offset of the place in a log from ``start`` to ``end``. A time after all records gives ``end``.

        An offset number is returned unchanged, even if the log does not have it.

        ``for_time``: function from a time in ms to the first (offset, timestamp) at or after that, None without one.
        """
        if self.time_ms is not None:
            found = for_time(self.time_ms)
            return end if found is None else found[0]
        if isinstance(self.offset, int):
            return self.offset
        return start if self.offset == "earliest" else end


def place(option: str, text: str | None, now_ms: int) -> LogPlace:
    """Return the place that ``text`` stands for; None: not given.

    ``now_ms``: time to which a relative time refers. Raises ConfigError, which names ``option``, for text that is
    neither an offset nor a time.
    """
    if text is None:
        return LogPlace()
    if text in _WORDS:
        return LogPlace(offset=_WORDS[text], text=text)
    if text.isascii() and text.isdigit():
        if len(text) > MAX_OFFSET_DIGITS:
            raise ConfigError(f"{option} {text} is larger than any offset", hint=_FORMS)
        return LogPlace(offset=int(text), text=text)
    try:
        return LogPlace(time_ms=parse_time(text.removeprefix("s@"), now_ms=now_ms), text=text)
    except InvalidTimestampError as cause:
        if cause.message.endswith("is not a time"):
            raise ConfigError(f"{option} {text!r} is not a place in a log", hint=_FORMS) from None
        raise ConfigError(f"{option}: {cause.message}", hint=cause.hint) from None


def range_options(function: F) -> F:
    """Add the options ``--from`` and ``--to`` to a command, which parses them by :func:`range_of`."""
    function = click.option("--to", "end", metavar="WHERE", help="end before this place; end by default")(function)
    about = "begin at beginning, end, an offset, a time (2013-01-01, -3d) or s@TIME"
    return click.option("--from", "begin", metavar="WHERE", help=about)(function)


def range_of(begin: str | None, end: str | None, now_ms: int) -> tuple[LogPlace, LogPlace]:
    """Return both ends of a range, given as the texts of ``--from`` and ``--to``; None: not given.

    ``now_ms``: time to which relative times refer. Raises ConfigError for a text that is neither an offset nor a time,
    and for reversed ends, whose range would look like an empty log.
    """
    first, last = place("--from", begin, now_ms), place("--to", end, now_ms)
    reversed_offsets = isinstance(first.offset, int) and isinstance(last.offset, int) and last.offset < first.offset
    reversed_times = first.time_ms is not None and last.time_ms is not None and last.time_ms < first.time_ms
    reversed_words = first.offset == "latest" and last.offset == "earliest"
    if reversed_offsets or reversed_times or reversed_words:
        raise ConfigError(f"--to {end} is before --from {begin}", hint="swap the two, or leave one out")
    return first, last


def need_one_partition(topic: str, partitions: int, *ends: LogPlace) -> None:
    """Raise ConfigError if an end of the range is an offset number and the topic has several partitions."""
    if partitions > 1 and any(isinstance(each.offset, int) for each in ends):
        raise ConfigError(
            f"offsets differ by partition, and {topic} has {partitions}", hint=f"name a partition: {topic}:0"
        )
