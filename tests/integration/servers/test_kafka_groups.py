"""Groups of a broker and of ours in one directory: each goes on where the other stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import tiered
from tests.integration.servers.commands import require, run
from tests.integration.servers.kafka import TIMEOUT_SECONDS, Broker
from tests.integration.servers.kafka_clients import commit_offsets, groups
from tiered.model import TopicPartition

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
RECORDS = 10


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with five partitions of positions, ten records in each partition of ``orders``, and a group."""
    require("kafka")
    broker = Broker(tmp_path / "w", "offsets.topic.num.partitions=5")
    broker.start()
    try:
        broker.create({"orders": 2}, {"retention.ms": "-1"})
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(RECORDS):
            for tp in (ZERO, ONE):
                producer.produce(tp.topic, b"%d" % number, partition=tp.partition)
        producer.flush()
        commit_offsets(broker.bootstrap, "theirs", {ZERO: (4, "note"), ONE: (6, "")})
        broker.stop()
        yield broker
    finally:
        broker.stop()


def read_as_client(broker: Broker, group: str, count: int) -> list[tuple[int, int]]:
    """Partition and offset of what a client of the broker reads for a group."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "error"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    try:
        consumer.subscribe(["orders"])
        found = consumer.consume(count, TIMEOUT_SECONDS)
        consumer.commit(asynchronous=False)
        return sorted((message.partition(), message.offset()) for message in found)
    finally:
        consumer.close()


def test_groups_go_on_in_both_directions(broker: Broker) -> None:
    with tiered.open(broker.data) as log:
        with log.consumer("theirs", "orders", stop_at="end") as consumer:
            assert consumer.committed(ZERO)[ZERO].metadata.rstrip("\0") == "note"  # the client sends its end of text
            assert [record.offset for record in consumer.poll(RECORDS) if record.partition == 0] == [4, 5, 6, 7, 8, 9]
            consumer.commit({ZERO: 8})
        with log.consumer("ours", "orders") as consumer:
            consumer.pause(ONE)
            assert len(consumer.poll(3)) == 3
            consumer.commit()
        assert log.topics()["__consumer_offsets"].partitions == 5
    broker.start()
    broker.wait_until(
        lambda: {"ours", "theirs"} <= groups(broker.bootstrap).keys()
    )  # it loads groups in the background
    assert groups(broker.bootstrap)["ours"] == {ZERO: (3, None)}
    shown = run(
        "kafka",
        "tool",
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--group", "ours"),
    )
    assert any(line.split()[:6] == ["ours", "orders", "0", "3", "10", "7"] for line in shown.splitlines()), shown
    assert read_as_client(broker, "theirs", 6) == [(0, 8), (0, 9), (1, 6), (1, 7), (1, 8), (1, 9)]
    text = run(
        "kafka",
        "tool",
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", "orders", "--group", "ours", "--max-messages", "7"),
        *("--timeout-ms", str(int(TIMEOUT_SECONDS * 1000)), "--property", "print.partition=true"),
    )
    assert next(line for line in text.splitlines() if line.startswith("Partition:0")).split()[-1] == "3"
    broker.stop()
    with tiered.open(broker.data) as log, log.consumer("theirs", "orders", stop_at="end") as consumer:
        assert list(consumer) == []
    broker.start()
