"""The indexes of a segment under recovery: the usable part of the old ones, and entries from the batches.

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
from pathlib import Path
from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format.batch_scanner import BatchPosition, BatchWalk, hop
from tiered.format.header import BatchHeader
from tiered.format.local_names import TXN_INDEX_SUFFIX, txn_index_name
from tiered.format.pure_kernels import Survey
from tiered.format.segment_indexes import IndexPace
from tiered.local.disk.files import Files
from tiered.local.disk.names import tells_of_producers
from tiered.local.recovery.batch_order_check import BatchOrder
from tiered.local.segment.indexes import SegmentIndexes, load_growing
from tiered.local.segment.scan import LogFile
from tiered.local.segment.side_files import SegmentPlace, abort_markers, verify_txn_index
from tiered.model import EpochEntry

LOGGER = logging.getLogger("tiered.local")


class Prefix(NamedTuple):
    """Known part of a segment. Reading goes on at ``position``, with batch ``base_offset``, where ``indexes`` end."""

    position: int
    base_offset: int
    first_timestamp: int
    indexes: SegmentIndexes


def known_prefix(files: Files, log: LogFile, base_offset: int, size_bytes: int, recovery_point: int) -> Prefix | None:
    """Return the last indexed batch that ends below ``recovery_point``; None: read the segment from its start."""
    if recovery_point <= base_offset or size_bytes == 0:
        return None
    if files.state(log.path.with_suffix(TXN_INDEX_SUFFIX)) is not None:
        return None  # aborted transactions: their index is rewritten from all of the segment
    producers = tells_of_producers(files, log.path.parent)
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
    """Truncate offset entries after that of the last time entry; CorruptionError if the time entry is wrong."""
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
    """Rebuilding of indexes. ``indexes`` cover the known good part; ``epoch`` is the newest that the log knows."""

    def __init__(self, indexes: SegmentIndexes, *, interval_bytes: int, epoch: int) -> None:
        self.indexes = indexes
        self.epochs: list[EpochEntry] = []
        self._pace = IndexPace(interval_bytes, indexes.last_time)
        self._known_epoch = epoch

    def add(self, span: BatchPosition, header: BatchHeader, *, intact: bool) -> None:
        """Add the next good batch. ``intact``: so are all before it, so that its epoch counts."""
        if self._pace.count(span.size, span.last_offset, header.max_timestamp):
            self.indexes.append(span.last_offset, span.position, *self._pace.largest)
        if intact and header.leader_epoch > self.newest_epoch:
            self.epochs.append(EpochEntry(header.leader_epoch, span.base_offset))

    @property
    def newest_epoch(self) -> int:
        """Return the newest epoch. A batch of a later one goes to :meth:`add`."""
        return self.epochs[-1].epoch if self.epochs else self._known_epoch

    def add_run(self, walk: BatchWalk, piece: memoryview, order: BatchOrder) -> Survey | None:
        """Add the ordinary good batches at the start of ``piece``; None if the first one is not ordinary."""
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
        """Drop entries from ``offset`` on: their batch was not where it said."""
        self.indexes.truncate_to(offset)
        self.epochs = [entry for entry in self.epochs if entry.start_offset < offset]
        if self._pace.largest[1] >= offset:
            self._pace.largest = self.indexes.last_time

    @property
    def largest(self) -> tuple[int, int]:
        """Return the largest timestamp and the last offset of its batch: the closing entry of the time index."""
        return self._pace.largest


def rebuild_txn_index(files: Files, place: SegmentPlace) -> None:
    """Replace the ``.txnindex`` of a sealed segment if it contradicts the log."""
    try:
        verify_txn_index(files, place, None)
    except CorruptionError as error:
        path = place.directory / txn_index_name(place.base_offset)
        LOGGER.warning("txn_index_not_rebuilt path=%s error=%s", path, error)


def has_entries(files: Files, directory: Path, base_offset: int) -> bool:
    """Return True if the ``.txnindex`` has entries; one without its marker hides later committed records."""
    state = files.state(directory / txn_index_name(base_offset))
    return state is not None and state.size > 0
