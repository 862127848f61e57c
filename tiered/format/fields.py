"""Checked access to decoded JSON: a value has the type and the bounds it must have, or CorruptionError names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from tiered.errors import CorruptionError

MAX_TEXT_CHARS = 4096
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT32_MAX = 2**31 - 1
_HEX_DIGITS = frozenset("0123456789abcdef")

T = TypeVar("T")


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

    def hex_number(self, name: str, digits: int) -> int:
        """Exactly ``digits`` hex digits, as a number."""
        value = self.text(name)
        if len(value) != digits or not _HEX_DIGITS.issuperset(value):
            self.refuse(name, f"is not {digits} lower-case hex digits")
        return int(value, 16)

    def child(self, name: str) -> Fields:
        """A nested object."""
        value = self.values.get(name)
        return Fields(value, key=self.key, position=self.position, path=f"{self.path}{name}.")

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
