"""A model of everything around the uploader's state: disk, bucket, faults, and answers in any order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from uuid import UUID

from tiered.clock import SystemIds
from tiered.model import Row, TopicPartition
from tiered.plan.tiering import facts, orders
from tiered.plan.tiering.facts import Failure, FailureKind, SegmentRef
from tiered.plan.tiering.limits import Limits
from tiered.plan.tiering.state import State


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def topic_id(number: int = 1) -> UUID:
    return UUID(int=number)


def failure(kind: FailureKind, code: str = "x") -> Failure:
    return Failure(kind, code, "because", "do this", 75 if kind is FailureKind.RETRIABLE else 12)


class Dice(SystemIds):
    """Jitter from a seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def random(self) -> float:
        return self._rng.random()


def row(segment: SegmentRef, epoch: int) -> Row:
    return Row(segment.base, segment.end, 0, 0, segment.size_bytes, 0, 0, segment.base, 10, epoch, 1, 0, 0)


@dataclass
class Bucket:
    """The truth about one partition: what the root holds and whose claim is the newest."""

    epoch: int = 0
    next_offset: int = 0
    commits: list[tuple[int, int, int]] = field(default_factory=list)
    stored: set[tuple[int, int]] = field(default_factory=set)  # (epoch, base), verified
    stolen: bool = False


