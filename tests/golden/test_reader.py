"""A directory that Kafka wrote, opened by the public reader: every record, both isolation levels, offsets and times."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.golden.fixtures import ROOTS, expected_offsets, expected_records, partitions
from tiered.model import TopicPartition

READABLE = [root for root in ROOTS if not root.endswith("/before")]


def split(partition: str) -> TopicPartition:
    topic, _, number = partition.rpartition("-")
    return TopicPartition(topic, int(number))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("root", READABLE)
def test_a_reader_sees_what_kafkas_consumer_saw(kafka_fixtures: Path, root: str, isolation: str) -> None:
    compared = 0
    with tiered.open_reader(log_dir=kafka_fixtures / root) as reader:
        for name in partitions(kafka_fixtures, root):
            offsets = expected_offsets(kafka_fixtures, name, root)
            if offsets is None:
                continue
            tp = split(name)
            topic = reader.topic(tp.topic)
            seen = [
                (r.offset, r.timestamp, r.leader_epoch, r.key, r.headers)
                for r in topic.read(tp.partition, isolation=isolation)
            ]
            wanted = [
                (r.offset, r.timestamp, r.leader_epoch, r.key, r.headers)
                for r in expected_records(kafka_fixtures, name, root, isolation=isolation)
            ]
            assert seen == wanted, name
            stream = topic.stream(tp.partition)
            assert (stream.earliest(), stream.latest()) == (offsets.earliest, offsets.latest), name
            assert stream.last_stable_offset() == offsets.lso, name
            compared += len(seen)
    assert compared > 0


def test_times_of_every_record_are_found_by_scanning_and_by_index_alike(kafka_fixtures: Path) -> None:
    with tiered.open_reader(log_dir=kafka_fixtures / "main") as reader:
        for name in partitions(kafka_fixtures):
            if expected_offsets(kafka_fixtures, name) is None or name.startswith("__"):
                continue
            tp = split(name)
            stream = reader.topic(tp.topic).stream(tp.partition)
            records = [(r.offset, r.timestamp) for r in expected_records(kafka_fixtures, name)]
            for timestamp in {t for _, t in records[:: max(1, len(records) // 25)]}:
                first = next((offset, t) for offset, t in records if t >= timestamp)
                found = stream.offset_for_time(timestamp)
                assert found is not None
                # Kafka answers with a control record too, which a consumer never sees: it may lie before the first.
                assert found[0] <= first[0], (name, timestamp)
                assert found[1] >= timestamp, (name, timestamp)
