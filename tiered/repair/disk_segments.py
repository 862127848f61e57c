"""Plans the repair of damaged segments of a log directory, and carries it out.

::

    the bucket holds the offsets ── the segments up to there are set aside: reads of them go to the bucket
    else, with accept_loss       ── .log = whole batches, markers, an empty batch over each range that is lost

A transaction that is open where a loss begins counts as aborted: its ABORT marker takes a lost offset. Transaction
indexes and producer snapshots are written again from there on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tiered.clock import SystemClock
from tiered.errors import ConfigError, CorruptionError, LocalIOError
from tiered.findings import Finding
from tiered.format.batch import empty_batch, encode_marker, read_header, verify_batch
from tiered.format.checkpoint import encode_epochs
from tiered.format.control import ControlType
from tiered.format.keys import (
    FLAG_HOLE,
    LOG_SUFFIX,
    TXN_INDEX_SUFFIX,
    local_name,
    log_name,
    partition_dir,
    snapshot_name,
    txn_index_name,
)
from tiered.format.producer_snapshot import decode_snapshot, encode_snapshot
from tiered.format.txn_index import encode_txns
from tiered.format.walk import NO_LIMIT, Offsets, Span
from tiered.local.disk.checkpoints import CLEAN_SHUTDOWN_NAME, RECOVERY_POINT_NAME, OffsetsFile
from tiered.local.disk.epochs import EPOCHS_NAME, LeaderEpochs, assigned
from tiered.local.disk.files import Files, is_another_disk
from tiered.local.disk.lock import DirectoryLock
from tiered.local.disk.names import SPARSE_NAME, local_files, log_bases, snapshot_offsets
from tiered.local.disk.uploads import uploader_lock
from tiered.local.recovery.order import salvage
from tiered.local.segment.indexes import rebuild_indexes, store_indexes
from tiered.local.segment.scan import LogFile
from tiered.local.segment.seal import SEAL_SUFFIX, noted_size
from tiered.local.segment.sealed import SEGMENT_SUFFIXES
from tiered.model import EpochEntry, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.plan.producer import NO_OFFSET, read_producer
from tiered.plan.producer_state import Snapshot
from tiered.plan.side_files import Follower
from tiered.remote.root_view import RootView
from tiered.remote.topics import TopicEntry
from tiered.repair.bench import Workbench
from tiered.repair.judge import judge_index, judge_log
from tiered.repair.plan import Action, RepairOptions
from tiered.store.base import Blocking, Now, Steps, blocking

INDEX_INTERVAL_BYTES = 4096
"""Interval of a rebuilt offset index, Kafka's default."""

Ranges = tuple[tuple[int, int], ...]


class Disk(NamedTuple):
    """A log directory that is repaired. What is replaced is kept beside it."""

    directory: Path
    files: Files

    def command(self, tp: TopicPartition) -> str:
        """Return the command that repairs a partition of this directory."""
        return f"tiered repair {tp.topic}:{tp.partition} --log-dir {self.directory}"

    def locked(self, change: Callable[[], None]) -> None:
        """Call ``change`` while no application and no uploader has the directory. Raises LockedError."""
        with contextlib.ExitStack() as held:
            for lock in (DirectoryLock(self.directory, self.files), uploader_lock(self.directory, self.files)):
                lock.acquire(SystemClock())
                held.callback(lock.release)
            change()

    def keep(self, path: Path, now_ms: int) -> bool:
        """Keep a file below the directory for what is replaced; False if there is none."""
        files = self.files
        if files.state(path) is None:
            return False
        target = self.directory.with_name(f"{self.directory.name}.aside-{now_ms}") / path.relative_to(self.directory)
        files.make_directory(target.parent)
        try:
            files.link(path, target)
        except LocalIOError as error:
            if not is_another_disk(error):
                raise
            source, copy = files.open_read(path), files.open_write(target)
            with contextlib.closing(_Handles(files, source, copy)):
                at, buffer = 0, bytearray(READ_BYTES)
                while count := files.read_into(source, buffer, at):
                    files.write_at(copy, memoryview(buffer)[:count], at)
                    at += count
                files.sync(copy)
        files.sync_directory(target.parent)
        return True

    def move(self, paths: Collection[Path], now_ms: int) -> None:
        """Set files aside."""
        for path in paths:
            if self.keep(path, now_ms):
                self.files.unlink(path)
                self.files.sync_directory(path.parent)


