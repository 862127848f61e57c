"""A log directory under repair: its two locks, and the place beside it for replaced files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tiered.clock import Clock, SystemClock
from tiered.errors import LocalIOError
from tiered.local.disk.directory_files import OffsetsFile, refuse_standby
from tiered.local.disk.files import Files, is_another_disk
from tiered.local.disk.lock import DirectoryLock
from tiered.local.disk.uploader_files import uploader_lock
from tiered.model import TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.repair.plan import Act
from tiered.store.base import Now, Steps
from tiered.store.steps import blocking


class RepairDirectory(NamedTuple):
    """A log directory. Replaced files are copied to ``{log_dir}.aside-{ms}``."""

    directory: Path
    files: Files

    def command(self, tp: TopicPartition) -> str:
        """Return the command that repairs a partition of this directory."""
        return f"tiered repair {tp.topic}:{tp.partition} --log-dir {self.directory}"

    @contextlib.contextmanager
    def locked(self, clock: Clock) -> Iterator[None]:
        """Hold the locks of the application and of the uploader. Raises LockedError, ConfigError for a standby."""
        with contextlib.ExitStack() as held:
            for lock in (DirectoryLock(self.directory, self.files), uploader_lock(self.directory, self.files)):
                lock.acquire(clock)
                held.callback(lock.release)
            refuse_standby(self.directory, self.files)
            yield

    def act(self, change: Callable[[int], None]) -> Act:
        """Return the act that calls ``change`` with the time in milliseconds, under both locks."""

        def locked(now_ms: int) -> None:
            with self.locked(SystemClock()):
                change(now_ms)

        def steps(_: object) -> Steps[None]:
            yield from blocking(partial(locked, (yield Now()).now_ms))

        return steps

    def move(self, paths: Collection[Path], now_ms: int) -> None:
        """Set files aside. Missing ones are skipped."""
        for path in paths:
            if self.files.state(path) is not None:
                self.keep(path, now_ms)
                self.files.unlink(path)
                self.files.sync_directory(path.parent)

    def keep(self, path: Path, now_ms: int) -> None:
        files = self.files
        target = self.directory.with_name(f"{self.directory.name}.aside-{now_ms}") / path.relative_to(self.directory)
        files.make_directory(target.parent)
        try:
            files.link(path, target)
        except LocalIOError as error:
            if not is_another_disk(error):
                raise
            self._copy(path, target)
        files.sync_directory(target.parent)

    def _copy(self, path: Path, target: Path) -> None:
        files = self.files
        with contextlib.ExitStack() as handles:
            source, copy = files.open_read(path), files.open_write(target)
            handles.callback(files.close, source)
            handles.callback(files.close, copy)
            at, buffer = 0, bytearray(READ_BYTES)
            while count := files.read_into(source, buffer, at):
                files.write_at(copy, memoryview(buffer)[:count], at)
                at += count
            files.sync(copy)

    def forget_offsets(self, gone: Collection[TopicPartition], *names: str) -> None:
        """Remove partitions from checkpoint files."""
        for name in names:
            offsets = OffsetsFile(self.directory, name, self.files)
            if self.files.state(offsets.path) is not None and not set(gone).isdisjoint(offsets.read()):
                offsets.write({tp: at for tp, at in offsets.read().items() if tp not in gone})
