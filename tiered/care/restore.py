"""``restore``: a log directory from the bucket alone.

::

    root (read once) -> rows chosen -> .log and .idx -> temporary sibling directory -> rename to its name
                                       size, CRC32C, every batch and index checked

The ``.log`` files are byte-identical to those that were uploaded. The directory is a *new volume*: it has an id of its
own and, for each partition, the root version and end that it was restored from, which is how the catalog knows that
it may continue the log (``plan.lifecycle``). Nothing is visible under the final name before everything is on disk.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

from tiered.care.check_registry import need_all_named, survey
from tiered.care.inspection import SideFileCheck
from tiered.care.restore_segment import SegmentRestore
from tiered.clock import IdSource
from tiered.config import TopicConfig
from tiered.errors import (
    ConfigError,
    CorruptionError,
    DiskFullError,
    NotFoundError,
    TieredError,
    UnknownTopicError,
)
from tiered.findings import Passed
from tiered.format.checkpoint import (
    MetaProperties,
    encode_epochs,
    encode_meta_properties,
    encode_partition_metadata,
    encode_uuid,
)
from tiered.format.keys import FLAG_HOLE, index_name, log_name, partition_dir, snapshot_name, time_index_name
from tiered.format.root import STATE_DELETING
from tiered.local.disk.checkpoints import (
    LOG_START_NAME,
    META_PROPERTIES_NAME,
    RECOVERY_POINT_NAME,
    REPLICATION_NAME,
    OffsetsFile,
    mark_clean,
)
from tiered.local.disk.claims import Claims
from tiered.local.disk.files import Files
from tiered.local.disk.topics import TopicInfo, write_topics
from tiered.local.disk.uploads import PartitionUpload, UploadCheckpoint
from tiered.model import Row, TopicPartition
from tiered.plan.known import Known
from tiered.plan.side_files import NO_PRODUCERS
from tiered.remote.root_view import RootView
from tiered.remote.snapshot import Snapshot
from tiered.remote.topics import TopicEntry, list_topics, load_topic
from tiered.store.base import Blocking, Emit, Steps, blocking

SPARE_BYTES = 64 * 1024 * 1024
"""Free space that has to be left after a restore."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What to bring back. ``selected`` empty: everything; a pair without a partition: the whole topic.

    ``newest_bytes`` (of each partition) and ``since_ms`` leave older segments in the bucket, where a log that is
    opened with its remote tier still reads them. ``if_empty``: a directory that holds something is left alone.
    """

    selected: tuple[tuple[str, int | None], ...] = ()
    newest_bytes: int | None = None
    since_ms: int | None = None
    if_empty: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What one partition gets: ``rows`` are contiguous and end at ``next_offset``. ``pinned`` None: never uploaded."""

    tp: TopicPartition
    entry: TopicEntry
    pinned: Snapshot | None
    rows: tuple[Row, ...]

    @property
    def start_offset(self) -> int:
        """First offset of the directory."""
        if self.pinned is None:
            return 0
        return max(self.rows[0].base, self.pinned.start_offset) if self.rows else self.pinned.next_offset

    @property
    def end_offset(self) -> int:
        """Where the log goes on."""
        return self.pinned.next_offset if self.pinned is not None else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the ``.log`` files."""
        return sum(row.size for row in self.rows)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was, or with ``dry_run`` would be, restored. ``notes``: indexes that were rebuilt, topics passed over."""

    directory: Path
    plans: tuple[PartitionPlan, ...]
    volume_id: str = ""
    notes: tuple[str, ...] = ()
    skipped: bool = False
    dry_run: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of all ``.log`` files."""
        return sum(plan.size_bytes for plan in self.plans)

    @property
    def segments(self) -> int:
        """Number of segments."""
        return sum(len(plan.rows) for plan in self.plans)


def choose_rows(
    pinned: Snapshot, *, newest_bytes: int | None = None, since_ms: int | None = None
) -> Steps[tuple[Row, ...]]:
    """The newest rows: from the first that reaches ``since_ms`` on, and within ``newest_bytes``, but at least one."""
    at = 0
    if since_ms is not None:
        first = yield from pinned.reaching(since_ms)
        if first is None:
            return ()
        at = first.base
    chosen: deque[Row] = deque()
    total = 0
    while len(rows := (yield from pinned.piece(at))):
        for row in rows:
            chosen.append(row)
            total += row.size
            while newest_bytes is not None and total > newest_bytes and len(chosen) > 1:
                total -= chosen.popleft().size
        at = rows.end_offset
    return tuple(chosen)


def restore_steps(
    url: str, directory: Path, options: RestoreOptions, *, ids: IdSource, files: Files
) -> Steps[RestoreReport]:
    """Builds ``directory`` from the store at ``url``. Emits what was fetched. On an error nothing is left behind."""
    directory = directory.absolute()
    if (yield from blocking(partial(_is_taken, directory, files))):
        if options.if_empty:
            return RestoreReport(directory, (), skipped=True, dry_run=options.dry_run)
        raise ConfigError(
            f"{directory} exists and is not empty: a restore never writes into what is there",
            hint=f"name a new directory, or move this one aside first (mv {directory} {directory}.old);"
            " --if-empty makes this no error, for scripts that run at each start",
        )
    plans, notes = yield from _plan(url, options)
    if options.dry_run:
        return RestoreReport(directory, plans, notes=notes, dry_run=True)
    yield Blocking(partial(_need_space, directory, plans, files))
    build = _Build(directory, plans, ids=ids, files=files)
    volume_id = yield from build.run()
    return RestoreReport(directory, plans, volume_id=volume_id, notes=(*notes, *build.notes))


def _plan(url: str, options: RestoreOptions) -> Steps[tuple[tuple[PartitionPlan, ...], tuple[str, ...]]]:
    plans: list[PartitionPlan] = []
    notes: list[str] = []
    listed = yield from survey(notes)  # before the registry is read, so that what is registered meanwhile is named
    entries = yield from _entries(url, options.selected, listed)
    yield from need_all_named(listed, [entry for entry, _ in entries], {topic for topic, _ in options.selected})
    for entry, wanted in entries:
        if entry.state == STATE_DELETING:
            notes.append(f"topic {entry.name} is being deleted and was passed over")
            continue
        for partition in range(entry.partitions):
            tp = TopicPartition(entry.name, partition)
            pinned = yield from _pin(entry, partition)
            rows: tuple[Row, ...] = ()
            if pinned is not None and (wanted is None or partition in wanted):
                rows = yield from choose_rows(pinned, newest_bytes=options.newest_bytes, since_ms=options.since_ms)
            plans.append(PartitionPlan(tp, entry, pinned, rows))
    return tuple(plans), tuple(notes)


def _pin(entry: TopicEntry, partition: int) -> Steps[Snapshot | None]:
    try:
        known = Known(made=entry.roots)
        return (yield from RootView(entry.topic_id, partition, entry.name, known).pin())
    except CorruptionError as damage:
        damage.hint = damage.hint or "name the other topics to restore them, and run check for the whole picture"
        raise


def _entries(
    url: str, selected: Sequence[tuple[str, int | None]], listed: Collection[tuple[UUID, int]]
) -> Steps[list[tuple[TopicEntry, frozenset[int] | None]]]:
    """The topics to restore, each with the partitions whose records are wanted (None: all)."""
    if not selected:
        entries = yield from list_topics()
        if not entries:
            yield from need_all_named(listed, (), ())
            raise NotFoundError(f"{url} holds no topics", hint="correct the URL: bucket and prefix")
        return [(entry, None) for entry in entries]
    chosen: list[tuple[TopicEntry, frozenset[int] | None]] = []
    for name in dict.fromkeys(topic for topic, _ in selected):
        entry = yield from load_topic(name)
        if entry is None:
            raise UnknownTopicError(f"there is no topic {name!r} in {url}", hint="see `tiered topics list`")
        numbers = [partition for topic, partition in selected if topic == name]
        for partition in numbers:
            if partition is not None and partition >= entry.partitions:
                raise UnknownTopicError(
                    f"topic {name} has no partition {partition}", hint=f"its partitions are 0 to {entry.partitions - 1}"
                )
        wanted = None if None in numbers else frozenset(number for number in numbers if number is not None)
        chosen.append((entry, wanted))
    return chosen


def _is_taken(directory: Path, files: Files) -> bool:
    if files.is_directory(directory):
        return bool(files.names(directory))
    return files.state(directory) is not None


def _need_space(directory: Path, plans: Sequence[PartitionPlan], files: Files) -> None:
    place = directory.parent
    while not files.is_directory(place):
        place = place.parent
    needed = sum(plan.size_bytes for plan in plans) + SPARE_BYTES
    free = files.space(place).free
    if needed > free:
        raise DiskFullError(
            f"{directory} needs {needed} bytes, {place} has {free}",
            hint="restore less with --newest or --since; older segments stay readable in the bucket",
        )


class _Build:
    """One restore under way, in a temporary sibling of the directory."""

    def __init__(self, directory: Path, plans: Sequence[PartitionPlan], *, ids: IdSource, files: Files) -> None:
        self._directory = directory
        self._plans = plans
        self._ids = ids
        self._files = files
        self._temporary = directory.with_name(f".{directory.name}.restore-{ids.uid()[:12]}")
        self.notes: list[str] = []

    def run(self) -> Steps[str]:
        """Builds and renames; gives the new volume id."""
        yield Emit(Passed(0, "", sum(plan.size_bytes for plan in self._plans)))
        try:
            yield Blocking(partial(self._files.make_directory, self._temporary))
            for plan in self._plans:
                yield from self._partition(plan)
            return (yield from blocking(self._finish))
        except TieredError:
            yield Blocking(self._give_up)
            raise
        except BaseException:  # also the end of whoever drives: nobody takes a request any more
            self._give_up()
            raise

    def _give_up(self) -> None:
        with contextlib.suppress(TieredError, OSError):
            _remove_tree(self._files, self._temporary)

    def _finish(self) -> str:
        volume_id = self._root_files()
        self._files.sync_directory(self._temporary)
        # An empty directory of that name is replaced by the rename; a full one makes it fail.
        self._files.rename(self._temporary, self._directory)
        self._files.sync_directory(self._directory.parent)
        return volume_id

    def _partition(self, plan: PartitionPlan) -> Steps[None]:
        path = self._temporary / partition_dir(plan.tp)
        yield Blocking(partial(self._begin, plan, path))
        beside = SideFileCheck()
        for row in plan.rows:
            if row.flags & FLAG_HOLE:
                continue
            topic_id = plan.entry.topic_id
            segment = SegmentRestore(self._files, path, tp=plan.tp, topic_id=topic_id, row=row, beside=beside)
            self.notes += yield from segment.run()
        yield Blocking(partial(self._end, plan, path))

    def _begin(self, plan: PartitionPlan, path: Path) -> None:
        self._files.make_directory(path)
        self._files.replace(path / "partition.metadata", encode_partition_metadata(plan.entry.topic_id).encode())

    def _end(self, plan: PartitionPlan, path: Path) -> None:
        files = self._files
        if files.state(path / snapshot_name(plan.end_offset)) is None:
            # Nobody wrote, as far as is known: else the first open would have to ask all of the log.
            files.replace(path / snapshot_name(plan.end_offset), NO_PRODUCERS)
        # The last segment is sealed, as it was: without an empty one behind it, appends would go into it.
        for name in (log_name(plan.end_offset), index_name(plan.end_offset), time_index_name(plan.end_offset)):
            files.replace(path / name, b"")
        lineage = plan.pinned.root.lineage if plan.pinned is not None else ()
        # The newest epoch may have been claimed without a record: then this log has not seen it.
        epochs = [epoch for epoch in lineage if epoch.start_offset < plan.end_offset]
        files.replace(path / "leader-epoch-checkpoint", encode_epochs(epochs).encode())
        files.sync_directory(path)

    def _root_files(self) -> str:
        files, root = self._files, self._temporary
        volume = self._ids.uuid()
        meta = MetaProperties(encode_uuid(self._ids.uuid()), 0, volume)
        files.replace(root / META_PROPERTIES_NAME, encode_meta_properties(meta).encode())
        entries = {plan.entry.name: plan.entry for plan in self._plans}
        write_topics(
            root,
            files,
            {
                name: TopicInfo(name, entry.topic_id, entry.partitions, TopicConfig.from_properties(entry.config))
                for name, entry in entries.items()
            },
        )
        claims, uploads = Claims(root, files), {}
        for plan in self._plans:
            if plan.pinned is not None:
                claims.write(plan.tp, restored_from=(plan.pinned.version, plan.pinned.next_offset))
                uploads[plan.tp] = PartitionUpload(plan.end_offset, start_offset=plan.pinned.start_offset)
        UploadCheckpoint(root, files).write(uploads)
        ends = {plan.tp: plan.end_offset for plan in self._plans}
        OffsetsFile(root, RECOVERY_POINT_NAME, files).write(ends)
        OffsetsFile(root, REPLICATION_NAME, files).write(ends)
        OffsetsFile(root, LOG_START_NAME, files).write({plan.tp: plan.start_offset for plan in self._plans})
        mark_clean(root, files)
        return str(volume)


def _remove_tree(files: Files, path: Path) -> None:
    for name in files.names(path):
        if files.is_directory(path / name):
            _remove_tree(files, path / name)
        else:
            files.unlink(path / name)
    files.remove_directory(path)
