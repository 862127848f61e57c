"""Compaction on disk while something goes wrong, or somebody reads, cuts or closes the log."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

import pytest

from tests.crash.striking import strike
from tests.unit.local.bench import TP
from tests.unit.local.cleaning.cleaning_bench import CLEAN, CLEANED, DIRTY, OTHER, CleaningBench, dirty, stored
from tests.unit.local.opening import run_task
from tiered.config import TopicConfig
from tiered.errors import ConfigError, CorruptionError, NotFoundError, TieredError
from tiered.format.batch import decode_records
from tiered.format.batch_scanner import cut
from tiered.local.cleaning.rounds import CleaningStoppedError
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.directory_files import CLEANER_NAME, OffsetsFile
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.reading import read_runs
from tiered.model import NewRecord
from tiered.plan.roll import RollReason
from tiered.testing.clock import FakeClock, SeededIds


@pytest.fixture
def bench(tmp_path: Path) -> CleaningBench:
    return CleaningBench(tmp_path / "log", file_delete_delay_ms=5000)


def test_old_files_leave_after_their_delay_and_readers_go_on(bench: CleaningBench) -> None:
    dirty(bench)
    reading = bench.partition.read_batches(0)
    first = [r.offset for r in decode_records(next(reading))]
    bench.clean()
    assert bench.names(".log.deleted")
    bench.clock.advance(6)
    bench.partition.maintenance.empty_trash(bench.clock.now_ms())
    assert not bench.names(".deleted")
    rest = [r.offset for batch in reading for r in decode_records(batch)]
    # The open file ends as it began; the segments behind it are read as they are now.
    assert first + rest == [0, 1, 2, 3, 6, 7, 8]


@pytest.mark.no_cover
def test_an_interrupted_stop_lets_another_thread_stop_the_cleaner(bench: CleaningBench) -> None:
    at = 1
    while strike(bench.log.cleaner.stop, at):
        at += 1
        thread = threading.Thread(target=bench.log.cleaner.stop, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert at > 10


def test_another_process_reads_on_while_segments_are_replaced(bench: CleaningBench) -> None:
    dirty(bench)
    with LogView.open(bench.directory, clock=FakeClock()) as reader:
        reading = reader.partition(TP).read_batches(0)
        first = [r.offset for r in decode_records(next(reading))]
        bench.clean()
        bench.put("c9")
        bench.seal()
        bench.clean()
        rest = [r.offset for batch in reading for r in decode_records(batch)]
        assert first + rest == [0, 1, 2, 6, 7, 8]
        assert [r.offset for b in reader.partition(TP).read_batches(0) for r in decode_records(b)] == [6, 7, 8, 9]
        assert reader.partition(TP).offset_for_time(0) == (6, bench.records(6)[0].timestamp)


def test_a_reader_waits_while_segments_have_no_name(bench: CleaningBench) -> None:
    dirty(bench)
    swap = bench.folder / "00000000000000000003.log.swap"
    (bench.folder / "00000000000000000003.log").rename(swap)
    clock = FakeClock()
    with LogView.open(bench.directory, clock=clock) as reader:
        clock.sleep = lambda _: swap.exists() and swap.rename(swap.with_suffix(""))  # type: ignore[method-assign,assignment]
        assert [r.offset for b in reader.partition(TP).read_batches(0) for r in decode_records(b)] == list(range(9))


def test_an_exchange_that_a_crash_cut_short_is_told_and_ended_by_the_next_writer(bench: CleaningBench) -> None:
    dirty(bench)
    bench.kill()
    log = bench.folder / "00000000000000000003.log"
    log.rename(log.with_suffix(".log.swap"))
    with LogView.open(bench.directory, clock=FakeClock()) as reader:
        with pytest.raises(NotFoundError, match=r"is replacing segments, 00000000000000000003.log.swap is") as told:
            list(reader.partition(TP).read_batches(0))
        assert "open the log for writing: that completes the replacement" in told.value.hint
        bench.open()
        assert [r.offset for b in reader.partition(TP).read_batches(0) for r in decode_records(b)] == list(range(9))


def test_the_reserve_of_the_disk_is_not_taken_by_a_cleaner(bench: CleaningBench) -> None:
    dirty(bench).log.close()
    bench.open(disk_reserve_bytes=1000)
    bench.files.free_bytes = 10
    run_task(bench.log.tasks, "space")
    with pytest.raises(TieredError, match="reserve"):
        bench.clean()
    bench.files.free_bytes = None
    assert bench.pairs == [*DIRTY[3:]]  # of the first segment nothing was left, which takes no room


def test_damage_makes_a_partition_uncleanable_and_keeps_no_other_from_its_turn(
    bench: CleaningBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.log.create_topic(OTHER.topic, 1, TopicConfig(segment_bytes=207, **CLEAN))  # type: ignore[arg-type]  # a dict
    other = bench.log.partition(OTHER)
    for value in (b"1", b"2", b"3"):
        other.append([NewRecord(value, b"k")])
    other.roll()
    dirty(bench)
    path = bench.folder / "00000000000000000003.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.ERROR), pytest.raises(CorruptionError, match=r"00000000000000000003\.log at byte 70"):
        run_task(bench.log.tasks, "cleaning")
    assert [r.value for b in other.read_batches(0) for r in decode_records(b)] == [b"3"]
    assert stored(bench) == {OTHER: 3}
    assert "partition_uncleanable" in caplog.text
    assert list(bench.log.cleaner.uncleanable) == [TP]
    assert path.read_bytes() == data
    assert not bench.names(".cleaned")
    bench.log.cleaner.run(bench.clock.now_ms())  # it is passed over from now on
    with pytest.raises(ConfigError, match="damaged"):
        bench.clean()


@pytest.mark.parametrize("change", ["cut", "closed", "policy"])
def test_whoever_changes_the_log_does_not_wait_for_a_cleaner(bench: CleaningBench, change: str) -> None:
    dirty(bench)

    def interfere(operation: str, path: Path) -> int:
        if operation == "open" and path.name.endswith(".log.cleaned"):
            bench.files.fail = None
            if change == "cut":
                bench.partition.truncate_to(5)
            elif change == "closed":
                bench.partition.close(1)
            else:
                bench.log.alter_topic(TP.topic, {"cleanup.policy": "delete"})
        return 0

    bench.files.fail = interfere
    with pytest.raises(CleaningStoppedError):
        bench.clean()
    assert stored(bench) == {}
    bench.log.close()
    bench.open()
    assert bench.pairs == [*DIRTY[: 5 if change == "cut" else 9]]


def test_a_cut_between_the_last_batch_and_the_swap_keeps_what_it_brought_back(bench: CleaningBench) -> None:
    dirty(bench)

    def cut(operation: str, _: Path) -> int:
        if operation == "touch":
            bench.files.fail = None
            bench.partition.truncate_to(2)
            bench.put("z1", "z2", "z3", "z4", "z5", "z6", "z7")  # the same bases come again
            bench.seal()
        return 0

    bench.files.fail = cut
    with pytest.raises(CleaningStoppedError):
        bench.clean()
    assert bench.pairs == ["a1", "b1", "z1", "z2", "z3", "z4", "z5", "z6", "z7"]


def test_a_segment_whose_fsync_is_under_way_is_left_for_later(bench: CleaningBench) -> None:
    dirty(bench)
    bench.put("a5", "a6", "a7")  # flushed before they are sealed
    bench.partition.maintenance.roll_now(RollReason.REQUESTED, bench.clock.now_ms())
    assert [segment.base_offset for segment in bench.partition.sealed] == [0, 3, 6, 9]
    assert [segment.base_offset for segment in bench.partition.maintenance.settled] == [0, 3, 6]
    bench.clean()
    assert bench.pairs == [*CLEANED, "a5", "a6", "a7"]
    bench.partition.roll()
    bench.partition.flush()
    bench.partition.durability.flush_to(0)
    bench.clean()
    assert bench.pairs == ["c1", "d1", "b3", "a7"]


def test_appends_reads_and_rounds_at_the_same_time(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "log", per_segment=8, file_delete_delay_ms=0)
    rounds = 40
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                last = -1
                for batch in bench.partition.read_batches(bench.partition.positions().start_offset):
                    for record in decode_records(batch):
                        assert record.offset > last
                        last = record.offset
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for at in range(rounds * 10):
            bench.partition.append([NewRecord(str(at).encode(), str(at % 5).encode())])
            if at % 10 == 9:
                bench.partition.roll()
                bench.clean()
                bench.partition.maintenance.empty_trash(bench.clock.now_ms())
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert not failures
    assert sorted(int(r.value or b"") for r in bench.records()) == list(range(rounds * 10 - 5, rounds * 10))


def test_a_view_from_before_reads_the_old_files_or_says_that_they_are_not_there(bench: CleaningBench) -> None:
    dirty(bench)
    view = bench.partition.view()
    told: list[str] = []

    def read() -> list[int]:
        runs = read_runs(bench.files, view, 0, view.end_offset)
        return [record.offset for run in runs for batch in cut(run.data) for record in decode_records(batch)]

    def read_between_the_names(operation: str, path: Path) -> int:
        swapped = not any(name.endswith((".cleaned", ".swap")) for name in bench.names(""))
        if operation == "sync_directory" and path == bench.folder and swapped and bench.names(".log.deleted"):
            try:
                assert read() == list(range(9))
            except CorruptionError as error:
                told.append(error.message)
        return 0

    bench.files.fail = read_between_the_names
    bench.clean()
    bench.files.fail = None
    assert all("not the file" in message for message in told)
    assert len(told) == 2  # the third segment lost nothing: it is the same file
    assert read() == list(range(9))


def test_a_partition_that_moves_is_not_cleaned_meanwhile(bench: CleaningBench) -> None:
    dirty(bench)
    with bench.log.cleaner.paused(TP):
        with pytest.raises(ConfigError, match="moves to another directory"):
            bench.clean()
        bench.log.cleaner.run(bench.clock.now_ms())
    assert bench.pairs == [*DIRTY]
    stack = contextlib.ExitStack()

    def begin(operation: str, path: Path) -> int:
        if operation == "open" and path.name.endswith(".log.cleaned"):
            stack.enter_context(bench.log.cleaner.paused(TP))
        return 0

    bench.files.fail = begin
    with stack, pytest.raises(CleaningStoppedError, match="moves"):
        bench.clean()
    bench.files.fail = None
    assert bench.pairs == [*DIRTY]
    bench.clean()
    assert bench.pairs == CLEANED


def test_the_checkpoint_moves_with_the_partition(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "a")
    dirty(bench).clean()
    bench.log.close()
    with LocalTier.open([tmp_path / "a", tmp_path / "b"], clock=bench.clock, ids=SeededIds(1)) as logs:
        logs.move(TP, tmp_path / "b")
    read = [OffsetsFile(tmp_path / name, CLEANER_NAME, PosixFiles()).read() for name in "ab"]
    assert read == [{}, {TP: 9}]
