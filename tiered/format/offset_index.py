"""The offset index (``.index``): maps an offset to a position at or before the batch that contains it.

One entry of 8 bytes, big-endian::

    0  relative offset  i32   last offset of the batch (or append) minus the base of the segment
    4  position         i32   where that batch (or append) *starts* in the ``.log``

Sparse: a lookup returns a position at or before the target, from which to scan. Offsets rise strictly.
"""

from __future__ import annotations

import bisect
import struct
import sys
from array import array
from collections.abc import Iterator

from tiered.errors import ConfigError, CorruptionError

OFFSET_ENTRY_BYTES = 8

_MAX_RELATIVE = 2**31 - 1
_ENTRY = struct.Struct(">ii")


def _swap(columns: array[int]) -> None:
    """Convert between the file's big-endian and this machine's order."""
    if sys.byteorder == "little":
        columns.byteswap()


class IndexPace:
    """Decides which batches of a segment get an index entry, and tracks the largest timestamp, for all index writers.

    A batch gets an entry if more than ``interval_bytes`` precede it since the last entry. ``largest``: the largest
    timestamp so far and the last offset of its batch. ``since``: bytes since the last entry.
    """

    __slots__ = ("interval_bytes", "largest", "since")

    def __init__(self, interval_bytes: int, largest: tuple[int, int]) -> None:
        self.largest = largest
        self.interval_bytes = interval_bytes
        self.since = 0

    def count(self, size_bytes: int, last_offset: int, max_timestamp: int) -> bool:
        """Count the next batch. Return True if it gets an entry."""
        if max_timestamp > self.largest[0]:
            self.largest = max_timestamp, last_offset
        is_due = self.since > self.interval_bytes
        self.since = size_bytes if is_due else self.since + size_bytes
        return is_due


class OffsetIndex:
    """Entries of one segment in memory, as two native columns. Not thread-safe for writing."""

    __slots__ = ("_positions", "_relatives", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._relatives = array("i")
        self._positions = array("i")

    @classmethod
    def from_bytes(
        cls, data: bytes | bytearray | memoryview, base_offset: int, *, drop_padding: bool = False
    ) -> OffsetIndex:
        """Decode all of ``data``. ``drop_padding`` cuts the zeros of a preallocated, untrimmed file.

        Raises ``CorruptionError`` for a length that is no multiple of 8. :meth:`is_sane` checks the order.
        """
        if len(data) % OFFSET_ENTRY_BYTES:
            raise CorruptionError(
                f"offset index of {len(data)} bytes is no multiple of {OFFSET_ENTRY_BYTES}",
                position=len(data) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES,
                hint="rebuild it from the log",
            )
        index = cls(base_offset)
        columns = array("i", bytes(data))
        _swap(columns)
        index._relatives = columns[0::2]
        index._positions = columns[1::2]
        if drop_padding:
            index._drop_padding()
        return index

    def _drop_padding(self) -> None:
        # A zero pair is padding unless it is the very first entry (an append at the base that starts the file).
        n = len(self._relatives)
        while n > 0 and self._relatives[n - 1] == 0 and self._positions[n - 1] == 0:
            n -= 1
        self._cut(n)

    def __len__(self) -> int:
        return len(self._relatives)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        base = self.base_offset
        return ((base + r, p) for r, p in zip(self._relatives, self._positions, strict=True))

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Return (offset, position) of every entry, in order."""
        return list(self)

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset without entries."""
        return self.base_offset + self._relatives[-1] if self._relatives else self.base_offset

    @property
    def size_bytes(self) -> int:
        return len(self._relatives) * OFFSET_ENTRY_BYTES

    def entry(self, i: int) -> tuple[int, int]:
        """Return (offset, position) of entry ``i``."""
        return self.base_offset + self._relatives[i], self._positions[i]

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return the entry with the greatest offset <= ``offset``; (base offset, 0) if there is none."""
        i = bisect.bisect_right(self._relatives, offset - self.base_offset)
        return self.entry(i - 1) if i else (self.base_offset, 0)

    def upper_bound(self, position: int, size: int) -> tuple[int, int] | None:
        """Return the first entry at a position >= ``position + size``: it bounds a search for aborted ones."""
        i = bisect.bisect_left(self._positions, position + size)
        return self.entry(i) if i < len(self._positions) else None

    def reaches(self, position: int) -> bool:
        """Return True if an entry points at or after ``position``."""
        return any(at >= position for at in self._positions)

    def append(self, offset: int, position: int) -> bytes:
        """Add an entry and return its 8 bytes. Raises ``ConfigError`` if out of order, or beyond 31 bits."""
        relative = offset - self.base_offset
        if not 0 <= relative <= _MAX_RELATIVE or not 0 <= position <= _MAX_RELATIVE:
            raise ConfigError(f"offset {offset} at {position} does not fit the index of base {self.base_offset}")
        if self._relatives and relative <= self._relatives[-1]:
            raise ConfigError(f"offset {offset} is not above the last indexed one, {self.last_offset}")
        self._relatives.append(relative)
        self._positions.append(position)
        return _ENTRY.pack(relative, position)

    def extend(self, entries: bytes) -> None:
        """Add entries of verified batches: native int32 pairs of relative offset and position, in order.

        Raises ``ConfigError`` without adding any if they do not follow the last entry.
        """
        found = array("i", entries)
        if found and self._relatives and found[0] <= self._relatives[-1]:
            first = self.base_offset + found[0]
            raise ConfigError(f"offset {first} is not above the last indexed one, {self.last_offset}")
        self._relatives.extend(found[0::2])
        self._positions.extend(found[1::2])

    def truncate_to(self, offset: int) -> None:
        """Drop every entry with an offset >= ``offset``."""
        self._cut(bisect.bisect_left(self._relatives, offset - self.base_offset))

    def drop(self, offset: int) -> None:
        """Drop the entry of ``offset``, if any; lookups then start earlier."""
        i = bisect.bisect_left(self._relatives, offset - self.base_offset)
        if i < len(self._relatives) and self._relatives[i] == offset - self.base_offset:
            del self._relatives[i]
            del self._positions[i]

    def _cut(self, n: int) -> None:
        del self._relatives[n:]
        del self._positions[n:]

    def is_sane(self, log_size_bytes: int | None = None) -> bool:
        """Return True if offsets rise strictly from the base and positions rise strictly inside a log of that size."""
        r, p = self._relatives, self._positions
        if not r:
            return True
        if r[0] < 0 or p[0] < 0 or (log_size_bytes is not None and p[-1] >= log_size_bytes):
            return False
        return all(r[i] < r[i + 1] and p[i] < p[i + 1] for i in range(len(r) - 1))

    def to_bytes(self) -> bytes:
        """Return the bytes of the trimmed file."""
        columns = array("i", bytes(OFFSET_ENTRY_BYTES * len(self._relatives)))
        columns[0::2] = self._relatives
        columns[1::2] = self._positions
        _swap(columns)
        return columns.tobytes()
