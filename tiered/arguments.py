"""Checks of the arguments of public functions, before any file, lock or request.

An integer is anything that :func:`operator.index` accepts (``numpy.int64`` too), but never ``bool``. A check returns
the value in the type that the rest of the product expects. A wrong argument raises ConfigError, a wrong part of a
record InvalidRecordError. The error names the argument, the given value and the expected one.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.config import MAX_PARTITIONS, S3_WORDS, S3Keywords, TopicConfig, parse_duration_ms
from tiered.errors import ConfigError, InvalidRecordError, InvalidTimestampError, UnknownTopicError
from tiered.model import Headers, NewRecord, TopicPartition
from tiered.times import check_no_seconds

SHOWN_CHARS = 80
"""Longest part of a wrong value that an error shows, in characters."""

OFFSET_HINT = 'an int from 0, "earliest" or "latest"'

T = TypeVar("T")


def whole(name: str, value: object, *, least: int | None = None, most: int | None = None) -> int:
    """Return ``value`` as an int, if it is a whole number from ``least`` to ``most`` (inclusive; None: no bound)."""
    hint = "a whole number" + (f" from {least}" if least is not None else "") + (f" to {most}" if most else "")
    number = value if type(value) is int else _index(value)
    if number is None:
        raise wrong(name, value, hint)
    if (least is not None and number < least) or (most is not None and number > most):
        raise ConfigError(f"{name}={number} is outside its limits", hint=f"{name} must be {hint}")
    return number


def flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False. Raises ConfigError, which names the argument ``name``, otherwise."""
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False")
    return value


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong(name, value, "a text that is not empty")
    if not value:
        raise ConfigError(f"{name} is empty", hint=f"give {name} a text of at least one character")
    return value


def text_of(name: str, value: object, *, most_bytes: int) -> str:
    """Return ``value`` if it is a text, not empty, of at most ``most_bytes`` bytes as UTF-8."""
    found = text(name, value)
    try:
        size = len(found.encode())
    except UnicodeEncodeError:
        raise wrong(name, value, "Unicode text: it holds half a surrogate pair") from None
    if size > most_bytes:
        raise ConfigError(
            f"{name} has {size} bytes, and the limit is {most_bytes}",
            hint=f"shorten {name} to {most_bytes} bytes of UTF-8",
        )
    return found


def text_or_none(name: str, value: object) -> str | None:
    return None if value is None else text(name, value)


