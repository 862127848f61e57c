"""Contents of the small files of a log directory or a bucket: indexes, snapshots, checkpoints, catalogs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import PurePosixPath

from tiered.errors import ConfigError, CorruptionError
from tiered.format.bundle import SectionKind, decode_bundle
from tiered.format.checkpoint import (
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_uuid,
)
from tiered.format.keys import MAX_INT64, Role, join_uid, page_key
from tiered.format.local_names import parse_local_name
from tiered.format.page import Pointer, Pointers, decode_stored_page
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot
from tiered.format.root import decode_root
from tiered.format.rows import Rows, Trash
from tiered.format.segment_indexes import TXN_ENTRY_BYTES, OffsetIndex, TimeIndex, decode_txns
from tiered.inspect.items import FileEntry
from tiered.local.disk.directory_files import CLEAN_SHUTDOWN_NAME, META_PROPERTIES_NAME
from tiered.local.disk.partition_files import EPOCHS_NAME
from tiered.local.disk.topics import PARTITION_METADATA_NAME
from tiered.local.segment.side_files import SEAL_SUFFIX
from tiered.model import TRASH_LIST, TRASH_MAINTAINER, TRASH_OBJECT, TRASH_PAGE, TRASH_ROWS, TRASH_TREE, ByteSource
from tiered.plan.producer import SEQUENCES
from tiered.remote.catalog_view import rows_inside
from tiered.times import format_time

SEGMENT_DIGITS = 20
MAX_SMALL_BYTES = 256 * 1024 * 1024
"""Largest file other than a ``.log`` that is read whole."""

_KRAFT_SNAPSHOT = ".checkpoint"
_TRASH_WORDS = {
    TRASH_OBJECT: "segment",
    TRASH_TREE: "page and all below",
    TRASH_ROWS: "rows of a leaf",
    TRASH_PAGE: "page",
    TRASH_LIST: "page of trash",
}

Dumper = Callable[[str, bytes], Iterable[FileEntry]]


def is_log(name: str) -> bool:
    """Return True if a file of this name has batches: a ``.log``, also a renamed one, or a KRaft snapshot."""
    return name.endswith((".log", _KRAFT_SNAPSHOT)) or ".log." in name


def is_known(name: str) -> bool:
    """Return True if a file of this name can be inspected."""
    return is_log(name) or _dumper(name) is not None


def check_name(name: str) -> None:
    """Raise ConfigError if a file of this name cannot be inspected."""
    if not is_known(name):
        raise ConfigError(
            f"{name} is not a file that can be inspected",
            hint="known names: .log .index .timeindex .txnindex .snapshot .seal .idx .page root, positions, "
            "checkpoints, *.metadata, *.properties",
        )


def suffix_of(name: str) -> str:
    """Return the suffix of a segment's file, such as ``.log``; ``.deleted``, ``.cleaned`` and ``.swap`` are cut off."""
    parsed = parse_local_name(name)
    return parsed.suffix if parsed is not None else PurePosixPath(name).suffix


def base_of(name: str) -> int:
    """Return the base offset in the name of a segment's file or object: its first 20 digits.

    The name of a staged segment is a uid alone; its base offset is 0. Raises ConfigError for other names.
    """
    stem = PurePosixPath(name).name.split(".")[0]
    if re.fullmatch(r"[0-9a-f]{32}", stem):
        return 0
    digits = stem if stem.isdigit() else stem[:SEGMENT_DIGITS]
    if not (digits.isascii() and digits.isdigit() and (digits == stem or len(digits) == SEGMENT_DIGITS)):
        raise ConfigError(f"{name} does not begin with the 20 digits of a base offset", hint="name a segment file")
    if int(digits) > MAX_INT64:
        raise ConfigError(f"{name} begins with an offset that does not fit 64 bits", hint="name a segment file")
    return int(digits)


def small_items(name: str, source: ByteSource, *, start: int = 0) -> Iterator[FileEntry]:
    """Yield the items of a small file, decoded by its name. Index entries before offset ``start`` are left out.

    Raises ConfigError if a file of this name cannot be inspected, CorruptionError with the position of the damage.
    """
    check_name(name)
    dumper = _dumper(name)
    data = whole(name, source)
    try:
        for item in dumper(name, data) if dumper is not None else ():
            if item.place >= start:
                yield item
    except UnicodeDecodeError as cause:
        raise CorruptionError(f"{name} is not text", path_or_key=name, position=cause.start) from None
    except CorruptionError as damage:
        damage.path_or_key = damage.path_or_key or name
        raise


def _dumper(name: str) -> Dumper | None:
    if name == "root" or re.fullmatch(r"[0-9a-f]{16}", name):
        return _root
    if name.endswith("-offset-checkpoint"):
        return _offsets
    return _BY_NAME.get(name) or _BY_SUFFIX.get(suffix_of(name))


