"""Pull of one partition: its directory is brought to the state of a root. A restore is the pull of a new directory.

::

    seal notes on the disk + rows of the root ── plan.pull ── fetch as .cleaned ── swap_in ── seal note
                                                                                     │
                              drop what has no successor, keep an empty segment at the end, note the leader epochs

Of a fetched segment size, CRC32C, every batch and every index are checked. A kill at any step leaves the old segments
or the new ones (``local.segment.replacement``). The seal note is written last, so a segment without a valid note is
fetched again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tiered.check.findings import Findings, Severity
from tiered.check.inspection import Expectations, LogInspection, SideFileCheck, fetch_log
from tiered.errors import ConfigError, CorruptionError, DiskFullError, TieredError
from tiered.format.bundle import HEAD_BYTES, MAX_BUNDLE_BYTES, decode_bundle
from tiered.format.checkpoint import encode_epochs
from tiered.format.kernels import crc32c
from tiered.format.keys import FLAG_ABORTED_TXNS, FLAG_HOLE, FLAG_MAINTAINER, FLAG_STAGED, index_key, segment_key
from tiered.format.local_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    local_name,
    log_name,
    snapshot_name,
)
from tiered.format.positions import PositionsCopy, within
from tiered.format.segment_builder import SegmentStats
from tiered.format.segment_indexes import TXN_ENTRY_BYTES
from tiered.local.disk.claims import Claims
from tiered.local.disk.directory_files import LOG_START_NAME, RECOVERY_POINT_NAME, OffsetsFile, mark_clean
from tiered.local.disk.files import Files
from tiered.local.disk.partition_files import EPOCHS_NAME, SPARSE_NAME
from tiered.local.disk.topics import TopicInfo, ensure_topic_id
from tiered.local.disk.uploader_files import PartitionUpload, UploadCheckpoint
from tiered.local.segment.indexes import rebuild_indexes
from tiered.local.segment.replacement import carry_out_cut, find_cut, finish_replacements, swap_in
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import FileSource, rename_to_deleted
from tiered.local.segment.side_files import SEAL_SUFFIX, read_note, write_note
from tiered.model import Position, Row, SealedIndexes, TopicPartition
from tiered.plan.pull import Exchange, Held, Pull, decide_pull
from tiered.plan.side_files import NO_PRODUCERS, SideFileVerdict
from tiered.remote.assembly import SegmentScan
from tiered.remote.fetch import ByteCache
from tiered.remote.lookup import SegmentLookup
from tiered.remote.pins import Pin
from tiered.remote.topics import TopicEntry
from tiered.restore.plan import PartitionRestore
from tiered.store.base import Blocking, Get, Object, Steps
from tiered.store.steps import blocking

SPARE_BYTES = 64 * 1024 * 1024
"""Free space that a restore must leave."""


FETCH_ATTEMPTS = 2
"""Fetches of a damaged body before its object counts as damaged."""

INDEX_INTERVAL_BYTES = 4096
"""Interval of a rebuilt offset index, Kafka's default."""


def may_lack_records(plan: PartitionRestore) -> bool:
    """Return True if some offsets of the log may have no record. The directory then gets the file ``SPARSE_NAME``.

    Settings do not show it: data was lost and given up, or the topic was compacted before its settings changed.
    """
    if plan.pinned is not None and plan.pinned.root.cleaned:
        return True
    return any(row.flags & (FLAG_HOLE | FLAG_MAINTAINER) or row.records < row.next - row.base for row in plan.rows)


def need_space(directory: Path, size_bytes: int, files: Files) -> None:
    """Raise DiskFullError if the disk lacks room for ``size_bytes`` of segments and ``SPARE_BYTES`` more."""
    place = directory.parent
    while not files.is_directory(place):
        place = place.parent
    needed = size_bytes + SPARE_BYTES
    space = files.space(place)
    if space is not None and needed > space.free:
        raise DiskFullError(
            f"the restore of {directory} needs {needed} bytes, but {place} has only {space.free} free",
            hint="restore less with --newest or --from; older segments stay readable in the bucket",
        )


def topic_infos(entries: Iterable[TopicEntry]) -> dict[str, TopicInfo]:
    """Return topics of the registry in the form that a log directory stores."""
    return {each.name: TopicInfo(each.name, each.topic_id, each.partitions, each.settings) for each in entries}


