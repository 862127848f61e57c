"""What records are like, counted batch by batch, and joined over parts of a log. Pure.

Distinct keys are estimated from the smallest hashes that were seen (a KMV sketch): sketches of parts join into that of
the whole, in 8 KiB whatever there is, within 6 % in 95 of 100 logs.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from tiered.format.batch import BatchHeader, decode_records
from tiered.format.columns import ColumnReader, Columns
from tiered.format.header import Buffer

SKETCH_KEYS = 1024
"""Hashes that a sketch keeps: the estimate is off by 1/sqrt of it, 3 %, in two of three cases."""

PARSED_BYTES = 1024 * 1024
"""Uncompressed bytes that are taken apart at once."""

_HASHES = 1 << 64


@dataclass(slots=True)
class LogStatistics:
    """Of some records. Bytes of keys and values are uncompressed; times -1 where there are none.

    ``codecs``: bytes of batches by codec. ``smallest``: of the hashes of all keys; empty if keys are not looked at.
    """

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    null_keys: int = 0
    tombstones: int = 0
    control_batches: int = 0
    transactional_batches: int = 0
    min_timestamp: int = -1
    max_timestamp: int = -1
    codecs: dict[str, int] = field(default_factory=dict)
    smallest: list[int] = field(default_factory=list)

    @property
    def distinct_keys(self) -> int:
        """Estimated; exact below :data:`SKETCH_KEYS`."""
        if len(self.smallest) < SKETCH_KEYS:
            return len(self.smallest)
        return (SKETCH_KEYS - 1) * _HASHES // self.smallest[-1]

    def join(self, other: LogStatistics) -> None:
        """Adds what was counted elsewhere."""
        times = [each.min_timestamp for each in (self, other) if each.min_timestamp >= 0]
        self.min_timestamp = min(times, default=-1)
        self.max_timestamp = max(self.max_timestamp, other.max_timestamp)
        self.codecs = dict(Counter(self.codecs) + Counter(other.codecs))
        self.smallest = sorted({*self.smallest, *other.smallest})[:SKETCH_KEYS]
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return dataclasses.asdict(self)

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> LogStatistics:
        """The inverse."""
        return cls(**fields)


_SUMS = tuple(
    each.name
    for each in dataclasses.fields(LogStatistics)
    if each.type == "int" and not each.name.endswith("timestamp")
)


class StatisticsCounter:
    """Counts batches; :meth:`finish` gives the result. ``keys``: estimates distinct ones, too, at 1 us a record."""

    def __init__(self, *, keys: bool = False) -> None:
        self._found = LogStatistics()
        self._reader = ColumnReader()
        self._keys = keys
        self._heap: list[int] = []  # the smallest hashes, negated: the largest of them is at the top
        self._held: set[int] = set()

    def add(self, header: BatchHeader, batch: Buffer) -> None:
        """One verified batch. Raises CorruptionError."""
        found = self._found
        found.batches += 1
        found.size_bytes += len(batch)
        name = header.codec.name.lower()
        found.codecs[name] = found.codecs.get(name, 0) + len(batch)
        if header.is_control:
            found.control_batches += 1
            return
        found.transactional_batches += header.is_transactional
        if header.magic < 2:
            for record in decode_records(batch):
                self._count(1, record.key, record.value, record.timestamp)
            return
        if not self._reader.accepts(header):
            self._take()
        self._reader.add(header, bytes(batch))
        if self._reader.size_bytes >= PARSED_BYTES:
            self._take()

    def finish(self) -> LogStatistics:
        """All that was counted."""
        self._take()
        self._found.smallest = sorted(-each for each in self._heap)
        return self._found

    def _count(self, records: int, key: bytes | None, value: bytes | None, timestamp: int) -> None:
        found = self._found
        found.records += records
        found.null_keys += key is None
        found.key_bytes += len(key or b"")
        found.tombstones += value is None
        found.value_bytes += len(value or b"")
        self._see_times(timestamp, timestamp)
        if key is not None and self._keys:
            self._see_key(key)

    def _take(self) -> None:
        if not self._reader.rows:
            return
        columns, found = self._reader.take(), self._found
        found.records += len(columns)
        if not len(columns):
            return
        found.null_keys += int((columns.key_len < 0).sum())
        found.key_bytes += int(columns.key_len.clip(0).sum())
        found.tombstones += int((columns.value_len < 0).sum())
        found.value_bytes += int(columns.value_len.clip(0).sum())
        self._see_times(int(columns.timestamps.min()), int(columns.timestamps.max()))
        if self._keys:
            self._see_keys(columns)

    def _see_keys(self, columns: Columns) -> None:
        for start, length in zip(columns.key_at.tolist(), columns.key_len.tolist(), strict=True):
            if length >= 0:
                self._see_key(columns.buffer[start : start + length])

    def _see_key(self, key: bytes) -> None:
        number = int.from_bytes(blake2b(key, digest_size=8).digest(), "big")
        heap, held = self._heap, self._held
        if number in held or (len(heap) == SKETCH_KEYS and number >= -heap[0]):
            return
        held.add(number)
        if len(heap) < SKETCH_KEYS:
            heapq.heappush(heap, -number)
        else:
            held.discard(-heapq.heapreplace(heap, -number))

    def _see_times(self, least: int, most: int) -> None:
        found = self._found
        if least >= 0:
            found.min_timestamp = least if found.min_timestamp < 0 else min(found.min_timestamp, least)
        found.max_timestamp = max(found.max_timestamp, most)
