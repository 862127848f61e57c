"""A process's machine: what of it survives a crash, as a value, and the engine's view of it (``engine.disk.Disk``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tests.unit.remote.building import MemorySegment, seal
from tiered.config import TopicConfig
from tiered.engine.disk import Granted, LogExtent
from tiered.engine.journal import Entry
from tiered.engine.partition import SegmentRef
from tiered.errors import TieredError
from tiered.format.batch import encode_batch
from tiered.local.disk.claims import NO_PROOF, ClaimProof
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import EpochEntry, NewRecord, SealedIndexes, TopicPartition

TOPIC_ID = UUID(int=77)
TP = TopicPartition("t", 0)
START_MS = 1_700_000_000_000
SEGMENT_RECORDS = 2


@dataclass(frozen=True)
class Disk:
    """A volume. ``segments``: base, end and content of what is sealed on it; ``made``: how many it ever made."""

    volume: str
    proof: ClaimProof = NO_PROOF
    start: int = 0
    segments: tuple[tuple[int, int, str], ...] = ()
    epochs: tuple[EpochEntry, ...] = ()
    journal: tuple[Entry, ...] = ()
    upload: PartitionUpload | None = None
    made: int = 0
    pen: str = ""
    """Who writes its records, where it is not the volume's name: of a copy."""

    @property
    def end(self) -> int:
        return self.segments[-1][1] if self.segments else self.start


class Machine:
    """The volume of a process that runs; every change is one new :class:`Disk`. Also its journal and its claims."""

    path = Path("disk")

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.claims: Any = SimpleNamespace(
            read=lambda: {TP: self.disk.proof}, proof=lambda _: self.disk.proof, keep=self._keep
        )

    def _change(self, **changes: Any) -> None:
        self.disk = replace(self.disk, **changes)

    def begin(self) -> None:
        """Count the lives of a program that makes no segments."""
        self._change(made=self.disk.made + 1)

    # -- engine.disk.Disk ------------------------------------------------------------------------------------------

    @property
    def volume_id(self) -> str:
        return self.disk.volume

    def topics(self) -> Mapping[str, TopicInfo]:
        return {TP.topic: TopicInfo(TP.topic, TOPIC_ID, 1, TopicConfig())}

    def topic_id(self, _: TopicPartition) -> UUID:
        return TOPIC_ID

    def segment(self, _: TopicPartition, ref: SegmentRef) -> Any:
        """As the log sealed it. One batch of records, which say who wrote them."""
        base, end, who = next(each for each in self.disk.segments if each[0] == ref.base)
        return sealed(base, end, who, self._epoch_at(base))

    def add_owner_hint(self, _: TopicPartition, error: TieredError) -> None:
        """It says so already."""

    def _epoch_at(self, offset: int) -> int:
        return max((entry.epoch for entry in self.disk.epochs if entry.start_offset <= offset), default=0)

    def leader_epochs(self, _: TopicPartition) -> tuple[EpochEntry, ...]:
        return self.disk.epochs

    def extent(self, _: TopicPartition, *, exact: bool) -> LogExtent:
        return LogExtent(self.disk.start, self.disk.end)

    def uploads(self) -> Mapping[TopicPartition, PartitionUpload]:
        return {TP: self.disk.upload} if self.disk.upload is not None else {}

    def start_log(self, _: TopicPartition, granted: Granted) -> bool:
        if granted.resumes:
            entry = EpochEntry(granted.leader_epoch, granted.next_offset)
            self._change(start=granted.next_offset, segments=(), epochs=(entry,))
        elif granted.leader_epoch > max((entry.epoch for entry in self.disk.epochs), default=-1):
            entry = EpochEntry(granted.leader_epoch, self.disk.end)
            self._change(epochs=(*(old for old in self.disk.epochs if old.start_offset < entry.start_offset), entry))
        return False

    def _keep(self, _: TopicPartition, token: str | None, last_append: str | None) -> None:
        given = {"token": token, "last_append": last_append}
        self._change(proof=replace(self.disk.proof, **{name: id_ for name, id_ in given.items() if id_ is not None}))

    # -- engine.journal.Journal ------------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        self._change(journal=(*self.disk.journal, entry))

    def part(self, log_key: str, upload_id: str) -> None:
        raise AssertionError("segments are small")

    def done(self, log_keys: Iterable[str]) -> None:
        gone = set(log_keys)
        self._change(journal=tuple(entry for entry in self.disk.journal if entry.log_key not in gone))

    def before(self, tp: TopicPartition, epoch: int) -> list[Entry]:
        return [entry for entry in self.disk.journal if entry.epoch < epoch]

    def between(self, tp: TopicPartition, start_offset: int, end_offset: int) -> list[Entry]:
        return [entry for entry in self.disk.journal if start_offset <= entry.base < end_offset]

    # -- the local log ---------------------------------------------------------------------------------------------

    def next_segment(self, committed: int, most: int) -> SegmentRef | None:
        """The first sealed segment that is not committed; appends one while fewer than ``most`` were made."""
        for base, end, _ in self.disk.segments:
            if base >= committed:
                return SegmentRef(base, end, 1, START_MS)
        if self.disk.made >= most or self.disk.end != committed:
            return None
        base = self.disk.end
        end = base + SEGMENT_RECORDS
        who = f"{self.disk.pen or self.disk.volume}.{self.disk.made}"
        self._change(segments=(*self.disk.segments, (base, end, who)), made=self.disk.made + 1)
        return SegmentRef(base, end, 1, START_MS)

    def note(self, end: int, epoch: int) -> None:
        """The checkpoint of what was read back."""
        self._change(upload=PartitionUpload(end, epoch))


def values(base: int, end: int, who: str) -> dict[int, bytes]:
    """What the records of a segment hold."""
    return {offset: f"{who} {offset}".encode() for offset in range(base, end)}


_SEALED: dict[tuple[int, int, str, int], MemorySegment] = {}


def sealed(base: int, end: int, who: str, leader_epoch: int) -> MemorySegment:
    key = base, end, who, leader_epoch
    if key not in _SEALED:
        records = [NewRecord(value, timestamp=START_MS + at) for at, value in values(base, end, who).items()]
        segment = seal([encode_batch(records, base_offset=base, leader_epoch=leader_epoch)], topic_id=TOPIC_ID)
        plain = segment.sealed_indexes
        indexes = SealedIndexes(plain.offset_index, plain.time_index, leader_epochs=(EpochEntry(leader_epoch, base),))
        _SEALED[key] = replace(segment, sealed_indexes=indexes)
    return _SEALED[key]
