"""What an application sees of one partition on disk: appends, rolls, reads, positions, deletion, refusals."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.local.bench import TP, Bench
from tiered.errors import (
    ClosedError,
    CorruptionError,
    DiskFullError,
    FencedError,
    InvalidRecordError,
    InvalidTimestampError,
    LockedError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.kernels import crc32c
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.claims import ClaimProof
from tiered.local.disk.uploader_files import PartitionUpload, SealRequest, UploadCheckpoint
from tiered.model import NewRecord, SealedSegment, TopicPartition
from tiered.plan.roll import RollReason
from tiered.testing.clock import START_MS

UNTYPED: Any = NewRecord


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Segments of about ten one-record batches."""
    return Bench(tmp_path / "log", segment_bytes=1000, index_interval_bytes=100, file_delete_delay_ms=5000)


def fill(bench: Bench, count: int) -> None:
    for i in range(count):
        bench.append(b"%030d" % i)


def append_until_refused(bench: Bench) -> None:
    for _ in range(4):
        bench.append(b"b")


@pytest.mark.parametrize(
    ("records", "kind", "index"),
    [
        ([NewRecord(b"ok"), UNTYPED("text")], InvalidRecordError, 1),
        ([NewRecord(b"ok"), UNTYPED(b"v", "text")], InvalidRecordError, 1),
        ([NewRecord(b"ok"), NewRecord(b"late", timestamp=START_MS + 3_600_001)], InvalidTimestampError, 1),
        ([NewRecord(b"ok"), NewRecord(b"v", timestamp=-2)], InvalidTimestampError, 1),
        ([NewRecord(b"ok"), NewRecord(b"large" * 300)], RecordTooLargeError, 1),
        ([NewRecord(b"ok"), UNTYPED(b"v", timestamp="now")], InvalidRecordError, 0),
        ([], InvalidRecordError, 0),
        ([5], InvalidRecordError, 0),
    ],
)
def test_one_bad_record_refuses_the_whole_call(
    bench: Bench, records: list[Any], kind: type[Exception], index: int
) -> None:
    with pytest.raises(kind) as caught:
        bench.partition.append(records)
    assert getattr(caught.value, "index", None) == index
    assert bench.partition.positions().end_offset == 0
    assert bench.append(b"next") == 0


@pytest.mark.parametrize("change", ["empty", "short", "crc", "trailing", "control", "count"])
def test_hostile_batches_are_refused_whole(bench: Bench, change: str) -> None:
    good = encode_batch([NewRecord(b"a", timestamp=START_MS)])
    bad = {
        "empty": b"",
        "short": good[:-1],
        "crc": good[:-1] + b"\x7f",
        "trailing": good + b"\0" * 5,
        "control": encode_batch([NewRecord(b"\0" * 6, b"\0\0\0\1", START_MS)], producer=BatchProducer(control=True)),
        "count": good[:23] + b"\x7f\xff\xff\xff" + good[27:],
    }[change]
    with pytest.raises(InvalidRecordError):
        bench.partition.append_batches(good + bad if bad else bad)
    assert bench.partition.positions().end_offset == 0


def test_sealed_segments_say_what_their_files_are(bench: Bench) -> None:
    fill(bench, 25)
    segments = bench.partition.sealed_segments()
    assert [s.base_offset for s in segments] == [0, 10]
    for segment in segments:
        assert isinstance(segment.open_log().size, int)
        offered: SealedSegment = segment
        data = segment.path.read_bytes()
        descriptor = offered.descriptor
        assert (descriptor.size_bytes, descriptor.crc32c) == (len(data), crc32c(data))
        assert descriptor.records == descriptor.end_offset - descriptor.base_offset
        assert (descriptor.min_timestamp, descriptor.max_timestamp) == (START_MS, START_MS)
        assert segment.path.with_suffix(".index").read_bytes() == offered.indexes().offset_index
        assert len(offered.indexes().time_index) == 12
        source = offered.open_log()
        assert source.read_at(61, 7) == data[61:68]
        with pytest.raises(CorruptionError):
            source.read_at(len(data) - 1, 2)
        source.close()
        with pytest.raises(ClosedError):
            source.read_at(0, 1)
    described = [s.descriptor for s in segments]
    for segment in segments:
        segment.path.with_suffix(".seal").unlink()
        os.utime(segment.path, (START_MS / 1000, START_MS / 1000))  # without a note it is the time of the last append
    bench.log.close()
    bench.open()
    assert [s.descriptor for s in bench.partition.sealed_segments()] == described


