"""The engine's state with claimed partitions, to which facts are sent."""

from __future__ import annotations

import random
from typing import Any

from tests.unit.tiering.world import Dice, row, topic_id, tp
from tiered.plan.tiering import facts, orders
from tiered.plan.tiering.facts import SegmentRef
from tiered.plan.tiering.limits import Limits
from tiered.plan.tiering.state import State


class Desk:
    """A state with one claimed partition, and its orders by kind."""

    def __init__(self, *, limits: Limits | None = None, partitions: int = 1, lazy: bool = False) -> None:
        self.state = State(Dice(random.Random(1)), limits, lazy=lazy)
        self.now_ms = 10_000_000
        self.last: list[orders.Action] = []
        self.partitions = partitions

    def send(self, *events: facts.Event, later_ms: int = 0) -> list[orders.Action]:
        self.now_ms += later_ms
        self.last = [action for event in events for action in self.state.handle(event, self.now_ms)]
        return self.last

    def of(self, kind: type[Any]) -> list[Any]:
        return [action for action in self.last if isinstance(action, kind)]

    def claimed(self, *, epoch: int = 7, next_offset: int = 0, end: int = 0) -> Desk:
        for number in range(self.partitions):
            self.send(facts.PartitionSeen(tp(number), topic_id(), 0, end, end))
            for register in self.of(orders.RegisterTopic):
                self.send(facts.Done(register.order))
            (claim,) = self.of(orders.Claim)
            self.send(facts.ClaimDone(claim.order, epoch, 0, next_offset))
            for settle in self.of(orders.Settle):
                self.send(facts.SettleDone(settle.order))
        return self

    def seal(self, *bases: int, at: int = 0, first_ms: int = 0) -> list[orders.Action]:
        return self.send(*(facts.SegmentSealed(tp(at), segment(base, first_ms=first_ms)) for base in bases))

    def store(self, upload: orders.Upload, later_ms: int = 0) -> list[orders.Action]:
        done = facts.UploadDone(upload.order, row(upload.segment, upload.claim_epoch))
        return self.send(done, later_ms=later_ms)


def segment(base: int, size: int = 10, first_ms: int = 0) -> SegmentRef:
    return SegmentRef(base, base + size, size * 100, first_ms)
