"""A small notation for the structs of Kafka's wire protocol, and functions that read and write such structs.

::

    name:type            read in this order; the name is the one of Kafka's JSON
    name+3:type          only in version 3 and above          name=1:type   only in version 1
    name~0:type          a tagged field (flexible versions only), shown at this position
    i8 i16 i32 i64 u16 str bytes uuid      a question mark after a type: nullable
    [type]  {name:type name:type}          array, struct

In Python a struct is a ``dict``, an array a ``list``, ``uuid`` a ``UUID``; :func:`as_json` converts to Kafka's JSON.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tiered.format.checkpoint import encode_uuid
from tiered.format.wire import WireReader, WireWriter

FOREVER = 32767
"""Highest possible version."""

_UUID_BYTES = 16
_U16_BYTES = 2


@dataclass(frozen=True, slots=True)
class FieldType:
    """Type of the notation: ``name`` of a simple one, ``item`` of an array, ``fields`` of a struct."""

    name: str
    nullable: bool = False
    item: FieldType | None = None
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """One field in versions ``since`` to ``until``; ``tag`` is -1 for an untagged one."""

    name: str
    kind: FieldType
    since: int = 0
    until: int = FOREVER
    tag: int = -1

    def is_plain(self, version: int) -> bool:
        """Return True if the field is stored in order in that version, not among the tags."""
        return self.tag < 0 and self.since <= version <= self.until


@dataclass(frozen=True, slots=True)
class Layout:
    """Key and value of a record, in the notation. Versions from ``flexible`` on are compact and have tags."""

    title: str
    key: str
    value: str
    highest: int = 0
    flexible: int = 0

    def open(self, data: bytes | memoryview, what: str) -> tuple[WireReader, int]:
        """Return a reader positioned after the version that ``data`` begins with, and the version, known or not."""
        reader = WireReader(data, what)
        version = reader.int16()
        reader.flexible = version >= self.flexible
        return reader, version

    def encode(self, values: Mapping[str, Any], version: int, others: Iterable[tuple[int, bytes]] = ()) -> bytes:
        """Encode a value after its version number; ``others`` are tagged fields that no layout knows."""
        writer = WireWriter(flexible=version >= self.flexible)
        writer.int16(version)
        write_struct(writer, self.value, values, version, others)
        return writer.to_bytes()


_TOKEN = re.compile(r"[A-Za-z]\w*|[+=~]\d+|[:\[\]{}?]|\s+")


@functools.cache
def fields_of(text: str) -> tuple[Field, ...]:
    """Parse the notation ``text``."""
    tokens = [token for token in _TOKEN.findall(text) if not token.isspace()]
    fields, left = _fields(tokens)
    if left or "".join(tokens) != "".join(text.split()):
        raise ValueError(f"cannot read the layout {text!r}")
    return fields


def _fields(tokens: list[str]) -> tuple[tuple[Field, ...], list[str]]:
    fields: list[Field] = []
    while tokens and tokens[0] != "}":
        name, tokens = tokens[0], tokens[1:]
        since, until, tag = 0, FOREVER, -1
        while tokens[0] != ":":
            mark, number = tokens[0][0], int(tokens[0][1:])
            since = number if mark in "+=" else since
            until = number if mark == "=" else until
            tag = number if mark == "~" else tag
            tokens = tokens[1:]
        kind, tokens = _kind(tokens[1:])
        fields.append(Field(name, kind, since, until, tag))
    return tuple(fields), tokens


def _kind(tokens: list[str]) -> tuple[FieldType, list[str]]:
    opening, tokens = tokens[0], tokens[1:]
    item: FieldType | None = None
    fields: tuple[Field, ...] = ()
    if opening == "[":
        item, tokens = _kind(tokens)
        tokens = tokens[1:]
    elif opening == "{":
        fields, tokens = _fields(tokens)
        tokens = tokens[1:]
    nullable = bool(tokens) and tokens[0] == "?"
    return FieldType(opening, nullable, item, fields), tokens[1:] if nullable else tokens


def read_struct(
    reader: WireReader, layout: str, version: int, others: dict[int, bytes] | None = None
) -> dict[str, Any]:
    """Return the fields of that version in the layout's order; tagged ones only if present.

    Puts tags that no field has into ``others``. Raises ``CorruptionError``.
    """
    return _read_struct(reader, fields_of(layout), version, others)


def write_struct(
    writer: WireWriter, layout: str, values: Mapping[str, Any], version: int, others: Iterable[tuple[int, bytes]] = ()
) -> None:
    """Write the fields of that version; a tagged one if ``values`` has it. Raises ``ConfigError`` on overflow."""
    _write_struct(writer, fields_of(layout), values, version, others)


def as_json(value: Any) -> Any:
    """Convert to the JSON that Kafka's own tools print: bytes in base64, ids as Kafka's text."""
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, UUID):
        return encode_uuid(value)
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _read_struct(
    reader: WireReader, fields: tuple[Field, ...], version: int, others: dict[int, bytes] | None = None
) -> dict[str, Any]:
    values = {field.name: _read(reader, field.kind, version) for field in fields if field.is_plain(version)}
    tags = reader.tagged()
    for field in fields:
        if field.tag in tags:
            values[field.name] = _read_tagged(tags.pop(field.tag), reader.what, field, version)
    if others is not None:
        others.update(tags)
    return {field.name: values[field.name] for field in fields if field.name in values}


def _read_tagged(data: bytes, what: str, field: Field, version: int) -> Any:
    reader = WireReader(data, f"{what}, {field.name}", flexible=True)
    if field.kind.fields and field.kind.nullable and reader.varint() == 0:
        value = None
    elif field.kind.fields:
        value = _read_struct(reader, field.kind.fields, version)
    else:
        value = _read(reader, field.kind, version)
    reader.end()
    return value


def _read(reader: WireReader, kind: FieldType, version: int) -> Any:
    if kind.item is not None:
        item = kind.item
        found = reader.nullable_array(lambda: _read(reader, item, version), item_bytes=1)
        if found is None and not kind.nullable:
            raise reader.error("an array is null")
        return None if found is None else list(found)
    if kind.name == "{":
        if kind.nullable and reader.int8() < 0:
            return None
        return _read_struct(reader, kind.fields, version)
    return _read_simple(reader, kind)


def _read_simple(reader: WireReader, kind: FieldType) -> Any:
    match kind.name:
        case "i8":
            return reader.int8()
        case "i16":
            return reader.int16()
        case "i32":
            return reader.int32()
        case "i64":
            return reader.int64()
        case "u16":
            return int.from_bytes(reader.raw(_U16_BYTES), "big")
        case "uuid":
            return UUID(bytes=reader.raw(_UUID_BYTES))
        case "str":
            return reader.nullable_string() if kind.nullable else reader.string()
        case "bytes":
            return reader.nullable_bytes() if kind.nullable else reader.blob()
    raise ValueError(f"no layout knows the type {kind.name}")


def _write_struct(
    writer: WireWriter,
    fields: tuple[Field, ...],
    values: Mapping[str, Any],
    version: int,
    others: Iterable[tuple[int, bytes]] = (),
) -> None:
    tags = dict(others)
    for field in fields:
        if field.is_plain(version):
            _write(writer, field.kind, values[field.name], version)
        elif field.tag >= 0 and field.name in values:
            tags[field.tag] = _tagged(field.kind, values[field.name], version)
    writer.tagged(tags)


def _tagged(kind: FieldType, value: Any, version: int) -> bytes:
    writer = WireWriter(flexible=True)
    if kind.fields and kind.nullable:
        writer.varint(0 if value is None else 1)
    if kind.fields and value is not None:
        _write_struct(writer, kind.fields, value, version)
    elif not kind.fields:
        _write(writer, kind, value, version)
    return writer.to_bytes()


def _write(writer: WireWriter, kind: FieldType, value: Any, version: int) -> None:
    if kind.item is not None:
        writer.length(-1 if value is None else len(value))
        for item in value or ():
            _write(writer, kind.item, item, version)
    elif kind.name == "{":
        if kind.nullable:
            writer.int8(-1 if value is None else 1)
        if value is not None:
            _write_struct(writer, kind.fields, value, version)
    else:
        _write_simple(writer, kind, value)


def _write_simple(writer: WireWriter, kind: FieldType, value: Any) -> None:
    match kind.name:
        case "i8":
            writer.int8(value)
        case "i16":
            writer.int16(value)
        case "i32":
            writer.int32(value)
        case "i64":
            writer.int64(value)
        case "u16":
            writer.raw(value.to_bytes(_U16_BYTES, "big"))
        case "uuid":
            writer.raw(value.bytes)
        case "str":
            writer.string(value)
        case _:
            writer.blob(value)
