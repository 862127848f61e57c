"""Several log directories, opened as one log, and a disk whose process can be killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.faulty_files import FaultyFiles, PowerCut, on_nth
from tiered.config import LogConfig, TopicConfig
from tiered.format.batch import decode_records
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.model import TopicPartition
from tiered.testing.clock import FakeClock, SeededIds

TP = TopicPartition("t", 0)

SMALL = TopicConfig(segment_bytes=300, segment_index_bytes=240, index_interval_bytes=0)


def opened(tmp_path: Path, *names: str, files: FaultyFiles | None = None, clock: FakeClock | None = None) -> LocalTier:
    paths = [tmp_path / name for name in names or ("a", "b")]
    config = LogConfig(disk_reserve_bytes=0)
    return LocalTier.open(paths, clock=clock or FakeClock(), ids=SeededIds(3), files=files, config=config)


def values(logs: LocalTier, tp: TopicPartition = TP) -> list[bytes | None]:
    return [record.value for batch in logs.partition(tp).read_batches(0) for record in decode_records(batch)]


class Mortal(FaultyFiles):
    """A disk of a process that can be killed: its locks go with it."""

    def __init__(self) -> None:
        super().__init__()
        self._locks: set[int] = set()

    def open_lock(self, path: Path) -> int:
        handle = super().open_lock(path)
        self._locks.add(handle)
        return handle

    def close(self, handle: int) -> None:
        self._locks.discard(handle)
        super().close(handle)

    @contextlib.contextmanager
    def killed(self, nth: int) -> Iterator[None]:
        """The process dies at the ``nth`` effect of what follows, at the latest behind it."""
        self.fail = on_nth(nth, "*", PowerCut)
        with contextlib.suppress(PowerCut):
            yield
        for handle in list(self._locks):
            self.close(handle)
