"""Two sinks, a maintainer and bad weather, a request at a time: each batch once, in order, no garbage in the end."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from functools import partial

import pytest

from tests.sim.bucket.process import Life, SteppedProcess
from tests.sim.bucket.store import WatchedStore, Weather
from tests.support.admin import apply_repair, check, plan_repair
from tests.support.remote_face import RemoteFace
from tests.unit.remote.building import TOPIC_ID, TRUSTED, seal
from tiered.check.check import CheckOptions
from tiered.config import TopicConfig
from tiered.errors import (
    CommitUnknownError,
    CorruptionError,
    FencedError,
    RemotePermissionError,
    RemoteUnavailableError,
)
from tiered.format.batch import decode_records, encode_batch
from tiered.format.decision import COMMITTED, Decision
from tiered.format.keys import root_key
from tiered.model import NewRecord, TopicPartition
from tiered.plan.maintenance import MaintenanceKind
from tiered.remote.gc.sink_orphans import sweep_decisions
from tiered.remote.maintain import Maintainer
from tiered.remote.sink_commit import Sink, upload_staged
from tiered.remote.topics import register_topic
from tiered.store.base import ABSENT, Delete, Get, Object, Put, Steps, Store
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock

PARTITIONS = 2
BATCHES = 12
STEPS = 900
GRACE_MS = 600_000
CONFIG = TopicConfig(gc_grace_ms=GRACE_MS, merge_min_bytes=2_000, merge_target_bytes=8_000)
EAGER = TopicConfig(gc_grace_ms=GRACE_MS, merge_min_bytes=300, merge_target_bytes=500)
PASSING = (CommitUnknownError, RemoteUnavailableError, RemotePermissionError, FencedError)
SEEDS = 6


class Stream:
    """What survives of a query when its driver dies: which batch is next. It stages other segments each time."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name, self.rng, self.batch = name, rng, 0

    def life(self, process: SteppedProcess) -> Steps[None]:
        """Batches, one after the other, until something is wrong."""
        sink = Sink(str(process), {TOPIC_ID: "t"})
        try:
            while self.batch < BATCHES:
                rows = {}
                for partition in sorted(self.rng.sample(range(PARTITIONS), self.rng.randrange(1, PARTITIONS + 1))):
                    value = f"{self.name} {self.batch} {partition}".encode()
                    staged = []
                    for part in range(self.rng.randrange(1, 3)):
                        data = [NewRecord(b"%s %d" % (value, part), None, process.clock.now_ms())]
                        segment = seal([encode_batch(data, base_offset=0)], partition=partition)
                        staged.append((yield from upload_staged(segment, self.name, self.batch, TRUSTED)))
                    rows[TOPIC_ID, partition] = tuple(staged)
                decision = yield from sink.decide(Decision(self.name, self.batch, COMMITTED, rows))
                yield from sink.commit_staged(decision)
                self.batch += 1
        except PASSING:
            return


def maintain(process: SteppedProcess, config: TopicConfig = CONFIG) -> Steps[None]:
    """Merging, collection and a sweep of everything."""
    try:
        for number in range(PARTITIONS):
            maintainer = Maintainer(TopicPartition("t", number), TOPIC_ID, config, owner=str(process))
            plan = yield from maintainer.plan((MaintenanceKind.MERGE, MaintenanceKind.COLLECT))
            for action in plan.actions if plan is not None else ():
                yield from maintainer.run(action, TRUSTED)
            yield from maintainer.sweep(delete=True)
        yield from sweep_decisions(delete=True)
    except PASSING:
        return


def begun(rng: random.Random, clock: FakeClock, upkeep: Life) -> tuple[Weather, list[Stream], list[SteppedProcess]]:
    """A new topic in bad weather: two streams, and the processes of both and of a maintainer."""
    store = WatchedStore(clock)
    drive(store, register_topic("t", TOPIC_ID, PARTITIONS, CONFIG.to_text(changed_only=True)), clock=clock)
    bucket = Weather(store, rng, 0.08)
    streams = [Stream(name, rng) for name in ("one", "two")]
    lives = [*((each.name, each.life) for each in streams), ("maintainer", upkeep)]
    return bucket, streams, [SteppedProcess(name, life, bucket, clock, rng.getrandbits(64)) for name, life in lives]


