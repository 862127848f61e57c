"""Two log directories on a disk that remembers what was fsynced, and a model beside each of their partitions."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.faulty_files import FaultyFiles
from tests.support.model_log import ModelLog
from tiered.config import LogConfig, TopicConfig
from tiered.errors import TieredError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.disk.files import FileState
from tiered.local.partition.write_log import WriteLog
from tiered.model import EpochEntry, TopicPartition
from tiered.testing.clock import START_MS, FakeClock, SeededIds

HOUR_MS = 3_600_000
SMALL: dict[str, Any] = {
    "segment_bytes": 2000,
    "index_interval_bytes": 150,
    "segment_index_bytes": 96,
    "file_delete_delay_ms": 5_000,
    "max_message_bytes": 1200,
    "segment_ms": HOUR_MS,
}
TOPICS: dict[str, TopicConfig] = {
    "plain": TopicConfig(**SMALL, retention_ms=12 * HOUR_MS, retention_bytes=6_000),
    "keyed": TopicConfig(**SMALL, cleanup_policy="compact", delete_retention_ms=HOUR_MS, seal_ms=-1),
    "lagging": TopicConfig(
        **SMALL, cleanup_policy="compact", min_compaction_lag_ms=60_000, max_compaction_lag_ms=HOUR_MS
    ),
    "both": TopicConfig(
        **SMALL, cleanup_policy="compact,delete", retention_ms=12 * HOUR_MS, retention_bytes=5_000, seal_ms=20 * 60_000
    ),
    "stamped": TopicConfig(
        **SMALL, message_timestamp_type="LogAppendTime", compression_type="lz4", retention_ms=6 * HOUR_MS
    ),
    "tiered": TopicConfig(**SMALL, local_retention_ms=2 * HOUR_MS, local_retention_bytes=5_000, seal_ms=600_000),
}
TRACE_LINES = 30


class ClockedFiles(FaultyFiles):
    """Files are as old as the fake clock says, so that a history repeats."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self._times: dict[Path, int] = {}
        self._count = 0

    def _touch(self, path: Path) -> None:
        self._count += 1  # two versions of one millisecond differ
        self._times[path] = self._clock.now_ms() * 1_000_000 + self._count % 1_000_000

    def write_at(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._touch(self._paths[handle])
        super().write_at(handle, data, position)

    def truncate(self, handle: int, size: int) -> None:
        self._touch(self._paths[handle])
        super().truncate(handle, size)

    def rename(self, source: Path, target: Path) -> None:
        directory = self.is_directory(source)
        super().rename(source, target)
        moved = [path for path in self._times if path.parent == source] if directory else []
        for path in (source, *moved):
            if path in self._times:
                self._times[target if path == source else target / path.name] = self._times.pop(path)

    def set_modified(self, path: Path, modified_ms: int) -> None:
        self._times[path] = modified_ms * 1_000_000

    def state(self, path: Path) -> FileState | None:
        found = super().state(path)
        return found and found._replace(modified_ns=self._times.get(path, START_MS * 1_000_000))

    def _effect(self, operation: str, path: Path) -> None:
        if self.fail is not None:
            super()._effect(operation, path)


@dataclass
class Subject:
    """One partition. ``starts``: every log start that it had, one of which comes back after an unclean stop.

    ``uploaded``: what a bucket is said to hold, from ``uploaded_start`` on; ``dirty``: where the next cleaning begins;
    ``first_base``, ``active_base``: those of its first and of its last segment; ``expired``: producers that were
    forgotten, and the last offset that each had written; ``cleaned``: compaction may have taken records, whatever the
    policy is now; ``rebuilt``: transaction indexes below may have been made anew, by an open or a cut.
    """

    tp: TopicPartition
    model: ModelLog
    uploaded: int | None = None
    uploaded_start: int = -1
    starts: set[int] = field(default_factory=lambda: {0})
    coordinator: int = 0
    dirty: int | None = None
    first_base: int = 0
    active_base: int = 0
    expired: dict[int, int] = field(default_factory=dict)
    cleaned: bool = False
    rebuilt: int = 0

    @property
    def name(self) -> str:
        return str(self.tp)

    @property
    def log_start(self) -> int:
        """That of both tiers."""
        return self.model.log_start

    @property
    def config(self) -> TopicConfig:
        return self.model.config


@dataclass(frozen=True)
class Raised:
    """An error as a value."""

    kind: type[TieredError]


class World:
    """``files.cut_power`` and :meth:`kill` end a process; :meth:`open` begins the next."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.clock = FakeClock()
        self.files = ClockedFiles(self.clock)
        self.paths = [directory / "a", directory / "b"]
        self.config = LogConfig(
            disk_reserve_bytes=0,
            max_open_files=self.dice.choice([None, 16]),
            cleaner_dedupe_buffer_bytes=self.dice.choice([1024, 1 << 20]),
            cleaner_backoff_ms=self.dice.choice([15_000, 3_600_000]),
        )
        self.subjects: dict[str, Subject] = {}
        self.spoiled: set[tuple[str, str]] = set()  # directories of partitions, names of files in them
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self.steps = 0
        self.on_open: list[Callable[[], None]] = []
        self.open()

    def open(self) -> None:
        """A new process. A partition is woken by whoever asks for it."""
        ids = SeededIds(self.dice.getrandbits(32))
        self.logs = LocalTier.open(self.paths, clock=self.clock, ids=ids, files=self.files, config=self.config)
        for action in self.on_open:
            action()

    def create(self, topic: str) -> Subject:
        """The topic, empty; the epoch of a new log is 0."""
        config = TOPICS[topic]
        self.logs.create_topic(topic, 1, config)
        tp = TopicPartition(topic, 0)
        model = ModelLog(config=config, epochs=[EpochEntry(0, 0)])
        self.subjects[topic] = Subject(tp, model, cleaned=config.compacted)
        return self.subjects[topic]

    def partition(self, subject: Subject) -> WriteLog:
        return self.logs.partition(subject.tp)

    def home(self, subject: Subject) -> LocalLog:
        """The directory that holds it."""
        return self.logs.logs()[self.logs.directory_of(subject.tp)]

    def folder(self, subject: Subject) -> Path:
        return self.home(subject).directory / str(subject.tp)

    def kill(self) -> None:
        """The process is gone: files as they are, no locks, no clean marks."""
        for log in self.logs.logs().values():
            lock = log._directory_lock
            assert lock._handle is not None
            lock._release()
            for writer in log.roster.awake():
                for segment in (*writer.segments.closing, writer.segments.active):
                    segment.close()

    def say(self, line: str) -> None:
        """One more line of the trace."""
        self.trace.append(f"{self.steps:6d}  {line}")


def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call, or what it raised."""
    try:
        return call()
    except TieredError as error:
        return Raised(type(error))
