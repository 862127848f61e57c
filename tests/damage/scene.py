"""One small log, dense or with gaps, with transactions; closed, killed, or killed without its recovery points."""

from __future__ import annotations

import enum
import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from tests.support.given import append_given
from tiered.config import LogConfig, TopicConfig
from tiered.errors import TieredError
from tiered.format.batch import BatchProducer, decode_records, encode_batch
from tiered.format.batch_scanner import walk_headers
from tiered.format.control import ControlType, marker
from tiered.format.header import BatchHeader
from tiered.format.kernels import ConsumerRecord
from tiered.format.local_names import LOG_SUFFIX, local_name
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.local.partition.read_log import ReadLog
from tiered.model import NewRecord, TopicPartition
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream
from tiered.testing.clock import START_MS, FakeClock, SeededIds

TP = TopicPartition("t", 0)
CONFIG = LogConfig(disk_reserve_bytes=0, cleaner_enabled=False)
BATCHES = 24
PER_SEGMENT = 6
STEP_MS = 10
ABORTED_PID, COMMITTED_PID = 5, 6
EVERY = 4
"""Reads from the middle begin at every so many records."""


class State(enum.StrEnum):
    """How the writer went. LOST: killed, and the file of the recovery points is gone."""

    CLEAN = "clean"
    KILLED = "killed"
    LOST = "lost"


class QuickFiles(PosixFiles):
    """The real disk without its fsyncs: no test here cuts the power."""

    def sync(self, handle: int) -> None:
        """Nothing."""

    def sync_directory(self, path: Path) -> None:
        """Nothing."""


class Place(NamedTuple):
    """One batch of a ``.log``."""

    position: int
    header: BatchHeader


@dataclass(frozen=True)
class Scene:
    """A log directory that may be damaged."""

    root: Path
    sparse: bool

    @property
    def folder(self) -> Path:
        return self.root / str(TP)

    @property
    def bases(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob(f"*{LOG_SUFFIX}"))

    def path(self, base: int, suffix: str = LOG_SUFFIX) -> Path:
        return self.folder / local_name(base, suffix)

    def batches(self, base: int) -> list[Place]:
        return [Place(*found) for found in walk_headers(self.path(base).read_bytes())]

    @contextmanager
    def opened(self, *, read_only: bool) -> Iterator[ReadLog]:
        clock, files = FakeClock(START_MS), QuickFiles()
        if read_only:
            with LogView.open(self.root, clock=clock, files=files) as view:
                yield view.partition(TP)
            return
        log = LocalLog.open(self.root, clock=clock, ids=SeededIds(1), files=files, config=CONFIG)
        try:
            yield log.partition(TP)
        finally:
            kill(log)


def kill(log: LocalLog) -> None:
    """The process is gone: files as they are, no clean mark."""
    lock = log._directory_lock
    assert lock._handle is not None
    lock._release()
    for writer in log.roster.logs.values():
        writer.segments.active.close()


def batch_at(number: int, base: int) -> bytes:
    """The batches of a log, in turns: plain, aborted, plain, the ABORT, committed, the COMMIT."""
    turn, stamp = number % PER_SEGMENT, START_MS + number * STEP_MS
    records = [NewRecord(b"value-%d" % (base + i), b"key-%d" % (base + i), stamp + i, [("h", b"x")]) for i in (0, 1)]
    if turn in {0, 2}:
        return encode_batch(records, base_offset=base)
    aborts = turn in {1, 3}
    pid = ABORTED_PID if aborts else COMMITTED_PID
    if turn in {1, 4}:
        sequence = number // PER_SEGMENT * 2
        return encode_batch(records, base_offset=base, producer=BatchProducer(pid, 0, sequence, transactional=True))
    end = marker(ControlType.ABORT if aborts else ControlType.COMMIT, 0, stamp)
    return encode_batch([end], base_offset=base, producer=BatchProducer(pid, 0, transactional=True, control=True))


