"""Checked access to decoded JSON: a value has the type and the bounds it must have, or CorruptionError names it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

from tiered.errors import CorruptionError

MAX_TEXT_CHARS = 4096
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT32_MAX = 2**31 - 1
_HEX_DIGITS = frozenset("0123456789abcdef")

T = TypeVar("T")


class Kind(NamedTuple):
    """What one value must be: an integer in ``low..high``, or a text of so many characters."""

    type: type
    low: int
    high: int
    is_hex: bool = False
    """Lower-case hex digits: handed on as a number."""

    def __str__(self) -> str:
        if self.type is int:
            return f"an integer in {self.low}..{self.high}"
        return f"{self.high} lower-case hex digits" if self.is_hex else f"a string of at most {self.high} characters"


NUMBER = Kind(int, 0, INT64_MAX)
INT32 = Kind(int, 0, INT32_MAX)
TIME_MS = Kind(int, INT64_MIN, INT64_MAX)
TEXT = Kind(str, 0, MAX_TEXT_CHARS)
HEX_128 = Kind(str, 32, 32, is_hex=True)

Shape = Mapping[str, Any]
"""The fields that an object must have, each with its :class:`Kind`, or the shape of the object that it is."""


class Fields:
    """A JSON object from outside. ``key`` and ``position`` (bytes) say where it came from."""

    def __init__(self, values: object, *, key: str, position: int = 0, path: str = "") -> None:
        self.key, self.position, self.path = key, position, path
        if not isinstance(values, dict):
            self.refuse("", "is not an object")
        self.values: dict[str, Any] = values

    @classmethod
    def parse(cls, data: bytes, *, key: str, position: int = 0) -> Fields:
        """From UTF-8 JSON. Raises CorruptionError; NaN and infinities are refused, too."""
        try:
            values = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise CorruptionError(f"{key}: no readable JSON: {error}", path_or_key=key, position=position) from error
        return cls(values, key=key, position=position)

    def refuse(self, name: str, what: str) -> NoReturn:
        """Raises CorruptionError about one field."""
        path = f"{self.path}{name}" or "the header"
        raise CorruptionError(f"{self.key}: {path} {what}", path_or_key=self.key, position=self.position)

    def take(self, shape: Shape) -> dict[str, Any]:
        """The fields of ``shape``, each checked."""
        return self._taken(self.values, shape, "")

    def _taken(self, values: Any, shape: Shape, path: str) -> dict[str, Any]:
        if not isinstance(values, dict):
            self.refuse(path, "is not an object")
        found: dict[str, Any] = {}
        for name, kind in shape.items():
            value: Any = values.get(name)
            of = type(value)
            if not isinstance(kind, Kind):
                value = self._taken(value, kind, f"{path}{name}.")
            elif of is not kind.type or not kind.low <= (value if of is int else len(value)) <= kind.high:
                self.refuse(f"{path}{name}", f"is not {kind}")
            elif kind.is_hex:
                if not _HEX_DIGITS.issuperset(value):
                    self.refuse(f"{path}{name}", f"is not {kind}")
                value = int(value, 16)
            found[name] = value
        return found

    def number(self, name: str, low: int = 0, high: int = INT64_MAX) -> int:
        """An integer in ``low..high``."""
        value = self.values.get(name)
        if type(value) is not int or not low <= value <= high:
            self.refuse(name, f"is not an integer in {low}..{high}")
        return value

    def text(self, name: str, limit: int = MAX_TEXT_CHARS) -> str:
        """A string of at most ``limit`` characters."""
        value = self.values.get(name)
        if not isinstance(value, str) or len(value) > limit:
            self.refuse(name, f"is not a string of at most {limit} characters")
        return value

    def items(self, name: str, limit: int) -> list[Any]:
        """A list of at most ``limit`` entries, unchecked inside."""
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) > limit:
            self.refuse(name, f"is not a list of at most {limit} entries")
        return value

    def tuples(self, name: str, limit: int, make: Callable[[Fields], T], columns: tuple[str, ...]) -> tuple[T, ...]:
        """A list of short lists, each handed to ``make`` with its values named by ``columns``."""
        made = []
        for index, entry in enumerate(self.items(name, limit)):
            if not isinstance(entry, list) or len(entry) != len(columns):
                self.refuse(f"{name}[{index}]", f"is not a list of {len(columns)}")
            named = dict(zip(columns, entry, strict=True))
            made.append(make(Fields(named, key=self.key, position=self.position, path=f"{self.path}{name}[{index}].")))
        return tuple(made)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
