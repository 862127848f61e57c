"""Offset index and time index of one segment, in memory, for lookups.

They are loaded from files, checked, or rebuilt.
"""

from __future__ import annotations

import logging
from array import array
from pathlib import Path

from tiered.config import MAX_INT
from tiered.errors import ConfigError, CorruptionError, NotFoundError
from tiered.format.batch_scanner import NO_LIMIT, Offsets
from tiered.format.kernel_values import Survey
from tiered.format.kernels import PlainLock
from tiered.format.local_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, index_name, time_index_name, txn_index_name
from tiered.format.segment_indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    IndexPace,
    OffsetIndex,
    TimeIndex,
    decode_txns,
    encode_txns,
    txns_below,
)
from tiered.local.disk.files import Files
from tiered.local.segment.scan import LogFile
from tiered.local.segment.side_files import SEAL_SUFFIX, noted_size

LOGGER = logging.getLogger("tiered.local")

READ_PIECE_BYTES = 96 * 1024
"""Index files of a live writer are read in pieces of this size until the zeros begin (a multiple of both entries)."""


class SegmentIndexes:
    """Sparse offset index and time index of one segment. One thread may append while others look up."""

    __slots__ = ("_lock", "_offsets", "_read_end", "_times", "damaged")

    def __init__(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        self.damaged = False  # made from a damaged log: they may lack its end
        self._offsets = offsets
        self._times = times
        self._read_end = (-1, 0)  # next offset and position where the last read ended: the next one may go on there
        self._lock = PlainLock()  # an entry is two columns; a reader must not see one of them

    @classmethod
    def empty(cls, base_offset: int) -> SegmentIndexes:
        """Return indexes of a segment without records."""
        return cls(OffsetIndex(base_offset), TimeIndex(base_offset))

    @property
    def base_offset(self) -> int:
        """Return the base offset of the segment."""
        return self._offsets.base_offset

    @property
    def offset_count(self) -> int:
        """Return the number of entries of the offset index."""
        return len(self._offsets)

    @property
    def time_count(self) -> int:
        """Return the number of entries of the time index."""
        return len(self._times)

    @property
    def last_time(self) -> tuple[int, int]:
        """Return (timestamp, offset) of the last time entry: once sealed, the largest. Without one: (-1, base)."""
        with self._lock:
            return self._times.last_entry

    @property
    def last_position(self) -> int:
        """Return the position at which the last indexed batch starts; 0 if none is indexed."""
        return self.last_indexed[1]

    @property
    def last_indexed(self) -> tuple[int, int]:
        """Return the last offset and the position of the last indexed batch; (base, 0) if none is indexed."""
        with self._lock:
            return self._offsets.entry(-1) if len(self._offsets) else (self._offsets.base_offset, 0)

    def position_of(self, offset: int) -> int:
        """Return the position from which to scan for ``offset``, by the index alone.

        :meth:`seek` also checks the log.
        """
        with self._lock:
            return self._offsets.lookup(offset)[1]

    def seek(self, log: LogFile, offset: int, size_bytes: int, offsets: Offsets) -> int:
        """Return the position of a batch from which to scan for ``offset``. All batches before it end below ``offset``.

        ``size_bytes``: length of the segment. ``offsets``: its range of offsets. The entry is checked against ``log``.
        If it is wrong, it is logged, and the result is the start of the segment.
        """
        with self._lock:
            indexed, position = self._offsets.lookup(offset)
        if position == 0 or log.starts_batch(position, size_bytes, offsets, at_or_below=indexed):
            return position
        LOGGER.warning(
            "index_wrong path=%s offset=%d position=%d hint=the log is read from its start", log.path, indexed, position
        )
        return 0

    def note_read(self, next_offset: int, position: int) -> None:
        """Store the offset and the position at which a read ended, for :meth:`read_end`."""
        self._read_end = next_offset, position

    def read_end(self, offset: int) -> int:
        """Return the position at which the last read ended, if it ended at ``offset``. Otherwise -1."""
        at, position = self._read_end
        return position if at == offset else -1

    def seek_time(self, log: LogFile, timestamp: int, start_offset: int, size_bytes: int, offsets: Offsets) -> int:
        """Return the position of a batch from which to scan for the first record at or after ``timestamp``.

        Only records from ``start_offset`` on count. ``size_bytes``: length of the segment. ``offsets``: its range of
        offsets. If the entry does not fit ``log``, it is logged and not used.
        """
        with self._lock:
            reached, at = self._times.lookup(timestamp)
        if reached >= 0 and at > start_offset:
            position = self.seek(log, at, size_bytes, offsets)
            if _time_at(log, position, at, size_bytes) == reached:
                return position
            LOGGER.warning("time_index_wrong path=%s timestamp=%d offset=%d", log.path, reached, at)
        return self.seek(log, start_offset, size_bytes, offsets)

    def upper_bound(self, position: int, size: int) -> int | None:
        """Return the offset in the first entry whose byte position is at least ``position + size``, or None."""
        with self._lock:
            found = self._offsets.upper_bound(position, size)
            return None if found is None else found[0]

    def append(self, last_offset: int, position: int, timestamp: int, timestamp_offset: int) -> tuple[bytes, bytes]:
        """Add entries for one batch: its last offset and position, and the largest timestamp so far with its offset.

        Return the encoded (offset entry, time entry) for the files, ``b""`` for one that is not needed.
        """
        with self._lock:
            offset_entry = self._offsets.append(last_offset, position)
            time_entry = self._times.maybe_append(timestamp, timestamp_offset) if timestamp >= 0 else b""
        return offset_entry, time_entry

    def extend(self, found: Survey) -> None:
        """Append the index entries that were computed for a run of batches."""
        times = array("q", found.time_entries)
        base = self._offsets.base_offset
        with self._lock:
            self._offsets.extend(found.offset_entries)
            for timestamp, relative in zip(times[0::2], times[1::2], strict=True):
                self._times.maybe_append(timestamp, base + relative)

    def append_last_time(self, timestamp: int, timestamp_offset: int) -> None:
        """Append the last entry of the time index, with the largest timestamp of the segment."""
        if timestamp >= 0:
            with self._lock:
                self._times.maybe_append(timestamp, timestamp_offset)

    def truncate_to(self, offset: int) -> None:
        """Remove every entry at or above ``offset``. Lookups stay right without them: they start earlier."""
        with self._lock:
            self._read_end = -1, 0
            self._offsets.truncate_to(offset)
            self._times.truncate_to(offset)

    def offset_bytes(self) -> bytes:
        """Return the content of the ``.index`` file, without preallocated zeros."""
        with self._lock:
            return self._offsets.to_bytes()

    def time_bytes(self) -> bytes:
        """Return the content of the ``.timeindex`` file, without preallocated zeros."""
        with self._lock:
            return self._times.to_bytes()


def load_indexes(
    files: Files,
    log: LogFile,
    base_offset: int,
    size_bytes: int,
    interval_bytes: int,
    *,
    repair: bool,
    largest: int | None = None,
    next_offset: int = NO_LIMIT,
) -> SegmentIndexes:
    """Load the indexes of a sealed segment from its files. Missing, torn, zeroed or wrong ones are rebuilt.

    ``repair``: write rebuilt indexes to the files. Those of a damaged log are not written, because the old files may be
    the only proof of the loss. ``largest``: the largest timestamp in the ``.seal`` note, None if unknown. Without it,
    time entries missing at the end are not detected. ``next_offset``: base offset of the next segment. Kafka leaves
    wrong files below the recovery point as they are. This function rebuilds them and logs that.
    """
    directory = log.path.parent
    try:
        offsets = OffsetIndex.from_bytes(files.read(directory / index_name(base_offset)), base_offset)
        times = TimeIndex.from_bytes(files.read(directory / time_index_name(base_offset)), base_offset)
        why = _distrust(log, offsets, times, size_bytes)
        if why is None and largest is not None and times.last_entry[0] != largest:
            why = f"the time index ends at {times.last_entry[0]}, the segment at {largest}"
        if why is None and largest is None and not len(times) and _is_timed(log, size_bytes):
            why = "the time index is empty, the segment has timestamps"
    except (CorruptionError, NotFoundError) as error:
        why = error.message
    else:
        if why is None:
            return SegmentIndexes(offsets, times)
    indexes = rebuild_indexes(log, base_offset, size_bytes, interval_bytes, next_offset=next_offset)
    written = repair and not indexes.damaged
    LOGGER.warning("index_rebuilt path=%s reason=%s written=%s", log.path, why, written)
    if written:
        store_indexes(files, directory, base_offset, indexes)
    return indexes


def load_growing(files: Files, log: LogFile, base_offset: int, size_bytes: int) -> SegmentIndexes:
    """Load the indexes of a segment that another process appends to, up to the position ``size_bytes`` (exclusive).

    Wrong entries are left out: a lookup then starts earlier in the file, and stays right.
    """
    directory = log.path.parent
    indexes = SegmentIndexes.empty(base_offset)
    times = iter(
        TimeIndex.from_bytes(_nonzero(files, directory / time_index_name(base_offset), TIME_ENTRY_BYTES), base_offset)
    )
    offsets = OffsetIndex.from_bytes(
        _nonzero(files, directory / index_name(base_offset), OFFSET_ENTRY_BYTES), base_offset
    )
    known = next(times, None)
    running = (-1, base_offset)
    try:
        for offset, position in offsets:
            if not 0 < position < size_bytes:
                break
            while known is not None and known[1] <= offset:
                if known == (0, base_offset):  # a hole: the entry was never written
                    return SegmentIndexes.empty(base_offset)
                running, known = known, next(times, None)
            indexes.append(offset, position, *running)
        last_offset, position = indexes.last_indexed
        if position and log.header_at(position, size_bytes).last_offset != last_offset:
            return SegmentIndexes.empty(base_offset)  # entries of batches that a power cut took
    except (ConfigError, CorruptionError):
        return SegmentIndexes.empty(base_offset)
    return indexes


def rebuild_indexes(
    log: LogFile, base_offset: int, size_bytes: int, interval_bytes: int, *, next_offset: int = NO_LIMIT
) -> SegmentIndexes:
    """Build the indexes by reading the file.

    The result equals, byte for byte, indexes written with one batch per append. Batches after a damaged one are
    indexed, if the declared lengths lead to them, so that they stay readable. A batch is damaged if its CRC is wrong,
    or if its offsets are outside the segment or not after those of the batch before. It is not indexed, reads of it
    raise, and the result is marked ``damaged``. ``interval_bytes``: distance between index entries. ``next_offset``:
    exclusive end of the segment's offsets.

    Kafka's rule: docs/kafka-semantics.md#segment-recovery.
    """
    indexes = SegmentIndexes.empty(base_offset)
    pace = IndexPace(interval_bytes, indexes.last_time)
    expected = base_offset
    reached = 0
    try:
        walk = log.walk(0)
        for piece in log.pieces(walk, size_bytes):
            indexed = base_offset, indexes.last_time[0]
            found = walk.survey(piece, (expected, next_offset, NO_LIMIT), pace, indexed)
            if found is not None:
                indexes.extend(found)
                expected, reached = found.next, walk.position
            for span, view in walk.whole(piece if found is None else piece[found.used :]):
                reached = span.position + span.size
                if span.base_offset < expected or span.last_offset >= next_offset or not log.is_intact(view):
                    indexes.damaged = True
                    continue
                expected = span.last_offset + 1
                if span.last_offset - base_offset > MAX_INT:
                    raise log.damage(span.position, "the offset is too far from the segment's base", span.last_offset)
                if pace.count(span.size, span.last_offset, log.header(view, span.position).max_timestamp):
                    indexes.append(span.last_offset, span.position, *pace.largest)
    except (CorruptionError, ConfigError) as error:
        LOGGER.warning("index_stops_at_damage path=%s error=%s", log.path, error)
        indexes.damaged = True
    indexes.damaged = indexes.damaged or reached != size_bytes
    indexes.append_last_time(*pace.largest)
    return indexes


def lost_end(files: Files, log: LogFile, base_offset: int, size_bytes: int) -> bool:
    """Return True if the ``.log`` is shorter than its ``.seal`` note says and an index has entries beyond its end.

    ``size_bytes``: present size of the ``.log``. The note alone is no proof: a broker that rewrites a segment leaves
    the old note, with indexes that fit the new log. Return False if the ``.log`` has other damage.
    """
    if noted_size(files, log.path.with_suffix(SEAL_SUFFIX)) <= size_bytes:
        return False
    end = base_offset
    try:
        for span, _ in log.batches(0, size_bytes):
            end = span.last_offset + 1
    except CorruptionError:
        return False  # other damage is more precise
    try:
        if OffsetIndex.from_bytes(files.read(log.path.with_suffix(INDEX_SUFFIX)), base_offset).reaches(size_bytes):
            return True
    except (CorruptionError, NotFoundError):
        pass  # the other index may prove it
    try:
        times = TimeIndex.from_bytes(files.read(log.path.with_suffix(TIME_INDEX_SUFFIX)), base_offset)
    except (CorruptionError, NotFoundError):
        return False
    return times.last_entry[1] >= end


def store_indexes(files: Files, directory: Path, base_offset: int, indexes: SegmentIndexes) -> None:
    """Write both index files of a segment, replacing old ones."""
    files.replace(directory / index_name(base_offset), indexes.offset_bytes())
    files.replace(directory / time_index_name(base_offset), indexes.time_bytes())


def is_stored(files: Files, directory: Path, base_offset: int, indexes: SegmentIndexes, *, padded: bool) -> bool:
    """Return True if both index files have exactly the entries of ``indexes``.

    ``padded`` allows preallocated zeros after them.
    """
    for name, entry_bytes, expected in (
        (index_name(base_offset), OFFSET_ENTRY_BYTES, indexes.offset_bytes()),
        (time_index_name(base_offset), TIME_ENTRY_BYTES, indexes.time_bytes()),
    ):
        state = files.state(directory / name)
        if state is None or not (padded or state.size == len(expected)):
            return False
        if _nonzero(files, directory / name, entry_bytes) != expected:
            return False
    return True


def cut_txn_index(files: Files, directory: Path, base_offset: int, offset: int) -> None:
    """Remove the aborted transactions whose marker is at or above ``offset`` from the transaction index file.

    A missing file is not created. An unreadable one is logged and left as it is.
    """
    path = directory / txn_index_name(base_offset)
    if files.state(path) is None:
        return
    data = files.read(path)
    try:
        kept = encode_txns(txns_below(decode_txns(data, base_offset), offset))
    except CorruptionError as error:
        LOGGER.error("txn_index_damaged path=%s error=%s hint=reads of read_committed will say so", path, error)
        return
    if kept != data:
        files.replace(path, kept)


def _distrust(log: LogFile, offsets: OffsetIndex, times: TimeIndex, size_bytes: int) -> str | None:
    """Return why these indexes cannot be those of the log; None if they can."""
    if not offsets.is_sane(size_bytes) or not times.is_sane():
        return "entries are out of order"
    if size_bytes and times.last_entry[0] < log.header_at(0, size_bytes).max_timestamp:
        return "the time index ends before the first batch"
    if len(offsets):
        if offsets.entry(0)[1] == 0:
            return "the first batch is indexed"  # never so in a file that was written; always so in one of zeros
        last_offset, position = offsets.entry(-1)
        if log.header_at(position, size_bytes).last_offset != last_offset:
            return f"no batch that ends at offset {last_offset} starts at byte {position}"
    for timestamp, offset in (times.entry(0), times.last_entry) if len(times) else ():  # a hole of zeros comes first
        if timestamp != _time_at(log, offsets.lookup(offset)[1], offset, size_bytes):
            return f"the batch with offset {offset} does not have the timestamp {timestamp}"
    return None


def _is_timed(log: LogFile, size_bytes: int) -> bool:
    """Return True if any batch has a timestamp. Only a log without any is read to the end."""
    return any(log.header(view, span.position).max_timestamp >= 0 for span, view in log.batches(0, size_bytes))


def _time_at(log: LogFile, position: int, offset: int, size_bytes: int) -> int | None:
    """Return the largest timestamp of the batch with ``offset``, searched from ``position`` on; None without one."""
    for span, view in log.batches(position, size_bytes):
        if span.last_offset >= offset:
            return log.header(view, span.position).max_timestamp
    return None


def _nonzero(files: Files, path: Path, entry_bytes: int) -> bytes:
    """Return whole entries of a preallocated file before its zeros."""
    try:
        handle = files.open_read(path)
    except NotFoundError:
        return b""
    data = bytearray()
    piece = bytearray(READ_PIECE_BYTES)
    try:
        while count := files.read_into(handle, piece, len(data)):
            data += piece[:count]
            if count < len(piece) or not any(piece[-entry_bytes:]):
                break
    finally:
        files.close(handle)
    whole = len(data) - len(data) % entry_bytes
    zero = bytes(entry_bytes)
    while whole and data[whole - entry_bytes : whole] == zero:
        whole -= entry_bytes
    return bytes(data[:whole])
