"""A broker's directory, cleaned on disk by us, holds what the broker's own cleaner left: byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.golden.fixtures import expected_records, manifest
from tests.unit.local.partition.reading import records_of
from tests.unit.plan.cleaning.golden import PARTITIONS, below, checkpoint_of, config_of, time_of_round
from tests.unit.plan.cleaning.rounds import load
from tiered.config import LogConfig
from tiered.format.batch import decode_records, read_header
from tiered.format.kernels import Record
from tiered.format.local_names import parse_partition_dir
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.topics import TopicInfo, read_topic_id, write_topics
from tiered.local.partition.read_log import ReadLog
from tiered.testing.clock import FakeClock, SeededIds


def open_for_writing(fixtures: Path, root: Path, now_ms: int) -> LocalLog:
    """A copy of ``compact-before`` with the topics' settings, its clock at the broker's round."""
    shutil.copytree(fixtures / "compact-before", root, copy_function=shutil.copyfile)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    topics = {}
    for name in manifest(fixtures)["roots"]["compact-after1"]["partitions"]:
        if name in PARTITIONS:
            topic = parse_partition_dir(name).tp.topic
            topic_id = read_topic_id(root / name, PosixFiles())
            assert topic_id is not None
            topics[topic] = TopicInfo(topic, topic_id, 1, config_of(fixtures, name, "compact-after1"))
    write_topics(root, PosixFiles(), topics)
    return LocalLog.open(
        root, clock=FakeClock(now_ms), ids=SeededIds(1), config=LogConfig(disk_reserve_bytes=0, cleaner_enabled=False)
    )


def committed(log: ReadLog) -> list[Record]:
    """What ``read_committed`` shows."""
    start, end = log.positions().start_offset, log.last_stable_offset()
    aborted = log.aborted_txns(start, end)
    seen: list[Record] = []
    for batch in log.read_batches(start, end):
        header = read_header(batch)
        mine = [t for t in aborted if t.producer_id == header.producer_id]
        hidden = header.is_transactional and any(t.first_offset <= header.base_offset <= t.last_offset for t in mine)
        seen += [] if header.is_control or hidden else decode_records(batch)
    return seen


@pytest.mark.parametrize("partition", PARTITIONS)
def test_one_round_leaves_the_brokers_files(kafka_fixtures: Path, tmp_path: Path, partition: str) -> None:
    config = config_of(kafka_fixtures, partition, "compact-after1")
    before = load(kafka_fixtures, partition, "compact-before", config)
    after = load(kafka_fixtures, partition, "compact-after1", config)
    tp = parse_partition_dir(partition).tp
    log = open_for_writing(kafka_fixtures, tmp_path / "ours", time_of_round(before, after))
    shown = {r.key: r for r in committed(log.partition(tp))}
    report = log.cleaner.clean(tp)
    assert report is not None
    assert report.end_offset == checkpoint_of(kafka_fixtures, partition, "compact-after1")
    assert log.cleaner.clean(tp) is None  # nothing is dirty now
    cleaned = committed(log.partition(tp))
    log.close()

    ours = load(tmp_path, partition, "ours", config)
    start = after.segments[0].base_offset  # retention took the first segment of compact-delete afterwards
    assert [s.base_offset for s in ours.segments if s.base_offset >= start] == [s.base_offset for s in after.segments]
    assert below(ours, start, after.end_offset) == below(after, start, after.end_offset)
    assert [s.aborted for s in ours.segments if s.base_offset >= start] == [s.aborted for s in after.segments]
    assert {r.key: r for r in cleaned} == shown  # the newest of every key, tombstones included
    with LogView.open(tmp_path / "ours") as again:
        assert committed(again.partition(tp)) == cleaned
        seen = [(r.offset, r.timestamp, r.key, r.value) for r in records_of(again.partition(tp), start)]
    assert seen == [
        (r.offset, r.timestamp, r.key, r.value) for r in expected_records(kafka_fixtures, partition, "compact-after1")
    ]