def one_of(name: str, value: object, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise wrong(name, value, f"one of {', '.join(allowed)}")
    return value


def seconds(name: str, value: object) -> float:
    """Return a finite number of seconds as a float. A negative number becomes 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise wrong(name, value, "a number of seconds")
    return max(0.0, float(value))


def seconds_or_none(name: str, value: object) -> float | None:
    """Return a finite number of seconds as a float, 0 for a negative one. None, for no limit, stays None."""
    if value is None:
        return None
    if isinstance(value, float) and math.isinf(value):
        raise wrong(name, value, "a number of seconds, or None for no limit")
    return seconds(name, value)


def duration_s(name: str, value: object) -> float:
    """Return a duration in seconds, given as a number or as text such as "5s". None is infinity."""
    if value is None:
        return math.inf
    if isinstance(value, str):
        return seconds(name, parse_duration_ms(value, name) / 1000)
    return seconds(name, value)


def partition_count(topic: str, value: object) -> int:
    """Return a topic's number of partitions. Raises ConfigError unless it is 1 to ``MAX_PARTITIONS`` (inclusive)."""
    number = _index(value)
    if number is None:
        raise wrong("partitions", value, f"a whole number from 1 to {MAX_PARTITIONS}")
    if number < 1:
        raise ConfigError(f"topic {topic} needs at least one partition, not {number}", hint="partitions=1 or more")
    if number > MAX_PARTITIONS:
        raise ConfigError(
            f"topic {topic} cannot have {number} partitions", hint=f"a topic has at most {MAX_PARTITIONS} partitions"
        )
    return number


def partition_or_none(value: object) -> int | None:
    return None if value is None else whole("partition", value)


def offset_or_none(name: str, value: object) -> int | str | None:
    """Return an offset: an int from 0, its digits, "earliest" ("beginning"), "latest" ("end"), or None.

    Text stays text. Raises ConfigError, which names the argument ``name``, for other values.
    """
    if value is None:
        return None
    if isinstance(value, str):
        if value in ("earliest", "beginning", "latest", "end") or (value.isascii() and value.isdecimal()):
            return value
        raise ConfigError(f"{name}={_shown(value)} is not an offset", hint=OFFSET_HINT)
    number = value if type(value) is int else _index(value)
    if number is None:
        raise ConfigError(f"{name}={_shown(value)} is not an offset", hint=OFFSET_HINT)
    if number < 0:
        raise ConfigError(f"{name}={number}: an offset is not negative", hint=OFFSET_HINT)
    return number


def path(name: str, value: object) -> Path:
    hint = "a path, as text or pathlib.Path"
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise wrong(name, value, hint)
    if not str(value) or "\0" in str(value):
        raise wrong(name, str(value), hint + '; "." is the current directory')
    return at_home(name, Path(value))


def path_or_none(name: str, value: object) -> Path | None:
    """Return ``value`` as a path, None if it is None. Raises ConfigError for another type, empty text or a NUL."""
    return None if value is None else path(name, value)


def at_home(name: str, place: Path) -> Path:
    """Return the path ``place`` with a leading ``~`` replaced by the home directory, as a shell does.

    Raises ConfigError, with the argument ``name``, if the home directory is unknown: no folder ``~`` is created.
    """
    if not str(place).startswith("~"):
        return place
    try:
        return place.expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{name + ': ' if name else ''}{place} begins with ~, and that home directory is unknown",
            hint="set HOME, or write an absolute path",
        ) from error


def paths(name: str, value: object) -> list[Path]:
    """Return ``value``, one path or several, as a list. Raises ConfigError for an empty list and for other values."""
    if isinstance(value, str | os.PathLike):
        return [path(name, value)]
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray | memoryview) or not value:
        raise wrong(name, value, "a path, or a list of paths of one log")
    return [path(f"{name}[{index}]", each) for index, each in enumerate(value)]


def url_or_none(name: str, value: object) -> str | None:
    """Return the URL of a store or None. A path object is returned as text.

    Raises ConfigError for empty text and other types. ``store.location`` parses the URL later.
    """
    if value is None:
        return None
    return str(path(name, value)) if isinstance(value, os.PathLike) else text(name, value)


class StorePlace(NamedTuple):
    """URL of a store, and the settings to connect to it."""

    url: str | None
    s3: S3Keywords
    deadline_seconds: float | None

    @classmethod
    def checked(cls, remote: object, deadline_seconds: object, s3: Mapping[str, object]) -> StorePlace:
        """Check the keyword arguments of ``open`` and ``open_reader`` that describe a store, and return them.

        ``s3``: only the keywords that were given. Raises TypeError for an unknown one. Raises ConfigError for a wrong
        value, and for any of these arguments without ``remote``.
        """
        for name in s3:
            if name not in S3_WORDS:
                raise TypeError(f"unexpected keyword argument {name!r}; the S3 arguments are {', '.join(S3_WORDS)}")
        given = {name: text_or_none(name, value) for name, value in s3.items() if value is not None}
        place = cls(
            url_or_none("remote", remote),
            cast("S3Keywords", given),
            seconds_or_none("deadline_seconds", deadline_seconds),
        )
        of_remote = [*given, *([] if place.deadline_seconds is None else ["deadline_seconds"])]
        if place.url is None and of_remote:
            raise ConfigError(f"{min(of_remote)} needs a remote", hint='add remote="s3://bucket/prefix"')
        return place

    def seconds(self, default: float) -> float:
        """Return the seconds for which a request is retried: ``deadline_seconds``, or ``default`` if it is None."""
        return default if self.deadline_seconds is None else self.deadline_seconds