def test_an_idle_tail_is_sealed_by_the_wall_clock(bench: Bench) -> None:
    bench.append(b"a", timestamp=1000)
    bench.clock.advance(599.999)
    bench.log.tick()
    assert bench.partition.sealed_segments() == []
    bench.clock.advance(0.001)
    bench.log.tick()
    assert [s.descriptor.end_offset for s in bench.partition.sealed_segments()] == [1]
    bench.clock.advance(10_000)
    bench.log.tick()
    assert len(bench.partition.sealed_segments()) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_a_tail_that_began_under_a_clock_that_was_ahead_is_sealed_in_time(bench: Bench, restarts: bool) -> None:
    bench.clock.jump(86_400)
    bench.append(b"a")
    if restarts:
        bench.log.close()
    bench.clock.jump(-86_400)
    if restarts:
        bench.open()
    bench.log.tick()
    assert bench.partition.sealed_segments() == []
    bench.clock.advance(599.999)
    bench.append(b"b")
    bench.log.tick()
    assert bench.partition.sealed_segments() == []
    bench.clock.advance(0.001)
    assert bench.append(b"c") == 2  # it is the append that finds it due
    bench.partition.flush()
    assert [s.descriptor.end_offset for s in bench.partition.sealed_segments()] == [2]


def test_the_age_of_the_tail_survives_a_clean_restart(bench: Bench) -> None:
    bench.append(b"a")
    bench.clock.advance(400)
    bench.log.close()
    bench.open()
    bench.clock.advance(200)
    bench.log.tick()
    assert len(bench.partition.sealed_segments()) == 1


def test_local_files_go_only_below_the_committed_end(bench: Bench) -> None:
    fill(bench, 30)
    first, second = [s.end_offset for s in bench.partition.sealed_segments()][:2]
    bench.partition.set_uploaded(first + 1, 1, False)
    assert bench.partition.delete_local_before(30) == [0]
    assert bench.partition.positions().local_start_offset == first
    assert bench.partition.positions().start_offset == 0
    assert bench.partition.positions().uploaded_offset == first + 1
    folder = bench.directory / "t-0"
    assert (folder / "00000000000000000000.log.deleted").exists()
    bench.clock.advance(5)
    bench.log.tick()
    assert not list(folder.glob("*.deleted"))
    with pytest.raises(OffsetOutOfRangeError):
        bench.partition.read_batches(first - 1)
    bench.partition.set_uploaded(second, 1, False)
    assert bench.partition.delete_local_before(30) == [first]


def test_a_directory_that_was_tiered_once_stays_tiered(bench: Bench) -> None:
    fill(bench, 30)
    bench.log.claims.write(TP, token="a" * 32)
    bench.log.close()
    bench.open()
    assert bench.partition.delete_local_before(30) == []
    bench.log.claims.write(TP, last_append="b" * 32)
    assert bench.log.claims.read() == {TP: ClaimProof("a" * 32, "b" * 32)}


def sealed_unflushed(bench: Bench) -> list[int]:
    """Segments that an append has just sealed and not yet flushed, as another thread meets them. Their bases."""
    for _ in range(3):
        bench.append(b"v" * 100)
        bench.log.roster.logs[TP].maintenance.roll_now(RollReason.REQUESTED, bench.clock.now_ms())
    assert bench.partition.positions().flushed_offset == 0
    return [segment.base_offset for segment in bench.log.roster.logs[TP].view().extents[:-1]]


def test_segments_that_are_not_flushed_stay(bench: Bench) -> None:
    """A power cut behind the removal would leave less than what was on the disk before it."""
    bases = sealed_unflushed(bench)
    assert bases == [0, 1, 2]
    end = bench.partition.positions().end_offset
    assert bench.partition.delete_local_before(end) == []
    bench.partition.flush()
    assert bench.partition.delete_local_before(end) == bases


def test_a_cut_makes_the_sealed_segments_that_stay_durable(bench: Bench) -> None:
    """The recovery point rises to the cut, so everything below the cut has to be on the disk."""
    bases = sealed_unflushed(bench)
    bench.append(b"v", b"v")
    bench.files.effects.clear()
    bench.partition.truncate_to(bench.partition.positions().end_offset - 1)
    synced = {path for effect, path in bench.files.effects if effect == "sync"}
    assert synced >= {bench.directory / "t-0" / f"{base:020}.log" for base in bases}


def test_retention_runs_on_its_timer_and_only_when_asked_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "log", segment_bytes=1000, retention_ms=1_000_000)
    fill(bench, 30)
    bench.clock.advance(900)
    bench.log.tick()
    assert bench.partition.positions().start_offset == 0
    bench.clock.advance(301)
    bench.log.tick()
    assert bench.partition.positions().start_offset == 30
    assert bench.append(b"goes on") == 30


def test_what_the_uploader_writes_reaches_the_writer(bench: Bench) -> None:
    fill(bench, 12)
    UploadCheckpoint(bench.directory, bench.files).update({TP: PartitionUpload(10, 3, False, 0)})
    bench.log.tick()
    assert bench.partition.positions().uploaded_offset == 0
    bench.clock.advance(1)
    bench.log.tick()
    assert bench.partition.positions().uploaded_offset == 10
    SealRequest(bench.directory, bench.files).write()
    bench.clock.advance(1)
    bench.log.tick()
    assert bench.partition.sealed_segments()[-1].end_offset == 12
    UploadCheckpoint(bench.directory, bench.files).update({TP: PartitionUpload(10, 4, True)})
    bench.log.refresh_uploads()
    with pytest.raises(FencedError, match="rejoin"):
        bench.append(b"no")
    assert len(bench.values()) == 12


