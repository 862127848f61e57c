"""Read interface of one partition on this disk, which this process or another one writes."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from uuid import UUID

from tiered.config import TopicConfig
from tiered.format.batch_scanner import BatchRun, cut
from tiered.format.locks import Signal
from tiered.local.disk.files import Files
from tiered.local.disk.lock import forked_error
from tiered.local.disk.partition_files import LeaderEpochs
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.segment.read_view import View
from tiered.local.segment.reading import (
    aborted_txns,
    last_stable_offset,
    offset_for_time,
    open_txns,
    read_steadily,
    retry_over_new_view,
)
from tiered.local.segment.scan import BUFFER_BYTES
from tiered.local.segment.sealed import END_OFFSET, SealedLocalSegment
from tiered.model import AbortedTxn, EpochEntry, Positions, TopicPartition
from tiered.plan.visibility import OpenTxn


class ReadLog(ABC):
    """One partition on this disk, for reading. Thread-safe. In a forked child, reads raise ForkedLogError."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        tp: TopicPartition,
        *,
        topic_id: UUID,
        epochs: LeaderEpochs,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.files = files
        self.directory = directory
        self.tp: TopicPartition = tp
        self.topic_id = topic_id
        self.epochs = epochs
        self._buffer_bytes = buffer_bytes
        self._pid = os.getpid()

    @property
    @abstractmethod
    def config(self) -> TopicConfig:
        """Return the topic's settings."""

    @property
    @abstractmethod
    def upload(self) -> PartitionUpload | None:
        """Return the uploader's last report about the bucket; None while the log is not tiered."""

    @property
    @abstractmethod
    def sealed(self) -> tuple[SealedLocalSegment, ...]:
        """Return the sealed segments whose files are durable."""

    @abstractmethod
    def view(self) -> View:
        """Return an immutable list of the segments, for a read that begins now."""

    @abstractmethod
    def positions(self) -> Positions:
        """Return the start of the partition, its start on this disk, and its uploaded, flushed and appended ends."""

    def watch(self, signal: Signal) -> bool:
        """Set ``signal`` after each later append and at the close. Return True.

        If another process writes the partition, return False, without effect.
        """
        return False

    def unwatch(self, signal: Signal) -> None:  # noqa: B027 - there is nothing to undo where watch returns False
        """Remove ``signal``, which :meth:`watch` added."""

    def stamp(self) -> object:
        """Return a value that usually changes when another process appends. Costs two ``stat`` calls.

        Return None if this process writes the partition.
        """
        return None

    @property
    def end_offset(self) -> int:
        """Return the next offset to be assigned."""
        return self.view().end_offset

    def open_txns(self) -> list[OpenTxn]:
        """Return the open transactions, ordered by first offset.

        ``read_committed`` reads up to the first offset of the oldest.
        """
        return retry_over_new_view(self.view, lambda view: open_txns(self.files, self.directory, view))

    def read_batches(self, start_offset: int, end_offset: int | None = None) -> Iterator[memoryview]:
        """Return an iterator of verified batches, from the one with ``start_offset`` to ``end_offset`` (exclusive).

        ``end_offset`` None: the end of the log. The first batch may begin below ``start_offset``, the last may end
        above ``end_offset``. The call raises OffsetOutOfRangeError if ``start_offset`` is not on this disk. A damaged
        batch raises CorruptionError when the read reaches it.
        """
        runs = self.read_runs(start_offset, end_offset)
        first = next(runs, None)
        return (batch for run in chain(() if first is None else (first,), runs) for batch in cut(run.data))

    def read_runs(self, start_offset: int, end_offset: int | None = None) -> Iterator[BatchRun]:
        """Yield runs (consecutive verified batches) from the batch with ``start_offset`` to ``end_offset`` (exclusive).

        ``end_offset`` None: the end of the log. The first batch may begin below ``start_offset``, the last may end
        above ``end_offset``. The first step raises OffsetOutOfRangeError if ``start_offset`` is not on this disk. A
        damaged batch raises CorruptionError when the read reaches it.
        """
        return read_steadily(self.files, self.view, start_offset, end_offset, buffer_bytes=self._buffer_bytes)

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record on this disk whose timestamp is at least ``timestamp`` ms.

        Return None if there is none.
        """
        return retry_over_new_view(self.view, lambda view: offset_for_time(self.files, view, timestamp))

    def aborted_txns(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap ``start_offset`` to ``end_offset`` (exclusive).

        They are ordered by first offset. ``read_committed`` skips their records. Raises CorruptionError if a
        transaction index is lost or damaged and cannot be rebuilt.
        """
        return retry_over_new_view(
            self.view, lambda view: aborted_txns(self.files, self.directory, view, start_offset, end_offset)
        )

    def last_stable_offset(self) -> int:
        """Return the end for ``read_committed``: the first offset of the oldest open transaction, or the end."""
        bound = self.end_offset
        return min(retry_over_new_view(self.view, self._stable_offset), bound)

    def _stable_offset(self, view: View) -> int:
        log_start = view.start_offset if self.upload is None else 0
        return last_stable_offset(self.files, self.directory, view, log_start)

    def sealed_segments(self, start_offset: int = 0) -> list[SealedLocalSegment]:
        """Return the sealed, durable segments that end above ``start_offset``, ascending."""
        self._check_process()
        sealed = self.sealed
        return list(sealed[bisect_right(sealed, start_offset, key=END_OFFSET) :])

    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """Return the leader epochs and their first offsets, ascending."""
        self._check_process()
        return self.epochs.entries

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise forked_error(self.tp, self._pid)


def positions_of(upload: PartitionUpload | None, log_start: int, local_start: int, flushed: int, end: int) -> Positions:
    """Compute the positions of a partition from the uploader's report and from the offsets on this disk.

    ``upload``: the report, None while the log is not tiered. ``log_start``: the start of the partition if the report
    has no start. ``local_start``: first readable offset on this disk. ``flushed``, ``end``: exclusive ends.
    """
    uploaded, start = 0, log_start
    if upload is not None:
        uploaded = upload.end_offset
        start = min(local_start, upload.start_offset) if upload.start_offset >= 0 else log_start
    return Positions(start, local_start, uploaded, flushed, end)