def instance(name: str, value: object, kind: type[T], hint: str) -> T:
    if not isinstance(value, kind):
        raise wrong(name, value, hint)
    return value


def has(name: str, value: T, methods: Iterable[str], hint: str) -> T:
    """Return ``value`` if it is None or an object with these methods. Raises ConfigError otherwise, also for a class.

    ``name``: the argument, for the error. ``hint``: text of the expected value, for the error.
    """
    if isinstance(value, type) or (
        value is not None and not all(callable(getattr(value, method, None)) for method in methods)
    ):
        raise wrong(name, value, hint)
    return value


def clock_and_ids(clock: object, ids: object) -> tuple[Clock, IdSource]:
    """Return the sources of time and of random ids, those of the machine for None.

    Raises ConfigError for an object without the methods of a Clock or an IdSource.
    """
    hint = "an object as tiered.clock describes it, or None"
    has("clock", clock, ("now_ms", "monotonic", "sleep", "wait"), hint)
    has("ids", ids, ("uuid", "uid", "random"), hint)
    return cast("Clock", clock or SystemClock()), cast("IdSource", ids or SystemIds())


def topic_settings(value: object) -> dict[str, Any]:
    """Return settings by dotted name, from a ``TopicConfig`` or a mapping with Kafka's names. None: an empty dict.

    For a ``TopicConfig`` only settings that differ from their default are returned. Raises ConfigError for another
    type, an unknown name and a wrong value.
    """
    if value is None:
        return {}
    if isinstance(value, TopicConfig):
        return value.to_properties(changed_only=True)
    if not isinstance(value, Mapping):
        raise wrong("config", value, 'a TopicConfig or a dict, {"segment.bytes": 1_000_000}')
    return TopicConfig.from_properties(value).named(value)


def selected(value: object) -> tuple[str | TopicPartition, ...]:
    """Return topic names and TopicPartitions as a tuple. ``value``: an iterable of them, or a single one."""
    if isinstance(value, str | TopicPartition):
        return (value,)
    found = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(each, str | TopicPartition) for each in found):
        raise wrong("selected", value, 'a list of topics and partitions: ["flights", TopicPartition("orders", 0)]')
    return found


def selected_partitions(value: object) -> tuple[TopicPartition, ...]:
    """Return TopicPartitions as a tuple. ``value``: an iterable of them, or a single one."""
    found = selected(value)
    partitions = tuple(each for each in found if isinstance(each, TopicPartition))
    if len(partitions) < len(found):
        raise wrong("selected", value, 'partitions: [TopicPartition("orders", 0)]')
    return partitions


def chosen_partitions(topic: str, count: int, partition: int | None) -> list[int]:
    """Return the numbers of the partitions of ``topic`` to work on: ``[partition]``, or 0 to ``count - 1`` for None.

    ``count``: number of partitions of the topic. Raises UnknownTopicError if it has no ``partition``.
    """
    if partition is None:
        return list(range(count))
    if not 0 <= partition < count:
        raise UnknownTopicError(
            f"topic {topic} has no partition {partition}", hint=f"its partitions are 0 to {count - 1}" if count else ""
        )
    return [partition]


def columns_or_none(value: object, known: Sequence[str]) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise wrong("columns", value, f"a list of {', '.join(known)}")
    return [one_of("columns", each, known) for each in value]


