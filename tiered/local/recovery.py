"""Brings one partition directory to a state that can be appended to, after any kind of stop.

What is lost and what is kept, for damage that begins at offset X, with the recovery point R (all below was fsynced):

* X >= R: nobody was told that X is safe. The torn bytes are *copied* to ``{base}.log.torn-{ms}`` and the file is
  cut; later segments, whose records nobody was promised either, are renamed to ``.torn-{ms}`` whole.
* X < R: acknowledged bytes have rotted. Nothing is cut or moved: the segment stays as it is, reads of the range
  raise CorruptionError, offsets below R are never given out again.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from pathlib import Path

from tiered.errors import CorruptionError
from tiered.format.keys import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    LocalFile,
    local_name,
    log_name,
    parse_local_name,
)
from tiered.local.epochs import LeaderEpochs
from tiered.local.files import Files
from tiered.local.indexes import SegmentIndexes, load_indexes, store_indexes
from tiered.local.scan import LogFile
from tiered.local.seal import SEAL_SUFFIX
from tiered.model import EpochEntry
from tiered.plan.roll import MAX_RELATIVE_OFFSET

LOGGER = logging.getLogger("tiered.local")

COPY_BYTES = 1024 * 1024
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


@dataclass(slots=True)
class FoundSegment:
    """One ``.log`` after loading. ``end_offset`` exclusive; ``indexes`` None: load when needed.

    ``largest``: the largest timestamp and the last offset of its batch; None: the last entry of the time index.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    indexes: SegmentIndexes | None = None
    first_timestamp: int = -1
    damaged: bool = False
    largest: tuple[int, int] | None = None


@dataclass(slots=True)
class LoadedPartition:
    """Segments ascending, the last one to be appended to; ``torn_bytes`` were copied aside."""

    segments: list[FoundSegment]
    torn_bytes: int = 0


