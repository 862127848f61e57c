"""Restore of a log directory from the bucket alone.

::

    root (read once) -> rows chosen -> .log and .idx -> temporary sibling directory -> rename to its name
                                       size, CRC32C, every batch and index checked

The ``.log`` files are byte-identical to the uploaded ones. Only the last one of a log that ends inside it
(``restore.plan``) is cut, between two batches. The directory is a *new volume* with an id of its own. For each
partition it records the root version and end that it was restored from, by which the catalog knows that it may continue
the log (``plan.ownership``). A directory with a past state or another name records no bucket. The final name appears
only after everything is on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tiered.check.findings import Passed
from tiered.clock import Clock, IdSource
from tiered.config import LogConfig
from tiered.display import html_table
from tiered.errors import ConfigError, LocalIOError, RemoteUnavailableError, TieredError
from tiered.format.local_names import partition_dir
from tiered.format.positions import PositionsCopy
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.directory_files import ensure_volume
from tiered.local.disk.files import Files, is_another_disk
from tiered.local.disk.topics import write_topics
from tiered.model import Position, TopicPartition
from tiered.plan.root_lower_bounds import RootLowerBounds
from tiered.remote.pins import Pin
from tiered.remote.positions import load_positions
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import AsOf, Past
from tiered.restore.plan import PartitionRestore, RestoreOptions, plan_steps
from tiered.restore.pull import PartitionPull, add_positions, need_space, topic_infos, write_checkpoints
from tiered.store.base import Blocking, Emit, Steps
from tiered.store.location import StoreLocation
from tiered.store.steps import blocking


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Result of a restore; with ``dry_run`` its plan. ``notes``: texts about rebuilt indexes and skipped topics.

    ``volume_id``: id of the new directory, empty if none was made. ``skipped``: the directory was not empty, and
    ``if_empty`` was set.
    """

    directory: Path
    plans: tuple[PartitionRestore, ...]
    volume_id: str = ""
    notes: tuple[str, ...] = ()
    skipped: bool = False
    dry_run: bool = False

    def __repr__(self) -> str:
        done = "skipped" if self.skipped else f"{self.segments} segments, {self.size_bytes} bytes"
        return f"<RestoreReport {str(self.directory)!r}: {done}{' (dry run)' if self.dry_run else ''}>"

    def _repr_html_(self) -> str:
        header = ("partition", "start", "end", "segments", "bytes")
        rows = [(one.tp, one.start_offset, one.end_offset, len(one.rows), one.size_bytes) for one in self.plans]
        return html_table(f"Restore into {self.directory}", header, rows)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all ``.log`` files of the restore."""
        return sum(plan.size_bytes for plan in self.plans)

    @property
    def segments(self) -> int:
        """Return the number of segments of the restore."""
        return sum(len(plan.rows) for plan in self.plans)


def restore_steps(
    url: str, directory: Path, options: RestoreOptions, *, clock: Clock, ids: IdSource, files: Files
) -> Steps[RestoreReport]:
    """Build ``directory`` from the store at ``url``. Emits progress. An error leaves nothing on disk.

    Raises ConfigError for wrong options, or if the directory is not empty (unless ``if_empty``). Raises
    UnknownTopicError, NotFoundError if the bucket is empty or has no version ``as_of``, DiskFullError. Raises
    OffsetOutOfRangeError if ``until_offset`` is below the log's start, CorruptionError for damage.
    """
    directory = directory.absolute()
    if url.startswith("file://"):
        yield Blocking(partial(StoreLocation.parse(url, environ={}).refuse_overlap, directory))
    if (yield from blocking(partial(_is_taken, directory, files))):
        if options.if_empty:
            return RestoreReport(directory, (), skipped=True, dry_run=options.dry_run)
        raise ConfigError(
            f"{directory} is not empty, and a restore writes only into a new or empty directory",
            hint=f"name a new directory, or move this one aside first (mv {directory} {directory}.old); "
            "--if-empty skips the restore without an error",
        )
    plans, notes = yield from plan_steps(url, options, ids)
    if options.dry_run:
        return RestoreReport(directory, plans, notes=notes, dry_run=True)
    yield Blocking(partial(need_space, directory, sum(plan.size_bytes for plan in plans), files))
    build = _Build(directory, plans, apart=options.apart, clock=clock, ids=ids, files=files)
    try:
        if options.pin:
            yield from build.hold()
        volume_id = yield from build.run()
    except TieredError:
        yield from build.release()
        raise
    yield from build.release()
    return RestoreReport(directory, tuple(build.plans), volume_id=volume_id, notes=(*notes, *build.notes))


def _is_taken(directory: Path, files: Files) -> bool:
    return bool(files.names(directory)) if files.is_directory(directory) else files.state(directory) is not None


class _Build:
    """One running restore, in a temporary sibling of the directory. ``plans`` get the number of aborted transactions.

    ``apart``: the directory becomes an independent log, which does not continue the one in the bucket.
    """

    def __init__(
        self,
        directory: Path,
        plans: Sequence[PartitionRestore],
        *,
        apart: bool,
        clock: Clock,
        ids: IdSource,
        files: Files,
    ) -> None:
        self.plans = list(plans)
        self.notes: list[str] = []
        self._directory = directory
        self._apart = apart
        self._clock = clock
        self._ids = ids
        self._files = files
        self._pins: dict[TopicPartition, Pin] = {}
        self._positions: dict[str, dict[TopicPartition, Position]] = {}
        self._temporary = directory.with_name(f".{directory.name}.restore-{ids.uid()[:12]}")

    def hold(self) -> Steps[None]:
        """Pin the objects to fetch. Raises RemoteUnavailableError if some may be deleted already."""
        for plan in self.plans:
            if not plan.rows or plan.pinned is None:
                continue
            source, number = plan.source, plan.tp.partition
            view = RootView(source.topic_id, number, source.name, RootLowerBounds(made=True))
            past = Past(view, AsOf(version=plan.pinned.version)) if plan.taken is not None else None
            pin = self._pins[plan.tp] = Pin(source.name, source.topic_id, number, set())
            held = yield from pin.hold(plan.pinned, view.pin if past is None else past.pin)
            if held.version != plan.pinned.version:
                raise RemoteUnavailableError(
                    f"{plan.tp}: garbage collection deleted objects of version {plan.pinned.version} during the "
                    "restore",
                    hint="run the command again: it then restores the newest version",
                )

    def release(self) -> Steps[None]:
        """Delete the pins. Never raises."""
        for pin in self._pins.values():
            yield from pin.drop()

    def run(self) -> Steps[str]:
        """Build the directory, rename it to its name and return the new volume id."""
        yield Emit(Passed(0, "", sum(plan.size_bytes for plan in self.plans)))
        try:
            yield Blocking(self._make_temporary)
            for plan in self.plans:
                yield from self._partition(plan)
            return (yield from blocking(self._finish))
        except TieredError:
            yield Blocking(self._give_up)
            raise
        except BaseException:  # also if the driver closes these steps: requests are not possible any more
            self._give_up()
            raise

    def _make_temporary(self) -> None:
        """Make the temporary directory. If the final directory exists, test that a rename can replace it.

        Raises ConfigError for a mount point, which cannot be replaced, before anything is fetched.
        """
        files = self._files
        files.make_directory(self._temporary)
        if not files.is_directory(self._directory):
            return
        try:
            files.rename(self._temporary, self._directory)
        except LocalIOError as error:
            if not is_another_disk(error):
                raise
            raise ConfigError(
                f"{self._directory} is a mount point: a restore is built in a sibling directory and cannot be "
                "renamed over it",
                hint=f"name a folder in it: {self._directory / 'log'}",
            ) from error
        files.make_directory(self._temporary)

    def _give_up(self) -> None:
        with contextlib.suppress(TieredError, OSError):
            _remove_tree(self._files, self._temporary)

    def _finish(self) -> str:
        volume_id = self._root_files()
        if self._apart or self._positions:
            self._settle()
        self._files.sync_directory(self._temporary)  # before the rename, which publishes the directory
        # An empty directory of that name is replaced by the rename; a full one makes it fail.
        self._files.rename(self._temporary, self._directory)
        self._files.sync_directory(self._directory.parent)  # makes the rename durable
        return volume_id

    def _settle(self) -> None:
        """Commit the positions of groups. Abort the transactions that are open at the end of an independent log.

        That log has no coordinator.
        """
        with LocalLog.open(self._temporary, clock=self._clock, ids=self._ids, files=self._files) as log:
            for group, positions in self._positions.items():
                log.transactions.positions.commit(group, positions)
            for number, plan in enumerate(self.plans if self._apart else ()):
                aborted = log.transactions.abort_orphans(plan.tp, any_producer=True)
                if aborted:
                    self.plans[number] = replace(plan, end=plan.end_offset + aborted, aborted=aborted)

    def _partition(self, plan: PartitionRestore) -> Steps[None]:
        path = self._temporary / partition_dir(plan.tp)
        pull = PartitionPull(self._files, path, plan, pin=self._pins.get(plan.tp))
        yield from pull.run((yield from pull.decide()))
        self.notes += pull.notes
        yield from self._load_positions(plan)

    def _load_positions(self, plan: PartitionRestore) -> Steps[None]:
        """Read the positions of groups from the bucket. A position outside the log is moved to its start or end."""
        (copy,) = yield from load_positions([(plan.source.topic_id, plan.tp.partition)])
        start = plan.start_offset
        if plan.pinned is not None and not self._apart:
            start = plan.pinned.start_offset  # older records stay readable in the bucket
        if isinstance(copy, PositionsCopy) and copy.groups and plan.tp.topic != plan.source.name:
            self.notes.append(f"{plan.tp}: positions of {len(copy.groups)} groups in {plan.source.name} are left out")
            return
        self.notes += add_positions(self._positions, plan.tp, copy, start, plan.end_offset)

    def _root_files(self) -> str:
        files, root = self._files, self._temporary
        volume = ensure_volume(root, files, self._ids, LogConfig())
        write_topics(root, files, topic_infos(plan.entry for plan in self.plans))
        write_checkpoints(root, files, self.plans, apart=self._apart)
        return str(volume)


def _remove_tree(files: Files, path: Path) -> None:
    for name in files.names(path):
        if files.is_directory(path / name):
            _remove_tree(files, path / name)
        else:
            files.unlink(path / name)
    files.remove_directory(path)
