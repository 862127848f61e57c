"""What each kind of file of a log directory or a bucket holds, as lines and as JSON from the same values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tiered.cli.envelope import envelope
from tiered.errors import ConfigError, CorruptionError
from tiered.format.batch import BatchHeader, control_type, decode_records, read_header, verify_batch
from tiered.format.bundle import SectionKind, decode_bundle
from tiered.format.checkpoint import (
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
)
from tiered.format.keys import join_uid, parse_local_name
from tiered.format.offset_index import OffsetIndex
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.root import decode_root
from tiered.format.time_index import TimeIndex
from tiered.format.txn_index import decode_txns
from tiered.inspection import batches
from tiered.local.segment.seal import SEAL_SUFFIX
from tiered.model import ByteSource, ConsumerRecord, Record
from tiered.times import format_time

MAX_SMALL_BYTES = 256 * 1024 * 1024
"""Largest file other than a ``.log`` that is read whole."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing in a file: ``kind`` is its ``message_type``, ``text`` how a person reads it."""

    kind: str
    fields: dict[str, Any]
    text: str


def dump(name: str, source: ByteSource, *, records: bool) -> Iterator[Item]:
    """The items of the file ``name`` (its last path part decides what it is).

    Raises ``ConfigError`` for a name that is no file of a log, ``CorruptionError`` at the place of damage.
    """
    if name.endswith(".log") or ".log." in name:
        yield from dump_log(name, source, records=records)
        return
    data = _whole(name, source)
    try:
        yield from _small(name)(name, data)
    except UnicodeDecodeError as cause:
        raise CorruptionError(f"{name} is not text", path_or_key=name, position=cause.start) from None
    except CorruptionError as damage:
        damage.path_or_key = damage.path_or_key or name
        raise


def check_name(name: str) -> None:
    """Raises ``ConfigError`` for a name that :func:`dump` does not know."""
    if not (name.endswith(".log") or ".log." in name):
        _small(name)


def dump_log(name: str, source: ByteSource, *, records: bool) -> Iterator[Item]:
    """Batches, and with ``records`` each record; a batch with a wrong CRC is shown as invalid, its records are not."""
    for position, data in batches(source):
        try:
            header, valid = verify_batch(data), True
        except CorruptionError:
            header, valid = read_header(data), False
        yield _batch(header, position, valid)
        if records and valid:
            for record in decode_records(data):
                yield _record(record, header, position)


def base_of(name: str) -> int:
    """The base offset that a segment file's name begins with; an object's name has an id behind it."""
    digits = PurePosixPath(name).name[:20]
    if not (digits.isascii() and digits.isdigit() and len(digits) == 20):
        raise ConfigError(f"{name} does not begin with the 20 digits of a base offset", hint="name a segment file")
    return int(digits)


def _batch(header: BatchHeader, position: int, valid: bool) -> Item:
    fields = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.records_count,
        "position": position,
        "size_bytes": header.size_bytes,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": header.timestamp_type.label,
        "magic": header.magic,
        "codec": _codec(header),
        "crc": header.crc,
        "valid": valid,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
    }
    marks = "".join(
        f" {word}"
        for word, there in (
            ("transactional", header.is_transactional),
            ("control", header.is_control),
            (f"delete horizon {header.delete_horizon_ms}", header.has_delete_horizon),
        )
        if there
    )
    producer = f" producer {header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}"
    text = (
        f"batch {header.base_offset}..{header.last_offset} count {header.records_count} position {position}"
        f" size {header.size_bytes} {header.timestamp_type.label} {header.max_timestamp}"
        f" ({format_time(header.max_timestamp)}) codec {fields['codec']} magic {header.magic}"
        f" epoch {header.leader_epoch}{producer if header.producer_id >= 0 else ''}{marks}"
        f" crc {header.crc:#010x} {'valid' if valid else 'INVALID'}"
    )
    return Item("batch", fields, text)


def _codec(header: BatchHeader) -> str:
    try:
        return header.codec.label
    except CorruptionError:
        return f"unknown({header.attributes & 7})"