class Recovery:
    """Loads one partition directory for writing. ``now_ms`` only names the torn copies."""

    def __init__(
        self, files: Files, directory: Path, *, epochs: LeaderEpochs, interval_bytes: int, now_ms: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._epochs = epochs
        self._interval = interval_bytes
        self._now_ms = now_ms
        self._torn_bytes = 0

    def load(self, *, clean: bool, recovery_point: int, start_offset: int) -> LoadedPartition:
        """The segments as they can be used; an empty partition gets one at ``start_offset``, file to be created."""
        bases = self._sweep()
        segments = [self._found(base) for base in bases]
        for segment, following in itertools.pairwise(segments):
            segment.end_offset = following.base_offset
        if segments:
            first = len(segments) - 1
            if recovery_point < 0:  # nobody remembers: all but the last segment count as promised
                first, recovery_point = 0, segments[-1].base_offset
            if not clean:
                while first > 0 and segments[first].base_offset > recovery_point:
                    first -= 1
            if not clean or not self._load_tail(segments[-1]):
                segments = self._recover(segments, first, recovery_point)
        if not segments or segments[-1].end_offset < start_offset:
            self._set_all_aside(segments)
            segments = [FoundSegment(start_offset, start_offset, 0, SegmentIndexes.empty(start_offset))]
        self._epochs.truncate_from_end(segments[-1].end_offset + 1)
        return LoadedPartition(segments, self._torn_bytes)

    def _sweep(self) -> list[int]:
        """Finishes or undoes what a cleaner had begun, removes what was deleted; returns the bases that are left."""
        names = {name: parsed for name in self._files.names(self._directory) if (parsed := parse_local_name(name))}
        cleaned = [file.base for file in names.values() if file.work == CLEANED_SUFFIX]
        undone = min(cleaned, default=None)
        for name, file in list(names.items()):
            dead_swap = file.work == SWAP_SUFFIX and undone is not None and file.base >= undone
            if file.work in (DELETED_SUFFIX, CLEANED_SUFFIX) or dead_swap:
                self._files.unlink(self._directory / name)
                del names[name]
        self._complete_swaps(names)
        logs = {file.base for file in names.values() if file.suffix == LOG_SUFFIX and not file.work}
        for file in names.values():
            if file.suffix in INDEX_SUFFIXES and file.base not in logs and not file.work:
                self._files.unlink(self._directory / local_name(file.base, file.suffix))
        return sorted(logs)

    def _complete_swaps(self, names: dict[str, LocalFile]) -> None:
        """``.swap`` files replace every plain segment in the range they cover (reference 7.1)."""
        swaps = [file for file in names.values() if file.work == SWAP_SUFFIX]
        for swap in swaps:
            if swap.suffix != LOG_SUFFIX:
                continue
            with LogFile(self._files, self._directory / local_name(swap.base, LOG_SUFFIX, SWAP_SUFFIX)) as log:
                end = swap.base
                for span, _ in log.batches(0, log.size()):
                    end = span.last_offset + 1
            for name, file in list(names.items()):
                if not file.work and file.suffix != SNAPSHOT_SUFFIX and swap.base <= file.base < end:
                    self._files.unlink(self._directory / name)
                    del names[name]
        for swap in swaps:
            plain = local_name(swap.base, swap.suffix)
            self._files.rename(self._directory / (plain + SWAP_SUFFIX), self._directory / plain)
            del names[plain + SWAP_SUFFIX]
            names[plain] = LocalFile(swap.base, swap.suffix)

    def _found(self, base: int) -> FoundSegment:
        state = self._files.state(self._directory / log_name(base))
        return FoundSegment(base, base, 0 if state is None else state.size)

    def _load_tail(self, tail: FoundSegment) -> bool:
        """Finds the end of the last segment after a clean shutdown, from its last index entry; False if it is torn."""
        with LogFile(self._files, self._directory / log_name(tail.base_offset)) as log:
            indexes = load_indexes(self._files, log, tail.base_offset, tail.size_bytes, self._interval, repair=True)
            end, reached = tail.base_offset, indexes.last_position
            try:
                if tail.size_bytes:
                    tail.first_timestamp = log.header_at(0, tail.size_bytes).max_timestamp
                for span, view in log.batches(reached, tail.size_bytes):
                    log.verify(span, view)
                    end, reached = span.last_offset + 1, span.position + span.size
            except CorruptionError:
                return False
        tail.indexes, tail.end_offset = indexes, end
        return reached == tail.size_bytes

    def _recover(self, segments: list[FoundSegment], first: int, recovery_point: int) -> list[FoundSegment]:
        kept = segments[:first]
        for i, segment in enumerate(segments[first:], start=first):
            last = i == len(segments) - 1
            damage = self._recover_one(segment)
            kept.append(segment)
            if damage is None:
                if not last:
                    segment.end_offset = segments[i + 1].base_offset
                continue
            position, offset = damage
            if offset >= recovery_point:
                self._cut(segment, position, offset)
                for later in segments[i + 1 :]:
                    self._set_aside(later)
                return kept
            segment.damaged = True
            LOGGER.error(
                "segment_damaged path=%s position=%d offset=%d hint=kept as it is, reads of it raise",
                self._directory / log_name(segment.base_offset),
                position,
                offset,
            )
            if last:
                resume = max(recovery_point, segment.end_offset)
                segment.end_offset = resume
                kept.append(FoundSegment(resume, resume, 0, SegmentIndexes.empty(resume)))
            else:
                segment.end_offset = segments[i + 1].base_offset
        return kept

    def _recover_one(self, segment: FoundSegment) -> tuple[int, int] | None:
        """Reads every batch, rebuilds the indexes; (position, offset) where damage begins, None if there is none.

        ``segment.end_offset`` is what the good batches reach, those behind the damage included.
        """
        base = segment.base_offset
        indexes = SegmentIndexes.empty(base)
        damage: tuple[int, int] | None = None
        expected, reached, since = base, 0, 0
        largest, at = -1, base
        entries: list[EpochEntry] = []
        with LogFile(self._files, self._directory / log_name(base)) as log:
            try:
                for span, view in log.batches(0, segment.size_bytes):
                    try:
                        header = log.verify(span, view)
                        if span.base_offset < expected or not 0 <= span.last_offset - base <= MAX_RELATIVE_OFFSET:
                            raise log.damage(span.position, "offsets go back or overflow", span.base_offset)
                    except CorruptionError:
                        damage = damage or (span.position, expected)
                        continue
                    if reached == 0:
                        segment.first_timestamp = header.max_timestamp
                    if header.max_timestamp > largest:
                        largest, at = header.max_timestamp, span.last_offset
                    if since > self._interval:
                        indexes.append(span.last_offset, span.position, largest, at)
                        since = 0
                    since += span.size
                    expected, reached = span.last_offset + 1, span.position + span.size
                    if damage is None and header.leader_epoch > (entries[-1].epoch if entries else self._epochs.latest):
                        entries.append(EpochEntry(header.leader_epoch, span.base_offset))
            except CorruptionError:
                damage = damage or (reached, expected)
        if damage is None and reached < segment.size_bytes:
            damage = (reached, expected)
        for entry in entries:
            self._epochs.assign(*entry)
        indexes.close_times(largest, at)
        segment.indexes, segment.end_offset = indexes, expected
        if damage is None or damage[1] != expected:
            store_indexes(self._files, self._directory, base, indexes)
        return damage

    def _cut(self, segment: FoundSegment, position: int, offset: int) -> None:
        """Copies what lies behind ``position`` aside, cuts the file there, and reads the rest again for its indexes."""
        path = self._directory / log_name(segment.base_offset)
        torn = segment.size_bytes - position
        copy = self._copy_tail(path, position, segment.size_bytes)
        handle = self._files.open_write(path)
        try:
            self._files.truncate(handle, position)
            self._files.sync(handle)
        finally:
            self._files.close(handle)
        self._torn_bytes += torn
        LOGGER.warning(
            "torn_tail_cut path=%s position=%d offset=%d bytes=%d copy=%s",
            path,
            position,
            offset,
            torn,
            copy or "zeros",
        )
        segment.size_bytes = position
        self._recover_one(segment)

    def _copy_tail(self, path: Path, position: int, size: int) -> Path | None:
        """The bytes from ``position`` on as a file of their own, durable; None if they are all zero."""
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
                if target is None and any(memoryview(buffer)[:count]):
                    target = self._files.open_write(target_path)
                if target is not None:
                    self._files.write_at(target, memoryview(buffer)[:count], position - start)
                position += count
            if target is None:
                return None
            self._files.sync(target)
            self._files.sync_directory(self._directory)
        finally:
            self._files.close(source)
            if target is not None:
                self._files.close(target)
        return target_path

    def _torn_path(self, path: Path) -> Path:
        stamp = self._now_ms
        while self._files.state(target := path.with_name(f"{path.name}.torn-{stamp}")) is not None:
            stamp += 1
        return target

    def _set_aside(self, segment: FoundSegment) -> None:
        """A later segment of a log that was cut: its bytes are kept under another name."""
        path = self._directory / log_name(segment.base_offset)
        if segment.size_bytes:
            target = self._torn_path(path)
            self._files.rename(path, target)
            self._torn_bytes += segment.size_bytes
            LOGGER.warning("segment_set_aside path=%s bytes=%d copy=%s", path, segment.size_bytes, target)
        else:
            self._files.unlink(path)
        for suffix in (*INDEX_SUFFIXES, SEAL_SUFFIX):
            self._files.unlink(path.with_suffix(suffix))
        self._files.sync_directory(self._directory)

    def _set_all_aside(self, segments: list[FoundSegment]) -> None:
        for segment in segments:
            self._set_aside(segment)
