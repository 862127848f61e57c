"""Indexes as Kafka's tool walks them: each entry is held against the batch of the ``.log`` that it points at.

Kafka's rules: the batch at an entry's position ends at the entry's offset; a time entry names the last offset of a
batch whose largest timestamp is the entry's; timestamps rise. What breaks them is collected in :class:`Mismatches`
and printed when all files are done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tiered.dump.items import Entry, Item
from tiered.errors import CorruptionError
from tiered.format.batch import HEADER_BYTES, BatchHeader, decode_records, read_header
from tiered.format.offset_index import OFFSET_ENTRY_BYTES, OffsetIndex
from tiered.format.time_index import TIME_ENTRY_BYTES, TimeIndex
from tiered.format.walk import MIN_TAIL_BYTES, hop
from tiered.model import ByteSource

Pairs = dict[str, list[tuple[int, int]]]


class Mismatches:
    """What Kafka's tool prints behind the last file, by file. Newest first where Kafka has it so."""

    def __init__(self) -> None:
        self.offsets: Pairs = {}
        self.timestamps: Pairs = {}
        self.order: Pairs = {}
        self.absent: Pairs = {}
        self.gaps: Pairs = {}
        self.broken: list[CorruptionError] = []
        """Entries at which Kafka's tool fails; the position is the entry's in its index."""
        self.errors = 0

    def add(self, kind: Pairs, name: str, first: int, second: int, *, error: bool = True) -> None:
        """One more pair. Not every one is an ``error``: compaction leaves gaps and batches without records."""
        kind.setdefault(name, []).append((first, second))
        self.errors += error

    def lines(self) -> Iterator[str]:
        """In Kafka's words; files in the order in which they were met."""
        for name, pairs in self.offsets.items():
            yield f"Mismatches in :{name}"
            yield from (f"  Index offset: {index}, log offset: {log}" for index, log in reversed(pairs))
        for name, pairs in self.timestamps.items():
            yield f"Found timestamp mismatch in :{name}"
            yield from (f"  Index timestamp: {index}, log timestamp: {log}" for index, log in pairs)
        for name, pairs in self.order.items():
            yield f"Found out of order timestamp in :{name}"
            yield from (
                f"  Index timestamp: {index}, Previously indexed timestamp: {before}" for index, before in pairs
            )
        for pairs in self.absent.values():
            yield "The following indexed offsets are not found in the log."
            yield from (f"Indexed offset: {index}, found log offset: {log}" for index, log in pairs)
        for name, pairs in self.gaps.items():
            yield f"Non-consecutive offsets in {name}"
            yield from (f"  {first} is followed by {second}" for first, second in reversed(pairs))


def offset_entries(name: str, data: bytes, base: int, log: ByteSource | None, found: Mismatches) -> Iterator[Item]:
    """The entries of a ``.index``, up to the zeros of a file that was never trimmed."""
    index = OffsetIndex.from_bytes(data[: len(data) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES], base)
    if not len(index):
        yield Entry("empty", {}, "", f"{name} is empty.")
        return
    for number, (offset, position) in enumerate(index):
        if offset == base and number:
            return
        if log is not None:
            try:
                last_offset = _header_at(log, position).last_offset
                if last_offset != offset:
                    found.add(found.offsets, name, offset, last_offset)
            except CorruptionError as damage:
                message = f"the entry of offset {offset} points at byte {position}: {damage.message}"
                found.broken.append(CorruptionError(message, position=number * OFFSET_ENTRY_BYTES, offset=offset))
        line = f"offset: {offset} position: {position}"
        yield Entry("index_entry", {"offset": offset, "position": position}, line, line)


def time_entries(
    name: str, data: bytes, base: int, log: ByteSource | None, found: Mismatches, *, offsets: bytes
) -> Iterator[Item]:
    """The entries of a ``.timeindex``, likewise; ``offsets`` are the bytes of the ``.index`` beside it."""
    index = TimeIndex.from_bytes(data[: len(data) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES], base)
    whole_bytes = len(offsets) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES
    lookup = OffsetIndex.from_bytes(offsets[:whole_bytes], base, drop_padding=True)
    before = -1
    for number, (timestamp, offset) in enumerate(index):
        if offset == base and number:
            return
        if log is not None:
            try:
                _check_time(name, (timestamp, offset, before), lookup.lookup(offset)[1], log, found)
            except CorruptionError as damage:
                message = f"the batch that ends at {offset} cannot be read: {damage.message}"
                found.broken.append(CorruptionError(message, position=number * TIME_ENTRY_BYTES, offset=offset))
        line = f"timestamp: {timestamp} offset: {offset}"
        yield Entry("time_index_entry", {"timestamp": timestamp, "offset": offset}, line, line)
        before = timestamp


def sanity_error(suffix: str, data: bytes, base: int) -> str:
    """Why a broker would rebuild the index when it starts; empty if it would keep it."""
    entry_bytes = OFFSET_ENTRY_BYTES if suffix == ".index" else TIME_ENTRY_BYTES
    if len(data) % entry_bytes:
        return f"its {len(data)} bytes are no multiple of {entry_bytes}"
    if not data:
        return ""
    if suffix == ".index":
        last_offset = OffsetIndex.from_bytes(data, base).last_offset
    else:
        index = TimeIndex.from_bytes(data, base)
        last, last_offset = index.last_entry
        if last < index.entry(0)[0]:
            return f"its last timestamp {last} is below its first, {index.entry(0)[0]}"
    return f"its last offset {last_offset} is below the base {base}" if last_offset < base else ""


def _check_time(name: str, entry: tuple[int, int, int], position: int, log: ByteSource, found: Mismatches) -> None:
    """``entry``: timestamp, offset, and the timestamp before it; its batch is at or behind ``position``."""
    timestamp, offset, before = entry
    headers = _from(log, position)
    at = next(((place, header) for place, header in headers if header.last_offset >= offset), None)
    if at is None or at[1].last_offset != offset:
        found.add(found.absent, name, offset, -1 if at is None else at[1].last_offset)
        return
    place, header = at
    records = decode_records(log.read_at(place, header.size_bytes))
    largest = max((record.timestamp for record in records), default=-1)
    if largest != timestamp:
        # A batch that compaction emptied has no timestamp to compare with: true of a broker's own files.
        found.add(found.timestamps, name, timestamp, largest, error=header.records_count != 0)
    if before >= timestamp:
        found.add(found.order, name, timestamp, before)


def _from(log: ByteSource, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """The batches from there on; none where no batch begins."""
    with contextlib.suppress(CorruptionError):
        yield from hop(lambda at: _header_at(log, at), position, log.size - MIN_TAIL_BYTES)


def _header_at(log: ByteSource, position: int) -> BatchHeader:
    """The header of the whole batch that begins there."""
    left = log.size - position
    if position < 0 or left <= 0:
        raise CorruptionError(f"the log has {log.size} bytes")
    return read_header(log.read_at(position, min(HEADER_BYTES, left)), limit=left)
