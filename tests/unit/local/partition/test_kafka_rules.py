"""Rules of Kafka's log that no acceptance case names: each with its numbers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.local.bench import CaseBench, batch
from tests.unit.local.partition.producer_bench import ProducerBench, data, end
from tiered.errors import InvalidTimestampError
from tiered.format.batch import encode_batch
from tiered.model import NewRecord
from tiered.testing.clock import START_MS

ROOT_FILES = [
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
]


def test_a_new_directory_has_four_checkpoints_and_its_properties(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    names = sorted(path.name for path in bench.directory.iterdir() if path.name.endswith("-checkpoint"))
    assert names == ROOT_FILES
    assert {".lock", "meta.properties"} <= {path.name for path in bench.directory.iterdir()}
    assert bench.names("") == [f"{0:020d}.log", "leader-epoch-checkpoint", "partition.metadata"]
    assert not (bench.folder / "partition.metadata").read_bytes().endswith(b"\n")


@pytest.mark.parametrize("name", ROOT_FILES)
@pytest.mark.parametrize("content", [b"", b"0\n", b"junk", b"0\n2\nt 0 1\n"])
def test_a_checkpoint_without_entries_or_sense_counts_as_empty(tmp_path: Path, name: str, content: bytes) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=2)
    bench.fill(6)
    bench.kill()
    (bench.directory / name).write_bytes(content)
    bench.open()
    assert (bench.offsets(), bench.partition.positions().start_offset) == (list(range(6)), 0)


def test_only_the_log_of_a_new_segment_is_made_by_a_roll(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=2)
    bench.fill(3)
    assert bench.names("") == [
        *(f"{0:020d}{suffix}" for suffix in (".index", ".log", ".seal", ".timeindex")),
        f"{2:020d}.log",
        f"{2:020d}.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "tiered-plain",
    ]


def test_several_batches_of_one_append_are_indexed_each(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", index_interval_bytes=0)
    bench.partition.append_batches(batch(0) + batch(1) + batch(2))
    bench.partition.append_batches(batch(3))
    bench.partition.roll()
    assert [offset for offset, _ in bench.index(0).entries] == [1, 2, 3]


def test_a_full_index_rolls_and_one_slot_of_the_time_index_is_kept(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", index_interval_bytes=0, segment_index_bytes=24)
    for i in range(8):
        bench.append(b"v", timestamp=START_MS + i)
    assert bench.bases == [0, 2, 4, 6]
    assert bench.times(0).entries == [(START_MS + 1, 1)]
    same = CaseBench(tmp_path / "same", index_interval_bytes=0, segment_index_bytes=36)
    for _ in range(8):
        same.append(b"v", timestamp=START_MS)
    assert same.bases == [0, 5]  # equal timestamps fill the offset index only: four entries


def test_a_segments_age_counts_from_its_first_batch_also_after_a_reopen(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", segment_ms=100)
    bench.partition.append([NewRecord(b"v", None, START_MS), NewRecord(b"v", None, START_MS + 50)])
    bench.append(b"v", timestamp=START_MS + 150)
    bench.reopen()
    bench.append(b"v", timestamp=START_MS + 150)
    assert bench.bases == [0]
    bench.append(b"v", timestamp=START_MS + 151)
    assert bench.bases == [0, 4]
    bench.append(b"v", timestamp=START_MS)  # older than the first: no roll
    assert bench.bases == [0, 4]


def test_a_marker_carries_the_time_of_the_wall(tmp_path: Path) -> None:
    bench = ProducerBench(tmp_path / "log", segment_ms=1000)
    bench.partition.append_batches(data(0, txn=True))
    bench.clock.advance(10)
    bench.partition.append_as_coordinator(end(ts=bench.clock.now_ms()))
    assert bench.bases == [0, 1]


def test_a_compacted_segment_ends_after_the_largest_lag(tmp_path: Path) -> None:
    for policy, bases in (("delete", [0]), ("compact", [0, 1]), ("compact,delete", [0, 1])):
        bench = CaseBench(tmp_path / policy, segment_ms=1000, max_compaction_lag_ms=100, cleanup_policy=policy)
        for timestamp in (START_MS, START_MS + 101):
            bench.append(b"v", key=b"k", timestamp=timestamp)
        assert bench.bases == bases


def test_flushes_by_count_and_by_time(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "count", flush_messages=3)
    flushed = []
    for _ in range(7):
        bench.fill(1)
        flushed.append(bench.partition.positions().flushed_offset)
    assert flushed == [0, 0, 3, 3, 3, 6, 6]
    timed = CaseBench(tmp_path / "time", flush_ms=1000)
    timed.fill(2)
    timed.clock.advance(0.999)
    timed.log.tick()
    assert timed.partition.positions().flushed_offset == 0
    timed.clock.advance(0.001)
    timed.log.tick()
    assert timed.partition.positions().flushed_offset == 2


def test_a_log_start_below_the_first_segment_is_raised_with_its_epochs(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=2)
    bench.fill(6)
    bench.partition.delete_local_before(4)
    bench.log.close()
    (bench.directory / "log-start-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    (bench.folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 3\n")
    bench.open()
    assert (bench.partition.positions().start_offset, bench.partition.log_start, bench.epochs) == (4, 4, [(1, 4)])


def test_a_bad_time_is_told_before_a_missing_key(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", cleanup_policy="compact")
    refused = [NewRecord(b"v", None, START_MS + 2 * 3_600_000)]
    for append in (bench.partition.append, lambda records: bench.partition.append_batches(encode_batch(records))):
        with pytest.raises(InvalidTimestampError):
            append(refused)


def test_the_time_of_the_last_append_is_noted_and_without_a_note_it_is_that_of_the_file(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.append(b"a", timestamp=5)
    bench.partition.roll()
    bench.log.close()
    note, later_ms = bench.folder / f"{0:020d}.seal", 90_000
    os.utime(note.with_suffix(".log"), (later_ms / 1000, later_ms / 1000))
    for appended_ms in (START_MS, later_ms):
        bench.open()
        (sealed,) = bench.partition.sealed_segments()
        assert (sealed.appended_ms, sealed.descriptor.appended_ms) == (appended_ms, appended_ms)
        bench.log.close()
        note.unlink(missing_ok=True)
