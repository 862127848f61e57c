"""One segment looked at from the first byte to the last: batches, CRCs, offsets, and indexes that agree with them.

It is fed with pieces, so that a file of this disk and an object of the bucket are judged by the same code. Changes
nothing. What is wrong comes back as findings, never as an exception; only a source that cannot be read raises.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tiered.errors import CorruptionError
from tiered.findings import Findings, Severity
from tiered.format.batch import BatchHeader, decode_records, read_header, verify_batch
from tiered.format.crc import crc32c
from tiered.format.offset_index import OFFSET_ENTRY_BYTES, OffsetIndex
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.time_index import TIME_ENTRY_BYTES, TimeIndex
from tiered.format.txn_index import decode_txns
from tiered.format.walk import MIN_TAIL_BYTES, BatchWalk, corrupt_at
from tiered.model import ByteSource, EpochEntry, SealedIndexes, SegmentDescriptor
from tiered.plan.producer import read_producer
from tiered.plan.producer_state import Snapshot
from tiered.plan.side_files import Follower, Judged, judge_snapshot, judge_txn_index

WINDOW_BYTES = 1024 * 1024
"""Bytes read at once; a larger batch gets a buffer of its own."""

MAX_BATCH_BYTES = 512 * 1024 * 1024
"""A declared batch larger than this is taken for damage: nobody writes one."""

_BASE_OFFSET = struct.Struct(">q")


@dataclass(slots=True)
class LogScan:
    """What the batches of one ``.log`` add up to. ``end_offset`` exclusive; ``valid_bytes`` up to the last whole batch.

    ``crc32c`` is that of the whole file, torn tail included. ``min_timestamp`` is known only after decoding.
    """

    base_offset: int
    size_bytes: int
    valid_bytes: int = 0
    crc32c: int = 0
    batches: int = 0
    records: int = 0
    first_offset: int = -1
    end_offset: int = -1
    min_timestamp: int = -1
    max_timestamp: int = -1
    leader_epoch: int = -1
    gaps: int = 0
    leader_epochs: list[EpochEntry] = field(default_factory=list)

    @property
    def is_torn(self) -> bool:
        """Whether bytes follow the last whole batch."""
        return self.valid_bytes < self.size_bytes


@dataclass(frozen=True, slots=True)
class Expectations:
    """How strict to be. ``growing``: the segment may still be written, so a torn tail and padding are normal.

    ``contiguous``: offsets have no holes (never compacted). ``decode``: look into every record too.
    """

    growing: bool = False
    contiguous: bool = False
    decode: bool = False


class BatchFeed:
    """The whole batches of a log of ``size`` bytes that comes in pieces; ``done`` where only a partial one is left.

    A batch that spans pieces is joined once, when its last byte is there.
    """

    def __init__(self, size: int) -> None:
        self._walk = BatchWalk(corrupt_at, most_bytes=MAX_BATCH_BYTES)
        self._size = size
        self._held: list[memoryview] = []
        self._held_bytes = 0
        self._wanted_bytes = MIN_TAIL_BYTES + 1
        self.done = size < self._wanted_bytes

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Position and bytes of each batch that ``data`` completes, by declared length.

        Raises ``CorruptionError`` with the position where no batch can begin.
        """
        self._held.append(memoryview(data))
        self._held_bytes += len(data)
        if self.done or self._held_bytes < self._wanted_bytes:
            return
        view = memoryview(b"".join(self._held)) if len(self._held) > 1 else self._held[0]
        start = self._walk.position
        for span, batch in self._walk.whole(view):
            yield span.position, batch
        rest = view[self._walk.position - start :]
        self._wanted_bytes = self._walk.size_at(rest) if len(rest) > MIN_TAIL_BYTES else MIN_TAIL_BYTES + 1
        self.done = self._walk.position + self._wanted_bytes > self._size
        self._held, self._held_bytes = [] if self.done else [rest], len(rest)


def pieces(source: ByteSource) -> Iterator[bytes]:
    """All bytes, :data:`WINDOW_BYTES` at once."""
    for start in range(0, source.size, WINDOW_BYTES):
        yield source.read_at(start, min(WINDOW_BYTES, source.size - start))


def batches(source: ByteSource) -> Iterator[tuple[int, memoryview]]:
    """What a :class:`BatchFeed` gives of ``source``; no more is read than is taken."""
    feed = BatchFeed(source.size)
    for piece in pieces(source):
        yield from feed.feed(piece)
        if feed.done:
            return


