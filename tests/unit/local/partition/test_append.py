"""One append, with both twins of the kernels: the same answers, files and totals, whatever is odd or fails."""

from __future__ import annotations

import errno
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.support.faulty_files import FaultyFiles, on_nth
from tests.unit.format.odd_records import Own, lists
from tests.unit.format.twins import at_work, compiled, needs_both, outcome
from tests.unit.local.bench import TP, CaseBench
from tiered.config import LogConfig, TopicConfig
from tiered.errors import (
    ClosedError,
    DiskFullError,
    FencedError,
    InvalidRecordError,
    InvalidTimestampError,
    LocalIOError,
)
from tiered.format import pure_kernels
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import Files, PosixFiles
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord
from tiered.testing.clock import START_MS, FakeClock, SeededIds

FIELD = st.none() | st.binary(max_size=60)
TIME = st.sampled_from([-1, -1, -1, START_MS, START_MS - 5000, START_MS + 2000, START_MS + 10**8, -7])
HEADERS = st.sampled_from([None, None, None, (), [("h", b"1"), ("i", None)], [("h", 3)]])
RECORD = st.builds(NewRecord, FIELD, FIELD, TIME, HEADERS)
ODD = st.sampled_from([("v", "k"), NewRecord(b"v", "k"), NewRecord(bytearray(b"v")), NewRecord(b"v" * 900), None])  # type: ignore[arg-type]
BATCH = st.lists(RECORD | ODD, max_size=6) | st.lists(RECORD, min_size=1, max_size=6).map(tuple)
STEP = st.one_of(
    BATCH,
    BATCH,
    st.integers(1, 5000),  # milliseconds pass
    st.sampled_from(["flush", "roll", "fence", "uploaded", "epoch", "reopen", "low", "room"]),
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "segment_bytes": st.sampled_from([300, 1000]),
        "index_interval_bytes": st.sampled_from([0, 200]),
        "segment_index_bytes": st.sampled_from([48, 1200]),
        "segment_ms": st.just(3000),
        "seal_ms": st.sampled_from([-1, 4000]),
        "flush_messages": st.sampled_from([1, 5]),
        "cleanup_policy": st.just("compact"),
        "message_timestamp_type": st.just("LogAppendTime"),
        "compression_type": st.just("lz4"),
        "max_message_bytes": st.just(200),
        "message_timestamp_before_max_ms": st.just(4000),
    },
)


class Still(FakeClock):
    """Its wall clock stands still, whatever threads wait for."""

    def now_ms(self) -> int:
        return START_MS


class Twin:
    """A log of one partition; ``pure``: the pure kernels encode its batches."""

    def __init__(self, folder: Path, files: Files, config: dict[str, Any], *, pure: bool) -> None:
        self.folder, self.files, self.pure = folder, files, pure
        self.clock = FakeClock()
        self._open()
        self.log.create_topic(TP.topic, 1, TopicConfig(**{"segment_index_bytes": 1200, **config}))

    def _open(self) -> None:
        self.log = LocalLog.open(
            self.folder,
            clock=self.clock,
            ids=SeededIds(1),
            files=self.files,
            config=LogConfig(disk_reserve_bytes=0, disk_check_bytes=2000),
        )

    @property
    def partition(self) -> WriteLog:
        return self.log.partition(TP)

    def answer(self, step: Any) -> str:
        with at_work(pure_kernels if self.pure else compiled):
            return repr(outcome(lambda: self.do(step)))

    def do(self, step: Any) -> object:
        if isinstance(step, int):
            return self.clock.advance(step / 1000)
        if isinstance(step, list | tuple):
            return self.log.partition(TP).append(step)
        partition = self.log.partition(TP)
        return {
            "flush": partition.flush,
            "roll": partition.roll,
            "fence": lambda: partition.set_uploaded(0, fenced=True),
            "uploaded": lambda: partition.set_uploaded(self.partition.end_offset),
            "epoch": lambda: partition.new_leader_epoch(self.partition.context.epoch + 1),
            "reopen": self.reopen,
            "low": lambda: self._room(0),
            "room": lambda: self._room(10**9),
        }[step]()

    def reopen(self) -> None:
        self.log.close()
        self._open()

    def _room(self, free: int) -> None:
        if isinstance(self.files, FaultyFiles):
            self.files.free_bytes = free
            self.partition.context.around.reserve.check()

    def state(self) -> object:
        """All that an append changes, on the disk and in memory."""
        writer, active = self.partition, self.partition.segments.active
        held = {name: getattr(active, name) for name in type(active).__slots__ if name in HELD}
        index = (active.indexes.offset_bytes(), active.indexes.time_bytes())
        segments = [(each.base_offset, each.end_offset) for each in writer.segments.sealed]
        files = {path.name: path.read_bytes() for path in (self.folder / str(TP)).iterdir()}
        reserve = writer.context.around.reserve
        return held, index, segments, writer.end_offset, writer.durability.flushed, files, reserve.left


