"""The uploader beside a real broker that rolls, deletes by retention, restarts and is killed: what the bucket has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

import tiered
from tests.integration.servers.commands import require
from tests.integration.servers.kafka import TIMEOUT_SECONDS, Broker
from tests.integration.uploader.daemons import Daemon
from tiered.errors import TieredError
from tiered.format.local_names import log_name
from tiered.local.disk.directory_files import RECOVERY_POINT_NAME, OffsetsFile
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.partition_files import log_bases
from tiered.model import TopicPartition

PLAIN, TXN = TopicPartition("plain", 0), TopicPartition("txn", 0)
SETTINGS = (
    "log.flush.offset.checkpoint.interval.ms=200",
    "replica.high.watermark.checkpoint.interval.ms=200",
    "log.retention.check.interval.ms=300",
    "log.initial.task.delay.ms=300",
)
TOPIC = {"internal.segment.bytes": "20000", "retention.bytes": "120000", "file.delete.delay.ms": "100"}
"""Retention holds two rounds: what a killed broker did not vouch for is linked only after the next round began."""
ROUNDS = 4
RECORDS = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    require("kafka")
    running = Broker(tmp_path / "kafka", *SETTINGS)
    running.work.mkdir()
    running.start()
    yield running
    running.kill()


def value(number: int) -> bytes:
    return b"%06d" % number + b"x" * 150


def produce(broker: Broker, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 20})
    for number in numbers:
        producer.produce(PLAIN.topic, value(number), partition=0)
        if number % 20 == 0:
            producer.flush(TIMEOUT_SECONDS)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def transact(broker: Broker, numbers: range) -> list[bytes]:
    """Transactions of ten, every third aborted; what is committed."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "sidecar", "linger.ms": 20})
    producer.init_transactions(TIMEOUT_SECONDS)
    committed: list[bytes] = []
    for at in range(numbers.start, numbers.stop, 10):
        producer.begin_transaction()
        batch = [value(number) for number in range(at, at + 10)]
        for one in batch:
            producer.produce(TXN.topic, one, partition=0)
        if at // 10 % 3 == 2:
            producer.flush(TIMEOUT_SECONDS)
            producer.abort_transaction(TIMEOUT_SECONDS)
        else:
            producer.commit_transaction(TIMEOUT_SECONDS)
            committed += batch
    return committed


def end_in(url: str, tp: TopicPartition) -> int:
    try:
        with tiered.open_reader(url) as reader:
            return reader.topic(tp.topic).end_offsets()[tp]
    except TieredError:
        return 0  # not registered yet


def sealed_end(broker: Broker, tp: TopicPartition) -> int:
    """Where the active segment begins."""
    return log_bases(PosixFiles(), broker.data / str(tp))[-1]


def vouched(broker: Broker) -> dict[TopicPartition, int]:
    """Its recovery points. A killed broker comes back with them, and flushes what lies above at its next roll only."""
    return OffsetsFile(broker.data, RECOVERY_POINT_NAME, PosixFiles()).read()


def test_what_a_living_broker_sealed_is_in_the_bucket(broker: Broker, tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    broker.create({PLAIN.topic: 1, TXN.topic: 1}, TOPIC)
    committed: list[bytes] = []
    options = ("--sidecar", str(broker.data), "--remote", url, "--scan", "100ms")
    daemon = Daemon(*options)
    try:
        for number in range(ROUNDS):
            produce(broker, range(number * RECORDS, (number + 1) * RECORDS))
            committed += transact(broker, range(number * RECORDS, (number + 1) * RECORDS))
            if number == 0:
                daemon.kill()
                daemon = Daemon(*options)
            if number == 1:
                broker.stop()
                broker.start()
            points: dict[TopicPartition, int] = {}
            if number == 2:
                broker.kill()
                points = vouched(broker)
                broker.start()
            sealed = {tp: sealed_end(broker, tp) for tp in (PLAIN, TXN)}
            ends = {tp: min(end, points.get(tp, end)) for tp, end in sealed.items()}
            broker.wait_until(lambda ends=ends: all(end_in(url, tp) >= end for tp, end in ends.items()))
        first = broker.data / str(PLAIN) / log_name(0)
        broker.wait_until(lambda: not first.exists())  # the broker's retention went over what the bucket still has
        assert daemon.stop() == 0
    finally:
        if daemon.process.poll() is None:
            daemon.kill()
    with tiered.open_reader(url) as reader:
        plain = [record.value for record in reader.topic(PLAIN.topic).read()]
        assert plain == [value(number) for number in range(len(plain))]
        assert len(plain) >= ends[PLAIN] > RECORDS * (ROUNDS - 1)
        seen = [record.value for record in reader.topic(TXN.topic).read(isolation="read_committed")]
        assert seen == committed[: len(seen)]
        assert len(seen) > len(committed) // 2
    assert not broker.complaints([PLAIN, TXN], "ERROR|FATAL")
