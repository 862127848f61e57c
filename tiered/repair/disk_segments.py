"""Plan the repair of damaged segments of a log directory, and carry it out.

::

    the bucket holds the offsets ── the segments up to there are set aside: reads of them go to the bucket
    otherwise, with accept_loss  ── .log = whole batches, markers, an empty batch over each range that is lost

A transaction that is open where a loss begins counts as aborted: its ABORT marker takes a lost offset. Transaction
indexes and producer snapshots are written again from there on.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tiered.check.findings import Finding
from tiered.check.judge import judge_index, judge_log
from tiered.errors import ConfigError, CorruptionError
from tiered.format.batch import read_header
from tiered.format.batch_scanner import NO_LIMIT, BatchPosition, Offsets
from tiered.format.checkpoint import encode_epochs
from tiered.format.keys import FLAG_HOLE
from tiered.format.local_names import (
    LOG_SUFFIX,
    TXN_INDEX_SUFFIX,
    local_name,
    log_name,
    partition_dir,
    snapshot_name,
    txn_index_name,
)
from tiered.format.producer_snapshot import decode_snapshot, encode_snapshot
from tiered.format.segment_indexes import encode_txns
from tiered.local.disk.directory_files import CLEAN_SHUTDOWN_NAME, RECOVERY_POINT_NAME, OffsetsFile
from tiered.local.disk.partition_files import (
    EPOCHS_NAME,
    SPARSE_NAME,
    LeaderEpochs,
    assigned,
    local_files,
    log_bases,
    snapshot_offsets,
)
from tiered.local.recovery.segment_recovery import salvage
from tiered.local.segment.indexes import rebuild_indexes, store_indexes
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import SEGMENT_SUFFIXES
from tiered.local.segment.side_files import SEAL_SUFFIX, noted_size
from tiered.model import EpochEntry, TopicPartition
from tiered.plan.lineage import epoch_at
from tiered.plan.producer import NO_OFFSET, read_producer
from tiered.plan.producer_state import ProducerSnapshot
from tiered.plan.side_files import Follower
from tiered.remote.root_view import RootView
from tiered.remote.topics import TopicEntry
from tiered.repair.log_dir import RepairDirectory
from tiered.repair.plan import RepairAction, RepairOptions
from tiered.repair.salvage import Rewrite
from tiered.repair.whole_batches import Ranges, whole_batches
from tiered.store.base import Steps
from tiered.store.steps import blocking

INDEX_INTERVAL_BYTES = 4096
"""Interval of a rebuilt offset index, Kafka's default."""

BETWEEN = ("log_order", "log_gap")
"""Codes of findings that blame the segment before, if they name no position in this one."""


class DamagedLog(NamedTuple):
    """A ``.log`` of the offsets ``base`` to ``end``: its whole batches, and the ranges between them that are lost."""

    base: int
    end: int
    spans: tuple[BatchPosition, ...]
    lost: Ranges


def plan_damage(
    disk: RepairDirectory,
    tp: TopicPartition,
    found: Sequence[Finding],
    options: RepairOptions,
    entry: TopicEntry | None,
) -> Steps[list[RepairAction]]:
    """Return the actions for damaged segments of a partition. ``entry``: the topic in the bucket, if there is one."""
    folder = disk.directory / partition_dir(tp)
    bases = yield from blocking(partial(log_bases, disk.files, folder))
    problems: dict[int, str] = {}
    for one in found:
        base = int(Path(one.where).stem)
        if one.code in BETWEEN and one.position < 0:
            base = max([each for each in bases if each < base])
        problems.setdefault(base, one.message)
    ends = {base: end for base, end in itertools.pairwise(bases) if base in problems}
    if bases[-1] in problems:
        ends[bases[-1]] = yield from blocking(partial(_clean_end, disk, tp, bases[-1]))
    held = (yield from _held_end(tp, bases[0], entry)) if entry is not None else bases[0]
    aside = max([end for end in ends.values() if end <= held], default=-1)
    actions: list[RepairAction] = []
    for base, end in sorted(ends.items()):
        path = str(folder / log_name(base))
        if end < 0:
            remedy = "open the log for writing: it cuts what no flush promised; then run the repair again"
            actions.append(RepairAction(tp, path, problems[base], remedy))
        elif end <= held:
            remedy = f"set the segments below offset {aside} aside: the bucket holds their records"
            act = disk.act(partial(_drop_below, disk, tp, aside))
            actions.append(RepairAction(tp, path, problems[base], remedy, act=act))
        else:
            offsets = Offsets(base, end)
            actions.append((yield from blocking(partial(_lost, disk, tp, offsets, problems[base], options))))
    return actions


