"""One round of compaction over one partition: the map of its dirty part, then each group of segments rewritten.

::

    first dirty .. first uncleanable  ── OffsetMapBuilder ──>  newest offset of every key, up to map end
    log start .. map end, in groups   ── BatchFilter ───────>  .cleaned ── replace_segments ──> in their place
    map end                           ───────────────────────>  cleaner-offset-checkpoint (the caller's)

Only sealed and durable segments are read: a record goes only if the newer one of its key survives a power cut. A round
that ends early, for any reason, leaves each group as it was or cleaned; the next one begins where this one began.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tiered.errors import CorruptionError, NotFoundError, TieredError
from tiered.format.batch_scanner import BatchPosition
from tiered.format.local_names import CLEANED_SUFFIX, LOG_SUFFIX, local_name
from tiered.local.cleaning.subjects import Subject
from tiered.local.disk.files import Files
from tiered.local.segment.active import FoundSegment
from tiered.local.segment.reading import aborted_txns
from tiered.local.segment.replacement import SegmentCopy
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import AbortedTxn
from tiered.plan.batch_filter import BatchFilter, CleanedRun, CleaningReport
from tiered.plan.cleaning import (
    CleaningCandidate,
    SegmentState,
    group_segments,
    legacy_delete_horizon,
)
from tiered.plan.offset_map import OffsetMap, OffsetMapBuilder

BUFFER_BYTES = 1024 * 1024
"""Log files are read in pieces of this size; a larger batch gets a buffer of its own."""


class CleaningStoppedError(TieredError):
    """Stop of a round: the log was truncated, closed or deleted, retention deleted segments, or cleaning was paused.

    Another ``cleanup.policy`` stops a round, too. The log is not damaged, and a later round may clean it.
    """

    code = "cleaning_stopped"
    retriable = True


class CleaningRound:
    """Compaction round over one partition. ``memory_bytes``: size of its offset map. ``now_ms``: wall clock.

    ``subject``: the partition. ``candidate``: the offsets to clean. The round calls ``spend(bytes read, bytes to
    write)`` for each run of batches. ``spend`` may sleep to slow the round down, or raise to stop it.
    """

    def __init__(
        self,
        files: Files,
        subject: Subject,
        candidate: CleaningCandidate,
        *,
        now_ms: int,
        memory_bytes: int,
        spend: Callable[[int, int], None],
    ) -> None:
        self._files = files
        self._writer = subject.writer
        self._state = subject.state
        self._candidate = candidate
        self._segments = subject.segments
        self._producers = subject.producers
        self._now_ms = now_ms
        self._map = OffsetMap(memory_bytes)
        self._spend = spend
        self._watched: SealedLocalSegment | None = None
        self.report = CleaningReport(candidate.first_dirty)

    def run(self) -> CleaningReport:
        """Run the round and return its counts.

        After an error each group of segments is as before or cleaned, at the latest after the next open of the log.
        Raises CorruptionError, DiskFullError, LocalIOError or CleaningStoppedError.
        """
        state, candidate, report = self._state, self._candidate, self.report
        aborted = aborted_txns(self._files, self._writer.directory, self._writer.view(), 0, state.end_offset)
        self._build_map(aborted)
        groups = group_segments(
            state.segments,
            map_end=self._map.end_offset,
            first_uncleanable=candidate.first_uncleanable,
            config=state.config,
        )
        kept = BatchFilter(
            self._map,
            first_uncleanable=candidate.first_uncleanable,
            now_ms=self._now_ms,
            delete_retention_ms=state.config.delete_retention_ms,
            producers=self._producers,
            aborted=aborted,
            legacy_horizon_ms=legacy_delete_horizon(
                state.segments, candidate.first_dirty, state.config.delete_retention_ms
            ),
        )
        self._watched = self._segments[groups[-1][-1].base_offset]  # no cut reached below it while it is there
        for group in groups:
            found = self._rewrite(group, kept)
            if found is not None:
                self._replace(group, found)
            report.groups.append(tuple(segment.base_offset for segment in group))
        report.conclude(kept.stats, self._map)
        return report

    def _build_map(self, aborted: list[AbortedTxn]) -> None:
        candidate = self._candidate
        builder = OffsetMapBuilder(self._map, start_offset=candidate.first_dirty, aborted=aborted)
        for segment in self._state.from_offset(candidate.first_dirty):
            if segment.base_offset >= candidate.first_uncleanable:
                return
            self._watched = self._segments[segment.base_offset]
            for log, span, batches, verified in self._stretches(segment, candidate.first_dirty):
                try:
                    full = builder.add_run(batches) if verified else builder.add(batches)
                except CorruptionError as error:
                    raise _at(log, span, error, verified) from error
                if full:
                    return
                self._spend(span.size, 0)
            builder.end_segment(segment.end_offset)

    def _rewrite(self, group: tuple[SegmentState, ...], kept: BatchFilter) -> FoundSegment | None:
        """Write the records of ``group`` that stay into one new segment, named ``.cleaned``, and return it.

        ``kept``: the filter that decides which records stay. Return None if the group is a single segment from which no
        record is removed. On an error the new file is removed.
        """
        copy: SegmentCopy | None = None if len(group) == 1 else self._copy(group)
        unchanged = 0  # bytes at the start of a segment that may stay
        try:
            for segment in group:
                kept.start_segment(segment.modified_ms)
                for left in self._cleaned(segment, kept):
                    self._spend(left.size, len(left.left))
                    if copy is None and left.same:
                        unchanged += left.size
                        continue
                    if copy is None:
                        copy = self._copy(group)
                        for _, _, batches, _ in self._stretches(segment, 0, unchanged):  # whole ones, paid for before
                            copy.append_run(batches)
                    copy.append_run(left.left)
            self._check()
            self._spend(0, 0)  # a stop or a pause may have come during the last batches
            txns = kept.drain_aborted()
            if copy is None:
                return None
            for txn in txns:
                copy.add_aborted(txn)
            found = copy.finish()
            path = self._writer.directory / local_name(group[0].base_offset, LOG_SUFFIX, CLEANED_SUFFIX)
            self._files.set_modified(path, max(0, *[segment.modified_ms for segment in group]))
        except BaseException:
            if copy is not None:
                with contextlib.suppress(TieredError):
                    copy.abandon()
            raise
        return found

    def _copy(self, group: tuple[SegmentState, ...]) -> SegmentCopy:
        directory, interval_bytes = self._writer.directory, self._state.config.index_interval_bytes
        return SegmentCopy(self._files, directory, group[0].base_offset, interval_bytes=interval_bytes)

    def _cleaned(self, segment: SegmentState, kept: BatchFilter) -> Iterator[CleanedRun]:
        """Yield the records of a segment that stay, in runs. Each run is valid until the next one is taken.

        ``kept``: the filter that decides which records stay.
        """
        for log, span, batches, verified in self._stretches(segment, 0):
            try:
                if verified:
                    yield from kept.clean_run(batches)
                else:
                    cleaned = kept.clean(batches)
                    yield CleanedRun(span.size, b"" if cleaned is None else cleaned, cleaned is batches)
            except CorruptionError as error:
                raise _at(log, span, error, verified) from error

    def _replace(self, group: tuple[SegmentState, ...], found: FoundSegment) -> None:
        """Replace the segments of ``group`` by their copy. Raises CleaningStoppedError if the log was truncated.

        On another error the files stay as they are: only the next open may finish or undo the renames.
        """
        bases = [segment.base_offset for segment in group]
        if not self._writer.maintenance.replace_segments([found], bases, witness=self._watched):
            raise self._stopped(f"its segments {bases} were changed or deleted meanwhile")

    def _stretches(
        self, segment: SegmentState, start_offset: int, size_bytes: int | None = None
    ) -> Iterator[tuple[LogFile, BatchPosition, memoryview, bool]]:
        """Yield batches of a segment that end at or above ``start_offset``, in its first ``size_bytes`` (None: all).

        Each item has the file, position, bytes, and True for several verified batches or False for one unverified
        batch. The bytes are valid until the next item is taken.
        """
        local = self._segments[segment.base_offset]
        end = local.size_bytes if size_bytes is None else size_bytes
        with self._open(local) as log:
            position = 0
            if start_offset > segment.base_offset:
                position = local.lookup.seek(log, start_offset, local.size_bytes, local.offset_range)
            for found in log.stretches(position, end, local.offset_range, start_offset, buffer_bytes=BUFFER_BYTES):
                self._check()
                yield log, *found

    def _open(self, local: SealedLocalSegment) -> LogFile:
        try:
            return LogFile(self._files, local.path)
        except NotFoundError:
            self._check()
            return LogFile(self._files, local.path)  # retention renamed it just now, which changes the path

    def _check(self) -> None:
        """Raise CleaningStoppedError if the log was truncated or closed, or is no longer compacted.

        Raise it also if retention deleted the segment that the round works on.
        """
        writer = self._writer
        if not writer.context.at_work:
            raise self._stopped("its log was closed or went offline")
        if not writer.config.compacted:
            raise self._stopped("its cleanup.policy is no longer compact")
        if self._watched is not None and not writer.maintenance.holds(self._watched):
            raise self._stopped("its log was truncated, or retention deleted the segments")

    def _stopped(self, why: str) -> CleaningStoppedError:
        return CleaningStoppedError(f"the cleaning of {self._writer.tp} stopped: {why}")


def _at(log: LogFile, span: BatchPosition, error: CorruptionError, in_run: bool) -> CorruptionError:
    """Return ``error`` with the path of ``log`` and the position in it.

    ``in_run``: True if the error's position counts from the start of ``span``. Otherwise ``span`` is the bad batch.
    """
    if in_run:
        return log.damage(span.position + error.position, error.message, error.offset)
    return log.damage(span.position, error.message, span.base_offset)