def _record(record: Record, header: BatchHeader, position: int) -> Item:
    seen = ConsumerRecord(
        "",
        -1,
        record.offset,
        record.timestamp,
        int(header.timestamp_type),
        record.key,
        record.value,
        record.headers,
        header.leader_epoch,
    )
    fields = envelope(seen)
    for name in ("message_type", "topic", "partition", "tier"):
        del fields[name]
    fields["batch_position"] = position
    if header.is_control:
        fields["control_type"] = control_type(record).name
    sequence = header.base_sequence + record.offset - header.base_offset if header.base_sequence >= 0 else -1
    fields["sequence"] = sequence
    headers = f" headers {fields['headers']}" if fields["headers"] else ""
    control = f" {fields['control_type']}" if header.is_control else ""
    text = f"| {record.offset} {record.timestamp}{control} key {fields['key']!r} value {fields['value']!r}{headers}"
    return Item("record", fields, text)


def _small(name: str) -> Callable[[str, bytes], Iterable[Item]]:
    parsed = parse_local_name(name)
    suffix = parsed.suffix if parsed is not None else PurePosixPath(name).suffix
    known: dict[str, Callable[[str, bytes], Iterable[Item]]] = {
        ".index": _offset_index,
        ".timeindex": _time_index,
        ".txnindex": _txn_index,
        ".snapshot": _snapshot,
        ".idx": _bundle,
        SEAL_SUFFIX: _seal,
    }
    if suffix in known:
        return known[suffix]
    if name == "root" or re.fullmatch(r"[0-9a-f]{16}", name):
        return _root
    if name == "leader-epoch-checkpoint":
        return _epochs
    if name == "partition.metadata":
        return _partition_metadata
    if name == "meta.properties":
        return _meta_properties
    if name.endswith("-offset-checkpoint"):
        return _offsets
    raise ConfigError(
        f"{name} is no file that can be dumped",
        hint="known: .log .index .timeindex .txnindex .snapshot .seal .idx root, checkpoints, *.metadata, *.properties",
    )


def _whole(name: str, source: ByteSource) -> bytes:
    if source.size > MAX_SMALL_BYTES:
        raise CorruptionError(f"{name} has {source.size} bytes, more than such a file can have", path_or_key=name)
    return source.read_at(0, source.size)


def _offset_index(name: str, data: bytes) -> Iterator[Item]:
    for offset, position in OffsetIndex.from_bytes(data, base_of(name), drop_padding=True):
        yield Item("index_entry", {"offset": offset, "position": position}, f"offset {offset} position {position}")


def _time_index(name: str, data: bytes) -> Iterator[Item]:
    for timestamp, offset in TimeIndex.from_bytes(data, base_of(name), drop_padding=True):
        text = f"timestamp {timestamp} ({format_time(timestamp)}) offset {offset}"
        yield Item("time_index_entry", {"timestamp": timestamp, "offset": offset}, text)


def _txn_index(name: str, data: bytes) -> Iterator[Item]:
    for txn in decode_txns(data, base_of(name)):
        text = (
            f"aborted producer {txn.producer_id} offsets {txn.first_offset}..{txn.last_offset}"
            f" last stable offset {txn.last_stable_offset}"
        )
        yield Item("aborted_txn", txn._asdict(), text)


def _snapshot(_name: str, data: bytes) -> Iterator[Item]:
    for entry in decode_snapshot(data):
        text = " ".join(f"{name} {value}" for name, value in entry._asdict().items())
        yield Item("producer", entry._asdict(), text)