def _clean_end(disk: RepairDirectory, tp: TopicPartition, base: int) -> int:
    """Return where a log ends whose last segment is damaged; -1 after a crash: the next open has to judge it."""
    if disk.files.state(disk.directory / CLEAN_SHUTDOWN_NAME) is None:
        return -1
    folder = disk.directory / partition_dir(tp)
    ends = [OffsetsFile(disk.directory, RECOVERY_POINT_NAME, disk.files).read().get(tp, 0)]
    ends += snapshot_offsets(disk.files, folder)
    with LogFile(disk.files, folder / log_name(base)) as log:
        ends += [span.last_offset + 1 for span in salvage(log, 0, log.size(), Offsets(base, NO_LIMIT))][-1:]
    return max(ends) if max(ends) > base else -1


def _held_end(tp: TopicPartition, start: int, entry: TopicEntry) -> Steps[int]:
    """Return the offset up to which the bucket holds all from ``start`` on, in whole segments."""
    pinned = yield from RootView(entry.topic_id, tp.partition, tp.topic).pin()
    at = start if pinned is None else max(start, pinned.start_offset)
    while pinned is not None and len(piece := (yield from pinned.piece(at))):
        for row in piece:
            log = yield from judge_log(entry.topic_id, tp, row, read_data=True)
            index = yield from judge_index(entry.topic_id, tp, row)
            if row.flags & FLAG_HOLE or log.problem or index.problem:
                return at
            at = row.next
    return at


def _drop_below(disk: RepairDirectory, tp: TopicPartition, end: int, now_ms: int) -> None:
    """Set aside the files of all segments that begin below ``end``, oldest first: an interruption leaves no gap."""
    folder = disk.directory / partition_dir(tp)
    for base in sorted({each.base for each in local_files(disk.files, folder) if each.base < end and not each.work}):
        disk.move([folder / local_name(base, suffix) for suffix in SEGMENT_SUFFIXES], now_ms)


# -- a hole ----------------------------------------------------------------------------------------------------------


def _lost(
    disk: RepairDirectory, tp: TopicPartition, offsets: Offsets, problem: str, options: RepairOptions
) -> RepairAction:
    """Return the action for offsets that no bucket holds: a hole, if the operator accepts the loss."""
    folder = disk.directory / partition_dir(tp)
    path, each = str(folder / log_name(offsets.base)), _judged(disk, folder, *offsets)
    words = ", ".join([f"{first} to {last}" for first, last in each.lost])
    if not options.accept_loss:
        remedy = f"no bucket holds offsets {words}: `{disk.command(tp)} --accept-loss` makes a hole of them"
        return RepairAction(tp, path, problem, remedy, lost=each.lost)
    notes = tuple(_rewritten(disk, folder, each, lambda _: None).notes)
    remedy = f"keep the batches that are whole, and make a hole of offsets {words}"
    return RepairAction(tp, path, problem, remedy, each.lost, (), notes, disk.act(partial(_write, disk, folder, each)))


def _judged(disk: RepairDirectory, folder: Path, base: int, end: int) -> DamagedLog:
    path, epochs = folder / log_name(base), LeaderEpochs(folder, disk.files, read_only=True)
    dense = disk.files.state(folder / SPARSE_NAME) is None
    sealed = noted_size(disk.files, path.with_suffix(SEAL_SUFFIX))
    with LogFile(disk.files, path) as log:
        spans, lost = whole_batches(
            log, Offsets(base, end), partial(epoch_at, epochs.entries), dense=dense, sealed=sealed
        )
    return DamagedLog(base, end, spans, lost) if lost else DamagedLog(base, end, (), ((base, end),))


def _rewritten(disk: RepairDirectory, folder: Path, each: DamagedLog, write: Callable[[bytes], object]) -> Rewrite:
    """Hand each batch of the new ``.log`` to ``write``."""
    epochs, path = LeaderEpochs(folder, disk.files, read_only=True), folder / log_name(each.base)

    def epoch_of(start: int, _: int, before: int) -> int:
        return max(before, epoch_at(epochs.entries, start))

    made = Rewrite(str(path), each.lost, _follower(disk, folder, each.base), epoch_of, filled=True)
    with LogFile(disk.files, path) as log:
        for _, data in made.batches(log, each.spans, each.end):
            write(data)
    return made


