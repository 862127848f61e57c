"""A log directory under repair: its two locks, the place beside it for replaced files, and ``repair rejoin``.

A log is fenced when another volume has claimed its partition, or when it is a copy that cannot prove to be the volume
that claimed. Its records from the committed end on were never in the bucket, or differ from those there now. A rejoin
starts it again at the bucket's end. Records only on its disk are set aside, not deleted::

    {log_dir}/flights-0/                     ->  {log_dir}.diverged-{ms}/flights-0/     every file, by rename
    claim, checkpoint entries of flights-0   ->  removed: the partition is a volume without records
    next open                                ->  claims, resumes at the committed end under a new leader epoch

The directory that is set aside can be read like any log: ``tiered cat flights --log-dir {log_dir}.diverged-{ms}``.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tiered.clock import Clock, SystemClock
from tiered.display import html_table
from tiered.errors import ConfigError, LocalIOError, NotFoundError
from tiered.format.local_names import partition_dir
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.claims import Claims
from tiered.local.disk.directory_files import (
    LOG_START_NAME,
    META_PROPERTIES_NAME,
    RECOVERY_POINT_NAME,
    REPLICATION_NAME,
    OffsetsFile,
    refuse_standby,
)
from tiered.local.disk.files import Files, is_another_disk
from tiered.local.disk.lock import DirectoryLock
from tiered.local.disk.partition_files import no_partition
from tiered.local.disk.topics import TOPICS_NAME
from tiered.local.disk.uploader_files import UploadCheckpoint, uploader_lock
from tiered.model import TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.repair.plan import Act
from tiered.store.base import Now, Steps
from tiered.store.steps import blocking


class RepairDirectory(NamedTuple):
    """Log directory that is being repaired. Replaced files are copied to ``{log_dir}.aside-{ms}``."""

    directory: Path
    files: Files

    def command(self, tp: TopicPartition) -> str:
        """Return the command that repairs a partition of this directory."""
        return f"tiered repair {tp.topic}:{tp.partition} --log-dir {self.directory}"

    @contextlib.contextmanager
    def locked(self, clock: Clock) -> Iterator[None]:
        """Hold the locks of the application and of the uploader.

        Raises LockedError if another process has one of them, and ConfigError for a standby's directory.
        """
        with contextlib.ExitStack() as held:
            for lock in (DirectoryLock(self.directory, self.files), uploader_lock(self.directory, self.files)):
                lock.acquire(clock)
                held.callback(lock.release)
            refuse_standby(self.directory, self.files)
            yield

    def act(self, change: Callable[[int], None]) -> Act:
        """Return an action's ``act``, which calls ``change`` with the time in milliseconds.

        Meanwhile ``act`` holds the locks of the application and of the uploader.
        """

        def locked(now_ms: int) -> None:
            with self.locked(SystemClock()):
                change(now_ms)

        def steps(_: object) -> Steps[None]:
            yield from blocking(partial(locked, (yield Now()).now_ms))

        return steps

    def move(self, paths: Collection[Path], now_ms: int) -> None:
        """Move files to ``{log_dir}.aside-{now_ms}``, the directory for replaced files. Missing files are skipped."""
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
        """Remove the entries of the partitions ``gone`` from the checkpoint files ``names``."""
        for name in names:
            offsets = OffsetsFile(self.directory, name, self.files)
            if self.files.state(offsets.path) is not None and not set(gone).isdisjoint(offsets.read()):
                offsets.write({tp: at for tp, at in offsets.read().items() if tp not in gone})


_IDENTITY = (META_PROPERTIES_NAME, TOPICS_NAME)


@dataclass(frozen=True, slots=True)
class Aside:
    """One partition to set aside. Only this disk has its offsets ``committed_end`` to ``end_offset``."""

    tp: TopicPartition
    committed_end: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RejoinPlan:
    """Plan or result of a rejoin. ``target``: the directory to which the partitions' files are moved."""

    directory: Path
    target: Path
    partitions: tuple[Aside, ...]

    def __repr__(self) -> str:
        return f"<RejoinPlan: {len(self.partitions)} partitions move to {str(self.target)!r}>"

    def _repr_html_(self) -> str:
        header = ("partition", "committed end", "end on this disk")
        rows = [(each.tp, each.committed_end, each.end_offset) for each in self.partitions]
        return html_table(f"Move to {self.target}", header, rows)