class _Handles(NamedTuple):
    files: Files
    source: int
    copy: int

    def close(self) -> None:
        """Close both files."""
        self.files.close(self.source)
        self.files.close(self.copy)


class LocalDamage(NamedTuple):
    """Offsets ``base`` to ``end`` whose ``.log`` is damaged, or missing. ``problem``: a sentence."""

    base: int
    end: int
    problem: str


def plan_damage(
    disk: Disk, tp: TopicPartition, found: Sequence[Finding], options: RepairOptions, entry: TopicEntry | None
) -> Steps[list[Action]]:
    """Return the actions for damaged segments of a partition. ``entry``: the topic in the bucket, if there is one."""
    folder = disk.directory / partition_dir(tp)
    bases = yield from blocking(partial(log_bases, disk.files, folder))
    damages, actions = list[LocalDamage](), list[Action]()
    for one in sorted(found, key=lambda each: each.where):
        base = int(Path(one.where).stem)
        if one.code == "log_order" and one.position < 0:  # it is the segment before that reaches too far
            base = max([each for each in bases if each < base])
        if one.code == "log_gap" and 0 <= one.offset < base:  # the segment is whole, and one before it is missing
            before = max([each for each in bases if each < base], default=-1)
            if not any(each.base == before for each in damages):
                cut = yield from blocking(partial(_is_cut, disk, folder / log_name(before)))
                damages.append(LocalDamage(before if cut else one.offset, base, one.message))
            continue
        end = next((each for each in bases if each > base), -1)
        if end < 0:
            end = yield from blocking(partial(_clean_end, disk, tp, base))
        if end < 0:
            remedy = "open the log for writing: it cuts what no flush promised; then run the repair again"
            actions.append(Action(tp, one.where, one.message, remedy))
        elif not any(each.base == base for each in damages):
            damages.append(LocalDamage(base, end, one.message))
    held = (yield from _held_end(tp, bases[0], entry, options)) if damages and entry is not None else bases[0]
    kept = [each for each in damages if each.end <= held]
    if kept:
        end = kept[-1].end
        remedy = f"set the segments below offset {end} aside: the bucket holds their records"
        act = partial(_drop_below, disk, tp, end)
        actions += [Action(tp, str(folder / log_name(each.base)), each.problem, remedy, act=act) for each in kept]
    for each in damages[len(kept) :]:
        actions.append((yield from blocking(partial(_lost, disk, tp, each, options))))
    return actions


def _clean_end(disk: Disk, tp: TopicPartition, base: int) -> int:
    """Return where a log ends whose last segment is damaged; -1 after a crash: the next open has to judge it."""
    if disk.files.state(disk.directory / CLEAN_SHUTDOWN_NAME) is None:
        return -1
    folder = disk.directory / partition_dir(tp)
    ends = [OffsetsFile(disk.directory, RECOVERY_POINT_NAME, disk.files).read().get(tp, 0)]
    ends += snapshot_offsets(disk.files, folder)
    with LogFile(disk.files, folder / log_name(base)) as log:
        ends += [span.last_offset + 1 for span in salvage(log, 0, log.size(), Offsets(base, NO_LIMIT))][-1:]
    return max(ends) if max(ends) > base else -1


def _is_cut(disk: Disk, path: Path) -> bool:
    """Return whether a ``.log`` lost its end: it was sealed with more bytes."""
    state = disk.files.state(path)
    return state is not None and noted_size(disk.files, path.with_suffix(SEAL_SUFFIX)) > state.size


