"""The three index files of a segment, in Kafka's formats. All integers are big-endian.

The offset index (``.index``) maps an offset to a position at or before the batch that contains it. It is sparse: a
lookup returns a position from which to scan. Offsets rise strictly::

    0  relative offset  i32   last offset of the batch (or append) minus the base of the segment
    4  position         i32   where that batch (or append) *starts* in the ``.log``

The time index (``.timeindex``) maps a timestamp to the offset from which to search for it. An entry says: no record of
this segment up to ``offset`` is later than ``timestamp``. Timestamps rise strictly, offsets never fall::

    0  timestamp        i64   milliseconds, absolute
    8  relative offset  i32   minus the base of the segment

The transaction index (``.txnindex``) lists aborted transactions whose marker is in the segment. Last offsets rise
strictly. The file does not exist before the first abort; it is never preallocated::

     0  version             i16   0
     2  producer id         i64
    10  first offset        i64   of the transaction's data
    18  last offset         i64   of the ABORT marker
    26  last stable offset  i64   right after the marker was written
"""

from __future__ import annotations

import bisect
import struct
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Self

from tiered.errors import ConfigError, CorruptionError
from tiered.model import NO_TIMESTAMP, AbortedTxn

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
TXN_ENTRY_BYTES = 34

_MAX_RELATIVE = 2**31 - 1
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")
_TXN_VERSION = 0


def _swap(columns: array[int]) -> None:
    """Convert the numbers in place between the file's big-endian order and this machine's order."""
    if sys.byteorder == "little":
        columns.byteswap()


class IndexPace:
    """Rule for sparse index entries: which batches of a segment get one. All index writers use it.

    A batch gets an entry if more than ``interval_bytes`` precede it since the last entry. ``since``: bytes since the
    last entry. ``largest``: the largest timestamp so far and the last offset of its batch.
    """

    __slots__ = ("interval_bytes", "largest", "since")

    def __init__(self, interval_bytes: int, largest: tuple[int, int]) -> None:
        self.largest = largest
        self.interval_bytes = interval_bytes
        self.since = 0

    def count(self, size_bytes: int, last_offset: int, max_timestamp: int) -> bool:
        """Count the next batch of the segment. Return True if it gets an index entry."""
        if max_timestamp > self.largest[0]:
            self.largest = max_timestamp, last_offset
        is_due = self.since > self.interval_bytes
        self.since = size_bytes if is_due else self.since + size_bytes
        return is_due


