"""What a partition that is open for writing holds, and what it refuses in which condition."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from tiered.clock import Clock, IdSource
from tiered.config import LogConfig, TopicConfig
from tiered.errors import ClosedError, FencedError, LocalIOError, TieredError
from tiered.format.coordinator_records import TRANSACTION_STATE_TOPIC
from tiered.format.producer_snapshot import ProducerEntry
from tiered.local.disk.claims import Claims
from tiered.local.disk.epochs import LeaderEpochs
from tiered.local.disk.files import Files
from tiered.local.disk.space import DiskReserve
from tiered.local.disk.uploads import PartitionUpload, UploadCheckpoint
from tiered.local.partition.beginning import BEGIN_PATIENCE_S, BEGIN_POLL_S, Beginning
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.validation import RecordRules
from tiered.local.segment.active import ActiveSegment
from tiered.local.segment.factory import SegmentFactory
from tiered.local.segment.found import LoadedPartition
from tiered.local.segment.reading import Extent, View
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import TopicPartition
from tiered.plan.open_txns import OpenTxn

LOGGER = logging.getLogger("tiered.local")

SPARSE_NAME = "tiered-sparse"
"""Empty file in a partition that legitimately has offsets without records: a missing record is then no damage."""

WATERMARK_NAME = "tiered-follows"
"""Empty file in a partition whose high watermark somebody else tells; in all others it is the end."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the partitions of a directory share. ``sealed`` is called, without locks, when a seal became durable.

    ``cut`` is called before a log is cut: at which offset it will end, and the lowest end that a crash may leave.
    ``failed`` is told what took a partition offline, possibly under its locks. ``claims`` and ``uploads``: what the
    directory's files say of claims and of committed ends, as of now.
    """

    files: Files
    clock: Clock
    ids: IdSource
    config: LogConfig
    reserve: DiskReserve
    sealed: Callable[[], None]
    cut: Callable[[TopicPartition, int, int], None]
    failed: Callable[[TieredError], None]
    claims: Claims
    uploads: UploadCheckpoint


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
        high_watermark: int | None = None,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.epochs = epochs
        tiered = around.config.remote and tp.topic != TRANSACTION_STATE_TOPIC
        self.upload: PartitionUpload | None = PartitionUpload(0) if tiered else None
        self._around = around
        self._files = around.files
        self.directory = directory
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._closing: list[ActiveSegment] = []
        self._trash: list[tuple[int, Path]] = []
        self._offline: TieredError | None = None
        self._halfway = False  # a cut or an exchange failed midway: the files are not what the segments say
        self._closed = False
        self._ending = False  # close has begun: what changes the log is refused, what makes it durable goes on
        self._factory = SegmentFactory(around.files, around.ids, directory, tp, topic_id=topic_id, epochs=epochs)
        self._take_over(config)
        now_ms = around.clock.now_ms()
        self._sparse = around.files.state(directory / SPARSE_NAME) is not None
        self._factory.dense = not self._sparse
        *sealed, tail = loaded.segments
        self._sealed = tuple(self._factory.adopt(segment) for segment in sealed)
        self._active = self._factory.resume(tail, now_ms)
        self._end = tail.end_offset
        self.beginning = Beginning(tp, around.claims, around.uploads)
        self._begun = bool(self._sealed or self._active.size_bytes)  # what it holds was given its offsets before
        self._was_patient = False
        self._flushed = min(recovery_point, self._end)
        self._gap = (self._end, self._end)  # the offsets at the end that a cut left without records
        self._new_names = True
        self._opened: tuple[ActiveSegment, tuple[SealedLocalSegment, ...], int] | None = None
        self.log_start = loaded.segments[0].base_offset if start_offset is None else start_offset
        if epochs.latest < 0:
            epochs.assign(0, self._end)
        self._epoch = epochs.latest
        self._epoch_unassigned = False
        self._watermark: int | None = None  # as it was told; None: it is the end
        if around.files.state(directory / WATERMARK_NAME) is not None:
            self._watermark = self.log_start if high_watermark is None else high_watermark
        verify = around.config.transaction_partition_verification
        self._producers = PartitionProducers(around.files, directory, verify=verify)
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
    def recovery_point(self) -> int:
        """The same, for the next open: where a cut left offsets without records at the end, they are not promised.

        Else a torn batch, which is looked for where the batch before it ends, would count as one that was safe.
        """
        records_end, end = self._gap
        return records_end if records_end < self._flushed <= end else self._flushed

    @property
    def high_watermark(self) -> int:
        """Records below are on every replica. A log that has no leader above it and no followers: its end."""
        told = self._watermark
        return self._end if told is None else max(min(told, self._end), self.log_start)

    @property
    def told_watermark(self) -> int | None:
        """The high watermark as a leader or followers told it; None: the log is alone."""
        return self._watermark

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
        """Sealed segments whose files are durable, and whose records are on every replica."""
        bound = min(self._flushed, self.high_watermark)
        return tuple(segment for segment in self._sealed if segment.end_offset <= bound)

    @property
    def active_bytes(self) -> int:
        """Bytes of the active segment."""
        return self._active.size_bytes

    @property
    def offline(self) -> TieredError | None:
        """What the disk did to this partition; None while it is in service."""
        return self._offline

    @property
    def preallocated(self) -> bool:
        """Whether the active ``.log`` is, or the next one will be, longer than what was appended."""
        return self.config.preallocate or self._active.preallocated

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
        self._offline = self._offline or error

    def view(self) -> View:
        """What a read that begins now may see."""
        with self._lock:
            self._check_open()
            if self._halfway and self._offline is not None:
                raise self._offline_error(self._offline)
            sealed, active, end = self._sealed, self._active, self._end
            tail = Extent(active.base_offset, end, active.size_bytes, active.max_timestamp, active)
            start = self.local_start
        extents = [Extent(s.base_offset, s.end_offset, s.size_bytes, None, s, s.reach) for s in sealed]
        return View(self.tp, start, end, (*extents, tail), not (self.config.compacted or self._sparse))

    def stable_offset(self) -> int | None:
        """The first offset of the oldest open transaction, else the high watermark; None: no producer was ever seen.

        Raises CorruptionError where damage hides which transactions are open.
        """
        with self._lock:
            self._check_open()
            if self._producers.unsure is not None:
                raise self._producers.unsure
            state = self._producers.state
            return None if state is None else state.last_stable_offset(self.high_watermark)

    def live_producers(self) -> tuple[ProducerEntry, ...]:
        """What each producer wrote last, by rising id, as this log would tell it its next sequence."""
        with self._lock:
            self._check_open()
            state = self._producers.state
            return () if state is None else state.entries()

    def open_txns(self) -> list[OpenTxn]:
        """Transactions without marker, by first offset."""
        with self._lock:
            self._check_open()
            state = self._producers.state
            return [] if state is None else state.describe_open_txns()

    def settle_start(self) -> None:
        """A loaded log that no bucket continues begins at its first segment or above, and so do its epochs."""
        if self.upload is None:
            self.log_start = max(self.log_start, self.first_base)
            self.epochs.truncate_from_start(self.log_start)
            self._producers.raise_log_start(self.log_start)

    def load_producers(self, *, met: bool) -> None:
        """After loading: the state at the end if a snapshot tells of producers, or if the recovery ``met`` one."""
        with self._lock:
            stats = self._active.stats
            rolled = bool(self._sealed) or (stats is not None and stats.producers > 0)
            unknown = rolled and self._producers.are_unknown()  # a roll, and a close, leave a snapshot
            self._rebuild_producers(met or unknown or self._producers.any_on_disk())
            state = self._producers.state
            if unknown and state is not None and not len(state) and self.first_base == 0:
                self._producers.forget(0)  # all of it was looked at: nobody ever wrote
                self._rebuild_producers(some=False)

    def _rebuild_producers(self, some: bool) -> None:
        """From snapshots and batches, if there are ``some``. The lock is held."""
        if not some:
            bases = [*(segment.base_offset for segment in self._sealed), self._active.base_offset]
            self._producers.load_plain(bases, log_start=self.log_start, end=self._end)
            return
        start = self.log_start
        floor = start if self.upload is None else min(start, self.first_base - 1)  # the bucket knows what came before
        self._producers.rebuild(
            (*self._sealed, self._active),
            log_start=start,
            floor=floor,
            end=self._end,
            high_watermark=self.high_watermark,
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
        """Takes over changed settings at once; those of index files begin with the next segment."""
        with self._lock:
            self._take_over(config)
            self._active.configure(config)

    def _take_over(self, config: TopicConfig) -> None:
        self.config = self._factory.config = config
        self._rules = RecordRules(config)
        self._flush_messages = config.flush_messages

    def update_high_watermark(self, offset: int | None) -> int:
        """What the leader told, or the slowest of those that follow; bounded by log start and end. Returns it.

        From then on it moves only by being told. None: nobody follows and nobody leads, it is the end again.
        """
        with self._lock:
            self._check_writable(fenced_too=False)
            self._tell_watermark(offset)
            return self.high_watermark

    def _tell_watermark(self, offset: int | None) -> None:
        """The lock is held."""
        mark = self.directory / WATERMARK_NAME
        if offset is None and self._watermark is not None:
            self._files.unlink(mark)
        elif offset is not None and self._watermark is None:
            self._files.replace(mark, b"")
        self._watermark = offset if offset is None else max(min(offset, self._end), self.log_start)
        self._producers.advance_high_watermark(self.high_watermark)

    def _mark_sparse(self) -> None:
        """Durable before the first offset is left out: by a follower's append, a cut inside a batch, a cleaner."""
        if not self._sparse:
            self._files.replace(self.directory / SPARSE_NAME, b"")
            self._sparse = True
            self._factory.dense = False

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

    def _check_continues(self) -> None:
        """Refuses to give out offsets that the bucket has given to other records: the end below its end is the mark.

        So ends a log that was cut on purpose, or whose tail was lost; it lasts over restarts, until a rejoin.
        """
        if self.upload is not None and self._end < self.upload.end_offset:
            raise FencedError(
                f"{self.tp} ends at offset {self._end} on this disk, and the bucket holds all below"
                f" {self.upload.end_offset}: appends would give other records the same offsets",
                hint=f"`tiered repair rejoin {self.tp.topic}:{self.tp.partition}` sets this disk's files aside and"
                " goes on where the bucket ends",
            )

    def _await_beginning(self) -> None:
        """Waits, once, for an uploader that claims this log without records just now. No lock is held."""
        if self._begun or self._was_patient:
            return
        clock = self._around.clock
        deadline = clock.monotonic() + BEGIN_PATIENCE_S
        while self.beginning.obstacle(self._end):
            if clock.monotonic() >= deadline:
                self._was_patient = True
                return  # the append itself is refused
            clock.sleep(BEGIN_POLL_S)

    def _need_beginning(self) -> str | None:
        """The proof beside which the first record may be written. The lock is held."""
        token = self.beginning.token()  # before the obstacles: a proof that comes between the two is found afterwards
        why = self.beginning.obstacle(self._end)
        if why:
            raise self.beginning.refusal(self._end, why)
        return token

    def _settle_beginning(self, token: str | None, *, follows: bool) -> None:
        """The first record is written; it counts only if nobody has claimed the log as empty since. The lock is held.

        What the uploader then tells of the claim says whether appends go on.
        """
        self._begun = True
        if not follows and self.beginning.token() != token:
            self.upload = replace(self.upload or PartitionUpload(0), fenced=True)
            raise self.beginning.lost(self._active.base_offset)

    def _go_offline(self, error: TieredError) -> None:
        if self._offline is None:
            self._offline = error
            LOGGER.error("partition_offline partition=%s error=%s", self.tp, error)
            self._around.failed(error)

    def _offline_error(self, error: TieredError) -> LocalIOError:
        return LocalIOError(
            f"{self.tp} is offline: {error.message}",
            hint="what was not flushed may be lost: repair the disk, then open the log again",
        )
