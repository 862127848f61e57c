"""Replacement of segments on disk by new ones, and truncation of a segment.

A replacement that crashes at any step leaves the old segments or the new ones::

    1  copies complete and fsynced as .cleaned            crash: undone, the old ones are whole
    2  renamed to .swap, highest base first; folder fsync  a .cleaned that is left undoes every .swap at or above it
    3  old files renamed to .deleted                       crash: redone, .swap files replace what they cover
    4  .swap renamed to the plain name, .log first; fsync  redone

The cleaner calls this (``Maintenance.replace_segments``). After a crash, :func:`finish_replacements` undoes or finishes
it, before anything is loaded. It also removes ``.deleted`` files, and indexes and notes without their log
(docs/kafka-semantics.md#leftovers).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tiered.errors import CorruptionError
from tiered.format.batch_scanner import NO_LIMIT, BatchWalk, Offsets, corrupt_at, walk_headers
from tiered.format.header import Buffer, read_header
from tiered.format.local_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    LocalFile,
    local_name,
    log_name,
    parse_local_name,
)
from tiered.format.segment_indexes import IndexPace, encode_txns
from tiered.local.disk.files import Files, sweep_temporaries
from tiered.local.segment.active import FoundSegment
from tiered.local.segment.indexes import SegmentIndexes, cut_txn_index, store_indexes
from tiered.local.segment.read_view import View
from tiered.local.segment.reading import open_extent
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import rename_to_deleted
from tiered.local.segment.side_files import SEAL_SUFFIX, leftover_notes
from tiered.model import AbortedTxn
from tiered.plan.roll import MAX_RELATIVE_OFFSET

LOGGER = logging.getLogger("tiered.local")

BUFFER_BYTES = 1024 * 1024
"""Batches are written in pieces of about this size."""


class SegmentCopy:
    """New segment that compaction writes, with the suffix ``.cleaned``, to replace old ones.

    Appended batches keep their offsets and are indexed. ``interval_bytes``: distance between index entries.
    """

    def __init__(self, files: Files, directory: Path, base_offset: int, *, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self._files = files
        self._directory = directory
        self._indexes = SegmentIndexes.empty(base_offset)
        self._pace = IndexPace(interval_bytes, self._indexes.last_time)
        self._first_timestamp = -1
        self._end = base_offset
        self._aborted: list[AbortedTxn] = []
        self._buffer = bytearray()
        self._written = 0
        self._remove()
        self._handle: int | None = files.open_write(self._path(LOG_SUFFIX))

    def fits(self, last_offset: int) -> bool:
        """Return True if an index entry of this segment can hold the offset."""
        return 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def append(self, batch: bytes | memoryview) -> None:
        """Append one batch unchanged.

        Raises CorruptionError if its offsets are not above those of the batch before, or do not fit an index entry.
        """
        header = read_header(batch)
        if not self.fits(header.last_offset) or header.last_offset < self._end:
            raise CorruptionError(
                f"the copy of segment {self.base_offset} is at offset {self._end}: a batch that ends at "
                f"{header.last_offset} cannot follow",
                path_or_key=str(self._path(LOG_SUFFIX)),
                position=self.size_bytes,
                offset=header.base_offset,
            )
        if self.size_bytes == 0:
            self._first_timestamp = header.max_timestamp
        if self._pace.count(len(batch), header.last_offset, header.max_timestamp):
            self._indexes.append(header.last_offset, self.size_bytes, *self._pace.largest)
        self._add(batch, header.last_offset + 1)

    def _add(self, batches: Buffer, end: int) -> None:
        self.size_bytes += len(batches)
        self._end = end
        if len(batches) >= BUFFER_BYTES // 4:
            self._write()
            self._files.write_at(self._open(), batches, self._written)
            self._written += len(batches)
            return
        self._buffer += batches
        if len(self._buffer) >= BUFFER_BYTES:
            self._write()

    def append_run(self, batches: Buffer) -> None:
        """Append consecutive whole batches unchanged. The caller has verified their CRCs.

        Raises CorruptionError if the offsets of a batch are not above those of the batch before, or do not fit an index
        entry.
        """
        view, at = memoryview(batches), 0
        walk = BatchWalk(corrupt_at, position=self.size_bytes)
        order, indexed = (self._end, NO_LIMIT, NO_LIMIT), (self.base_offset, self._indexes.last_time[0])
        found = walk.survey(view, order, self._pace, indexed)
        if found is not None:
            at = found.used
            if self.size_bytes == 0:
                self._first_timestamp = found.first_timestamp
            self._indexes.extend(found)
            self._add(view[:at], found.next)
        for position, header in walk_headers(view, at):
            self.append(view[position : position + header.size_bytes])

    def add_aborted(self, txn: AbortedTxn) -> None:
        """Add an aborted transaction whose marker is in this segment."""
        self._aborted.append(txn)

    def finish(self) -> FoundSegment:
        """Write all files, durably, and return the segment. The files keep the suffix ``.cleaned``."""
        self._write()
        handle = self._open()
        self._files.sync(handle)
        self._close()
        self._indexes.append_last_time(*self._pace.largest)
        self._files.replace(self._path(INDEX_SUFFIX), self._indexes.offset_bytes())
        self._files.replace(self._path(TIME_INDEX_SUFFIX), self._indexes.time_bytes())
        if self._aborted:
            self._files.replace(self._path(TXN_INDEX_SUFFIX), encode_txns(self._aborted))
        self._files.sync_directory(self._directory)
        return FoundSegment(self.base_offset, self._end, self.size_bytes, self._indexes, self._first_timestamp)

    def abandon(self) -> None:
        """Remove all files of the copy, even if closing them fails."""
        try:
            self._close()
        finally:
            self._remove()

    def _path(self, suffix: str) -> Path:
        return self._directory / local_name(self.base_offset, suffix, CLEANED_SUFFIX)

    def _open(self) -> int:
        if self._handle is None:
            raise CorruptionError(f"the copy of segment {self.base_offset} is finished: nothing can be appended")
        return self._handle

    def _write(self) -> None:
        self._files.write_at(self._open(), self._buffer, self._written)
        self._written += len(self._buffer)
        self._buffer.clear()

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._files.close(handle)

    def _remove(self) -> None:
        remove_copy(self._files, self._directory, self.base_offset)


def remove_copy(files: Files, directory: Path, base_offset: int) -> None:
    """Unlink the ``.cleaned`` files of the segment at ``base_offset``."""
    for suffix in SEGMENT_SUFFIXES:
        files.unlink(directory / local_name(base_offset, suffix, CLEANED_SUFFIX))


def swap_in(files: Files, directory: Path, new: Sequence[int], old: Sequence[int]) -> list[Path]:
    """Replace the segments ``old`` by the finished ``.cleaned`` copies ``new``. Both are lists of base offsets.

    The files are renamed in an order that leaves the old segments or the new ones after a crash. Return the
    ``.deleted`` files, to be unlinked later. They include producer snapshots at base offsets that no longer exist.
    """
    _remove_strays(files, directory, new)
    for base in sorted(new, reverse=True):
        for suffix in reversed(SEGMENT_SUFFIXES):
            _rename(files, directory / local_name(base, suffix), CLEANED_SUFFIX, SWAP_SUFFIX)
    files.sync_directory(directory)
    renamed: list[Path] = []
    for base in sorted(old):
        renamed += rename_to_deleted(files, directory, base, snapshot=base not in new)
    for base in sorted(new):
        for suffix in SEGMENT_SUFFIXES:
            _rename(files, directory / local_name(base, suffix), SWAP_SUFFIX, "")
    files.sync_directory(directory)
    return renamed


def _remove_strays(files: Files, directory: Path, new: Sequence[int]) -> None:
    """Remove the ``.cleaned`` files of all segments except ``new``, durably.

    Otherwise, after a crash of the replacement that begins now, :func:`finish_replacements` could delete its ``.swap``
    files, although the old segments are renamed already.
    """
    parsed = [parse_local_name(name) for name in files.names(directory)]
    strays = {file.base for file in parsed if file and file.work == CLEANED_SUFFIX} - set(new)
    for base in sorted(strays):
        remove_copy(files, directory, base)
    if strays:
        files.sync_directory(directory)


def _rename(files: Files, plain: Path, work: str, new_work: str) -> None:
    source = plain.with_name(plain.name + work)
    if files.state(source) is not None:
        files.rename(source, plain.with_name(plain.name + new_work))


def finish_replacements(files: Files, directory: Path) -> list[int]:
    """Complete or undo interrupted replacements. Return the base offsets of the existing segments, ascending.

    Unlink ``.deleted`` files, and indexes and ``.seal`` notes without a ``.log``, too.
    """
    sweep_temporaries(files, directory)
    names = {name: parsed for name in files.names(directory) if (parsed := parse_local_name(name))}
    cleaned = [file.base for file in names.values() if file.work == CLEANED_SUFFIX]
    undone = min(cleaned, default=None)
    leaving = {file.base for file in names.values() if (file.suffix, file.work) == (LOG_SUFFIX, DELETED_SUFFIX)}
    # The order matters if there is another crash: a .swap must not outlive the .cleaned that undoes it.
    for work in (DELETED_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX):
        for name, file in list(names.items()):
            if file.work != work or (work == SWAP_SUFFIX and (undone is None or file.base < undone)):
                continue
            files.unlink(directory / name)
            del names[name]
    _complete_swaps(files, directory, names)
    logs = {file.base for file in names.values() if file.suffix == LOG_SUFFIX and not file.work}
    for file in names.values():
        if file.suffix in INDEX_SUFFIXES and file.base not in logs and not file.work:
            path = directory / local_name(file.base, file.suffix)
            if file.suffix == TIME_INDEX_SUFFIX and file.base not in leaving:
                _warn_lost_log(files, path)
            files.unlink(path)
    for name in leftover_notes(files.names(directory), logs):
        files.unlink(directory / name)
    return sorted(logs)


def _warn_lost_log(files: Files, time_index: Path) -> None:
    """Log a warning for a time index without its ``.log``. A deletion that was killed twice also leaves this state."""
    state = files.state(time_index)
    if state is not None and state.size:
        LOGGER.warning("segment_log_gone path=%s reason=it names records that were not deleted", time_index)


def _complete_swaps(files: Files, directory: Path, names: dict[str, LocalFile]) -> None:
    """Finish a replacement: unlink the old segments in the range of the ``.swap`` files, then rename these files.

    ``names``: the parsed file names of the directory, which are changed accordingly.
    """
    swaps = sorted(file for file in names.values() if file.work == SWAP_SUFFIX)
    logs = [file.base for file in swaps if file.suffix == LOG_SUFFIX]
    if logs:
        end = max(_end_of(files, directory / local_name(base, LOG_SUFFIX, SWAP_SUFFIX), base) for base in logs)
        for name, file in list(names.items()):
            if not file.work and file.suffix != SNAPSHOT_SUFFIX and min(logs) <= file.base < end:
                files.unlink(directory / name)
                files.unlink(directory / local_name(file.base, SEAL_SUFFIX))
                del names[name]
    for swap in sorted(swaps, key=lambda file: (file.base, file.suffix != LOG_SUFFIX)):
        plain = local_name(swap.base, swap.suffix)
        files.rename(directory / (plain + SWAP_SUFFIX), directory / plain)
        del names[plain + SWAP_SUFFIX]
        names[plain] = LocalFile(swap.base, swap.suffix)
    if swaps:
        files.sync_directory(directory)


def _end_of(files: Files, path: Path, base_offset: int) -> int:
    """Return the offset after the last batch; of the readable ones, if the file is damaged."""
    end = base_offset + 1
    with LogFile(files, path) as log:
        try:
            for span, _ in log.batches(0, log.size()):
                end = max(end, span.last_offset + 1)
        except CorruptionError as error:
            LOGGER.warning("replacement_damaged path=%s error=%s", path, error)
    return end


def find_cut(
    files: Files, path: Path, size_bytes: int, indexes: SegmentIndexes, offset: int
) -> tuple[FoundSegment, bool]:
    """Return the segment as it will be after a truncation to ``offset``, and True if a batch reaches across ``offset``.

    No file is changed. ``path``, ``size_bytes``: the segment's ``.log`` and its size. ``indexes`` lose their entries at
    or above ``offset`` at once; lookups stay right without them.
    """
    base = int(path.stem)
    position, straddled = size_bytes, False
    found = FoundSegment(base, offset, 0, indexes)
    with LogFile(files, path) as log:
        offsets = Offsets(base, NO_LIMIT)
        for span, _ in log.segment(indexes.seek(log, offset, size_bytes, offsets), size_bytes, offsets):
            if span.last_offset >= offset:
                position, straddled = span.position, span.base_offset < offset
                break
        indexes.truncate_to(offset)
        largest, at = indexes.last_time
        if position:
            found.first_timestamp = log.header_at(0, position).max_timestamp
        for span, _ in log.segment(indexes.seek(log, offset, position, offsets), position, offsets):
            found.records_end = span.last_offset + 1
        for span, view in log.segment(indexes.seek(log, at, position, offsets), position, offsets):
            timestamp = log.header(view, span.position).max_timestamp
            if timestamp > largest:
                largest, at = timestamp, span.last_offset
    found.size_bytes, found.largest = position, (largest, at)
    return found, straddled


def cut_end(files: Files, view: View, offset: int) -> int:
    """Return the end that the log will have after a truncation to ``offset``.

    A batch across ``offset`` is removed whole. CRCs are not checked.
    """
    for extent in view.extents_from(offset):
        with open_extent(files, view, extent, offset) as log:
            for span, _ in log.segment(extent.seek(log, offset), extent.size_bytes, extent.offset_range):
                if span.last_offset >= offset:
                    return min(offset, span.base_offset)
    return offset


def carry_out_cut(files: Files, directory: Path, found: FoundSegment, offset: int) -> None:
    """Carry out the truncation to ``offset`` that :func:`find_cut` returned as ``found``, durably.

    Truncate the ``.log`` and the transaction index, write the other indexes, and unlink the ``.seal`` note.
    """
    path = directory / log_name(found.base_offset)
    handle = files.open_write(path)
    try:
        files.truncate(handle, found.size_bytes)
        files.sync(handle)
    finally:
        files.close(handle)
    files.unlink(path.with_suffix(SEAL_SUFFIX))
    if found.indexes is not None:
        store_indexes(files, directory, found.base_offset, found.indexes)
    cut_txn_index(files, directory, found.base_offset, offset)