def key(value: object) -> bytes | bytearray | memoryview:
    """Return ``value`` if it is a key: bytes, bytearray or memoryview. Raises ConfigError otherwise, also for None."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ConfigError(f"key is {_kind(value)}, not bytes", hint="encode it first")
    return value


# -- records -----------------------------------------------------------------------------------------------------------


def batches(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidRecordError(
            f"the batches are {_kind(value)}, not bytes", hint="append_batches takes encoded v2 batches, as bytes"
        )
    return value if isinstance(value, bytes) else bytes(value)


def records(value: object) -> Iterator[Any]:
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        raise InvalidRecordError(
            f"records is {_kind(value)}, not a list of records",
            hint="append_many takes a list of NewRecord(value, key, timestamp, headers), (value, key) or bytes",
        )
    return iter(value)


def record(given: NewRecord, index: int) -> NewRecord:
    """Check the types of a record's fields, and return it with an int timestamp. The log makes all other checks.

    Raises InvalidRecordError for a wrong type, InvalidTimestampError for a timestamp that is no int or in seconds.
    ``index``: the record's position in the call, for these errors.
    """
    value, key_, timestamp, headers = given
    if value is not None and type(value) is not bytes:
        _check_bytes("value", value, index)
    if key_ is not None and type(key_) is not bytes:
        _check_key(key_, index)
    if headers is not None:
        check_headers(headers, index)
    if type(timestamp) is not int:
        number = _index(timestamp)
        if number is None:
            raise InvalidTimestampError(
                f"record {index}: timestamp={_shown(timestamp)} is not a time in milliseconds",
                index=index,
                hint="pass whole milliseconds since 1970 UTC",
            )
        given, timestamp = given._replace(timestamp=number), number
    check_no_seconds(timestamp, what=f"record {index}: ", index=index)
    return given


def place_in_call(records: Sequence[object], group: Sequence[object], index: int) -> int:
    """Return the index of the record ``group[index]`` among all ``records`` of a call.

    ``group``: the records of one partition, in the order of the call. An ``index`` after its end is returned unchanged.
    """
    if index >= len(group):
        return index
    before = sum(each is group[index] for each in group[:index])  # one object may stand in a call more than once
    return [place for place, each in enumerate(records) if each is group[index]][before]


def check_headers(headers: Headers | object, index: int) -> None:
    """Raise InvalidRecordError if headers are not pairs of a text, and bytes or None. ``index``: the record's index."""
    hint = 'headers=[("trace", b"abc"), ("empty", None)]'
    if not isinstance(headers, list | tuple):
        raise InvalidRecordError(f"record {index}: headers is {_kind(headers)}, not a list", index=index, hint=hint)
    for pair in headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidRecordError(
                f"record {index}: the header {_shown(pair)} is not a pair of a text and bytes", index=index, hint=hint
            )
        if pair[1] is not None:
            _check_bytes(f"header {_shown(pair[0])}", pair[1], index)


def _check_key(value: object, index: int) -> None:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidRecordError(
            f"record {index}: key is {_kind(value)}, not bytes", index=index, hint="encode it first"
        )


def _check_bytes(name: str, value: object, index: int) -> None:
    try:
        memoryview(value)  # type: ignore[arg-type]  # this is the question
    except (TypeError, ValueError):
        raise InvalidRecordError(
            f"record {index}: {name} is {_kind(value)}, not bytes", index=index, hint="encode it first"
        ) from None


# ----------------------------------------------------------------------------------------------------------------------


def wrong(name: str, value: object, expected: str) -> ConfigError:
    """Return the error for a wrong value or type of the argument ``name``. ``expected``: what is right, in words."""
    return ConfigError(f"{name}={_shown(value)} ({_kind(value)}) is not allowed", hint=f"{name} must be {expected}")


def _index(value: object) -> int | None:
    """Return a whole number; None for anything else, ``bool`` and numpy's ``bool_`` included."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # this is the question
    except TypeError:
        return None


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - whatever a stranger's repr does, this is an error message
        return "?"
    shown = " ".join(shown.split())
    return shown if len(shown) <= SHOWN_CHARS else shown[: SHOWN_CHARS - 3] + "..."
