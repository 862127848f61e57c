"""Two members of a group and one partition: real rounds, polls and commits of ``tiered.group.member``.

No time is given credit: each member may judge the other dead in any round, so that nothing but compare-and-swap is left
between them. ``Offsets`` is what must hold then.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tests.explore.bucket import Objects
from tests.explore.machine import TOPIC_ID, TP, Machine
from tests.explore.process import Mark, Program, Report
from tests.explore.truth import Violated
from tiered.errors import TieredError
from tiered.format.keys import group_partition_key
from tiered.group.member import BEATS_UNTIL_DEAD, GroupSettings, Member
from tiered.group.objects import PlannedTopic, decode_ownership
from tiered.model import Position, TopicPartition
from tiered.store.base import Steps

GROUP = "g"
KEY = group_partition_key(GROUP, TOPIC_ID, TP.partition)


class OneTopic:
    """The topic of the explorer, read from its start."""

    def find_topics(self, names: Sequence[str]) -> Steps[Mapping[str, PlannedTopic]]:
        yield from ()
        return {TP.topic: PlannedTopic(TOPIC_ID, 1, 1)}

    def resolve(self, tp: TopicPartition, topic_id: UUID, *, from_start: bool) -> Steps[Position]:
        yield from ()
        return Position(0)


TOPICS = OneTopic()


UNSEEN = (
    "_acknowledged_s",
    "_planned_s",
    "_polled_s",
    "_listed_s",
    "_failures",
    "_source",
    "settings",
    "_is_incomplete",
)
"""Fields that no request of a round depends on here: no time is given credit, and no caller waits."""


class Hasty(Member):
    """Judges every other member dead as soon as it is listed. Between the parts of a round nothing else is carried."""

    turn = 0
    offset = -1
    joins = False

    def mark(self, part: str) -> Mark:
        """Equal for members that go on in the same way."""
        carried = {name: value for name, value in vars(self).items() if name not in UNSEEN}
        return Mark((self.turn, part, self.joins), (carried, self._planned_s == math.inf), once=True)

    def _join(self, now_s: float) -> Steps[float]:
        self.joins = True
        yield self.mark("join")  # type: ignore[misc]
        try:
            return (yield from super()._join(now_s))
        finally:
            self.joins = False

    def _read_plan(self) -> Steps[None]:
        yield self.mark("plan")  # type: ignore[misc]
        yield from super()._read_plan()

    def _observe(self) -> Steps[None]:
        yield self.mark("observe")  # type: ignore[misc]
        yield from super()._observe()
        for each in self._observed.values():
            each.beats, each.since_s = BEATS_UNTIL_DEAD, -math.inf

    def _judge(self) -> Steps[None]:
        yield self.mark("judge")  # type: ignore[misc]
        yield from super()._judge()

    def _agree(self) -> Steps[None]:
        yield self.mark("agree")  # type: ignore[misc]
        yield from super()._agree()

    def release_due(self) -> Steps[None]:
        yield self.mark("release")  # type: ignore[misc]
        yield from super().release_due()

    def _claim_share(self, now_s: float) -> Steps[bool]:
        yield self.mark("take")  # type: ignore[misc]
        return (yield from super()._claim_share(now_s))


def member(name: str, rounds: int, lives: int = 1) -> Program:
    """Joins, and in each round reads one record and commits it; then leaves. After the last of its lives it stays dead.

    A process that begins again is one member more, which makes most of the states.
    """

    def run(machine: Machine) -> Generator[Any, Any, None]:
        if machine.disk.made == lives:
            return
        machine.begin()
        settings = GroupSettings(heartbeat_ms=1, lease_ms=3, handover_ms=0, max_poll_interval_ms=10**9)
        one = Hasty(GROUP, name, [TP.topic], TOPICS, settings)
        for one.turn in range(rounds + 1):
            yield one.mark("round")
            yield from one.round()
            one.failure = None
            changes = one.poll([], 0.0)
            if TP in changes.lost:
                one.offset = -1
            for position in changes.assigned.values():
                assert position is not None
                one.offset = position.offset
            if one.offset >= 0 and TP not in changes.stop:
                yield Report("handed", (one.id, one.offset))
                one.offset += 1
                yield one.mark("commit")
                yield from _commit(one, one.offset)
        yield one.mark("leave")
        try:
            yield from one.leave()
        except TieredError:
            return

    return run


def _commit(one: Member, offset: int) -> Generator[Any, Any, None]:
    errors = yield from one.commit({TP: Position(offset)})
    if not errors:
        yield Report("committed", (offset,))


# -- what must hold ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offsets:
    """``handed``: records that were handed out, from offset 0. ``owner``: the last ownership epoch and its member."""

    handed: int = 0
    owner: tuple[int, str] = (-1, "")


class GroupJudge:
    """See ``truth`` for the two functions."""

    @staticmethod
    def changed(before: Objects, after: Objects, memory: Offsets, *, delayed: bool) -> Offsets:
        """A request had an effect."""
        earlier, stored = before.held.get(KEY), after.held.get(KEY)
        if stored is None or stored == earlier:
            return memory
        now = decode_ownership(stored.data, key=KEY)
        if now.position.offset > memory.handed:
            raise Violated(f"{now.position.offset} is committed, {memory.handed} records were handed out")
        if earlier is not None:
            then = decode_ownership(earlier.data, key=KEY)
            if now.position.offset < then.position.offset:
                raise Violated(f"the position went back from {then} to {now}")
            if now.epoch < then.epoch:
                raise Violated(f"the epoch went back from {then} to {now}")
        if not now.owner:
            return memory
        epoch, owner = memory.owner
        if epoch == now.epoch and owner != now.owner:
            raise Violated(f"{owner} and {now.owner} own it in epoch {epoch}")
        return replace(memory, owner=(now.epoch, now.owner))

    @staticmethod
    def told(report: Report, objects: Objects, memory: Offsets) -> Offsets:
        """A caller got a record, or the answer to its commit."""
        if report.kind == "handed":
            who, offset = report.what
            if offset > memory.handed:
                raise Violated(f"{who} skips {memory.handed} to {offset}")
            return replace(memory, handed=max(memory.handed, offset + 1))
        (offset,) = report.what
        stored = objects.held.get(KEY)
        if stored is None or decode_ownership(stored.data, key=KEY).position.offset < offset:
            raise Violated(f"{offset} was committed, the bucket has {stored}")
        return memory


JUDGE = GroupJudge()
