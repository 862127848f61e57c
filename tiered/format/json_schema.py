"""Checked access to decoded JSON: a CorruptionError names each value with a wrong type or out of bounds."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, NoReturn

from tiered.errors import ConfigError, CorruptionError

MAX_TEXT_CHARS = 4096
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT32_MAX = 2**31 - 1
_HEX_DIGITS = frozenset("0123456789abcdef")


class ValueType(NamedTuple):
    """Type and inclusive bounds of one value: an integer in ``low..high``, or a text of ``low..high`` characters."""

    type: type
    low: int
    high: int
    is_hex: bool = False
    """True for lower-case hex digits, returned as a number."""

    def __str__(self) -> str:
        if self.type is int:
            return f"an integer in {self.low}..{self.high}"
        return f"{self.high} lower-case hex digits" if self.is_hex else f"a string of at most {self.high} characters"


class ListOf(NamedTuple):
    """List of at most ``limit`` entries.

    ``of``: a :class:`ValueType` for single values. A shape (types by field name): each entry is a list with one
    value of each type, in order. None: entries are not checked.
    """

    of: Any
    limit: int


NUMBER = ValueType(int, 0, INT64_MAX)
INT32 = ValueType(int, 0, INT32_MAX)
TIME_MS = ValueType(int, INT64_MIN, INT64_MAX)
TEXT = ValueType(str, 0, MAX_TEXT_CHARS)
HEX_128 = ValueType(str, 32, 32, is_hex=True)

Shape = Mapping[str, Any]
"""Fields that an object must have, each with a :class:`ValueType`, a :class:`ListOf`, or the shape of an object."""


class JsonObject:
    """Untrusted JSON object. ``key`` and ``position`` (bytes) give its origin for errors."""

    def __init__(self, data: bytes, *, key: str, position: int = 0) -> None:
        """Decode ``data``, a JSON object in UTF-8. Raises CorruptionError for other data, NaN and infinities."""
        self.key, self.position = key, position
        try:
            values = _DECODER.decode(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise CorruptionError(
                f"{key}: the header is not valid JSON: {error}", path_or_key=key, position=position
            ) from error
        if not isinstance(values, dict):
            self.refuse("", "is not an object")
        self.values: dict[str, Any] = values

    def refuse(self, name: str, what: str) -> NoReturn:
        """Raise CorruptionError about the field ``name`` ("": the whole object). ``what``: message after the name."""
        raise CorruptionError(
            f"{self.key}: {name or 'the header'} {what}", path_or_key=self.key, position=self.position
        )

    def check_format(self, newest: int) -> None:
        """Raise ConfigError if the field ``format`` is above ``newest``. Call this before any other field is read."""
        found = self.values.get("format")
        if type(found) is int and found > newest:
            raise ConfigError(
                f"{self.key} was written by a newer release: it has format {found}, this one reads {newest}",
                hint="upgrade tieredlog; nothing was changed",
            )

    def checked_fields(self, shape: Shape, values: Mapping[str, Any] | None = None, path: str = "") -> dict[str, Any]:
        """Return the fields that ``shape`` names, each checked. ``shape``: type of each field by its name.

        ``values``: nested object to read instead of the whole one. ``path`` precedes field names in errors. Raises
        CorruptionError for a field that is missing or invalid.
        """
        if values is None:
            values = self.values
        found: dict[str, Any] = {}
        for name, kind in shape.items():
            value: Any = values.get(name)
            of = type(value)
            if isinstance(kind, ValueType):
                if of is not kind.type or not kind.low <= (value if of is int else len(value)) <= kind.high:
                    self.refuse(f"{path}{name}", f"is not {kind}")
                if kind.is_hex:
                    if not _HEX_DIGITS.issuperset(value):
                        self.refuse(f"{path}{name}", f"is not {kind}")
                    value = int(value, 16)
            elif isinstance(kind, ListOf):
                if of is not list or len(value) > kind.limit:
                    self.refuse(f"{path}{name}", f"is not a list of at most {kind.limit} entries")
                if value and kind.of is not None:
                    value = self._entries(kind.of, value, f"{path}{name}")
            elif of is not dict:
                self.refuse(f"{path}{name}", "is not an object")
            else:
                value = self.checked_fields(kind, value, f"{path}{name}.")
            found[name] = value
        return found

    def _entries(self, of: ValueType | Shape, entries: list[Any], path: str) -> list[Any]:
        if isinstance(of, ValueType):
            named = {f"[{index}]": entry for index, entry in enumerate(entries)}
            return list(self.checked_fields(dict.fromkeys(named, of), named, path).values())
        found = []
        plain = all(isinstance(kind, ValueType) and not kind.is_hex for kind in of.values())
        for index, entry in enumerate(entries):
            if plain and _are(of.values(), entry):
                found.append(entry)
                continue
            if not isinstance(entry, list) or len(entry) != len(of):
                self.refuse(f"{path}[{index}]", f"is not a list of {len(of)}")
            taken = self.checked_fields(of, dict(zip(of, entry, strict=True)), f"{path}[{index}].")
            found.append(list(taken.values()))
        return found


def _are(kinds: Collection[ValueType], entry: Any) -> bool:
    """Return True if ``entry`` is a list with one valid value of each of ``kinds``: the fast path for valid entries."""
    if type(entry) is not list or len(entry) != len(kinds):
        return False
    for (wanted, low, high, _), value in zip(kinds, entry, strict=True):
        of = type(value)
        if of is not wanted or not low <= (value if of is int else len(value)) <= high:
            return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