def inspect_log(
    source: ByteSource,
    base_offset: int,
    findings: Findings,
    expectations: Expectations = Expectations(),
    *,
    indexes: SealedIndexes | None = None,
    follower: Follower | None = None,
) -> LogScan:
    """A :class:`LogInspection` of the whole ``.log``."""
    look = LogInspection(source.size, base_offset, findings, expectations, indexes=indexes, follower=follower)
    for piece in pieces(source):
        look.feed(piece)
    return look.end()


class LogInspection:
    """Walks a ``.log`` that is fed to it and says what it found; ``indexes`` are compared with it on the way.

    ``follower`` sees each batch; where one cannot be read it forgets what came before. Feed every byte, then ``end``.
    """

    def __init__(
        self,
        size: int,
        base_offset: int,
        findings: Findings,
        expectations: Expectations,
        *,
        indexes: SealedIndexes | None,
        follower: Follower | None,
    ) -> None:
        self._scan = LogScan(base_offset, size)
        self._findings = findings
        self._expectations = expectations
        self._follower = follower
        self._indexes = indexes
        self._checks: tuple[_OffsetIndexCheck | _TimeIndexCheck, ...] = ()
        if indexes is not None:
            self._checks = (
                _OffsetIndexCheck(indexes, base_offset, findings, expectations),
                _TimeIndexCheck(indexes, base_offset, findings, expectations),
            )
        self._batches = BatchFeed(size)
        self._fed = 0
        self._zeros_from = 0
        self._damage: CorruptionError | None = None

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        self._scan.crc32c = crc32c(data, self._scan.crc32c)
        written = len(data.rstrip(b"\0"))
        if written:
            self._zeros_from = self._fed + written
        self._fed += len(data)
        if self._damage is None:
            try:
                for position, batch in self._batches.feed(data):
                    self._batch(position, batch)
            except CorruptionError as cause:
                self._damage = cause

    def _batch(self, position: int, data: memoryview) -> None:
        header, intact = _verified(position, data, self._findings)
        _follow(self._scan, header, position, self._findings, self._expectations)
        if self._follower is not None:
            _show(self._follower, header, data, intact=intact)
        if self._expectations.decode and intact:
            _decode(self._scan, header, data, position, self._findings)
        for check in self._checks:
            check.batch(position, header)
        self._scan.valid_bytes = position + len(data)

    def end(self) -> LogScan:
        """What it all adds up to."""
        scan = self._scan
        if scan.end_offset < 0:
            scan.end_offset = scan.base_offset
        if scan.is_torn:
            self._tail()
            if self._follower is not None:
                self._follower.restart(whole=False)
        for check in self._checks:
            check.end(scan)
        if self._indexes is not None:
            inspect_other_indexes(self._indexes, scan.base_offset, self._findings)
        return scan

    def _tail(self) -> None:
        """Judges what follows the last whole batch: a torn write, zeros that a crash left, or damage."""
        scan, damage = self._scan, self._damage
        only_zeros = self._zeros_from <= scan.valid_bytes
        if damage is not None and not only_zeros:
            self._findings.error("log_structure", damage.message, position=damage.position, offset=damage.offset)
            return
        severity = Severity.INFO if self._expectations.growing else Severity.ERROR
        what = "zero bytes follow" if only_zeros else "bytes of an unfinished batch follow"
        message = f"{scan.size_bytes - scan.valid_bytes} {what} the last whole batch"
        self._findings.add(severity, "log_torn", message, position=scan.valid_bytes)


def inspect_other_indexes(indexes: SealedIndexes, base_offset: int, findings: Findings) -> None:
    """Transaction index and producer snapshot: versions, order, CRC."""
    try:
        decode_txns(indexes.txn_index, base_offset)
    except CorruptionError as damage:
        findings.error("txn_index", damage.message, position=damage.position, offset=damage.offset)
    if indexes.producer_snapshot:
        try:
            decode_snapshot(indexes.producer_snapshot)
        except CorruptionError as damage:
            # Kafka deletes a bad snapshot and replays from an older one: nothing is lost.
            findings.add(Severity.WARNING, "producer_snapshot", damage.message, position=damage.position)
    for before, after in zip(indexes.leader_epochs, indexes.leader_epochs[1:], strict=False):
        if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
            findings.error(
                "leader_epochs", f"leader epoch {after.epoch} at {after.start_offset} does not follow {before}"
            )