def said(store: Store, partition: int) -> list[str]:
    face = RemoteFace(store, "t", TOPIC_ID, partition)
    records = [record for batch in face.read_batches(0) for record in decode_records(batch)]
    assert [record.offset for record in records] == list(range(face.next_offset))
    return [(record.value or b"").decode() for record in records]


def copy_of(store: WatchedStore, clock: FakeClock, without: str) -> MemoryStore:
    """All that is in a bucket now, but for one folder of each partition."""
    copy = MemoryStore(clock=clock)
    for key in store.all_keys():
        got = store.execute(Get(key))
        assert isinstance(got, Object)
        if not without or without not in key:
            copy.execute(Put(key, bytes(got.data), ABSENT))
    return copy


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("number", range(SEEDS))
def test_each_batch_is_there_once_in_order_and_nothing_else_in_the_end(number: int) -> None:
    seed = random.SystemRandom().randrange(2**32) if number else 1
    print("seed", seed)
    rng, clock = random.Random(seed), FakeClock()
    bucket, streams, processes = begun(rng, clock, maintain)
    store = bucket.inner
    for _ in range(STEPS):
        process = rng.choice(processes)
        dice = rng.random()
        if dice < 0.02:
            process.die()
        elif dice < 0.05:
            clock.advance(rng.choice((1, 700)))
        elif dice < 0.09:
            bucket.deliver()
        clock.advance(0.2)
        process.step()
    bucket.rate = 0.0
    bucket.deliver_all()
    for process in processes:
        process.die()
    for stream, process in zip(streams, processes, strict=False):
        while stream.batch < BATCHES:
            process.step()
    for _ in range(4):
        clock.advance(100_000)
        while processes[-1].step():
            pass
    for partition in range(PARTITIONS):
        found = said(store, partition)
        for stream in streams:
            mine = [value.split() for value in found if value.startswith(stream.name)]
            assert [(int(each[1]), int(each[3])) for each in mine] == sorted({(int(e[1]), int(e[3])) for e in mine})
            assert {each[2] for each in mine} <= {str(partition)}
    committed = {value.split()[0] + value.split()[1] for p in range(PARTITIONS) for value in said(store, p)}
    assert committed == {f"{stream.name}{batch}" for stream in streams for batch in range(BATCHES)}
    report = check(None, store, CheckOptions(read_data=True))
    assert [str(finding) for finding in report.findings] == []
    left = [key for key in store.all_keys() if key.startswith("txn/")]
    assert len(left) <= len(streams) * 3


def found_again(copy: MemoryStore, partition: int, before: list[str]) -> int:
    """Repair a lost root, if it can be: all that was there is, where it was. Gives whether it could be."""
    try:
        plan = plan_repair(copy, [TopicPartition("t", partition)])
    except CorruptionError:
        return 0
    if plan.left:
        return 0
    apply_repair(copy, plan)
    assert said(copy, partition)[: len(before)] == before
    return 1


@pytest.mark.parametrize("number", range(SEEDS))
def test_a_root_that_is_lost_at_any_moment_is_made_anew_as_it_was_or_not_at_all(number: int) -> None:
    """Two sinks, a maintainer that merges and sweeps, bad weather; with copies below ``hist/`` and without."""
    seed = random.SystemRandom().randrange(2**32) if number else 1
    print("seed", seed)
    rng, clock = random.Random(seed), FakeClock()
    bucket, _, processes = begun(rng, clock, partial(maintain, config=EAGER))
    store = bucket.inner
    told, process = 0, processes[0]
    for step in range(1200):
        if rng.random() < 0.03:  # most do what they do alone: of what is side by side nothing is told
            process = rng.choice(processes)
        if rng.random() < 0.01:
            process.die()
        clock.advance(700 if rng.random() < 0.004 else 0.2)
        process.step()
        if step % 60:
            continue
        for without in ("", "/hist/"):
            copy, partition = copy_of(store, clock, without), rng.randrange(PARTITIONS)
            before = said(copy, partition)
            copy.execute(Delete((root_key(TOPIC_ID, partition),)))
            told += found_again(copy, partition, before)
    assert told
