"""The right ``.txnindex`` and producer snapshot of a sealed segment, even if the files are lost or damaged.

::

    note of the seal (counts, CRC32Cs) ─┬─ agrees with the files ──────────────> the files
                                        └─ differs, or nothing was noted ─> replay of the log
                                               the files fit the replay ───────> the files
                                               it has all, or what was noted ──> the replay, with a warning
                                               its beginning is not known ─────> CorruptionError

A transaction whose first records have left the disk needs its entry only if a bucket may have those records. Reads,
compaction and uploads share this code: a lost file would show aborted records, or hide committed ones, for ever.

No file is written, because only the writer of a log may change its files. A file rebuilt in memory costs a replay,
never data. Only the open for writing repairs a file (:meth:`SideFiles.repair_txn_index`), before any read.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from tiered.errors import CorruptionError, NotFoundError
from tiered.format.batch import decode_records, least_timestamp
from tiered.format.batch_scanner import NO_LIMIT, Offsets, hop
from tiered.format.control import ControlType, control_type
from tiered.format.kernels import crc32c
from tiered.format.local_names import DELETED_SUFFIX, log_name, snapshot_name, txn_index_name
from tiered.format.producer_snapshot import encode_snapshot
from tiered.format.segment_builder import SegmentStats
from tiered.format.segment_indexes import TXN_ENTRY_BYTES, decode_txns, encode_txns
from tiered.local.disk.files import Files
from tiered.local.disk.partition_files import PLAIN_NAME, log_bases, newest_snapshot, snapshot_offsets
from tiered.local.disk.uploader_files import PartitionUpload, UploadCheckpoint
from tiered.local.segment.scan import LogFile
from tiered.model import AbortedTxn, TopicPartition
from tiered.plan.producer import read_producer
from tiered.plan.producer_state import ProducerSnapshot
from tiered.plan.side_files import (
    NO_PRODUCERS,
    Follower,
    ReplayedSegment,
    SideFileVerdict,
    judge_snapshot,
    judge_txn_index,
)

LOGGER = logging.getLogger("tiered.local")

SEAL_SUFFIX = ".seal"
"""Suffix of the note with the totals of a ``.log`` file, so that its 64 MiB need not be read for them.

The note is written when a segment is sealed, and for the active segment at a clean close. It is used only while its
size agrees with the ``.log``. A missing or stale note costs one scan, never data. Brokers ignore it.
"""

NOTE_VERSION = 1
CHECK = "check"
"""CRC32C over the rest of the note."""

_NAME = re.compile(rf"(?P<base>[0-9]{{20}}){re.escape(SEAL_SUFFIX)}(?P<work>{re.escape(DELETED_SUFFIX)})?")


class SnapshotFacts(NamedTuple):
    """Facts of a producer snapshot: its number of producers, and the CRC32C of the whole file."""

    producers: int
    crc: int

    @classmethod
    def decode(cls, data: bytes, producers: int) -> SnapshotFacts:
        """Return the facts of the encoded snapshot ``data``, which has ``producers`` entries."""
        return cls(producers, crc32c(data))


UNKNOWN_SNAPSHOT = SnapshotFacts(-1, 0)
"""Facts of an unknown snapshot: the log has to be read."""


class SegmentPlace(NamedTuple):
    """Place of a segment on the disk. ``log``: its ``.log`` file, which may have been renamed ``.deleted``.

    ``end_offset`` is exclusive. ``size_bytes``: number of bytes to read, for a growing segment; -1: all.
    """

    tp: TopicPartition
    directory: Path
    log: Path
    base_offset: int
    end_offset: int
    size_bytes: int = -1


def measure(log: LogFile, size_bytes: int, offsets: Offsets, *, dense: bool = False) -> SegmentStats:
    """Read a whole segment and return its totals. Verify the CRC of each batch, and that the batches fill the segment.

    ``offsets``: range that its offsets must be in. ``dense``: no offset may be left out. Raises CorruptionError if one
    of these checks fails. Control records (transaction markers) count: they occupy offsets.
    """
    stats = SegmentStats()
    for span, view in log.segment(0, size_bytes, offsets, dense=dense, reach=offsets.next if dense else -1):
        header = log.verify(span, view)
        least = least_timestamp(header, view)
        stats.add(view, header.records_count, least, header.max_timestamp, header.leader_epoch)
    return stats


def write_note(files: Files, path: Path, stats: SegmentStats) -> None:
    """Replace the ``.seal`` file at ``path``, durably."""
    value = {"version": NOTE_VERSION, **asdict(stats)}
    files.replace(path, json.dumps({**value, CHECK: _check_of(value)}).encode())


def read_note(files: Files, path: Path, size_bytes: int) -> SegmentStats | None:
    """Return the totals in the ``.seal`` file.

    Return None if the file is missing, damaged, or written for a ``.log`` of another size.
    """
    stats = _decode_note(files, path)
    return stats if stats is not None and stats.size_bytes == size_bytes else None


def noted_size(files: Files, path: Path) -> int:
    """Return the ``.log`` size in the ``.seal`` file, -1 if that file is missing or damaged.

    The ``.log`` may have been rewritten since.
    """
    stats = _decode_note(files, path)
    return -1 if stats is None else stats.size_bytes


def leftover_notes(names: Iterable[str], bases: Collection[int]) -> list[str]:
    """Return the ``.seal`` files to remove: renamed ones, and those of no segment in ``bases``.

    A leftover file would make a later segment with the same base look too short.
    """
    matches = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    return [match[0] for match in matches if match["work"] or int(match["base"]) not in bases]


def _check_of(value: dict[str, int]) -> int:
    """Return the CRC32C of a note's values, as written."""
    return crc32c(json.dumps(value).encode())


