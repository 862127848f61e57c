"""Every kind of directory that we write, under a real broker, as its own log directories: it loads them without a
word of repair and serves what we say, at both isolation levels."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from tests.integration.servers.commands import require, run
from tests.integration.servers.kafka import CLUSTER_ID, Broker, Heard, Seen
from tests.integration.servers.kafka_desk import Desk
from tests.integration.servers.kafka_killed import write_and_be_killed
from tests.integration.servers.kafka_kinds import KINDS
from tests.integration.servers.kafka_view import Told, logs_of, now_clock, open_for_writing, producers_of, tell
from tests.integration.servers.kafka_wire import ActiveProducer, describe_producers, epoch_ends
from tests.support.admin import check
from tiered.check.findings import Severity
from tiered.config import LogConfig
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds

TOPICS = {name: TopicPartition(name, 0) for name in KINDS}
DOOMED = "doomed"
REPAIR = "WARN|ERROR|FATAL|UNCLEAN|[Rr]ecovering|[Rr]ebuilding (?!producer state)|[Cc]orrupt|Truncat"
BROKER_TOPIC = {
    "retention.ms": "-1",
    "min.compaction.lag.ms": str(2**62),
    "max.compaction.lag.ms": str(2**63 - 1),
    "internal.segment.bytes": "20000",
}


@dataclass
class Heardsay:
    """What a broker says of all kinds, asked once."""

    everything: dict[TopicPartition, Heard]
    committed: dict[TopicPartition, Heard]
    producers: dict[TopicPartition, list[ActiveProducer]]
    times: dict[TopicPartition, dict[int, int]]
    epochs: dict[tuple[TopicPartition, int], tuple[int, int]]

    @classmethod
    def of(cls, broker: Broker, told: dict[TopicPartition, Told]) -> Heardsay:
        """Asks for the times that we were asked for."""
        partitions = list(told)
        return cls(
            broker.hear(partitions, isolation="read_uncommitted"),
            broker.hear(partitions, isolation="read_committed"),
            describe_producers(broker.bootstrap, partitions),
            {tp: {at: broker.offset_for_time(tp, at) for at in one.times} for tp, one in told.items()},
            epoch_ends(broker.bootstrap, [(tp, epoch) for tp, one in told.items() for epoch in one.epochs]),
        )


@dataclass
class World:
    """What we wrote and say of it, and what a broker said of the same directories when it had loaded them."""

    broker: Broker
    wrote: dict[TopicPartition, dict[int, Seen]]
    told: dict[TopicPartition, Told]
    verified: str
    producers: dict[TopicPartition, list[ActiveProducer]]
    heard: Heardsay
    said: list[str]
    volume_id: UUID


@dataclass
class Crash:
    """The same after a process of ours was killed: what we say, having recovered a copy, and what the broker said,
    having recovered the directories, and what we say of those when it has stopped."""

    told: dict[TopicPartition, Told]
    producers: dict[TopicPartition, list[ActiveProducer]]
    heard: Heardsay
    afterwards: dict[TopicPartition, Told]
    ours: list[Path]
    theirs: list[Path]


def write_all(broker: Broker, clock: FakeClock) -> dict[TopicPartition, dict[int, Seen]]:
    """Two sessions over the directories of the stopped broker; returns what was appended."""
    with open_for_writing(broker.log_dirs, clock) as log:
        desks = {name: Desk(log, tp, clock) for name, tp in TOPICS.items()}
        for name, kind in KINDS.items():
            log.alter_topic(name, kind.settings)
            kind.write(desks[name])
        log.partition(TopicPartition(DOOMED, 0)).append([NewRecord(b"of a topic that goes")])
        log.delete_topic(DOOMED)
    with open_for_writing(broker.log_dirs, clock) as log:
        for name, kind in KINDS.items():
            if kind.later is not None:
                desks[name].log = log
                kind.later(desks[name])
    return {desk.tp: desk.wrote for desk in desks.values()}


def producers_at_ends(
    log_dirs: list[Path], told: dict[TopicPartition, Told]
) -> dict[TopicPartition, list[ActiveProducer]]:
    """The producers of each partition of closed directories."""
    return {tp: producers_of(log_dirs, tp, one.everything.end) for tp, one in told.items()}


def verify(log_dirs: list[Path]) -> str:
    """What Kafka's dump tool says of every file in them."""
    return run("kafka", "verify", *map(str, log_dirs), check=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The broker makes the topics; what lies in their directories is ours."""
    require("kafka")
    broker = Broker(tmp_path_factory.mktemp("kinds") / "broker", "log.index.size.max.bytes=65536", log_dirs=2)
    mine = LogConfig(cluster_id=CLUSTER_ID, node_id=1)
    with LocalLog.open(broker.log_dirs[1], ids=SeededIds(5), config=mine) as log:
        volume_id = log.volume_id
    try:
        broker.start()
        broker.create({DOOMED: 1}, BROKER_TOPIC)
        for policy in ("delete", "compact", "compact,delete"):
            names = [n for n, kind in KINDS.items() if kind.settings.get("cleanup.policy", "delete") == policy]
            broker.create(dict.fromkeys(names, 1), {**BROKER_TOPIC, "cleanup.policy": policy})
        broker.stop()
        wrote = write_all(broker, now_clock())
        told = tell(broker.log_dirs, TOPICS.values())
        producers = producers_at_ends(broker.log_dirs, told)
        verified = verify(broker.log_dirs)
        broker.start()
        heard = Heardsay.of(broker, told)
        broker.stop()
        yield World(broker, wrote, told, verified, producers, heard, broker.said(), volume_id)
    finally:
        broker.stop()


def tear(log_dirs: list[Path]) -> None:
    """As after a power cut, too: half a batch, zeros, junk at the end of what some partitions hold."""
    left = [path.name for one in log_dirs for path in (one / str(TOPICS["compacted"])).glob("*")]
    assert {name.rpartition(".")[2] for name in left} >= {"swap", "deleted"}
    for name, tail in {"plain": None, "zstd": bytes(5_000), "transactions": b"junk" * 90}.items():
        path = max(path for one in log_dirs for path in (one / str(TOPICS[name])).glob("*.log"))
        data = path.read_bytes()
        path.write_bytes(data[:-7] if tail is None else data + tail)


@pytest.fixture(scope="module")
def crash(world: World, tmp_path_factory: pytest.TempPathFactory) -> Crash:
    """Both recover what a killed process left: we a copy, the broker the directories themselves."""
    broker, copy = world.broker, tmp_path_factory.mktemp("copy")
    write_and_be_killed("kinds", broker.log_dirs)
    tear(broker.log_dirs)
    ours = [Path(shutil.copytree(path, copy / path.name)) for path in broker.log_dirs]
    for path in (one for directory in broker.log_dirs for one in directory.glob("*/*.snapshot")):
        topic = path.parent.name.removesuffix("-0")
        if (
            topic in TOPICS and "compact" not in topic
        ):  # it learns of the producers from the records; ours has the snapshots
            path.unlink()
    with open_for_writing(ours, now_clock()) as log:
        for tp in TOPICS.values():
            assert isinstance(log.partition(tp), WriteLog)
    told = tell(ours, TOPICS.values())
    broker.start()
    heard = Heardsay.of(broker, told)
    broker.stop()
    theirs = broker.log_dirs
    return Crash(told, producers_at_ends(ours, told), heard, tell(theirs, TOPICS.values()), ours, theirs)


kinds = pytest.mark.parametrize("name", KINDS)


def test_kafkas_tools_find_no_fault(world: World) -> None:
    assert world.verified.splitlines()[-1].endswith(": OK"), world.verified


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_the_tools_object_to_damage(world: World, tmp_path: Path, suffix: str) -> None:
    """Otherwise the test above could not fail."""
    [source] = [path / "lz4-0" for path in world.broker.log_dirs if (path / "lz4-0").exists()]
    file = Path(shutil.copytree(source, tmp_path / "lz4-0")) / f"{0:020d}{suffix}"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert verify([tmp_path]).splitlines()[-1].endswith(": PROBLEMS")


@kinds
def test_it_serves_what_we_say(world: World, name: str) -> None:
    tp = TOPICS[name]
    assert (world.heard.everything[tp], world.heard.committed[tp]) == world.told[tp][:2]


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
    asked, answers = world.told[TOPICS[name]].times, world.heard.times[TOPICS[name]]
    if "compact" in name:  # it takes the file time of a segment without records for its largest timestamp
        answers = {at: offset for at, offset in answers.items() if offset >= 0}
        asked = {at: asked[at] for at in answers}
    assert answers == asked


@kinds
def test_it_knows_the_producers_that_we_know(world: World, name: str) -> None:
    tp = TOPICS[name]
    assert world.heard.producers[tp] == world.producers[tp]
    assert bool(world.producers[tp]) == bool(re.search("idempotent|transaction|producers|moved|recompressed", name))


@kinds
def test_it_ends_leader_epochs_where_we_end_them(world: World, name: str) -> None:
    told = world.told[TOPICS[name]].epochs
    if name == "epochs-ahead":  # the new leader's own epoch is below those
        told = {0: (0, world.told[TOPICS[name]].everything.end)}
    heard = {epoch: end for (tp, epoch), end in world.heard.epochs.items() if tp == TOPICS[name] and epoch in told}
    assert heard == told
    assert len(told) == (2 if name == "epochs" else 1 if world.told[TOPICS[name]].everything.records else len(told))


@kinds
def test_it_had_nothing_to_repair(world: World, name: str) -> None:
    found = [line for line in world.said if re.search(REPAIR, line) and re.search(rf"\b(?<!-){TOPICS[name]}\b", line)]
    if name == "epochs-ahead":  # the epochs above that of the new leader leave its checkpoint
        found = [line for line in found if "LeaderEpochFileCache" not in line]
    assert found == []


def test_it_takes_a_directory_that_we_made_as_its_own(world: World) -> None:
    directory = world.broker.log_dirs[1]
    with LogView.open(directory) as log:
        assert log.volume_id == world.volume_id
        assert set(log.partitions()) & set(TOPICS.values())


def test_it_loaded_both_directories_as_clean(world: World) -> None:
    clean = [line for line in world.said if "clean shutdown file was found" in line]
    for path in world.broker.log_dirs:
        assert [line for line in clean if re.search(rf"{re.escape(str(path))}\b", line)]
    assert not [line for line in world.said if re.search("ERROR|FATAL", line)]


@kinds
def test_it_recovers_what_we_recover(crash: Crash, name: str) -> None:
    tp = TOPICS[name]
    assert (crash.heard.everything[tp], crash.heard.committed[tp]) == crash.told[tp][:2]
    assert crash.heard.producers[tp] == crash.producers[tp]
    answers = {at: offset for at, offset in crash.heard.times[tp].items() if "compact" not in name or offset >= 0}
    assert answers == {at: crash.told[tp].times[at] for at in answers}
    assert logs_of(crash.theirs, tp) == logs_of(crash.ours, tp)
    assert crash.afterwards[tp][:3] == crash.told[tp][:3]
    assert crash.afterwards[tp].epochs.items() >= crash.told[tp].epochs.items()


def test_our_own_check_finds_no_fault_after_both_recoveries(crash: Crash) -> None:
    found = [one for path in (*crash.ours, *crash.theirs) for one in check(path, None).findings]
    found = [one for one in found if one.severity is not Severity.INFO]
    assert [one for one in found if "epochs-ahead" not in one.where] == []  # there the epoch falls, as the cluster's


@kinds
def test_nothing_that_was_appended_before_the_kill_is_missing(world: World, crash: Crash, name: str) -> None:
    before, after = world.told[TOPICS[name]].everything, crash.told[TOPICS[name]].everything
    assert after.end > before.end
    if name != "compacted":
        assert after.records[: len(before.records)] == before.records
