"""The lines of Kafka's own dump tool (``kafka-dump-log``, version 4.1), word for word, so that the two can be compared.

Text is Kafka's too: bytes that are not UTF-8 become U+FFFD exactly where Java puts them, and nothing is escaped.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tiered.errors import ConfigError, CorruptionError
from tiered.format.batch import BatchHeader, ControlType, control_type
from tiered.format.codecs import Codec
from tiered.format.control import control_message
from tiered.format.crc import crc32c
from tiered.format.kernels import Record
from tiered.format.producer_snapshot import SNAPSHOT_HEADER_BYTES, ProducerEntry
from tiered.model import AbortedTxn, Headers

BOOTSTRAP_NAME = "bootstrap.checkpoint"
_SNAPSHOT_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()
_JSON_ESCAPE = re.compile(r"\\(u00[0-9a-f]{2}|.)", re.DOTALL)
_SEQUENCES = 2**31


def java_text(data: bytes) -> str:
    """``data`` as Java reads UTF-8: as Python does, but an encoded surrogate is one replacement, not two or three."""
    return _SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", "replace")


def java_json(value: Any) -> str:
    """Compact JSON as Kafka's tool writes it: control characters in upper-case hex, all else as it is."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _JSON_ESCAPE.sub(lambda m: "\\u" + m[1][1:].upper() if len(m[1]) > 1 else m[0], text)


def snapshot_heading(name: str) -> str:
    """What stands above the batches of a KRaft snapshot. Raises ``ConfigError`` for a name that is none."""
    if name == BOOTSTRAP_NAME:
        return "KRaft bootstrap snapshot"
    snapshot = _SNAPSHOT_NAME.fullmatch(name)
    if snapshot is None:
        raise ConfigError(
            f"{name} is no name of a KRaft snapshot", hint=f"they are called {0:020d}-{1:010d}.checkpoint"
        )
    return f"Snapshot end offset: {int(snapshot[1])}, epoch: {int(snapshot[2])}"


def batch_line(header: BatchHeader, position: int, *, valid: bool) -> str:
    """A batch, or a v0 or v1 message."""
    if header.magic >= 2:
        start = (
            f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.records_count} "
            f"baseSequence: {header.base_sequence} lastSequence: {header.last_sequence} "
            f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
            f"partitionLeaderEpoch: {header.leader_epoch} isTransactional: {_yes(header.is_transactional)} "
            f"isControl: {_yes(header.is_control)} deleteHorizonMs: {_optional(header.delete_horizon_ms)}"
        )
    else:
        start = f"offset: {header.last_offset}"
    return (
        f"{start} position: {position} {time_type(header)}: {header.max_timestamp} size: {header.size_bytes} "
        f"magic: {header.magic} compresscodec: {codec_word(header)} crc: {header.crc} isvalid: {_yes(valid)}"
    )


def record_line(
    record: Record, header: BatchHeader, key: str | None, value: str | None, *, metadata: bool, legacy: str = ""
) -> str:
    """A record. ``key`` and ``value`` are shown where they are not None; ``legacy`` is what v0 and v1 messages add."""
    line = ""
    before = "| "
    if metadata:
        line = (
            f"| offset: {record.offset} {time_type(header)}: {record.timestamp} "
            f"keySize: {_size(record.key)} valueSize: {_size(record.value)}"
        )
        before = " "
        if header.magic >= 2:
            line += f" sequence: {record_sequence(record, header)} headerKeys: [{_header_keys(record.headers)}]"
        line += legacy
        if header.is_control:
            line += f" {_control(record)}"
    if header.is_control:
        return line
    if key is not None:
        line += f"{before}key: {key}"
    if value is not None:
        line += f" payload: {value}"
    return line


def record_sequence(record: Record, header: BatchHeader) -> int:
    """The producer's number of a record; -1 without a producer."""
    if header.base_sequence < 0:
        return -1
    return (header.base_sequence + record.offset - header.base_offset) % _SEQUENCES


def txn_line(txn: AbortedTxn) -> str:
    """An entry of a transaction index."""
    return (
        f"version: 0 producerId: {txn.producer_id} firstOffset: {txn.first_offset} lastOffset: {txn.last_offset} "
        f"lastStableOffset: {txn.last_stable_offset}"
    )


def first_sequence(entry: ProducerEntry) -> int:
    """Of the newest batch of a producer; -1 if it has none."""
    return -1 if entry.last_offset < 0 else (entry.last_sequence - entry.offset_delta) % _SEQUENCES


def producer_line(entry: ProducerEntry) -> str:
    """A producer of a snapshot; the blank at the end of one without a batch is Kafka's."""
    txn = entry.txn_first_offset
    line = (
        f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
        f"coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: {_optional(txn if txn >= 0 else None)} "
        f"lastTimestamp: {entry.timestamp} "
    )
    if entry.last_offset < 0:
        return line
    return line + (
        f"firstSequence: {first_sequence(entry)} lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset} "
        f"offsetDelta: {entry.offset_delta} timestamp: {entry.timestamp}"
    )


def snapshot_error(data: bytes) -> str:
    """What Kafka's tool says of a snapshot whose CRC is wrong; empty for any other."""
    if len(data) < SNAPSHOT_HEADER_BYTES:
        return ""
    stored, computed = int.from_bytes(data[2:6], "big"), crc32c(data[6:])
    if stored == computed:
        return ""
    return f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {stored}. Computed crc: {computed}"


def _control(record: Record) -> str:
    kind = control_type(record)
    try:
        name, data = control_message(record)
    except CorruptionError as damage:
        return f"controlType: {kind.name} ({damage.message})"
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return f"endTxnMarker: {name} coordinatorEpoch: {data['coordinatorEpoch']}"
    if kind is ControlType.UNKNOWN:
        return f"controlType: {name}({data['type']})"
    colon = ":" if kind is ControlType.LEADER_CHANGE else ""
    return f"{name}{colon} {java_json(data)}"


def _header_keys(headers: Headers) -> str:
    return ",".join(java_text(name.encode("utf-8", "surrogateescape")) for name, _ in headers)


def time_type(header: BatchHeader) -> str:
    """``CreateTime`` or ``LogAppendTime``; v0 messages have no time."""
    return header.timestamp_type.label if header.magic else "NoTimestampType"


def codec_word(header: BatchHeader) -> str:
    """The codec's name, also of numbers that are nobody's."""
    number = header.attributes & 7
    return Codec(number).label if number in list(Codec) else f"unknown({number})"


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _yes(value: bool) -> str:
    return "true" if value else "false"


def _size(content: bytes | None) -> int:
    return -1 if content is None else len(content)
