"""Both twins of a plain append: the same answers, files and totals; the compiled one leaves alone what is odd."""

from __future__ import annotations

import errno
import resource
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.unit.format.odd_records import Own, lists
from tests.unit.format.twins import outcome
from tests.unit.local.bench import TP, CaseBench
from tiered.config import LogConfig, TopicConfig
from tiered.errors import DiskFullError, LocalIOError
from tiered.format import kernels
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.files import Files, PosixFiles
from tiered.local.partition.plain import PlainAppend, PlainAppends
from tiered.local.partition.writer import PartitionWriter
from tiered.model import NewRecord
from tiered.partitioner import Partitioner
from tiered.testing.clock import START_MS, FakeClock, SeededIds
from tiered.testing.disk import FaultyFiles, on_nth

COMPILED = kernels.AT_WORK != kernels.PURE
needs_compiled = pytest.mark.skipif(not COMPILED, reason="the compiled kernels are not at work")

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


class PurePlainAppends:
    """As the pure twin: everything is odd."""

    append = append_many = staticmethod(lambda *given: None)


class Twin:
    """A log of one partition; ``pure``: its appends go the general way."""

    def __init__(self, folder: Path, files: Files, config: dict[str, Any], *, pure: bool) -> None:
        self.folder, self.files, self.pure = folder, files, pure
        self.clock = FakeClock()
        self.answers = 0
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
    def writer(self) -> PartitionWriter:
        return self.log.roster.writers[TP]

    def answer(self, step: Any) -> str:
        return repr(outcome(lambda: self.do(step)))

    def do(self, step: Any) -> object:
        if isinstance(step, int):
            return self.clock.advance(step / 1000)
        if isinstance(step, list | tuple):
            appender = self.writer.appender
            if self.pure:
                appender.plain = PlainAppend()
            before = self.writer.end_offset
            answer = appender.plain.append(step)
            assert (answer is None) == (self.writer.end_offset == before)
            self.answers += answer is not None
            return answer or self.log.partition(TP).append(step)
        partition = self.log.partition(TP)
        return {
            "flush": partition.flush,
            "roll": partition.roll,
            "fence": lambda: partition.set_uploaded(0, fenced=True),
            "uploaded": lambda: partition.set_uploaded(self.writer.end_offset),
            "epoch": lambda: partition.new_leader_epoch(self.writer.shared.leadership.epoch + 1),
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
            self.writer.shared.around.reserve.check()

    def state(self) -> object:
        """All that an append changes, on the disk and in memory."""
        writer, active = self.writer, self.writer.segments.active
        held = {name: getattr(active, name) for name in type(active).__slots__ if name in HELD}
        index = (active.indexes.offset_bytes(), active.indexes.time_bytes())
        segments = [(each.base_offset, each.end_offset) for each in writer.segments.sealed]
        files = {path.name: path.read_bytes() for path in (self.folder / str(TP)).iterdir()}
        reserve = writer.shared.around.reserve
        return held, index, segments, writer.end_offset, writer.flusher.flushed, files, reserve._left, reserve._low


HELD = {
    *("_clock_bound", "_full", "_offset_bound", "_since_index", "_time_bound", "appended_ms", "first_append_ms"),
    *("first_timestamp", "leader_epoch", "max_timestamp", "max_timestamp_offset", "size_bytes", "stats", "base_offset"),
}


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
        assert pure.answers == 0
        ours.log.close()
        pure.log.close()


@pytest.fixture
def bench(tmp_path: Path) -> CaseBench:
    """With one record, so that nothing is out of the ordinary."""
    bench = CaseBench(tmp_path / "log", index_interval_bytes=200)
    bench.fill(1)
    return bench


def plainly(bench: CaseBench, *records: NewRecord) -> Any:
    return bench.writer.appender.plain.append(list(records) or [NewRecord(b"v")])


@needs_compiled
def test_the_compiled_twin_takes_what_is_ordinary(bench: CaseBench) -> None:
    assert plainly(bench) == ("t", 0, 1, START_MS, 2)
    assert plainly(bench, NewRecord(b"a", b"k", START_MS - 4), NewRecord(None)) == ("t", 0, 2, START_MS - 4, 4)
    bench.partition.set_uploaded(2)
    assert plainly(bench).offset == 4


def offline(bench: CaseBench) -> None:
    bench.writer.condition.go_offline(LocalIOError("the disk failed"))


def unassigned(bench: CaseBench) -> None:
    bench.writer.shared.leadership.unassigned = True


def not_begun(bench: CaseBench) -> None:
    bench.writer.beginning.begun = False


def low(bench: CaseBench) -> None:
    bench.writer.shared.around.reserve._low = True


def used_up(bench: CaseBench) -> None:
    bench.writer.shared.around.reserve._left = 68


def producers(bench: CaseBench) -> None:
    bench.writer.producers.state = object()  # type: ignore[assignment]  # whatever it is


def to_flush(bench: CaseBench) -> None:
    bench.writer.configure(TopicConfig(flush_messages=2))


def compressed(bench: CaseBench) -> None:
    bench.writer.configure(TopicConfig(compression_type="lz4"))


def keyed(bench: CaseBench) -> None:
    bench.writer.configure(TopicConfig(cleanup_policy="compact"))


def small(bench: CaseBench) -> None:
    bench.writer.configure(TopicConfig(max_message_bytes=68))


def full(bench: CaseBench) -> None:
    bench.writer.segments.active.segment_bytes = 137


def old(bench: CaseBench) -> None:
    bench.writer.configure(TopicConfig(segment_ms=1))
    bench.clock.advance(1)


def idle(bench: CaseBench) -> None:
    bench.writer.configure(TopicConfig(seal_ms=1000))
    bench.clock.advance(1)


def index_full(bench: CaseBench) -> None:
    bench.writer.segments.active._offset_bound = 0


def before(bench: CaseBench) -> None:
    bench.clock.jump(-START_MS / 1000 - 1)


def empty(bench: CaseBench) -> None:
    bench.partition.roll()


def condition(name: str) -> Callable[[CaseBench], None]:
    return lambda bench: setattr(bench.writer.condition, name, True)


@needs_compiled
@pytest.mark.parametrize(
    "odd",
    [
        *(offline, unassigned, not_begun, low, used_up, producers, to_flush, compressed, keyed, small, full, old, idle),
        *(index_full, before, empty, condition("closed"), condition("ending")),
        lambda bench: bench.partition.set_uploaded(0, fenced=True),
        lambda bench: bench.partition.set_uploaded(2),
        lambda bench: bench.writer.segments.active.close(),
    ],
)
def test_the_compiled_twin_leaves_alone_what_is_odd(bench: CaseBench, odd: Callable[[CaseBench], None]) -> None:
    assert plainly(bench) is not None
    bench.writer.segments.end, bench.writer.segments.active.size_bytes = 1, 69  # as it was before
    odd(bench)
    end, size = bench.writer.end_offset, bench.writer.segments.active.size_bytes
    assert plainly(bench) is None
    assert (bench.writer.end_offset, bench.writer.segments.active.size_bytes) == (end, size)
    assert not bench.writer.shared.lock.locked()


@needs_compiled
@pytest.mark.parametrize(
    "records",
    [
        [],
        iter([NewRecord(b"v")]),
        [NewRecord(b"v", timestamp=-2)],
        [NewRecord(b"v", timestamp=START_MS + 3_600_001)],
        [NewRecord("v")],  # type: ignore[arg-type]
        [(b"v", b"k")],
        [NewRecord(b"v" * 1_048_588)],
    ],
)
def test_the_compiled_twin_leaves_odd_records_alone(bench: CaseBench, records: Any) -> None:
    assert bench.writer.appender.plain.append(records) is None
    assert bench.writer.end_offset == 1


@pytest.mark.parametrize(
    ("outcome", "error", "stays"), [(errno.ENOSPC, DiskFullError, True), (errno.EIO, LocalIOError, False)]
)
def test_a_write_that_fails_counts_as_in_the_general_way(
    bench: CaseBench, outcome: int, error: type[Exception], stays: bool
) -> None:
    failures = iter([outcome])
    bench.files.fail = lambda operation, path: next(failures, 0) if operation == "write" else 0
    with pytest.raises(error):
        bench.append(b"v")
    assert (bench.writer.condition.offline is None) == stays
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
        assert not bench.writer.shared.lock.locked()
    bench.files.fail = None
    assert bench.append(b"w") == 1
    assert bench.values() == [*before, b"w"]


def test_an_index_that_cannot_be_written_costs_nothing(bench: CaseBench) -> None:
    bench.fill(2)
    bench.files.fail = lambda operation, path: errno.EIO if path.suffix == ".index" else 0
    assert plainly(bench) is None if not COMPILED else plainly(bench) is not None
    bench.fill(1)
    assert bench.writer.condition.offline is None
    assert bench.writer.segments.active.indexes.offset_count >= 1


@needs_compiled
def test_a_descriptor_that_is_not_there_is_the_general_ways(tmp_path: Path) -> None:
    with LocalLog.open(tmp_path / "log", config=LogConfig(disk_reserve_bytes=0)) as log:
        log.create_topic(TP.topic, 1, TopicConfig())
        writer = log.roster.writers[TP]
        log.partition(TP).append([NewRecord(b"v")])
        plain, files = writer.appender.plain, writer.shared.around.files
        leases: dict[int, Any] = files._leases  # type: ignore[attr-defined]
        lease = next(each for each in leases.values() if each.path.suffix == ".log")
        assert plain.append([NewRecord(b"v")]) is not None
        used = lease.used
        with lease.lock:
            assert plain.append([NewRecord(b"v")]) is None  # somebody gives it up just now
        files._give_up(lease)  # type: ignore[attr-defined]
        assert plain.append([NewRecord(b"v")]) is None
        assert log.partition(TP).append([NewRecord(b"v")]).offset == 2  # reopened
        assert (lease.descriptor >= 0, lease.dirty) == (True, True)
        assert lease.used > used
        lease.failed = LocalIOError("an fsync failed")
        assert plain.append([NewRecord(b"v")]) is None
        lease.failed = None


@needs_compiled
def test_half_a_write_is_the_general_ways(tmp_path: Path) -> None:
    """The system writes a part and no more, as a disk does that gets full."""
    log = LocalLog.open(tmp_path / "log", config=LogConfig(disk_reserve_bytes=0))
    log.create_topic(TP.topic, 1, TopicConfig())
    partition = log.partition(TP)
    partition.append([NewRecord(b"v")])
    path = tmp_path / "log" / str(TP) / f"{0:020}.log"
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        assert log.roster.writers[TP].appender.plain.append([NewRecord(b"w")]) is None
        assert path.stat().st_size == size + 10
        with pytest.raises(LocalIOError, match="File too large"):
            partition.append([NewRecord(b"w")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (path.stat().st_size, partition.positions().end_offset) == (size, 1)
    with pytest.raises(LocalIOError, match="not everything is durable"):  # after such an error nothing is certain
        log.close()
    with LocalLog.open(tmp_path / "log", config=LogConfig(disk_reserve_bytes=0)) as again:
        assert again.partition(TP).append([NewRecord(b"w")]).offset == 1


@given(key=FIELD, value=FIELD, partition=st.none() | st.integers(-1, 8))
def test_a_record_goes_where_the_partitioner_says(
    key: bytes | None, value: bytes | None, partition: int | None
) -> None:
    with tempfile.TemporaryDirectory() as name, tiered.open(Path(name) / "log") as log:
        topic = log.topic("t", partitions=7, create=True)
        for each in range(7):
            topic.append(b"first", partition=each)
        written = topic._plain.append(value, key, partition)
        chosen = Partitioner(7).partition_for(key) if partition is None else partition
        if not COMPILED or (key is None and partition is None) or not 0 <= chosen < 7:
            assert written is None
        else:
            assert written is not None
            assert (written.partition, written.offset) == (chosen, 1)
            record = next(iter(topic.read(chosen, start=1)))
            assert (record.key, record.value) == (key, value)


GIVEN = st.lists(st.tuples(FIELD, FIELD) | st.binary(max_size=30) | RECORD, max_size=30) | lists
CALL = st.tuples(GIVEN, st.sampled_from([list, tuple, iter, Own]), st.sampled_from([None, None, None, 0, 4, 5, True]))


@given(calls=st.lists(CALL, min_size=1, max_size=5), partitions=st.sampled_from([1, 5]), held=st.integers(0, 5))
def test_both_twins_append_many_the_same(calls: list[Any], partitions: int, held: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        found: list[list[str]] = [[], []]
        for which, answers in zip(("ours", "pure"), found, strict=True):
            with tiered.open(Path(name) / which, clock=Still()) as log:
                topic = log.topic("t", partitions=partitions, create=True, config={"max.message.bytes": 300})
                if which == "pure":
                    topic._plain = PurePlainAppends()  # type: ignore[assignment]
                    for each in range(partitions):
                        topic.log(each).to_write().appender.plain = PlainAppend()
                for partition in range(min(held, partitions)):
                    topic.append(b"first", partition=partition)
                for records, container, partition in calls:
                    answers.append(repr(outcome(lambda: topic.append_many(container(records), partition=partition))))  # type: ignore[misc]  # noqa: B023
                answers += [repr([tuple(record) for record in topic.read(each)]) for each in range(partitions)]
        assert found[0] == found[1]


@needs_compiled
def test_what_one_partition_leaves_alone_is_left_with_all_behind_it(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", partitions=3, create=True)
        for partition in (0, 2):
            topic.append(b"first", partition=partition)
        keys = {Partitioner(3).partition_for(b"%d" % i): b"%d" % i for i in range(40)}
        records = [(b"a", keys[2]), (b"b", keys[0]), (b"c", keys[1]), (b"d", keys[2])]
        written, left = topic._plain.append_many(records, None, 0) or ([], [])
        assert [(md.partition, md.offset, md.end_offset) for md in written] == [(0, 1, 2)]
        assert left == [(1, [(b"c", keys[1])], [2]), (2, [(b"a", keys[2]), (b"d", keys[2])], [0, 3])]
        assert topic._plain.append_many([(b"v", "k")], None, 0) is None
        assert topic._plain.append_many([NewRecord(b"v"), 3], 1, 0) is None
        assert topic._plain.append_many(iter([b"v"]), None, 0) is None
        assert topic._plain.append_many([], None, 0) is None
        assert topic.positions(2).end_offset == 1


@pytest.mark.parametrize(("value", "key"), [("v", None), (b"v", "k"), (bytearray(b"v"), None), (3, None)])
def test_odd_fields_are_the_general_ways(tmp_path: Path, value: Any, key: Any) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", partitions=1, create=True)
        topic.append(b"first")
        assert topic._plain.append(value, key, 0) is None
        assert topic._plain.append(b"v", b"k", True) is None
        assert topic.positions(0).end_offset == 1


def test_a_topic_whose_partitions_are_out_of_service() -> None:
    assert PlainAppends([None]).append(b"v", None, 0) is None


def test_threads_append_each_record_once(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", partitions=1, create=True, config={"segment.bytes": 20_000})

        def append(name: int) -> None:
            for at in range(500):
                topic.append(b"%d-%d" % (name, at))

        threads = [threading.Thread(target=append, args=(name,)) for name in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        found = [record.value for record in topic.read(0)]
        assert sorted(found) == sorted(b"%d-%d" % (name, at) for name in range(4) for at in range(500))
        for name in range(4):
            mine = [value for value in found if value.startswith(b"%d-" % name)]
            assert mine == [b"%d-%d" % (name, at) for at in range(500)]
