"""Plan the repair of damaged segments of a log directory, and carry it out.

::

    the bucket holds the offsets ── the segments up to there are set aside: reads of them go to the bucket
    otherwise, with accept_loss  ── .log = ABORT markers of open transactions, and an empty batch

Transaction indexes and producer snapshots are written again from there on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tiered.check.findings import Finding
from tiered.check.judge import judge_index, judge_log
from tiered.errors import ConfigError, CorruptionError
from tiered.format.batch import empty_batch, read_header
from tiered.format.batch_scanner import NO_LIMIT, Offsets
from tiered.format.checkpoint import encode_epochs
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
from tiered.local.disk.checkpoints import CLEAN_SHUTDOWN_NAME, RECOVERY_POINT_NAME, OffsetsFile
from tiered.local.disk.epochs import EPOCHS_NAME, LeaderEpochs, assigned
from tiered.local.disk.names import local_files, log_bases, snapshot_offsets
from tiered.local.recovery.batch_order_check import salvage
from tiered.local.segment.indexes import rebuild_indexes, store_indexes
from tiered.local.segment.scan import LogFile
from tiered.local.segment.seal import SEAL_SUFFIX, noted_size
from tiered.local.segment.sealed import SEGMENT_SUFFIXES
from tiered.model import EpochEntry, TopicPartition
from tiered.plan.lineage import epoch_at
from tiered.plan.producer import NO_OFFSET, read_producer
from tiered.plan.producer_state import ProducerSnapshot
from tiered.plan.side_files import Follower
from tiered.remote.root_view import RootView
from tiered.remote.topics import TopicEntry
from tiered.repair.log_dir import RepairDirectory
from tiered.repair.new_segments import abort_open, aborted_notes
from tiered.repair.plan import RepairAction, RepairOptions
from tiered.store.base import Steps, blocking

INDEX_INTERVAL_BYTES = 4096
"""Interval of a rebuilt offset index, Kafka's default."""

BETWEEN = ("log_order", "log_gap")
"""Codes of findings that blame the segment before, if they name no position in this one."""


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
            base = yield from blocking(partial(_gap_start, disk, folder, base))
        problems.setdefault(base, one.message)
    ends: dict[int, int] = yield from blocking(lambda: {base: _end(disk, tp, base) for base in problems})
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


def _gap_start(disk: RepairDirectory, folder: Path, after: int) -> int:
    """Return where the offsets that are missing before ``after`` begin: the end of the segment there, if it is whole.

    If it is not, all of it is lost.
    """
    before = max([each for each in log_bases(disk.files, folder) if each < after])
    path, end, position = folder / log_name(before), before, 0
    size = noted_size(disk.files, path.with_suffix(SEAL_SUFFIX))
    with contextlib.suppress(CorruptionError), LogFile(disk.files, path) as log:
        size = max(size, log.size())
        for span, view in log.batches(0, log.size()):
            if not log.is_intact(view):
                return before
            end, position = span.last_offset + 1, span.position + span.size
    return end if position == size and end < after else before


def _end(disk: RepairDirectory, tp: TopicPartition, base: int) -> int:
    """Return where the lost offsets from ``base`` on end: at the next segment, or at the end of the log.

    After a crash the next open has to judge the last segment. The result is -1 then.
    """
    folder = disk.directory / partition_dir(tp)
    later = [each for each in log_bases(disk.files, folder) if each > base]
    if later:
        return later[0]
    if disk.files.state(disk.directory / CLEAN_SHUTDOWN_NAME) is None:
        return -1
    end = OffsetsFile(disk.directory, RECOVERY_POINT_NAME, disk.files).read().get(tp, 0)
    end = max([end, *snapshot_offsets(disk.files, folder)])
    return end if end > base else -1


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
    """Set aside the files of all segments that begin below ``end``, the newest last: the rest has no gap."""
    folder = disk.directory / partition_dir(tp)
    for base in sorted({each.base for each in local_files(disk.files, folder) if each.base < end and not each.work}):
        disk.move([folder / local_name(base, suffix) for suffix in SEGMENT_SUFFIXES], now_ms)


# -- a hole ----------------------------------------------------------------------------------------------------------


def _lost(
    disk: RepairDirectory, tp: TopicPartition, offsets: Offsets, problem: str, options: RepairOptions
) -> RepairAction:
    """Return the action for offsets that no bucket holds: a hole, if the operator accepts the loss."""
    folder = disk.directory / partition_dir(tp)
    path, words = str(folder / log_name(offsets.base)), f"offsets {offsets.base} to {offsets.next}"
    action = RepairAction(tp, path, problem, f"make a hole of {words}", lost=((offsets.base, offsets.next),))
    if not options.accept_loss:
        remedy = f"no bucket holds {words}: `{disk.command(tp)} --accept-loss` makes a hole of them"
        return replace(action, remedy=remedy)
    notes = aborted_notes(_follower(disk, folder, offsets.base))
    return replace(action, notes=notes, act=disk.act(partial(_write, disk, tp, offsets)))


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


def _write(disk: RepairDirectory, tp: TopicPartition, offsets: Offsets, now_ms: int) -> None:
    """Write a ``.log`` of markers and an empty batch, and all that is derived from it and the segments after it."""
    files, folder, base = disk.files, disk.directory / partition_dir(tp), offsets.base
    path = folder / log_name(base)
    if _end(disk, tp, base) != offsets.next:
        raise ConfigError(f"{path} has changed", hint="plan the repair again")
    epoch, follower = epoch_at(LeaderEpochs(folder, files, read_only=True).entries, base), _follower(disk, folder, base)
    batches = list(abort_open(follower, base, offsets.next, epoch))
    if base + len(batches) < offsets.next:
        batches.append(empty_batch(base + len(batches), offsets.next, epoch))
    if files.state(path) is not None:
        disk.keep(path, now_ms)
    snapshots = [offset for offset in snapshot_offsets(files, folder) if offset > base]
    disk.move(_derived(disk, folder, base, snapshots), now_ms)
    files.replace(path, b"".join(batches))
    _derive(disk, folder, base, follower, snapshots)


def _derived(disk: RepairDirectory, folder: Path, base: int, snapshots: Collection[int]) -> list[Path]:
    """Return the files that change once a segment is written again: those beside it, and later producers."""
    later = [each for each in log_bases(disk.files, folder) if each > base]
    beside = [folder / local_name(base, suffix) for suffix in SEGMENT_SUFFIXES if suffix != LOG_SUFFIX]
    txns = [folder / local_name(each, TXN_INDEX_SUFFIX) for each in later]
    return [*beside, *txns, *[folder / snapshot_name(each) for each in snapshots]]


def _derive(disk: RepairDirectory, folder: Path, base: int, follower: Follower, snapshots: Collection[int]) -> None:
    """Write the files that are derived from the segments from ``base`` on. ``follower`` has seen the first of them."""
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
