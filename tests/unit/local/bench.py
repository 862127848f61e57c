"""One partition on a disk that fails on demand, and what the acceptance cases need: kills, files, indexes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.faulty_files import FaultyFiles
from tiered.config import LogConfig, TopicConfig
from tiered.format.batch import decode_records, encode_batch
from tiered.format.codecs import Codec
from tiered.format.kernels import Record
from tiered.format.segment_indexes import OffsetIndex, TimeIndex
from tiered.local.directory.log_directory import LocalLog
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds

TP = TopicPartition("t", 0)


class Bench:
    """A log directory with a fake clock and a disk that fails on demand."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.files = FaultyFiles()
        self.log = self.open()
        self.log.create_topic(TP.topic, 1, TopicConfig(**{"segment_index_bytes": 1200, **config}))

    @property
    def partition(self) -> WriteLog:
        return self.log.partition(TP)

    def open(self, **settings: Any) -> LocalLog:
        self.log = LocalLog.open(
            self.directory,
            clock=self.clock,
            ids=SeededIds(1),
            files=self.files,
            config=LogConfig(**{"disk_reserve_bytes": 0, **settings}),
        )
        return self.log

    def append(self, *values: bytes, **fields: Any) -> int:
        return self.partition.append([NewRecord(value, **fields) for value in values]).offset

    def values(self, start: int = 0, end: int | None = None) -> list[bytes | None]:
        found = [r for batch in self.partition.read_batches(start, end) for r in decode_records(batch)]
        return [r.value for r in found if r.offset >= start and (end is None or r.offset < end)]


RECORD_BYTES = 69
"""Size of a batch of one record with a value of one byte and a timestamp."""


class CaseBench(Bench):
    """``n`` in ``per_segment``: segments of n batches of :data:`RECORD_BYTES`."""

    def __init__(self, directory: Path, *, per_segment: int | None = None, **config: Any) -> None:
        if per_segment is not None:
            config["segment_bytes"] = per_segment * RECORD_BYTES
        super().__init__(directory, **{"seal_ms": -1, **config})

    @property
    def folder(self) -> Path:
        return self.directory / str(TP)

    @property
    def bases(self) -> list[int]:
        """Bases of all segments, the active one last."""
        return [s.base_offset for s in self.partition.segments.sealed] + [self.partition.segments.active.base_offset]

    @property
    def epochs(self) -> list[tuple[int, int]]:
        return [tuple(entry) for entry in self.partition.leader_epochs()]  # type: ignore[misc]  # pairs of ints

    def fill(self, count: int, **fields: Any) -> None:
        for _ in range(count):
            self.append(b"v", **fields)

    def records(self, start: int | None = None) -> list[Record]:
        start = self.partition.positions().local_start_offset if start is None else start
        found = [r for batch in self.partition.read_batches(start) for r in decode_records(batch)]
        return [r for r in found if r.offset >= start]

    def offsets(self, start: int | None = None) -> list[int]:
        return [r.offset for r in self.records(start)]

    def kill(self) -> None:
        """The process is gone: files as they are, no lock, no clean mark."""
        lock = self.log._directory_lock
        assert lock._handle is not None
        lock._release()
        for segment in (*self.partition.segments.closing, self.partition.segments.active):
            segment.close()

    def reopen(self) -> None:
        self.log.close()
        self.open()

    def names(self, suffix: str) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name.endswith(suffix))

    def index(self, base: int) -> OffsetIndex:
        return OffsetIndex.from_bytes((self.folder / f"{base:020d}.index").read_bytes(), base, drop_padding=True)

    def times(self, base: int) -> TimeIndex:
        return TimeIndex.from_bytes((self.folder / f"{base:020d}.timeindex").read_bytes(), base, drop_padding=True)

    def retain(self) -> None:
        """One pass of retention, and the delay of the deletion over."""
        self.partition.apply_retention()


def started(work: Callable[[], object]) -> threading.Thread:
    """A thread that does it."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def batch(
    base: int, *stamps: int, epoch: int = 0, value: bytes = b"v", codec: Codec = Codec.NONE, **fields: Any
) -> bytes:
    """A batch as a leader sends it to a follower: consecutive offsets from ``base``."""
    records: Sequence[NewRecord] = [NewRecord(value, b"k", stamp) for stamp in stamps or (5,)]
    return encode_batch(records, base_offset=base, leader_epoch=epoch, codec=codec, **fields)
