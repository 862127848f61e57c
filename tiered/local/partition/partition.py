"""One partition on this disk, for writing or read-only: what the rest of the product sees of it."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from tiered.clock import Clock
from tiered.config import TopicConfig
from tiered.errors import ConfigError, ForkedLogError
from tiered.format.batch_scanner import BatchRun
from tiered.format.locks import Signal
from tiered.local.disk.files import Files
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.partition.read_only_partition import ForeignPartition
from tiered.local.segment.isolation import aborted_txns, last_stable_offset, open_txns
from tiered.local.segment.read_view import View
from tiered.local.segment.reading import (
    largest_timestamp,
    offset_for_time,
    patient_view,
    read_runs_steadily,
    read_steadily,
    steadily,
)
from tiered.local.segment.scan import BUFFER_BYTES
from tiered.local.segment.sealed import END_OFFSET, SealedLocalSegment
from tiered.model import AbortedTxn, EpochEntry, NewRecord, PackedBatch, Positions, RecordMetadata, TopicPartition
from tiered.plan.producer import ProducerStamp
from tiered.plan.visibility import OpenTxn

if TYPE_CHECKING:
    from tiered.format.column_encoder import RecordColumns
    from tiered.local.partition.writer import PartitionWriter


class PartitionLog:
    """Thread-safe. A forked child gets ForkedLogError from every call; a read-only one ConfigError from writing."""

    def __init__(
        self,
        files: Files,
        source: PartitionWriter | ForeignPartition,
        config: TopicConfig,
        *,
        clock: Clock,
        upload: Callable[[], PartitionUpload | None],
        recovery_point: Callable[[], int],
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.tp: TopicPartition = source.tp
        self.topic_id: UUID = source.topic_id
        self.files = files
        self.source = source
        self._writer = None if isinstance(source, ForeignPartition) else source
        self._config = config
        self._clock = clock
        self._upload = upload
        self._recovery_point = recovery_point
        self._buffer_bytes = buffer_bytes
        self._pid = os.getpid()

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""
        return self._config if self._writer is None else self._writer.config

    @property
    def writable(self) -> bool:
        """True if this process may append."""
        return self._writer is not None

    def watch(self, signal: Signal) -> bool:
        """Set ``signal`` after each append and at the close. Return False if another process appends here."""
        if self._writer is None:
            return False
        self._check_process()
        self._writer.context.watch(signal)
        return True

    def stamp(self) -> object:
        """Return a value that changes with each append of another process, as a rule. It costs two ``stat`` calls."""
        source = self.source
        return source.stamp() if isinstance(source, ForeignPartition) else None

    def unwatch(self, signal: Signal) -> None:
        """Undo :meth:`watch`."""
        if self._writer is not None:
            self._writer.context.unwatch(signal)

    @property
    def upload(self) -> PartitionUpload | None:
        """State of the bucket as the uploader noted it on this disk; None while the log is not tiered."""
        return self._upload()

    @property
    def end_offset(self) -> int:
        """The next offset to be given."""
        self._check_process()
        return self._writer.end_offset if self._writer is not None else self.view().end_offset

    def positions(self) -> Positions:
        """Return the start of the partition and its three ends (``model.Positions``)."""
        writer = self._writer
        if writer is not None:
            if os.getpid() != self._pid:
                self._check_process()
            segments, upload, flushed = writer.segments, writer.context.upload, writer.durability.flushed
            local_start, log_start, end = segments.local_start, segments.log_start, segments.end
        else:
            view = self.view()
            upload, end, local_start = self._upload(), view.end_offset, view.start_offset
            flushed, log_start = min(self._recovery_point(), end), view.start_offset
        uploaded, start = 0, log_start
        if upload is not None:
            uploaded = upload.end_offset
            start = min(local_start, upload.start_offset) if upload.start_offset >= 0 else log_start
        return Positions(start, local_start, uploaded, flushed, end)

    def append(self, records: Sequence[NewRecord]) -> RecordMetadata:
        """Append one atomic batch at the next offsets. It is in the page cache when this returns.

        ``timestamp`` of the result is that of the first record (the log's time with LogAppendTime). Raises
        InvalidRecordError, InvalidTimestampError or RecordTooLargeError with the record's index, DiskFullError,
        FencedError, LocalIOError. Nothing was appended then, with one exception: LocalIOError from the fsync of a
        segment that this call sealed leaves the partition offline with its tail in doubt.
        """
        return self.to_write().appender.append(records)

    def append_packed(self, batch: PackedBatch) -> RecordMetadata | None:
        """Append the records of ``batch`` like :meth:`append`. Return None, with nothing appended, if each needs a
        check.
        """
        return self.to_write().appender.append_packed(batch)

    def append_as_producer(self, records: Sequence[object], stamp: ProducerStamp) -> RecordMetadata:
        """Append one atomic batch of an open transaction. Readers of ``read_committed`` wait for the transaction's end.

        Raises like :meth:`append`, and OutOfOrderSequenceError, ProducerFencedError or InvalidTxnStateError if the
        producer breaks its order. Nothing is appended then.
        """
        return self.to_write().appender.append_as_producer(records, stamp)

    def open_txns(self) -> list[OpenTxn]:
        """Return transactions without a marker on this disk, by first offset. ``read_committed`` waits for them."""
        if self._writer is not None:
            self._check_process()
            return self._writer.open_txns()
        return steadily(self.view, lambda view: open_txns(self.files, self.source.directory, view))

    def append_batches(self, data: bytes) -> RecordMetadata:
        """Append encoded batches, all or none. Offsets and leader epoch are reassigned.

        Bytes stay as sent unless the topic asks for another codec or timestamp type; v0 and v1 becomes v2. A record
        without timestamp (-1) stays so. ``timestamp`` of the result is the largest. Raises like :meth:`append`.

        Batches of a producer are appended once. A repetition of one of its five newest (after a restart: of the newest)
        changes nothing and returns the offsets it has. Raises OutOfOrderSequenceError, ProducerFencedError or
        InvalidTxnStateError if a producer breaks its order.
        """
        return self.to_write().appender.append_batches(data)

    def append_columns(self, records: RecordColumns) -> RecordMetadata:
        """Append one atomic batch of checked columns (``tiered.arrow.rows``). Raises like :meth:`append`."""
        return self.to_write().appender.append_columns(records)

    def append_as_coordinator(self, data: bytes) -> RecordMetadata:
        """Append one encoded batch of a coordinator, usually the marker that ends a transaction.

        Raises InvalidRecordError unless ``data`` is one v2 batch of a producer, ProducerFencedError if its epoch or
        that of the coordinator is too old, CorruptionError for damage. Nothing is appended then. Sequences are not
        checked.
        """
        return self.to_write().appender.append_as_coordinator(data)

    def read_batches(
        self, start_offset: int, end_offset: int | None = None, *, max_bytes: int | None = None, verify: bool = True
    ) -> Iterator[memoryview]:
        """Yield whole raw batches: from the one with ``start_offset`` to below ``end_offset`` (None: the end).

        The first batch may begin below ``start_offset``, the last may end above ``end_offset``. ``max_bytes`` never
        holds back the first batch. Raises OffsetOutOfRangeError at once, CorruptionError when a damaged batch is
        reached.
        """
        return read_steadily(
            self.files,
            self.view,
            start_offset,
            end_offset,
            max_bytes=max_bytes,
            verify=verify,
            buffer_bytes=self._buffer_bytes,
        )

    def read_runs(self, start_offset: int, end_offset: int | None = None) -> Iterator[BatchRun]:
        """Yield the batches of :meth:`read_batches` in runs: verified batches that were read at once.

        Errors are raised at the first step.
        """
        return read_runs_steadily(self.files, self.view, start_offset, end_offset, buffer_bytes=self._buffer_bytes)

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after ``timestamp`` ms on this disk, or None."""
        return steadily(self.view, lambda view: offset_for_time(self.files, view, timestamp))

    def largest_timestamp(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with the largest timestamp on this disk, None without any."""
        return steadily(self.view, lambda view: largest_timestamp(self.files, view))

    def aborted_txns(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return aborted transactions that touch the range, by first offset; for ``read_committed``."""
        directory = self.source.directory
        return steadily(self.view, lambda view: aborted_txns(self.files, directory, view, start_offset, end_offset))

    def last_stable_offset(self) -> int:
        """Return the end of ``read_committed``: the first offset of the oldest open transaction, otherwise the end."""
        bound = self.end_offset
        known = None if self._writer is None else self._writer.stable_offset()
        if known is None:
            known = steadily(self.view, self._stable_offset)
        return min(known, bound)

    def _stable_offset(self, view: View) -> int:
        log_start = view.start_offset if self._upload() is None else 0
        return last_stable_offset(self.files, self.source.directory, view, log_start)

    def flush(self) -> None:
        """Make all records appended before this call durable. Threads share one fsync.

        Raises LocalIOError if fsync fails. The partition goes offline then: the kernel may have discarded the pages.
        """
        self.to_write().durability.flush()

    def roll(self, base_offset: int | None = None) -> bool:
        """Seal the active segment, durably, if it holds records. Return True if it did.

        ``base_offset``: start of the new segment, at or above the end; ConfigError below it.
        """
        return self.to_write().maintenance.roll(base_offset=base_offset)

    def sealed_segments(self, start_offset: int = 0) -> list[SealedLocalSegment]:
        """Return sealed, durable segments that end above ``start_offset``, ascending (``model.SealedSegment``)."""
        if os.getpid() != self._pid:
            self._check_process()
        sealed = self.source.sealed
        return list(sealed[bisect_right(sealed, start_offset, key=END_OFFSET) :])

    def delete_local_before(self, offset: int) -> list[int]:
        """Delete whole sealed segments below ``offset`` from the disk. Return their bases.

        A tiered log deletes nothing above the committed end (:meth:`set_uploaded`).
        """
        return self.to_write().maintenance.delete_local_before(offset)

    def truncate_to(self, offset: int, *, below_uploaded: bool = False) -> None:
        """Cut the log at ``offset``, durably. A batch across ``offset`` is removed whole.

        Raises ConfigError below what the bucket holds, unless ``below_uploaded``.
        """
        self.to_write().maintenance.truncate_to(offset, below_uploaded=below_uploaded)

    def set_uploaded(
        self, end_offset: int, claim_epoch: int = -1, fenced: bool = False, start_offset: int = -1
    ) -> None:
        """Note the content of a root that was *read back*. From now on the log counts as tiered."""
        self.to_write().set_uploaded(PartitionUpload(end_offset, claim_epoch, fenced, start_offset))

    def start_at(self, offset: int, leader_epoch: int, producers: bytes = b"") -> None:
        """Resume an empty log at ``offset`` (a fresh volume). Raises ConfigError if it holds records.

        ``producers``: those of the log so far, as a ``.snapshot`` file: repetitions are recognised, transactions that
        are open there stay open.
        """
        self.to_write().maintenance.start_at(offset, leader_epoch, producers)

    def begin_under(self, token: str | None, claim_epoch: int) -> None:
        """Permit the first record: the bucket has granted the claim with this proof, and this log begins there."""
        self.to_write().beginning.granted = (token, claim_epoch)

    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """Return leader epochs and their first offsets, ascending."""
        if os.getpid() != self._pid:
            self._check_process()
        return self.source.epochs.entries

    def new_leader_epoch(self, epoch: int) -> None:
        """Give records from here on ``epoch``. Raises ConfigError unless it is greater than all before."""
        self.to_write().new_leader_epoch(epoch)

    def apply_retention(self) -> list[int]:
        """Apply the local retention rules once, now. Return the bases of deleted segments."""
        return self.to_write().maintenance.apply_retention(self._clock.now_ms())

    def view(self) -> View:
        """Return the view of a read that begins now."""
        self._check_process()
        if self._writer is not None:
            return self._writer.view()
        return patient_view(self.source.view, self._clock)

    def to_write(self) -> PartitionWriter:
        """Return the writer. Raises ConfigError if this process may not write, ForkedLogError in a fork."""
        if self._writer is None:
            raise ConfigError(f"{self.tp} was opened read-only", hint="open the log directory for writing")
        if os.getpid() != self._pid:
            self._check_process()  # which says what is wrong
        return self._writer

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedLogError(
                f"{self.tp} was opened by process {self._pid}, this is its fork {os.getpid()}",
                hint="open the log in the child, after the fork; the parent keeps writing",
            )
