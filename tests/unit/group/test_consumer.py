"""``Reader.consumer``: what a program writes, on a bucket in a folder, with threads and with asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

import tiered
import tiered.aio
from tests.support.uploaded import upload_topics
from tiered.errors import ConfigError, UnknownTopicError
from tiered.group.member import GroupSettings
from tiered.model import TopicPartition

QUICK = GroupSettings(heartbeat_ms=50, lease_ms=5_000, handover_ms=60_000, max_poll_interval_ms=600_000)


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    """Two partitions of twenty records."""
    return upload_topics(tmp_path, {"segment.bytes": 1000}, partitions=2)


def test_a_group_goes_on_where_it_stopped(bucket: str) -> None:
    found = []
    for count in (15, 25):
        with tiered.open_reader(bucket) as reader, reader.consumer("g", "t", times=QUICK) as consumer:
            for record in consumer:
                found.append((record.partition, record.offset))
                if len(found) == count:
                    break
            consumer.commit()
    with tiered.open_reader(bucket) as reader, reader.consumer("g", "t", times=QUICK, stop_at="end") as consumer:
        found += [(record.partition, record.offset) for record in consumer]
        consumer.commit()
        committed = consumer.committed()
    assert Counter(found) == {(partition, offset): 1 for partition in (0, 1) for offset in range(20)}
    assert {tp.partition: position.offset for tp, position in committed.items()} == {0: 20, 1: 20}


def test_two_consumers_share_and_each_hears_of_it(bucket: str) -> None:
    lost: list[TopicPartition] = []
    owned = threading.Event()
    both: list[TopicPartition] = []

    def second() -> None:
        options = {"times": QUICK, "on_assigned": both.extend}
        with tiered.open_reader(bucket) as reader, reader.consumer("g", "t", **options) as consumer:  # type: ignore[arg-type]
            while not both:
                consumer.poll(timeout=0.1)
            owned.wait(30)

    with (
        tiered.open_reader(bucket) as reader,
        reader.consumer("g", "t", times=QUICK, on_lost=lost.extend) as consumer,
    ):
        while len(consumer.assignment()) < 2:
            consumer.poll(timeout=0.1)
        consumer.commit()
        thread = threading.Thread(target=second)
        thread.start()
        while not both:
            consumer.poll(timeout=0.1)
            consumer.commit()
        owned.set()
        thread.join(30)
        assert lost == both
        while len(consumer.assignment()) < 2:
            consumer.poll(timeout=0.1)


def test_asyncio_has_the_same(bucket: str) -> None:
    async def read() -> list[int]:
        async with (
            tiered.aio.open_reader(bucket) as reader,
            reader.consumer("g", "t", times=QUICK, stop_at="end") as consumer,
        ):
            offsets = [record.offset async for record in consumer]
            await consumer.commit()
            return offsets

    assert sorted(asyncio.run(read())) == sorted([*range(20), *range(20)])
    assert asyncio.run(read()) == []


def test_bad_calls_are_refused(bucket: str, tmp_path: Path) -> None:
    with tiered.open_reader(bucket) as reader:
        with pytest.raises(UnknownTopicError, match="nothing"):
            reader.consumer("g", "nothing", times=QUICK)
        with pytest.raises(ConfigError, match="group name"):
            reader.consumer("g\n", "t")
        with pytest.raises(ConfigError, match="heartbeat_ms=10000 does not go with lease_ms=1"):
            reader.consumer("g", "t", times=GroupSettings(lease_ms=1))
        with (
            reader.consumer("g", "t", times=QUICK) as consumer,
            pytest.raises(ConfigError, match="assigns partitions to its members"),
        ):
            consumer.assign([TopicPartition("t", 0)])
    with tiered.open_reader(log_dir=tmp_path / "log") as reader, pytest.raises(ConfigError, match="of a bucket"):
        reader.consumer("g", "t")
