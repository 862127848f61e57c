"""Immutable values that the layers of the product exchange, such as positions, segments and catalog rows.

Offsets are 64-bit. Ranges are half-open (``start`` inclusive, ``end`` exclusive). Times are milliseconds since 1970
UTC, sizes are bytes. ``-1`` means "none" wherever Kafka uses it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable
from uuid import UUID

Headers = Sequence[tuple[str, bytes | None]]
"""Names and values, in order. A decoded record has a list, or ``()`` without headers.

A name whose bytes are not UTF-8 is a :class:`HeaderName`.
"""

NO_TIMESTAMP = -1


class TimestampType(enum.IntEnum):
    """Timestamp type of a batch: bit 3 of its attributes, with Kafka's numbers."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def label(self) -> str:
        """Return Kafka's name: ``CreateTime`` or ``LogAppendTime``."""
        return "LogAppendTime" if self else "CreateTime"


class HeaderName(str):
    """Name of a header whose bytes are not UTF-8. As in Kafka's consumer, U+FFFD replaces the invalid bytes.

    ``raw`` holds the stored bytes. Appends and compaction keep them. ``str(name)``, Arrow and JSON lose them.
    """

    __slots__ = ("raw",)

    raw: bytes

    @classmethod
    def from_bytes(cls, text: str, raw: bytes) -> HeaderName:
        """Return a name with the displayed ``text`` and the stored bytes ``raw``."""
        name = cls(text)
        name.raw = raw
        return name


