"""Inspection of all bytes of one segment: batches, CRCs, offsets, and the indexes that must agree with them.

The bytes come in pieces, so that the same code checks a local file and an object of the bucket. Nothing is changed.
Damage is reported as findings. Only an unreadable source raises.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tiered.check.findings import Findings, Passed, Severity
from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, decode_records, read_header, records_extent, verify_batch
from tiered.format.batch_scanner import MAX_IGNORED_TAIL_BYTES, BatchWalk, corrupt_at
from tiered.format.kernels import crc32c
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.segment_indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex, decode_txns
from tiered.model import ByteSource, Row, SealedIndexes, SegmentDescriptor, TopicPartition
from tiered.plan.producer import read_producer
from tiered.plan.producer_state import ProducerSnapshot
from tiered.plan.side_files import Follower, SideFileVerdict, judge_snapshot, judge_txn_index
from tiered.store.base import Blocking, Emit, Get, Missing, Object, Steps, Together

WINDOW_BYTES = 1024 * 1024
"""Bytes of a file that are read at once."""

RANGE_BYTES = 8 * 1024 * 1024
"""Bytes of one GET."""

RANGES_TOGETHER = 4
"""Concurrent GETs; as many ranges are in memory."""

MAX_BATCH_BYTES = 512 * 1024 * 1024
"""Limit of a declared batch size: a larger one counts as damage, because no writer makes it."""

_BASE_OFFSET = struct.Struct(">q")


class ObjectGone(CorruptionError):
    """Error of a read: an object of a segment in the catalog does not exist."""


@dataclass(slots=True)
class LogScan:
    """Totals of the batches of one ``.log``. ``end_offset``: exclusive. ``valid_bytes``: end of the last whole batch.

    ``crc32c``: of the whole file, including a torn tail. ``min_timestamp``: known only if records are decoded.
    ``leader_epoch``: that of the last batch. -1: none, or unknown.
    """

    base_offset: int
    size_bytes: int
    valid_bytes: int = 0
    crc32c: int = 0
    batches: int = 0
    records: int = 0
    end_offset: int = -1
    min_timestamp: int = -1
    max_timestamp: int = -1
    leader_epoch: int = -1


PADDING = ": its writer took that room ahead (`preallocate`), or a crash left them"
"""Explanation of zeros at the end of a segment that may still be written."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """Conditions that an inspection requires of a segment.

    ``growing``: the segment may still be written, so a torn tail and padding are normal. ``contiguous``: no offset may
    be missing, because the log was never compacted. ``decode``: also decode every record.
    """

    growing: bool = False
    contiguous: bool = False
    decode: bool = False


class BatchFeed:
    """Splitter of a log's bytes, which come in pieces, into whole batches. ``size``: bytes of the log.

    ``done``: True once no whole batch is left. A batch that spans pieces is joined when its last byte is there.
    """

    def __init__(self, size: int) -> None:
        self._walk = BatchWalk(corrupt_at, most_bytes=MAX_BATCH_BYTES)
        self._size = size
        self._held: list[memoryview] = []
        self._held_bytes = 0
        self._wanted_bytes = MAX_IGNORED_TAIL_BYTES + 1
        self.done = size < self._wanted_bytes

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield (position, bytes) of each batch that is complete with ``data``, by its declared length.

        Raises CorruptionError with the position if no batch can begin there.
        """
        if self.done:
            return
        self._held.append(memoryview(data))
        self._held_bytes += len(data)
        if self._held_bytes < self._wanted_bytes:
            return
        view = memoryview(b"".join(self._held)) if len(self._held) > 1 else self._held[0]
        start = self._walk.position
        for span, batch in self._walk.whole(view):
            yield span.position, batch
        rest = view[self._walk.position - start :]
        self._wanted_bytes = (
            self._walk.size_at(rest) if len(rest) > MAX_IGNORED_TAIL_BYTES else MAX_IGNORED_TAIL_BYTES + 1
        )
        self.done = self._walk.position + self._wanted_bytes > self._size
        self._held, self._held_bytes = [] if self.done else [rest], len(rest)


