"""The index bundle (``.idx``): all indexes of one segment in one object, after a head of fixed size.

A reader fetches the first ``HEAD_BYTES`` bytes, which give the position of each section, then single sections by range.
A bundle can be rebuilt from the ``.log`` object alone. Little-endian::

    0    "TIX1"            4      8  format u16    10  sections u16    12  claim_epoch i4
    16   topic_id          16     32 partition i4  36  leader_epoch i4
    40   base_offset i8    48 end_offset i8        56  min_timestamp i8    64 max_timestamp i8
    72   size_bytes i8     80 records i8           88  crc32c u4 of the .log   92  reserved u4 = 0
    96   16 x section:     kind u4 | position u4 | length u4 | crc32c u4 (unused ones are 0)
    352  appended_ms i8    360 reserved, 0          508 crc32c u4 of bytes 0..508
    512  the sections, concatenated in the order of the table

Offset index, time index, transaction index and producer snapshot are byte-identical to Kafka's files, trimmed. Leader
epochs are entries of ``epoch i4 | start_offset i8``. The section ``TXN`` exists only for segments that a sink staged:
its transaction id in UTF-8. The offsets in the descriptor and indexes of such a segment begin at 0. Unknown kinds stay
in the table and are ignored.
"""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn
from uuid import UUID

from tiered.errors import ConfigError, CorruptionError
from tiered.format.kernels import crc32c
from tiered.model import EpochEntry, SealedIndexes, SegmentDescriptor

MAGIC = b"TIX1"
FORMAT = 1
HEAD_BYTES = 512
MAX_SECTIONS = 16
MAX_BUNDLE_BYTES = 2**31 - 1
"""Limit of a bundle: a row stores its length as int32."""

_FIXED = struct.Struct("<4s4xHHi16siiqqqqqqII")
_SECTION = struct.Struct("<IIII")
_CRC = struct.Struct("<I")
_EPOCH = struct.Struct("<iq")
_APPENDED = struct.Struct("<q")
_TABLE_AT = _FIXED.size
_APPENDED_AT = _TABLE_AT + MAX_SECTIONS * _SECTION.size
_CRC_AT = HEAD_BYTES - _CRC.size


class SectionKind(enum.IntEnum):
    """Kinds of sections in a bundle. ``TXN``: transaction id of the Spark sink that staged the segment."""

    OFFSET_INDEX = 1
    TIME_INDEX = 2
    TXN_INDEX = 3
    PRODUCER_SNAPSHOT = 4
    LEADER_EPOCHS = 5
    TXN = 6


class Section(NamedTuple):
    """Section of a bundle: ``length`` bytes at ``position``, with the CRC-32C ``crc``.

    ``kind``: a :class:`SectionKind`, or a number that this release does not know.
    """

    kind: int
    position: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class BundleHead:
    """Decoded head: the segment's descriptor and the table of sections."""

    descriptor: SegmentDescriptor
    claim_epoch: int
    sections: tuple[Section, ...]

    @property
    def size_bytes(self) -> int:
        """Length of the whole bundle; equals the row's ``idx_len``."""
        return self.sections[-1].position + self.sections[-1].length if self.sections else HEAD_BYTES

    def section(self, kind: SectionKind) -> Section | None:
        """Return the table entry of this kind, None if the bundle has none."""
        for section in self.sections:
            if section.kind == kind:
                return section
        return None


@dataclass(frozen=True, slots=True)
class Bundle(BundleHead):
    """A whole bundle, all checksums verified. ``txn``: transaction id of the sink that staged it, or ``""``."""

    indexes: SealedIndexes
    txn: str = ""


