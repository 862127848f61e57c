"""One segment verified: the batches and records of its ``.log``, and the indexes beside it against them.

Indexes are compared as Kafka's tool compares them: the batch at an entry's position ends at the entry's offset; a time
entry names the last offset of a batch whose largest timestamp is the entry's; timestamps rise. What breaks them is
collected in :class:`Mismatches` and printed when all files are done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tiered.care.inspection import Expectations, LogInspection, LogScan
from tiered.dump.items import Entry, Item
from tiered.dump.small_files import base_of, suffix_of, whole
from tiered.dump.targets import beside, may_grow, sibling
from tiered.errors import CorruptionError
from tiered.findings import Findings, Severity
from tiered.format.batch import HEADER_BYTES, BatchHeader, decode_records, read_header
from tiered.format.keys import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from tiered.format.offset_index import OFFSET_ENTRY_BYTES, OffsetIndex
from tiered.format.time_index import TIME_ENTRY_BYTES, TimeIndex
from tiered.format.txn_index import TXN_ENTRY_BYTES
from tiered.format.walk import MIN_TAIL_BYTES, hop
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.sealed import FileSource
from tiered.model import ByteSource, SealedIndexes

Pairs = dict[str, list[tuple[int, int]]]

_FILES = {
    "offset_index": INDEX_SUFFIX,
    "offset_index_style": INDEX_SUFFIX,
    "offset_index_untrimmed": INDEX_SUFFIX,
    "time_index": TIME_INDEX_SUFFIX,
    "time_index_untrimmed": TIME_INDEX_SUFFIX,
    "txn_index": TXN_INDEX_SUFFIX,
    "producer_snapshot": SNAPSHOT_SUFFIX,
}
"""Which file a finding is about; all others are about the ``.log``."""


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


def segment_of(name: str) -> str:
    """The same text for all files of one segment."""
    log = sibling(name, LOG_SUFFIX)
    return name if log is None else str(log)


def verify_segment(name: str, source: ByteSource) -> tuple[Findings, LogScan | None]:
    """``name`` is any of :data:`SEGMENT_SUFFIXES`; no scan where an index has no ``.log`` beside it."""
    if suffix_of(name.rsplit("/", 1)[-1]) == LOG_SUFFIX or sibling(name, LOG_SUFFIX) is None:
        return _verify_log(name, source)
    log = sibling(name, LOG_SUFFIX)
    if log is not None and log.is_file():
        with closing(FileSource(PosixFiles(), log, log.stat().st_size, sync=False)) as log_source:
            return _verify_log(str(log), log_source)
    findings = Findings(name)
    suffix = suffix_of(Path(name).name)
    findings.add(Severity.WARNING, "log_missing", "there is no .log beside it: only its order can be checked")
    if suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        wrong = sanity_error(suffix, whole(name, source), base_of(name))
        if wrong:
            findings.error("offset_index" if suffix == INDEX_SUFFIX else "time_index", wrong)
    return findings, None


def _verify_log(name: str, source: ByteSource) -> tuple[Findings, LogScan]:
    findings = Findings(name)
    base = base_of(name)
    indexes = _indexes(name, base, findings)
    expectations = Expectations(decode=True, padded=may_grow(name))
    scan = LogInspection(source.size, base, findings, expectations, indexes=indexes).of(source)
    if indexes is not None and not any(item.code == "offset_index" for item in findings.items):
        _compare_with_kafka(name, source, indexes.offset_index, findings)
    _rehome(name, findings)
    return findings, scan


def _rehome(name: str, findings: Findings) -> None:
    """Positions in an index are positions in its own file."""
    for number, item in enumerate(findings.items):
        file = sibling(name, _FILES.get(item.code, ""))
        if file is not None and file.is_file() and item.code in _FILES:
            findings.items[number] = replace(item, where=str(file))


def _compare_with_kafka(name: str, log: ByteSource, offsets: bytes, findings: Findings) -> None:
    """Entries that hold, but that Kafka's tool calls mismatches: of an append of several batches."""
    found = Mismatches()
    for _ in offset_entries(name, offsets, base_of(name), log, found):
        pass
    for damage in found.broken:
        findings.error("offset_index", damage.message, offset=damage.offset)
    for offset, last_offset in found.offsets.get(name, ()):
        message = f"the entry of offset {offset} points at a batch that ends at {last_offset}: Kafka's tool objects"
        findings.add(Severity.WARNING, "offset_index_style", message, offset=offset)


def _indexes(name: str, base: int, findings: Findings) -> SealedIndexes | None:
    """The index files beside a local ``.log``, zeros of untrimmed files cut; None for an object."""
    if sibling(name, INDEX_SUFFIX) is None:
        return None
    offsets = _read(name, INDEX_SUFFIX, findings, needed=True)
    times = _read(name, TIME_INDEX_SUFFIX, findings, needed=True)
    if offsets and not len(offsets) % OFFSET_ENTRY_BYTES:
        offsets = _trimmed("offset_index", offsets, OffsetIndex.from_bytes(offsets, base, drop_padding=True), findings)
    if times and not len(times) % TIME_ENTRY_BYTES:
        times = _trimmed("time_index", times, TimeIndex.from_bytes(times, base, drop_padding=True), findings)
    txns = _read(name, TXN_INDEX_SUFFIX, findings) or b""
    torn = len(txns) % TXN_ENTRY_BYTES
    if torn:
        message = f"{torn} bytes of an unfinished entry end the transaction index"
        findings.error("txn_index", message, position=len(txns) - torn)
    return SealedIndexes(offsets or b"", times or b"", txns, _read(name, SNAPSHOT_SUFFIX, findings) or b"")


def _read(name: str, suffix: str, findings: Findings, *, needed: bool = False) -> bytes | None:
    with beside(name, suffix) as source:
        if source is not None:
            return whole(name, source)
    if needed:
        message = f"there is no {suffix} beside it: a broker, and any writer, makes it anew"
        findings.add(Severity.WARNING, "index_missing", message)
    return None


def _trimmed(code: str, data: bytes, index: OffsetIndex | TimeIndex, findings: Findings) -> bytes:
    kept = index.to_bytes()
    if len(kept) < len(data):
        message = (
            f"{len(data) - len(kept)} zero bytes end the {code.replace('_', ' ')}: its writer is open, or was killed"
        )
        findings.add(Severity.INFO, f"{code}_untrimmed", message)
    return kept