def pieces(source: ByteSource) -> Iterator[bytes]:
    for start in range(0, source.size, WINDOW_BYTES):
        yield source.read_at(start, min(WINDOW_BYTES, source.size - start))


def batches(source: ByteSource) -> Iterator[tuple[int, memoryview]]:
    """Yield (position, bytes) of each batch of ``source``, which is read no further than the caller iterates.

    Raises CorruptionError with the position if no batch can begin there.
    """
    feed = BatchFeed(source.size)
    for piece in pieces(source):
        yield from feed.feed(piece)
        if feed.done:
            return


def fetch_log(
    tp: TopicPartition, key: str, row: Row, take: Callable[[bytes], object], *, emits_progress: bool = True
) -> Steps[None]:
    """Read the whole ``.log`` object in ranges and pass each to ``take``, which may wait for the disk.

    ``emits_progress`` False: emit no progress. Raises ObjectGone, and CorruptionError for an object of another size.
    """
    for first in range(0, row.size, RANGE_BYTES * RANGES_TOGETHER):
        last = min(first + RANGE_BYTES * RANGES_TOGETHER, row.size)
        starts = range(first, last, RANGE_BYTES)
        gets = tuple(Get(key, start, min(start + RANGE_BYTES, last)) for start in starts)
        for start, found in zip(starts, (yield Together(gets)), strict=True):
            if isinstance(found, Missing):
                raise ObjectGone(
                    f"{tp}: the object {key} is gone (offsets {row.base} to {row.next})",
                    path_or_key=key,
                    position=start,
                    offset=row.base,
                    hint="run the command again; if it fails again, `tiered repair --dry-run` looks for another "
                    "version of the object",
                )
            whole_bytes = min(RANGE_BYTES, last - start)
            if not isinstance(found, Object) or found.size != row.size or len(found.data) != whole_bytes:
                raise CorruptionError(
                    f"{tp}: {key} has {found.size} bytes, but {row.size} in the catalog"
                    if isinstance(found, Object) and found.size != row.size
                    else f"{tp}: a read of {whole_bytes} bytes of {key} from byte {start} on was cut short",
                    path_or_key=key,
                    position=start,
                    offset=row.base,
                    hint="run `tiered repair --dry-run`, which shows the damage and its repair",
                )
            yield Blocking(partial(take, found.data))
            if emits_progress:
                yield Emit(Passed(len(found.data), str(tp)))


