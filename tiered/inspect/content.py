"""Representation of record keys and values: text, hex, base64, JSON, numbers, or decoded coordinator records."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiered.errors import CorruptionError
from tiered.format.coordinator_records import (
    GROUP_RECORDS,
    OFFSETS_TOPIC,
    TRANSACTION_RECORDS,
    TRANSACTION_STATE_TOPIC,
    record_as_json,
)
from tiered.format.kafka_struct import Layout
from tiered.format.kernels import Record
from tiered.local.directory.read_only_log import PartitionFolder, folder_named
from tiered.program.record_format import encoded_fields

DECODERS = ("auto", "utf-8", "hex", "base64", "json", "integer", "long")
"""Decoders of keys and values. ``auto``: text if it is UTF-8, otherwise base64; also replaces a decoder that fails."""

RECORD_DECODERS = ("auto", "offsets", "transactions", "none")
"""Decoders of whole records. ``auto``: by the topic."""

COORDINATORS: Mapping[str, Mapping[int, Layout]] = {"offsets": GROUP_RECORDS, "transactions": TRANSACTION_RECORDS}
"""Layouts by the name of the decoder."""

_NUMBER_BYTES = {"integer": 4, "long": 8}


@dataclass(frozen=True, slots=True)
class Content:
    """Parts of records to show. ``deep``: records at all; ``data``: also their keys and values."""

    deep: bool = False
    data: bool = False
    key: str = "auto"
    value: str = "auto"
    layouts: Mapping[int, Layout] | None = None

    def fields(self, record: Record) -> dict[str, Any]:
        """Return JSON fields: ``key``, ``value``, ``headers``, ``encoding``; ``decoded`` for coordinators' records."""
        if not self.data:
            return {"header_keys": [name for name, _ in record.headers]}
        found = encoded_fields(shown(record.key, self.key), shown(record.value, self.value), record.headers)
        if self.layouts is not None:
            decoded, undecoded = self._decoded(record)
            found |= {"undecoded": undecoded} if decoded is None else {"decoded": decoded}
        return found

    def text(self, record: Record) -> str:
        """Return ``key ... value ... headers ...`` for people, without terminal control characters."""
        if not self.data:
            names = [name for name, _ in record.headers]
            return f" header keys {names!r}" if names else ""
        fields = self.fields(record)
        pairs = ", ".join(f"{name!r}: {_plain(content, 'auto')}" for name, content in record.headers)
        headers = f" headers {{{pairs}}}" if pairs else ""
        decoded = fields.get("decoded")
        if decoded is not None:
            return f" key {_json(decoded['key'])} value {_json(decoded['value'])}{headers}"
        note = f" ({fields['undecoded']})" if "undecoded" in fields else ""
        return f" key {_plain(record.key, self.key)} value {_plain(record.value, self.value)}{headers}{note}"

    def _decoded(self, record: Record) -> tuple[dict[str, Any] | None, str]:
        if self.layouts is None:
            return None, ""
        try:
            key, value = record_as_json(record, self.layouts)
        except CorruptionError as damage:
            return None, damage.message
        return {"key": key, "value": value}, ""


def layouts_for(decoder: str, directory: str) -> Mapping[int, Layout] | None:
    """Return the layouts for a file in the directory named ``directory``."""
    if decoder != "auto":
        return COORDINATORS.get(decoder)
    folder = folder_named(directory)
    topic = folder.tp.topic if isinstance(folder, PartitionFolder) else ""
    return {OFFSETS_TOPIC: COORDINATORS["offsets"], TRANSACTION_STATE_TOPIC: COORDINATORS["transactions"]}.get(topic)


def shown(content: bytes | None, decoder: str) -> tuple[Any, str]:
    """Return the content for JSON and the name of its encoding; None and ``""`` for null."""
    if content is None:
        return None, ""
    if decoder == "hex":
        return content.hex(), "hex"
    if decoder == "base64":
        return base64.b64encode(content).decode("ascii"), "base64"
    if len(content) == _NUMBER_BYTES.get(decoder):
        return int.from_bytes(content, "big", signed=True), decoder
    if decoder == "json":
        try:
            return json.loads(content.decode()), "json"
        except (ValueError, RecursionError):
            return shown(content, "auto")
    try:
        return content.decode(), "utf-8"
    except UnicodeDecodeError:
        return (content.decode("utf-8", "replace"), "utf-8-lossy") if decoder == "utf-8" else shown(content, "base64")


def _plain(content: bytes | None, decoder: str) -> str:
    """Return the content for a terminal: text in quotes, other bytes as ``b'...'``."""
    value, word = shown(content, decoder)
    return repr(content if decoder == "auto" and word == "base64" else value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
