"""What every actor was told and what the bucket has ever held, compared after each step."""

from __future__ import annotations

import random

from tiered.errors import TieredError
from tiered.format.batch import decode_records
from tiered.format.keys import FLAG_HOLE, index_key, join_uid, root_key, segment_key, topic_key
from tiered.format.root import Root, decode_root
from tiered.model import Row, TopicPartition
from tiered.plan.invariants import check_root
from tiered.remote.topics import TopicEntry, decode_topic
from tiered.store.base import Absent, Delete, Get, Head, Missing, NotModified, Object, Put
from tiered.store.memory import MemoryStore

TOPIC = "t"
PARTITIONS = 2
TPS = tuple(TopicPartition(TOPIC, number) for number in range(PARTITIONS))
Values = dict[int, bytes]


class Violated(AssertionError):
    """An invariant of the log does not hold."""


class Truth:
    """``acked``: what a sync has acknowledged. ``served``: what the bucket gave at each offset, ever.

    ``trimmed``: below it a maintainer took records away, or tried to.
    """

    FALSE_ALARMS = ("CorruptionError", "LogDestroyedError", "OffsetGapError", "ConfigError", "RecordTooLargeError")

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.acked: dict[TopicPartition, Values] = {tp: {} for tp in TPS}
        self.served: dict[TopicPartition, Values] = {tp: {} for tp in TPS}
        self.trimmed: dict[TopicPartition, int] = dict.fromkeys(TPS, 0)
        self.roots: dict[TopicPartition, Root] = {}
        self.bodies: dict[TopicPartition, list[bytes]] = {tp: [] for tp in TPS}
        self.damaged: dict[TopicPartition, tuple[str, bytes]] = {}
        self._etags: dict[TopicPartition, str] = {}
        self._read: set[str] = set()
        self.entry: TopicEntry | None = None

    # -- the bucket ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Every root and all that it names. A partition that is damaged just now is left out."""
        if self.entry is None:
            got = self._store.execute(Get(topic_key(TOPIC)))
            if not isinstance(got, Object):
                return
            self.entry = decode_topic(got.data, key=topic_key(TOPIC))
        for tp in TPS:
            if tp not in self.damaged:
                self._look_at(tp, self.entry)

    def _key(self, tp: TopicPartition) -> str:
        assert self.entry is not None
        return root_key(self.entry.topic_id, tp.partition)

    def _look_at(self, tp: TopicPartition, entry: TopicEntry) -> None:
        got = self._store.execute(Get(self._key(tp), if_none_match=self._etags.get(tp)))
        if isinstance(got, Missing):
            if tp in self.roots:
                raise Violated(f"the root of {tp} is gone")
            return
        if not isinstance(got, NotModified):
            assert isinstance(got, Object)
            root = decode_root(got.data, key=self._key(tp))
            violations = check_root(root, self.roots.get(tp))
            if violations:
                raise Violated(f"{tp}: " + "; ".join(map(str, violations)))
            self.roots[tp], self._etags[tp] = root, got.etag
            self.bodies[tp].append(got.data)
        root = self.roots[tp]
        for row in root.rows:
            self._look_at_row(tp, entry, row)
        for offset, value in self.acked[tp].items():
            if offset >= root.start_offset and self.served[tp].get(offset) != value:
                raise Violated(
                    f"{tp}: {value!r} was acknowledged at {offset}, {self.served[tp].get(offset)!r} is there"
                )
            if offset >= root.next_offset:
                raise Violated(f"{tp}: {offset} was acknowledged, the root ends at {root.next_offset}")

    def _look_at_row(self, tp: TopicPartition, entry: TopicEntry, row: Row) -> None:
        if row.flags & FLAG_HOLE:
            return
        keys = [segment_key(entry.topic_id, tp.partition, row)]
        keys += [index_key(entry.topic_id, tp.partition, row)] if row.idx_len else []
        for key in keys:
            if isinstance(self._store.execute(Head(key)), Missing):
                raise Violated(f"the root of {tp} names {key}, which is not there")
        uid = join_uid(row.id_hi, row.id_lo)
        if uid in self._read:
            return
        self._read.add(uid)
        got = self._store.execute(Get(keys[0]))
        assert isinstance(got, Object)
        found = values_of(got.data)
        if sorted(found) != list(range(row.base, row.next)):
            raise Violated(f"{keys[0]} holds {sorted(found)}, its row says {row.base}..{row.next}")
        for offset, value in found.items():
            self.serve(tp, offset, value)

    def serve(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        """The bucket gave this, for whoever read it."""
        before = self.served[tp].setdefault(offset, value)
        if before != value:
            raise Violated(f"{tp} {offset} was {before!r} and is {value!r}")

    def acknowledge(self, tp: TopicPartition, values: Values) -> None:
        """A sync returned."""
        self.look()
        new = values.keys() - self.acked[tp].keys()
        # What a daemon has committed before, and noted, is acknowledged without another look at the root.
        if tp in self.damaged and any(self.served[tp].get(offset) != values[offset] for offset in new):
            raise Violated(f"{tp}: a sync was acknowledged while the root was {self.damaged[tp][0]}")
        for offset, value in values.items():
            lost = offset >= self.trimmed[tp] and tp not in self.damaged
            if self.served[tp].get(offset, None if lost else value) != value:
                raise Violated(f"{tp}: {value!r} was acknowledged at {offset} and is not in the bucket")
        self.acked[tp].update(values)

    def committed_end(self, tp: TopicPartition) -> int:
        """Where the root ends."""
        return self.roots[tp].next_offset if tp in self.roots else 0

    def check_read(self, who: object, tp: TopicPartition, expected: Values, found: Values) -> None:
        """What was acknowledged before a read began is in it, and nothing else is at those offsets."""
        for offset, value in expected.items():
            if offset not in found and offset >= self.trimmed[tp]:
                raise Violated(f"{who} reads {tp} without {offset}, which was acknowledged, and without an error")
            if found.get(offset, value) != value:
                raise Violated(f"{who} reads {found[offset]!r} at {tp} {offset}, {value!r} was acknowledged")

    # -- damage ----------------------------------------------------------------------------------------------------

    def damage(self, tp: TopicPartition, how: str, dice: random.Random) -> bool:
        """The root is ``lost``, or an ``older`` one is there that ends earlier; False if it has no such."""
        older = [body for body in self.bodies[tp] if self._end(body) < self.committed_end(tp)]
        if self.entry is None or tp in self.damaged or not older:
            return False
        self.damaged[tp] = how, self.bodies[tp][-1]
        self._store.execute(Delete((self._key(tp),)))
        if how == "older":
            self._store.execute(Put(self._key(tp), dice.choice(older), Absent()))
        self._now = self._body(tp)
        return True

    def shown_end(self, tp: TopicPartition) -> int:
        """Where the root ends that the bucket shows now; 0 if it is lost."""
        body = self._body(tp)
        return 0 if body is None else self._end(body)

    def heal(self, tp: TopicPartition) -> None:
        """The operator puts the newest root back. Nobody must have written another one meanwhile."""
        how, body = self.damaged.pop(tp)
        if self._body(tp) != self._now:
            raise Violated(f"the root of {tp} was {how}, and somebody wrote another one")
        self._store.execute(Delete((self._key(tp),)))
        self._store.execute(Put(self._key(tp), body, Absent()))

    def _body(self, tp: TopicPartition) -> bytes | None:
        got = self._store.execute(Get(self._key(tp)))
        return got.data if isinstance(got, Object) else None

    def _end(self, body: bytes) -> int:
        try:
            return decode_root(body, key="root").next_offset
        except TieredError:
            return 0


def values_of(data: bytes) -> Values:
    """The records of a ``.log`` by offset."""
    found: Values = {}
    at = 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        for record in decode_records(data[at:end]):
            assert record.value is not None
            if record.offset in found:
                raise Violated(f"offset {record.offset} is twice in one object")
            found[record.offset] = record.value
        at = end
    return found
