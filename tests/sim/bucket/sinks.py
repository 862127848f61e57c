"""Lives of Spark sinks: drivers of queries, killed and begun again at any request, and who hands partitions over."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.sim.bucket.ledger import Log, Said
from tests.sim.bucket.lives import KEYS, PASSING
from tests.sim.bucket.process import SteppedProcess
from tests.unit.remote.building import TRUSTED, seal
from tiered.errors import ConfigError, CorruptionError, FencedError, LogDestroyedError, NotFoundError
from tiered.format.batch import encode_batch
from tiered.format.decision import COMMITTED, Decision
from tiered.format.root import STATE_OPEN
from tiered.model import NewRecord, Row
from tiered.remote.roots import TopicIds
from tiered.remote.sink_commit import Sink, hand_over, upload_staged
from tiered.remote.topics import load_topic
from tiered.store.base import Steps

if TYPE_CHECKING:
    from uuid import UUID

    from tests.sim.bucket.world import World
    from tiered.remote.topics import TopicEntry

NEW_QUERY = 0.04
"""Share of lives that begin without the checkpoint of the life before: what that one staged is nobody's then."""
WRONG = (LogDestroyedError, ConfigError, NotFoundError, CorruptionError)


class Stream:
    """One query: its checkpoint is what survives of it when a driver dies: transaction id and next batch.

    Two drivers of the same query may live at the same time: one of them does not know that it was given up. What a
    batch holds follows from its number, as from a source that is read again; what is staged for it never does.
    """

    def __init__(self, world: World, topic: str, name: str) -> None:
        self.world = world
        self.topic = topic
        self.name = name
        self.txn = ""
        self.batch = 0
        self.of: UUID | None = None

    def life(self, process: SteppedProcess) -> Steps[None]:
        """Batches, one after the other, until something is wrong, or for a while."""
        rng = self.world.rng
        try:
            entry = yield from load_topic(self.topic)
            if entry is None or entry.state != STATE_OPEN:
                return
            if entry.topic_id != self.of or rng.random() < NEW_QUERY:
                self.of, self.txn, self.batch = entry.topic_id, f"{self.name} {self.world.new_number()}", 0
            txn, batch = self.txn, self.batch
            sink = Sink(str(process), {entry.topic_id: self.topic})
            for _ in range(rng.randrange(1, 5)):
                yield from self._write(process, entry, sink, txn, batch)
                batch += 1
                if self.txn == txn:
                    self.batch = max(self.batch, batch)
        except (*PASSING, FencedError):
            return
        except WRONG as error:
            self.world.tolerate(process, error, self.topic)

    def _write(self, process: SteppedProcess, entry: TopicEntry, sink: Sink, txn: str, batch: int) -> Steps[None]:
        ledger, rows = self.world.ledger, dict[tuple["UUID", int], tuple[Row, ...]]()
        contents = contents_of(txn, batch, ledger.logs[entry.topic_id, 0], entry.partitions)
        for partition, said in contents.items():
            rows[entry.topic_id, partition] = yield from self._stage(process, entry, partition, said, txn, batch)
        decision = yield from sink.decide(Decision(txn, batch, COMMITTED, rows))
        yield from sink.commit_staged(decision)
        self.world.note(process, f"committed batch {batch} of {txn}")
        for partition, said in contents.items():
            ledger.acknowledge_batch(ledger.logs[entry.topic_id, partition], (txn, batch), said, process)

    def _stage(
        self, process: SteppedProcess, entry: TopicEntry, partition: int, said: Said, txn: str, batch: int
    ) -> Steps[tuple[Row, ...]]:
        """What one batch holds of one partition, as a segment or two of a batch or two."""
        rng, rows, left = self.world.rng, list[Row](), list(said.values())
        while left:
            parts, at = [], 0
            for _ in range(rng.randrange(1, 3)):
                take = rng.randrange(1, 4)
                records = [NewRecord(value, key, process.clock.now_ms()) for key, value in left[:take]]
                if records:
                    parts.append(encode_batch(records, base_offset=at))
                left, at = left[take:], at + len(records)
            segment = seal(parts, partition=partition, topic_id=entry.topic_id)
            rows.append((yield from upload_staged(segment, txn, batch, TRUSTED)))
        return tuple(rows)


def contents_of(txn: str, batch: int, log: Log, partitions: int) -> dict[int, Said]:
    """Keys and values of a batch by partition, their offsets counted from 0: the same at each attempt."""
    rng = random.Random(f"{txn} {batch}")
    found: dict[int, Said] = {}
    for partition in sorted(rng.sample(range(partitions), rng.randrange(1, partitions + 1))):
        said = {}
        for at in range(rng.randrange(1, 6)):
            value = f"{txn} {batch} {partition} {at}".encode()
            gone = log.config.compacted and rng.random() < 0.15
            said[at] = f"k{rng.randrange(KEYS)}".encode(), None if gone else value
        found[partition] = said
    return found


def hand_over_partitions(world: World, process: SteppedProcess, topic: str) -> Steps[None]:
    """An operator gives partitions to sinks, which may have them already, or to local logs for a while."""
    try:
        entry = yield from load_topic(topic)
        if entry is None or entry.state != STATE_OPEN:
            return
        to = "spark" if world.rng.random() < 0.7 else "local"
        which = sorted(world.rng.sample(range(entry.partitions), world.rng.randrange(1, entry.partitions + 1)))
        world.note(process, f"hands {which} of {topic} over to {to}")
        yield from hand_over(TopicIds(topic, entry.topic_id), which, to, str(process))
        world.counts["handed over"] += 1
    except (*PASSING, FencedError):
        return
    except WRONG as error:
        world.tolerate(process, error, topic)
