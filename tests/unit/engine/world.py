"""A model of everything around the engine: disk, bucket, faults, and answers in any order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.unit.engine.desk import Call, CommittedRoot, Desk, row, topic_id, tp
from tiered.engine.disk import Granted
from tiered.engine.partition import EngineLimits, PartitionSeen, SegmentRef
from tiered.engine.reports import StepKind
from tiered.errors import (
    CommitUnknownError,
    ConfigError,
    FencedError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import TopicPartition

FAULTS = (RemoteUnavailableError,) * 4 + (RemotePermissionError, ConfigError)


@dataclass
class Truth:
    """The root of one partition: its content and its newest claim."""

    epoch: int = 0
    next_offset: int = 0
    commits: list[tuple[int, int, int]] = field(default_factory=list)
    stored: set[tuple[int, int]] = field(default_factory=set)  # (epoch, base), verified
    stolen: bool = False


class World(Desk):
    """Answers the engine's calls in a seeded order, and checks each against the truth as it begins."""

    def __init__(self, seed: int, *, partitions: int = 4, limits: EngineLimits | None = None) -> None:
        self.truths = {tp(n): Truth() for n in range(partitions)}
        self.disk: dict[TopicPartition, list[SegmentRef]] = {each: [] for each in self.truths}
        self.fenced: set[TopicPartition] = set()
        self.noted_ends: dict[TopicPartition, int] = {}
        self.seen_ends: dict[TopicPartition, int] = {}
        self.fault_rate = 0.3
        super().__init__(limits=limits, partitions=partitions, seed=seed)

    # -- each call is checked as it begins ---------------------------------------------------------------------------

    def begun(self, call: Call) -> None:
        super().begun(call)
        assert self.exit is None, "a step after the end"
        assert call.tp not in self.fenced, f"{call.kind} after fenced"
        under_way = [each for each in self.open if each.tp == call.tp and each is not call]
        if call.kind is StepKind.CLAIM:
            assert not under_way, "a claim over what is under way"
        elif call.kind is StepKind.UPLOAD:
            truth = self.truths[call.tp]
            assert call.epoch <= truth.epoch
            assert call.segment.base >= truth.next_offset or call.epoch < truth.epoch
            assert not [each for each in under_way if each.segment == call.segment], "uploaded twice at once"
            uploads = [each for each in self.open if each.kind is StepKind.UPLOAD]
            assert len(uploads) <= self.engine.limits.uploads, "more uploads than slots"
        elif call.kind is StepKind.COMMIT:
            assert not [each for each in under_way if each.kind is StepKind.COMMIT], "two commits at once"
            self._check_rows(call)

    def _check_rows(self, call: Call) -> None:
        truth = self.truths[call.tp]
        assert 1 <= len(call.rows) <= self.engine.limits.commit_segments
        at = call.rows[0].base
        for one in call.rows:
            assert one.base == at, "a gap inside a commit"
            assert (call.epoch, one.base) in truth.stored, "a commit of what is not verified"
            at = one.next
        if call.epoch == truth.epoch:
            assert call.rows[0].base == truth.next_offset, "a gap before a commit"

    def noted(self, tp: TopicPartition, upload: PartitionUpload) -> None:
        assert upload.end_offset <= self.truths[tp].next_offset, "noted what is not committed"
        assert upload.end_offset >= self.noted_ends.get(tp, 0)
        self.noted_ends[tp] = upload.end_offset
        if upload.fenced:
            self.fenced.add(tp)

    # -- the disk ----------------------------------------------------------------------------------------------------

    def append(self, at: TopicPartition, segments: int = 1) -> None:
        for _ in range(segments):
            base = self.disk[at][-1].end if self.disk[at] else 0
            size = self.rng.randrange(1, 100)
            self.disk[at].append(SegmentRef(base, base + size, size * 10, self.now_ms - self.rng.randrange(1000)))

    def scan(self) -> None:
        def tell() -> None:
            for at, segments in self.disk.items():
                end = segments[-1].end if segments else 0
                self.seen_ends[at] = end
                sealed = tuple(self.rng.sample(segments, len(segments)))
                self.engine.see(PartitionSeen(at, topic_id(), 0, end, end, sealed=sealed))

        self.do(tell)

    # -- the bucket --------------------------------------------------------------------------------------------------

    def carry_out(self, call: Call) -> None:
        """Answers an open call, with a fault now and then."""
        self.answer(call, self._outcome(call))

    def _outcome(self, call: Call) -> Any:
        faulty = self.rng.random() < self.fault_rate
        kind: Any = self.rng.choice(FAULTS)
        error: TieredError = kind("because")
        if call.kind is StepKind.CLAIM:
            return self._claim(self.truths[call.tp], error if faulty else None)
        if call.kind is StepKind.COMMIT:
            return self._commit(call, error if faulty else None)
        if faulty:
            return error
        if call.kind is StepKind.UPLOAD:
            self.truths[call.tp].stored.add((call.epoch, call.segment.base))
            return row(call.segment, call.epoch)
        return 0

    def _claim(self, truth: Truth, error: TieredError | None) -> Any:
        if truth.stolen:
            return FencedError("a newer claim")
        if error is not None:
            if self.rng.random() < 0.5:  # landed, but the answer was lost
                truth.epoch += 1
                return CommitUnknownError("no answer")
            return error
        truth.epoch += 1
        return Granted("token", truth.epoch, 0, 0, truth.next_offset)

    def _commit(self, call: Call, error: TieredError | None) -> Any:
        truth = self.truths[call.tp]
        if call.epoch != truth.epoch:
            return FencedError("a newer claim")
        lost_answer = error is not None and self.rng.random() < 0.5
        if error is not None and not lost_answer:
            return CommitUnknownError("no answer") if self.rng.random() < 0.3 else error
        assert call.rows[0].base == truth.next_offset
        truth.next_offset = call.rows[-1].next
        truth.commits += [(one.base, one.next, call.epoch) for one in call.rows]
        return CommitUnknownError("no answer") if lost_answer else CommittedRoot(truth.next_offset)

    # -- time --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One random thing happens."""
        dice = self.rng.random()
        if self.looks and not self.looks[-1].done():
            self.scan()
            self.looked()
        elif dice < 0.6 and self.open:
            self.carry_out(self.rng.choice(self.open))
        elif dice < 0.7:
            self.append(self.rng.choice(list(self.disk)), self.rng.randrange(1, 4))
        elif dice < 0.8:
            self.scan()
        elif dice < 0.82:
            self.do(self.engine.scan_now)
        else:
            self.turn(self.rng.choice([1, 50, 300, 5_000, 60_000]))

    def settle(self, rounds: int = 5_000) -> None:
        """The faults stop: everything is answered, and time passes."""
        self.fault_rate = 0.0
        self.scan()
        for _ in range(rounds):
            if self.open:
                self.carry_out(self.open[0])
            elif self.engine._workers:
                self.turn(60_000)
            else:
                return
        raise AssertionError("it never comes to rest")