@functools.cache
def template(*, sparse: bool, state: State) -> Path:
    """Made once a process. Three sealed segments and an active one, of six batches each."""
    root = Path(mkdtemp(prefix="tieredlog-damage-"))
    files = QuickFiles()
    log = LocalLog.open(root, clock=FakeClock(START_MS), ids=SeededIds(1), files=files, config=CONFIG)
    log.create_topic(TP.topic, 1, TopicConfig(index_interval_bytes=100, segment_index_bytes=1200, seal_ms=-1))
    partition = log.partition(TP)
    for number in range(BATCHES):
        if number and number % PER_SEGMENT == 0:
            partition.roll()
        end = partition.positions().end_offset
        append_given(partition, batch_at(number, end + (3 if sparse and number % 2 else 0)))
    partition.flush()
    log.checkpoint()
    if state is State.CLEAN:
        log.close()
    else:
        kill(log)
    if state is State.LOST:
        (root / "recovery-point-offset-checkpoint").unlink()
    return root


def remove_templates() -> None:
    """Also where a test failed."""
    for sparse in (False, True):
        for state in State:
            shutil.rmtree(template(sparse=sparse, state=state), ignore_errors=True)
    template.cache_clear()


def fresh(target: Path, *, sparse: bool, state: State) -> Scene:
    """A copy to be damaged."""
    shutil.copytree(template(sparse=sparse, state=state), target)
    return Scene(target, sparse)


Seen = tuple[object, ...] | str
"""What a read gave, or the name of its error."""


def _records(stream: PartitionStream, wanted: ReadRange, isolation: str) -> tuple[object, ...]:
    return tuple(_content(record) for record in stream.records(wanted, isolation=isolation))


def _content(record: ConsumerRecord) -> tuple[object, ...]:
    headers = tuple(record.headers or ())
    return record.offset, record.timestamp, record.key, record.value, headers


def _from_the_middle(partition: ReadLog, offsets: tuple[int, ...]) -> tuple[object, ...]:
    found = []
    for start in offsets:
        batch = next(iter(partition.read_batches(start)), None)
        record = next((r for r in decode_records(batch) if r.offset >= start), None) if batch is not None else None
        found.append(None if record is None else (record.offset, record.value))
    return tuple(found)


def outcome(read: Callable[[], tuple[object, ...]]) -> Seen:
    """What it gives, or the name of the error that it raises; only errors of the product count as such."""
    try:
        return read()
    except TieredError as error:
        return type(error).__name__


def observe(partition: ReadLog, offsets: tuple[int, ...]) -> dict[str, Seen]:
    """Every way to read, each on its own."""
    stream = PartitionStream.open(TP, local=partition, remote=None)
    stamps = range(START_MS, START_MS + BATCHES * STEP_MS, STEP_MS // 2)
    middle = START_MS + BATCHES // 2 * STEP_MS
    half = offsets[len(offsets) // 2]
    return {
        "plain": outcome(lambda: _records(stream, ReadRange(), "read_uncommitted")),
        "committed": outcome(lambda: _records(stream, ReadRange(), "read_committed")),
        "half": outcome(lambda: _records(stream, ReadRange(end=half), "read_uncommitted")),
        "since": outcome(lambda: _records(stream, ReadRange(since_ms=middle), "read_uncommitted")),
        "times": outcome(lambda: tuple(partition.offset_for_time(stamp) for stamp in stamps)),
        "middle": outcome(lambda: _from_the_middle(partition, offsets[::EVERY])),
    }


@functools.cache
def truth(*, sparse: bool) -> tuple[tuple[int, ...], dict[str, Seen]]:
    """Offsets of all records, and what every read of the undamaged log gives."""
    scene = Scene(template(sparse=sparse, state=State.CLEAN), sparse)
    offsets = tuple(
        offset
        for base in scene.bases
        for place in scene.batches(base)
        if not place.header.is_control
        for offset in range(place.header.base_offset, place.header.next_offset)
    )
    with scene.opened(read_only=True) as partition:
        return offsets, observe(partition, offsets)