def whole(name: str, source: ByteSource) -> bytes:
    """Return all bytes of a small file. Raises CorruptionError if it is larger than such a file can be."""
    if source.size > MAX_SMALL_BYTES:
        raise CorruptionError(f"{name} has {source.size} bytes, more than such a file can have", path_or_key=name)
    return source.read_at(0, source.size)


def _offset_index(name: str, data: bytes) -> Iterator[FileEntry]:
    for offset, position in OffsetIndex.from_bytes(data, base_of(name), drop_padding=True):
        fields = {"offset": offset, "position": position}
        yield FileEntry("index_entry", fields, f"offset {offset} position {position}")


def _time_index(name: str, data: bytes) -> Iterator[FileEntry]:
    for timestamp, offset in TimeIndex.from_bytes(data, base_of(name), drop_padding=True):
        text = f"timestamp {timestamp} ({format_time(timestamp)}) offset {offset}"
        fields = {"timestamp": timestamp, "offset": offset}
        yield FileEntry("time_index_entry", fields, text)


def _txn_index(name: str, data: bytes) -> Iterator[FileEntry]:
    """Yield the entries of a transaction index, each decoded alone.

    Raises CorruptionError at an entry that cannot be decoded, or at the end for a partial one.
    """
    for position in range(0, len(data) - TXN_ENTRY_BYTES + 1, TXN_ENTRY_BYTES):
        try:
            (txn,) = decode_txns(data[position : position + TXN_ENTRY_BYTES])
        except CorruptionError as cause:
            raise CorruptionError(cause.message, path_or_key=name, position=position) from None
        text = (
            f"aborted producer {txn.producer_id} offsets {txn.first_offset}..{txn.last_offset}"
            f" last stable offset {txn.last_stable_offset}"
        )
        yield FileEntry("aborted_txn", {"version": 0, **txn._asdict()}, text)
    torn = len(data) % TXN_ENTRY_BYTES
    if torn:
        message = f"{torn} bytes of an unfinished entry end the transaction index"
        raise CorruptionError(message, path_or_key=name, position=len(data) - torn)


def _snapshot(_name: str, data: bytes) -> Iterator[FileEntry]:
    for entry in decode_snapshot(data):
        values = entry._asdict()
        yield FileEntry("producer", {**values, "first_sequence": first_sequence(entry)}, _words(values))


def first_sequence(entry: ProducerEntry) -> int:
    """Return the first sequence of a producer's newest batch, -1 if it has none."""
    return -1 if entry.last_offset < 0 else (entry.last_sequence - entry.offset_delta) % SEQUENCES


def _bundle(name: str, data: bytes) -> Iterator[FileEntry]:
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
    yield FileEntry("descriptor", fields, _words(fields))
    for section in bundle.sections:
        known = section.kind in list(SectionKind)
        kind = SectionKind(section.kind).name.lower() if known else f"unknown({section.kind})"
        place = {"section": kind, "position": section.position, "length": section.length, "crc32c": section.crc}
        yield FileEntry("section", place, f"section {kind} position {section.position} length {section.length}")
    base = f"{descriptor.base_offset:020d}"
    indexes = bundle.indexes
    yield from _offset_index(base, indexes.offset_index)
    yield from _time_index(base, indexes.time_index)
    yield from _txn_index(base, indexes.txn_index)
    if indexes.producer_snapshot:
        yield from _snapshot(base, indexes.producer_snapshot)
    for epoch in indexes.leader_epochs:
        yield FileEntry("leader_epoch", epoch._asdict(), f"leader epoch {epoch.epoch} from offset {epoch.start_offset}")


def _json(kind: str, name: str, data: bytes) -> Iterator[FileEntry]:
    try:
        fields = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise CorruptionError(f"{name} is not JSON", path_or_key=name, position=0) from None
    if not isinstance(fields, dict):
        raise CorruptionError(f"{name} is not a JSON object", path_or_key=name, position=0)
    yield FileEntry(kind, fields, _words(fields))


def _root(name: str, data: bytes) -> Iterator[FileEntry]:
    root = decode_root(data, key=name)
    rows = rows_inside(root)
    fields = {
        "topic": root.topic,
        "partition": root.partition,
        "topic_id": str(root.topic_id),
        "version": root.version,
        "state": root.state,
        "start_offset": root.start_offset,
        "next_offset": root.next_offset,
        "segments": root.added.segments - root.removed.segments,
        "size_bytes": root.added.size_bytes - root.removed.size_bytes,
        "pages": len(root.inner) + len(root.leaves),
        "commit": {"id": root.commit.id, "op": root.commit.op, "ts_ms": root.commit.ts_ms, "owner": root.commit.owner},
        "writer": {"epoch": root.writer.epoch, "owner": root.writer.owner, "volume": root.writer.volume},
        "lineage": [list(entry) for entry in root.lineage],
        "trash": len(root.trash),
    }
    yield FileEntry("root", fields, _words(fields))
    for kind, pointers in (("inner_page", root.inner), ("leaf_page", root.leaves)):
        yield from _pointers(kind, pointers, root.page_key)
    yield from _rows(rows)
    yield from _trash(root.trash)


