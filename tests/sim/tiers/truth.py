"""What every actor was told of the topic of both tiers; what the bucket holds is the ledger's."""

from __future__ import annotations

import random
from uuid import UUID

from tests.sim.bucket.ledger import Ledger, Log, Violated, batches_of
from tests.sim.bucket.store import WatchedStore
from tiered.errors import TieredError
from tiered.format.keys import root_key
from tiered.format.root import Root, decode_root
from tiered.model import TopicPartition
from tiered.store.base import Absent, Delete, Put

TOPIC = "t"
PARTITIONS = 2
TPS = tuple(TopicPartition(TOPIC, number) for number in range(PARTITIONS))
Values = dict[int, bytes]
"""Value by offset; a tombstone's is empty."""


class Truth:
    """Of one topic id. ``acked``: what a sync has acknowledged. ``bodies``: every root that ever was, oldest first."""

    FALSE_ALARMS = ("CorruptionError", "LogDestroyedError", "OffsetGapError", "ConfigError", "RecordTooLargeError")

    def __init__(self, store: WatchedStore, ledger: Ledger, topic_id: UUID) -> None:
        self._store = store
        self.ledger = ledger
        self.topic_id = topic_id
        self.acked: dict[TopicPartition, Values] = {tp: {} for tp in TPS}
        self.bodies: dict[TopicPartition, list[bytes]] = {tp: [] for tp in TPS}
        self.damaged: dict[TopicPartition, tuple[str, bytes]] = {}

    @property
    def deleted(self) -> bool:
        """Whether an operator has asked for its deletion, or its name was taken: then anybody may be refused."""
        return self.lost_its_name or any(log is not None and log.may_be_deleted for log in map(self.log, TPS))

    @property
    def lost_its_name(self) -> bool:
        """Whether another topic was registered while that of a disk waited for the name."""
        return self.topic_id.int > 0 and self.topic_id not in self.ledger.registered and TOPIC in self.ledger.entries

    def log(self, tp: TopicPartition) -> Log | None:
        """What the ledger has of a partition; None before it is registered."""
        return self.ledger.logs.get((self.topic_id, tp.partition))

    def root(self, tp: TopicPartition) -> Root | None:
        """The newest one."""
        log = self.log(tp)
        return None if log is None else log.root

    def committed_end(self, tp: TopicPartition) -> int:
        """Where the root ends."""
        root = self.root(tp)
        return 0 if root is None else root.next_offset

    def start(self, tp: TopicPartition) -> int:
        """Below it records may be gone: where the log begins, or was asked to begin."""
        log = self.log(tp)
        return 0 if log is None else max(log.start, log.may_begin_at)

    def served(self, tp: TopicPartition, offset: int) -> bytes | None:
        """What the bucket has ever held there; None for nothing."""
        log = self.log(tp)
        held = None if log is None else log.records.get(offset)
        return None if held is None else held.value or b""

    def keep(self, log: Log, body: bytes) -> None:
        """A root has come."""
        if log.tp in self.bodies and log.tp not in self.damaged:
            self.bodies[log.tp].append(body)

    def acknowledge(self, tp: TopicPartition, values: Values) -> None:
        """A sync returned."""
        new = values.keys() - self.acked[tp].keys()
        # What a daemon has committed before, and noted, is acknowledged without another look at the root.
        if tp in self.damaged and any(self.served(tp, offset) != values[offset] for offset in new):
            raise Violated(f"{tp}: a sync was acknowledged while the root was {self.damaged[tp][0]}")
        for offset, value in values.items():
            lost = offset >= self.start(tp) and tp not in self.damaged
            found = self.served(tp, offset)
            if found is None and not lost:
                continue
            if found != value:
                raise Violated(f"{tp}: {value!r} was acknowledged at {offset}, the bucket has {found!r}")
        self.acked[tp].update(values)

    def check_read(self, who: object, tp: TopicPartition, expected: Values, found: Values) -> None:
        """What was acknowledged before a read began is in it, and nothing else is at those offsets.

        A compaction may have taken away what is older than another record of its key: the ledger has judged that.
        """
        log = self.log(tp)
        for offset, value in expected.items():
            if offset not in found and offset >= self.start(tp):
                if log is not None and offset < log.end and offset not in log.alive:
                    continue
                raise Violated(f"{who} reads {tp} without {offset}, which was acknowledged, and without an error")
            if found.get(offset, value) != value:
                raise Violated(f"{who} reads {found[offset]!r} at {tp} {offset}, {value!r} was acknowledged")

    # -- damage ----------------------------------------------------------------------------------------------------

    def damage(self, tp: TopicPartition, how: str, dice: random.Random) -> bool:
        """The root is ``lost``, or an ``older`` one is there that ends earlier; False if it has no such."""
        older = [body for body in self.bodies[tp] if self._end(body) < self.committed_end(tp)]
        log = self.log(tp)
        if log is None or tp in self.damaged or self.deleted or not older:
            return False
        self.damaged[tp] = how, self.bodies[tp][-1]
        log.set_aside = True
        key = root_key(log.topic_id, tp.partition)
        self._store.execute(Delete((key,)))
        if how == "older":
            self._store.execute(Put(key, dice.choice(older), Absent()))
        self._now = self._store.peek(key)
        return True

    def shown_end(self, tp: TopicPartition) -> int:
        """Where the root ends that the bucket shows now; 0 if it is lost."""
        log = self.log(tp)
        body = None if log is None else self._store.peek(root_key(log.topic_id, tp.partition))
        return 0 if body is None else self._end(body)

    def heal(self, tp: TopicPartition) -> None:
        """The operator puts the newest root back. Nobody must have written another one meanwhile."""
        how, body = self.damaged[tp]
        log = self.log(tp)
        assert log is not None
        key = root_key(log.topic_id, tp.partition)
        if self._store.peek(key) != self._now:
            raise Violated(f"the root of {tp} was {how}, and somebody wrote another one")
        self._store.execute(Delete((key,)))
        self._store.execute(Put(key, body, Absent()))
        log.set_aside = False
        del self.damaged[tp]

    def _end(self, body: bytes) -> int:
        try:
            return decode_root(body, key="root").next_offset
        except TieredError:
            return 0


def values_of(data: bytes) -> Values:
    """The records of a ``.log`` by offset."""
    found: Values = {}
    for offset, held in batches_of(data):
        if offset in found:
            raise Violated(f"offset {offset} is twice in one object")
        found[offset] = held.value or b""
    return found
