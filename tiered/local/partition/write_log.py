"""One partition that this process writes: its components, their locks, its open and its close.

``context.lock`` guards all state. It is never held across an fsync of records. ``durability.lock`` is for fsyncs. A
thread that needs both takes ``durability.lock`` first.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tiered.config import TopicConfig
from tiered.errors import LocalIOError, TieredError
from tiered.format.coordinator_records import is_state_log
from tiered.format.locks import Signal
from tiered.format.producer_snapshot import ProducerEntry
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.partition.appender import Appends, FirstAppendGuard
from tiered.local.partition.context import DirectoryContext, PartitionContext
from tiered.local.partition.durability import Durability
from tiered.local.partition.log_segments import LoadedLog, LogSegments
from tiered.local.partition.maintenance import Maintenance
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.read_log import ReadLog, positions_of
from tiered.local.segment.read_view import Extent, View
from tiered.local.segment.sealed import OwningLog, SealedLocalSegment
from tiered.local.segment.side_files import SEAL_SUFFIX, write_note
from tiered.model import Positions, TopicPartition
from tiered.plan.visibility import OpenTxn

if TYPE_CHECKING:
    pass
LOGGER = logging.getLogger("tiered.local")


class WriteLog(Appends, ReadLog):
    """One partition on this disk, for writing. Thread-safe. In a forked child, reads and writes raise ForkedLogError.

    The log directory uses its components directly: ``durability``, ``maintenance``, ``producers``.
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
        self.beginning = FirstAppendGuard(context)
        self.producers = producers = PartitionProducers(context)
        self.durability = durability = Durability(context, flushed=loaded.recovery_point)
        self.maintenance = Maintenance(context, durability=durability, producers=producers)
        context.mend = self.maintenance.mend
        self._begin_appends()
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
            known = self.context.upload
            end_offset = max(end_offset, known.end_offset if known is not None else 0)
            self.context.upload = PartitionUpload(end_offset, claim_epoch, fenced, start_offset)

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
        self._use_rules(config)
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
                self.context.mend_interrupted()
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
            active.snapshot = self.producers.write_snapshot(self.segments.end)
        self.durability.flush_closing()
        if active.stats is not None and active.size_bytes:
            active.stats.first_append_ms = active.first_append_ms
            write_note(self.context.files, active.path.with_suffix(SEAL_SUFFIX), active.noted())
