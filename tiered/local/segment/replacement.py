"""Puts new segments in the place of old ones, so that a crash at any step leaves the old ones or the new ones.

::

    1  copies complete and fsynced as .cleaned            crash: undone, the old ones are whole
    2  renamed to .swap, highest base first; folder fsync  a .cleaned that is left undoes every .swap at or above it
    3  old files renamed to .deleted                       crash: redone, .swap files replace what they cover
    4  .swap renamed to the plain name, .log first; fsync  redone

Used by the splitter of overflowed segments when a log is loaded, and by a cleaner (``exchange``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tiered.errors import CorruptionError
from tiered.format.batch import verify_batch
from tiered.format.header import read_header
from tiered.format.keys import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    local_name,
    log_name,
)
from tiered.format.txn_index import encode_txns
from tiered.format.walk import NO_LIMIT, Offsets
from tiered.local.disk.files import Files
from tiered.local.segment.factory import FoundSegment
from tiered.local.segment.indexes import SegmentIndexes
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import rename_away
from tiered.model import AbortedTxn
from tiered.plan.roll import MAX_RELATIVE_OFFSET

COPIED_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
BUFFER_BYTES = 1024 * 1024
"""Batches are written in pieces of about this size."""


class SegmentCopy:
    """A segment being written as ``.cleaned``: batches go in with their offsets, indexes are made along the way."""

    def __init__(self, files: Files, directory: Path, base_offset: int, *, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self._files = files
        self._directory = directory
        self._interval = interval_bytes
        self._since_index = 0
        self._indexes = SegmentIndexes.empty(base_offset)
        self._largest, self._largest_at = -1, base_offset
        self._first_timestamp = -1
        self._end = base_offset
        self._aborted: list[AbortedTxn] = []
        self._buffer = bytearray()
        self._written = 0
        self._remove()
        self._handle: int | None = files.open_write(self._path(LOG_SUFFIX))

    def fits(self, last_offset: int) -> bool:
        """Whether an index entry can hold this offset."""
        return 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def append(self, batch: bytes | memoryview) -> None:
        """One batch, byte for byte. CorruptionError if it does not fit behind the one before."""
        header = read_header(batch)
        if not self.fits(header.last_offset) or header.last_offset < self._end:
            raise CorruptionError(
                f"a batch that ends at offset {header.last_offset} cannot follow {self._end} in the copy of segment "
                f"{self.base_offset}",
                path_or_key=str(self._path(LOG_SUFFIX)),
                position=self.size_bytes,
                offset=header.base_offset,
            )
        if self.size_bytes == 0:
            self._first_timestamp = header.max_timestamp
        if header.max_timestamp > self._largest:
            self._largest, self._largest_at = header.max_timestamp, header.last_offset
        if self._since_index > self._interval:
            self._indexes.append(header.last_offset, self.size_bytes, self._largest, self._largest_at)
            self._since_index = 0
        self._since_index += len(batch)
        self.size_bytes += len(batch)
        self._end = header.last_offset + 1
        self._buffer += batch
        if len(self._buffer) >= BUFFER_BYTES:
            self._write()

    def add_aborted(self, txn: AbortedTxn) -> None:
        """An aborted transaction whose marker lies in this segment."""
        self._aborted.append(txn)

    def finish(self) -> FoundSegment:
        """All files complete and durable, still as ``.cleaned``."""
        self._write()
        handle = self._open()
        self._files.sync(handle)
        self._close()
        self._indexes.close_times(self._largest, self._largest_at)
        self._files.replace(self._path(INDEX_SUFFIX), self._indexes.offset_bytes())
        self._files.replace(self._path(TIME_INDEX_SUFFIX), self._indexes.time_bytes())
        if self._aborted:
            self._files.replace(self._path(TXN_INDEX_SUFFIX), encode_txns(self._aborted))
        self._files.sync_directory(self._directory)
        return FoundSegment(self.base_offset, self._end, self.size_bytes, self._indexes, self._first_timestamp)

    def abandon(self) -> None:
        """Leaves nothing behind."""
        self._close()
        self._remove()

    def _path(self, suffix: str) -> Path:
        return self._directory / local_name(self.base_offset, suffix, CLEANED_SUFFIX)

    def _open(self) -> int:
        if self._handle is None:
            raise CorruptionError(f"the copy of segment {self.base_offset} is finished")
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
    """Unlinks a copy that is not wanted any more."""
    for suffix in COPIED_SUFFIXES:
        files.unlink(directory / local_name(base_offset, suffix, CLEANED_SUFFIX))


def swap_in(files: Files, directory: Path, new: Sequence[int], old: Sequence[int]) -> list[Path]:
    """Steps 2 to 4 for finished copies at the bases ``new``, in the place of the segments ``old``.

    Returns the ``.deleted`` files, to be unlinked when no read needs them any more. Snapshots of bases that vanish go.
    """
    for base in sorted(new, reverse=True):
        for suffix in reversed(COPIED_SUFFIXES):
            _rename(files, directory / local_name(base, suffix), CLEANED_SUFFIX, SWAP_SUFFIX)
    files.sync_directory(directory)
    renamed: list[Path] = []
    for base in sorted(old):
        renamed += rename_away(files, directory, base, snapshot=base not in new)
    for base in sorted(new):
        for suffix in COPIED_SUFFIXES:
            _rename(files, directory / local_name(base, suffix), SWAP_SUFFIX, "")
    files.sync_directory(directory)
    return renamed


def _rename(files: Files, plain: Path, work: str, new_work: str) -> None:
    source = plain.with_name(plain.name + work)
    if files.state(source) is not None:
        files.rename(source, plain.with_name(plain.name + new_work))


def split_overflowed(files: Files, directory: Path, base_offset: int, interval_bytes: int) -> list[int]:
    """Rewrites a segment whose offsets do not fit its base (old brokers made such) as several; returns their bases.

    CorruptionError, with nothing changed, if a batch is damaged.
    """
    copies: list[SegmentCopy] = []
    finished: list[FoundSegment] = []
    try:
        with LogFile(files, directory / log_name(base_offset)) as log:
            for span, view in log.segment(0, log.size(), Offsets(0, NO_LIMIT)):
                log.verify(span, view)
                if not copies or not copies[-1].fits(span.last_offset):
                    if copies:
                        finished.append(copies[-1].finish())
                    first = base_offset if not copies and _fits(base_offset, span.last_offset) else -1
                    start = verify_batch(view).base_offset if first < 0 else first
                    copies.append(SegmentCopy(files, directory, start, interval_bytes=interval_bytes))
                copies[-1].append(view)
        if copies:
            finished.append(copies[-1].finish())
    except CorruptionError:
        for copy in copies:
            copy.abandon()
        raise
    bases = [segment.base_offset for segment in finished]
    for path in swap_in(files, directory, bases, [base_offset]):
        files.unlink(path)
    return bases


def _fits(base_offset: int, last_offset: int) -> bool:
    return last_offset - base_offset <= MAX_RELATIVE_OFFSET
