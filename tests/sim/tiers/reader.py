"""A reader of the bucket alone: for a long time with the same streams, or each time anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.tiers.machine import Process, SimStore
from tests.sim.tiers.truth import TOPIC, TPS, Violated
from tiered.errors import TieredError, UnknownTopicError
from tiered.model import TopicPartition
from tiered.read.bucket import BucketReads
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream
from tiered.reader import Reader
from tiered.store.layers import LayeredStore
from tiered.store.options import StoreOptions
from tiered.store.retry import Retries

if TYPE_CHECKING:
    from tests.sim.tiers.world import World


class LongReader:
    """``is_open``: it has streams that have seen a root."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self._streams: dict[TopicPartition, PartitionStream] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._truth = world.truth

    def __str__(self) -> str:
        return self.name

    @property
    def is_open(self) -> bool:
        """Whether it can know that a root is older than another."""
        return len(self._streams) == len(TPS)

    def has_seen(self, tp: TopicPartition, offset: int) -> bool:
        """Whether it has read a root that ends above ``offset``: only then it can tell that one is older."""
        return self._ends.get(tp, 0) > offset

    def act(self) -> None:
        """Reads all; opens itself anew now and then."""
        older = any(how == "older" for how, _ in self.world.truth.damaged.values())
        if not self._streams or (self.world.rng.random() < 0.2 and not older):
            self.again()
        else:
            self._read()

    def again(self) -> None:
        """A new reader."""
        self._streams, self._ends = {}, {}
        process = Process(self.world, None, self.name)
        clock, ids = self.world.clock, process.ids
        store = LayeredStore(SimStore(process), Retries(clock=clock, ids=ids, deadline_seconds=5.0))
        bucket = BucketReads(store)
        reader = Reader(None, bucket, StoreOptions(), clock=clock, ids=ids)
        streams = {}
        try:
            topic = reader.topic(TOPIC)
            self._truth = self.world.truth_of(bucket.entries[TOPIC].topic_id)
            for tp in TPS:
                streams[tp] = topic.stream(tp.partition)
        except UnknownTopicError as error:
            if any(self.world.truth.acked.values()) and not self.world.truth.deleted:
                raise Violated(f"{self} finds no topic: {error}") from error
            return
        except TieredError as error:
            self.world.note(self, f"{type(error).__name__} {error}")
            self.world.tolerated(error)
            return
        self._streams = streams
        self._read()

    def _read(self) -> None:
        for tp, stream in list(self._streams.items()):
            expected = dict(self._truth.acked[tp])
            try:
                stream.refresh()
                records = list(stream.records(ReadRange()))
            except TieredError as error:
                self.world.note(self, f"{type(error).__name__} {error}")
                if tp not in self._truth.damaged:
                    self.world.tolerated(error, self._truth)
                if self._truth.deleted:
                    self._streams = {}
                continue
            self.world.note(self, f"read {tp} {len(records)}")
            found = {record.offset: record.value or b"" for record in records}
            if len(found) != len(records):
                raise Violated(f"{self} reads an offset of {tp} twice")
            self._truth.check_read(self, tp, expected, found)
            for offset, value in found.items():
                if self._truth.served(tp, offset) != value:
                    raise Violated(f"{self} reads {value!r} at {tp} {offset}")
            end = max(found, default=-1) + 1
            if end < self._ends.get(tp, 0):
                raise Violated(f"{self} has read {tp} up to {self._ends[tp]}, and now up to {end}")
            self._ends[tp] = end