@dataclass(slots=True)
class PartitionPull:
    """One pull of the partition directory ``path``. ``pin``: renewed while segments are fetched, None without one.

    ``published``: readers may look at the directory, so segments are fetched under another name and swapped in.
    ``leaving``: replaced files that readers may still use; unlink them later. ``notes``: texts about rebuilt files.
    """

    files: Files
    path: Path
    plan: PartitionRestore
    published: bool = False
    pin: Pin | None = None
    leaving: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def decide(self) -> Steps[Pull]:
        """Return the changes that the directory needs. Create a missing directory, and complete an interrupted pull."""
        return blocking(self._decide)

    def run(self, todo: Pull) -> Steps[None]:
        """Make the changes ``todo``. Raises CorruptionError for a damaged or missing object; completed changes stay."""
        plan, beside = self.plan, SideFileCheck()
        for exchange in todo.exchanges:
            fetched = []
            for row in exchange.new:
                if self.pin is not None:
                    yield from self.pin.keep()
                work = CLEANED_SUFFIX if self.published else ""
                segment = SegmentFetch(self.files, self.path, plan.tp, plan.source.topic_id, row, beside, work)
                is_whole = row.next <= plan.end_offset
                fetched.append((yield from (segment.run() if is_whole else segment.run(plan.end_offset, plan.before))))
            yield Blocking(partial(self._exchange, exchange, fetched))
        producers = b""
        if not plan.rows and plan.pinned is not None and plan.end_offset == plan.pinned.next_offset:
            lookup = SegmentLookup(plan.tp, plan.source.topic_id, ByteCache())
            producers = yield from lookup.producer_snapshot(plan.pinned)  # the log was trimmed to its end
        yield Blocking(partial(self._end, todo.dropped, producers))

    def _decide(self) -> Pull:
        files, path = self.files, self.path
        files.make_directory(path)
        bases = finish_replacements(files, path)
        held = []
        for base in bases:
            state = files.state(path / log_name(base))
            held.append(Held(base, None if state is None else read_note(files, self._note_path(base), state.size)))
        if may_lack_records(self.plan):
            files.replace(path / SPARSE_NAME, b"")  # before the first segment with a gap
        ensure_topic_id(path, files, self.plan.entry.topic_id)
        return decide_pull(held, self.plan.rows, self.plan.end_offset)

    def _exchange(self, exchange: Exchange, fetched: Sequence[Fetched]) -> None:
        files, path = self.files, self.path
        if self.published:
            for base in exchange.old:
                files.unlink(self._note_path(base))  # it is not that of the segment to come
            self.leaving += swap_in(files, path, [row.base for row in exchange.new], exchange.old)
        for each in fetched:
            self.notes += each.notes
            if each.stats is not None:
                write_note(files, self._note_path(each.base), each.stats)

    def _note_path(self, base: int) -> Path:
        return self.path / local_name(base, SEAL_SUFFIX)

    def _end(self, dropped: Sequence[int], producers: bytes) -> None:
        files, path, plan = self.files, self.path, self.plan
        if files.state(path / snapshot_name(plan.end_offset)) is None:
            # No producers are known. Without a snapshot the first open would read the whole log to learn that.
            # A range that compaction emptied has no snapshot of its own: the one before it is valid.
            emptied = bool(plan.rows and plan.rows[-1].flags & FLAG_HOLE)
            found = [name for name in files.names(path) if emptied and name.endswith(SNAPSHOT_SUFFIX)]
            newest = max(found, default="")
            snapshot = files.read(path / newest) if newest else producers or NO_PRODUCERS
            files.replace(path / snapshot_name(plan.end_offset), snapshot)
        # The last segment stays sealed: appends go into the empty one after it.
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if files.state(path / local_name(plan.end_offset, suffix)) is None:
                files.replace(path / local_name(plan.end_offset, suffix), b"")
        for base in dropped:
            files.unlink(self._note_path(base))
            self.leaving += rename_to_deleted(files, path, base)
        lineage = plan.pinned.root.lineage if plan.pinned is not None else ()
        # The newest epoch may have no records: such an epoch is not part of this log.
        epochs = [epoch for epoch in lineage if epoch.start_offset < plan.end_offset]
        files.replace(path / EPOCHS_NAME, encode_epochs(epochs).encode())
        files.sync_directory(path)