def plan_rejoin_steps(directory: Path, selected: Collection[TopicPartition], clock: Clock) -> Steps[RejoinPlan]:
    """Return the plan that moves the selected partitions aside. Reads only the disk.

    If none is selected: those that are fenced or end below the bucket's end. Raises ConfigError if none are,
    UnknownTopicError for a selected partition that the directory does not have.
    """
    return blocking(partial(_planned, directory, selected, clock))


def rejoin_steps(plan: RejoinPlan, clock: Clock, files: Files) -> Steps[None]:
    """Move the planned partitions aside, and remove their claims and their entries in checkpoints.

    A cancellation of the caller does not interrupt it. Raises LockedError if the log is open, NotFoundError if the
    directory does not exist. Raises ConfigError for a standby, and LocalIOError if a file cannot be moved.
    """
    return blocking(partial(_rejoin, plan, clock, files))


def _planned(directory: Path, selected: Collection[TopicPartition], clock: Clock) -> RejoinPlan:
    with LogView.open(directory, clock=clock) as log:
        uploads = log.uploads.read()
        present = set(log.partitions())
        usable = present - log.out_of_service.keys()
        # A crash between the steps leaves only the entry of the checkpoint, or of the claims.
        known = present | set(uploads) | set(log.claims.read())
        unknown = sorted(set(selected) - known)
        if unknown:
            raise no_partition(directory, unknown[0])
        ends = {tp: log.partition(tp).positions().end_offset for tp in selected or uploads if tp in usable}
        chosen = sorted(selected) or sorted(
            tp for tp in uploads if uploads[tp].fenced or ends.get(tp, uploads[tp].end_offset) < uploads[tp].end_offset
        )
        if not chosen:
            raise ConfigError(
                f"nothing to do: no partition in {directory} is fenced or ends below the bucket's end",
                hint="`tiered status` with the log directory and the bucket shows the partitions",
            )
        committed = {tp: uploads[tp].end_offset if tp in uploads else 0 for tp in chosen}
        aside = tuple(Aside(tp, committed[tp], ends.get(tp, committed[tp])) for tp in chosen)
    target = directory.with_name(f"{directory.name}.diverged-{clock.now_ms()}")
    return RejoinPlan(directory, target, aside)


def _rejoin(plan: RejoinPlan, clock: Clock, files: Files) -> None:
    if not files.is_directory(plan.directory):
        raise NotFoundError(f"there is no log directory {plan.directory}", hint="correct the path")
    disk, gone = RepairDirectory(plan.directory, files), {aside.tp for aside in plan.partitions}
    with disk.locked(clock):
        # Without this point an open after a crash does not take the directory that has moved for a lost one.
        disk.forget_offsets(gone, RECOVERY_POINT_NAME)
        _move(plan, files)
        claims, uploads = Claims(plan.directory, files), UploadCheckpoint(plan.directory, files)
        for tp in sorted(gone & set(claims.read())):
            claims.write(tp, token=None, last_append=None, restored_from=None)
        disk.forget_offsets(gone, LOG_START_NAME, REPLICATION_NAME)
        uploads.write({tp: upload for tp, upload in uploads.read().items() if tp not in gone})


def _move(plan: RejoinPlan, files: Files) -> None:
    """Rename the partitions: each byte is in one place or the other. A copy of the identity makes it a readable log."""
    files.make_directory(plan.target)
    for name in _IDENTITY:
        if files.state(plan.directory / name) is not None:
            files.replace(plan.target / name, files.read(plan.directory / name))
    for aside in plan.partitions:
        source = plan.directory / partition_dir(aside.tp)
        if files.is_directory(source):
            try:
                files.rename(source, plan.target / source.name)
            except LocalIOError as error:
                if is_another_disk(error):
                    error.hint = _by_hand(plan, aside.tp)
                raise
    files.sync_directory(plan.target)
    files.sync_directory(plan.directory)


def _by_hand(plan: RejoinPlan, tp: TopicPartition) -> str:
    """Return the next step where the log directory is a file system of its own, and no rename leads out of it."""
    places = (plan.directory / partition_dir(tp), plan.target, plan.directory)
    source, target, directory = (shlex.quote(str(place)) for place in places)
    return (
        f"{plan.directory} is a mount point: move the partition with `mv {source} {target}`, then complete the rejoin "
        f"with `tiered repair rejoin {tp.topic}:{tp.partition} --log-dir {directory}`; its files stay in {plan.target}"
    )
