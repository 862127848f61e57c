"""The uploader beside directories that a real broker wrote: the bucket gives what Kafka's own consumer saw."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiered
from tests.golden.fixtures import ExpectedRecord, expected_offsets, expected_records, log_bases, partitions
from tests.unit.sidecar.broker import sidecar
from tiered.local.disk.directory_files import CLEANER_NAME, RECOVERY_POINT_NAME, REPLICATION_NAME, OffsetsFile
from tiered.local.disk.files import PosixFiles
from tiered.model import TopicPartition
from tiered.sidecar.mirror import INTERNAL

ROOTS = ("main", "compact-after1", "unclean-kill/after")


def split(partition: str) -> TopicPartition:
    topic, _, number = partition.rpartition("-")
    return TopicPartition(topic, int(number))


def sealed_ends(fixtures: Path, root: str, *, compacted: bool) -> dict[TopicPartition, int]:
    """Where the sealed segments end that are safe by the broker's checkpoints, by partition."""
    points, marks, cleaned = (
        OffsetsFile(fixtures / root, name, PosixFiles()).read()
        for name in (RECOVERY_POINT_NAME, REPLICATION_NAME, CLEANER_NAME)
    )
    found = {}
    for name in partitions(fixtures, root):
        tp, bases = split(name), log_bases(fixtures, name, root)
        safe = min(points.get(tp, 0), marks.get(tp, 0))
        if tp.topic in INTERNAL or (tp in cleaned and not compacted) or expected_offsets(fixtures, name, root) is None:
            continue
        ends = [base for base in bases[1:] if base <= safe]
        if ends:
            found[tp] = ends[-1]
    return found


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("root", ROOTS)
def test_the_bucket_gives_what_the_consumer_saw(
    kafka_fixtures: Path, tmp_path: Path, root: str, compacted: bool
) -> None:
    broker, url = tmp_path / "kafka", f"file://{tmp_path / 'bucket'}"
    shutil.copytree(kafka_fixtures / root, broker)
    before = {path: path.read_bytes() for path in broker.rglob("*") if path.is_file()}
    ends = sealed_ends(kafka_fixtures, root, compacted=compacted)
    asked = tuple({split(name).topic for name in partitions(kafka_fixtures, root)}) if compacted else ()
    ending = sidecar(broker, url, sidecar_compacted=asked)
    assert ending.code == 0, ending
    assert {path: path.read_bytes() for path in broker.rglob("*") if path.is_file()} == before
    compared = 0
    with tiered.open_reader(url) as reader:
        for tp, end in ends.items():
            topic, told = reader.topic(tp.topic), expected_offsets(kafka_fixtures, str(tp), root)
            start = told.earliest if told else 0  # DeleteRecords cuts inside a segment, which is uploaded whole
            assert topic.stream(tp.partition).latest() == end, tp
            stable = topic.stream(tp.partition).last_stable_offset()
            for isolation, limit in (("read_uncommitted", end), ("read_committed", stable)):
                seen = [
                    (r.offset, r.timestamp, r.leader_epoch, r.key, r.headers)
                    for r in topic.read(tp.partition, isolation=isolation)
                    if r.offset >= start
                ]
                wanted = [
                    (r.offset, r.timestamp, r.leader_epoch, r.key, r.headers)
                    for r in expected_records(kafka_fixtures, str(tp), root, isolation=isolation)
                    if r.offset < limit
                ]
                assert seen == wanted, (tp, isolation)
                compared += len(seen)
    assert (compared > 0) == bool(ends)


@pytest.mark.parametrize("left_out", ["compact-before", "compact-after1", "compact-after2"])
@pytest.mark.parametrize("topic", ["compact-keep", "compact-drop", "compact-txn"])
def test_what_the_cleaner_rewrote_between_two_looks_is_what_the_consumer_saw_then(
    kafka_fixtures: Path, tmp_path: Path, topic: str, left_out: str
) -> None:
    """Each scan uploads the batches since the scan before, also from a segment that begins earlier."""
    broker, url, name = tmp_path / "kafka", f"file://{tmp_path / 'bucket'}", f"{topic}-0"
    end = 0
    wanted: dict[str, list[ExpectedRecord]] = {"read_uncommitted": [], "read_committed": []}
    for root in (each for each in ("compact-before", "compact-after1", "compact-after2", "main") if each != left_out):
        shutil.rmtree(broker, ignore_errors=True)
        shutil.copytree(kafka_fixtures / root / name, broker / name, copy_function=shutil.copyfile)
        for path in (kafka_fixtures / root).iterdir():
            if path.is_file():
                shutil.copyfile(path, broker / path.name)
        ending = sidecar(broker, url, sidecar_compacted=(topic,))
        assert ending.code == 0, ending
        with tiered.open_reader(url) as reader:
            begun, end = end, reader.topic(topic).stream(0).latest()
            assert end == log_bases(kafka_fixtures, name, root)[-1]
            for isolation, records in wanted.items():
                seen = expected_records(kafka_fixtures, name, root, isolation=isolation)
                records += [record for record in seen if begun <= record.offset < end]
                limit = reader.topic(topic).stream(0).last_stable_offset() if isolation == "read_committed" else end
                found = [(r.offset, r.key, r.value) for r in reader.topic(topic).read(0, isolation=isolation)]
                assert found == [(r.offset, r.key, r.value) for r in records if r.offset < limit], (root, isolation)