class LogInspection:
    """Inspection of a ``.log`` of ``size`` bytes, which are fed in pieces. ``findings`` gets the damage.

    ``indexes`` are compared with the batches.

    ``follower`` gets each batch, and a reset after an unreadable one. Feed every byte, then call :meth:`end`.
    """

    def __init__(
        self,
        size: int,
        base_offset: int,
        findings: Findings,
        expectations: Expectations = Expectations(),
        *,
        indexes: SealedIndexes | None = None,
        follower: Follower | None = None,
    ) -> None:
        self._scan = LogScan(base_offset, size)
        self._findings, self._expectations = findings, expectations
        self._follower, self._indexes = follower, indexes
        self._checks: list[_OffsetIndexCheck | _TimeIndexCheck] = []
        if indexes is not None:
            self._checks.append(_OffsetIndexCheck(indexes.offset_index, base_offset, findings, expectations))
            self._checks.append(_TimeIndexCheck(indexes.time_index, base_offset, findings, expectations))
        self._batches = BatchFeed(size)
        self._fed = self._zeros_from = 0
        self._damage: CorruptionError | None = None

    def feed_all(self, source: ByteSource) -> LogScan:
        """Inspect all of ``source`` and return the totals."""
        for piece in pieces(source):
            self.feed(piece)
        return self.end()

    def feed(self, data: bytes) -> None:
        """Inspect the next bytes, in pieces that fit the processor's cache."""
        for start in range(0, len(data), WINDOW_BYTES):
            self._piece(data[start : start + WINDOW_BYTES])

    def _piece(self, data: bytes) -> None:
        self._scan.crc32c = crc32c(data, self._scan.crc32c)
        if written := len(data.rstrip(b"\0")):
            self._zeros_from = self._fed + written
        self._fed += len(data)
        if self._damage is None:
            try:
                for position, batch in self._batches.feed(data):
                    self._batch(position, batch)
            except CorruptionError as cause:
                self._damage = cause

    def _batch(self, position: int, data: memoryview) -> None:
        header, intact = self._verified(position, data)
        self._count(header, position)
        if self._follower is not None:
            _show(self._follower, header, data, intact=intact)
        if intact and (self._expectations.decode or header.is_control):
            self._decode(header, data, position)
        for check in self._checks:
            check.batch(position, header)
        self._scan.valid_bytes = position + len(data)

    def _verified(self, position: int, data: memoryview) -> tuple[BatchHeader, bool]:
        """Return the header, and True if the CRC holds. Raise ``CorruptionError`` for an unreadable header."""
        try:
            return verify_batch(data), True
        except CorruptionError as damage:
            offset = _BASE_OFFSET.unpack_from(data)[0]
            self._findings.error("log_crc", damage.message, position=position, offset=offset)
        try:
            return read_header(data), False
        except CorruptionError as damage:
            raise CorruptionError(damage.message, position=position, offset=damage.offset) from None

    def _count(self, header: BatchHeader, position: int) -> None:
        scan, base = self._scan, header.base_offset
        expected = scan.base_offset if scan.end_offset < 0 else scan.end_offset
        if base < expected:
            message = f"a batch begins at offset {base}, below {expected}"
            self._findings.error("log_order", message, position=position, offset=base)
        elif base > expected and self._expectations.contiguous:
            message = f"offsets {expected} to {base} are missing"
            self._findings.error("log_gap", message, position=position, offset=expected)
        if header.leader_epoch < scan.leader_epoch:
            message = f"the leader epoch falls from {scan.leader_epoch} to {header.leader_epoch}"
            self._findings.error("leader_epoch", message, position=position)
        scan.batches += 1
        scan.records += max(header.records_count, 0)
        scan.end_offset = max(scan.end_offset, header.next_offset)
        scan.max_timestamp = max(scan.max_timestamp, header.max_timestamp)
        scan.leader_epoch = header.leader_epoch

    def _decode(self, header: BatchHeader, data: memoryview, position: int) -> None:
        low, high = header.base_offset, header.last_offset
        try:
            if header.is_control:
                read_producer(header, data)  # refuses the markers that a reader of committed records refuses
            found = records_extent(data, header)
            if found is not None and low <= found[0] and found[1] <= high:
                self._reach(found[2])
                return
            for record in decode_records(data):
                self._reach(record.timestamp)
                if not low <= record.offset <= high:
                    message = f"a record has offset {record.offset} outside its batch"
                    self._findings.error("record", message, position=position)
        except CorruptionError as damage:
            self._findings.error("record", damage.message, position=position, offset=low)

    def _reach(self, timestamp: int) -> None:
        scan = self._scan
        if timestamp >= 0 and (scan.min_timestamp < 0 or timestamp < scan.min_timestamp):
            scan.min_timestamp = timestamp

    def end(self) -> LogScan:
        """Inspect the bytes after the last whole batch, and index entries that no batch reached. Return the totals."""
        scan = self._scan
        if scan.end_offset < 0:
            scan.end_offset = scan.base_offset
        if scan.valid_bytes < scan.size_bytes:
            self._tail()
            if self._follower is not None:
                self._follower.restart(whole=False)
        for check in self._checks:
            check.end(scan)
        if self._indexes is not None:
            inspect_other_indexes(self._indexes, scan.base_offset, self._findings)
        return scan

    def _tail(self) -> None:
        """Add a finding for the bytes after the last whole batch: a torn write, zeros after a crash, or damage."""
        scan, damage = self._scan, self._damage
        only_zeros = self._zeros_from <= scan.valid_bytes
        if damage is not None and not only_zeros:
            self._findings.error("log_structure", damage.message, position=damage.position, offset=damage.offset)
            return
        severity = Severity.INFO if self._expectations.growing else Severity.ERROR
        what = "zero bytes follow" if only_zeros else "bytes of an unfinished batch follow"
        message = f"{scan.size_bytes - scan.valid_bytes} {what} the last whole batch"
        if only_zeros and severity is Severity.INFO:
            message += PADDING
        self._findings.add(severity, "log_torn", message, position=scan.valid_bytes)