def _page(name: str, data: bytes) -> Iterator[FileEntry]:
    """Yield the entries of a catalog page: its header, then rows, pointers to leaf pages, or trash."""
    page = decode_stored_page(data, key=name)
    fields = {
        "kind": page.kind.value,
        "topic_id": str(page.topic_id),
        "partition": page.partition,
        "role": page.name.role.value,
        "epoch": page.name.epoch,
        "uid": page.name.uid,
        "entries": len(page.content),
    }
    yield FileEntry("page", fields, f"{page.kind.value} page " + _words({**fields, "kind": None}))
    match page.content:
        case Rows() as rows:
            yield from _rows(rows)
        case Pointers() as pointers:
            yield from _pointers("leaf_page", pointers, lambda p: page_key(page.topic_id, page.partition, p.name))
        case Trash() as trash:
            yield from _trash(trash)


def _rows(rows: Rows) -> Iterator[FileEntry]:
    for row in rows:
        values = {column: value for column, value in row._asdict().items() if column != "reserved"}
        values["uid"] = join_uid(values.pop("id_hi"), values.pop("id_lo"))
        yield FileEntry("row", values, _words(values))


def _pointers(kind: str, pointers: Pointers, key_of: Callable[[Pointer], str]) -> Iterator[FileEntry]:
    shown = ("base", "next", "min_ts", "max_ts", "size", "records", "rows", "page_len", "crc", "row_flags")
    for pointer in pointers:
        values = {
            "key": key_of(pointer),
            **{name: getattr(pointer, name) for name in shown},
            "leader_epoch": pointer.leader_epoch,
            "sum": join_uid(pointer.sum_hi, pointer.sum_lo),
        }
        yield FileEntry(kind, values, _words(values))


def _trash(trash: Trash) -> Iterator[FileEntry]:
    for entry in trash:
        values = {
            "what": _TRASH_WORDS.get(entry.what, str(entry.what)),
            "role": (Role.MAINTAINER if entry.kind & TRASH_MAINTAINER else Role.WRITER).value,
            "epoch": entry.epoch,
            "uid": join_uid(entry.id_hi, entry.id_lo),
            "base": entry.base,
            "end": entry.end,
            "removed_version": entry.removed_version,
            "removed_ms": entry.removed_ms,
        }
        yield FileEntry("trash", values, "trash " + _words(values))


def _words(values: Mapping[str, object]) -> str:
    return " ".join(f"{key} {value}" for key, value in values.items() if value is not None)


def _epochs(_name: str, data: bytes) -> Iterator[FileEntry]:
    for epoch in decode_epochs(data.decode()):
        yield FileEntry("leader_epoch", epoch._asdict(), f"leader epoch {epoch.epoch} from offset {epoch.start_offset}")


def _offsets(_name: str, data: bytes) -> Iterator[FileEntry]:
    for tp, offset in decode_offsets(data.decode()).items():
        fields = {"topic": tp.topic, "partition": tp.partition, "offset": offset}
        yield FileEntry("checkpoint", fields, f"{tp} {offset}")


def _partition_metadata(_name: str, data: bytes) -> Iterator[FileEntry]:
    topic_id = decode_partition_metadata(data.decode())
    yield FileEntry(
        "partition_metadata",
        {"topic_id": str(topic_id), "kafka_topic_id": encode_uuid(topic_id)},
        f"topic id {topic_id} ({encode_uuid(topic_id)})",
    )


def _meta_properties(_name: str, data: bytes) -> Iterator[FileEntry]:
    meta = decode_meta_properties(data.decode())
    fields = {
        "version": meta.version,
        "node_id": meta.node_id,
        "cluster_id": meta.cluster_id,
        "directory_id": None if meta.directory_id is None else str(meta.directory_id),
    }
    yield FileEntry("meta_properties", fields, _words(fields))


def _clean_shutdown(_name: str, data: bytes) -> Iterator[FileEntry]:
    epoch = decode_clean_shutdown(data.decode())
    yield FileEntry("clean_shutdown", {"broker_epoch": epoch}, f"clean shutdown, broker epoch {epoch}")


_BY_SUFFIX: dict[str, Dumper] = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _txn_index,
    ".snapshot": _snapshot,
    ".idx": _bundle,
    ".page": _page,
    SEAL_SUFFIX: partial(_json, "seal"),
}
_BY_NAME: dict[str, Dumper] = {
    "positions": partial(_json, "positions"),
    EPOCHS_NAME: _epochs,
    PARTITION_METADATA_NAME: _partition_metadata,
    META_PROPERTIES_NAME: _meta_properties,
    CLEAN_SHUTDOWN_NAME: _clean_shutdown,
}
