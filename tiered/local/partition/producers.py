"""Producer state of one partition: created for the first producer, stored in snapshots, rebuilt from them and the log.

A log without producers has no state. Its snapshots, which Kafka writes at each roll, at the close and at the end of a
load, are empty. The file ``tiered-plain`` marks such a log, and a recovery need not read it for producers. Before the
first producer's batch that file is deleted, durably, and an empty snapshot is left at the end of the log. From there on
a recovery reads the batches. The empty snapshot is deleted when a real one exists.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence

from tiered.errors import CorruptionError, NotFoundError, TieredError
from tiered.format.batch_scanner import NO_LIMIT, Offsets
from tiered.format.local_names import snapshot_name
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from tiered.local.disk.partition_files import PLAIN_NAME, lacks_producer_files, may_have_producers, snapshot_offsets
from tiered.local.partition.context import PartitionContext
from tiered.local.segment.active import ActiveSegment
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.local.segment.side_files import UNKNOWN_SNAPSHOT, SnapshotFacts
from tiered.plan.producer import Origin, ProducerBatch, read_producer
from tiered.plan.producer_state import (
    Duplicate,
    ProducerSnapshot,
    ProducerState,
    loadable,
    out_of_range,
    points_of_rebuild,
    stray,
)
from tiered.plan.side_files import NO_PRODUCERS
from tiered.plan.visibility import CompletedTxn, OpenTxn

LOGGER = logging.getLogger("tiered.local")


class PartitionProducers:
    """Producer state of one partition, and its files. The caller holds the partition's lock.

    ``state`` None: no producer ever wrote. ``unsure``: the damage that left the state incomplete, None without damage.
    """

    __slots__ = ("_birth", "_context", "_directory", "_marked", "_on_disk", "_plain_end", "state", "unsure")

    def __init__(self, context: PartitionContext) -> None:
        self.state: ProducerState | None = None
        self.unsure: CorruptionError | None = None  # the damage that kept the state from being what was written
        self._context = context
        self._directory = context.segments.directory
        self._on_disk = False  # a snapshot shows a recovery that there are producers
        self._birth: int | None = None
        self._plain_end = 0  # the newest empty snapshot of a log without producers, or the start of the log
        self._marked = self._context.files.state(self._directory / PLAIN_NAME) is not None

    def load(self, *, met: bool) -> None:
        """Load the producer state at the end of the log, after an open. Without producers there is no state.

        ``met`` True: the recovery has read a producer's batch. False: the files show whether there are producers.
        """
        segments = self._context.segments
        stats = segments.active.stats
        rolled = bool(segments.sealed) or (stats is not None and stats.producers > 0)
        unknown = rolled and lacks_producer_files(
            self._context.files, self._directory
        )  # a roll, and a close, leave a snapshot
        self.rebuild(some=met or unknown or may_have_producers(self._context.files, self._directory))
        if unknown and self.state is not None and not len(self.state) and segments.first_base == 0:
            self.forget(0)  # all of it was read: it has no producer
            self.rebuild(some=False)

    def rebuild(self, *, some: bool) -> None:
        """Rebuild the state at the end of the log from snapshots and batches.

        ``some`` False: the log has no producers, and no batch is read.
        """
        segments = self._context.segments
        if not some:
            self._load_plain([segment.base_offset for segment in segments.all])
            return
        start = segments.log_start
        tiered = self._context.upload is not None
        floor = min(start, segments.first_base - 1) if tiered else start
        self._replay_all(segments.all, floor=floor, whole=not tiered or segments.first_base == 0)

    def prepare(self, batches: Sequence[ProducerBatch], origin: Origin) -> Duplicate | None:
        """Check the sequences, epochs and transactions of ``batches``.

        Return a Duplicate if a client's batches were all appended before. ``origin``: a client or a coordinator. Before
        the first producer's batch ``tiered-plain`` is deleted, so that a recovery reads the log for producers. Raises
        as :meth:`ProducerState.prepare`.
        """
        if not batches:
            return None
        state = self._fresh() if self.state is None else self.state
        duplicate = state.prepare(batches, origin)
        if duplicate is None:
            if not self._on_disk:
                self._mark_begun(self._context.segments.end)
            self.state = state
        return duplicate

    def _fresh(self) -> ProducerState:
        """Return the state of a log without producers."""
        start = self._context.segments.log_start
        state = ProducerState(start)
        state.load(ProducerSnapshot(self._context.segments.end), log_start=start, now_ms=0)
        return state

    def _mark_begun(self, end: int) -> None:
        """Mark that producers write from ``end`` on, durably, before the first of their batches."""
        lasting = {end} if self._context.files.state(self._directory / snapshot_name(end)) is not None else set()
        if self._context.upload is not None:
            # Where a segment begins it says that what came before is none of that segment's: it stays.
            lasting.add(self._context.segments.active.base_offset)
        self._unmark()
        for offset in sorted({*lasting, end}):
            self._context.files.replace(self._directory / snapshot_name(offset), NO_PRODUCERS)
        self._on_disk, self._birth = True, None if end in lasting else end

    def _unmark(self) -> None:
        if self._marked:
            self._context.files.unlink(self._directory / PLAIN_NAME)
            self._context.files.sync_directory(self._directory)
            self._marked = False

    def complete_append(self, completed: Iterable[CompletedTxn]) -> None:
        """Advance the state to the end of the log. ``completed``: the transactions that the append ended."""
        if self.state is not None:
            self.state.complete_append(completed, self._context.segments.end)

    def stable_offset(self) -> int | None:
        """Return the last stable offset: the first offset of the oldest open transaction, or the end.

        None without producers. Raises CorruptionError if damage hides which transactions are open.
        """
        if self.unsure is not None:
            raise self.unsure
        return None if self.state is None else self.state.last_stable_offset(self._context.segments.end)

    def entries(self) -> tuple[ProducerEntry, ...]:
        """Return the state of each producer, in the order of their ids."""
        return () if self.state is None else self.state.entries()

    def open_txns(self) -> list[OpenTxn]:
        """Return the open transactions, ordered by first offset."""
        return [] if self.state is None else self.state.describe_open_txns()

    def write_snapshot(self, end: int) -> SnapshotFacts:
        """Write a snapshot at ``end``, unless the newest one is equal. Return the facts about the newest snapshot.

        Return UNKNOWN_SNAPSHOT after a failed write: the next recovery takes longer. If damage left the state
        incomplete, write nothing and return the same: a snapshot would hide the damage.
        """
        if self.unsure is not None:
            return UNKNOWN_SNAPSHOT
        state = self.state
        if state is None:
            self._note_empty(end)
            return SnapshotFacts.decode(NO_PRODUCERS, 0)
        state.advance(end)
        pending = state.pending_snapshot()
        data = encode_snapshot(state.entries() if pending is None else pending.entries)
        if pending is None or self._write(state, pending, data):
            return SnapshotFacts.decode(data, len(state))
        return UNKNOWN_SNAPSHOT

    def _write(self, state: ProducerState, pending: ProducerSnapshot, data: bytes) -> bool:
        """Write the encoded snapshot ``data``. Return False, after a warning, if the write failed."""
        path = self._directory / snapshot_name(pending.offset)
        try:
            self._context.files.replace(path, data)
            state.snapshot_taken(pending.offset)
            self._on_disk = self._on_disk or bool(pending.entries)
            if self._birth not in (None, pending.offset):
                self._context.files.unlink(self._directory / snapshot_name(self._birth or 0))
            self._birth = None
        except TieredError as error:
            LOGGER.warning("snapshot_failed path=%s error=%s", path, error)
            return False
        return True

    def _note_empty(self, end: int) -> None:
        """Write an empty snapshot at ``end``: no producer wrote below it. Not fsynced: the log shows the same."""
        if end <= self._plain_end:
            return
        try:
            if not self._marked:
                self._context.files.patch(self._directory / PLAIN_NAME, b"", 0, sync=False)
                self._marked = True
            self._context.files.patch(self._directory / snapshot_name(end), NO_PRODUCERS, 0, sync=False)
            self._plain_end = end
        except TieredError as error:
            LOGGER.warning("snapshot_failed directory=%s offset=%d error=%s", self._directory, end, error)

    def raise_log_start(self) -> None:
        """Remove the state of records below the log start. Snapshot files are deleted with their segments."""
        start = self._context.segments.log_start
        self._plain_end = max(self._plain_end, start)
        if self.state is not None:
            self.state.raise_log_start(start)

    def expire(self, now_ms: int) -> list[int]:
        """Remove producers that were idle for a day and have no open transaction. Return their ids."""
        return [] if self.state is None else self.state.expire(now_ms)

    def forget(self, end: int) -> None:
        """Discard the state, because the log has no producers. The caller has removed the snapshots above ``end``."""
        self.state, self._on_disk, self._birth, self._plain_end = None, False, None, end
        self.unsure = None

    def _load_plain(self, bases: Sequence[int]) -> None:
        """Delete stray snapshots of a log without producers, and write an empty one at its end.

        ``bases``: base offsets of its segments. Called after an open and after a truncation.
        """
        log_start, end = self._context.segments.log_start, self._context.segments.end
        offsets = snapshot_offsets(self._context.files, self._directory)
        gone = set(out_of_range(offsets, log_start, end))
        gone.update(stray(set(offsets) - gone, bases))
        for offset in set(offsets) - gone:  # they are not fsynced: a power cut may have torn them
            if self._context.files.read(self._directory / snapshot_name(offset)) != NO_PRODUCERS:
                gone.add(offset)
        for offset in sorted(gone):
            self._context.files.unlink(self._directory / snapshot_name(offset))
        left = set(offsets) - gone
        self._plain_end = max(left, default=log_start)
        for point in (end,) if left else points_of_rebuild(bases, end):
            self._note_empty(point)

    def _replay_all(self, segments: Sequence[SealedLocalSegment | ActiveSegment], *, floor: int, whole: bool) -> None:
        """Load the newest readable snapshot above offset ``floor`` and replay the batches after it.

        ``whole``: no producer state can exist outside the local segments and snapshots. If False and no snapshot was
        loaded, only the snapshot at the end of the log is written. An earlier one would claim that the bucket has no
        open transactions there.
        """
        log_start, end = self._context.segments.log_start, self._context.segments.end
        if self._birth is not None and end <= self._birth:
            self._context.files.unlink(self._directory / snapshot_name(self._birth))
            self.forget(0)
            self._load_plain([segment.base_offset for segment in segments])
            return
        self._unmark()
        bases = [segment.base_offset for segment in segments]
        offsets = snapshot_offsets(self._context.files, self._directory)
        gone = set(out_of_range(offsets, floor, end))
        gone.update(stray(set(offsets) - gone, bases))
        for offset in sorted(gone):
            self._context.files.unlink(self._directory / snapshot_name(offset))
        state = self.state = ProducerState(log_start)
        found = self._newest(loadable(set(offsets) - gone, floor, end))
        state.load(found, log_start=log_start, now_ms=self._context.clock.now_ms())
        self.unsure = None
        self._on_disk = found is not None
        if found is None or found.offset != self._birth:
            self._birth = None
        points = points_of_rebuild(bases, end)
        known = whole or found is not None
        for segment, following in itertools.zip_longest(segments, segments[1:]):
            if known and segment.base_offset in points and segment.base_offset >= state.map_end_offset:
                self.write_snapshot(segment.base_offset)
            self._replay(state, segment, following)
        self.write_snapshot(end)
        if found is not None and found.offset not in bases:  # stray now that there is one at the end
            for offset in stray(snapshot_offsets(self._context.files, self._directory), bases):
                self._context.files.unlink(self._directory / snapshot_name(offset))

    def _newest(self, offsets: Iterable[int]) -> ProducerSnapshot | None:
        for offset in offsets:
            path = self._directory / snapshot_name(offset)
            try:
                return ProducerSnapshot(offset, tuple(decode_snapshot(self._context.files.read(path))))
            except NotFoundError:
                continue
            except CorruptionError as error:
                LOGGER.warning("snapshot_deleted path=%s error=%s", path, error)
                self._context.files.unlink(path)
        return None

    def _replay(
        self,
        state: ProducerState,
        segment: SealedLocalSegment | ActiveSegment,
        following: SealedLocalSegment | ActiveSegment | None,
    ) -> None:
        """Apply the batches of a segment to the state. Of a damaged segment only the readable part counts.

        ``following``: the next segment, None for the last one.
        """
        start = state.map_end_offset
        try:
            if not segment.size_bytes and segment.reach < 0:
                return
            with LogFile(self._context.files, segment.path) as log:
                offsets = Offsets(segment.base_offset, NO_LIMIT if following is None else following.base_offset)
                position = 0
                if start > segment.base_offset:
                    position = segment.lookup.seek(log, start, segment.size_bytes, offsets)
                for span, view in log.segment(position, segment.size_bytes, offsets, reach=segment.reach):
                    if span.last_offset < start:
                        continue
                    header = log.verify(span, view)
                    batch = read_producer(header, view)
                    if batch is None:
                        state.advance(header.next_offset)
                    else:
                        state.replay(batch)
        except CorruptionError as error:
            self.unsure = self.unsure or error
            LOGGER.warning("producers_not_replayed path=%s error=%s", segment.path, error)
