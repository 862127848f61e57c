"""What a partition that is open for writing holds, and what it refuses in which condition."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tiered.clock import Clock, IdSource
from tiered.config import LogConfig, TopicConfig
from tiered.errors import ClosedError, FencedError, LocalIOError, TieredError
from tiered.local.disk.epochs import LeaderEpochs
from tiered.local.disk.files import Files
from tiered.local.disk.space import DiskReserve
from tiered.local.disk.uploads import PartitionUpload
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.validation import RecordRules
from tiered.local.segment.active import ActiveSegment
from tiered.local.segment.factory import SegmentFactory
from tiered.local.segment.found import LoadedPartition
from tiered.local.segment.reading import Extent, View
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")

SPARSE_NAME = "tiered-sparse"
"""Empty file in a partition that legitimately has offsets without records: a missing record is then no damage."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the partitions of a directory share. ``sealed`` is called, without locks, when a seal became durable.

    ``cut`` is called before a log is cut, with the offset at which it will end.
    """

    files: Files
    clock: Clock
    ids: IdSource
    config: LogConfig
    reserve: DiskReserve
    sealed: Callable[[], None]
    cut: Callable[[TopicPartition, int], None]


class PartitionState:
    """``upload`` is what the uploader last told, None while the log is not tiered.

    ``_flush_lock`` is taken before ``_lock``. Offline: a write or an fsync failed, nothing is acknowledged.
    """

    def __init__(
        self,
        around: Surroundings,
        directory: Path,
        tp: TopicPartition,
        *,
        topic_id: UUID,
        config: TopicConfig,
        epochs: LeaderEpochs,
        loaded: LoadedPartition,
        start_offset: int | None,
        recovery_point: int,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.epochs = epochs
        self.upload: PartitionUpload | None = PartitionUpload(0) if around.config.remote else None
        self._around = around
        self._files = around.files
        self.directory = directory
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._closing: list[ActiveSegment] = []
        self._trash: list[tuple[int, Path]] = []
        self._offline: TieredError | None = None
        self._closed = False
        self._ending = False  # close has begun: what changes the log is refused, what makes it durable goes on
        self._factory = SegmentFactory(around.files, around.ids, directory, tp, topic_id=topic_id, epochs=epochs)
        self.configure(config)
        now_ms = around.clock.now_ms()
        *sealed, tail = loaded.segments
        self._sealed = tuple(self._factory.adopt(segment) for segment in sealed)
        self._active = self._factory.resume(tail, now_ms)
        self._end = tail.end_offset
        self._flushed = min(recovery_point, self._end)
        self._new_names = True
        self.log_start = loaded.segments[0].base_offset if start_offset is None else start_offset
        if epochs.latest < 0:
            epochs.assign(0, self._end)
        self._epoch = epochs.latest
        self._epoch_unassigned = False
        self._sparse = around.files.state(directory / SPARSE_NAME) is not None
        self._producers = PartitionProducers(around.files, directory)
        self._last_retention_ms = self._last_flush_ms = now_ms

    @property
    def end_offset(self) -> int:
        """The next offset to be given."""
        return self._end

    @property
    def flushed_offset(self) -> int:
        """Records below survive a power cut."""
        return self._flushed

    @property
    def local_start(self) -> int:
        """The first offset on this disk."""
        sealed, active = self._sealed, self._active
        return max(sealed[0].base_offset if sealed else active.base_offset, self.log_start)

    @property
    def first_base(self) -> int:
        """Base of the first segment on this disk."""
        sealed, active = self._sealed, self._active
        return sealed[0].base_offset if sealed else active.base_offset

    @property
    def sealed(self) -> tuple[SealedLocalSegment, ...]:
        """Sealed segments whose files are durable."""
        flushed = self._flushed
        return tuple(segment for segment in self._sealed if segment.end_offset <= flushed)

    @property
    def offline(self) -> TieredError | None:
        """What the disk did to this partition; None while it is in service."""
        return self._offline

    @property
    def at_work(self) -> bool:
        """Neither closed nor offline."""
        return self._offline is None and not self._closed

    @property
    def fenced(self) -> bool:
        """Whether another volume owns the partition."""
        return self.upload is not None and self.upload.fenced

    def go_offline(self, error: TieredError) -> None:
        """The disk failed elsewhere in the directory: nothing is acknowledged here any more, either."""
        self._go_offline(error)

    def view(self) -> View:
        """What a read that begins now may see."""
        with self._lock:
            self._check_open()
            sealed, active, end = self._sealed, self._active, self._end
            tail = Extent(active.base_offset, end, active.size_bytes, active.max_timestamp, active)
            start = self.local_start
        extents = [Extent(s.base_offset, s.end_offset, s.size_bytes, None, s) for s in sealed]
        return View(self.tp, start, end, (*extents, tail), not (self.config.compacted or self._sparse))

    def stable_offset(self) -> int | None:
        """The first offset of the oldest open transaction, else the end; None while no producer was ever seen."""
        with self._lock:
            self._check_open()
            state = self._producers.state
            return None if state is None else state.last_stable_offset(self._end)

    def load_producers(self, *, met: bool) -> None:
        """After loading: the state at the end if there is a snapshot, or if the recovery ``met`` a producer."""
        if met or self._producers.any_on_disk():
            with self._lock:
                self._rebuild_producers()

    def _rebuild_producers(self) -> None:
        """From snapshots and batches. The lock is held."""
        start = self.log_start
        floor = start if self.upload is None else min(start, self.first_base - 1)  # the bucket knows what came before
        self._producers.rebuild(
            (*self._sealed, self._active),
            log_start=start,
            floor=floor,
            end=self._end,
            now_ms=self._around.clock.now_ms(),
        )

    def set_uploaded(self, upload: PartitionUpload) -> None:
        """What the bucket holds; a committed end never goes back."""
        with self._lock:
            known = self.upload
            if known is not None and upload.end_offset < known.end_offset:
                upload = PartitionUpload(known.end_offset, upload.claim_epoch, upload.fenced, upload.start_offset)
            self.upload = upload

    def configure(self, config: TopicConfig) -> None:
        """Takes over changed settings; the sizes of index files change with the next segment."""
        self.config = self._factory.config = config
        self._rules = RecordRules(config)
        self._flush_messages = config.flush_messages

    def _mark_sparse(self) -> None:
        """Durable before the first offset is left out: by a follower's append, a cut inside a batch, a cleaner."""
        if not self._sparse:
            self._files.replace(self.directory / SPARSE_NAME, b"")
            self._sparse = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.tp} was closed before")

    def _check_writable(self, *, fenced_too: bool = True) -> None:
        if self._closed or (self._ending and fenced_too):
            raise ClosedError(f"{self.tp} was closed before")
        if self._offline is not None:
            raise self._offline_error(self._offline)
        if fenced_too and self.upload is not None and self.upload.fenced:
            raise FencedError(
                f"{self.tp}: another volume owns this partition now; appends are refused, nothing here is deleted",
                hint="`tiered repair rejoin` moves what only this disk holds aside and starts again",
            )

    def _go_offline(self, error: TieredError) -> None:
        if self._offline is None:
            self._offline = error
            LOGGER.error("partition_offline partition=%s error=%s", self.tp, error)

    def _offline_error(self, error: TieredError) -> LocalIOError:
        return LocalIOError(
            f"{self.tp} is offline: {error.message}",
            hint="what was not flushed may be lost: repair the disk, then open the log again",
        )
