"""Maker of the segment objects of one partition (new, resumed after a stop, adopted, sealed) from loaded files."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tiered.clock import IdSource
from tiered.config import TopicConfig
from tiered.errors import CorruptionError
from tiered.format.local_names import log_name, txn_index_name
from tiered.format.segment_builder import SegmentStats
from tiered.format.segment_indexes import encode_txns
from tiered.local.disk.epochs import LeaderEpochs
from tiered.local.disk.files import Files
from tiered.local.disk.names import PLAIN_NAME, tells_of_producers
from tiered.local.segment.active import ActiveSegment
from tiered.local.segment.indexes import SegmentIndexes
from tiered.local.segment.scan import LogFile
from tiered.local.segment.seal import SEAL_SUFFIX, read_note
from tiered.local.segment.sealed import SEGMENT_SUFFIXES, OwningLog, SealedLocalSegment
from tiered.local.segment.side_files import SegmentPlace, abort_markers, store_txn_index, verify_txn_index
from tiered.model import AbortedTxn, TopicPartition
from tiered.plan.roll import jitter_ms

LOGGER = logging.getLogger("tiered.local")


@dataclass(slots=True)
class FoundSegment:
    """One ``.log`` after loading. ``end_offset`` exclusive; ``indexes`` None: load when needed.

    ``records_end``: where the last batch ends, -1 if unknown or there is none. ``largest``: the largest timestamp and
    the last offset of its batch; None: the last entry of the time index. ``aborted``: the transactions whose ABORT
    markers it holds; None: read its note, or the log. ``first_append_ms``: -1 for an empty one.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    indexes: SegmentIndexes | None = None
    first_timestamp: int = -1
    damaged: bool = False
    largest: tuple[int, int] | None = None
    records_end: int = -1
    aborted: list[AbortedTxn] | None = None
    first_append_ms: int = -1


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