def _bundle(name: str, data: bytes) -> Iterator[Item]:
    bundle = decode_bundle(data, key=name)
    descriptor = bundle.descriptor
    fields = {
        "topic_id": str(descriptor.topic_id),
        "partition": descriptor.partition,
        "base_offset": descriptor.base_offset,
        "end_offset": descriptor.end_offset,
        "min_timestamp": descriptor.min_timestamp,
        "max_timestamp": descriptor.max_timestamp,
        "records": descriptor.records,
        "size_bytes": descriptor.size_bytes,
        "crc32c": descriptor.crc32c,
        "leader_epoch": descriptor.leader_epoch,
        "claim_epoch": bundle.claim_epoch,
    }
    yield Item("descriptor", fields, " ".join(f"{key} {value}" for key, value in fields.items()))
    for section in bundle.sections:
        known = section.kind in list(SectionKind)
        kind = SectionKind(section.kind).name.lower() if known else f"unknown({section.kind})"
        place = {"section": kind, "position": section.position, "length": section.length, "crc32c": section.crc}
        yield Item("section", place, f"section {kind} position {section.position} length {section.length}")
    base = f"{descriptor.base_offset:020d}"
    indexes = bundle.indexes
    yield from _offset_index(base, indexes.offset_index)
    yield from _time_index(base, indexes.time_index)
    yield from _txn_index(base, indexes.txn_index)
    if indexes.producer_snapshot:
        yield from _snapshot(base, indexes.producer_snapshot)
    for epoch in indexes.leader_epochs:
        yield Item("leader_epoch", epoch._asdict(), f"leader epoch {epoch.epoch} from offset {epoch.start_offset}")


def _seal(name: str, data: bytes) -> Iterator[Item]:
    """The note beside a sealed segment."""
    try:
        fields = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise CorruptionError(f"{name} is not JSON", path_or_key=name, position=0) from None
    if not isinstance(fields, dict):
        raise CorruptionError(f"{name} is not a JSON object", path_or_key=name, position=0)
    yield Item("seal", fields, " ".join(f"{key} {value}" for key, value in fields.items()))


def _root(name: str, data: bytes) -> Iterator[Item]:
    root = decode_root(data, key=name)
    fields = {
        "topic": root.topic,
        "partition": root.partition,
        "topic_id": str(root.topic_id),
        "version": root.version,
        "state": root.state,
        "start_offset": root.start_offset,
        "next_offset": root.next_offset,
        "segments": len(root.rows),
        "size_bytes": root.rows.size_bytes,
        "commit": {"id": root.commit.id, "op": root.commit.op, "ts_ms": root.commit.ts_ms, "owner": root.commit.owner},
        "writer": {"epoch": root.writer.epoch, "owner": root.writer.owner, "volume": root.writer.volume},
        "lineage": [list(entry) for entry in root.lineage],
        "trash": len(root.trash),
    }
    yield Item("root", fields, " ".join(f"{key} {value}" for key, value in fields.items()))
    for row in root.rows:
        values = {column: value for column, value in row._asdict().items() if column != "reserved"}
        values["uid"] = join_uid(values.pop("id_hi"), values.pop("id_lo"))
        yield Item("row", values, " ".join(f"{key} {value}" for key, value in values.items()))


def _epochs(_name: str, data: bytes) -> Iterator[Item]:
    for epoch in decode_epochs(data.decode()):
        yield Item("leader_epoch", epoch._asdict(), f"leader epoch {epoch.epoch} from offset {epoch.start_offset}")


def _offsets(_name: str, data: bytes) -> Iterator[Item]:
    for tp, offset in decode_offsets(data.decode()).items():
        fields = {"topic": tp.topic, "partition": tp.partition, "offset": offset}
        yield Item("checkpoint", fields, f"{tp} {offset}")


def _partition_metadata(_name: str, data: bytes) -> Iterator[Item]:
    topic_id = decode_partition_metadata(data.decode())
    yield Item("partition_metadata", {"topic_id": str(topic_id)}, f"topic id {topic_id}")


def _meta_properties(_name: str, data: bytes) -> Iterator[Item]:
    meta = decode_meta_properties(data.decode())
    fields = {
        "version": meta.version,
        "node_id": meta.node_id,
        "cluster_id": meta.cluster_id,
        "directory_id": None if meta.directory_id is None else str(meta.directory_id),
    }
    yield Item("meta_properties", fields, " ".join(f"{key} {value}" for key, value in fields.items()))