def _held_end(tp: TopicPartition, start: int, entry: TopicEntry, options: RepairOptions) -> Steps[int]:
    """Return the offset up to which the bucket holds all from ``start`` on, in whole segments."""
    pinned = yield from RootView(entry.topic_id, tp.partition, tp.topic).pin()
    at = start if pinned is None else max(start, pinned.start_offset)
    while pinned is not None and len(piece := (yield from pinned.piece(at))):
        for row in piece:
            log = yield from judge_log(entry.topic_id, tp, row, read_data=options.read_data)
            index = yield from judge_index(entry.topic_id, tp, row)
            if row.flags & FLAG_HOLE or log.problem or index.problem:
                return at
            at = row.next
    return at


def _drop_below(disk: Disk, tp: TopicPartition, end: int, _: Workbench) -> Steps[None]:
    """Set aside the files of all segments that begin below ``end``, the newest last: what is left has no gap."""
    now_ms = (yield Now()).now_ms
    folder = disk.directory / partition_dir(tp)

    def drop() -> None:
        for base in sorted(
            {each.base for each in local_files(disk.files, folder) if each.base < end and not each.work}
        ):
            disk.move([folder / local_name(base, suffix) for suffix in SEGMENT_SUFFIXES], now_ms)

    yield Blocking(partial(disk.locked, drop))


# -- a hole ----------------------------------------------------------------------------------------------------------


class Salvaged(NamedTuple):
    """Batches of a segment that are whole, and the ranges of offsets that are lost between them."""

    spans: tuple[Span, ...]
    lost: Ranges


def _salvaged(disk: Disk, folder: Path, each: LocalDamage) -> Salvaged:
    path = folder / log_name(each.base)
    whole = Salvaged((), ((each.base, each.end),))
    if disk.files.state(path) is None:
        return whole
    dense = disk.files.state(folder / SPARSE_NAME) is None
    with LogFile(disk.files, path) as log:
        size = log.size()
        spans = _intact(log, size)
        if not spans:
            spans = tuple(salvage(log, 0, size, Offsets(each.base, each.end)))
        elif dense:
            spans = _in_their_place(log, size, spans, each, LeaderEpochs(folder, disk.files, read_only=True))
        lost, at, position = list[tuple[int, int]](), each.base, 0
        for span in spans:
            if span.base_offset > at and (dense or span.position > position):
                lost.append((at, span.base_offset))
            at, position = span.last_offset + 1, span.position + span.size
        cut = noted_size(disk.files, path.with_suffix(SEAL_SUFFIX)) > size
        if at < each.end and (dense or position < size or cut):
            lost.append((at, each.end))
        return Salvaged(spans, tuple(lost)) if lost else whole


def _intact(log: LogFile, size: int) -> tuple[Span, ...]:
    """Return all batches if each has its CRC and they fill the file. Offsets and leader epochs are outside the CRC."""
    spans: list[Span] = []
    try:
        for span, view in log.batches(0, size):
            if not log.is_intact(view):
                return ()
            spans.append(span)
    except CorruptionError:
        return ()
    return tuple(spans) if spans and spans[-1].position + spans[-1].size == size else ()


def _in_their_place(
    log: LogFile, size: int, spans: tuple[Span, ...], each: LocalDamage, epochs: LeaderEpochs
) -> tuple[Span, ...]:
    """Return the batches that follow each other from the start, or up to the end, under the leader of their offsets.

    One whose base offset rotted stands between both.
    """
    first, at, after = 0, each.base, each.end
    while first < len(spans) and spans[first].base_offset == at:
        at, first = spans[first].last_offset + 1, first + 1
    last = len(spans)
    while last > first and spans[last - 1].last_offset + 1 == after and spans[last - 1].base_offset >= at:
        after, last = spans[last - 1].base_offset, last - 1

    def is_led(span: Span) -> bool:
        epoch = epochs.epoch_at(span.base_offset)
        return epoch < 0 or log.header_at(span.position, size).leader_epoch == epoch

    return tuple([span for span in (*spans[:first], *spans[last:]) if is_led(span)])