class World:
    """Drives a ``State`` with a seeded order of facts and checks every action against the truth."""

    def __init__(self, seed: int, *, partitions: int = 4, limits: Limits | None = None) -> None:
        self.rng = random.Random(seed)
        self.limits = limits or Limits()
        self.state = State(Dice(self.rng), self.limits)
        self.now_ms = 1_000_000
        self.buckets = {tp(n): Bucket() for n in range(partitions)}
        self.disk: dict[TopicPartition, list[SegmentRef]] = {t: [] for t in self.buckets}
        self.open: dict[int, orders.Action] = {}
        self.old_answers: list[facts.Event] = []
        self.uploading: dict[int, orders.Upload] = {}
        self.fenced: set[TopicPartition] = set()
        self.noted: dict[TopicPartition, int] = {}
        self.wake_ms: int | None = None
        self.exit: orders.Exit | None = None
        self.fault_rate = 0.3
        self.seen_ends: dict[TopicPartition, int] = {}

    def send(self, event: facts.Event) -> None:
        for action in self.state.handle(event, self.now_ms):
            assert self.exit is None
            self.check(action)

    def check(self, action: orders.Action) -> None:
        match action:
            case orders.Upload():
                bucket = self.buckets[action.tp]
                assert action.tp not in self.fenced, "an upload after fenced"
                assert action.claim_epoch <= bucket.epoch
                assert action.segment.base >= bucket.next_offset or action.claim_epoch < bucket.epoch
                same = [u for u in self.uploading.values() if (u.tp, u.segment) == (action.tp, action.segment)]
                assert not [u for u in same if u.claim_epoch == action.claim_epoch], "uploaded twice at once"
                self.uploading[action.order] = action
                assert len(self.uploading) <= self.limits.uploads, "more uploads than the pool"
                self.open[action.order] = action
            case orders.Commit():
                bucket = self.buckets[action.tp]
                assert action.tp not in self.fenced, "a commit after fenced"
                assert 1 <= len(action.rows) <= self.limits.commit_segments
                assert not [o for o in self.open.values() if isinstance(o, orders.Commit) and o.tp == action.tp]
                at = action.rows[0].base
                for one in action.rows:
                    assert one.base == at, "a gap inside a commit"
                    assert (action.claim_epoch, one.base) in bucket.stored, "a commit of what is not verified"
                    at = one.next
                if action.claim_epoch == bucket.epoch:
                    assert action.rows[0].base == bucket.next_offset, "a gap before a commit"
                self.open[action.order] = action
            case orders.Claim():
                assert action.tp not in self.fenced, "a claim after fenced"
                assert not [u for u in self.uploading.values() if u.tp == action.tp], "a claim over running uploads"
                self.open[action.order] = action
            case orders.RegisterTopic() | orders.Settle() | orders.Seal() | orders.Look():
                self.open[action.order] = action
            case orders.Note():
                assert action.end_offset <= self.buckets[action.tp].next_offset, "noted what is not committed"
                assert action.end_offset >= self.noted.get(action.tp, 0)
                self.noted[action.tp] = action.end_offset
                if action.fenced:
                    self.fenced.add(action.tp)
            case orders.RetryAt(at_ms):
                self.wake_ms = at_ms
            case orders.Exit():
                self.exit = action

    def append(self, at: TopicPartition, segments: int = 1) -> None:
        for _ in range(segments):
            base = self.disk[at][-1].end if self.disk[at] else 0
            size = self.rng.randrange(1, 100)
            self.disk[at].append(SegmentRef(base, base + size, size * 10, self.now_ms - self.rng.randrange(1000)))

    def scan(self) -> None:
        for at, segments in self.disk.items():
            end = segments[-1].end if segments else 0
            self.seen_ends[at] = end
            self.send(facts.PartitionSeen(at, topic_id(), 0, end, end))
            found = list(segments)
            self.rng.shuffle(found)
            for segment in found:
                self.send(facts.SegmentSealed(at, segment))

    def answer(self, order: int) -> None:
        """Carries out an open order, with a fault now and then, and tells the state; remembers the answer."""
        action = self.open.pop(order)
        upload = self.uploading.pop(order, None)
        event = self.carry_out(action)
        del upload
        self.old_answers.append(event)
        self.send(event)

    def carry_out(self, action: orders.Action) -> facts.Event:
        faulty = self.rng.random() < self.fault_rate
        bad = failure(self.rng.choice([FailureKind.RETRIABLE] * 4 + [FailureKind.PERMISSION, FailureKind.FATAL]))
        match action:
            case orders.RegisterTopic(order):
                return facts.Failed(order, bad) if faulty else facts.Done(order)
            case orders.Claim(order, at):
                return self.claim(order, self.buckets[at], faulty, bad)
            case orders.Upload(order, at, segment, epoch):
                if faulty:
                    return facts.Failed(order, bad)
                self.buckets[at].stored.add((epoch, segment.base))
                return facts.UploadDone(order, row(segment, epoch))
            case orders.Commit():
                return self.commit(action, faulty, bad)
            case orders.Settle(order):
                return facts.Failed(order, bad) if faulty else facts.SettleDone(order)
            case orders.Seal(order):
                return facts.SealDone(order, by_writer=False)
            case orders.Look(order):
                self.scan()
                return facts.Done(order)
        raise AssertionError(action)

    def claim(self, order: int, bucket: Bucket, faulty: bool, bad: Failure) -> facts.Event:
        if bucket.stolen:
            return facts.Failed(order, failure(FailureKind.FENCED, "fenced"))
        if faulty:
            if self.rng.random() < 0.5:  # landed, but the answer was lost
                bucket.epoch += 1
                return facts.Failed(order, failure(FailureKind.UNKNOWN))
            return facts.Failed(order, bad)
        bucket.epoch += 1
        return facts.ClaimDone(order, bucket.epoch, 0, bucket.next_offset)

    def commit(self, action: orders.Commit, faulty: bool, bad: Failure) -> facts.Event:
        bucket = self.buckets[action.tp]
        if action.claim_epoch != bucket.epoch:
            return facts.Failed(action.order, failure(FailureKind.FENCED, "fenced"))
        lost_answer = faulty and self.rng.random() < 0.5
        if faulty and not lost_answer:
            landed_unknown = self.rng.random() < 0.3
            return facts.Failed(action.order, failure(FailureKind.UNKNOWN) if landed_unknown else bad)
        assert action.rows[0].base == bucket.next_offset
        bucket.next_offset = action.rows[-1].next
        bucket.commits += [(one.base, one.next, action.claim_epoch) for one in action.rows]
        if lost_answer:
            return facts.Failed(action.order, failure(FailureKind.UNKNOWN))
        return facts.CommitDone(action.order, bucket.next_offset)

    def step(self) -> None:
        """One random thing happens."""
        dice = self.rng.random()
        if dice < 0.55 and self.open:
            self.answer(self.rng.choice(list(self.open)))
        elif dice < 0.65:
            self.append(self.rng.choice(list(self.disk)), self.rng.randrange(1, 4))
        elif dice < 0.75:
            self.scan()
        elif dice < 0.85 and self.old_answers:
            self.send(self.rng.choice(self.old_answers))
        elif dice < 0.87:
            self.send(facts.Poked())
        else:
            self.now_ms += self.rng.choice([1, 50, 300, 5_000, 60_000])
            self.send(facts.Tick())

    def settle(self, rounds: int = 10_000) -> None:
        """The faults stop: everything is answered, time passes as far as the state asks for."""
        self.fault_rate = 0.0
        self.scan()
        for _ in range(rounds):
            if self.open:
                self.answer(min(self.open))
            elif self.wake_ms is not None and self.wake_ms > self.now_ms:
                self.now_ms = self.wake_ms
                self.wake_ms = None
                self.send(facts.Tick())
            else:
                return
        raise AssertionError("it never comes to rest")
