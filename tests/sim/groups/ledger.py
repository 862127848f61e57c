"""What members handed out and committed, held against what a group promises; told of each object that lands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from tests.sim.bucket.violation import Violated
from tiered.format.keys import parse_group_key
from tiered.group.member import GroupSettings
from tiered.group.objects import Ownership, decode_member, decode_ownership
from tiered.model import TopicPartition

TopicNumber = tuple[UUID, int]
"""A partition of one incarnation of a topic."""


@dataclass
class GroupLog:
    """One partition. ``start``: where the group begins; ``handed``: for each offset from there who had it last."""

    end: int = 0
    start: int | None = None
    handed: list[str] = field(default_factory=list)
    resolved: set[int] = field(default_factory=set)


class GroupLedger:
    """Raises Violated. ``excuses``: members, and partitions of members, whose records may be handed out again."""

    def __init__(
        self, settings: GroupSettings, now_s: Callable[[], float], slow: Callable[[str, TopicPartition], bool]
    ) -> None:
        self.settings, self.now_s, self._slow = settings, now_s, slow
        self.logs: dict[TopicNumber, GroupLog] = {}
        self.counts: Counter[str] = Counter()
        self.excuses: set[str | tuple[str, TopicPartition]] = set()
        self.reset: set[TopicNumber] = set()
        self.resets_of: Counter[TopicNumber] = Counter()
        self._landed_s: dict[str, float] = {}
        self._positions: dict[str, Ownership] = {}
        self._epochs: dict[str, dict[int, str]] = {}

    # -- objects -------------------------------------------------------------------------------------------------------

    def came(self, key: str, data: bytes) -> None:
        """An object is there now."""
        parsed = parse_group_key(key)
        if parsed is None:
            return
        if parsed.member is not None:
            if not decode_member(data, key=key).dead:
                self.expired(parsed.member)  # looks at the time that has passed until now
                self._landed_s[parsed.member] = self.now_s()
            else:
                self.counts["judged dead"] += 1
        elif parsed.partition is not None:
            self._changed(key, parsed.partition, decode_ownership(data, key=key))

    def went(self, key: str) -> None:
        """An object is not there any more."""
        self._positions.pop(key, None)

    def _changed(self, key: str, number: TopicNumber, now: Ownership) -> None:
        before, log = self._positions.get(key), self.logs[number]
        self._positions[key] = now
        owners = self._epochs.setdefault(key, {})
        if owners.setdefault(now.epoch, now.owner) != now.owner and now.owner:
            raise Violated(f"{key}: {now.owner} and {owners[now.epoch]} own it in one epoch")
        offset = now.position.offset
        if before is None:
            if now.epoch in [epoch for epoch in owners if owners[epoch] != now.owner]:
                raise Violated(f"{key}: epoch {now.epoch} was used before the group was deleted")
            if log.start is None:
                log.start = offset
                if offset not in log.resolved:
                    raise Violated(f"{key}: the group begins at {offset}, and {log.resolved} were resolved")
        elif number in self.reset:
            self.reset.discard(number)
        elif offset < before.position.offset:
            raise Violated(f"{key}: the position went back from {before.position} to {now.position}")
        elif before.epoch != now.epoch:
            self.counts["takes"] += 1
            if offset != before.position.offset:
                raise Violated(f"{key}: who took it began at {offset}, not {before.position.offset}")
        if log.start is None or offset > log.start + len(log.handed):
            raise Violated(f"{key}: {offset} was committed, {log.start} + {len(log.handed)} were handed out")

    # -- members -------------------------------------------------------------------------------------------------------

    def expired(self, member: str) -> bool:
        """Whether the lease of a member ran out, now or at any time before."""
        if self.now_s() - self._landed_s.get(member, self.now_s()) >= self.settings.lease_ms / 1000:
            self.excuses.add(member)
        return member in self.excuses

    def hand_out(self, member: str, tp: TopicPartition, number: TopicNumber, offset: int) -> None:
        """A caller gets one record."""
        log = self.logs[number]
        assert log.start is not None
        if self.now_s() - self._landed_s[member] >= self.settings.lease_ms / 1000:
            raise Violated(f"{member} hands out {tp} {offset}, its last heartbeat is of {self._landed_s[member]}")
        at = offset - log.start
        if at > len(log.handed):
            raise Violated(f"{tp}: {member} skips {log.start + len(log.handed)} to {offset}")
        if at == len(log.handed):
            log.handed.append(member)
            self.counts["handed out"] += 1
            return
        before = log.handed[at]
        if not self.expired(before) and (before, tp) not in self.excuses and not self._slow(before, tp):
            raise Violated(f"{tp}: {offset} was handed out to {before} and again to {member}, without a reason")
        self.counts["again"] += 1
        log.handed[at] = member

    def position(self, key: str) -> int | None:
        """The stored position of a partition."""
        found = self._positions.get(key)
        return None if found is None else found.position.offset

    def resets(self, number: TopicNumber, offset: int) -> None:
        """Someone is about to set a position back: what follows it comes again."""
        log = self.logs[number]
        assert log.start is not None
        self.reset.add(number)
        self.resets_of[number] += 1
        self.excuses.add("reset")
        log.handed[offset - log.start :] = ["reset"] * (len(log.handed) - offset + log.start)
        self.counts["reset"] += 1

    def deleted(self) -> None:
        """The group is gone, and begins at its start."""
        for log in self.logs.values():
            log.start, log.handed = None, []
        self.counts["groups deleted"] += 1

    def committed(self, key: str, tp: TopicPartition, offset: int) -> None:
        """A commit was acknowledged."""
        found = self._positions.get(key)
        if found is None or found.position.offset < offset:
            raise Violated(f"{tp}: {offset} was committed, the bucket has {found}")
        self.counts["commits"] += 1
