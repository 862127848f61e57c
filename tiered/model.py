"""Frozen values that one stage hands to the next. They only grow: a sealed segment becomes a row, never back.

Offsets are 64-bit, ranges are half-open (``start`` inclusive, ``end`` exclusive), times are milliseconds
since 1970 UTC, sizes are bytes. ``-1`` stands for "none" wherever Kafka uses it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable
from uuid import UUID

Headers = Sequence[tuple[str, bytes | None]]
"""Names and values, in order; of a decoded record a list, or ``()`` where there are none.

A name whose bytes are not UTF-8 is a :class:`HeaderName`."""

NO_TIMESTAMP = -1


class TimestampType(enum.IntEnum):
    """Bit 3 of the batch attributes (Kafka's numbers)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def label(self) -> str:
        """Kafka's word: ``CreateTime`` or ``LogAppendTime``."""
        return "LogAppendTime" if self else "CreateTime"


class HeaderName(str):
    """The name of a header whose bytes are not UTF-8, as Kafka's consumer shows it: U+FFFD where they are not.

    ``raw`` are the bytes as stored. Appended or compacted again, the record keeps them; they are lost where only the
    text is kept (``str(name)``, Arrow, JSON).
    """

    __slots__ = ("raw",)

    raw: bytes

    @classmethod
    def of(cls, text: str, raw: bytes) -> HeaderName:
        """``text`` is what is shown of ``raw``."""
        name = cls(text)
        name.raw = raw
        return name


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as Kafka names its directory: ``topic-partition``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RecordMetadata(NamedTuple):
    """Where an append landed (Kafka's name). ``end_offset - offset`` records were written by the call."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    end_offset: int


class NewRecord(NamedTuple):
    """A record to be appended. ``timestamp`` -1 means the log's clock at append."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    headers: Headers | None = None


class PackedBatch(NamedTuple):
    """A v2 batch at offset 0 of no leader, without codec, producer or headers; times of its records in ms."""

    data: bytearray
    records_count: int
    first_timestamp: int
    min_timestamp: int
    max_timestamp: int
    keyed: bool
    """Each record has a key."""


@dataclass(frozen=True, slots=True)
class Positions:
    """The three positions of a partition, all exclusive ends, and where it starts.

    ``end_offset >= flushed_offset >= uploaded_offset`` on a healthy log: appended, fsynced, committed in
    the bucket. ``start_offset`` is the earliest over both tiers, ``local_start_offset`` that of this disk.
    ``uploader_error`` is why the uploader of this process ended by itself. It is None while that works.
    """

    start_offset: int
    local_start_offset: int
    uploaded_offset: int
    flushed_offset: int
    end_offset: int
    uploader_error: str | None = field(default=None, compare=False)


class AbortedTxn(NamedTuple):
    """One aborted transaction of a ``.txnindex``; offsets inclusive as in Kafka's file."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class EpochEntry(NamedTuple):
    """Leader epoch and the first offset written under it."""

    epoch: int
    start_offset: int


@runtime_checkable
class ByteSource(Protocol):
    """Bytes of a known length that can be read more than once: a file, or memory. Thread-safe.

    ``local`` implements it on files, so that ``store`` and ``remote`` never open a log file.
    """

    @property
    def size(self) -> int:
        """Length in bytes, fixed for the life of the source."""

    def read_at(self, position: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``position``; raises ``CorruptionError`` if there are fewer."""

    def close(self) -> None:
        """Releases what the source holds; reading afterwards raises ``ClosedError``."""


@runtime_checkable
class FillingSource(ByteSource, Protocol):
    """A byte source that fills a buffer of its caller's, which may be used again: nothing is copied twice."""

    def fill_from(self, position: int, buffer: memoryview) -> None:
        """All of ``buffer``, from ``position`` on; raises ``CorruptionError`` if there is less."""


@runtime_checkable
class LendingSource(ByteSource, Protocol):
    """A byte source whose bytes are in memory and stay as they are: they are looked into, and not copied at all."""

    def views(self, position: int, length: int) -> Sequence[memoryview]:
        """``length`` bytes from ``position``, view behind view; raises ``CorruptionError`` if there are fewer."""


@dataclass(frozen=True, slots=True)
class BytesSource:
    """A :class:`ByteSource` over memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read_at(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]

    def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True, slots=True)
class SegmentDescriptor:
    """What is known of a sealed segment, read once at the seal; it begins the index bundle.

    ``size_bytes`` and ``crc32c`` are those of the whole ``.log``: bytes sent, bytes hashed and the size in
    the catalog are the same number. ``leader_epoch`` is that of the last batch. ``appended_ms``: wall clock of the
    last append, -1 if it is not known.
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
    """Trimmed index files of one sealed segment, as bytes, exactly as on disk."""

    offset_index: bytes
    time_index: bytes
    txn_index: bytes = b""
    producer_snapshot: bytes = b""
    leader_epochs: tuple[EpochEntry, ...] = ()


class SealedSegment(Protocol):
    """A sealed segment offered for upload; ``local`` implements it, ``remote.upload`` consumes it."""

    @property
    def descriptor(self) -> SegmentDescriptor:
        """Sizes, ranges and checksum, read at the seal."""

    def open_log(self) -> ByteSource:
        """The ``.log`` bytes."""

    def indexes(self) -> SealedIndexes:
        """The trimmed index files."""


class Row(NamedTuple):
    """One remote segment in the catalog (96 bytes in the root; see ``format.root``).

    ``max_ts`` is the largest record timestamp, ``appended_ms`` the time of the last append (-1: not known). No row has
    an earlier append time than the row before it.
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
