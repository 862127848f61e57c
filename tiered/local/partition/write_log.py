"""One partition that this process writes: its components, their locks, its open and its close.

``context.lock`` guards all state. It is never held across an fsync of records. ``durability.lock`` is for fsyncs. A
thread that needs both takes ``durability.lock`` first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tiered.config import TopicConfig
from tiered.errors import LocalIOError, TieredError
from tiered.format.coordinator_records import is_state_log
from tiered.format.locks import Signal
from tiered.format.producer_snapshot import ProducerEntry
from tiered.local.disk.files import make_inside
from tiered.local.disk.partition_files import SPARSE_NAME, LeaderEpochs
from tiered.local.disk.topics import TopicInfo, ensure_topic_id
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.partition.appender import FirstAppendGuard, PartitionAppender
from tiered.local.partition.context import DirectoryContext, PartitionContext
from tiered.local.partition.durability import Durability
from tiered.local.partition.log_segments import LoadedLog, LogSegments
from tiered.local.partition.maintenance import Maintenance
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.read_log import ReadLog, positions_of
from tiered.local.recovery.recovery import UNKNOWN_POINT, Recovery
from tiered.local.segment.read_view import Extent, View
from tiered.local.segment.sealed import OwningLog, SealedLocalSegment
from tiered.local.segment.side_files import SEAL_SUFFIX, write_note
from tiered.model import NewRecord, PackedBatch, Positions, RecordMetadata, TopicPartition
from tiered.plan.producer import ProducerStamp
from tiered.plan.visibility import OpenTxn

if TYPE_CHECKING:
    from tiered.format.columns import RecordColumns
LOGGER = logging.getLogger("tiered.local")


class WriteLog(ReadLog):
    """One partition on this disk, for writing. Thread-safe. In a forked child, reads and writes raise ForkedLogError.

    The log directory uses its components directly: ``appender``, ``durability``, ``maintenance``, ``producers``.
    """

    def __init__(
        self, around: DirectoryContext, directory: Path, tp: TopicPartition, topic: TopicInfo, loaded: LoadedLog
    ) -> None:
        super().__init__(
            around.files,
            directory,
            tp,
            topic_id=topic.topic_id,
            epochs=loaded.epochs,
            buffer_bytes=around.config.read_buffer_bytes,
        )
        self._ended_clean = False  # until a close has ended, which an interrupt may keep it from
        owner = OwningLog(directory, tp, topic.topic_id, topic.config.index_interval_bytes, loaded.epochs.below)
        self.segments = LogSegments(
            around.files, around.ids, owner, config=topic.config, loaded=loaded, now_ms=around.clock.now_ms()
        )
        upload = loaded.upload
        if upload is None and around.config.remote and not is_state_log(tp.topic):
            upload = PartitionUpload(0)
        self.context = context = PartitionContext(around, self.segments, loaded.epochs, upload)
        self.beginning = beginning = FirstAppendGuard(context)
        self.producers = producers = PartitionProducers(context)
        self.durability = durability = Durability(context, flushed=loaded.recovery_point)
        self.maintenance = Maintenance(context, durability=durability, producers=producers)
        context.mend = self.maintenance.mend
        self.appender = PartitionAppender(
            context, durability=durability, maintenance=self.maintenance, producers=producers, beginning=beginning
        )
        self._configure_parts(topic.config)

    @property
    def config(self) -> TopicConfig:
        """Return the topic's settings as they are now."""
        return self.segments.config

    @property
    def upload(self) -> PartitionUpload | None:
        """Return the uploader's last report, None while the log is not tiered."""
        return self.context.upload

    @property
    def end_offset(self) -> int:
        """Return the next offset to be assigned."""
        self._check_process()
        return self.segments.end

    @property
    def log_start(self) -> int:
        """Return the first offset that may be read, from this disk or from a bucket."""
        return self.segments.log_start

    @property
    def sealed(self) -> tuple[SealedLocalSegment, ...]:
        """Return the sealed segments whose files are durable."""
        return self.durability.durable_segments

    def watch(self, signal: Signal) -> bool:
        """Set ``signal`` after each later append and at the close. Return True."""
        self._check_process()
        self.context.watch(signal)
        return True

    def unwatch(self, signal: Signal) -> None:
        """Remove ``signal``, which :meth:`watch` added."""
        self.context.unwatch(signal)

    def positions(self) -> Positions:
        """Return the start of the partition, its start on this disk, and its uploaded, flushed and appended ends."""
        self._check_process()
        # In this order: what the bucket holds is below what is durable, which is below the end.
        upload, flushed, segments = self.context.upload, self.durability.flushed, self.segments
        return positions_of(upload, segments.log_start, segments.local_start, flushed, segments.end)

    def view(self) -> View:
        """Return an immutable list of the segments, for a read that begins now."""
        self._check_process()
        segments = self.segments
        with self.context.lock:
            self.context.check_readable()
            active, end = segments.active, segments.end
            tail = Extent(active.base_offset, end, active.size_bytes, active.max_timestamp, active)
            return View(self.tp, segments.local_start, end, segments.extents, tail, segments.dense)

    def open_txns(self) -> list[OpenTxn]:
        """Return the open transactions, ordered by first offset.

        ``read_committed`` reads up to the first offset of the oldest.
        """
        self._check_process()
        with self.context.lock:
            self.context.check_open()
            return self.producers.open_txns()

    def last_stable_offset(self) -> int:
        """Return the end for ``read_committed``: the first offset of the oldest open transaction, or the end."""
        bound = self.end_offset
        known = self.stable_offset()
        return super().last_stable_offset() if known is None else min(known, bound)

    def stable_offset(self) -> int | None:
        """Return the first offset of the oldest open transaction, or the end. None without producers.

        Raises CorruptionError if damage hides which transactions are open.
        """
        with self.context.lock:
            self.context.check_open()
            return self.producers.stable_offset()

    def live_producers(self) -> tuple[ProducerEntry, ...]:
        """Return the snapshot entry of each producer now in memory, in the order of their ids."""
        with self.context.lock:
            self.context.check_open()
            return self.producers.entries()

    def append(self, records: Sequence[NewRecord]) -> RecordMetadata:
        """Append the records as one atomic batch at the next offsets. On return the batch is in the page cache.

        Returns:
            The place of the batch, with the timestamp of its first record (the log's time with LogAppendTime).

        Raises:
            InvalidRecordError, InvalidTimestampError, RecordTooLargeError: the record at the error's ``index`` is
                refused, and nothing was appended.
            ClosedError, DiskFullError, FencedError, TooManyOpenFilesError: nothing was appended.
            NotDurableError: the records are in the log, but the flush that ``flush.messages`` needs has failed.
            LocalIOError: the disk failed, and the partition goes offline. The records may be in the log, and a crash
                may lose them.
        """
        self._check_process()
        return self.appender.append(records)

    def append_packed(self, batch: PackedBatch) -> RecordMetadata | None:
        """Append a batch that the caller encoded, and return its place.

        Return None, without an append, if the topic's codec, size limit, keys or timestamps forbid these bytes.
        Raises ClosedError, DiskFullError or FencedError: nothing was appended. NotDurableError: only a due flush
        failed. After another LocalIOError the batch may be in the log.
        """
        self._check_process()
        return self.appender.append_packed(batch)

    def append_as_producer(self, records: Sequence[object], stamp: ProducerStamp) -> RecordMetadata:
        """Append one atomic batch of an open transaction. ``read_committed`` shows it once the transaction committed.

        ``records``: in any form that ``append_many`` accepts. ``stamp``: the producer's id and epoch, and the sequence
        of the first record. Raises OutOfOrderSequenceError, ProducerFencedError or InvalidTxnStateError for a wrong
        sequence, epoch or transaction state, InvalidRecordError for a refused record, ClosedError, DiskFullError or
        FencedError. Then nothing is appended. NotDurableError: only a due flush failed. After another LocalIOError the
        batch may be in the log.
        """
        self._check_process()
        return self.appender.append_as_producer(records, stamp)

    def append_batches(self, data: bytes) -> RecordMetadata:
        """Append the encoded batches in ``data``, all or none. They get the next offsets and the log's leader epoch.

        A v2 batch is encoded again only if the topic's codec differs, or if its records are not numbered in order. One
        that spans more offsets than it has records is refused, such as a batch of a compacted topic. Batches of v0 and
        v1 become v2. A record without timestamp stays without one. The result's ``timestamp`` is the largest one.
        Raises InvalidRecordError for a refused batch, ClosedError, DiskFullError or FencedError: nothing was appended.
        NotDurableError: only a due flush failed. After another LocalIOError the batches may be in the log.

        A producer's batch is appended once. A repetition of one of the producer's five newest batches (after a restart:
        of the newest) appends nothing and returns the existing offsets. Raises OutOfOrderSequenceError,
        ProducerFencedError or InvalidTxnStateError for a wrong sequence, epoch or transaction state.
        """
        self._check_process()
        return self.appender.append_batches(data)

    def append_columns(self, records: RecordColumns) -> RecordMetadata:
        """Append the rows of ``records``, which the caller checked, as one atomic batch. Return its place.

        Raises RecordTooLargeError, ClosedError, DiskFullError or FencedError: nothing was appended. NotDurableError:
        only a due flush failed. After another LocalIOError the batch may be in the log.
        """
        self._check_process()
        return self.appender.append_columns(records)

    def append_as_coordinator(self, data: bytes) -> RecordMetadata:
        """Append one encoded batch of a coordinator, usually the marker that ends a transaction.

        Sequences are not checked. Raises InvalidRecordError unless ``data`` is one v2 batch of a producer,
        ProducerFencedError if its epoch or the coordinator's is too old, CorruptionError for damage. Raises
        FencedError if another volume owns the partition, ClosedError, DiskFullError. Nothing is appended then. After
        another LocalIOError the batch may be in the log.
        """
        self._check_process()
        return self.appender.append_as_coordinator(data)

    def flush(self) -> None:
        """Make all records durable that were appended before this call. Threads share one fsync.

        Raises LocalIOError if an fsync fails: the partition goes offline, since the kernel may have dropped the pages.
        Raises NotDurableError if a file could not be opened: flush again. Raises ClosedError after the close.
        """
        self._check_process()
        self.durability.flush()

    def roll(self) -> bool:
        """Seal the active segment, durably, if it holds records. Return True if it was sealed."""
        self._check_process()
        return self.maintenance.roll()

    def delete_local_before(self, offset: int) -> list[int]:
        """Delete whole sealed segments below ``offset`` from the disk. Return their base offsets.

        Segments that are not flushed yet stay. In a tiered log, segments that are not uploaded yet stay, too.
        """
        self._check_process()
        return self.maintenance.delete_local_before(offset)

    def truncate_to(self, offset: int) -> None:
        """Truncate the log at ``offset``, durably. A batch that reaches beyond ``offset`` is removed whole.

        A log that ends at or below ``offset`` keeps its records. An ``offset`` below the first segment removes all
        segments, and an empty log begins there. Raises ConfigError if ``offset`` is negative or below the bucket's end.
        Raises CorruptionError, before any change, if damage hides the batch at ``offset``.
        """
        self._check_process()
        self.maintenance.truncate_to(offset)

    def set_uploaded(
        self, end_offset: int, claim_epoch: int = -1, fenced: bool = False, start_offset: int = -1
    ) -> None:
        """Store the state of the bucket, from a root that was *read back*. From then on the log counts as tiered.

        ``end_offset``: exclusive end of the committed records; a stored one never decreases. ``claim_epoch``: epoch of
        this volume's claim, -1 if none. ``fenced``: another volume's newer claim owns the partition. ``start_offset``:
        first offset in the bucket, -1 if unknown.
        """
        self._check_process()
        with self.context.lock:
            self.context.note_upload(PartitionUpload(end_offset, claim_epoch, fenced, start_offset))

    def start_at(self, offset: int, leader_epoch: int, producers: bytes = b"") -> None:
        """Let an empty log begin at ``offset`` with ``leader_epoch``.

        ``producers``: content of the ``.snapshot`` file at ``offset``; empty: none. Repeated batches of these producers
        are recognised, and their open transactions stay open. Raises ConfigError if the log has records, or if
        ``offset`` or ``leader_epoch`` is negative.
        """
        self._check_process()
        self.maintenance.start_at(offset, leader_epoch, producers)

    def permit_first_append(self, token: str | None, claim_epoch: int) -> None:
        """Permit the first append to an empty log: the claim with this token and epoch is committed in the bucket."""
        self._check_process()
        self.beginning.granted = (token, claim_epoch)

    def new_leader_epoch(self, epoch: int) -> None:
        """Use the leader epoch ``epoch`` for later records.

        Raises ConfigError unless ``epoch`` is higher than all earlier epochs.
        """
        self._check_process()
        with self.context.lock:
            self.context.check_writable(fenced_too=False)
            self.context.start_leader_epoch(epoch, self.segments.end)

    def apply_retention(self) -> list[int]:
        """Apply the local retention rules once. Return the base offsets of the deleted segments."""
        self._check_process()
        return self.maintenance.apply_retention(self.context.clock.now_ms())

    def configure(self, config: TopicConfig) -> None:
        """Apply changed settings. Settings of index files apply from the next segment on."""
        with self.context.lock:
            self.segments.configure(config)
            self._configure_parts(config)

    def _configure_parts(self, config: TopicConfig) -> None:
        self.appender.configure(config)
        self.durability.interval_ms = config.flush_ms
        self.context.deleted.delay_ms = config.file_delete_delay_ms

    def check_caller(self) -> None:
        """Raise ReentrantCallError if this thread is inside a flush, an append or another change of this partition."""
        self.durability.lock.check_caller()
        self.context.lock.check_caller()

    def close(self, timeout_seconds: float) -> bool:
        """Close the partition: make all records durable and cut preallocated zeros off the index files.

        Return True if both succeeded. A second call returns the same result. Raises LocalIOError, without a close, if
        another thread's write or fsync takes longer than ``timeout_seconds``.
        """
        hint = "the disk hangs: read the kernel log (`dmesg`), then end this process, which keeps the log's lock"
        if not self.durability.lock.hold(timeout_seconds):  # which raises in the thread that is inside a flush
            raise LocalIOError(
                f"{self.tp} was not closed: an fsync has not returned for {timeout_seconds} s", hint=hint
            )
        self.durability.lock.release()
        if not self.context.lock.hold(timeout_seconds):
            raise LocalIOError(f"{self.tp} was not closed: a write has not returned for {timeout_seconds} s", hint=hint)
        try:
            self.context.ending = True  # no append gets in between this and the seal
            if not self.context.closed:
                self.context.roll_back_append()
        finally:
            self.context.lock.release()
        if self.context.closed:
            return self._ended_clean
        clean = self.context.offline is None
        try:
            if clean:
                self._end_active()
        except TieredError as error:
            LOGGER.warning("close_failed partition=%s error=%s", self.tp, error)
            clean = False
        finally:
            with self.context.lock:
                self.context.closed = True
                for segment in (*self.segments.closing, self.segments.active):
                    segment.close()
                self.context.notify()
        self._ended_clean = clean
        return clean

    def _end_active(self) -> None:
        """Seal the active segment and make it durable. After a clean open without changes a snapshot is enough."""
        if self.segments.as_opened():
            with self.context.lock:
                self.producers.write_snapshot(self.segments.end)
            return
        with self.context.lock:
            active = self.segments.active
            active.seal()
            active.note_producers(self.producers.write_snapshot(self.segments.end))
        self.durability.flush_closing()
        if active.stats is not None and active.size_bytes:
            active.stats.first_append_ms = active.first_append_ms
            write_note(self.context.files, active.path.with_suffix(SEAL_SUFFIX), active.noted())


