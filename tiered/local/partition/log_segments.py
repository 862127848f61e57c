"""The segments of one partition: the only place that keeps the list of them, and where it begins and ends.

Segments are sealed, ascending, or active: the last one, which is appended to. Components of the partition read the list
as they like and change it only here. Segment objects are made here from loaded files: new, resumed after a stop,
adopted, sealed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from tiered.clock import IdSource
from tiered.config import TopicConfig
from tiered.errors import CorruptionError
from tiered.format.local_names import index_name, log_name, time_index_name, txn_index_name
from tiered.format.segment_builder import SegmentStats
from tiered.format.segment_indexes import encode_txns
from tiered.local.disk.files import Files
from tiered.local.disk.partition_files import PLAIN_NAME, SPARSE_NAME, LeaderEpochs, tells_of_producers
from tiered.local.segment.active import ActiveSegment, FoundSegment
from tiered.local.segment.read_view import Extent, SealedExtents
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import SEGMENT_SUFFIXES, OwningLog, SealedLocalSegment
from tiered.local.segment.side_files import (
    SEAL_SUFFIX,
    SegmentPlace,
    abort_markers,
    read_note,
    store_txn_index,
    verify_txn_index,
)
from tiered.model import TopicPartition
from tiered.plan.roll import jitter_ms

LOGGER = logging.getLogger("tiered.local")


class LogSegments:
    """Segments of one partition. Changed under its lock. A single attribute may be read without the lock.

    ``sealed`` and ``active``: the segments; ``extents``: the sealed ones for views. ``closing``: the ActiveSegment
    objects of sealed segments that are not fsynced yet. ``end``: the next offset to be assigned. ``log_start``: the
    first offset that may be read. ``new_names``: files were created since the directory was last fsynced. ``config``:
    the topic's present settings. ``cuts``: how often the end was cut off; after a cut a file may hold other bytes.
    """

    __slots__ = (
        "_factory",
        "_files",
        "_opened",
        "active",
        "closing",
        "config",
        "cuts",
        "directory",
        "end",
        "extents",
        "log_start",
        "new_names",
        "sealed",
        "sparse",
        "tp",
    )

    def __init__(
        self,
        files: Files,
        factory: SegmentFactory,
        loaded: list[FoundSegment],
        *,
        start_offset: int | None,
        now_ms: int,
    ) -> None:
        self.tp = factory.tp
        self.directory = factory.directory
        self.config = factory.config
        self._files = files
        self._factory = factory
        self.sparse = files.state(self.directory / SPARSE_NAME) is not None
        self._factory.dense = not self.sparse
        *sealed, tail = loaded
        self._keep(tuple(self._factory.adopt(segment) for segment in sealed))
        self._factory.starts_inside = start_offset is not None and start_offset > loaded[0].base_offset
        self.active: ActiveSegment = self._factory.resume(tail, now_ms)
        self._factory.starts_inside = False
        self.closing: list[ActiveSegment] = []
        self.end = tail.end_offset
        self.log_start = loaded[0].base_offset if start_offset is None else start_offset
        self.new_names = True
        self.cuts = 0
        self._opened: tuple[ActiveSegment, tuple[SealedLocalSegment, ...], int] | None = None

    def _keep(self, sealed: tuple[SealedLocalSegment, ...]) -> None:
        """Set the list of sealed segments. Existing views keep the old list."""
        self.sealed: tuple[SealedLocalSegment, ...] = sealed
        self.extents = SealedExtents(map(Extent.whole, sealed))

    @property
    def first_base(self) -> int:
        """Return the base of the first segment on this disk."""
        sealed, active = self.sealed, self.active
        return sealed[0].base_offset if sealed else active.base_offset

    @property
    def local_start(self) -> int:
        """Return the first offset on this disk that may be read."""
        sealed = self.sealed
        return max((sealed[0] if sealed else self.active).base_offset, self.log_start)

    @property
    def all(self) -> tuple[SealedLocalSegment | ActiveSegment, ...]:
        """Return all segments, ascending, the active one last."""
        return (*self.sealed, self.active)

    @property
    def empty(self) -> bool:
        """Return True if no segment holds a batch."""
        return not (self.sealed or self.active.size_bytes)

    def configure(self, config: TopicConfig) -> None:
        """Apply changed settings. Settings of index files apply from the next segment on."""
        self.config = self._factory.config = config
        self.active.configure(config)

    @property
    def dense(self) -> bool:
        """Return True if every offset has a record, so that a missing offset is damage."""
        return not (self.config.compacted or self.sparse)

    def mark_sparse(self) -> None:
        """Mark the log, durably, as one in which offsets may be missing.

        Call it before a follower's append, a cut inside a batch or a cleaner leaves out the first offset.
        """
        if not self.sparse:
            self._files.replace(self.directory / SPARSE_NAME, b"")
            self.sparse = True
            self._factory.dense = False

    def seal_active(self, base_offset: int, now_ms: int) -> ActiveSegment:
        """Seal the active segment. Create a new one at ``base_offset``, at or above the end. Return the old one."""
        if base_offset > self.end:
            self.mark_sparse()
        old = self.active
        old.seal()
        self.active = self._factory.create(base_offset, now_ms)
        self.closing.append(old)
        self.new_names = True
        sealed = self._factory.sealed(old, base_offset)
        self.sealed = (*self.sealed, sealed)
        self.extents = self.extents.with_last(Extent.whole(sealed))
        self.end = base_offset
        return old

    def replace_empty(self, base_offset: int, now_ms: int) -> bool:
        """Replace an empty active segment by one at ``base_offset``. Return True if the log start moved."""
        if base_offset > self.end and self.sealed:
            self.mark_sparse()
            self.sealed[-1].end_offset = base_offset  # as after a reopen: else what follows the gap is never reached
            self._keep(self.sealed)
        old = self.active
        old.close()
        self._factory.remove(old.base_offset)
        self.active = self._factory.create(base_offset, now_ms)
        self.new_names = True
        self.end = base_offset
        moves = not self.sealed and self.log_start >= old.base_offset  # below that a bucket holds records
        if moves:
            self.log_start = max(self.log_start, base_offset)
        return moves

    def drop_first(self, count: int) -> None:
        """Remove the first ``count`` sealed segments from the list. The caller deletes their files."""
        self._keep(self.sealed[count:])

    def keep_first(self, count: int) -> None:
        """Remove all but the first ``count`` sealed segments from the list. The caller deletes their files."""
        self.cuts += 1
        self._keep(self.sealed[:count])

    def resume(self, found: FoundSegment, now_ms: int) -> None:
        """Make ``found``, the last segment after a cut, the active segment."""
        self.active = self._factory.resume(found, now_ms)

    def start_again(self, base_offset: int, now_ms: int) -> None:
        """Create an empty active segment. The files of the one before are deleted already."""
        self.active = self._factory.create(base_offset, now_ms)

    def remove_files(self, base_offset: int) -> None:
        """Unlink the files of an empty segment."""
        self._factory.remove(base_offset)

    def exchange(self, present: Sequence[SealedLocalSegment], new: Sequence[FoundSegment]) -> None:
        """Replace the neighbours ``present`` by ``new`` in the list. The files are renamed already."""
        at = self.sealed.index(present[0])
        fresh = tuple(self._factory.adopt(found) for found in new)
        self._keep((*self.sealed[:at], *fresh, *self.sealed[at + len(present) :]))

    def close_closing(self) -> None:
        """Close the files of segments that were sealed and not fsynced yet; they stay in the list."""
        for segment in self.closing:
            segment.close()

    def note_opened(self) -> None:
        """Remember the state after a clean open, for :meth:`as_opened`."""
        self._opened = (self.active, self.sealed, self.end)

    def as_opened(self) -> bool:
        """Return True if nothing changed since a clean open, and the files are as a clean close leaves them."""
        active, base = self.active, self.active.base_offset
        if self._opened is None or self.closing:
            return False
        before, sealed, end = self._opened
        if before is not active or sealed is not self.sealed or end != self.end:
            return False
        active.indexes.close_times(active.max_timestamp, active.max_timestamp_offset)
        sizes = {
            log_name(base): active.size_bytes,
            index_name(base): len(active.indexes.offset_bytes()),
            time_index_name(base): len(active.indexes.time_bytes()),
        }
        states = {name: self._files.state(self.directory / name) for name in sizes}
        return all(state is not None and state.size == sizes[name] for name, state in states.items())


class SegmentFactory:
    """Maker of segments. ``config`` is that of the topic now; ``dense``: the log left out no offset so far."""

    __slots__ = ("_epochs", "_files", "_ids", "_topic_id", "config", "dense", "directory", "starts_inside", "tp")

    def __init__(
        self,
        files: Files,
        ids: IdSource,
        directory: Path,
        tp: TopicPartition,
        *,
        topic_id: UUID,
        epochs: LeaderEpochs,
        config: TopicConfig,
    ) -> None:
        self.tp = tp
        self.directory = directory
        self.config = config
        self.dense = False
        self.starts_inside = False  # the log start lies above the base of the first segment
        self._files = files
        self._ids = ids
        self._topic_id = topic_id
        self._epochs = epochs

    def create(self, base_offset: int, now_ms: int) -> ActiveSegment:
        """Return a new, empty active segment."""
        self.remove(base_offset)  # a crash, or another program, may have left files of that name
        active = ActiveSegment(
            self._files,
            self.directory,
            FoundSegment(base_offset, base_offset, 0),
            config=self.config,
            created_ms=now_ms,
            jitter_ms=self._jitter_ms(),
            made=True,
        )
        if self.config.preallocate:
            active.preallocate()
        return active

    def remove(self, base_offset: int) -> None:
        """Unlink the files of an empty segment."""
        log = self.directory / log_name(base_offset)
        self._files.unlink(*map(log.with_suffix, SEGMENT_SUFFIXES))

    def resume(self, tail: FoundSegment, now_ms: int) -> ActiveSegment:
        """Return the active segment of a log that was open before, or of one that has no file yet."""
        path = self.directory / log_name(tail.base_offset)
        stats = read_note(self._files, path.with_suffix(SEAL_SUFFIX), tail.size_bytes) if tail.size_bytes else None
        modified_ms = min(self._modified_ms(tail.base_offset, now_ms), now_ms)
        is_new = self._files.state(path) is None
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
        self._verify_txn_index(active, tail, stats)
        if stats is not None and stats.appended_ms >= 0:
            active.appended_ms = stats.appended_ms
        active.leader_epoch = self._epochs.latest
        if is_new and self.config.preallocate:
            active.preallocate()
        return active

    def _verify_txn_index(self, active: ActiveSegment, tail: FoundSegment, stats: SegmentStats | None) -> None:
        """Check the transaction index against the note of the close, known entries, or the log."""
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
                active.adopt_aborted(verify_txn_index(self._files, place, stats, whole=self.starts_inside))
            else:
                active.adopt_aborted(store_txn_index(self._files, path, encode_txns(known)))
        except CorruptionError as error:
            active.adopt_aborted(error)
            LOGGER.error("txn_index_lost path=%s error=%s hint=reads of read_committed will say so", path, error)

    def _may_have_aborts(self, tail: FoundSegment, path: Path) -> bool:
        """Return True if the segment must be searched; a log without producers is not read."""
        state = self._files.state(path)
        if state is not None and state.size:
            return True
        plain = self._files.state(self.directory / PLAIN_NAME) is not None
        if plain and not tells_of_producers(self._files, self.directory):
            return False
        with LogFile(self._files, self.directory / log_name(tail.base_offset)) as log:
            return any(True for _ in abort_markers(log, tail.size_bytes))

    def adopt(self, found: FoundSegment) -> SealedLocalSegment:
        """Return a sealed segment that was on disk before."""
        modified_ms = self._modified_ms(found.base_offset, 0)
        sealed = SealedLocalSegment(
            self._files,
            self._log(),
            found.base_offset,
            found.end_offset,
            size_bytes=found.size_bytes,
            appended_ms=modified_ms,
            indexes=found.indexes,
        )
        sealed.dense = self.dense
        sealed.reach = found.end_offset if found.damaged else -1
        return sealed

    def sealed(self, active: ActiveSegment, end_offset: int) -> SealedLocalSegment:
        """Return the sealed segment for the active one."""
        sealed = SealedLocalSegment(
            self._files,
            self._log(),
            active.base_offset,
            end_offset,
            size_bytes=active.size_bytes,
            appended_ms=active.appended_ms,
            indexes=active.indexes,
            stats=active.stats,
        )
        sealed.before = active
        return sealed

    def _jitter_ms(self) -> int:
        return jitter_ms(self.config.segment_jitter_ms, self.config.segment_ms, self._ids.random())

    def _modified_ms(self, base_offset: int, default: int) -> int:
        state = self._files.state(self.directory / log_name(base_offset))
        return default if state is None else state.modified_ns // 1_000_000

    def _log(self) -> OwningLog:
        return OwningLog(self.directory, self.tp, self._topic_id, self.config.index_interval_bytes, self._epochs.below)