class TopicPartition(NamedTuple):
    """Topic name and partition number. ``str`` gives Kafka's directory name: ``topic-partition``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RecordMetadata(NamedTuple):
    """Position of appended records (Kafka's name). ``offset``: that of the first record.

    ``timestamp``: that of the first record; after ``append_batches`` the largest one. The call appended ``end_offset -
    offset`` records.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    end_offset: int


class NewRecord(NamedTuple):
    """Record to append. ``timestamp`` -1: the log's clock at the append."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    headers: Headers | None = None


class PackedBatch(NamedTuple):
    """A v2 batch with base offset 0, without leader epoch, codec, producer and headers. Times are milliseconds."""

    data: bytearray
    records_count: int
    first_timestamp: int
    min_timestamp: int
    max_timestamp: int
    keyed: bool
    """True if each record has a key."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Start of a partition, and its three ends: appended, flushed, uploaded. All ends are exclusive.

    On a healthy log ``end_offset >= flushed_offset >= uploaded_offset``: appended, fsynced, committed in the bucket.
    ``start_offset`` is the earliest over both tiers, ``local_start_offset`` the earliest on this disk.
    ``uploader_error``: why the uploader of this process ended; None while it runs.
    """

    start_offset: int
    local_start_offset: int
    uploaded_offset: int
    flushed_offset: int
    end_offset: int
    uploader_error: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a group in one partition (Kafka's ``OffsetAndMetadata``).

    ``offset``: the next offset to read. ``leader_epoch``: epoch of the last record that was read, -1 if unknown.
    ``metadata``: text from the application. ``committed_ms``: time of the commit, -1 if unknown.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1


class AbortedTxn(NamedTuple):
    """Entry of a ``.txnindex``: one aborted transaction. ``first_offset`` and ``last_offset`` are inclusive.

    ``last_stable_offset``: that of the partition when the transaction ended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class EpochEntry(NamedTuple):
    """Leader epoch and its first offset."""

    epoch: int
    start_offset: int


@runtime_checkable
class ByteSource(Protocol):
    """Bytes of a known length that can be read repeatedly, from a file or memory. Thread-safe.

    ``local`` implements it for files. So ``store`` and ``remote`` need not open log files.
    """

    @property
    def size(self) -> int:
        """Return the length in bytes, which is fixed for the life of the source."""

    def read_at(self, position: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from ``position``. Raises ``CorruptionError`` if there are fewer."""

    def close(self) -> None:
        """Release files or memory. Later reads raise ClosedError."""


@runtime_checkable
class FillingSource(ByteSource, Protocol):
    """Byte source that copies bytes into a buffer of the caller. This avoids a second copy."""

    def fill_from(self, position: int, buffer: memoryview) -> None:
        """Fill all of ``buffer`` from ``position`` on. Raises ``CorruptionError`` if there are fewer bytes."""


@runtime_checkable
class LendingSource(ByteSource, Protocol):
    """Byte source of immutable bytes in memory. It returns views of them, without a copy."""

    def views(self, position: int, length: int) -> Sequence[memoryview]:
        """Return ``length`` bytes from ``position`` as views, in order. Raises CorruptionError if there are fewer."""


@dataclass(frozen=True, slots=True)
class BytesSource:
    """Byte source of a bytes object in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read_at(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class SegmentDescriptor:
    """Totals of a sealed segment, computed once at the seal. They are stored at the start of the index bundle.

    ``size_bytes`` and ``crc32c``: of the whole ``.log``. ``leader_epoch``: of the last batch. ``appended_ms``: wall
    clock of the last append, -1 if unknown.
    """

    topic_id: UUID
    partition: int
    base_offset: int
    end_offset: int
    min_timestamp: int
    max_timestamp: int
    records: int
    size_bytes: int
    crc32c: int
    leader_epoch: int
    appended_ms: int = -1


@dataclass(frozen=True, slots=True)
class SealedIndexes:
    """Content of the index files of one sealed segment, exactly as on disk, without preallocated zeros."""

    offset_index: bytes
    time_index: bytes
    txn_index: bytes = b""
    producer_snapshot: bytes = b""
    leader_epochs: tuple[EpochEntry, ...] = ()


class SealedSegment(Protocol):
    """Sealed segment for an upload. ``local`` implements it, and ``remote.upload`` reads it."""

    @property
    def descriptor(self) -> SegmentDescriptor:
        """Return the totals of the segment."""

    def open_log(self) -> ByteSource:
        """Open the ``.log`` and return its bytes."""

    def indexes(self) -> SealedIndexes:
        """Return the content of the index files, without preallocated zeros."""


class Row(NamedTuple):
    """One remote segment in the catalog. ``format.rows`` shows the layout of its 96 bytes.

    ``base``, ``next``: half-open range of offsets. ``min_ts``, ``max_ts``: least and greatest record timestamp.
    ``size``, ``crc``: bytes and CRC-32C of the ``.log`` object. ``id_hi``, ``id_lo``: halves of the uid in the object
    keys. ``idx_len``: bytes of the index bundle. ``flags``: ``FLAG_*`` of ``format.keys``. ``leader_epoch``: that of
    the last batch. ``appended_ms``: time of the last append, -1 if unknown. Later rows never have an earlier one.
    """

    base: int
    next: int
    min_ts: int
    max_ts: int
    size: int
    crc: int
    id_hi: int
    id_lo: int
    idx_len: int
    claim_epoch: int
    records: int
    flags: int
    leader_epoch: int
    reserved: int = 0
    appended_ms: int = -1


TRASH_OBJECT = 0
"""Trash kind: the ``.log`` and ``.idx`` of one segment."""
TRASH_TREE = 1
"""Trash kind: a page and everything it names. The page is deleted last, so that a crash never loses the list."""
TRASH_ROWS = 2
"""Trash kind: segments of a leaf page, those that end above ``base`` and at or below ``end`` of the entry.

The entry has the id of the page. The page itself stays.
"""
TRASH_PAGE = 3
"""Trash kind: a page alone; a newer page names its entries."""
TRASH_LIST = 4
"""Trash kind: a page of trash entries, and the objects that each of them names."""
TRASH_KINDS = range(5)
TRASH_MAINTAINER = 0x100
"""Bit in a trash kind: the key's role letter is ``m``."""
TRASH_STAGED = 0x200
"""Bit in a trash kind: the key is that of a staged object, ``s/t/{uid}``."""
KEY_BITS = TRASH_MAINTAINER | TRASH_STAGED
"""Bits of a trash kind that select the form of the key."""


class TrashEntry(NamedTuple):
    """Object that a committed root no longer names and that waits for its deletion.

    ``removed_version``, ``removed_ms``: version and ``ts_ms`` of the first root that did not name the object.
    ``id_hi``, ``id_lo``, ``epoch``: uid and claim epoch in the object's key. ``kind``: a ``TRASH_*`` constant with
    bits of ``KEY_BITS``. ``base``: base offset in a segment's key. ``TRASH_ROWS`` names segments that end above
    ``base`` and at or below ``end``.
    """

    id_hi: int
    id_lo: int
    base: int
    removed_version: int
    removed_ms: int
    epoch: int
    kind: int = TRASH_OBJECT
    end: int = 0

    @property
    def what(self) -> int:
        """Kind of the object (``TRASH_OBJECT`` to ``TRASH_LIST``), without the bits for the form of its key."""
        return self.kind & ~KEY_BITS