HELD = {
    *("clock_bound", "_full", "offset_bound", "_since_index", "time_bound", "appended_ms", "first_append_ms", "crc32c"),
    *("first_timestamp", "leader_epoch", "max_timestamp", "max_timestamp_offset", "size_bytes", "stats", "base_offset"),
}


@needs_both
@pytest.mark.parametrize("disk", [FaultyFiles, PosixFiles])
@given(steps=st.lists(STEP, max_size=25), config=SETTINGS)
def test_both_twins_answer_and_write_the_same(
    disk: Callable[[], Files], steps: list[Any], config: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        ours = Twin(Path(name) / "ours", disk(), config, pure=False)
        pure = Twin(Path(name) / "pure", disk(), config, pure=True)
        for step in steps:
            assert ours.answer(step).replace("/ours", "/pure") == pure.answer(step)
            assert ours.state() == pure.state()
        ours.log.close()
        pure.log.close()


@pytest.fixture
def bench(tmp_path: Path) -> CaseBench:
    """With one record, so that nothing is out of the ordinary."""
    bench = CaseBench(tmp_path / "log", index_interval_bytes=200)
    bench.fill(1)
    return bench


def offline(bench: CaseBench) -> None:
    bench.partition.context.go_offline(LocalIOError("the disk failed"))


def ending(bench: CaseBench) -> None:
    bench.partition.context.ending = True


def fenced(bench: CaseBench) -> None:
    bench.partition.set_uploaded(0, fenced=True)


def behind(bench: CaseBench) -> None:
    bench.partition.set_uploaded(2)


def low(bench: CaseBench) -> None:
    bench.files.free_bytes = 0
    bench.partition.context.around.reserve.check()


def clock_before_1970(bench: CaseBench) -> None:
    bench.clock.jump(-START_MS / 1000 - 2)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (offline, LocalIOError),
        (ending, ClosedError),
        (fenced, FencedError),
        (behind, FencedError),
        (low, DiskFullError),
        (clock_before_1970, InvalidTimestampError),
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_a_refused_append_changes_nothing(
    bench: CaseBench, state: Callable[[CaseBench], None], error: type[Exception], many: bool
) -> None:
    def append() -> None:
        bench.partition.append([NewRecord(b"v", b"k", START_MS)], given=many)  # type: ignore[call-overload]
        bench.append(b"v", timestamp=START_MS)  # the call above returns None for a batch that is odd

    state(bench)
    held, before = bench.partition.context, bench.partition.segments.active
    found = (before.size_bytes, before.crc32c, before.stats and replace(before.stats), bench.partition.end_offset)
    with pytest.raises(error):
        append()
    assert (before.size_bytes, before.crc32c, before.stats, bench.partition.end_offset) == found
    assert (held.under_way, held.lock.locked()) == (None, False)


@pytest.mark.parametrize(
    ("outcome", "error", "stays"), [(errno.ENOSPC, DiskFullError, True), (errno.EIO, LocalIOError, False)]
)
def test_a_write_that_fails_leaves_nothing(bench: CaseBench, outcome: int, error: type[Exception], stays: bool) -> None:
    failures = iter([outcome])
    bench.files.fail = lambda operation, path: next(failures, 0) if operation == "write" else 0
    with pytest.raises(error):
        bench.append(b"v")
    assert (bench.partition.context.offline is None) == stays
    assert (bench.folder / f"{0:020}.log").stat().st_size == 69
    if stays:
        assert bench.append(b"w") == 1
        assert bench.values() == [b"v", b"w"]


def test_an_interrupted_write_is_cut_back(bench: CaseBench) -> None:
    bench.files.fail = on_nth(1, "write", KeyboardInterrupt)
    before = bench.values()
    for value in (b"interrupted", b"so is the cut"):  # every effect after the first one fails, too
        with pytest.raises(KeyboardInterrupt):
            bench.append(value)
        assert not bench.partition.context.lock.locked()
    bench.files.fail = None
    assert bench.append(b"w") == 1
    assert bench.values() == [*before, b"w"]


def test_an_index_that_cannot_be_written_costs_nothing(bench: CaseBench) -> None:
    bench.fill(2)
    bench.files.fail = lambda operation, path: errno.EIO if path.suffix == ".index" else 0
    bench.fill(2)
    assert bench.partition.context.offline is None
    assert bench.partition.segments.active.indexes.offset_count >= 1


GIVEN = st.lists(st.tuples(FIELD, FIELD) | st.binary(max_size=30) | RECORD, max_size=30) | lists
CALL = st.tuples(GIVEN, st.sampled_from([list, tuple, iter, Own]), st.sampled_from([None, None, None, 0, 4, 5, True]))


@needs_both
@given(calls=st.lists(CALL, min_size=1, max_size=5), partitions=st.sampled_from([1, 5]), held=st.integers(0, 5))
def test_both_twins_append_many_the_same(calls: list[Any], partitions: int, held: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        found: list[list[str]] = [[], []]
        for which, answers in zip(("ours", "pure"), found, strict=True):
            with tiered.open(Path(name) / which, clock=Still()) as log:
                topic = log.topic("t", partitions=partitions, create=True, config={"max.message.bytes": 300})
                for partition in range(min(held, partitions)):
                    topic.append(b"first", partition=partition)
                for records, container, partition in calls:
                    with at_work(pure_kernels if which == "pure" else compiled):
                        call = partial(topic.append_many, container(records), partition=partition)
                        answers.append(repr(outcome(call)))
                answers += [repr([tuple(record) for record in topic.read(each)]) for each in range(partitions)]
        assert found[0] == found[1]


@pytest.mark.parametrize(("value", "key"), [("v", None), (b"v", "k"), (3, None)])
def test_a_field_that_is_not_bytes_is_refused_in_one_set_of_words(tmp_path: Path, value: Any, key: Any) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", partitions=1, create=True)
        topic.append(b"first")
        with pytest.raises(InvalidRecordError) as one:
            topic.append(value, key=key)
        with pytest.raises(InvalidRecordError) as many:
            topic.append_many([(value, key)])
        assert one.value.message == many.value.message
        assert topic.positions(0).end_offset == 1


@needs_both
def test_one_append_runs_functions_of_four_files_of_the_local_tier(tmp_path: Path) -> None:
    """The compiled kernels call none back. The pure twins leave each batch to the general path."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        place = frame.f_code.co_filename.rpartition("/tiered/local/")[2]
        if event == "call" and place != frame.f_code.co_filename:
            called.append(place)

    with tiered.open(tmp_path) as log, at_work(compiled):
        topic = log.topic("t", create=True)
        topic.append(b"the first one of a segment sets its times")
        sys.setprofile(note)
        try:
            topic.append(b"v", key=b"k")
        finally:
            sys.setprofile(None)
    assert sorted(set(called)) == ["disk/fd_pool.py", "disk/files.py", "partition/appender.py", "segment/active.py"]