def inspect_other_indexes(indexes: SealedIndexes, base_offset: int, findings: Findings) -> None:
    """Check the format of transaction index and producer snapshot, and the order of leader epochs. Add findings.

    ``base_offset``: that of the segment.
    """
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
    """Compare the descriptor, which was stored at the seal, with the totals of a scan that decoded records.

    Add findings.
    """
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
    """Comparison of transaction indexes and producer snapshots with the log, segment by segment.

    For each segment call :meth:`start_segment`, pass ``follower`` to its :class:`LogInspection`, then call
    :meth:`compare`. For a segment that is not read call only :meth:`skip`.
    """

    def __init__(self) -> None:
        self.follower = Follower(whole=False)
        self._next = -1

    def start_segment(self, base_offset: int) -> None:
        """Start the segment at ``base_offset``, before its batches are read.

        At offset 0 there are no producers. If the segment does not follow the last one, its producers are unknown.
        """
        if base_offset != self._next:
            self.follower.restart(whole=base_offset == 0)

    def skip(self, snapshot: bytes | None, end_offset: int) -> None:
        """Take the producers at the end of a segment from its snapshot, because the segment was not read.

        They are unknown if ``snapshot`` is None or damaged. ``end_offset``: end of the segment.
        """
        known = _decoded(snapshot, end_offset)
        self.follower.restart(known, whole=known is not None)
        self._next = end_offset

    def compare(
        self,
        base_offset: int,
        end_offset: int,
        txn_index: bytes,
        snapshot: bytes | None,
        *,
        expected: bool = False,
        alone: bool = False,
    ) -> tuple[SideFileVerdict, SideFileVerdict]:
        """Check transaction index and producer snapshot of the segment that was just read. Return a verdict for each.

        ``expected``: the snapshot must exist.
        ``alone``: offsets before the log cannot be read, so a marker of a transaction that began there hides no record.
        """
        followed = self.follower.end_segment()
        self._next = end_offset
        seen = followed._replace(whole=True) if alone else followed
        txns = judge_txn_index(txn_index, base_offset, seen, all_followed=True)
        producers = judge_snapshot(snapshot, followed, expected=expected)
        if not followed.whole and producers.flaw is None and snapshot is not None:
            self.skip(snapshot, end_offset)
        return txns, producers


def _decoded(snapshot: bytes | None, end_offset: int) -> ProducerSnapshot | None:
    try:
        return None if snapshot is None else ProducerSnapshot(end_offset, tuple(decode_snapshot(snapshot)))
    except CorruptionError:
        return None


def _show(follower: Follower, header: BatchHeader, data: memoryview, *, intact: bool) -> None:
    try:
        if intact:
            follower.see(read_producer(header, data))
            return
    except CorruptionError:
        pass  # the records of a marker: reported before
    follower.restart(whole=False)