def add_positions(
    positions: dict[str, dict[TopicPartition, Position]],
    tp: TopicPartition,
    copy: PositionsCopy | TieredError | None,
    start: int,
    end: int,
) -> list[str]:
    """Add the group positions in ``copy`` to ``positions``, by group, each clamped to ``start`` to ``end``.

    Return a note if ``copy`` is an error, otherwise an empty list.
    """
    if isinstance(copy, TieredError):
        return [f"{tp}: positions of groups are not restored: {copy.message}"]
    for group, position in within(copy.groups, start, end).items() if copy is not None else ():
        positions.setdefault(group, {})[tp] = position
    return []


def write_checkpoints(directory: Path, files: Files, plans: Sequence[PartitionRestore], *, apart: bool) -> None:
    """Write starts and ends of the partitions in ``plans`` into the checkpoint files of the log directory. Others stay.

    ``apart``: the directory is an independent log, without a bucket. A recovery point is raised only after its segments
    are there, so that no reader takes them for lost.
    """
    claims, uploads = Claims(directory, files), dict[TopicPartition, PartitionUpload]()
    for plan in plans:
        if plan.pinned is None or apart:  # an independent log has no bucket to continue
            continue
        seen = claims.proof(plan.tp).restored_from
        if seen is None or seen[1] != plan.pinned.next_offset:
            claims.write(plan.tp, restored_from=(plan.pinned.version, plan.pinned.next_offset))
        uploads[plan.tp] = PartitionUpload(plan.end_offset, start_offset=plan.pinned.start_offset)
    UploadCheckpoint(directory, files).update(uploads)
    _update(OffsetsFile(directory, LOG_START_NAME, files), {plan.tp: plan.start_offset for plan in plans})
    _update(OffsetsFile(directory, RECOVERY_POINT_NAME, files), {plan.tp: plan.end_offset for plan in plans})
    mark_clean(directory, files)


def _update(file: OffsetsFile, offsets: Mapping[TopicPartition, int]) -> None:
    file.write({**file.read(), **offsets})


# -- one segment -------------------------------------------------------------------------------------------------------


class Fetched(NamedTuple):
    """Segment that was fetched to the disk. ``notes``: texts about rebuilt side files.

    ``stats``: totals for its ``.seal`` file; None: no batch is left after the cut.
    """

    base: int
    notes: tuple[str, ...]
    stats: SegmentStats | None


