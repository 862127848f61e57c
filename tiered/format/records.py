"""Decoded records in pure Python: the oracle for the compiled classes of the same names in ``_kernels``.

``kernels`` selects the classes in use. Both behave like named tuples (fields by name and by position, unpacking,
order, equality with tuples, ``_replace``) without being tuples. The compiled ones have key and value at once and
decode the other fields on access. A compiled record shares its batch's memory only until the next two records were
read, or its iterator is gone. Records, keys and values without references are reused for later ones.
"""

from __future__ import annotations

import codecs
import datetime as _dt
from collections.abc import Callable, Iterable, Iterator
from functools import total_ordering
from operator import itemgetter
from typing import Any, ClassVar, Self

from tiered.model import HeaderName, Headers

_EPOCH = _dt.datetime(1970, 1, 1, tzinfo=_dt.UTC)


def values_of(fields: tuple[str, ...], other: Any) -> tuple[Any, ...] | None:
    """Return ``other`` as a tuple, to compare it with a record that has ``fields``.

    Return None if ``other`` is neither a tuple nor a record with the same fields.
    """
    if isinstance(other, tuple):
        return other
    return tuple(other) if getattr(other, "_fields", None) == fields else None


def hash_of(values: tuple[Any, ...]) -> int:
    """Return the hash of the tuple ``values``, in which a list of headers counts as a tuple."""
    return hash(tuple(tuple(value) if type(value) is list else value for value in values))


def shown_fields(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> str:
    """Return the text of ``repr`` for a record of the class ``name``, as of a named tuple."""
    return f"{name}({', '.join(f'{field}={value!r}' for field, value in zip(fields, values, strict=True))})"


def datetime_of(timestamp: int) -> _dt.datetime:
    """Return a timestamp in milliseconds as an aware UTC datetime."""
    return _EPOCH + _dt.timedelta(milliseconds=timestamp)


def made_again(name: str, values: tuple[Any, ...]) -> object:
    """Return an unpickled record: ``values`` as the class ``name`` that this process uses, compiled or pure."""
    from tiered.format import kernels  # noqa: PLC0415  it imports this module

    return getattr(kernels, name)(*values)


@total_ordering
class Fields:
    """Base class of the records: the methods of a named tuple. ``_all``: values of all fields, in order."""

    __slots__ = ("_all",)
    _all: tuple[Any, ...]
    _fields: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Self:
        """Build a record from all field values, in declaration order."""
        return cls(*values)

    def _asdict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return dict(zip(self._fields, self._all, strict=True))

    def _replace(self, **fields: Any) -> Self:
        """Return a copy with other values for these fields. Raises TypeError for an unknown name."""
        return type(self)(**{**self._asdict(), **fields})

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, place: int | slice) -> Any:
        return self._all[place]

    def __repr__(self) -> str:
        return shown_fields(type(self).__name__, self._fields, self._all)

    def __hash__(self) -> int:
        return hash_of(self._all)

    def __eq__(self, other: object) -> bool:
        values = values_of(self._fields, other)
        return NotImplemented if values is None else self._all == values

    def __lt__(self, other: object) -> bool:
        values = values_of(self._fields, other)
        return NotImplemented if values is None else self._all < values

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        return made_again, (type(self).__name__, self._all)


class Record(Fields):
    """One decoded record, without topic and partition. A record without headers has ``()``."""

    __slots__ = ()
    __match_args__ = ("offset", "timestamp", "key", "value", "headers")
    _fields = __match_args__

    offset: int = property(itemgetter(0))  # type: ignore[assignment]
    timestamp: int = property(itemgetter(1))  # type: ignore[assignment]
    key: bytes | None = property(itemgetter(2))  # type: ignore[assignment]
    value: bytes | None = property(itemgetter(3))  # type: ignore[assignment]
    headers: Headers = property(itemgetter(4))  # type: ignore[assignment]

    def __init__(self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        self._all = (offset, timestamp, key, value, headers or ())


class ConsumerRecord(Fields):
    """One record as a reader gets it. Field names are those of Kafka's Python clients.

    ``timestamp``: milliseconds, -1 for none. ``timestamp_type``: 0 for CreateTime, 1 for LogAppendTime.
    ``leader_epoch``: that of its batch, -1 if unknown. ``value is None`` is a tombstone. ``tier`` is ``"local"`` or
    ``"remote"``. A record without headers has ``()``.
    """

    __slots__ = ()
    __match_args__ = (
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestamp_type",
        "key",
        "value",
        "headers",
        "leader_epoch",
        "tier",
    )
    _fields = __match_args__

    topic: str = property(itemgetter(0))  # type: ignore[assignment]
    partition: int = property(itemgetter(1))  # type: ignore[assignment]
    offset: int = property(itemgetter(2))  # type: ignore[assignment]
    timestamp: int = property(itemgetter(3))  # type: ignore[assignment]
    timestamp_type: int = property(itemgetter(4))  # type: ignore[assignment]
    key: bytes | None = property(itemgetter(5))  # type: ignore[assignment]
    value: bytes | None = property(itemgetter(6))  # type: ignore[assignment]
    headers: Headers = property(itemgetter(7))  # type: ignore[assignment]
    leader_epoch: int = property(itemgetter(8))  # type: ignore[assignment]
    tier: str = property(itemgetter(9))  # type: ignore[assignment]

    def __init__(  # noqa: PLR0917 - by place as well as by name, as the named tuple that it was
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        leader_epoch: int = -1,
        tier: str = "local",
    ) -> None:
        self._all = (topic, partition, offset, timestamp, timestamp_type, key, value, headers or (), leader_epoch, tier)

    @property
    def datetime(self) -> _dt.datetime:
        """The timestamp as an aware UTC datetime."""
        return datetime_of(self.timestamp)


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    """Return (U+FFFD, position after the invalid bytes): error handler that decodes like Java's ``new String``.

    The only difference from Python's "replace" is a surrogate (ED A0..BF ..): Java replaces its bytes as one.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, at = error.object, error.start
    if data[at] == 0xED and data[at + 1 : at + 2] >= b"\xa0" and _continues(data, at + 1):
        return "\ufffd", at + 2 + _continues(data, at + 2)
    return "\ufffd", error.end


def _continues(data: bytes, at: int) -> bool:
    return at < len(data) and data[at] & 0xC0 == 0x80


_AS_JAVA = "tiered-as-java"
codecs.register_error(_AS_JAVA, _replace_as_java)


def header_name(raw: bytes) -> str:
    """Decode a header's name. A name that is not UTF-8 becomes a :class:`~tiered.model.HeaderName` with its bytes."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return HeaderName.from_bytes(raw.decode("utf-8", _AS_JAVA), raw)
