"""Some members of a group that share the partitions of some topics, in bad weather.

Members stand still beyond their lease, are killed, come back, leave, sleep in a handler; answers are lost or late; wall
clocks jump; the store is away for all of them at once; topics gain partitions or are made again; someone resets and
deletes. In the end the weather is good: each live member has its share, and all records are committed.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from tests.sim.bucket.process import SteppedProcess
from tests.sim.bucket.store import WatchedStore, Weather
from tests.sim.bucket.violation import Violated
from tests.sim.groups.agent import GROUP, Agent
from tests.sim.groups.ledger import GroupLedger, GroupLog
from tiered.errors import ConfigError, LogDestroyedError
from tiered.format.keys import group_members_prefix, group_partition_key, parse_group_key
from tiered.group.admin import delete_group, reset_group
from tiered.group.member import GroupSettings
from tiered.group.objects import PlannedTopic, decode_ownership
from tiered.model import Position, TopicPartition
from tiered.store.base import Steps
from tiered.store.driver import drive
from tiered.testing.clock import FakeClock, SeededIds

SETTINGS = GroupSettings(heartbeat_ms=10_000, lease_ms=30_000, handover_ms=60_000, max_poll_interval_ms=120_000)
STEPS = 2_500
REST_STEPS = 12_000
TOPICS = ("a", "b")
FAULT_RATE = 0.05


class World:
    """Also the registry of the topics. ``latest``: groups begin at the end."""

    def __init__(self, seed: int, *, faults: float | None = None, trace: bool = False) -> None:
        self.seed, self.trace = seed, trace
        self.rng = random.Random(seed)
        self.ids = SeededIds(seed)
        self.history: list[str] = []
        self.clock = FakeClock()
        self.settings = SETTINGS
        self.inner = WatchedStore(self.clock)
        rate = self.rng.choice((0.0, FAULT_RATE, 2 * FAULT_RATE)) if faults is None else faults
        self.bucket = Weather(self.inner, self.rng, rate)
        self._rate, self._away_until_s = rate, 0.0
        self.ledger = GroupLedger(self.settings, self.clock.monotonic, self._is_slow)
        self.inner.watcher = self.ledger
        self.latest = self.rng.random() < 0.5
        self.topics = {name: PlannedTopic(self.ids.uuid(), self.rng.randrange(1, 5), 0) for name in TOPICS}
        for topic in self.topics.values():
            self._make_logs(topic)
        self.agents = [Agent(self, number) for number in range(self.rng.randrange(2, 5))]

    @property
    def counts(self) -> Counter[str]:
        """What happened."""
        return self.ledger.counts + self.bucket.counts

    def note(self, actor: object, what: str) -> None:
        """One line for whoever replays it."""
        self.history.append(f"{len(self.history):5} {self.clock.monotonic():10.1f} {actor}: {what}")

    def _is_slow(self, member: str, tp: TopicPartition) -> bool:
        return any(tp in agent.owned and agent.owned[tp][1] == member and agent.is_slow(tp) for agent in self.agents)

    # -- topics --------------------------------------------------------------------------------------------------------

    def _make_logs(self, topic: PlannedTopic) -> None:
        for number in range(topic.partitions):
            self.ledger.logs.setdefault((topic.topic_id, number), GroupLog())

    def subscription(self) -> list[str]:
        """Most members subscribe to all topics."""
        return [self.rng.choice(TOPICS)] if self.rng.random() < 0.2 else list(TOPICS)

    def find_topics(self, names: Sequence[str]) -> Steps[Mapping[str, PlannedTopic]]:
        """The registry."""
        yield from ()
        return {name: self.topics[name] for name in names}

    def resolve(self, tp: TopicPartition, topic_id: UUID, *, from_start: bool) -> Steps[Position]:
        """Where a group begins."""
        yield from ()
        if topic_id != self.topics[tp.topic].topic_id:
            raise LogDestroyedError(f"{tp} is another topic now")
        log = self.ledger.logs[self.topics[tp.topic].topic_id, tp.partition]
        offset = log.end if self.latest and not from_start else 0
        log.resolved.add(offset)
        return Position(offset)

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, steps: int = STEPS) -> World:
        """So many requests, then a rest."""
        logging.disable(logging.CRITICAL)
        try:
            for agent in self.agents:
                agent.start()
            for _ in range(steps):
                self._step()
            self.rest()
        except Violated as error:
            error.add_note("\n".join(self.history[-80:]))
            raise
        finally:
            for agent in self.agents:
                agent.process.die()
            logging.disable(logging.NOTSET)
        return self

    def _step(self) -> None:
        rng, now_s = self.rng, self.clock.monotonic()
        agent = rng.choice(self.agents)
        dice = rng.random()
        if dice < 0.002:
            self.note(agent.name, "killed")
            self.ledger.counts["crashes"] += 1
            agent.kill()
        elif dice < 0.004:
            agent.frozen_until_s = now_s + rng.choice((5, 25, 40, 100))
            self.note(agent.name, f"stands still until {agent.frozen_until_s:.1f}")
        elif dice < 0.006:
            agent.asleep_until_s = now_s + rng.choice((30, 70, 130))
            self.note(agent.name, f"its caller sleeps until {agent.asleep_until_s:.1f}")
        elif dice < 0.0065:
            self._away_until_s = now_s + rng.choice((20, 60, 300))
            self.note("store", f"is away until {self._away_until_s:.1f}")
        elif dice < 0.0075:
            agent.process.clock.skew_ms = int(rng.choice((0, -1, 1)) * rng.random() * 86_400_000)
        elif dice < 0.0085:
            self._change_topics()
        elif dice < 0.0088:
            self._operate()
        elif dice < 0.0105:
            agent.leaving = agent.member is not None
            self.note(agent.name, "leaves")
        elif dice < 0.02:
            self.bucket.deliver()
        self.bucket.rate = 1.0 if now_s < self._away_until_s else self._rate
        if agent.member is None and rng.random() < 0.01:
            self.note(agent.name, "starts")
            agent.start()
        self._append()
        self._turn(agent)

    def _append(self) -> None:
        if self.rng.random() < 0.2:
            topic = self.topics[self.rng.choice(TOPICS)]
            self.ledger.logs[topic.topic_id, self.rng.randrange(topic.partitions)].end += self.rng.randrange(1, 4)

    def _change_topics(self) -> None:
        name = self.rng.choice(TOPICS)
        topic = self.topics[name]
        if self.rng.random() < 0.7:
            self.topics[name] = PlannedTopic(topic.topic_id, min(topic.partitions + 1, 6), 0)
        else:
            self.topics[name] = PlannedTopic(self.ids.uuid(), self.rng.randrange(1, 5), 0)
        self._make_logs(self.topics[name])
        self.note(name, f"is {self.topics[name]} now")

    def _operate(self) -> None:
        """Someone deletes the group while it has no member, or sets a position back while it has."""
        if all(agent.member is None for agent in self.agents):
            with contextlib.suppress(ConfigError):  # a killed member still has its object
                drive(self.inner, delete_group(GROUP), clock=self.clock, ids=self.ids)
                self.ledger.deleted()
                self.note("operator", "deleted the group")
            return
        name = self.rng.choice(TOPICS)
        tp = TopicPartition(name, self.rng.randrange(self.topics[name].partitions))
        number = self.topics[name].topic_id, tp.partition
        position, start = self.ledger.position(group_partition_key(GROUP, *number)), self.ledger.logs[number].start
        if position is None or start is None:
            return
        offset = self.rng.randrange(start, position + 1)
        for agent in self.agents:
            self.ledger.excuses.add((agent.id, tp))  # it goes on as before until its next commit
        self.ledger.resets(number, offset)
        self.note("operator", f"sets {tp} from {position} to {offset}")
        steps = reset_group(GROUP, {tp: (number[0], offset)}, force=True)
        drive(self.inner, steps, clock=self.clock, ids=self.ids)

    def _turn(self, agent: Agent) -> None:
        """One request of a process, and perhaps a call of its caller."""
        self.clock.advance(self.rng.random() * 0.2)
        now_s = self.clock.monotonic()
        if now_s < agent.frozen_until_s:
            return
        if agent.member is not None and now_s >= agent.asleep_until_s and self.rng.random() < 0.5:
            agent.turn()
        before = agent.id
        agent.process.last = None
        agent.process.step()
        if self.trace:
            self._trace(agent.process)
        if before != agent.id:
            self.note(agent.name, f"was {before}, is {agent.id}")

    def _trace(self, process: SteppedProcess) -> None:
        request = process.last
        if request is not None:
            what = getattr(request, "key", None) or getattr(request, "prefix", None) or getattr(request, "keys", "")
            self.note(process, f"{type(request).__name__} {what} {getattr(request, 'condition', '')}")

    # -- the end -------------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """The weather is good until all is settled."""
        self.bucket.rate = self._rate = 0.0
        self.bucket.deliver_all()
        self.note("world", "rests")
        for agent in self.agents:
            agent.frozen_until_s = agent.asleep_until_s = 0.0
            if agent.leaving:
                agent.kill()
        if all(agent.member is None for agent in self.agents):
            self.agents[0].start()
        why = "nothing was looked at"
        for step in range(REST_STEPS):
            self._turn(self.rng.choice(self.agents))
            if step % 200 == 199:
                why = self._unsettled()
                if not why:
                    return
        raise Violated(f"not settled in the end: {why}")

    def _unsettled(self) -> str:
        """What is left to do; empty at the end."""
        alive = {agent.member.id: agent for agent in self.agents if agent.member is not None}
        prefix = group_members_prefix(GROUP)
        parsed = [parse_group_key(each) for each in self.inner.all_keys() if each.startswith(prefix)]
        there = {each.member for each in parsed if each is not None}
        if there != set(alive):
            return f"members are {there}, alive {set(alive)}"
        subscribed = {member: agent.member.topics for member, agent in alive.items() if agent.member is not None}
        counts = Counter[str]()
        for name, topic in self.topics.items():
            if not any(name in topics for topics in subscribed.values()):
                continue
            for number in range(topic.partitions):
                key = group_partition_key(GROUP, topic.topic_id, number)
                data = self.inner.peek(key)
                found = None if data is None else decode_ownership(data, key=key)
                if found is None or found.owner not in alive:
                    return f"{name}-{number} is {found}"
                counts[found.owner] += 1
                if found.position.offset != self.ledger.logs[topic.topic_id, number].end:
                    return f"{name}-{number} ends at {self.ledger.logs[topic.topic_id, number].end}, is {found}"
        if len({len(topics) for topics in subscribed.values()}) == 1 == len(set(subscribed.values())):
            sizes = [counts[member] for member in alive]
            if max(sizes) - min(sizes) > 1:
                return f"shares are {counts}"
        return ""