def _decode_note(files: Files, path: Path) -> SegmentStats | None:
    try:
        value = json.loads(files.read(path))
        if value.pop(CHECK) != _check_of(value):
            return None
        if value.pop("version") != NOTE_VERSION or any(type(number) is not int for number in value.values()):
            return None
        return SegmentStats(**value)
    except (NotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def store_txn_index(files: Files, path: Path, entries: bytes) -> bytes:
    """Write the encoded ``entries`` to the file at ``path``, unless it has exactly these. Return ``entries``.

    If there are neither entries nor a file, no file is made.
    """
    if (_read(files, path) or b"") != entries:
        files.replace(path, entries)
        LOGGER.warning("txn_index_rebuilt path=%s entries=%d", path, len(entries) // TXN_ENTRY_BYTES)
    return entries


def load_growing_txns(files: Files, directory: Path, base_offset: int) -> list[AbortedTxn]:
    """Return the whole entries in the transaction index of a segment that is being appended to; none without a file."""
    return decode_txns(_read(files, directory / txn_index_name(base_offset)) or b"", base_offset)


class SideFiles:
    """Transaction index and producer snapshot of one segment, rebuilt if they are lost or damaged.

    ``noted``: content of the ``.seal`` note, None without one. The log is read at most once, and only if a file differs
    from the note or the note is missing. ``before``: the producers at the end of the bucket, None if not needed. All
    calls raise CorruptionError if a file is lost or damaged and cannot be rebuilt, because earlier segments are not on
    this disk. All raise NotFoundError if retention deleted the segment.
    """

    def __init__(
        self, files: Files, place: SegmentPlace, noted: SegmentStats | None, before: ProducerSnapshot | None = None
    ) -> None:
        self._files = files
        self._place = place
        self._noted = noted
        self._before = before
        self._told: ReplayedSegment | None = None

    def aborted_txns(self) -> list[AbortedTxn]:
        """Return the aborted transactions whose ABORT markers are in the segment."""
        return decode_txns(self.txn_index(), self._place.base_offset)

    def repair_txn_index(self, *, whole: bool = False) -> bytes:
        """Return the transaction index, encoded; rewrite its file if it differs.

        Call this only while no other thread reads or writes the segment. ``whole``: treat a replay that begins at the
        first segment on this disk as complete.
        """
        path = self._place.directory / txn_index_name(self._place.base_offset)
        return store_txn_index(self._files, path, self.txn_index(exact=True, whole=whole))

    @property
    def lacks_producers(self) -> bool:
        """Return True if only the bucket may know the producers before this segment.

        False if a file on this disk has the producers at the segment's start or end.
        """
        files, place = self._files, self._place
        if self._noted is not None and self._noted.producers >= 0:
            return False
        if files.state(place.directory / snapshot_name(place.end_offset)) is not None:
            return False
        first = min([place.base_offset, *log_bases(files, place.directory)])
        if first == 0 or files.state(place.directory / PLAIN_NAME) is not None:
            return False
        known = newest_snapshot(files, place.directory, first, place.base_offset)
        return known is None and _was_uploaded(files, place)

    def txn_index(self, *, exact: bool = False, whole: bool = False) -> bytes:
        """Return the entries of the transaction index, encoded. A file with the CRC32C in the ``.seal`` note is right.

        Otherwise the log is replayed. The result is then the file, or the replay if the file contradicts the log. The
        file may also have transactions whose first records compaction removed. ``exact``: return the replay whenever it
        is complete. ``whole``: treat a replay that begins at the first segment on this disk as complete.
        """
        if self._noted is not None and self._noted.aborted == 0:
            return b""
        name = txn_index_name(self._place.base_offset)
        found = _read(self._files, self._place.directory / name) or b""
        noted_crc: int | None = None
        if self._noted is not None and self._noted.aborted >= 0:
            noted_crc = self._noted.txn_crc
            if len(found) == self._noted.aborted * TXN_ENTRY_BYTES and crc32c(found) == noted_crc:
                return found
        replayed = self._replayed()
        if not replayed.whole and (whole or not _was_uploaded(self._files, self._place)):
            replayed = replayed._replace(whole=True)  # records of a transaction before the first segment are gone
        if exact and replayed.whole:
            return encode_txns(replayed.aborted)
        return self._settled(name, judge_txn_index(found, self._place.base_offset, replayed, noted_crc))

    def producer_snapshot(self) -> bytes:
        """Return the producer snapshot at the end of the segment, encoded; ``b""`` without producers.

        The file is returned if its CRC32C is the one in the ``.seal`` note. Otherwise the log is replayed. The result
        is then the file, or the replay if the file contradicts the log. Raises CorruptionError if the file is wrong
        and the replay is incomplete.
        """
        if self._noted is not None and self._noted.producers == 0:
            return b""
        directory, name = self._place.directory, snapshot_name(self._place.end_offset)
        found = _read(self._files, directory / name)
        noted_crc: int | None = None
        if self._noted is not None and self._noted.producers >= 0:
            noted_crc = self._noted.snapshot_crc
            if crc32c(NO_PRODUCERS if found is None else found) == noted_crc:
                return b"" if found is None or found == NO_PRODUCERS else found
        expected = noted_crc is not None or bool(snapshot_offsets(self._files, directory))
        replayed = self._replayed()
        # Brokers before 2.8 kept the newest snapshots only. As they do, the log is replayed from its start on: of
        # producers whose batches are neither on a disk nor in a bucket no record can be shown or hidden.
        if not replayed.whole and noted_crc is None and not _was_uploaded(self._files, self._place):
            replayed = replayed._replace(whole=True)
        return self._settled(name, judge_snapshot(found, replayed, noted_crc, expected=expected))

    def _settled(self, name: str, judged: SideFileVerdict) -> bytes:
        path, base = self._place.directory / name, self._place.base_offset
        if judged.flaw is not None and not judged.known:
            raise CorruptionError(
                f"{path}: {judged.flaw}; it cannot be rebuilt: earlier segments are no longer on this disk",
                path_or_key=str(path),
                offset=base,
                hint="copy this file from a backup of the disk; until then the segment is not uploaded, and "
                "read_committed cannot read it",
            )
        if judged.flaw is not None:
            # A writer puts its marker first: of a log that grows the index may only be late.
            level = logging.WARNING if self._place.size_bytes < 0 else logging.INFO
            LOGGER.log(level, "%s: %s. It was rebuilt in memory, the file stays as it is", path, judged.flaw)
        return judged.data

    def _replayed(self) -> ReplayedSegment:
        if self._told is None:
            place = self._place
            bases = log_bases(self._files, place.directory)
            log, base = place.log, place.base_offset
            self._told = replay(self._files, place.directory, log, base, bases, place.size_bytes, before=self._before)
        return self._told


def _was_uploaded(files: Files, place: SegmentPlace) -> bool:
    """Return True if a bucket may hold records before the first segment on this disk."""
    noted = UploadCheckpoint(place.directory.parent, files).read()
    upload = noted.get(place.tp, PartitionUpload(0))
    return upload.reaches_below(min([place.base_offset, *log_bases(files, place.directory)]))


def _read(files: Files, path: Path) -> bytes | None:
    try:
        return files.read(path)
    except NotFoundError:
        return None


def abort_markers(log: LogFile, end: int) -> Iterator[tuple[int, int]]:
    """Yield producer id and offset of each ABORT marker before the position ``end``.

    Of other batches only the headers are read. Raises CorruptionError for a batch with an impossible length.
    """
    for position, header in hop(lambda at: log.header_at(at, end), 0, end):
        if header.is_control:
            batch = log.read_at(position, header.size_bytes)
            if any(control_type(record) is ControlType.ABORT for record in decode_records(batch)):
                yield header.producer_id, header.base_offset


def snapshot_after(files: Files, directory: Path, base_offset: int, bases: Sequence[int]) -> bytes:
    """Return the producers at the end of the segment at ``base_offset``, as the content of a ``.snapshot`` file.

    ``bases``: base offsets of the log's segments. The log is replayed from the newest snapshot on, or from its first
    segment. Raises CorruptionError for a damaged batch.
    """
    replayed = replay(files, directory, directory / log_name(base_offset), base_offset, bases)
    return encode_snapshot(replayed.producers)


def replay(  # noqa: PLR0917 - the segment and its surroundings
    files: Files,
    directory: Path,
    log: Path,
    base_offset: int,
    bases: Sequence[int],
    size_bytes: int = -1,
    *,
    before: ProducerSnapshot | None = None,
) -> ReplayedSegment:
    """Return the transactions and producers in the batches of the segment at ``base_offset``. ``log``: its file now.

    ``bases``: base offsets of the log's segments. ``size_bytes``: number of bytes to read of a growing segment, -1:
    all. The state before the first segment is unknown unless that segment begins at offset 0, or a snapshot or
    ``before`` has the state. With the file ``tiered-plain``, no producer ever wrote. Raises CorruptionError for a
    damaged batch.
    """
    earlier = sorted(base for base in bases if base < base_offset)
    first = earlier[0] if earlier else base_offset
    known = newest_snapshot(files, directory, first, base_offset)
    if known is None and before is not None and first <= before.offset <= base_offset:
        known = before
    plain = known is None and files.state(directory / PLAIN_NAME) is not None
    start = known.offset if known is not None else base_offset if plain else first
    follower = Follower(known, whole=known is not None or plain or first == 0)
    for base, following in itertools.pairwise((*earlier, base_offset)):
        if following > start:
            _follow(files, directory / log_name(base), Offsets(base, following), follower, start)
    follower.end_segment()
    _follow(files, log, Offsets(base_offset, NO_LIMIT), follower, start, size_bytes)
    return follower.end_segment()


def _follow(  # noqa: PLR0917 - as replay
    files: Files, path: Path, offsets: Offsets, follower: Follower, start: int, size_bytes: int = -1
) -> None:
    with LogFile(files, path) as log:
        for span, view in log.segment(0, log.size() if size_bytes < 0 else size_bytes, offsets):
            if span.last_offset >= start:
                header = log.verify(span, view)
                follower.see(read_producer(header, view))
