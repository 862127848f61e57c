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
from tiered.local.disk.uploads import PartitionUpload
from tiered.local.partition.foreign import ForeignPartition
from tiered.local.segment.extents import View
from tiered.local.segment.isolation import aborted_txns, last_stable_offset, open_txns
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
        """Whether this process may append."""
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
        """What the bucket holds, as this disk was told; None while the log is not tiered."""
        return self._upload()

    @property
    def end_offset(self) -> int:
        """The next offset to be given."""
        self._check_process()
        return self._writer.end_offset if self._writer is not None else self.view().end_offset

    def positions(self) -> Positions:
        """Where the partition starts, and the three ends (model.Positions)."""
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
        """One atomic batch at the next offsets; in the page cache when this returns.

        ``timestamp`` of the result is that of the first record (the log's time with LogAppendTime). Raises
        InvalidRecordError, InvalidTimestampError or RecordTooLargeError with the record's index, DiskFullError,
        FencedError, LocalIOError; then nothing was appended, except that LocalIOError from the fsync of a segment
        that this call sealed leaves the partition offline with its tail in doubt.
        """
        return self.to_write().appender.append(records)

    def append_packed(self, batch: PackedBatch) -> RecordMetadata | None:
        """As :meth:`append` of its records; None, with nothing appended, where each has to be looked at."""
        return self.to_write().appender.append_packed(batch)

    def append_as_producer(self, records: Sequence[object], stamp: ProducerStamp) -> RecordMetadata:
        """One atomic batch of an open transaction, as :meth:`append`; readers of ``read_committed`` wait for its end.

        Raises as :meth:`append` and, where the producer breaks its order, OutOfOrderSequenceError,
        ProducerFencedError or InvalidTxnStateError; nothing is appended then.
        """
        return self.to_write().appender.append_as_producer(records, stamp)

    def open_txns(self) -> list[OpenTxn]:
        """Transactions without marker on this disk, by first offset: what holds ``read_committed`` back."""
        if self._writer is not None:
            self._check_process()
            return self._writer.open_txns()
        return steadily(self.view, lambda view: open_txns(self.files, self.source.directory, view))

    def append_batches(self, data: bytes) -> RecordMetadata:
        """Encoded batches, one after the other, all or none. Offsets and leader epoch are reassigned.

        Bytes stay as sent unless the topic asks for another codec or timestamp type; v0 and v1 becomes v2. A record
        without timestamp (-1) stays so. ``timestamp`` of the result is the largest. Errors as for :meth:`append`.

        Batches with a producer are appended once: a repetition of one of its five newest (after a restart: of the
        newest) changes nothing and is answered with the offsets it has. OutOfOrderSequenceError, ProducerFencedError
        or InvalidTxnStateError where a producer breaks its order.
        """
        return self.to_write().appender.append_batches(data)

    def append_columns(self, records: RecordColumns) -> RecordMetadata:
        """One atomic batch of checked columns (``tiered.arrow.rows``). Errors as for :meth:`append`."""
        return self.to_write().appender.append_columns(records)

    def append_as_coordinator(self, data: bytes) -> RecordMetadata:
        """One encoded batch of a coordinator, as a rule the marker that ends a transaction.

        InvalidRecordError unless ``data`` is one v2 batch of a producer, ProducerFencedError if its epoch or that of
        the coordinator is too old, CorruptionError for damage. Nothing is appended then. Sequences are not looked at.
        """
        return self.to_write().appender.append_as_coordinator(data)

    def read_batches(
        self, start_offset: int, end_offset: int | None = None, *, max_bytes: int | None = None, verify: bool = True
    ) -> Iterator[memoryview]:
        """Whole raw batches, undecoded: from the one with ``start_offset`` to below ``end_offset`` (None: the end).

        The first batch may begin below ``start_offset``, the last may end above ``end_offset``. ``max_bytes`` never
        keeps back the first batch. Raises OffsetOutOfRangeError at once, CorruptionError where damage is reached.
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
        """As :meth:`read_batches`, by runs of as many verified batches as were read at once.

        Errors come at the first step.
        """
        return read_runs_steadily(self.files, self.view, start_offset, end_offset, buffer_bytes=self._buffer_bytes)

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record, by offset, at or after ``timestamp`` ms on this disk, or None."""
        return steadily(self.view, lambda view: offset_for_time(self.files, view, timestamp))

    def largest_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp on this disk, None without any."""
        return steadily(self.view, lambda view: largest_timestamp(self.files, view))

    def aborted_txns(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Aborted transactions that touch the range, by first offset; for ``read_committed``."""
        directory = self.source.directory
        return steadily(self.view, lambda view: aborted_txns(self.files, directory, view, start_offset, end_offset))

    def last_stable_offset(self) -> int:
        """Where ``read_committed`` ends: the first offset of the oldest open transaction, else the end."""
        bound = self.end_offset
        known = None if self._writer is None else self._writer.stable_offset()
        if known is None:
            known = steadily(self.view, self._stable_offset)
        return min(known, bound)

    def _stable_offset(self, view: View) -> int:
        log_start = view.start_offset if self._upload() is None else 0
        return last_stable_offset(self.files, self.source.directory, view, log_start)

    def flush(self) -> None:
        """All records appended before this call survive a power cut when it returns. Threads share one fsync.

        LocalIOError if fsync fails: the partition goes offline, since the kernel may have thrown the pages away.
        """
        self.to_write().durability.flush()

    def roll(self, base_offset: int | None = None) -> bool:
        """Seals the active segment, durably, if it holds records; returns whether it did.

        ``base_offset``: where the new segment begins, at or above the end; ConfigError below it.
        """
        return self.to_write().maintenance.roll(base_offset=base_offset)

    def sealed_segments(self, start_offset: int = 0) -> list[SealedLocalSegment]:
        """Sealed, durable segments that end above ``start_offset``, ascending; each a ``model.SealedSegment``."""
        if os.getpid() != self._pid:
            self._check_process()
        sealed = self.source.sealed
        return list(sealed[bisect_right(sealed, start_offset, key=END_OFFSET) :])

    def delete_local_before(self, offset: int) -> list[int]:
        """Whole sealed segments below ``offset`` leave the disk; returns their bases.

        On a tiered log never above the committed end (:meth:`set_uploaded`), whatever ``offset`` says.
        """
        return self.to_write().maintenance.delete_local_before(offset)

    def truncate_to(self, offset: int, *, below_uploaded: bool = False) -> None:
        """The log ends at ``offset`` and forgets what came after, durably; a batch that reaches beyond goes whole.

        ConfigError below what the bucket holds, unless ``below_uploaded``.
        """
        self.to_write().maintenance.truncate_to(offset, below_uploaded=below_uploaded)

    def set_uploaded(
        self, end_offset: int, claim_epoch: int = -1, fenced: bool = False, start_offset: int = -1
    ) -> None:
        """Tells what a root that was *read back* holds. From then on the log counts as tiered."""
        self.to_write().set_uploaded(PartitionUpload(end_offset, claim_epoch, fenced, start_offset))

    def start_at(self, offset: int, leader_epoch: int, producers: bytes = b"") -> None:
        """An empty log resumes at ``offset`` (a fresh volume). ConfigError if it holds records.

        ``producers``: those of the log so far, as a ``.snapshot`` file: repetitions are recognised, transactions that
        are open there stay open.
        """
        self.to_write().maintenance.start_at(offset, leader_epoch, producers)

    def begin_under(self, token: str | None, claim_epoch: int) -> None:
        """The bucket has granted the claim with this proof, and this log begins where it says: records may come."""
        self.to_write().beginning.granted = (token, claim_epoch)

    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """Leader epochs and their first offsets, ascending."""
        if os.getpid() != self._pid:
            self._check_process()
        return self.source.epochs.entries

    def new_leader_epoch(self, epoch: int) -> None:
        """Records from here on carry ``epoch``. ConfigError unless it is greater than all before."""
        self.to_write().new_leader_epoch(epoch)

    def apply_retention(self) -> list[int]:
        """One pass of the local retention rules now; returns the bases that left the disk."""
        return self.to_write().maintenance.apply_retention(self._clock.now_ms())

    def view(self) -> View:
        """What a read that begins now may see."""
        self._check_process()
        if self._writer is not None:
            return self._writer.view()
        return patient_view(self.source.view, self._clock)

    def to_write(self) -> PartitionWriter:
        """Its components. ConfigError where this process may not write, ForkedLogError in a fork."""
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
