"""The list of segments of one partition, with the log start and the end.

All segments but the last are sealed. The last one is active: it is appended to. Any component of the partition may read
the list. Only this module changes it, and makes the objects of segments from loaded or new files.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tiered.clock import IdSource
from tiered.config import TopicConfig
from tiered.errors import CorruptionError
from tiered.format.local_names import index_name, log_name, time_index_name, txn_index_name
from tiered.format.segment_builder import SegmentStats
from tiered.format.segment_indexes import encode_txns
from tiered.local.disk.files import Files
from tiered.local.disk.partition_files import PLAIN_NAME, SPARSE_NAME, LeaderEpochs, may_have_producers
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.segment.active import ActiveSegment, FoundSegment
from tiered.local.segment.read_view import Extent, SealedExtents
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import SEGMENT_SUFFIXES, OwningLog, SealedLocalSegment
from tiered.local.segment.side_files import (
    SEAL_SUFFIX,
    SegmentPlace,
    SideFiles,
    abort_markers,
    read_note,
    store_txn_index,
)

LOGGER = logging.getLogger("tiered.local")


class LoadedLog(NamedTuple):
    """Segments and checkpoint values of a partition after loading.

    ``start_offset``: the log start in a checkpoint, None without one. ``recovery_point``: records below this offset are
    durable. ``upload``: the uploader's last report, None while the log is not tiered.
    """

    segments: list[FoundSegment]
    epochs: LeaderEpochs
    start_offset: int | None
    recovery_point: int
    upload: PartitionUpload | None


class LogSegments:
    """Segments of one partition. Changed under the partition's lock. One attribute may be read without the lock.

    ``sealed`` and ``active``: the segments. ``extents``: ranges of ``sealed`` for reads. ``closing``: ActiveSegment
    objects of sealed segments that are not fsynced yet. ``end``: the next offset to be assigned. ``log_start``: the
    first offset that may be read. ``new_names``: files were created since the directory was last fsynced. ``config``:
    the topic's present settings. ``sparse``: offsets may be missing.
    """

    def __init__(
        self, files: Files, ids: IdSource, owner: OwningLog, *, config: TopicConfig, loaded: LoadedLog, now_ms: int
    ) -> None:
        self.tp = owner.tp
        self.directory = owner.directory
        self.config = config
        self._files = files
        self._ids = ids
        self._owner = owner
        self._epochs = loaded.epochs
        self.sparse = files.state(self.directory / SPARSE_NAME) is not None
        *sealed, tail = loaded.segments
        first, start_offset = loaded.segments[0].base_offset, loaded.start_offset
        self._keep(tuple(self._adopt(segment) for segment in sealed))
        self.active = self._resumed(tail, now_ms, starts_inside=start_offset is not None and start_offset > first)
        self.closing: list[ActiveSegment] = []
        self.end = tail.end_offset
        self.log_start = first if start_offset is None else start_offset
        self.new_names = True
        self._opened: tuple[ActiveSegment, tuple[SealedLocalSegment, ...], int] | None = None

    def _keep(self, sealed: tuple[SealedLocalSegment, ...]) -> None:
        """Set the list of sealed segments. Existing views keep the old list."""
        self.sealed: tuple[SealedLocalSegment, ...] = sealed
        self.extents = SealedExtents(map(Extent.whole, sealed))

    @property
    def first_base(self) -> int:
        """Return the base offset of the first segment on this disk."""
        sealed, active = self.sealed, self.active
        return sealed[0].base_offset if sealed else active.base_offset

    @property
    def local_start(self) -> int:
        """Return the first offset on this disk that may be read."""
        return max(self.first_base, self.log_start)

    @property
    def all(self) -> tuple[SealedLocalSegment | ActiveSegment, ...]:
        """Return all segments, ascending, the active one last."""
        return (*self.sealed, self.active)

    @property
    def empty(self) -> bool:
        """Return True if no segment has a batch."""
        return not (self.sealed or self.active.size_bytes)

    def configure(self, config: TopicConfig) -> None:
        """Apply changed settings. Settings of index files apply from the next segment on."""
        self.config = config
        self._owner = self._owner._replace(interval_bytes=config.index_interval_bytes)
        self.active.configure(config)

    @property
    def dense(self) -> bool:
        """Return True if every offset has a record, so that a missing offset is damage."""
        return not (self.config.compacted or self.sparse)

    def mark_sparse(self) -> None:
        """Mark the log, durably, as one in which offsets may be missing.

        Call this before a truncation inside a batch, and before compaction removes records.
        """
        if not self.sparse:
            self._files.replace(self.directory / SPARSE_NAME, b"")
            self.sparse = True

    def seal_active(self, now_ms: int) -> ActiveSegment:
        """Seal the active segment, and create a new one at the end of the log.

        Return the sealed one. Its files stay open until they are fsynced.
        """
        old = self.active
        old.seal()
        self.create_active(self.end, now_ms)
        self.closing.append(old)
        self.new_names = True
        sealed = SealedLocalSegment(
            self._files,
            self._owner,
            old.base_offset,
            self.end,
            size_bytes=old.size_bytes,
            appended_ms=old.appended_ms,
            indexes=old.indexes,
            stats=old.stats,
        )
        sealed.before = old
        self.sealed = (*self.sealed, sealed)
        self.extents = self.extents.with_last(Extent.whole(sealed))
        return old

    def create_active(self, base_offset: int, now_ms: int) -> None:
        """Create an empty active segment at ``base_offset``. The caller has sealed or deleted the previous one."""
        self.remove_files(base_offset)  # a crash, or another program, may have left files of that name
        self.active = ActiveSegment(
            self._files,
            self.directory,
            FoundSegment(base_offset, base_offset, 0),
            config=self.config,
            created_ms=now_ms,
            jitter_ms=self._jitter_ms(),
            made=True,
        )

    def keep_from(self, count: int) -> None:
        """Remove the first ``count`` sealed segments from the list. The caller deletes their files."""
        self._keep(self.sealed[count:])

    def keep_first(self, count: int) -> None:
        """Remove all but the first ``count`` sealed segments from the list. The caller deletes their files."""
        self._keep(self.sealed[:count])

    def resume(self, found: FoundSegment, now_ms: int) -> None:
        """Make ``found`` the active segment: the last segment that a truncation left."""
        self.active = self._resumed(found, now_ms)

    def _resumed(self, tail: FoundSegment, now_ms: int, *, starts_inside: bool = False) -> ActiveSegment:
        """Return ``tail`` as the active segment. Its ``.log`` may not exist yet.

        ``starts_inside``: the log start is above the base offset of the first segment.
        """
        path = self.directory / log_name(tail.base_offset)
        stats = read_note(self._files, path.with_suffix(SEAL_SUFFIX), tail.size_bytes) if tail.size_bytes else None
        modified_ms = min(self._modified_ms(tail.base_offset, now_ms), now_ms)
        if tail.size_bytes:
            # Unknown after a crash: no later than the last append, no earlier than the timestamps of its records.
            tail.first_append_ms = stats.first_append_ms if stats else min(max(tail.first_timestamp, 0), modified_ms)
        active = ActiveSegment(
            self._files,
            self.directory,
            tail,
            config=self.config,
            created_ms=modified_ms,
            jitter_ms=self._jitter_ms(),
            stats=stats,
        )
        self._verify_txn_index(active, tail, stats, starts_inside=starts_inside)
        if stats is not None and stats.appended_ms >= 0:
            active.appended_ms = stats.appended_ms
        active.leader_epoch = self._epochs.latest
        return active

    def _verify_txn_index(
        self, active: ActiveSegment, tail: FoundSegment, stats: SegmentStats | None, *, starts_inside: bool
    ) -> None:
        """Repair the transaction index of ``active`` from the ``.seal`` note, known entries, or the log.

        ``tail``: the segment as loaded. ``stats``: its ``.seal`` note, None without one. ``starts_inside``: the log
        start is above the base offset of the first segment. If the entries are lost, the error is logged, and later
        reads of them raise it.
        """
        path = self.directory / txn_index_name(tail.base_offset)
        noted = stats is not None and stats.aborted >= 0
        known = None if noted else tail.aborted
        if not tail.size_bytes:
            known = []
        try:
            if not noted and known is None and not self._may_have_aborts(tail, path):
                known = []
            if known is None:
                place = SegmentPlace(self.tp, self.directory, active.path, tail.base_offset, tail.end_offset)
                active.adopt_aborted(SideFiles(self._files, place, stats).repair_txn_index(whole=starts_inside))
            else:
                active.adopt_aborted(store_txn_index(self._files, path, encode_txns(known)))
        except CorruptionError as error:
            active.adopt_aborted(error)
            LOGGER.error("txn_index_lost path=%s error=%s hint=reads of read_committed will say so", path, error)

    def _may_have_aborts(self, tail: FoundSegment, path: Path) -> bool:
        """Return True if the segment may have ABORT markers. Read its log, unless files show that it has none."""
        state = self._files.state(path)
        if state is not None and state.size:
            return True
        plain = self._files.state(self.directory / PLAIN_NAME) is not None
        if plain and not may_have_producers(self._files, self.directory):
            return False
        with LogFile(self._files, self.directory / log_name(tail.base_offset)) as log:
            return any(True for _ in abort_markers(log, tail.size_bytes))

    def _adopt(self, found: FoundSegment) -> SealedLocalSegment:
        """Return the object of a sealed segment that was loaded from the disk."""
        sealed = SealedLocalSegment(
            self._files,
            self._owner,
            found.base_offset,
            found.end_offset,
            size_bytes=found.size_bytes,
            appended_ms=self._modified_ms(found.base_offset, 0),
            indexes=found.indexes,
        )
        sealed.dense = not self.sparse
        sealed.reach = found.end_offset if found.damaged else -1
        return sealed

    def _jitter_ms(self) -> int:
        return int(self._ids.random() * min(self.config.segment_jitter_ms, self.config.segment_ms))

    def _modified_ms(self, base_offset: int, default: int) -> int:
        state = self._files.state(self.directory / log_name(base_offset))
        return default if state is None else state.modified_ns // 1_000_000

    def remove_files(self, base_offset: int) -> None:
        """Unlink the files of the empty segment at ``base_offset``."""
        log = self.directory / log_name(base_offset)
        self._files.unlink(*map(log.with_suffix, SEGMENT_SUFFIXES))

    def exchange(self, present: Sequence[SealedLocalSegment], new: Sequence[FoundSegment]) -> None:
        """Replace the neighbouring segments ``present`` by ``new`` in the list. The caller has renamed the files."""
        at = self.sealed.index(present[0])
        fresh = tuple(self._adopt(found) for found in new)
        self._keep((*self.sealed[:at], *fresh, *self.sealed[at + len(present) :]))

    def close_closing(self) -> None:
        """Close the files of sealed segments that are not fsynced yet. The segments stay in ``closing``."""
        for segment in self.closing:
            segment.close()

    def note_opened(self) -> None:
        """Store the present segments and end, for :meth:`as_opened`. Call it after a clean open."""
        self._opened = (self.active, self.sealed, self.end)

    def as_opened(self) -> bool:
        """Return True if nothing has changed since a clean open, so that the files need no more work at the close."""
        active, base = self.active, self.active.base_offset
        if self._opened is None or self.closing:
            return False
        before, sealed, end = self._opened
        if before is not active or sealed is not self.sealed or end != self.end:
            return False
        active.indexes.append_last_time(active.max_timestamp, active.max_timestamp_offset)
        sizes = {
            log_name(base): active.size_bytes,
            index_name(base): len(active.indexes.offset_bytes()),
            time_index_name(base): len(active.indexes.time_bytes()),
        }
        states = {name: self._files.state(self.directory / name) for name in sizes}
        return all(state is not None and state.size == sizes[name] for name, state in states.items())
