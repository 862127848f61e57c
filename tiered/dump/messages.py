"""Records of Kafka's internal topics and control records as the JSON values that Kafka's own tool prints of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tiered.dump.layouts import (
    CONTROL_RECORDS,
    GROUP_RECORDS,
    MEMBER_FIELDS,
    TRANSACTION_RECORDS,
    Field,
    Kind,
    Layout,
    fields_of,
)
from tiered.errors import CorruptionError
from tiered.format.checkpoint import encode_uuid
from tiered.format.control import ControlType, control_type, coordinator_epoch
from tiered.format.wire import WireReader
from tiered.model import Record

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
COORDINATORS: Mapping[str, Mapping[int, Layout]] = {"offsets": GROUP_RECORDS, "transactions": TRANSACTION_RECORDS}
"""Layouts by the name of the decoder."""

DELETED = "<DELETE>"
"""What Kafka's tool prints for a null value."""

_CLASSIC_GROUP = 2
_CONSUMER_PROTOCOL = "consumer"
_UUID_BYTES = 16
_U16_BYTES = 2


def coordinator_record(record: Record, layouts: Mapping[int, Layout]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Key and value; the value None where it is null. Raises ``CorruptionError`` for what cannot be read."""
    if record.key is None:
        raise CorruptionError(f"the record at offset {record.offset} has no key", offset=record.offset)
    reader = WireReader(record.key, "key")
    number = reader.int16()
    layout = layouts.get(number)
    if layout is None:
        told = f"Unknown record type {number} at offset {record.offset}, skipping."
        raise UnknownRecordError(f"unknown record type {number} at offset {record.offset}", told)
    key = {"type": str(number), "data": _struct(reader, fields_of(layout.key), 0)}
    reader.end()
    if record.value is None:
        return key, None
    reader = WireReader(record.value, "value")
    version = reader.int16()
    if not 0 <= version <= layout.highest:
        told = f"Error at offset {record.offset}, skipping. Found an unknown record version {version} for {number} type"
        raise UnknownRecordError(f"unknown version {version} of record type {number} at offset {record.offset}", told)
    reader.flexible = version >= layout.flexible
    data = _struct(reader, fields_of(layout.value), version)
    reader.end()
    if layouts is GROUP_RECORDS and number == _CLASSIC_GROUP and data["protocolType"] == _CONSUMER_PROTOCOL:
        for member in data["members"]:
            for name, part in MEMBER_FIELDS.items():
                member[name] = _member_field(member[name], part)
    return key, {"version": str(version), "data": data}


class UnknownRecordError(CorruptionError):
    """A type or a version that no layout describes, of a newer Kafka perhaps; ``told``: as Kafka's tool says it."""

    def __init__(self, message: str, told: str) -> None:
        super().__init__(message)
        self.told = told


def control_message(record: Record) -> tuple[str, dict[str, Any]]:
    """Kafka's name of a control record and what it says. Raises ``CorruptionError``."""
    kind = control_type(record)
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return kind.name, {"coordinatorEpoch": coordinator_epoch(record)}
    layout = CONTROL_RECORDS.get(int(kind))
    if layout is None:
        return kind.name, {"type": int.from_bytes((record.key or b"")[2:4], "big", signed=True)}
    reader = WireReader(record.value or b"", layout.title)
    version = reader.int16()
    if not 0 <= version <= layout.highest:
        raise reader.error(f"version {version} is not in 0..{layout.highest}")
    reader.flexible = version >= layout.flexible
    return layout.title, {"version": version, **_struct(reader, fields_of(layout.value), version)}


def _struct(reader: WireReader, fields: tuple[Field, ...], version: int) -> dict[str, Any]:
    """The fields of that version in the layout's order; tagged ones only where they are there."""
    values = {
        field.name: _value(reader, field.kind, version)
        for field in fields
        if field.tag < 0 and field.since <= version <= field.until
    }
    tags = reader.tagged()
    for field in fields:
        if field.tag in tags:
            values[field.name] = _tagged_value(tags[field.tag], reader.what, field, version)
    return {field.name: values[field.name] for field in fields if field.name in values}


def _tagged_value(data: bytes, what: str, field: Field, version: int) -> Any:
    reader = WireReader(data, f"{what}, {field.name}", flexible=True)
    if field.kind.fields and field.kind.nullable and reader.varint() == 0:
        value = None
    elif field.kind.fields:
        value = _struct(reader, field.kind.fields, version)
    else:
        value = _value(reader, field.kind, version)
    reader.end()
    return value


def _value(reader: WireReader, kind: Kind, version: int) -> Any:
    if kind.item is not None:
        item = kind.item
        found = reader.nullable_array(lambda: _value(reader, item, version), item_bytes=1)
        if found is None and not kind.nullable:
            raise reader.error("an array is null")
        return None if found is None else list(found)
    if kind.name == "{":
        if kind.nullable and reader.int8() < 0:
            return None
        return _struct(reader, kind.fields, version)
    return _simple(reader, kind)


def _simple(reader: WireReader, kind: Kind) -> Any:
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
            return encode_uuid(UUID(bytes=reader.raw(_UUID_BYTES)))
        case "str":
            return reader.nullable_string() if kind.nullable else reader.string()
        case "bytes":
            data = reader.nullable_bytes() if kind.nullable else reader.blob()
            return None if data is None else base64.b64encode(data).decode("ascii")
    raise ValueError(f"no layout knows the type {kind.name}")


def _member_field(content: str, layout: Layout) -> Any:
    """The bytes as Kafka's consumers write them; bytes of another kind stay base64."""
    reader = WireReader(base64.b64decode(content), layout.title)
    try:
        version = reader.int16()
        return _struct(reader, fields_of(layout.value), max(0, min(version, layout.highest)))
    except CorruptionError:
        return content
