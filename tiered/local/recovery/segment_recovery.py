"""Recovery of one segment: check of its batches, search for batches after damage, rebuild of its indexes.

Base offsets are outside the CRC. A rotted one shows by its neighbours. It is below the end of the batch before it,
beyond the segment, or after a hole where none can be. Or it is so high that the next batch goes back. Where lengths
lead nowhere, whole batches are searched: if one follows, the bytes were damaged; if none does, the end was torn.

Bytes below the recovery point were fsynced and need not be read again. The index files of a segment that was being
written are only as good as the last moment before the crash: they may lag, end in zeros, or hold entries of records
that are gone. Entries are used only up to the recovery point, only while they ascend, and only if the last of them
points at the batch that it names. The two files are not fsynced together: offset entries after the last time entry are
not used, because the times between may be what is lost.

Transaction indexes are compared with their logs. A segment that has neither transactions nor an index of them is never
read for this. Where the log is damaged, or does not know where a transaction began, nothing is changed: a reader gets
the reason (``local.segment.side_files``).

Kafka's rule: docs/kafka-semantics.md#segment-recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format.batch import HEADER_BYTES
from tiered.format.batch_scanner import NO_LIMIT, BatchPosition, BatchWalk, Offsets, hop
from tiered.format.header import BatchHeader
from tiered.format.kernel_values import Survey
from tiered.format.local_names import TXN_INDEX_SUFFIX, txn_index_name
from tiered.format.segment_indexes import IndexPace
from tiered.local.disk.files import Files
from tiered.local.disk.partition_files import may_have_producers
from tiered.local.segment.indexes import SegmentIndexes, load_growing
from tiered.local.segment.scan import LogFile
from tiered.local.segment.side_files import SegmentPlace, SideFiles, abort_markers
from tiered.model import EpochEntry
from tiered.plan.roll import MAX_RELATIVE_OFFSET

LOGGER = logging.getLogger("tiered.local")

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes searched at once."""

_MAGIC_AT = 16
_MAGIC = b"\x02"


class BatchOrder:
    """Check that the offsets of a segment's batches follow each other. ``expected``: end of the good batches so far.

    ``offsets``: those that the segment may hold. ``damage``: (position, offset) of the first bad batch, None without
    one. ``dense``: every offset has a record. ``promised``: the recovery point in the active segment, -1 if unknown.
    No gap may contain it, because some batch ends there.
    """

    def __init__(self, offsets: Offsets, *, dense: bool, promised: int = -1) -> None:
        self.dense = dense
        self.expected = offsets.base
        self.damage: tuple[int, int] | None = None
        self._offsets = offsets
        self._promised = promised
        self._before: tuple[int, int] | None = None

    def resume(self, expected: int) -> None:
        """Continue the check at offset ``expected``. All batches below it are known to be good."""
        self.expected = expected

    def bounds(self) -> tuple[int, int, int]:
        """Return the limits of a run of good batches: (lowest offset, exclusive end, offset at which the run stops).

        The third is the recovery point if the run begins below that, otherwise NO_LIMIT.
        """
        limit = min(self._offsets.next, self._offsets.base + MAX_RELATIVE_OFFSET + 1)
        return self.expected, limit, self._promised if self.expected < self._promised else NO_LIMIT

    def accept(self, found: Survey, position: int) -> None:
        """Add ``found``, a run of good batches at ``position`` within :meth:`bounds`, to the checked batches."""
        self._before = position + found.last_at, found.before
        self.expected = found.next

    def spoil(self, position: int) -> None:
        """Record ``position`` as damaged, unless there is earlier damage."""
        self.damage = self.damage or (position, self.expected)

    def fits(self, span: BatchPosition, first: int) -> bool:
        """Check the next batch. Return True if it is good, False if it is recorded as damage.

        A good batch may show that the batch before it is the bad one, which is then recorded. ``first``: the first
        offset of the batch, which ``span`` lacks for a compressed v0/v1 message.
        """
        position, _, base, last = span
        is_far = last - self._offsets.base > MAX_RELATIVE_OFFSET
        if last >= self._offsets.next or is_far or self._is_hole(first):
            self.spoil(position)
            return False
        # mutant offsets-do-not-go-back
        if base < self.expected:
            if self._before is None or base < self._before[1]:
                self.spoil(position)
                return False
            # This batch follows the one before the last: the last one's offset is wrong.
            self.damage = self.damage or self._before
            self.expected = self._before[1]
        self._before = position, self.expected
        self.expected = last + 1
        return True

    def _is_hole(self, base: int) -> bool:
        """Return True if the gap before a batch at ``base`` is a loss: in a dense log, or around ``promised``.

        After damage no gap counts.
        """
        if base <= self.expected or self.damage is not None:
            return False
        # mutant hole-is-below-recovery-point
        return self.dense or self.expected < self._promised <= base