def _follower(disk: RepairDirectory, folder: Path, base: int) -> Follower:
    """Return the producers where a segment begins: from the newest whole snapshot, and the batches after it."""
    known: ProducerSnapshot | None = None
    for offset in sorted(snapshot_offsets(disk.files, folder), reverse=True):
        with contextlib.suppress(CorruptionError):
            if offset <= base:
                known = ProducerSnapshot(
                    offset, tuple(decode_snapshot(disk.files.read(folder / snapshot_name(offset))))
                )
                break
    follower = Follower(known, whole=True)
    for first in [each for each in log_bases(disk.files, folder) if each < base]:
        _follow(disk, folder, follower, first, Offsets(known.offset if known is not None else 0, base))
    follower.end_segment()
    return follower


def _follow(disk: RepairDirectory, folder: Path, follower: Follower, base: int, offsets: Offsets) -> None:
    """Show the batches of a ``.log`` in a range of offsets to a follower."""
    with LogFile(disk.files, folder / log_name(base)) as log:
        for span in salvage(log, 0, log.size(), Offsets(base, offsets.next)):
            if span.base_offset >= offsets.base:
                data = log.read_at(span.position, span.size)
                follower.see(read_producer(read_header(data), data))


def _write(disk: RepairDirectory, folder: Path, each: DamagedLog, now_ms: int) -> None:
    files, path = disk.files, folder / log_name(each.base)
    if _judged(disk, folder, each.base, each.end) != each:
        raise ConfigError(f"{path} has changed", hint="plan the repair again")
    made, size = path.with_suffix(f"{LOG_SUFFIX}.repaired"), 0
    files.unlink(made)
    handle = files.open_write(made)

    def write(data: bytes) -> None:
        nonlocal size
        files.write_at(handle, data, size)
        size += len(data)

    try:
        follower = _rewritten(disk, folder, each, write).follower
        files.sync(handle)
    finally:
        files.close(handle)
    disk.keep(path, now_ms)
    snapshots = [offset for offset in snapshot_offsets(files, folder) if offset > each.base]
    disk.move(_derived(disk, folder, each.base, snapshots), now_ms)
    files.rename(made, path)
    files.sync_directory(folder)
    _derive(disk, folder, each.base, follower, snapshots)


def _derived(disk: RepairDirectory, folder: Path, base: int, snapshots: Collection[int]) -> list[Path]:
    """Return the files that change if segment ``base`` is rewritten: its side files, and later producer state."""
    later = [each for each in log_bases(disk.files, folder) if each > base]
    beside = [folder / local_name(base, suffix) for suffix in SEGMENT_SUFFIXES if suffix != LOG_SUFFIX]
    txns = [folder / local_name(each, TXN_INDEX_SUFFIX) for each in later]
    return [*beside, *txns, *[folder / snapshot_name(each) for each in snapshots]]


def _derive(disk: RepairDirectory, folder: Path, base: int, follower: Follower, snapshots: Collection[int]) -> None:
    """Rebuild indexes of segment ``base``, then transaction indexes and ``snapshots`` from it on.

    ``follower`` has already read segment ``base``.
    """
    files, bases = disk.files, [each for each in log_bases(disk.files, folder) if each >= base]
    with LogFile(files, folder / log_name(base)) as log:
        store_indexes(files, folder, base, rebuild_indexes(log, base, log.size(), INDEX_INTERVAL_BYTES))
    for first, end in zip(bases, [*bases[1:], max([NO_OFFSET, *snapshots])], strict=True):
        if first > base:
            _follow(disk, folder, follower, first, Offsets(first, NO_LIMIT))
        followed = follower.end_segment()
        if followed.aborted:
            files.replace(folder / txn_index_name(first), encode_txns(followed.aborted))
        if end in snapshots:
            files.replace(folder / snapshot_name(end), encode_snapshot(followed.producers))


def rebuild_epochs(disk: RepairDirectory, tp: TopicPartition, now_ms: int) -> None:
    """Write ``leader-epoch-checkpoint`` from the batches of the segments."""
    folder = disk.directory / partition_dir(tp)
    entries: tuple[EpochEntry, ...] = ()
    for base in log_bases(disk.files, folder):
        with LogFile(disk.files, folder / log_name(base)) as log:
            for _, view in log.batches(0, log.size()):
                header = read_header(view)
                if header.leader_epoch >= 0:
                    entries = assigned(entries, header.leader_epoch, header.base_offset)
    disk.move([folder / EPOCHS_NAME], now_ms)
    disk.files.replace(folder / EPOCHS_NAME, encode_epochs(entries).encode())