class _IndexCheck:
    """Check of one index. Each entry is compared when the batches reach it, or none if the entries do not rise."""

    def __init__(self, code: str, findings: Findings) -> None:
        self._code, self._findings = code, findings
        self._entries: list[tuple[int, int]] = []
        self._next = 0

    def _read(self, read: Callable[[], OffsetIndex | TimeIndex], entry_bytes: int, what: str, step: int) -> None:
        """Read the index. Add a finding if it is damaged or its entries do not rise.

        ``entry_bytes``: size of an entry. ``what``: the numbers of an entry, for the finding. ``step``: minimal rise of
        the second number from entry to entry.
        """
        try:
            index = read()
        except CorruptionError as damage:
            self._findings.error(self._code, damage.message, position=damage.position)
            return
        entries = index.entries
        if index.is_sane():
            self._entries = entries
            return
        pairs = enumerate(itertools.pairwise(entries), start=1)
        falls = (number for number, (a, b) in pairs if not (a[0] < b[0] and a[1] + step <= b[1]))
        number = next(falls, 0)  # the first entry if that one is impossible
        before = f" after {entries[number - 1]}" if number else ""
        place = f"entry {number} at byte {number * entry_bytes} is {entries[number]}{before}"
        self._findings.error(self._code, f"{what} do not rise: {place}")

    def _due(self, limit: int) -> Iterator[tuple[int, int]]:
        """Yield the entries not yielded before whose second number is at most ``limit``."""
        while self._next < len(self._entries) and self._entries[self._next][1] <= limit:
            self._next += 1
            yield self._entries[self._next - 1]

    def _error(self, message: str, offset: int) -> None:
        self._findings.error(self._code, message, offset=offset)


class _OffsetIndexCheck(_IndexCheck):
    """Check of the offset index: each entry points at a batch, and no earlier batch reaches its offset."""

    def __init__(self, data: bytes, base: int, findings: Findings, expectations: Expectations) -> None:
        super().__init__("offset_index", findings)
        self._before = base - 1
        read = partial(OffsetIndex.from_bytes, data, base, drop_padding=expectations.growing)
        self._read(read, OFFSET_ENTRY_BYTES, "offsets or positions of the offset index", 1)

    def batch(self, position: int, header: BatchHeader) -> None:
        for offset, at in self._due(position):
            entry = f"the entry of offset {offset} (entry {self._next - 1} of the index) points at byte {at}"
            if at != position:
                self._error(f"{entry}, no batch", offset)
            elif self._before >= offset or header.base_offset > offset:
                self._error(f"{entry}, where {header.base_offset} begins", offset)
        self._before = header.last_offset

    def end(self, scan: LogScan) -> None:
        for offset, at in self._entries[self._next :]:
            self._error(f"the entry of offset {offset} points at byte {at} of {scan.valid_bytes}", offset)


class _TimeIndexCheck(_IndexCheck):
    """Check of the time index: each entry has the largest timestamp of all records up to its offset."""

    def __init__(self, data: bytes, base: int, findings: Findings, expectations: Expectations) -> None:
        super().__init__("time_index", findings)
        self._largest = -1
        read = partial(TimeIndex.from_bytes, data, base, drop_padding=expectations.growing)
        self._read(read, TIME_ENTRY_BYTES, "timestamps or offsets of the time index", 0)

    def batch(self, _: int, header: BatchHeader) -> None:
        self._largest = max(self._largest, header.max_timestamp)
        for timestamp, offset in self._due(header.last_offset):
            if timestamp < self._largest:
                self._error(f"records up to offset {offset} reach {self._largest}, the entry says {timestamp}", offset)
            elif timestamp > self._largest:
                # A lookup then starts later than it could have, but never after a record that it wants.
                message = f"records up to offset {offset} reach only {self._largest}, the entry says {timestamp}"
                self._findings.add(Severity.WARNING, "time_index", message, offset=offset)

    def end(self, scan: LogScan) -> None:
        for timestamp, offset in self._entries[self._next :]:
            message = f"the time index names offset {offset} for {timestamp}, the log ends at {scan.end_offset}"
            self._error(message, offset)