def salvage(log: LogFile, position: int, size_bytes: int, offsets: Offsets) -> Iterator[BatchPosition]:
    """Search a damaged file for v2 batches, at every byte from ``position`` on. Yield each one with a valid CRC.

    Their offsets ascend within ``offsets``. A batch inside the value of a record counts, too: it shows that bytes were
    written here.
    """
    expected = offsets.base
    while position + HEADER_BYTES <= size_bytes:
        piece = log.read_at(position, min(PIECE_BYTES, size_bytes - position))
        at = piece.find(_MAGIC, _MAGIC_AT) - _MAGIC_AT
        while at >= 0 and at + HEADER_BYTES <= len(piece):
            span = _whole(log, position + at, size_bytes, Offsets(expected, offsets.next))
            if span is not None:
                yield span
                expected = span.last_offset + 1
                at += span.size
                if at >= len(piece):
                    break
                at -= 1
            at = piece.find(_MAGIC, at + 1 + _MAGIC_AT) - _MAGIC_AT
        else:
            at = max(len(piece) - HEADER_BYTES + 1, 1)
        position += at


def _whole(log: LogFile, position: int, size_bytes: int, offsets: Offsets) -> BatchPosition | None:
    try:
        header = log.header_at(position, size_bytes)
        if not offsets.base <= header.base_offset <= header.last_offset < offsets.next:
            return None
        if position + header.size_bytes > size_bytes:
            return None
        data = log.read_at(position, header.size_bytes)
    except CorruptionError:
        return None
    if not log.is_intact(memoryview(data)):
        return None
    return BatchPosition(position, header.size_bytes, header.base_offset, header.last_offset)


class Prefix(NamedTuple):
    """Start of a segment that recovery need not read. Recovery reads from byte ``position`` on.

    ``base_offset``: that of the batch at ``position``. ``first_timestamp``: largest of the segment's first batch.
    ``indexes`` cover the part before ``position``.
    """

    position: int
    base_offset: int
    first_timestamp: int
    indexes: SegmentIndexes


def known_prefix(files: Files, log: LogFile, base_offset: int, size_bytes: int, recovery_point: int) -> Prefix | None:
    """Return the start of the segment that need not be read: up to the last indexed batch below ``recovery_point``.

    Return None if the segment must be read from its start.
    """
    if recovery_point <= base_offset or size_bytes == 0:
        return None
    if files.state(log.path.with_suffix(TXN_INDEX_SUFFIX)) is not None:
        return None  # aborted transactions: their index is rewritten from all of the segment
    producers = may_have_producers(files, log.path.parent)
    try:
        indexes = load_growing(files, log, base_offset, size_bytes)
        indexes.truncate_to(recovery_point)
        _forget_untimed(indexes, log, size_bytes)
        position = indexes.last_position
        if position == 0:
            return None
        header = log.header_at(position, size_bytes)
        if indexes.position_of(header.last_offset) != position or header.last_offset >= recovery_point:
            return None
        if position + header.size_bytes > size_bytes:
            return None
        if producers and any(True for _ in abort_markers(log, position)):
            return None  # the index that should be there is not
        return Prefix(position, header.base_offset, log.header_at(0, size_bytes).max_timestamp, indexes)
    except CorruptionError:
        return None