@dataclass(frozen=True, slots=True)
class SegmentFetch:
    """Fetch of one segment onto the disk, byte for byte. Its indexes come from the bundle or are rebuilt.

    ``beside``: check of transaction indexes and producer snapshots, shared by the segments of one partition. ``work``:
    suffix of the files until they get their final names. ``is_cut``: the segment was shortened at the end of the log.
    """

    files: Files
    directory: Path
    tp: TopicPartition
    topic_id: UUID
    row: Row
    beside: SideFileCheck
    work: str = ""
    is_cut: bool = False

    @property
    def _key(self) -> str:
        return segment_key(self.topic_id, self.tp.partition, self.row)

    @property
    def _path(self) -> Path:
        return self._file(LOG_SUFFIX)

    def _file(self, suffix: str) -> Path:
        return self.directory / local_name(self.row.base, suffix, self.work)

    def run(self, end: int | None = None, before: Row | None = None) -> Steps[Fetched]:
        """Fetch the segment, check it, and write all of its files except the ``.seal`` note.

        Damaged indexes are rebuilt. Raises CorruptionError for a damaged ``.log``, or if no batch begins at ``end``.

        Args:
            end: keep only the records below this offset. None: keep all.
            before: the earlier segment whose bundle has the producers at the start of this one. None: that segment is
                restored too, or there is none.
        """
        if before is not None:
            indexes, _ = yield from self._with_row(before)._bundle()
            if indexes is not None:
                self.beside.skip(indexes.producer_snapshot or NO_PRODUCERS, self.row.base)
        stored = yield from self._fetch_log()
        indexes, why = yield from self._bundle()
        if end is None:
            return (yield from blocking(partial(stored._finish_segment, indexes, why)))
        return (yield from blocking(partial(stored._cut, end, indexes, why)))

    def _with_row(self, row: Row) -> SegmentFetch:
        return replace(self, row=row)

    def _cut(self, end: int, indexes: SealedIndexes | None, why: str) -> Fetched:
        """Cut the segment on disk and its side files at ``end``. Delete all of them if no batch is left.

        ``indexes``: those of the bundle, None if unusable; then ``why`` is the reason. Raises CorruptionError if no
        batch begins at ``end``.
        """
        base, files = self.row.base, self.files
        with LogFile(files, self._path) as log:
            rebuilt = rebuild_indexes(log, base, self.row.size, INDEX_INTERVAL_BYTES)
        found, straddled = find_cut(files, self._path, self.row.size, rebuilt, end)
        if straddled:
            raise CorruptionError(
                f"{self.tp}: the restore cannot end at offset {end}: no batch of {self._key} begins there",
                path_or_key=self._key,
                offset=end,
                hint="run `tiered repair --dry-run`: an index or the .log is damaged",
            )
        txns = self._file(TXN_INDEX_SUFFIX)
        if indexes is not None and indexes.txn_index:
            files.replace(txns, indexes.txn_index)
        carry_out_cut(files, self.directory, found, end)
        with LogFile(files, self._path) as log:  # with the last entry that a sealed segment has
            rebuilt = rebuild_indexes(log, base, found.size_bytes, INDEX_INTERVAL_BYTES)
        kept = files.read(txns) if files.state(txns) is not None else b""
        cut = replace(self, row=self.row._replace(next=end, size=found.size_bytes), is_cut=True)
        kept_indexes = (
            None if indexes is None else SealedIndexes(rebuilt.offset_bytes(), rebuilt.time_bytes(), kept, b"", ())
        )
        fetched = cut._finish_segment(kept_indexes, why)
        if found.size_bytes:
            return fetched
        for suffix in SEGMENT_SUFFIXES:
            files.unlink(self._file(suffix))
        return fetched._replace(stats=None)

    def _finish_segment(self, indexes: SealedIndexes | None, why: str) -> Fetched:
        """Check the segment on disk and write its side files. Raises CorruptionError for a damaged ``.log``.

        ``indexes``: those of the bundle, None if unusable; then ``why`` is the reason. Damaged ones are rebuilt.
        """
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
                f"{self.tp}: {self._path.name} has CRC32C {scan.crc32c:#010x} on disk, but "
                f"{self.row.crc:#010x} was written",
                path_or_key=str(self._path),
                offset=self.row.base,
                hint="restore onto another disk: this one returns other data than was written",
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
                hint="restore the other partitions, or run `tiered check --read-data` to see all damage",
            )
        notes: list[str] = []
        if damage or indexes is None:
            why = damage[0].message if damage else why
            notes.append(f"{self.tp}: indexes of segment {self.row.base} were rebuilt from its .log: {why}")
            self._rebuild()
        else:
            self._write_indexes(indexes.offset_index, indexes.time_index)
        whole = self
        if self.is_cut:
            row = self.row._replace(crc=scan.crc32c, records=scan.records, leader_epoch=scan.leader_epoch)
            whole = replace(self, row=row._replace(min_ts=scan.min_timestamp, max_ts=scan.max_timestamp))
        more, stats = whole._write_side_files(indexes)
        return Fetched(self.row.base, (*notes, *more), stats)

    def _fetch_log(self) -> Steps[SegmentFetch]:
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
                yield from fetch_log(self.tp, self._key, self.row, write, emits_progress=attempt == 0)
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
            hint="`tiered repair --dry-run` looks for another version; or restore only newer segments (--newest)",
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
        self._write_indexes(rebuilt.offset_bytes(), rebuilt.time_bytes())

    def _write_indexes(self, offsets: bytes, times: bytes) -> None:
        self.files.replace(self._file(INDEX_SUFFIX), offsets)
        self.files.replace(self._file(TIME_INDEX_SUFFIX), times)

    def _write_side_files(self, indexes: SealedIndexes | None) -> tuple[list[str], SegmentStats]:
        """Write transaction index and producer snapshot, from the bundle or the log. Return notes and the totals."""
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
            self.files.replace(self._file(TXN_INDEX_SUFFIX), txns.data)
        if producers.data:
            self.files.replace(self.directory / snapshot_name(row.next), producers.data)
        stats = SegmentStats(row.size, row.crc, row.records, row.min_ts, row.max_ts, row.leader_epoch)
        stats.appended_ms = row.appended_ms
        if txns.known:
            stats.aborted, stats.txn_crc = len(txns.data) // TXN_ENTRY_BYTES, crc32c(txns.data)
        return notes, stats
