"""Bring one partition directory to a state that can be appended to, after any kind of stop.

Losses for damage that begins at offset X, with the recovery point R (all below was fsynced):

* X >= R: X was never acknowledged as safe. The torn bytes are *copied* to ``{base}.log.torn-{ms}`` and the file is cut;
  later segments, which were not promised either, are renamed to ``.torn-{ms}`` whole.
* Nothing but zeros from X on, X >= R: the end of a file that a broker preallocated, or what a file system left of a
  write. They are cut; later segments stay if they begin where this one ends.
* A sealed segment ends at X >= R, below the next one (``dense`` logs only): a power cut took its end, and the same is
  done with the later segments. Where offsets may be left out this cannot be detected.
* X < R: acknowledged bytes have rotted. Nothing is cut or moved: the segment stays as it is, reads of the range raise
  CorruptionError, offsets below R are never given out again. After a clean shutdown all that was written counts as
  below R.
* R is lost (its file is gone or damaged): all but the last segment count as below R, and so does all of the last one in
  front of a whole batch. Only its end may be torn.
* A sealed segment that is shorter than its note and its indexes say has lost its end there.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

from tiered.errors import CorruptionError
from tiered.format.batch_scanner import NO_LIMIT, Offsets
from tiered.format.local_names import INDEX_SUFFIXES, log_name
from tiered.local.disk.files import Files
from tiered.local.disk.partition_files import LeaderEpochs, may_have_producers, remove_snapshots_above, snapshot_offsets
from tiered.local.recovery.segment_recovery import (
    BatchOrder,
    Rebuilding,
    has_entries,
    known_prefix,
    rebuild_txn_index,
    salvage,
)
from tiered.local.segment.active import FoundSegment
from tiered.local.segment.indexes import (
    SegmentIndexes,
    cut_txn_index,
    is_stored,
    load_indexes,
    lost_end,
    store_indexes,
)
from tiered.local.segment.replacement import finish_replacements
from tiered.local.segment.scan import LogFile
from tiered.local.segment.side_files import SEAL_SUFFIX, SegmentPlace
from tiered.model import TopicPartition
from tiered.plan.roll import MAX_RELATIVE_OFFSET

LOGGER = logging.getLogger("tiered.local")

READ_BYTES = 512 * 1024
"""Size of the pieces in which segments are read: smaller ones cost a call each, larger ones leave the cache."""

COPY_BYTES = 1024 * 1024
ZEROS = bytes(COPY_BYTES)
NOTHING = -1
"""Offset below all others, to remove every snapshot of a log that starts again."""

UNKNOWN_POINT = -1
"""Recovery point of a partition that the checkpoint file does not name, such as a new one."""

LOST_POINT = -2
"""Recovery point of all partitions if the checkpoint file is missing or damaged."""


class Recovery:
    """Loader of one partition directory for writing. It recovers the directory if necessary.

    ``interval_bytes``: ``index.interval.bytes``. ``now_ms``: wall clock, only for the names of torn copies. ``dense``:
    True if every offset has a record, so that a gap between two segments is a loss. ``keeps_point``: True if each
    truncation lowered the recovery point first, which a broker does not do. A log that ends below the point has then
    lost records.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        tp: TopicPartition,
        *,
        epochs: LeaderEpochs,
        interval_bytes: int,
        now_ms: int,
        dense: bool = False,
        keeps_point: bool = True,
    ) -> None:
        self._files = files
        self._directory = directory
        self._tp = tp
        self._epochs = epochs
        self._learns_epochs = not epochs.entries  # then the epochs come from every batch of every recovered segment
        self._interval = interval_bytes
        self._now_ms = now_ms
        self._dense = dense
        self._keeps_point = keeps_point
        self._clean = self._lost = False
        self._transactional: set[int] = set()
        self.met_producers = False

    def load(self, *, clean: bool, recovery_point: int, start_offset: int) -> list[FoundSegment]:
        """Recover the partition and return its segments. The last one becomes the active segment.

        An empty partition gets a segment at ``start_offset``, whose file does not exist yet. So does a log that ends
        below ``start_offset``; its segments are renamed aside. ``clean``: True if the last shutdown was clean.
        ``recovery_point``: records below it are durable. UNKNOWN_POINT and LOST_POINT are allowed, too.
        """
        self._clean, self._lost = clean, recovery_point == LOST_POINT
        segments = [self._found(base) for base in finish_replacements(self._files, self._directory)]
        for segment, following in itertools.pairwise(segments):
            segment.end_offset = following.base_offset
        if segments:
            first = len(segments) - 1
            whole = clean and self._load_tail(segments[-1], recovery_point)
            if recovery_point < 0:  # unknown: all but the last segment count as promised
                first, recovery_point = 0, segments[-1].base_offset
            if not clean:
                while first > 0 and segments[first].base_offset > recovery_point:
                    first -= 1
            if not whole:
                segments = self._recover(segments, first, recovery_point)
                self._rebuild_txn_indexes(segments)
        if not segments or segments[-1].end_offset < start_offset:
            if segments:
                for segment in segments:
                    self._set_aside(segment)
                self._epochs.clear()
                remove_snapshots_above(self._files, self._directory, NOTHING)
            segments = [FoundSegment(start_offset, start_offset, 0, SegmentIndexes.empty(start_offset))]
        self._epochs.truncate_from_end(segments[-1].end_offset + 1)
        return segments

    def _forget_snapshots_above(self, end_offset: int) -> None:
        """Remove producer snapshots above ``end_offset``.

        Set ``met_producers`` if some were removed and the partition may have producers: no other file may show them.
        """
        had_producers = may_have_producers(self._files, self._directory)
        if remove_snapshots_above(self._files, self._directory, end_offset) and had_producers:
            self.met_producers = True

    def _found(self, base: int) -> FoundSegment:
        state = self._files.state(self._directory / log_name(base))
        return FoundSegment(base, base, 0 if state is None else state.size)

    def _load_tail(self, tail: FoundSegment, recovery_point: int) -> bool:
        """Find the end of the last segment after a clean shutdown, from its last index entry.

        Return True after setting the end and the indexes of ``tail``. Return False if ``tail`` must be recovered: it is
        torn or has lost its end, disagrees with the recovery point, or has a damaged batch.
        """
        order = BatchOrder(Offsets(tail.base_offset, NO_LIMIT), dense=self._dense, promised=recovery_point)
        with LogFile(self._files, self._directory / log_name(tail.base_offset)) as log:
            if lost_end(self._files, log, tail.base_offset, tail.size_bytes):
                return False
            indexes = load_indexes(self._files, log, tail.base_offset, tail.size_bytes, self._interval, repair=True)
            reached = indexes.last_position
            try:
                if tail.size_bytes:
                    tail.first_timestamp = log.header_at(0, tail.size_bytes).max_timestamp
                if reached:
                    start = log.header_at(reached, tail.size_bytes).base_offset
                    if 0 <= recovery_point <= start:  # all lies below it, since the stop was clean
                        return False
                    order.resume(start)
                for span, view in log.batches(reached, tail.size_bytes):
                    header = log.verify(span, view)
                    if not order.fits(span, header.base_offset):
                        return False
                    reached = span.position + span.size
            except CorruptionError:
                return False
        tail.indexes, tail.end_offset = indexes, order.expected
        return reached == tail.size_bytes and order.damage is None and order.expected >= recovery_point

    def _recover(self, segments: list[FoundSegment], first: int, recovery_point: int) -> list[FoundSegment]:
        kept = segments[:first]
        for i, segment in enumerate(segments[first:], start=first):
            last = i == len(segments) - 1
            limit = NO_LIMIT if last else segments[i + 1].base_offset
            damage = self._recover_one(segment, recovery_point, limit)
            if damage is not None and last and (self._clean or self._lost):
                segment.end_offset = max(segment.end_offset, self._end_behind(segment, *damage))
            kept.append(segment)
            if damage is None and last and self._keeps_point and segment.end_offset < recovery_point:
                damage = segment.size_bytes, segment.end_offset
            # The records that are missing between two segments were perhaps never acknowledged as durable.
            lacks_end = self._dense and not last and recovery_point <= segment.end_offset < segments[i + 1].base_offset
            if damage is None and not lacks_end:
                if not last:
                    segment.end_offset = segments[i + 1].base_offset
                continue
            if damage is None:
                damage = segment.size_bytes, segment.end_offset
            position, offset = damage
            resume = self._resume_at(segment, recovery_point) if last else limit
            if not self._is_promised(segment, damage, recovery_point, resume):
                zeros = self._cut(segment, position, offset, recovery_point, limit)
                if zeros and not last and segments[i + 1].base_offset == segment.end_offset:
                    continue
                self._forget_snapshots_above(segment.end_offset)
                for later in segments[i + 1 :]:
                    self._set_aside(later)
                return kept
            segment.damaged = True
            if segment.indexes is not None:
                segment.indexes.damaged = True
                segment.indexes.append_last_time(*(segment.largest or segment.indexes.last_time))  # it grows no more
            LOGGER.error(
                "segment_damaged path=%s position=%d offset=%d hint=kept as it is, reads of it raise",
                self._directory / log_name(segment.base_offset),
                position,
                offset,
            )
            segment.end_offset = resume
            if last:
                kept.append(FoundSegment(resume, resume, 0, SegmentIndexes.empty(resume)))
        return kept

    def _is_promised(self, segment: FoundSegment, damage: tuple[int, int], recovery_point: int, resume: int) -> bool:
        """Return True if the damaged bytes were durable. They are then not cut, and reads of them raise.

        ``damage``: (position, offset) at which it begins. ``resume``: first offset after the damaged segment.
        """
        position, offset = damage
        if offset < recovery_point:
            return True
        if resume <= segment.base_offset or not (self._clean or self._lost):
            return False
        if self._lost and not self._clean:
            return segment.end_offset > offset  # torn bytes are never before a whole batch
        path = self._directory / log_name(segment.base_offset)
        return position == segment.size_bytes or not self._is_zero(path, position, segment.size_bytes)

    def _end_behind(self, segment: FoundSegment, position: int, offset: int) -> int:
        """Return the end offset of the last intact batch after the damage at ``position``; -1 if there is none.

        Batches are searched at every byte, because the length of a damaged batch leads nowhere.
        """
        offsets = Offsets(offset, segment.base_offset + MAX_RELATIVE_OFFSET + 1)
        with LogFile(self._files, self._directory / log_name(segment.base_offset)) as log:
            return max(
                (span.last_offset + 1 for span in salvage(log, position + 1, segment.size_bytes, offsets)), default=-1
            )

    def _resume_at(self, tail: FoundSegment, recovery_point: int) -> int:
        """Return the offset of the next append after a damaged last segment. It is above all offsets ever assigned.

        After a clean shutdown, a producer snapshot marks the end of the log.
        """
        known = snapshot_offsets(self._files, self._directory) if self._clean else []
        return max(recovery_point, tail.end_offset, *known, 0)

    def _recover_one(self, segment: FoundSegment, recovery_point: int, limit: int) -> tuple[int, int] | None:
        """Read every batch and rebuild the indexes. Return (position, offset) of the first damage, None without damage.

        The part that valid indexes place below the recovery point is not read again (:func:`known_prefix`).
        ``segment.end_offset`` becomes the end of the good batches, also of those after the damage. ``limit``: base
        offset of the next segment, or NO_LIMIT for the last segment.
        """
        base = segment.base_offset
        promised = recovery_point if limit == NO_LIMIT else UNKNOWN_POINT
        order = BatchOrder(Offsets(base, limit), dense=self._dense, promised=promised)
        if has_entries(self._files, self._directory, base):  # also of markers that a power cut took from the log
            self._transactional.add(base)
        with LogFile(self._files, self._directory / log_name(base)) as log:
            known = None
            if not self._learns_epochs:
                known = known_prefix(self._files, log, base, segment.size_bytes, recovery_point)
            learnt = Rebuilding(
                SegmentIndexes.empty(base) if known is None else known.indexes,
                interval_bytes=self._interval,
                epoch=self._epochs.latest,
            )
            if known is not None:
                order.resume(known.base_offset)
                segment.first_timestamp = known.first_timestamp
            reached = self._read(log, segment, 0 if known is None else known.position, order, learnt)
            if reached < segment.size_bytes or (order.damage is None and lost_end(self._files, log, base, reached)):
                order.spoil(reached)
        damage, expected = order.damage, order.expected
        for entry in learnt.epochs:
            self._epochs.assign(*entry)
        segment.indexes, segment.largest, segment.end_offset = learnt.indexes, learnt.largest, expected
        growing = limit == NO_LIMIT
        if not growing:  # the last segment gets its closing entry at its seal: until then it stands in no file
            segment.indexes.append_last_time(*segment.largest)
        segment.indexes.damaged = damage is not None
        # The next entry follows all that are in memory: the files hold the same.
        if damage is None and not is_stored(self._files, self._directory, base, segment.indexes, padded=growing):
            store_indexes(self._files, self._directory, base, segment.indexes)
        return damage

    def _read(self, log: LogFile, segment: FoundSegment, position: int, order: BatchOrder, learnt: Rebuilding) -> int:
        """Read every good batch from ``position`` on, also after damage. Return the position where the last one ends.

        ``order`` records the damage, ``learnt`` the index entries.
        """
        reached = position
        try:
            walk = log.walk(position)
            for piece in log.pieces(walk, segment.size_bytes, buffer_bytes=READ_BYTES):
                found = learnt.add_run(walk, piece, order) if order.damage is None else None
                if found is not None:
                    if reached == 0:
                        segment.first_timestamp = found.first_timestamp
                    self._note_producer(segment.base_offset, found.producers, found.transactional)
                    reached = walk.position
                for span, view in walk.whole(piece if found is None else piece[found.used :]):
                    try:
                        header = log.verify(span, view)
                    except CorruptionError:
                        order.spoil(span.position)
                        continue
                    before = order.expected
                    if not order.fits(span, header.base_offset):
                        continue
                    if span.base_offset < before:
                        learnt.retract(span.base_offset)
                    if reached == 0:
                        segment.first_timestamp = header.max_timestamp
                    self._note_producer(segment.base_offset, header.producer_id >= 0, header.is_transactional)
                    learnt.add(span, header, intact=order.damage is None)
                    reached = span.position + span.size
        except CorruptionError:
            order.spoil(reached)
        return reached

    def _note_producer(self, base: int, producers: bool, transactional: bool) -> None:
        self.met_producers = self.met_producers or producers
        if transactional:
            self._transactional.add(base)

    def _rebuild_txn_indexes(self, segments: list[FoundSegment]) -> None:
        """Rebuild the transaction indexes of sealed segments that have transactions.

        The index of the last segment is rebuilt later.
        """
        *sealed, tail = segments
        for segment in sealed:
            if segment.base_offset in self._transactional:
                base, end = segment.base_offset, segment.end_offset
                log = self._directory / log_name(base)
                rebuild_txn_index(self._files, SegmentPlace(self._tp, self._directory, log, base, end))
        tail.aborted = None if tail.base_offset in self._transactional else []

    def _cut(self, segment: FoundSegment, position: int, offset: int, recovery_point: int, limit: int) -> bool:
        """Copy the bytes after ``position`` to a torn file, truncate the segment there, and rebuild its indexes.

        Return True if all these bytes are zero; then they are not copied. ``offset``: where the damage begins.
        ``limit``: base offset of the next segment, or NO_LIMIT for the last segment.
        """
        path = self._directory / log_name(segment.base_offset)
        torn = segment.size_bytes - position
        self._files.unlink(path.with_suffix(SEAL_SUFFIX))  # the note is no longer true
        if not torn:
            self._recover_one(segment, recovery_point, limit)
            return False
        copy = self._copy_tail(path, position, segment.size_bytes)
        handle = self._files.open_write(path)
        try:
            self._files.truncate(handle, position)
            # mutant recovered-file-is-fsynced
            self._files.sync(handle)
        finally:
            self._files.close(handle)
        LOGGER.log(
            logging.INFO if copy is None else logging.WARNING,
            "torn_tail_cut path=%s position=%d offset=%d bytes=%d copy=%s",
            path,
            position,
            offset,
            torn,
            copy or "zeros",
        )
        segment.size_bytes = position
        self._recover_one(segment, recovery_point, limit)
        if segment.indexes is not None:  # also where nothing is left: entries of what was cut must not outlive it
            store_indexes(self._files, self._directory, segment.base_offset, segment.indexes)
        cut_txn_index(self._files, self._directory, segment.base_offset, segment.end_offset)
        return copy is None

    def _copy_tail(self, path: Path, position: int, size: int) -> Path | None:
        """Copy the bytes from ``position`` to ``size`` (exclusive) to a new file, durably.

        Return its path. If all these bytes are zero, copy nothing and return None.
        """
        source = self._files.open_read(path)
        target_path = self._torn_path(path)
        target: int | None = None
        try:
            buffer = bytearray(COPY_BYTES)
            start = position
            while position < size:
                count = self._files.read_into(source, memoryview(buffer)[: size - position], position)
                if count == 0:
                    break
                if target is None and (buffer != ZEROS if count == COPY_BYTES else any(memoryview(buffer)[:count])):
                    target = self._files.open_write(target_path)
                if target is not None:
                    self._files.write_at(target, memoryview(buffer)[:count], position - start)
                position += count
            if target is None:
                return None
            # mutant torn-bytes-are-fsynced
            self._files.sync(target)
            self._files.sync_directory(self._directory)
        finally:
            self._files.close(source)
            if target is not None:
                self._files.close(target)
        return target_path

    def _is_zero(self, path: Path, position: int, size: int) -> bool:
        with LogFile(self._files, path) as log:
            return not any(any(log.read_at(at, min(COPY_BYTES, size - at))) for at in range(position, size, COPY_BYTES))

    def _torn_path(self, path: Path) -> Path:
        stamp = self._now_ms
        while self._files.state(target := path.with_name(f"{path.name}.torn-{stamp}")) is not None:
            stamp += 1
        return target

    def _set_aside(self, segment: FoundSegment) -> None:
        """Rename a segment that is no longer part of the log to ``.torn-{ms}``, and remove its index files.

        A segment without bytes is removed.
        """
        path = self._directory / log_name(segment.base_offset)
        if segment.size_bytes:
            target = self._torn_path(path)
            self._files.rename(path, target)
            LOGGER.warning("segment_set_aside path=%s bytes=%d copy=%s", path, segment.size_bytes, target)
        else:
            self._files.unlink(path)
        for suffix in (*INDEX_SUFFIXES, SEAL_SUFFIX):
            self._files.unlink(path.with_suffix(suffix))
        self._files.sync_directory(self._directory)
