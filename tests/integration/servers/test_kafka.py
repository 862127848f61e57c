"""Kafka reads what we write, and we read what Kafka writes: its own tools, a real broker, and its consumer."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.servers.commands import ROOT, require
from tests.integration.servers.kafka import Broker, Seen
from tiered.config import TopicConfig
from tiered.format.batch import decode_records, read_header
from tiered.local.directory.manager import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
FIRST_MS = 1_700_000_000_000
SETTINGS = {"segment.bytes": 20_000, "index.interval.bytes": 700, "message.timestamp.before.max.ms": 2**62}


def verify(log_dir: Path) -> tuple[int, str]:
    """Exit status and output of Kafka's checks on a log directory."""
    command = [str(ROOT / "localstack" / "kafka"), "verify", str(log_dir)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


def make_batches(seed: int) -> list[list[NewRecord]]:
    """Batches of 1 to 40 records: null and empty keys and values, repeated headers, times that go back, a big value."""
    rng = random.Random(seed)
    batches = []
    at = FIRST_MS
    for number in range(60):
        batch = []
        for _ in range(rng.randint(1, 40)):
            at += rng.randint(-300, 1000)
            key = rng.choice([None, b"", b"key-%d" % rng.randrange(9), "schlüssel".encode()])
            value = rng.choice([None, b"", b"v" * rng.randrange(300), rng.randbytes(rng.randrange(200))])
            headers: list[tuple[str, bytes | None]] = rng.choice([[], [("h", b"1"), ("h", None), ("ü", b"")]])
            batch.append(NewRecord(value, key, at, headers))
        if number == 30:
            batch.append(NewRecord(rng.randbytes(9_000), b"big", at))
        batches.append(batch)
    return batches


def write(log_dir: Path) -> dict[TopicPartition, list[Seen]]:
    """A log directory with one topic per codec and one with append times; what a reader must see."""
    expected: dict[TopicPartition, list[Seen]] = {}
    clock = FakeClock(FIRST_MS + 10**9)
    with LocalLog.open(log_dir, clock=clock, ids=SeededIds(1)) as log:
        for number, codec in enumerate((*CODECS, "append-time")):
            append_time = codec == "append-time"
            extra = {"message.timestamp.type": "LogAppendTime"} if append_time else {"compression.type": codec}
            log.create_topic(f"our-{codec}", 1, TopicConfig.from_properties({**SETTINGS, **extra}))
            tp = TopicPartition(f"our-{codec}", 0)
            partition = log.partition(tp)
            seen: list[Seen] = []
            for batch in make_batches(number):
                clock.advance(1)
                partition.append(batch)
                seen += [
                    Seen(
                        len(seen) + index,
                        clock.now_ms() if append_time else record.timestamp,
                        int(append_time),
                        record.key,
                        record.value,
                        list(record.headers or []),
                    )
                    for index, record in enumerate(batch)
                ]
            assert len(partition.sealed_segments()) >= 2
            expected[tp] = seen
    return expected


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[TopicPartition, list[Seen]]]:
    """A closed log directory that we wrote, and its records."""
    require("kafka")
    log_dir = tmp_path_factory.mktemp("ours")
    return log_dir, write(log_dir)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A stopped broker that stores nothing yet; stopped at the end."""
    require("kafka")
    one = Broker(tmp_path / "broker", "log.index.size.max.bytes=65536")
    yield one
    one.stop()


def test_kafka_finds_no_fault_in_our_files(ours: tuple[Path, dict[TopicPartition, list[Seen]]]) -> None:
    status, said = verify(ours[0])
    assert (status, said.splitlines()[-1].endswith(": OK")) == (0, True), said
    assert int(said.split()[2]) >= 60 * (len(CODECS) + 1)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_the_check_objects_to_damage(
    ours: tuple[Path, dict[TopicPartition, list[Seen]]], tmp_path: Path, suffix: str
) -> None:
    """Otherwise the test above could not fail."""
    source = ours[0] / "our-lz4-0"
    copy = tmp_path / "our-lz4-0"
    copy.mkdir()
    for file in source.iterdir():
        data = bytearray(file.read_bytes())
        if file.name == f"{0:020d}{suffix}":
            data[len(data) // 2] ^= 1
        (copy / file.name).write_bytes(data)
    status, said = verify(tmp_path)
    assert (status, said.splitlines()[-1].endswith(": PROBLEMS")) == (1, True), said


@pytest.mark.parametrize("clean", [True, False], ids=["trusting our indexes", "recovering our segments"])
def test_a_broker_loads_our_directory_and_reads_every_record(
    ours: tuple[Path, dict[TopicPartition, list[Seen]]], broker: Broker, clean: bool
) -> None:
    log_dir, expected = ours
    partitions = list(expected)
    broker.start()
    broker.create({tp.topic: 1 for tp in partitions}, {"retention.ms": "-1", "index.interval.bytes": "700"})
    broker.stop()
    broker.adopt(log_dir, partitions, clean=clean)
    broker.start()
    for tp, records in expected.items():
        assert broker.read(tp) == records, tp
        with LocalLog.open(log_dir, clock=FakeClock(), ids=SeededIds(2), read_only=True) as log:
            partition = log.partition(tp)
            for timestamp in (records[0].timestamp, records[len(records) // 2].timestamp, records[-1].timestamp, 2**61):
                found = partition.offset_for_time(timestamp)
                assert broker.offset_for_time(tp, timestamp) == (found[0] if found else -1), (tp, timestamp)
    assert broker.complaints(partitions) == []
    broker.stop()
    for tp in partitions:  # what it rebuilt, or kept, is what we wrote
        for file in sorted((log_dir / str(tp)).iterdir()):
            if file.suffix in (".log", ".index", ".timeindex"):
                theirs = broker.data / str(tp) / file.name
                assert theirs.read_bytes() == file.read_bytes(), theirs


def test_we_read_what_a_broker_writes(broker: Broker) -> None:
    broker.start()
    partitions = [TopicPartition(f"their-{codec}", 0) for codec in ("none", *CODECS[1:])]
    broker.create({tp.topic: 1 for tp in partitions}, {"retention.ms": "-1", "internal.segment.bytes": "20000"})
    batches = [[(r.key, r.value, r.timestamp) for r in batch] for batch in make_batches(7)]
    for tp in partitions:
        broker.produce(tp, batches, tp.topic.removeprefix("their-"))
    expected = {tp: broker.read(tp) for tp in partitions}
    broker.stop()
    with LocalLog.open(broker.data, clock=FakeClock(), ids=SeededIds(3), read_only=True) as log:
        for tp, records in expected.items():
            assert _read(log, tp) == records, tp


def _read(log: LocalLog, tp: TopicPartition) -> list[Seen]:
    seen = []
    for batch in log.partition(tp).read_batches(0):
        kind = int(read_header(batch).timestamp_type)
        seen += [Seen(r.offset, r.timestamp, kind, r.key, r.value, list(r.headers)) for r in decode_records(batch)]
    return seen
