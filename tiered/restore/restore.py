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
from uuid import UUID

from tiered.check.findings import Findings, Passed, Severity
from tiered.check.inspection import Expectations, LogInspection, SideFileCheck, fetch_log
from tiered.clock import Clock, IdSource
from tiered.display import html_table
from tiered.errors import (
    ConfigError,
    CorruptionError,
    DiskFullError,
    LocalIOError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.bundle import HEAD_BYTES, MAX_BUNDLE_BYTES, decode_bundle
from tiered.format.checkpoint import (
    MetaProperties,
    encode_epochs,
    encode_meta_properties,
    encode_partition_metadata,
    encode_uuid,
)
from tiered.format.crc import crc32c
from tiered.format.keys import (
    FLAG_ABORTED_TXNS,
    FLAG_HOLE,
    FLAG_MAINTAINER,
    FLAG_STAGED,
    SNAPSHOT_SUFFIX,
    index_key,
    index_name,
    log_name,
    partition_dir,
    segment_key,
    snapshot_name,
    time_index_name,
    txn_index_name,
)
from tiered.format.segment_stats import SegmentStats
from tiered.format.txn_index import TXN_ENTRY_BYTES
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.checkpoints import (
    LOG_START_NAME,
    META_PROPERTIES_NAME,
    RECOVERY_POINT_NAME,
    OffsetsFile,
    mark_clean,
)
from tiered.local.disk.claims import Claims
from tiered.local.disk.files import Files, is_another_disk
from tiered.local.disk.names import SPARSE_NAME
from tiered.local.disk.topics import TopicInfo, write_topics
from tiered.local.disk.uploader_files import PartitionUpload, UploadCheckpoint
from tiered.local.segment.cut import carry_out_cut, find_cut
from tiered.local.segment.indexes import rebuild_indexes, store_indexes
from tiered.local.segment.scan import LogFile
from tiered.local.segment.seal import SEAL_SUFFIX, write_note
from tiered.local.segment.sealed import FileSource
from tiered.model import Row, SealedIndexes, TopicPartition
from tiered.plan.root_lower_bounds import RootLowerBounds
from tiered.plan.side_files import NO_PRODUCERS, SideFileVerdict
from tiered.remote.assembly import SegmentScan
from tiered.remote.cache import ByteCache
from tiered.remote.lookup import SegmentLookup
from tiered.remote.pins import Pin
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import AsOf, Past
from tiered.restore.plan import PartitionRestore, RestoreOptions, plan_steps
from tiered.store.base import Blocking, Emit, Get, Object, Steps, blocking
from tiered.store.location import StoreLocation

_CUT_FIELDS = ("crc", "records", "min_ts", "max_ts", "leader_epoch")
"""Fields of a row that change when its segment is cut."""

FETCH_ATTEMPTS = 2
"""Fetches of a damaged body before its object counts as damaged."""

INDEX_INTERVAL_BYTES = 4096
"""Interval of a rebuilt offset index, Kafka's default."""

SPARE_BYTES = 64 * 1024 * 1024
"""Free space that a restore must leave."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Result of a restore, or with ``dry_run`` its plan. ``notes``: rebuilt indexes, skipped topics."""

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
        """Return the bytes of all ``.log`` files."""
        return sum(plan.size_bytes for plan in self.plans)

    @property
    def segments(self) -> int:
        """Return the number of segments."""
        return sum(len(plan.rows) for plan in self.plans)


def restore_steps(
    url: str, directory: Path, options: RestoreOptions, *, clock: Clock, ids: IdSource, files: Files
) -> Steps[RestoreReport]:
    """Build ``directory`` from the store at ``url``. Emits progress. An error leaves nothing on disk."""
    directory = directory.absolute()
    if url.startswith("file://"):
        yield Blocking(partial(StoreLocation.parse(url, environ={}).refuse_overlap, directory))
    if (yield from blocking(partial(_is_taken, directory, files))):
        if options.if_empty:
            return RestoreReport(directory, (), skipped=True, dry_run=options.dry_run)
        raise ConfigError(
            f"{directory} exists and is not empty: a restore never writes into what is there",
            hint=f"name a new directory, or move this one aside first (mv {directory} {directory}.old);"
            " --if-empty makes this no error, for scripts that run at each start",
        )
    plans, notes = yield from plan_steps(url, options, ids)
    if options.dry_run:
        return RestoreReport(directory, plans, notes=notes, dry_run=True)
    yield Blocking(partial(_need_space, directory, plans, files))
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


def leaves_out(plan: PartitionRestore) -> bool:
    """Return True if offsets may have no record. The directory then gets the file ``SPARSE_NAME``.

    Settings do not show it: data was lost and given up, or the topic was compacted before its settings changed.
    """
    if plan.pinned is not None and plan.pinned.root.cleaned:
        return True
    return any(row.flags & (FLAG_HOLE | FLAG_MAINTAINER) or row.records < row.next - row.base for row in plan.rows)


def _is_taken(directory: Path, files: Files) -> bool:
    return bool(files.names(directory)) if files.is_directory(directory) else files.state(directory) is not None


def _need_space(directory: Path, plans: Sequence[PartitionRestore], files: Files) -> None:
    place = directory.parent
    while not files.is_directory(place):
        place = place.parent
    needed = sum(plan.size_bytes for plan in plans) + SPARE_BYTES
    space = files.space(place)
    if space is not None and needed > space.free:
        raise DiskFullError(
            f"{directory} needs {needed} bytes, {place} has {space.free}",
            hint="restore less with --newest or --from; older segments stay readable in the bucket",
        )


class _Build:
    """One running restore, in a temporary sibling of the directory. ``plans`` get the aborted transactions."""

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
        self._temporary = directory.with_name(f".{directory.name}.restore-{ids.uid()[:12]}")

    def hold(self) -> Steps[None]:
        """Pin the objects to fetch. Raises RemoteUnavailableError if garbage collection has passed a plan's version."""
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
                    f"{plan.tp}: a collection has passed version {plan.pinned.version}, by which it was to be restored",
                    hint="try again: the newest version is restored then",
                )

    def release(self) -> Steps[None]:
        """End the pins. Never raises."""
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
        """Make the temporary directory. Replace an empty directory of the final name by one as empty now.

        A mount point cannot be replaced. This attempt reports it before anything is fetched.
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
                f"{self._directory} is a file system of its own (a mount point): a restore is built beside it, and "
                "cannot take its place",
                hint=f"name a folder in it: {self._directory / 'log'}",
            ) from error
        files.make_directory(self._temporary)

    def _give_up(self) -> None:
        with contextlib.suppress(TieredError, OSError):
            _remove_tree(self._files, self._temporary)

    def _finish(self) -> str:
        volume_id = self._root_files()
        if self._apart:
            self._abort_open()
        self._files.sync_directory(self._temporary)  # before the rename, which publishes the directory
        # An empty directory of that name is replaced by the rename; a full one makes it fail.
        self._files.rename(self._temporary, self._directory)
        self._files.sync_directory(self._directory.parent)  # makes the rename durable
        return volume_id

    def _abort_open(self) -> None:
        """Abort the transactions that are open at the end of an independent log, which has no coordinator."""
        with LocalLog.open(self._temporary, clock=self._clock, ids=self._ids, files=self._files) as log:
            for number, plan in enumerate(self.plans):
                aborted = log.transactions.abort_orphans(plan.tp, whoever=True)
                if aborted:
                    self.plans[number] = replace(plan, end=plan.end_offset + aborted, aborted=aborted)

    def _partition(self, plan: PartitionRestore) -> Steps[None]:
        path = self._temporary / partition_dir(plan.tp)
        yield Blocking(partial(self._start, plan, path))
        beside = SideFileCheck()
        pin = self._pins.get(plan.tp)
        for row in plan.rows:
            if row.flags & FLAG_HOLE:
                continue
            if pin is not None:
                yield from pin.keep()
            segment = _Segment(self._files, path, plan.tp, plan.source.topic_id, row, beside)
            if row.next <= plan.end_offset:
                self.notes += yield from segment.run()
            else:
                self.notes += yield from segment.run_until(plan.end_offset, plan.before)
        producers = b""
        if not plan.rows and plan.pinned is not None and plan.end_offset == plan.pinned.next_offset:
            lookup = SegmentLookup(plan.tp, plan.source.topic_id, ByteCache())
            producers = yield from lookup.producer_snapshot(plan.pinned)  # the log was trimmed to its end
        yield Blocking(partial(self._end, plan, path, producers))

    def _start(self, plan: PartitionRestore, path: Path) -> None:
        self._files.make_directory(path)
        if leaves_out(plan):
            self._files.replace(path / SPARSE_NAME, b"")
        self._files.replace(path / "partition.metadata", encode_partition_metadata(plan.entry.topic_id).encode())

    def _end(self, plan: PartitionRestore, path: Path, producers: bytes) -> None:
        files = self._files
        if files.state(path / snapshot_name(plan.end_offset)) is None:
            # No producers are known. Without a snapshot the first open would read the whole log to learn that.
            # A range that compaction emptied has no snapshot of its own: the one before it is valid.
            emptied = bool(plan.rows and plan.rows[-1].flags & FLAG_HOLE)
            found = [name for name in files.names(path) if emptied and name.endswith(SNAPSHOT_SUFFIX)]
            newest = max(found, default="")
            told = files.read(path / newest) if newest else producers or NO_PRODUCERS
            files.replace(path / snapshot_name(plan.end_offset), told)
        # The last segment stays sealed: appends go into the empty one after it.
        for name in (log_name(plan.end_offset), index_name(plan.end_offset), time_index_name(plan.end_offset)):
            files.replace(path / name, b"")
        lineage = plan.pinned.root.lineage if plan.pinned is not None else ()
        # The newest epoch may have no records: such an epoch is not part of this log.
        epochs = [epoch for epoch in lineage if epoch.start_offset < plan.end_offset]
        files.replace(path / "leader-epoch-checkpoint", encode_epochs(epochs).encode())
        files.sync_directory(path)

    def _root_files(self) -> str:
        files, root = self._files, self._temporary
        volume = self._ids.uuid()
        meta = MetaProperties(encode_uuid(self._ids.uuid()), 0, volume)
        files.replace(root / META_PROPERTIES_NAME, encode_meta_properties(meta).encode())
        entries = {plan.entry.name: plan.entry for plan in self.plans}
        configs = {name: entry.settings for name, entry in entries.items()}
        infos = {n: TopicInfo(n, entry.topic_id, entry.partitions, configs[n]) for n, entry in entries.items()}
        write_topics(root, files, infos)
        claims, uploads = Claims(root, files), {}
        for plan in self.plans:
            if plan.pinned is not None and not self._apart:  # an independent log has no bucket to continue
                claims.write(plan.tp, restored_from=(plan.pinned.version, plan.pinned.next_offset))
                uploads[plan.tp] = PartitionUpload(plan.end_offset, start_offset=plan.pinned.start_offset)
        UploadCheckpoint(root, files).write(uploads)
        ends = {plan.tp: plan.end_offset for plan in self.plans}
        OffsetsFile(root, RECOVERY_POINT_NAME, files).write(ends)
        OffsetsFile(root, LOG_START_NAME, files).write({plan.tp: plan.start_offset for plan in self.plans})
        mark_clean(root, files)
        return str(volume)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Fetch of one segment onto the disk, byte for byte, with indexes from the bundle or rebuilt."""

    files: Files
    directory: Path
    tp: TopicPartition
    topic_id: UUID
    row: Row
    beside: SideFileCheck
    is_cut: bool = False

    @property
    def _key(self) -> str:
        return segment_key(self.topic_id, self.tp.partition, self.row)

    @property
    def _path(self) -> Path:
        return self.directory / log_name(self.row.base)

    def run(self) -> Steps[list[str]]:
        """Fetch, check and write everything. Return notes on what was rebuilt. Raises CorruptionError."""
        stored = yield from self._fetch_log()
        indexes, why = yield from self._bundle()
        return (yield from blocking(partial(stored._finish_segment, indexes, why)))

    def run_until(self, end: int, before: Row | None) -> Steps[list[str]]:
        """Restore the part of the segment below ``end``, where a batch begins. Return notes on what was rebuilt.

        ``before``: the last segment before this one that is no hole, if it is not restored. Its bundle has the
        producers.
        """
        if before is not None:
            indexes, _ = yield from self._with_row(before)._bundle()
            if indexes is not None:
                self.beside.skip(indexes.producer_snapshot or NO_PRODUCERS, self.row.base)
        stored = yield from self._fetch_log()
        indexes, why = yield from self._bundle()
        return (yield from blocking(partial(stored._cut, end, indexes, why)))

    def _with_row(self, row: Row) -> _Segment:
        return replace(self, row=row)

    def _cut(self, end: int, indexes: SealedIndexes | None, why: str) -> list[str]:
        """Cut the segment on disk and its side files at ``end``. Delete all of them if no batch is left."""
        base, files = self.row.base, self.files
        with LogFile(files, self._path) as log:
            rebuilt = rebuild_indexes(log, base, self.row.size, INDEX_INTERVAL_BYTES)
        found, straddled = find_cut(files, self._path, self.row.size, rebuilt, end)
        if straddled:
            raise CorruptionError(
                f"{self.tp}: {self._key} has no batch that begins at offset {end}, where the restore is to end",
                path_or_key=self._key,
                offset=end,
                hint="run check --read-data: an index or the .log is not what was written",
            )
        txns = self.directory / txn_index_name(base)
        if indexes is not None and indexes.txn_index:
            files.replace(txns, indexes.txn_index)
        carry_out_cut(files, self.directory, found, end)
        with LogFile(files, self._path) as log:  # with the last entry that a sealed segment has
            rebuilt = rebuild_indexes(log, base, found.size_bytes, INDEX_INTERVAL_BYTES)
        kept = files.read(txns) if files.state(txns) is not None else b""
        cut = replace(self, row=self.row._replace(next=end, size=found.size_bytes), is_cut=True)
        told = None if indexes is None else SealedIndexes(rebuilt.offset_bytes(), rebuilt.time_bytes(), kept, b"", ())
        notes = cut._finish_segment(told, why)
        if not found.size_bytes:
            for path in (self._path, self._path.with_suffix(SEAL_SUFFIX), txns):
                files.unlink(path)
            for name in (index_name(base), time_index_name(base)):
                files.unlink(self.directory / name)
        return notes

    def _finish_segment(self, indexes: SealedIndexes | None, why: str) -> list[str]:
        """Check the segment on disk and write its side files."""
        findings = Findings(self._key)
        self.beside.start_segment(self.row.base)
        with contextlib.closing(FileSource(self.files, self._path, self.row.size, sync=False)) as source:
            look = LogInspection(
                source.size,
                self.row.base,
                findings,
                Expectations(decode=self.is_cut),
                indexes=indexes,
                follower=self.beside.follower,
            )
            scan = look.feed_all(source)
        if not self.is_cut and scan.crc32c != self.row.crc:
            raise CorruptionError(
                f"{self.tp}: {self._path.name} reads back with CRC32C {scan.crc32c:#010x}, {self.row.crc:#010x} was "
                "written",
                path_or_key=str(self._path),
                offset=self.row.base,
                hint="the disk does not keep what is written to it: restore onto another one",
            )
        damage = [item for item in findings.items if item.severity is Severity.ERROR]
        in_log = [item for item in damage if item.code.startswith("log_")]
        if in_log:
            # The file's CRC equals that of the seal, so the segment was damaged before its upload.
            raise CorruptionError(
                f"{self.tp}: {self._key}: {in_log[0].message}",
                path_or_key=self._key,
                position=in_log[0].position,
                offset=in_log[0].offset,
                hint="restore the other partitions, or run check --read-data for the whole picture",
            )
        notes: list[str] = []
        if damage or indexes is None:
            why = damage[0].message if damage else why
            notes.append(f"{self.tp}: indexes of segment {self.row.base} were rebuilt from its .log: {why}")
            self._rebuild()
        else:
            self.files.replace(self.directory / index_name(self.row.base), indexes.offset_index)
            self.files.replace(self.directory / time_index_name(self.row.base), indexes.time_index)
        whole = self
        if self.is_cut:
            totals = (scan.crc32c, scan.records, scan.min_timestamp, scan.max_timestamp, scan.leader_epoch)
            whole = replace(self, row=self.row._replace(**dict(zip(_CUT_FIELDS, totals, strict=True))))
        return notes + whole._write_side_files(indexes)

    def _fetch_log(self) -> Steps[_Segment]:
        """Write the ``.log``. Return the segment as on disk: a staged one gets its offsets and a checksum there."""
        files, handle, position, checksum, written = self.files, -1, 0, 0, 0
        plain: SegmentScan | None = None
        damage: CorruptionError | None = None

        def start() -> None:
            nonlocal handle
            handle = files.open_write(self._path)
            files.truncate(handle, 0)

        def write(data: bytes) -> None:
            nonlocal position, checksum, written, damage
            checksum = crc32c(data, checksum)
            try:
                for piece in (data,) if plain is None else (batch for _, batch in plain.feed(data)):
                    files.write_at(handle, piece, position)
                    position, written = position + len(piece), crc32c(piece, written)
            except CorruptionError as error:  # the object is damaged only if its checksum matches in the end
                damage = damage or error

        try:
            yield Blocking(start)
            for attempt in range(FETCH_ATTEMPTS):
                position = checksum = written = 0
                plain, damage = self._placed(), None
                yield from fetch_log(self.tp, self._key, self.row, write, told=attempt == 0)
                if checksum == self.row.crc:
                    if damage is not None:
                        raise damage
                    if plain is not None:
                        plain.finish()
                    yield Blocking(partial(files.sync, handle))
                    return self._with_row(self.row._replace(crc=written))
        finally:
            if handle >= 0:
                files.close(handle)
        raise CorruptionError(
            f"{self.tp}: {self._key} has CRC32C {checksum:#010x}, the catalog says {self.row.crc:#010x}",
            path_or_key=self._key,
            offset=self.row.base,
            hint="the object is damaged: look for another version of it in the bucket, or restore newer segments only",
        )

    def _placed(self) -> SegmentScan | None:
        """Return the scan that gives the batches of a staged segment their offsets, None for another segment."""
        if not self.row.flags & FLAG_STAGED:
            return None
        return SegmentScan(
            self.tp, self._key, self.row, position=0, start=self.row.base, end=self.row.next, verify_crc=False
        )

    def _bundle(self) -> Steps[tuple[SealedIndexes | None, str]]:
        """Return the bundle's indexes, or None and the reason why they cannot be used."""
        if self.row.idx_len > MAX_BUNDLE_BYTES:
            return None, "the bundle is too large"
        key = index_key(self.topic_id, self.tp.partition, self.row)
        try:
            found = yield Get(key, max_bytes=max(self.row.idx_len, HEAD_BYTES))
            if not isinstance(found, Object):
                return None, "the index bundle is gone"
            bundle = decode_bundle(found.data, key=key)
        except (CorruptionError, ConfigError) as damage:
            return None, damage.message
        base = 0 if self.row.flags & FLAG_STAGED else self.row.base
        if (bundle.descriptor.base_offset, bundle.descriptor.crc32c) != (base, self.row.crc):
            return None, "the index bundle is that of another segment"
        return bundle.indexes, ""

    def _rebuild(self) -> None:
        with LogFile(self.files, self._path) as log:
            rebuilt = rebuild_indexes(log, self.row.base, self.row.size, INDEX_INTERVAL_BYTES)
        store_indexes(self.files, self.directory, self.row.base, rebuilt)

    def _write_side_files(self, indexes: SealedIndexes | None) -> list[str]:
        """Write transaction index, producer snapshot (from the bundle or the log) and the seal note."""
        row = self.row
        txn_index = indexes.txn_index if indexes is not None else b""
        snapshot = (indexes.producer_snapshot or None) if indexes is not None else None
        snapshot = NO_PRODUCERS if row.flags & FLAG_STAGED else snapshot
        lost = indexes is None
        txns, producers = self.beside.compare(row.base, row.next, txn_index, snapshot, expected=lost)
        notes: list[str] = []
        if not txns.known and not lost:
            txns = SideFileVerdict(txn_index)  # earlier segments are not restored: trust the bundle
        if txns.flaw is not None or (lost and row.flags & FLAG_ABORTED_TXNS):
            notes.append(
                f"{self.tp}: the transaction index of segment {row.base} was rebuilt from its .log"
                if txns.known
                else f"{self.tp}: segment {row.base} has lost its transaction index, and what came before it is not "
                "restored: read_committed raises CorruptionError there; restore the older segments, too"
            )
        if producers.flaw is not None and producers.data and not (self.is_cut and producers.known):
            notes.append(f"{self.tp}: the producer snapshot at offset {row.next} was rebuilt from the .log")
        if txns.data:
            self.files.replace(self.directory / txn_index_name(row.base), txns.data)
        if producers.data:
            self.files.replace(self.directory / snapshot_name(row.next), producers.data)
        stats = SegmentStats(row.size, row.crc, row.records, row.min_ts, row.max_ts, row.leader_epoch)
        stats.appended_ms = row.appended_ms
        if txns.known:
            stats.aborted, stats.txn_crc = len(txns.data) // TXN_ENTRY_BYTES, crc32c(txns.data)
        write_note(self.files, self._path.with_suffix(SEAL_SUFFIX), stats)
        return notes


def _remove_tree(files: Files, path: Path) -> None:
    for name in files.names(path):
        if files.is_directory(path / name):
            _remove_tree(files, path / name)
        else:
            files.unlink(path / name)
    files.remove_directory(path)
