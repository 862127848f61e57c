"""Pull of one partition: its directory is brought to the state of a root. A restore is the pull of a new directory.

::

    seal notes on the disk + rows of the root ── plan.pull ── fetch as .cleaned ── swap_in ── seal note
                                                                                     │
                              drop what has no successor, keep an empty segment at the end, note the leader epochs

A kill at any step leaves the old segments or the new ones (``local.segment.replacement``). The seal note is written
last, so a segment without a valid note is fetched again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tiered.check.inspection import SideFileCheck
from tiered.errors import DiskFullError, TieredError
from tiered.format.checkpoint import encode_epochs
from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER
from tiered.format.local_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    local_name,
    log_name,
    snapshot_name,
)
from tiered.format.positions import PositionsCopy, within
from tiered.local.disk.claims import Claims
from tiered.local.disk.directory_files import LOG_START_NAME, RECOVERY_POINT_NAME, OffsetsFile, mark_clean
from tiered.local.disk.files import Files
from tiered.local.disk.partition_files import SPARSE_NAME
from tiered.local.disk.topics import TopicInfo, ensure_topic_id
from tiered.local.disk.uploader_files import PartitionUpload, UploadCheckpoint
from tiered.local.segment.replacement import finish_replacements, swap_in
from tiered.local.segment.sealed import rename_away
from tiered.local.segment.side_files import SEAL_SUFFIX, read_note, write_note
from tiered.model import Position, TopicPartition
from tiered.plan.pull import Exchange, Held, Pull, decide_pull
from tiered.plan.side_files import NO_PRODUCERS
from tiered.remote.cache import ByteCache
from tiered.remote.lookup import SegmentLookup
from tiered.remote.pins import Pin
from tiered.remote.topics import TopicEntry
from tiered.restore.plan import PartitionRestore
from tiered.restore.segment import Fetched, SegmentFetch
from tiered.store.base import Blocking, Steps
from tiered.store.steps import blocking

SPARE_BYTES = 64 * 1024 * 1024
"""Free space that a restore must leave."""


def leaves_out(plan: PartitionRestore) -> bool:
    """Return True if offsets may have no record. The directory then gets the file ``SPARSE_NAME``.

    Settings do not show it: data was lost and given up, or the topic was compacted before its settings changed.
    """
    if plan.pinned is not None and plan.pinned.root.cleaned:
        return True
    return any(row.flags & (FLAG_HOLE | FLAG_MAINTAINER) or row.records < row.next - row.base for row in plan.rows)


def need_space(directory: Path, size_bytes: int, files: Files) -> None:
    """Raise DiskFullError if the disk has no room for ``size_bytes`` of segments."""
    place = directory.parent
    while not files.is_directory(place):
        place = place.parent
    needed = size_bytes + SPARE_BYTES
    space = files.space(place)
    if space is not None and needed > space.free:
        raise DiskFullError(
            f"{directory} needs {needed} bytes, {place} has {space.free}",
            hint="restore less with --newest or --from; older segments stay readable in the bucket",
        )


def topic_infos(entries: Iterable[TopicEntry]) -> dict[str, TopicInfo]:
    """Return topics of the registry as a log directory notes them."""
    return {each.name: TopicInfo(each.name, each.topic_id, each.partitions, each.settings) for each in entries}


@dataclass(slots=True)
class PartitionPull:
    """One pull of the partition directory ``path``. ``pin``: kept while segments are fetched.

    ``published``: readers may look at the directory, so segments are fetched under another name and swapped in.
    ``leaving``: files that readers may still use; unlink them later. ``notes``: what was rebuilt.
    """

    files: Files
    path: Path
    plan: PartitionRestore
    published: bool = False
    pin: Pin | None = None
    leaving: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def decide(self) -> Steps[Pull]:
        """Make the directory if it is missing, end what a kill interrupted, and decide."""
        return blocking(self._decide)

    def run(self, todo: Pull) -> Steps[None]:
        """Carry the decision out. Raises CorruptionError, ObjectGone; what was exchanged by then stays."""
        plan, beside = self.plan, SideFileCheck()
        for exchange in todo.exchanges:
            fetched = []
            for row in exchange.new:
                if self.pin is not None:
                    yield from self.pin.keep()
                work = CLEANED_SUFFIX if self.published else ""
                segment = SegmentFetch(self.files, self.path, plan.tp, plan.source.topic_id, row, beside, work)
                if row.next <= plan.end_offset:
                    fetched.append((yield from segment.run()))
                else:
                    fetched.append((yield from segment.run_until(plan.end_offset, plan.before)))
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
        if leaves_out(self.plan):
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
            self.leaving += rename_away(files, path, base)
        lineage = plan.pinned.root.lineage if plan.pinned is not None else ()
        # The newest epoch may have no records: such an epoch is not part of this log.
        epochs = [epoch for epoch in lineage if epoch.start_offset < plan.end_offset]
        files.replace(path / "leader-epoch-checkpoint", encode_epochs(epochs).encode())
        files.sync_directory(path)


def add_positions(
    positions: dict[str, dict[TopicPartition, Position]],
    tp: TopicPartition,
    copy: PositionsCopy | TieredError | None,
    start: int,
    end: int,
) -> list[str]:
    """Add the positions of ``copy`` by group, each moved into ``start`` to ``end``. Return a note of a damaged copy."""
    if isinstance(copy, TieredError):
        return [f"{tp}: positions of groups are not restored: {copy.message}"]
    for group, position in within(copy.groups, start, end).items() if copy is not None else ():
        positions.setdefault(group, {})[tp] = position
    return []


def write_checkpoints(directory: Path, files: Files, plans: Sequence[PartitionRestore], *, apart: bool) -> None:
    """Note the ends of pulled partitions in the small files of the log directory; other partitions stay as they are.

    A recovery point is raised only after its segments are there, so that no reader takes them for lost.
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