class _Index(ABC):
    """Base class of the offset index and the time index of one segment, in memory. Not thread-safe for writing."""

    __slots__ = ("_relatives", "_values", "base_offset")
    _NAME: ClassVar[str]
    _ENTRY_BYTES: ClassVar[int]
    _VALUE_TYPE: ClassVar[str]

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._relatives = array("i")
        self._values: array[int] = array(self._VALUE_TYPE)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, base_offset: int, *, drop_padding: bool = False) -> Self:
        """Return the index in ``data``, the bytes of a file. ``drop_padding``: remove the zeros of a preallocated file.

        ``base_offset``: that of the segment. Raises ``CorruptionError`` for a partial entry. The order of the entries
        is not checked: call :meth:`is_sane`.
        """
        if len(data) % cls._ENTRY_BYTES:
            raise CorruptionError(
                f"{cls._NAME} of {len(data)} bytes is no multiple of {cls._ENTRY_BYTES}",
                position=len(data) // cls._ENTRY_BYTES * cls._ENTRY_BYTES,
                hint="delete the file and open the log: the open rebuilds it",
            )
        index = cls(base_offset)
        index._read(data)
        n = len(index)
        while drop_padding and n and index._relatives[n - 1] == 0 and index._values[n - 1] == 0:
            n -= 1
        index._cut(n)
        return index

    @abstractmethod
    def _read(self, data: bytes | bytearray | memoryview) -> None:
        """Fill both columns from whole entries."""

    def __len__(self) -> int:
        return len(self._relatives)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return map(self.entry, range(len(self)))

    @abstractmethod
    def entry(self, i: int) -> tuple[int, int]:
        """Return both fields of entry ``i`` in the order of the file, with the absolute offset."""

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Return every entry, in order."""
        return list(self)

    @property
    def size_bytes(self) -> int:
        return len(self) * self._ENTRY_BYTES

    def truncate_to(self, offset: int) -> None:
        """Remove every entry with an offset >= ``offset``."""
        self._cut(bisect.bisect_left(self._relatives, offset - self.base_offset))

    def _cut(self, n: int) -> None:
        del self._relatives[n:]
        del self._values[n:]


class OffsetIndex(_Index):
    """The offset index of one segment: entries of (offset, position)."""

    __slots__ = ()
    _NAME, _ENTRY_BYTES, _VALUE_TYPE = "offset index", OFFSET_ENTRY_BYTES, "i"

    def _read(self, data: bytes | bytearray | memoryview) -> None:
        columns = array("i", bytes(data))
        _swap(columns)
        self._relatives, self._values = columns[0::2], columns[1::2]

    def entry(self, i: int) -> tuple[int, int]:
        return self.base_offset + self._relatives[i], self._values[i]

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset without entries."""
        return self.base_offset + self._relatives[-1] if self._relatives else self.base_offset

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return the entry with the greatest offset <= ``offset``; (base offset, 0) if there is none."""
        i = bisect.bisect_right(self._relatives, offset - self.base_offset)
        return self.entry(i - 1) if i else (self.base_offset, 0)

    def upper_bound(self, position: int, size: int) -> tuple[int, int] | None:
        """Return the first entry at a position >= ``position + size``, None if there is none.

        Its offset bounds the search for aborted transactions of a read of ``size`` bytes at ``position``.
        """
        i = bisect.bisect_left(self._values, position + size)
        return self.entry(i) if i < len(self) else None

    def reaches(self, position: int) -> bool:
        """Return True if an entry points at or after ``position``."""
        return any(at >= position for at in self._values)

    def append(self, offset: int, position: int) -> bytes:
        """Add an entry and return its 8 bytes. Raises ``ConfigError`` unless ``offset`` is above the last one.

        Raises it also if the relative offset or the position exceeds 31 bits.
        """
        relative = offset - self.base_offset
        if not 0 <= relative <= _MAX_RELATIVE or not 0 <= position <= _MAX_RELATIVE:
            raise ConfigError(f"offset {offset} at byte {position} does not fit the index of base {self.base_offset}")
        if self._relatives and relative <= self._relatives[-1]:
            raise ConfigError(f"offset {offset} is not above the last indexed one, {self.last_offset}")
        self._relatives.append(relative)
        self._values.append(position)
        return _OFFSET_ENTRY.pack(relative, position)

    def extend(self, entries: bytes) -> None:
        """Add entries of verified batches: native int32 pairs of relative offset and position, in order.

        Raises ``ConfigError`` without adding any if they do not follow the last entry.
        """
        found = array("i", entries)
        if found and self._relatives and found[0] <= self._relatives[-1]:
            first = self.base_offset + found[0]
            raise ConfigError(f"offset {first} is not above the last indexed one, {self.last_offset}")
        self._relatives.extend(found[0::2])
        self._values.extend(found[1::2])

    def is_sane(self, log_size_bytes: int | None = None) -> bool:
        """Return True if offsets rise strictly from the base and positions rise strictly inside the ``.log``.

        ``log_size_bytes``: size of the ``.log``; None: not checked.
        """
        r, p = self._relatives, self._values
        if not r:
            return True
        if r[0] < 0 or p[0] < 0 or (log_size_bytes is not None and p[-1] >= log_size_bytes):
            return False
        return all(r[i] < r[i + 1] and p[i] < p[i + 1] for i in range(len(r) - 1))

    def to_bytes(self) -> bytes:
        """Return the bytes of the trimmed file."""
        columns = array("i", bytes(self.size_bytes))
        columns[0::2] = self._relatives
        columns[1::2] = self._values
        _swap(columns)
        return columns.tobytes()


class TimeIndex(_Index):
    """The time index of one segment: entries of (timestamp, offset)."""

    __slots__ = ()
    _NAME, _ENTRY_BYTES, _VALUE_TYPE = "time index", TIME_ENTRY_BYTES, "q"

    def _read(self, data: bytes | bytearray | memoryview) -> None:
        for timestamp, relative in _TIME_ENTRY.iter_unpack(data):
            self._values.append(timestamp)
            self._relatives.append(relative)

    def entry(self, i: int) -> tuple[int, int]:
        return self._values[i], self.base_offset + self._relatives[i]

    @property
    def last_entry(self) -> tuple[int, int]:
        """Timestamp and offset of the last entry; (-1, base offset) without entries."""
        return self.entry(-1) if self._values else (NO_TIMESTAMP, self.base_offset)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """Return the entry with the greatest timestamp <= ``timestamp``; (-1, base offset) if there is none."""
        i = bisect.bisect_right(self._values, timestamp)
        return self.entry(i - 1) if i else (NO_TIMESTAMP, self.base_offset)

    def maybe_append(self, timestamp: int, offset: int) -> bytes:
        """Add an entry if ``timestamp`` is above the last one. Return its 12 bytes, or ``b""`` if nothing was added.

        Raises ``ConfigError`` if offset or timestamp is below the last one, or the relative offset exceeds 31 bits.
        """
        relative = offset - self.base_offset
        if not 0 <= relative <= _MAX_RELATIVE:
            raise ConfigError(f"offset {offset} does not fit the time index of base {self.base_offset}")
        if self._values:
            if relative < self._relatives[-1]:
                raise ConfigError(f"offset {offset} is below the last one of the time index, {self.last_entry[1]}")
            if timestamp < self._values[-1]:
                raise ConfigError(f"timestamp {timestamp} is below the last one of the index, {self._values[-1]}")
            if timestamp == self._values[-1]:
                return b""
        self._values.append(timestamp)
        self._relatives.append(relative)
        return _TIME_ENTRY.pack(timestamp, relative)

    def is_sane(self, end_offset: int | None = None) -> bool:
        """Return True if timestamps rise strictly and offsets never fall, from the base offset to ``end_offset``
        (exclusive; None: no limit).
        """
        t, r = self._values, self._relatives
        if not t:
            return True
        if r[0] < 0 or (end_offset is not None and self.base_offset + r[-1] >= end_offset):
            return False
        return all(t[i] < t[i + 1] and r[i] <= r[i + 1] for i in range(len(t) - 1))

    def to_bytes(self) -> bytes:
        """Return the bytes of the trimmed file."""
        return b"".join(map(_TIME_ENTRY.pack, self._values, self._relatives))


def encode_txns(txns: Iterable[AbortedTxn]) -> bytes:
    """Return the bytes of a transaction index with ``txns``, which are in order; empty for none."""
    return b"".join(_TXN_ENTRY.pack(_TXN_VERSION, *txn) for txn in txns)


def decode_txns(data: bytes | bytearray | memoryview, base_offset: int = 0) -> list[AbortedTxn]:
    """Return the entries of a transaction index. As in Kafka, a partial entry at the end (a torn write) is left out.

    Raises ``CorruptionError`` for an unknown version, a marker below ``base_offset`` and last offsets that do not rise.
    """
    txns: list[AbortedTxn] = []
    last = base_offset - 1
    for position in range(0, len(data) - TXN_ENTRY_BYTES + 1, TXN_ENTRY_BYTES):
        version, *fields = _TXN_ENTRY.unpack_from(data, position)
        if version != _TXN_VERSION:
            raise CorruptionError(
                f"transaction index entry has version {version}, not {_TXN_VERSION}",
                position=position,
                hint="`tiered check` names the damaged index; `tiered repair` plans its repair",
            )
        txn = AbortedTxn(*fields)
        if txn.last_offset <= last:
            raise CorruptionError(
                f"transaction index entry ends at {txn.last_offset}, which is not above {last}",
                position=position,
                offset=txn.last_offset,
            )
        last = txn.last_offset
        txns.append(txn)
    return txns


def txns_below(txns: Sequence[AbortedTxn], offset: int) -> list[AbortedTxn]:
    """Return the entries whose ABORT marker (``last_offset``) is below ``offset``."""
    return [t for t in txns if t.last_offset < offset]
