"""A segment that was built in memory is the one that a log on a disk seals for the same batches."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tiered.errors import CorruptionError
from tiered.format.batch import encode_batch
from tiered.format.segment_builder import BatchesSource, SegmentBuilder
from tiered.local.directory.log_directory import LocalLog
from tiered.model import LendingSource, NewRecord, SealedSegment, TopicPartition

FIRST_MS = 1_700_000_000_000


@pytest.mark.parametrize("interval_bytes", [0, 300, 4096])
def test_bytes_indexes_and_descriptor_are_those_of_a_sealed_segment(tmp_path: Path, interval_bytes: int) -> None:
    seed = 20261122 + interval_bytes
    rng = random.Random(seed)
    appends = [
        [
            NewRecord(rng.randbytes(rng.randint(0, 400)), b"k", FIRST_MS + at * 100 + rng.randint(-5000, 5000))
            for _ in range(rng.randint(1, 5))
        ]
        for at in range(120)
    ]
    with tiered.open(tmp_path / "log") as log:
        log.topic("flights", create=True, config={"index.interval.bytes": interval_bytes})
        topic_id = log.topics()["flights"].topic_id
    tp = TopicPartition("flights", 0)
    with LocalLog.open(tmp_path / "log") as local:
        partition = local.partition(tp)
        for records in appends:
            partition.append(records)
        partition.roll()
        (sealed,) = partition.sealed_segments()
        expected = parts_of(sealed)
    builder = SegmentBuilder(topic_id, 0, index_interval_bytes=interval_bytes)
    for records in appends:
        times = [record.timestamp for record in records]
        builder.append(encode_batch(records), len(records), min(times), max(times))
    ends = list(itertools.accumulate(map(len, appends)))
    assert builder.next_offset == ends[-1]
    assert builder.size_bytes == sealed.descriptor.size_bytes, f"seed {seed}"
    assert parts_of(builder.build()) == expected, f"seed {seed}"


def parts_of(segment: SealedSegment) -> tuple[object, ...]:
    source, indexes = segment.open_log(), segment.indexes()
    log = source.read_at(0, source.size)
    source.close()
    descriptor = replace(segment.descriptor, appended_ms=-1)  # a segment in memory gets its append time at the commit
    return descriptor, log, indexes.offset_index, indexes.time_index, indexes.txn_index, indexes.leader_epochs


def test_batches_are_read_as_one_whatever_is_asked_for_and_never_beyond_their_end() -> None:
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    batches = [rng.randbytes(rng.randint(1, 300)) for _ in range(rng.randint(1, 40))]
    source, whole = BatchesSource(batches), b"".join(batches)
    assert isinstance(source, LendingSource)
    assert source.size == len(whole)
    for _ in range(300):
        start, end = sorted(rng.randint(0, len(whole)) for _ in range(2))
        views = source.views(start, end - start)
        assert source.read_at(start, end - start) == b"".join(views) == whole[start:end], f"seed {seed}: {start}, {end}"
        assert all(any(view.obj is batch for batch in batches) for view in views)
    for position, length in [(0, len(whole) + 1), (len(whole), 1), (-1, 1)]:
        with pytest.raises(CorruptionError, match="exceeds the"):
            source.read_at(position, length)
        with pytest.raises(CorruptionError, match="exceeds the"):
            source.views(position, length)
    assert (BatchesSource([]).size, BatchesSource([]).read_at(0, 0)) == (0, b"")