def compare_descriptor(scan: LogScan, descriptor: SegmentDescriptor, findings: Findings) -> None:
    """The sizes, ranges and checksum that were noted at the seal, against what was read (with ``decode``)."""
    pairs = (
        ("size", scan.size_bytes, descriptor.size_bytes),
        ("CRC32C", scan.crc32c, descriptor.crc32c),
        ("records", scan.records, descriptor.records),
        ("largest timestamp", scan.max_timestamp, descriptor.max_timestamp),
        ("smallest timestamp", scan.min_timestamp, descriptor.min_timestamp),
        ("leader epoch", scan.leader_epoch, descriptor.leader_epoch),
    )
    for what, seen, noted in pairs:
        if seen != noted:
            findings.error("descriptor", f"the {what} is {seen}, noted at the seal is {noted}", offset=scan.base_offset)
    if scan.end_offset > descriptor.end_offset:
        findings.error("descriptor", f"records reach {scan.end_offset}, the noted end is {descriptor.end_offset}")


class SideFileCheck:
    """Compares transaction indexes and producer snapshots with the markers in the log, segment after segment.

    ``follower`` is for :func:`inspect_log`; call :meth:`compare` behind each segment, :meth:`skip` for one that was not
    read.
    """

    def __init__(self) -> None:
        self.follower = Follower(whole=False)
        self._next = -1

    def begin(self, base_offset: int) -> None:
        """The segment at ``base_offset`` is read next. Nothing came before offset 0; what a hole held nobody knows."""
        if base_offset != self._next:
            self.follower.restart(whole=base_offset == 0)

    def skip(self, snapshot: bytes | None, end_offset: int) -> None:
        """Takes the producers at the end of a segment from its snapshot: nothing else of the segment is known."""
        known = _decoded(snapshot, end_offset)
        self.follower.restart(known, whole=known is not None)
        self._next = end_offset

    def compare(
        self, base_offset: int, end_offset: int, txn_index: bytes, snapshot: bytes | None, *, expected: bool = False
    ) -> tuple[Judged, Judged]:
        """Transaction index and producer snapshot of the segment that was just read."""
        followed = self.follower.end_segment()
        self._next = end_offset
        txns = judge_txn_index(txn_index, base_offset, followed, all_followed=True)
        producers = judge_snapshot(snapshot, followed, expected=expected)
        if not followed.whole and producers.flaw is None and snapshot is not None:
            self.skip(snapshot, end_offset)
        return txns, producers


def _decoded(snapshot: bytes | None, end_offset: int) -> Snapshot | None:
    try:
        return None if snapshot is None else Snapshot(end_offset, tuple(decode_snapshot(snapshot)))
    except CorruptionError:
        return None


def _show(follower: Follower, header: BatchHeader, data: memoryview, *, intact: bool) -> None:
    try:
        if intact:
            follower.see(read_producer(header, data))
            return
    except CorruptionError:
        pass  # the records of a marker: whoever decodes says so
    follower.restart(whole=False)


class _OffsetIndexCheck:
    """Every entry points at the start of a batch, and nothing at or above its offset lies before that batch."""

    def __init__(self, indexes: SealedIndexes, base: int, findings: Findings, expectations: Expectations) -> None:
        self._findings = findings
        self._entries: list[tuple[int, int]] = []
        self._next = 0
        self._before = base - 1
        try:
            index = OffsetIndex.from_bytes(indexes.offset_index, base, drop_padding=expectations.growing)
        except CorruptionError as damage:
            findings.error("offset_index", damage.message, position=damage.position)
            return
        self._entries = index.entries
        if not index.is_sane():
            place = _first_fall(self._entries, OFFSET_ENTRY_BYTES, lambda a, b: a[0] < b[0] and a[1] < b[1])
            findings.error("offset_index", f"offsets or positions of the offset index do not rise: {place}")
            self._entries = []

    def batch(self, position: int, header: BatchHeader) -> None:
        """The next batch of the log."""
        while self._next < len(self._entries) and self._entries[self._next][1] <= position:
            offset, at = self._entries[self._next]
            self._next += 1
            if at != position:
                self._findings.error(
                    "offset_index",
                    f"the entry of offset {offset} {self._place()} points at byte {at}, no batch",
                    offset=offset,
                )
            elif self._before >= offset or header.base_offset > offset:
                self._findings.error(
                    "offset_index",
                    f"the entry of offset {offset} {self._place()} points at byte {at}, "
                    f"where {header.base_offset} begins",
                    offset=offset,
                )
        self._before = header.last_offset

    def _place(self) -> str:
        return f"(entry {self._next - 1} of the index)"

    def end(self, scan: LogScan) -> None:
        """Entries beyond the end of the log."""
        for offset, at in self._entries[self._next :]:
            self._findings.error(
                "offset_index", f"the entry of offset {offset} points at byte {at} of {scan.valid_bytes}", offset=offset
            )