def _lost(disk: Disk, tp: TopicPartition, each: LocalDamage, options: RepairOptions) -> Action:
    folder = disk.directory / partition_dir(tp)
    path = str(folder / log_name(each.base))
    found = _salvaged(disk, folder, each)
    words = ", ".join([f"{start} to {end}" for start, end in found.lost])
    if not options.accept_loss:
        remedy = f"no bucket holds offsets {words}: `{disk.command(tp)} --accept-loss` makes a hole of them"
        return Action(tp, path, each.problem, remedy, lost=found.lost)
    batches = _Batches(disk, folder, each, found)
    for _ in batches.all():
        pass
    notes = [f"the transaction of producer {number} from offset {first} on counts as aborted"
             for number, first in batches.aborted]  # fmt: skip
    remedy = f"keep the batches that are whole, and make a hole of offsets {words}"
    act = partial(_write_whole, disk, tp, each, found.lost)
    return Action(tp, path, each.problem, remedy, found.lost, (), tuple(notes), act)


class _Batches:
    """The batches of the new ``.log``: those that are whole, and markers and empty batches where offsets are lost."""

    def __init__(self, disk: Disk, folder: Path, each: LocalDamage, found: Salvaged) -> None:
        self._disk, self._folder, self._each, self._found = disk, folder, each, found
        self._epochs = LeaderEpochs(folder, disk.files, read_only=True)
        self.follower = _follower(disk, folder, each.base)
        self._epoch = -1
        self._timestamp = 0
        self.aborted: list[tuple[int, int]] = []

    def all(self) -> Iterator[bytes]:
        """Return each batch, in the order of offsets."""
        lost = list(self._found.lost)
        if self._found.spans:
            with LogFile(self._disk.files, self._folder / log_name(self._each.base)) as log:
                for span in self._found.spans:
                    while lost and lost[0][0] < span.base_offset:
                        yield from self._fill(*lost.pop(0))
                    data = log.read_at(span.position, span.size)
                    header = verify_batch(memoryview(data))
                    self._epoch, self._timestamp = header.leader_epoch, max(self._timestamp, header.max_timestamp)
                    self.follower.see(read_producer(header, data))
                    yield data
        for start, end in lost:
            yield from self._fill(start, end)

    def _fill(self, start: int, end: int) -> Iterator[bytes]:
        epoch = max(self._epoch, self._epochs.epoch_at(start))
        for producer in sorted(self.follower.producers(), key=lambda each: each.txn_first_offset):
            if producer.txn_first_offset < 0 or start == end:
                continue
            self.aborted.append((producer.producer_id, producer.txn_first_offset))
            data = encode_marker(
                ControlType.ABORT,
                max(producer.coordinator_epoch, 0),
                self._timestamp,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_offset=start,
                leader_epoch=epoch,
            )
            self.follower.see(read_producer(read_header(data), data))
            yield data
            start += 1
        if start < end:
            yield empty_batch(start, end, epoch)


def _follower(disk: Disk, folder: Path, base: int) -> Follower:
    """Return the producers where a segment begins: from the newest snapshot that is whole, and the batches after it."""
    known: Snapshot | None = None
    for offset in sorted(snapshot_offsets(disk.files, folder), reverse=True):
        with contextlib.suppress(CorruptionError):
            if offset <= base:
                known = Snapshot(offset, tuple(decode_snapshot(disk.files.read(folder / snapshot_name(offset)))))
                break
    follower = Follower(known, whole=True)
    for first in [each for each in log_bases(disk.files, folder) if each < base]:
        with LogFile(disk.files, folder / log_name(first)) as log:
            for span in salvage(log, 0, log.size(), Offsets(first, base)):
                if span.base_offset >= (known.offset if known is not None else 0):
                    data = log.read_at(span.position, span.size)
                    follower.see(read_producer(read_header(data), data))
    follower.end_segment()
    return follower