def encode_bundle(descriptor: SegmentDescriptor, indexes: SealedIndexes, claim_epoch: int, txn: str = "") -> bytes:
    """Return the bytes of an index bundle. Empty sections are left out. Raises ConfigError beyond ``MAX_BUNDLE_BYTES``.

    ``txn``: transaction id of the sink that staged the segment, ``""`` for other segments.
    """
    contents = [
        (SectionKind.OFFSET_INDEX, indexes.offset_index),
        (SectionKind.TIME_INDEX, indexes.time_index),
        (SectionKind.TXN_INDEX, indexes.txn_index),
        (SectionKind.PRODUCER_SNAPSHOT, indexes.producer_snapshot),
        (SectionKind.LEADER_EPOCHS, encode_leader_epochs(indexes.leader_epochs)),
        (SectionKind.TXN, txn.encode()),
    ]
    sections, position = [], HEAD_BYTES
    for kind, data in contents:
        if data:
            sections.append(Section(kind, position, len(data), crc32c(data)))
            position += len(data)
    if position > MAX_BUNDLE_BYTES:
        raise ConfigError(
            f"the indexes of segment {descriptor.base_offset} have {position} bytes, more than the catalog can store"
        )
    head = _encode_head(descriptor, claim_epoch, sections)
    return b"".join([head, *[data for _, data in contents]])


def decode_bundle_head(prefix: bytes, *, key: str = "") -> BundleHead:
    """Decode the head of a bundle from the bundle's first ``HEAD_BYTES`` bytes or more.

    Raises CorruptionError for a short or damaged head, ConfigError for a newer format. ``key`` names the object in
    errors.
    """
    if len(prefix) < HEAD_BYTES:
        _refuse(key, len(prefix), f"{len(prefix)} bytes are less than the head of {HEAD_BYTES}")
    fields = _FIXED.unpack_from(prefix)
    magic, fmt, count = fields[0], fields[1], fields[2]
    if magic != MAGIC:
        _refuse(key, 0, f"begins with {magic!r} instead of {MAGIC!r}")
    (stored,) = _CRC.unpack_from(prefix, _CRC_AT)
    computed = crc32c(memoryview(prefix)[:_CRC_AT])
    if stored != computed:
        _refuse(key, _CRC_AT, f"head checksum is {stored:#010x}, the bytes have {computed:#010x}")
    if fmt > FORMAT:
        raise ConfigError(f"index bundle {key} has format {fmt}, this release reads {FORMAT}", hint="upgrade tieredlog")
    if fmt < 1 or count > MAX_SECTIONS:
        _refuse(key, 8, f"format {fmt} with {count} sections")
    (appended_ms,) = _APPENDED.unpack_from(prefix, _APPENDED_AT)
    return BundleHead(_descriptor(fields, appended_ms, key), fields[3], _sections(prefix, count, key))


def decode_bundle(data: bytes, *, key: str = "") -> Bundle:
    """Decode a whole bundle. Raises CorruptionError if its length, a checksum or a field is wrong.

    Raises ConfigError for a newer format. ``key`` names the object in errors.
    """
    head = decode_bundle_head(data, key=key)
    if len(data) != head.size_bytes:
        _refuse(key, len(data), f"has {len(data)} bytes, its table describes {head.size_bytes}")
    view = memoryview(data)
    found: dict[int, bytes] = {}
    for section in head.sections:
        found[section.kind] = verify_section(
            section, view[section.position : section.position + section.length], key=key
        )
    indexes = SealedIndexes(
        offset_index=found.get(SectionKind.OFFSET_INDEX, b""),
        time_index=found.get(SectionKind.TIME_INDEX, b""),
        txn_index=found.get(SectionKind.TXN_INDEX, b""),
        producer_snapshot=found.get(SectionKind.PRODUCER_SNAPSHOT, b""),
        leader_epochs=decode_leader_epochs(found.get(SectionKind.LEADER_EPOCHS, b""), key=key),
    )
    try:
        txn = found.get(SectionKind.TXN, b"").decode()
    except UnicodeDecodeError as error:
        _refuse(key, -1, f"the id of its transaction: {error}")
    return Bundle(head.descriptor, head.claim_epoch, head.sections, indexes, txn)


