"""A partition that is open for writing: its components, their lock, its beginning and its end.

One lock guards all that changes (``_lock``, held by the components where they say so), never across an fsync of
records. ``durability`` has a second one for those, taken before the first: ``durability.lock``, then ``_lock``.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tiered.config import TopicConfig
from tiered.errors import LocalIOError, TieredError
from tiered.format.coordinator_records import is_state_log
from tiered.format.producer_snapshot import ProducerEntry
from tiered.local.disk.epochs import LeaderEpochs
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.partition.appender import PartitionAppender
from tiered.local.partition.context import DirectoryContext, PartitionContext
from tiered.local.partition.durability import Durability
from tiered.local.partition.first_append_guard import FirstAppendGuard
from tiered.local.partition.log_segments import LogSegments
from tiered.local.partition.maintenance import Maintenance
from tiered.local.partition.producers import PartitionProducers
from tiered.local.segment.factory import FoundSegment, SegmentFactory
from tiered.local.segment.read_view import Extent, View
from tiered.local.segment.seal import SEAL_SUFFIX, write_note
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import TopicPartition
from tiered.plan.visibility import OpenTxn

LOGGER = logging.getLogger("tiered.local")


class PartitionWriter:
    """Thread-safe. Callers talk to its components: ``appender``, ``durability``, ``maintenance`` and so on."""

    def __init__(
        self,
        around: DirectoryContext,
        directory: Path,
        tp: TopicPartition,
        *,
        topic: TopicInfo,
        epochs: LeaderEpochs,
        loaded: list[FoundSegment],
        start_offset: int | None,
        recovery_point: int,
    ) -> None:
        self.tp = tp
        self.topic_id = topic.topic_id
        self.directory = directory
        self.epochs = epochs
        self._ended_clean = False  # until a close has ended, which an interrupt may keep it from
        factory = SegmentFactory(
            around.files, around.ids, directory, tp, topic_id=topic.topic_id, epochs=epochs, config=topic.config
        )
        self.segments = LogSegments(
            around.files, factory, loaded, start_offset=start_offset, now_ms=around.clock.now_ms()
        )
        upload = PartitionUpload(0) if around.config.remote and not is_state_log(tp.topic) else None
        self.context = context = PartitionContext(around, self.segments, epochs, upload)
        self.beginning = beginning = FirstAppendGuard(context)
        self.producers = producers = PartitionProducers(context)
        self.durability = durability = Durability(context, flushed=recovery_point)
        self.maintenance = Maintenance(context, durability=durability, producers=producers)
        context.mend = self.maintenance.mend
        self.appender = PartitionAppender(
            context, durability=durability, maintenance=self.maintenance, producers=producers, beginning=beginning
        )
        self._take_over(topic.config)

    @property
    def config(self) -> TopicConfig:
        """The topic's settings as they are now."""
        return self.segments.config

    @property
    def upload(self) -> PartitionUpload | None:
        """Last report of the uploader, None while the log is not tiered."""
        return self.context.upload

    @property
    def end_offset(self) -> int:
        """The next offset to be given."""
        return self.segments.end

    @property
    def log_start(self) -> int:
        """The first offset that may be read, here or in a bucket."""
        return self.segments.log_start

    @property
    def sealed(self) -> tuple[SealedLocalSegment, ...]:
        """Sealed segments whose files are durable."""
        return self.durability.durable_segments

    @property
    def preallocated(self) -> bool:
        """True if the active ``.log`` is, or the next one will be, longer than what was appended."""
        return self.config.preallocate or self.segments.active.preallocated

    @property
    def cuts(self) -> int:
        """How often the log was cut since the open; no cut is under way when this returns."""
        with self.context.lock:
            return self.segments.cuts

    @property
    def trash_bytes(self) -> int:
        """Bytes of files that wait for their ``file.delete.delay.ms``."""
        return self.context.deleted.size_bytes

    def view(self) -> View:
        """Return the view of a read that begins now."""
        segments = self.segments
        with self.context.lock:
            self.context.check_readable()
            active, end = segments.active, segments.end
            tail = Extent(active.base_offset, end, active.size_bytes, active.max_timestamp, active)
            return View(self.tp, segments.local_start, end, segments.extents, tail, segments.dense)

    def stable_offset(self) -> int | None:
        """Return :meth:`PartitionProducers.stable_offset`."""
        with self.context.lock:
            self.context.check_open()
            return self.producers.stable_offset()

    def live_producers(self) -> tuple[ProducerEntry, ...]:
        """Return :meth:`PartitionProducers.entries`."""
        with self.context.lock:
            self.context.check_open()
            return self.producers.entries()

    def open_txns(self) -> list[OpenTxn]:
        """Transactions without marker, by first offset."""
        with self.context.lock:
            self.context.check_open()
            return self.producers.open_txns()

    def load_producers(self, *, met: bool) -> None:
        """Load the state at the end, after loading, if a snapshot or the recovery (``met``) shows producers."""
        with self.context.lock:
            self.producers.load(met=met)

    def set_uploaded(self, upload: PartitionUpload) -> None:
        """Note what the bucket holds. A committed end never decreases."""
        with self.context.lock:
            self.context.tell_upload(upload)

    def new_leader_epoch(self, epoch: int) -> None:
        """Records appended from here on carry ``epoch``, which must be greater than all before."""
        with self.context.lock:
            self.context.check_writable(fenced_too=False)
            self.context.lead(epoch, self.segments.end)

    def configure(self, config: TopicConfig) -> None:
        """Takes over changed settings at once; those of index files begin with the next segment."""
        with self.context.lock:
            self.segments.configure(config)
            self._take_over(config)

    def _take_over(self, config: TopicConfig) -> None:
        self.appender.configure(config)
        self.durability.interval_ms = config.flush_ms
        self.context.deleted.delay_ms = config.file_delete_delay_ms

    def check_caller(self) -> None:
        """Raises ReentrantCallError in a thread that is inside a flush, an append or another change of it."""
        self.durability.lock.check_caller()
        self.context.lock.check_caller()

    def close(self, timeout_seconds: float) -> bool:
        """Durable and trimmed; returns whether all of it is. LocalIOError if a thread does not let go in time."""
        if not self.durability.lock.hold(timeout_seconds):  # which raises in the thread that is inside a flush
            raise LocalIOError(f"{self.tp}: an fsync has not returned for {timeout_seconds} s")
        self.durability.lock.release()
        if not self.context.lock.hold(timeout_seconds):
            raise LocalIOError(f"{self.tp}: a write has not returned for {timeout_seconds} s")
        try:
            self.context.ending = True  # no append gets in between this and the seal
            if not self.context.closed:
                self.context.settle()
        finally:
            self.context.lock.release()
        if self.context.closed:
            return self._ended_clean
        clean = self.context.offline is None
        try:
            if clean and self.segments.as_opened():
                with self.context.lock:
                    self.producers.take(self.segments.end)
            elif clean:
                with self.context.lock:
                    active = self.segments.active
                    active.seal()
                    active.note_producers(self.producers.take(self.segments.end))
                self.durability.flush_closing()
                if active.stats is not None and active.size_bytes:
                    active.stats.first_append_ms = active.first_append_ms
                    write_note(self.context.files, active.path.with_suffix(SEAL_SUFFIX), active.noted())
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