def test_a_damaged_upload_checkpoint_is_an_error_and_never_nothing_uploaded(bench: Bench) -> None:
    (bench.directory / "tiered-offset-checkpoint").write_text('{"version": 1, "partitions": [{"topic": 3}]}')
    with pytest.raises(CorruptionError):
        bench.log.refresh_uploads()


def test_appends_stop_at_the_reserve_and_go_on_with_room(bench: Bench) -> None:
    bench.log.close()
    bench.open(disk_reserve_bytes=1000, disk_check_bytes=200)
    bench.append(b"a")
    bench.files.free_bytes = 999
    with pytest.raises(DiskFullError, match="reserve"):
        append_until_refused(bench)
    end = bench.partition.positions().end_offset
    bench.files.free_bytes = 10**9
    assert bench.append(b"c") == end


def test_rot_below_the_recovery_point_is_never_cut(bench: Bench) -> None:
    fill(bench, 25)
    bench.log.flush()
    bench.log.checkpoint()
    bench.log.close()
    (bench.directory / ".kafka_cleanshutdown").unlink()
    tail = sorted((bench.directory / "t-0").glob("*.log"))[-1]
    data = bytearray(tail.read_bytes())
    data[70] ^= 0xFF
    tail.write_bytes(data)
    bench.open()
    assert bench.append(b"next") == 25
    assert tail.read_bytes().startswith(bytes(data))
    assert bench.values(0, 20) == [b"%030d" % i for i in range(20)]
    with pytest.raises(CorruptionError) as caught:
        bench.values(20)
    assert caught.value.offset == 20
    assert bench.values(25) == [b"next"]


def test_without_a_checkpoint_no_sealed_segment_is_cut(bench: Bench) -> None:
    fill(bench, 25)
    bench.log.close()
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (bench.directory / name).unlink()
    first = bench.directory / "t-0" / f"{0:020d}.log"
    data = bytearray(first.read_bytes())
    data[70] ^= 0xFF
    first.write_bytes(data)
    bench.open()
    assert bench.values(10) == [b"%030d" % i for i in range(10, 25)]
    assert first.read_bytes() == bytes(data)
    with pytest.raises(CorruptionError):
        bench.values(0)


def test_closed_is_closed(bench: Bench) -> None:
    partition = bench.partition
    bench.log.close()
    bench.log.close()
    for call in (
        partition.flush,
        lambda: partition.append([NewRecord(b"a")]),
        lambda: partition.read_batches(0),
        bench.log.tick,
    ):
        with pytest.raises(ClosedError):
            call()


def test_notes_and_checkpoints_that_cannot_be_written_fail_no_append(bench: Bench) -> None:
    def full(operation: str, path: Path) -> int:
        return 28 if operation == "open" and path.suffix == ".tmp" else 0

    bench.files.fail = full
    fill(bench, 25)
    bench.files.fail = None
    assert bench.values() == [b"%030d" % i for i in range(25)]
    assert [s.descriptor.records for s in bench.partition.sealed_segments()] == [10, 10]


def test_one_writer_many_readers(bench: Bench) -> None:
    bench.append(b"a")
    with pytest.raises(LockedError, match="is open in this process already"):
        LocalLog.open(bench.directory)
    with LogView.open(bench.directory) as reader:
        seen = reader.partition(TP)
        assert seen.positions().end_offset == 1
        fill(bench, 25)
        assert seen.positions().end_offset == 26
        assert [s.base_offset for s in seen.sealed_segments()] == [
            s.base_offset for s in bench.partition.sealed_segments()
        ]
        assert not hasattr(seen, "append")
        bench.log.create_topic("u")
        assert reader.partition(TopicPartition("u", 0)).positions().end_offset == 0
        bench.partition.delete_local_before(10)
        assert seen.positions().local_start_offset == 10


@pytest.mark.parametrize("note_fails", [False, True])
def test_a_seal_makes_files_durable_then_its_note_and_the_names(tmp_path: Path, note_fails: bool) -> None:
    bench = Bench(tmp_path / "log")
    bench.append(b"a")
    folder = bench.directory / "t-0"
    bench.files.effects.clear()
    bench.files.fail = lambda what, path: errno.EACCES if note_fails and ".seal." in path.name else 0
    assert bench.partition.roll()
    inside = [
        (what, path.name.partition(".")[2].split(".")[0]) for what, path in bench.files.effects if path.parent == folder
    ]
    files = [("sync", "log"), ("sync", "index"), ("sync", "timeindex")]  # the next segment has nothing to lose yet
    durable = [each for each in inside if each[0] in ("sync", "rename")]
    assert durable == (files if note_fails else [*files, ("sync", "seal"), ("rename", "seal")])
    assert [what for what, path in bench.files.effects if path == folder] == ["sync_directory"]