def verify_section(section: Section, data: bytes | memoryview, *, key: str = "") -> bytes:
    """Return ``data`` as bytes if it has the length and the checksum of ``section``, otherwise raise CorruptionError.

    ``key`` names the bundle in errors.
    """
    if len(data) != section.length:
        _refuse(key, section.position, f"section {section.kind} has {len(data)} bytes instead of {section.length}")
    computed = crc32c(data)
    if computed != section.crc:
        _refuse(
            key,
            section.position,
            f"section {section.kind}: checksum {section.crc:#010x}, the bytes have {computed:#010x}",
        )
    return bytes(data)


def encode_leader_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """Return the bytes of leader epochs: each entry as ``epoch i4 | start_offset i8``."""
    return b"".join([_EPOCH.pack(*entry) for entry in entries])


def decode_leader_epochs(data: bytes, *, key: str = "") -> tuple[EpochEntry, ...]:
    """Return the entries in the bytes of a section of leader epochs. ``key`` names the bundle in errors.

    Raises CorruptionError for a partial entry, epochs that do not ascend, or start offsets that go back.
    """
    if len(data) % _EPOCH.size:
        _refuse(key, -1, f"leader epochs of {len(data)} bytes are not a multiple of {_EPOCH.size}")
    entries = tuple(EpochEntry(*entry) for entry in _EPOCH.iter_unpack(data))
    for before, after in itertools.pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            _refuse(key, -1, f"leader epoch {after.epoch} at {after.start_offset} follows {before.epoch}")
    return entries


def _encode_head(descriptor: SegmentDescriptor, claim_epoch: int, sections: Sequence[Section]) -> bytes:
    head = bytearray(HEAD_BYTES)
    _FIXED.pack_into(
        head, 0, MAGIC, FORMAT, len(sections), claim_epoch, descriptor.topic_id.bytes, descriptor.partition,
        descriptor.leader_epoch, descriptor.base_offset, descriptor.end_offset, descriptor.min_timestamp,
        descriptor.max_timestamp, descriptor.size_bytes, descriptor.records, descriptor.crc32c, 0,
    )  # fmt: skip
    for index, section in enumerate(sections):
        _SECTION.pack_into(head, _TABLE_AT + index * _SECTION.size, *section)
    _APPENDED.pack_into(head, _APPENDED_AT, descriptor.appended_ms)
    _CRC.pack_into(head, _CRC_AT, crc32c(memoryview(head)[:_CRC_AT]))
    return bytes(head)


def _descriptor(fields: tuple[object, ...], appended_ms: int, key: str) -> SegmentDescriptor:
    numbers = [field for field in fields[5:15] if isinstance(field, int)]
    topic_id = fields[4]
    assert isinstance(topic_id, bytes)  # noqa: S101  struct's "16s" gives bytes; for the type checker
    partition, leader_epoch, base, end, min_ts, max_ts, size, records, crc, _ = numbers
    if partition < 0 or not 0 <= base < end or min_ts > max_ts or size < 0 or records < 0:
        _refuse(key, 32, f"partition {partition}, offsets {base}..{end}, times {min_ts}..{max_ts}, {size} bytes")
    return SegmentDescriptor(
        topic_id=UUID(bytes=topic_id),
        partition=partition,
        base_offset=base,
        end_offset=end,
        min_timestamp=min_ts,
        max_timestamp=max_ts,
        records=records,
        size_bytes=size,
        crc32c=crc,
        leader_epoch=leader_epoch,
        appended_ms=appended_ms,
    )


def _sections(prefix: bytes, count: int, key: str) -> tuple[Section, ...]:
    sections: list[Section] = []
    expected = HEAD_BYTES
    for index in range(count):
        at = _TABLE_AT + index * _SECTION.size
        section = Section(*_SECTION.unpack_from(prefix, at))
        if section.position != expected or expected + section.length > MAX_BUNDLE_BYTES:
            _refuse(key, at, f"section {index} lies at {section.position} with {section.length} bytes")
        if any(section.kind == other.kind for other in sections):
            _refuse(key, at, f"section kind {section.kind} is given twice")
        expected += section.length
        sections.append(section)
    return tuple(sections)


def _refuse(key: str, position: int, what: str) -> NoReturn:
    raise CorruptionError(f"index bundle {key}: {what}", path_or_key=key, position=position)
