"""The time index (``.timeindex``): maps a timestamp to the offset from which to search for it.

One entry of 12 bytes, big-endian::

    0  timestamp        i64   milliseconds, absolute
    8  relative offset  i32   minus the base of the segment

An entry says: no record of this segment up to ``offset`` is later than ``timestamp``. Timestamps rise strictly,
offsets never fall.
"""

from __future__ import annotations

import bisect
import struct
from array import array
from collections.abc import Iterator

from tiered.errors import ConfigError, CorruptionError

TIME_ENTRY_BYTES = 12
NO_TIMESTAMP = -1

_MAX_RELATIVE = 2**31 - 1
_ENTRY = struct.Struct(">qi")


class TimeIndex:
    """Entries of one segment in memory, as two native columns. Not thread-safe for writing."""

    __slots__ = ("_relatives", "_timestamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._relatives = array("i")

    @classmethod
    def from_bytes(
        cls, data: bytes | bytearray | memoryview, base_offset: int, *, drop_padding: bool = False
    ) -> TimeIndex:
        """Decode all of ``data``. ``drop_padding`` cuts the zeros of a preallocated, untrimmed file.

        Raises ``CorruptionError`` for a length that is no multiple of 12. :meth:`is_sane` checks the order.
        """
        if len(data) % TIME_ENTRY_BYTES:
            raise CorruptionError(
                f"time index of {len(data)} bytes is no multiple of {TIME_ENTRY_BYTES}",
                position=len(data) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES,
                hint="rebuild it from the log",
            )
        index = cls(base_offset)
        for timestamp, relative in _ENTRY.iter_unpack(data):
            index._timestamps.append(timestamp)
            index._relatives.append(relative)
        if drop_padding:
            n = len(index)
            while n > 0 and index._timestamps[n - 1] == 0 and index._relatives[n - 1] == 0:
                n -= 1
            index._cut(n)
        return index

    def __len__(self) -> int:
        return len(self._timestamps)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        base = self.base_offset
        return ((t, base + r) for t, r in zip(self._timestamps, self._relatives, strict=True))

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Return (timestamp, offset) of every entry, in order."""
        return list(self)

    @property
    def last_entry(self) -> tuple[int, int]:
        """Last (timestamp, offset); (-1, base offset) without entries."""
        return self.entry(-1) if self._timestamps else (NO_TIMESTAMP, self.base_offset)

    @property
    def size_bytes(self) -> int:
        return len(self._timestamps) * TIME_ENTRY_BYTES

    def entry(self, i: int) -> tuple[int, int]:
        """Return (timestamp, offset) of entry ``i``."""
        return self._timestamps[i], self.base_offset + self._relatives[i]

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """Return the entry with the greatest timestamp <= ``timestamp``; (-1, base offset) if there is none."""
        i = bisect.bisect_right(self._timestamps, timestamp)
        return self.entry(i - 1) if i else (NO_TIMESTAMP, self.base_offset)

    def maybe_append(self, timestamp: int, offset: int) -> bytes:
        """Add an entry if ``timestamp`` is above the last one. Return its 12 bytes, or ``b""`` if nothing was added.

        Raises ``ConfigError`` if offset or timestamp go back, or beyond 31 bits.
        """
        relative = offset - self.base_offset
        if not 0 <= relative <= _MAX_RELATIVE:
            raise ConfigError(f"offset {offset} does not fit the time index of base {self.base_offset}")
        if self._timestamps:
            if relative < self._relatives[-1]:
                raise ConfigError(f"offset {offset} is below the last one of the time index, {self.last_entry[1]}")
            if timestamp < self._timestamps[-1]:
                raise ConfigError(f"timestamp {timestamp} is below the last one of the index, {self._timestamps[-1]}")
            if timestamp == self._timestamps[-1]:
                return b""
        self._timestamps.append(timestamp)
        self._relatives.append(relative)
        return _ENTRY.pack(timestamp, relative)

    def truncate_to(self, offset: int) -> None:
        """Drop every entry with an offset >= ``offset``."""
        self._cut(bisect.bisect_left(self._relatives, offset - self.base_offset))

    def drop(self, timestamp: int) -> None:
        """Drop the entry of ``timestamp``, if any; lookups then start earlier."""
        i = bisect.bisect_left(self._timestamps, timestamp)
        if i < len(self._timestamps) and self._timestamps[i] == timestamp:
            del self._timestamps[i]
            del self._relatives[i]

    def _cut(self, n: int) -> None:
        del self._timestamps[n:]
        del self._relatives[n:]

    def is_sane(self, end_offset: int | None = None) -> bool:
        """Return True if timestamps rise strictly and offsets never fall, from the base up to ``end_offset``."""
        t, r = self._timestamps, self._relatives
        if not t:
            return True
        if r[0] < 0 or (end_offset is not None and self.base_offset + r[-1] >= end_offset):
            return False
        return all(t[i] < t[i + 1] and r[i] <= r[i + 1] for i in range(len(t) - 1))

    def to_bytes(self) -> bytes:
        """Return the bytes of the trimmed file."""
        return b"".join(map(_ENTRY.pack, self._timestamps, self._relatives))