class _TimeIndexCheck:
    """Every entry tells the largest timestamp of all records up to its offset."""

    def __init__(self, indexes: SealedIndexes, base: int, findings: Findings, expectations: Expectations) -> None:
        self._findings = findings
        self._entries: list[tuple[int, int]] = []
        self._next = 0
        self._largest = -1
        try:
            index = TimeIndex.from_bytes(indexes.time_index, base, drop_padding=expectations.growing)
        except CorruptionError as damage:
            findings.error("time_index", damage.message, position=damage.position)
            return
        self._entries = index.entries
        if not index.is_sane():
            place = _first_fall(self._entries, TIME_ENTRY_BYTES, lambda a, b: a[0] < b[0] and a[1] <= b[1])
            findings.error("time_index", f"timestamps or offsets of the time index do not rise: {place}")
            self._entries = []

    def batch(self, _: int, header: BatchHeader) -> None:
        """The next batch of the log."""
        self._largest = max(self._largest, header.max_timestamp)
        while self._next < len(self._entries) and self._entries[self._next][1] <= header.last_offset:
            timestamp, offset = self._entries[self._next]
            self._next += 1
            if timestamp < self._largest:
                self._findings.error(
                    "time_index",
                    f"records up to offset {offset} reach {self._largest}, the entry says {timestamp}",
                    offset=offset,
                )
            elif timestamp > self._largest:
                # A lookup then starts later than it could have, but never behind a record that it wants.
                message = f"records up to offset {offset} reach only {self._largest}, the entry says {timestamp}"
                self._findings.add(Severity.WARNING, "time_index", message, offset=offset)

    def end(self, scan: LogScan) -> None:
        """Entries beyond the end of the log."""
        for timestamp, offset in self._entries[self._next :]:
            self._findings.error(
                "time_index",
                f"the entry of {timestamp} names offset {offset}, the log ends at {scan.end_offset}",
                offset=offset,
            )


def _first_fall(
    entries: list[tuple[int, int]], entry_bytes: int, rises: Callable[[tuple[int, int], tuple[int, int]], bool]
) -> str:
    """Where an index stops to rise, in words; the first entry if it is that which is impossible."""
    pairs = itertools.pairwise(entries)
    number = next((i for i, (before, after) in enumerate(pairs, start=1) if not rises(before, after)), 0)
    before = f" after {entries[number - 1]}" if number else ""
    return f"entry {number} at byte {number * entry_bytes} is {entries[number]}{before}"


def _verified(position: int, data: memoryview, findings: Findings) -> tuple[BatchHeader, bool]:
    """The header, and whether the CRC holds. Raises ``CorruptionError`` if not even the header can be read."""
    try:
        return verify_batch(data), True
    except CorruptionError as damage:
        findings.error("log_crc", damage.message, position=position, offset=_BASE_OFFSET.unpack_from(data)[0])
    try:
        return read_header(data), False
    except CorruptionError as damage:
        raise CorruptionError(damage.message, position=position, offset=damage.offset) from None


def _follow(scan: LogScan, header: BatchHeader, position: int, findings: Findings, expectations: Expectations) -> None:
    expected = scan.base_offset if scan.end_offset < 0 else scan.end_offset
    if header.base_offset < expected:
        findings.error(
            "log_order",
            f"a batch begins at offset {header.base_offset}, below {expected}",
            position=position,
            offset=header.base_offset,
        )
    elif header.base_offset > expected:
        scan.gaps += 1
        if expectations.contiguous:
            findings.error(
                "log_gap", f"offsets {expected} to {header.base_offset} are missing", position=position, offset=expected
            )
    scan.batches += 1
    scan.records += max(header.records_count, 0)
    if scan.first_offset < 0:
        scan.first_offset = header.base_offset
    scan.end_offset = max(scan.end_offset, header.next_offset)
    scan.max_timestamp = max(scan.max_timestamp, header.max_timestamp)
    if header.leader_epoch > scan.leader_epoch:
        scan.leader_epochs.append(EpochEntry(header.leader_epoch, header.base_offset))
    elif header.leader_epoch < scan.leader_epoch:
        findings.error(
            "leader_epoch",
            f"the leader epoch falls from {scan.leader_epoch} to {header.leader_epoch}",
            position=position,
        )
    scan.leader_epoch = header.leader_epoch


def _decode(scan: LogScan, header: BatchHeader, data: memoryview, position: int, findings: Findings) -> None:
    try:
        for record in decode_records(data):
            if record.timestamp >= 0 and (scan.min_timestamp < 0 or record.timestamp < scan.min_timestamp):
                scan.min_timestamp = record.timestamp
            if not header.base_offset <= record.offset <= header.last_offset:
                findings.error("record", f"a record has offset {record.offset} outside its batch", position=position)
    except CorruptionError as damage:
        findings.error("record", damage.message, position=position, offset=header.base_offset)
