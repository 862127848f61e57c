"""Cut of the end of a segment: its place, and the files afterwards."""

from __future__ import annotations

from pathlib import Path

from tiered.format.batch_scanner import NO_LIMIT, Offsets
from tiered.format.local_names import log_name
from tiered.local.disk.files import Files
from tiered.local.segment.factory import FoundSegment
from tiered.local.segment.indexes import SegmentIndexes, cut_txn_index, store_indexes
from tiered.local.segment.read_view import View
from tiered.local.segment.reading import open_extent
from tiered.local.segment.scan import LogFile
from tiered.local.segment.seal import SEAL_SUFFIX


def find_cut(
    files: Files, path: Path, size_bytes: int, indexes: SegmentIndexes, offset: int
) -> tuple[FoundSegment, bool]:
    """Return the segment as it will end at ``offset``, and True if a batch reaches across. No file is changed.

    The indexes lose their entries at or above ``offset`` at once, which only makes a scan longer.
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
    """Return the end of a log that is cut at ``offset``. A batch that reaches beyond leaves whole. Checks no bytes."""
    for extent in view.extents_from(offset):
        with open_extent(files, view, extent, offset) as log:
            for span, _ in log.segment(extent.seek(log, offset), extent.size_bytes, extent.offset_range):
                if span.last_offset >= offset:
                    return min(offset, span.base_offset)
    return offset


def carry_out_cut(files: Files, directory: Path, found: FoundSegment, offset: int) -> None:
    """Cut the ``.log`` and the transaction index, write the indexes, and unlink the note."""
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
