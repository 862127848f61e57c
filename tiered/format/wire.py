"""Kafka's wire types, as its internal topics store them. Every length is checked before anything is allocated.

==================== ======================================================================================
int8 ... int64       big-endian
string               length i16, -1 for null, then UTF-8
array                count i32, -1 for null
*compact* string,    the same with length + 1 as unsigned varint, 0 for null: "flexible" versions
array
tagged fields        at the end of a flexible struct: count, then (tag, size, bytes) each, tags rising
==================== ======================================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TypeVar

from tiered.errors import ConfigError, CorruptionError

MAX_TAGGED_FIELDS = 64
_MAX_VARINT_BYTES = 5
_SHORT, _INT, _LONG, _BYTE = (struct.Struct(f) for f in (">h", ">i", ">q", ">b"))

T = TypeVar("T")


class WireReader:
    """Reads one key or value from its beginning. ``what`` names it in errors; positions are bytes in it."""

    __slots__ = ("_data", "flexible", "position", "what")

    def __init__(self, data: bytes | memoryview, what: str, *, flexible: bool = False) -> None:
        self._data = memoryview(data)
        self.what = what
        self.position = 0
        self.flexible = flexible

    def error(self, message: str) -> CorruptionError:
        return CorruptionError(f"{self.what}: {message}", position=self.position)

    @property
    def left(self) -> int:
        return len(self._data) - self.position

    def _number(self, form: struct.Struct) -> int:
        if self.left < form.size:
            raise self.error(f"{self.left} bytes left where {form.size} are needed")
        (value,) = form.unpack_from(self._data, self.position)
        self.position += form.size
        return int(value)

    def int8(self) -> int:
        return self._number(_BYTE)

    def int16(self) -> int:
        return self._number(_SHORT)

    def int32(self) -> int:
        return self._number(_INT)

    def int64(self) -> int:
        return self._number(_LONG)

    def varint(self) -> int:
        """Read an unsigned varint of at most 32 bits."""
        value = 0
        for i in range(_MAX_VARINT_BYTES):
            byte = self._number(_BYTE) & 0xFF
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                if value >= 2**32:
                    break
                return value
        raise self.error("a varint of more than 32 bits")

    def raw(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise self.error(f"{self.left} bytes left where {count} are needed")
        self.position += count
        return bytes(self._data[self.position - count : self.position])

    def _length(self, short: bool) -> int:
        if self.flexible:
            return self.varint() - 1
        return self.int16() if short else self.int32()

    def nullable_string(self) -> str | None:
        length = self._length(short=True)
        if length == -1:
            return None
        data = self.raw(length)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"a string is not UTF-8: {error.reason}") from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise self.error("a string is null")
        return text

    def nullable_array(self, item: Callable[[], T], *, item_bytes: int) -> tuple[T, ...] | None:
        """Read an array by calling ``item`` per element; None for null. ``item_bytes`` is the minimum of one."""
        count = self._length(short=False)
        if count == -1:
            return None
        # an absurd count is refused before anything is allocated
        if count < 0 or count * item_bytes > self.left:
            raise self.error(f"{count} items cannot be in {self.left} bytes")
        return tuple(item() for _ in range(count))

    def array(self, item: Callable[[], T], *, item_bytes: int) -> tuple[T, ...]:
        items = self.nullable_array(item, item_bytes=item_bytes)
        if items is None:
            raise self.error("an array is null")
        return items

    def tagged(self) -> dict[int, bytes]:
        """Return the undecoded tagged fields of a flexible struct; empty in other versions."""
        if not self.flexible:
            return {}
        count = self.varint()
        if count > MAX_TAGGED_FIELDS:
            raise self.error(f"{count} tagged fields exceed {MAX_TAGGED_FIELDS}")
        fields: dict[int, bytes] = {}
        for _ in range(count):
            tag, size = self.varint(), self.varint()
            if fields and tag <= next(reversed(fields)):
                raise self.error(f"tag {tag} does not rise")
            fields[tag] = self.raw(size)
        return fields

    def end(self) -> None:
        """Raise CorruptionError if bytes are left."""
        if self.left:
            raise self.error(f"{self.left} bytes too many")


class WireWriter:
    """Writer of one key or value."""

    __slots__ = ("_parts", "flexible")

    def __init__(self, *, flexible: bool = False) -> None:
        self._parts: list[bytes] = []
        self.flexible = flexible

    def _number(self, form: struct.Struct, value: int) -> None:
        try:
            self._parts.append(form.pack(value))
        except struct.error as error:
            raise ConfigError(f"{value} does not fit {form.size} bytes") from error

    def int8(self, value: int) -> None:
        self._number(_BYTE, value)

    def int16(self, value: int) -> None:
        self._number(_SHORT, value)

    def int32(self, value: int) -> None:
        self._number(_INT, value)

    def int64(self, value: int) -> None:
        self._number(_LONG, value)

    def varint(self, value: int) -> None:
        while value >= 0x80:
            self._parts.append(bytes((value & 0x7F | 0x80,)))
            value >>= 7
        self._parts.append(bytes((value,)))

    def raw(self, data: bytes) -> None:
        self._parts.append(data)

    def length(self, count: int, *, short: bool = False) -> None:
        """Write a length; -1 for null."""
        if self.flexible:
            self.varint(count + 1)
        elif short:
            self.int16(count)
        else:
            self.int32(count)

    def string(self, text: str | None) -> None:
        data = None if text is None else text.encode("utf-8")
        self.length(-1 if data is None else len(data), short=True)
        self.raw(data or b"")

    def tagged(self, fields: Mapping[int, bytes]) -> None:
        if not self.flexible:
            return
        self.varint(len(fields))
        for tag, data in sorted(fields.items()):
            self.varint(tag)
            self.varint(len(data))
            self.raw(data)

    def to_bytes(self) -> bytes:
        return b"".join(self._parts)
