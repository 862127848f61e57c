"""Every kind of directory that we write, under a real broker, as its own log directories: it loads them without a
word of repair and serves what we say, at both isolation levels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.servers.commands import require, run
from tests.integration.servers.kafka import Broker, Heard, Seen
from tests.integration.servers.kafka_kinds import FAR, KINDS, Desk
from tests.integration.servers.kafka_view import Told, now_clock, open_for_writing, producers_of, tell
from tests.integration.servers.kafka_wire import ActiveProducer, describe_producers
from tiered.format.batch import encode_batch
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock

TOPICS = {name: TopicPartition(name, 0) for name in KINDS}
REPAIR = "WARN|ERROR|FATAL|UNCLEAN|[Rr]ecovering|[Rr]ebuilding (?!producer state)|[Cc]orrupt|Truncat"
BROKER_TOPIC = {
    "retention.ms": "-1",
    "min.compaction.lag.ms": str(2**62),
    "max.compaction.lag.ms": str(2**63 - 1),
    "internal.segment.bytes": "20000",
}


@dataclass
class World:
    """A running broker over the directories that we wrote, and what both say of them."""

    broker: Broker
    wrote: dict[TopicPartition, dict[int, Seen]]
    told: dict[TopicPartition, Told]
    verified: str
    everything: dict[TopicPartition, Heard] = field(default_factory=dict)
    committed: dict[TopicPartition, Heard] = field(default_factory=dict)
    producers: dict[TopicPartition, list[ActiveProducer]] = field(default_factory=dict)

    def listen(self) -> None:
        """Asks the broker for all at once."""
        partitions = list(TOPICS.values())
        self.everything = self.broker.hear(partitions, isolation="read_uncommitted")
        self.committed = self.broker.hear(partitions, isolation="read_committed")
        self.producers = describe_producers(self.broker.bootstrap, partitions)


def lay_overflow(log_dirs: list[Path], desk: Desk) -> None:
    """One segment with offsets that do not fit into it, as brokers made them long ago."""
    [directory] = [path for path in log_dirs if (path / str(desk.tp)).exists()]
    data = b""
    for offset in (*range(10), FAR, FAR + 1, FAR + 9):
        records = [NewRecord(b"v", b"k", desk.clock.now_ms())]
        data += encode_batch(records, base_offset=offset, leader_epoch=0)
        desk.wrote[offset] = Seen(offset, desk.clock.now_ms(), 0, b"k", b"v", [])
    (directory / str(desk.tp) / f"{0:020d}.log").write_bytes(data)
    (directory / str(desk.tp) / "tiered-sparse").touch()


def write_all(broker: Broker, clock: FakeClock) -> dict[TopicPartition, dict[int, Seen]]:
    """Two sessions over the directories of the stopped broker; returns what was appended."""
    with open_for_writing(broker.log_dirs, clock) as log:
        desks = {name: Desk(log, tp, clock) for name, tp in TOPICS.items()}
        for name, kind in KINDS.items():
            log.alter_topic(name, kind.settings)
            kind.write(desks[name])
    lay_overflow(broker.log_dirs, desks["overflowed"])
    with open_for_writing(broker.log_dirs, clock) as log:
        for name, kind in KINDS.items():
            if kind.later is not None:
                desks[name].log = log
                kind.later(desks[name])
    return {desk.tp: desk.wrote for desk in desks.values()}


def verify(log_dirs: list[Path]) -> str:
    """What Kafka's dump tool says of every file in them."""
    return run("kafka", "verify", *map(str, log_dirs), check=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The broker makes the topics; what lies in their directories is ours."""
    require("kafka")
    broker = Broker(tmp_path_factory.mktemp("kinds") / "broker", "log.index.size.max.bytes=65536", log_dirs=2)
    try:
        broker.start()
        for policy in ("delete", "compact", "compact,delete"):
            names = [n for n, kind in KINDS.items() if kind.settings.get("cleanup.policy", "delete") == policy]
            broker.create(dict.fromkeys(names, 1), {**BROKER_TOPIC, "cleanup.policy": policy})
        broker.stop()
        wrote = write_all(broker, now_clock())
        one = World(broker, wrote, tell(broker.log_dirs, TOPICS.values()), verify(broker.log_dirs))
        broker.start()
        one.listen()
        yield one
    finally:
        broker.stop()


kinds = pytest.mark.parametrize("name", KINDS)


def test_kafkas_tools_find_no_fault(world: World) -> None:
    assert world.verified.splitlines()[-1].endswith(": OK"), world.verified


@kinds
def test_it_serves_what_we_say(world: World, name: str) -> None:
    tp = TOPICS[name]
    assert (world.everything[tp], world.committed[tp]) == world.told[tp][:2]


@kinds
def test_we_say_what_was_appended(world: World, name: str) -> None:
    tp = TOPICS[name]
    start, _, records = world.told[tp].everything
    wrote = {offset: record for offset, record in world.wrote[tp].items() if offset >= start}
    if "compact" not in KINDS[name].settings.get("cleanup.policy", ""):
        assert records == list(wrote.values())
        return
    assert [wrote[record.offset] for record in records] == records
    assert len(records) < len(wrote)


@kinds
def test_it_finds_times_where_we_find_them(world: World, name: str) -> None:
    tp = TOPICS[name]
    asked = world.told[tp].times
    answers = {timestamp: world.broker.offset_for_time(tp, timestamp) for timestamp in asked}
    if "compact" in name:  # it takes the file time of a segment without records for its largest timestamp
        answers |= {timestamp: asked[timestamp] for timestamp, offset in answers.items() if offset < 0}
    assert answers == asked


@kinds
def test_it_knows_the_producers_that_we_know(world: World, name: str) -> None:
    tp = TOPICS[name]
    assert world.producers[tp] == producers_of(world.broker.log_dirs, tp, world.told[tp].everything.end)


@kinds
def test_it_had_nothing_to_repair(world: World, name: str) -> None:
    assert world.broker.complaints([TOPICS[name]], REPAIR) == []


def test_it_loaded_both_directories_as_clean(world: World) -> None:
    said = world.broker.said()
    for path in world.broker.log_dirs:
        assert any(
            re.search(rf"clean shutdown file.*{path.name}\b|{path.name}\b.*clean shutdown", line) for line in said
        )
    assert not [line for line in said if re.search("ERROR|FATAL", line)]
