"""Log directory as the engine needs it, for a log that this process writes, and the protocol of both kinds.

``directory.LogDirectory`` is the other kind, for a process that does not hold ``.lock``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from tiered.engine.partition import SegmentRef
from tiered.errors import NotFoundError, TieredError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.claims import Claims
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import EpochEntry, TopicPartition


@dataclass(frozen=True, slots=True)
class LogExtent:
    """First and end offset of a local log. If not exact, the end is a lower bound from the files.

    ``joints``: the only offsets at which a log without records can go on; None: at any.
    """

    local_start_offset: int
    end_offset: int
    joints: tuple[int, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Return True if the log has no record. Exact in both cases: the first record's bytes are visible at once."""
        return self.end_offset == self.local_start_offset


@dataclass(frozen=True, slots=True)
class Granted:
    """A claim whose root was read back; ``token`` is the volume's token on the disk at that time.

    ``resumes``: a log without records has yet to go on at ``next_offset``, under ``leader_epoch``. ``producers``:
    earlier producers, as a ``.snapshot`` file, empty if there are none.
    """

    token: str | None
    claim_epoch: int
    leader_epoch: int
    start_offset: int
    next_offset: int
    resumes: bool = False
    producers: bytes = field(default=b"", repr=False)
    warnings: tuple[str, ...] = ()


class Disk(Protocol):
    """One log directory. Thread-safe. Methods that wait for the disk are called through ``Blocking``."""

    @property
    def path(self) -> Path:
        """Return the directory."""

    @property
    def claims(self) -> Claims:
        """Return the proofs of its claims."""

    @property
    def volume_id(self) -> str:
        """Return the volume's id in claims."""

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return the topics by name."""

    def topic_id(self, tp: TopicPartition) -> UUID:
        """Return Kafka's topic id of a partition."""

    def segment(self, tp: TopicPartition, ref: SegmentRef) -> SealedLocalSegment:
        """Return a sealed segment for reading."""

    def add_owner_hint(self, tp: TopicPartition, error: TieredError) -> None:
        """Add to damage, a refused claim or a missing topic what the owner of the files can do."""

    def leader_epochs(self, tp: TopicPartition) -> tuple[EpochEntry, ...]:
        """Return the leader epochs of a partition."""

    def extent(self, tp: TopicPartition, *, exact: bool) -> LogExtent:
        """Return the bounds of the local log now."""

    def uploads(self) -> Mapping[TopicPartition, PartitionUpload]:
        """Return the checkpoint's entry of each partition."""

    def start_log(self, tp: TopicPartition, granted: Granted) -> bool:
        """Begin or continue the log under the claim. Return True if a log that resumes has yet to begin."""


class OpenDisk:
    """The directory of a log that this process writes."""

    def __init__(self, local: LocalLog) -> None:
        self._local = local
        self.path = local.directory
        self.claims = local.claims
        self.volume_id = str(local.volume_id)

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._local.topics()

    def topic_id(self, tp: TopicPartition) -> UUID:
        return self._local.partition(tp).topic_id

    def segment(self, tp: TopicPartition, ref: SegmentRef) -> SealedLocalSegment:
        """Return a sealed segment for reading. Raises NotFoundError."""
        for segment in self._local.partition(tp).sealed_segments(ref.base):
            if segment.base_offset == ref.base:
                return segment
        raise NotFoundError(f"{tp}: the sealed segment {ref.base} is gone from {self.path}")

    def add_owner_hint(self, tp: TopicPartition, error: TieredError) -> None:
        """Do nothing: the error already names the owner's files."""

    def leader_epochs(self, tp: TopicPartition) -> tuple[EpochEntry, ...]:
        return tuple(self._local.partition(tp).leader_epochs())

    def extent(self, tp: TopicPartition, *, exact: bool) -> LogExtent:
        """Return the bounds of the local log now, always exact."""
        del exact
        positions = self._local.partition(tp).positions()
        return LogExtent(positions.local_start_offset, positions.end_offset)

    def uploads(self) -> Mapping[TopicPartition, PartitionUpload]:
        return self._local.uploads.read()

    def start_log(self, tp: TopicPartition, granted: Granted) -> bool:
        """Begin the log now, before its writer takes another record."""
        log = self._local.partition(tp)
        if granted.resumes:
            log.start_at(granted.next_offset, granted.leader_epoch, granted.producers)
        else:
            self.lead(tp, granted.leader_epoch)  # also one that an interrupted claim was granted
        log.permit_first_append(granted.token, granted.claim_epoch)
        return False

    def lead(self, tp: TopicPartition, leader_epoch: int) -> None:
        """Give later records this leader epoch, if it is newer than the log's own."""
        log = self._local.partition(tp)
        epochs = log.leader_epochs()
        if not epochs or leader_epoch > epochs[-1].epoch:
            log.new_leader_epoch(leader_epoch)
