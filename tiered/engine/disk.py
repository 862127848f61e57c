"""What the engine needs of a log directory: of one that this process writes, or of one that it only looks at.

``directory.LogDirectory`` is the other one: for whoever does not hold ``.lock``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from tiered.engine.partition import SegmentRef
from tiered.errors import NotFoundError, TieredError
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.claims import Claims
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploads import PartitionUpload
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import EpochEntry, TopicPartition


@dataclass(frozen=True, slots=True)
class Extent:
    """First and end offset of a local log. Not exact, the end is the least that the files tell.

    ``joints``: the only offsets at which one without records can go on; None: at any.
    """

    local_start_offset: int
    end_offset: int
    joints: tuple[int, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it holds no record. Exact for both: the first record's bytes are seen the moment they are written."""
        return self.end_offset == self.local_start_offset


@dataclass(frozen=True, slots=True)
class Granted:
    """A claim whose root was read back; ``token`` is what the volume held of it on the disk then.

    ``resumes``: a log without records has yet to go on at ``next_offset``, under ``leader_epoch``. ``producers``: who
    wrote what before, as a ``.snapshot`` file, empty if there are none.
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
    """One log directory. Thread-safe; whatever waits for the disk is called through ``Blocking``."""

    @property
    def path(self) -> Path:
        """The directory."""

    @property
    def claims(self) -> Claims:
        """The proofs of its claims."""

    @property
    def volume_id(self) -> str:
        """Which volume this is, in claims."""

    def topics(self) -> Mapping[str, TopicInfo]:
        """Topics by name."""

    def topic_id(self, tp: TopicPartition) -> UUID:
        """Kafka's topic id of a partition."""

    def segment(self, tp: TopicPartition, ref: SegmentRef) -> SealedLocalSegment:
        """A sealed segment, to be read."""

    def tell_owner(self, tp: TopicPartition, error: TieredError) -> None:
        """Makes damage in a segment, a refused claim or a topic that is gone say what the owner of the files can do."""

    def leader_epochs(self, tp: TopicPartition) -> tuple[EpochEntry, ...]:
        """Leader epochs of a partition."""

    def extent(self, tp: TopicPartition, *, exact: bool) -> Extent:
        """Where the local log begins and ends now."""

    def uploads(self) -> Mapping[TopicPartition, PartitionUpload]:
        """What the checkpoint notes of each partition."""

    def begin(self, tp: TopicPartition, granted: Granted) -> bool:
        """The log begins, or goes on, under the claim; whether one that resumes has yet to."""


class OpenDisk:
    """The directory of a log that this process writes."""

    def __init__(self, local: LocalLog) -> None:
        self._local = local
        self.path = local.directory
        self.claims = local.claims
        self.volume_id = str(local.volume_id)

    def topics(self) -> Mapping[str, TopicInfo]:
        """Topics by name."""
        return self._local.topics()

    def topic_id(self, tp: TopicPartition) -> UUID:
        """Kafka's topic id of a partition."""
        return self._local.partition(tp).topic_id

    def segment(self, tp: TopicPartition, ref: SegmentRef) -> SealedLocalSegment:
        """A sealed segment, to be read. Raises NotFoundError."""
        for segment in self._local.partition(tp).sealed_segments(ref.base):
            if segment.base_offset == ref.base:
                return segment
        raise NotFoundError(f"{tp}: the sealed segment {ref.base} is gone from {self.path}")

    def tell_owner(self, tp: TopicPartition, error: TieredError) -> None:
        """It says so already."""

    def leader_epochs(self, tp: TopicPartition) -> tuple[EpochEntry, ...]:
        """Leader epochs of a partition."""
        return tuple(self._local.partition(tp).leader_epochs())

    def extent(self, tp: TopicPartition, *, exact: bool) -> Extent:
        """Where the local log begins and ends now, exact whatever is asked for."""
        del exact
        positions = self._local.partition(tp).positions()
        return Extent(positions.local_start_offset, positions.end_offset)

    def uploads(self) -> Mapping[TopicPartition, PartitionUpload]:
        """What the checkpoint notes of each partition."""
        return self._local.uploads.read()

    def begin(self, tp: TopicPartition, granted: Granted) -> bool:
        """Now: who writes the log has to, before it takes another record."""
        log = self._local.partition(tp)
        if granted.resumes:
            log.start_at(granted.next_offset, granted.leader_epoch, granted.producers)
        else:
            self.lead(tp, granted.leader_epoch)  # also one that an interrupted claim was granted
        log.begin_under(granted.token, granted.claim_epoch)
        return False

    def lead(self, tp: TopicPartition, leader_epoch: int) -> None:
        """Records from here on carry this leader epoch, if it is newer than the log's own."""
        log = self._local.partition(tp)
        epochs = log.leader_epochs()
        if not epochs or leader_epoch > epochs[-1].epoch:
            log.new_leader_epoch(leader_epoch)