def open_partition(
    around: DirectoryContext,
    path: Path,
    tp: TopicPartition,
    topic: TopicInfo,
    *,
    clean: bool,
    recovery_point: int = UNKNOWN_POINT,
    start: int | None = None,
    upload: PartitionUpload | None = None,
) -> WriteLog:
    """Open the partition in ``path`` for writing and return it. A missing directory is created.

    ``clean`` False: recover it, because the last shutdown was not clean. ``recovery_point``: records below it are
    durable. ``start``: the log start in the checkpoint, None without one. ``upload``: the uploader's last report.
    """
    files = around.files
    if not files.is_directory(path):
        make_inside(files, path)
        clean = True
    ensure_topic_id(path, files, topic.topic_id)
    if topic.adopted and files.state(path / SPARSE_NAME) is None:  # it may have been compacted, whatever it is now
        files.replace(path / SPARSE_NAME, b"")
    epochs = LeaderEpochs(path, files)
    recovery = Recovery(
        files,
        path,
        tp,
        epochs=epochs,
        interval_bytes=topic.config.index_interval_bytes,
        now_ms=around.clock.now_ms(),
        keeps_point=not topic.adopted,
        dense=not topic.config.compacted and files.state(path / SPARSE_NAME) is None,
    )
    segments = recovery.load(clean=clean, recovery_point=recovery_point, start_offset=start or 0)
    point = segments[-1].end_offset if clean else max(recovery_point, 0)
    log = WriteLog(around, path, tp, topic, LoadedLog(segments, epochs, start, point, upload))
    with log.context.lock:
        log.producers.load(met=recovery.met_producers)
    if clean:
        log.segments.note_opened()
    else:
        log.durability.flush_recovered()
    return log