def _forget_untimed(indexes: SegmentIndexes, log: LogFile, size_bytes: int) -> None:
    """Remove the offset entries after the batch of the last time entry.

    Raises CorruptionError if that time entry does not fit the log.
    """
    timestamp, at = indexes.last_time
    if timestamp < 0:
        indexes.truncate_to(at)
        return
    indexed = indexes.position_of(at)
    batches = hop(lambda place: log.header_at(place, size_bytes), indexed, size_bytes)
    reached = next((found for found in batches if found[1].last_offset >= at), None)
    if reached is None or (reached[1].last_offset, reached[1].max_timestamp) != (at, timestamp):
        raise log.damage(indexed, f"the time index says that offset {at} is of {timestamp}", at)
    position = reached[0]
    if indexed and position == indexed:
        indexes.truncate_to(at + 1)
        return
    covering = indexes.upper_bound(indexed, 1)
    if covering is not None:
        indexes.truncate_to(covering + 1)


class Rebuilding:
    """Rebuild of the indexes of one segment. ``indexes`` cover the good batches so far.

    ``epochs``: leader epochs that begin in the segment. ``epoch``: newest leader epoch known before the rebuild.
    """

    def __init__(self, indexes: SegmentIndexes, *, interval_bytes: int, epoch: int) -> None:
        self.indexes = indexes
        self.epochs: list[EpochEntry] = []
        self._pace = IndexPace(interval_bytes, indexes.last_time)
        self._known_epoch = epoch

    def add(self, span: BatchPosition, header: BatchHeader, *, intact: bool) -> None:
        """Add the next good batch to the indexes.

        ``intact``: all batches before it are good, so its leader epoch is valid.
        """
        if self._pace.count(span.size, span.last_offset, header.max_timestamp):
            self.indexes.append(span.last_offset, span.position, *self._pace.largest)
        if intact and header.leader_epoch > self.newest_epoch:
            self.epochs.append(EpochEntry(header.leader_epoch, span.base_offset))

    @property
    def newest_epoch(self) -> int:
        """Return the newest leader epoch so far. A batch with a higher epoch must be passed to :meth:`add`."""
        return self.epochs[-1].epoch if self.epochs else self._known_epoch

    def add_run(self, walk: BatchWalk, piece: memoryview, order: BatchOrder) -> Survey | None:
        """Add the run of good batches at the start of ``piece`` in one call, and return its summary.

        Return None if the first batch needs a check of its own: :meth:`BatchOrder.fits`, then :meth:`add`.
        """
        base, position = self.indexes.base_offset, walk.position
        found = walk.survey(
            piece,
            order.bounds(),
            self._pace,
            (base, self.indexes.last_time[0]),
            dense=order.dense,
            newest_epoch=self.newest_epoch,
        )
        if found is not None:
            order.accept(found, position)
            self.indexes.extend(found)
        return found

    def retract(self, offset: int) -> None:
        """Remove index entries and epochs from ``offset`` on. Their batch had a wrong offset."""
        self.indexes.truncate_to(offset)
        self.epochs = [entry for entry in self.epochs if entry.start_offset < offset]
        if self._pace.largest[1] >= offset:
            self._pace.largest = self.indexes.last_time

    @property
    def largest(self) -> tuple[int, int]:
        """Return the largest timestamp and the last offset of its batch, for the last entry of the time index."""
        return self._pace.largest


def rebuild_txn_index(files: Files, place: SegmentPlace) -> None:
    """Rewrite the ``.txnindex`` of a sealed segment if it differs from the log.

    If the log cannot show the right entries, leave the file unchanged and log a warning.
    """
    try:
        SideFiles(files, place, None).repair_txn_index()
    except CorruptionError as error:
        path = place.directory / txn_index_name(place.base_offset)
        LOGGER.warning("txn_index_not_rebuilt path=%s error=%s", path, error)


def has_entries(files: Files, directory: Path, base_offset: int) -> bool:
    """Return True if the ``.txnindex`` of the segment has entries.

    Recovery then rebuilds the file: an entry whose ABORT marker was lost would hide committed records.
    """
    state = files.state(directory / txn_index_name(base_offset))
    return state is not None and state.size > 0