def _write_whole(disk: Disk, tp: TopicPartition, each: LocalDamage, lost: Ranges, _: Workbench) -> Steps[None]:
    now_ms = (yield Now()).now_ms
    folder, files = disk.directory / partition_dir(tp), disk.files
    path = folder / log_name(each.base)

    def write() -> None:
        found = _salvaged(disk, folder, each)
        if found.lost != lost:
            raise ConfigError(f"{path} has changed", hint="plan the repair again")
        made = path.with_suffix(f"{LOG_SUFFIX}.repaired")
        files.unlink(made)
        handle, at = files.open_write(made), 0
        try:
            batches = _Batches(disk, folder, each, found)
            for data in batches.all():
                files.write_at(handle, data, at)
                at += len(data)
            files.sync(handle)
        finally:
            files.close(handle)
        disk.keep(path, now_ms)
        snapshots = [offset for offset in snapshot_offsets(files, folder) if offset > each.base]
        disk.move(_derived(disk, folder, each.base, snapshots), now_ms)
        files.rename(made, path)
        files.sync_directory(folder)
        _derive(disk, folder, each.base, batches.follower, snapshots)

    yield Blocking(partial(disk.locked, write))


def _derive(disk: Disk, folder: Path, base: int, follower: Follower, snapshots: Collection[int]) -> None:
    """Write what is derived from the segments from ``base`` on. ``follower`` has seen the first of them."""
    files, bases = disk.files, [each for each in log_bases(disk.files, folder) if each >= base]
    for first, end in zip(bases, [*bases[1:], max([NO_OFFSET, *snapshots])], strict=True):
        with LogFile(files, folder / log_name(first)) as log:
            size = log.size()
            if first == base:
                store_indexes(files, folder, base, rebuild_indexes(log, base, size, INDEX_INTERVAL_BYTES))
            for span in salvage(log, 0, size, Offsets(first, NO_LIMIT)) if first > base else ():
                data = log.read_at(span.position, span.size)
                follower.see(read_producer(read_header(data), data))
        followed = follower.end_segment()
        if followed.aborted:
            files.replace(folder / txn_index_name(first), encode_txns(followed.aborted))
        if end in snapshots:
            files.replace(folder / snapshot_name(end), encode_snapshot(followed.producers))


def _derived(disk: Disk, folder: Path, base: int, snapshots: Collection[int]) -> list[Path]:
    """Return the files that tell something else once a segment is written again: its own, and later producers."""
    bases = log_bases(disk.files, folder)
    before = [each for each in bases if each <= base][-1:]  # of a missing .log the one before it may have lost its end
    paths = [folder / local_name(each, suffix) for each in {base, *before} for suffix in SEGMENT_SUFFIXES
             if suffix != LOG_SUFFIX and (each == base or suffix != TXN_INDEX_SUFFIX)]  # fmt: skip
    paths += [folder / local_name(each, TXN_INDEX_SUFFIX) for each in bases if each > base]
    return [*paths, *[folder / snapshot_name(each) for each in snapshots]]


def rebuild_epochs(disk: Disk, tp: TopicPartition, _: Workbench) -> Steps[None]:
    """Write ``leader-epoch-checkpoint`` from the batches of the segments."""
    now_ms = (yield Now()).now_ms
    folder = disk.directory / partition_dir(tp)

    def write() -> None:
        entries: tuple[EpochEntry, ...] = ()
        for base in log_bases(disk.files, folder):
            with LogFile(disk.files, folder / log_name(base)) as log:
                for _, view in log.batches(0, log.size()):
                    header = read_header(view)
                    if header.leader_epoch >= 0:
                        entries = assigned(entries, header.leader_epoch, header.base_offset)
        disk.move([folder / EPOCHS_NAME], now_ms)
        disk.files.replace(folder / EPOCHS_NAME, encode_epochs(entries).encode())

    yield Blocking(partial(disk.locked, write))
