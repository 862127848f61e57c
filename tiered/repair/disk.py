"""Plans the repair of a log directory: its small files, partitions whose directory is gone, damaged segments.

=================================  ====================================================================
wrong                              remedy
=================================  ====================================================================
a file of ``DERIVED``              set aside: other files say the same, or ``tiered repair rejoin`` follows
``tiered-topics.json``             written from the partitions' directories and the bucket's registry
``leader-epoch-checkpoint``        written from the batches
``__transaction_state``            set aside: the next open aborts what is open
a directory that is gone           rejoin at the bucket's end; else with ``accept_loss`` an empty one
a segment                          reads of it go to the bucket; else with ``accept_loss`` a hole
=================================  ====================================================================

What is replaced is kept in a directory beside the log directory, named ``{log_dir}.aside-{ms}``. A damaged segment::

    the bucket holds the offsets ── the segments up to there are set aside: reads of them go to the bucket
    otherwise, with accept_loss  ── .log = whole batches, markers, an empty batch over each range that is lost

A transaction that is open where a loss begins counts as aborted: its ABORT marker takes a lost offset. Transaction
indexes and producer snapshots are written again from there on.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tiered.check.findings import NEWER_RELEASE, Finding, Severity
from tiered.check.local import UNREADABLE, LocalCheck, read_small_files
from tiered.check.segment_check import judge_index, judge_log
from tiered.clock import SystemClock
from tiered.errors import (
    ConfigError,
    CorruptionError,
    LocalIOError,
    NewerFormatError,
    NotFoundError,
    UnknownTopicError,
)
from tiered.format.batch import read_header
from tiered.format.batch_scanner import NO_LIMIT, BatchPosition, Offsets
from tiered.format.checkpoint import encode_epochs
from tiered.format.coordinator_records import TRANSACTION_STATE_TOPIC
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
from tiered.local.directory.read_only_log import DirectoryView, find_gone
from tiered.local.disk.claims import CLAIMS_NAME, Claims
from tiered.local.disk.directory_files import (
    CLEAN_SHUTDOWN_NAME,
    CLEANER_NAME,
    LOG_START_NAME,
    META_PROPERTIES_NAME,
    NO_ID,
    RECOVERY_POINT_NAME,
    REPLICATION_NAME,
    OffsetsFile,
)
from tiered.local.disk.files import Files, PosixFiles
from tiered.local.disk.partition_files import (
    EPOCHS_NAME,
    SPARSE_NAME,
    LeaderEpochs,
    assigned,
    local_files,
    log_bases,
    snapshot_offsets,
)
from tiered.local.disk.topics import (
    PARTITION_METADATA_NAME,
    TOPICS_NAME,
    TopicInfo,
    discovered,
    ensure_topic_id,
    expected_topics,
    read_topic_ids,
    write_topics,
)
from tiered.local.disk.uploader_files import OFFSET_CHECKPOINT_NAME, UploadCheckpoint
from tiered.local.recovery.segment_recovery import salvage
from tiered.local.segment.indexes import rebuild_indexes, store_indexes
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import SEGMENT_SUFFIXES
from tiered.local.segment.side_files import SEAL_SUFFIX, noted_size
from tiered.local.transactions.state_log import PRODUCER_IDS_NAME, STATE_CONFIG
from tiered.model import EpochEntry, TopicPartition
from tiered.plan.lineage import epoch_at
from tiered.plan.producer import NO_OFFSET, read_producer
from tiered.plan.producer_state import ProducerSnapshot
from tiered.plan.side_files import Follower
from tiered.remote.root_view import RootView
from tiered.remote.topics import TopicEntry, load_topic
from tiered.repair.log_directory import RepairDirectory, plan_rejoin_steps, rejoin_steps
from tiered.repair.plan import NO_PARTITION, Act, RepairAction, RepairOptions, Workbench
from tiered.repair.salvage import Ranges, Rewrite, whole_batches
from tiered.store.base import Steps
from tiered.store.steps import blocking

DERIVED = {
    RECOVERY_POINT_NAME: "the next open reads the segments and writes it",
    LOG_START_NAME: "the next open takes the first segment's start; records that were deleted of it are there again",
    REPLICATION_NAME: "the next open takes the end of each log",
    CLEANER_NAME: "the cleaner starts at the first offset",
    OFFSET_CHECKPOINT_NAME: "the uploader writes it from the catalogs",
    PRODUCER_IDS_NAME: "producer ids begin elsewhere",
    META_PROPERTIES_NAME: "the next open gives the directory another id; partitions in a bucket go on after "
    "`tiered repair rejoin TOPIC:P`",
    CLAIMS_NAME: "partitions in a bucket go on after `tiered repair rejoin TOPIC:P`",
}
"""Small files of a log directory, with the source of their content once they are set aside."""

BESIDE = {
    "partition_metadata": (PARTITION_METADATA_NAME, f"the next open writes it from {TOPICS_NAME}"),
    "offset_index": (".index", "the next read makes it again"),
    "time_index": (".timeindex", "the next read makes it again"),
}
"""Files of a partition by the code of their finding: name or suffix, and where they come from once set aside."""


INDEX_INTERVAL_BYTES = 4096
"""Interval of a rebuilt offset index, Kafka's default."""

BETWEEN = ("log_order", "log_gap")
"""Codes of findings that blame the segment before, if they name no position in this one."""


def plan_disk(
    directory: Path,
    selected: Sequence[str | TopicPartition],
    options: RepairOptions,
    *,
    remote: bool,
    files: Files | None = None,
) -> Steps[list[RepairAction]]:
    """Find the damage of a log directory, and plan its repair. ``remote``: a bucket is available for the repair.

    ``selected``: topics or partitions, empty for all. Reads without the lock. Raises NotFoundError if the directory
    does not exist. Raises NewerFormatError for a file of a newer release, LocalIOError for one that cannot be read.
    Raises UnknownTopicError for a topic that the directory does not have, if there is no bucket to ask.
    """
    files = files or PosixFiles()
    if not files.is_directory(directory):
        raise NotFoundError(f"the log directory {directory} does not exist", hint="correct the path")
    disk = RepairDirectory(directory, files)
    actions: list[RepairAction] = yield from blocking(partial(_small_files, disk))
    try:
        topics = yield from blocking(partial(expected_topics, directory, files))
    except NewerFormatError:
        raise
    except CorruptionError as damage:  # the rest depends on this file: another run finds it
        return [*actions, (yield from _topics_file(disk, damage.message, remote=remote))]
    if any(Path(action.where).name in (OFFSET_CHECKPOINT_NAME, CLAIMS_NAME) for action in actions):
        return actions  # these say which partitions a bucket holds
    errors: dict[TopicPartition, list[Finding]] = yield from blocking(partial(_errors, disk, topics, selected))
    if selected and not remote:
        folders = yield from blocking(partial(DirectoryView.read, directory, files))
        known = topics.keys() | {tp.topic for tp in [*folders.partitions, *errors]}
        for name in [each if isinstance(each, str) else each.topic for each in selected]:
            if name not in known:
                raise UnknownTopicError(f"{directory} has no topic {name}", hint="`tiered topic list` lists the topics")
    for tp, several in sorted(errors.items()):
        if tp.topic == TRANSACTION_STATE_TOPIC and not topics[tp.topic].adopted:
            path = str(directory / partition_dir(tp))
            remedy, act = (
                "set it aside: the next open aborts the transactions that are open",
                partial(_forget, disk, tp),
            )
            actions.append(RepairAction(tp, path, several[0].message, remedy, act=disk.act(act)))
        elif any(one.code == "partition_gone" for one in several):
            actions.append((yield from _gone(disk, tp, options)))
        else:
            actions += yield from _partition(disk, tp, topics, several, options, remote=remote)
    return actions


def _errors(
    disk: RepairDirectory, topics: Mapping[str, TopicInfo], selected: Sequence[str | TopicPartition]
) -> dict[TopicPartition, list[Finding]]:
    """Return the errors that ``check`` finds in the selected partitions and the transaction log, by partition."""
    names = {each if isinstance(each, str) else each.topic for each in selected}
    compacted = {name: topic.config.compacted or topic.adopted for name, topic in topics.items()}
    wanted = names | {TRANSACTION_STATE_TOPIC} if names else names
    check = LocalCheck(disk.directory, disk.files, lambda name: compacted.get(name, True), wanted)
    errors: dict[TopicPartition, list[Finding]] = {}
    for finding in [one for several in check.run() for one in several if isinstance(one, Finding)]:
        tp = TopicPartition(finding.topic, finding.partition)
        asked = not names or not {tp, tp.topic}.isdisjoint({*selected, TRANSACTION_STATE_TOPIC})
        if finding.severity is Severity.ERROR and finding.partition >= 0 and asked:
            errors.setdefault(tp, []).append(finding)
    return errors


# -- small files -----------------------------------------------------------------------------------------------------


def _small_files(disk: RepairDirectory) -> list[RepairAction]:
    """Return the actions for damaged small files of the directory.

    Raises NewerFormatError for a file of a newer release, LocalIOError for a file that cannot be read.
    """
    actions: list[RepairAction] = []
    for found in read_small_files(disk.directory, disk.files).findings:
        if found.code == NEWER_RELEASE:
            raise NewerFormatError(found.message, path_or_key=found.where, hint="upgrade tieredlog")
        if found.code == UNREADABLE:
            raise LocalIOError(found.message)
        path = Path(found.where)
        if path.name in DERIVED:
            actions.append(_set_aside(disk, NO_PARTITION, path, found.message, DERIVED[path.name]))
    return actions


def _set_aside(disk: RepairDirectory, tp: TopicPartition, path: Path, problem: str, after: str) -> RepairAction:
    return RepairAction(tp, str(path), problem, f"set it aside: {after}", act=disk.act(partial(disk.move, [path])))


def _topics_file(disk: RepairDirectory, problem: str, *, remote: bool) -> Steps[RepairAction]:
    """Return the action that writes ``tiered-topics.json`` from the partitions' directories and the bucket's settings.

    ``problem``: the damage of the present file. ``remote``: there is a bucket; otherwise the settings are lost.

    A topic without an id is left out: the next open takes it from its directories.
    """
    folders = yield from blocking(partial(DirectoryView.read, disk.directory, disk.files))
    ids = yield from blocking(partial(read_topic_ids, disk.directory, disk.files, sorted(folders.partitions), {}))
    found: dict[str, TopicInfo] = {}
    notes: list[str] = []
    for info in [discovered(None, name, numbers) for name, numbers in ids.items()]:
        entry: TopicEntry | None = (yield from load_topic(info.name)) if remote else None
        count, config = info.partitions, STATE_CONFIG if info.name == TRANSACTION_STATE_TOPIC else info.config
        if entry is not None and entry.topic_id == info.topic_id:
            count, config = max(entry.partitions, count), entry.settings
        elif info.name != TRANSACTION_STATE_TOPIC:
            notes.append(f"the settings of {info.name} are lost: `tiered topic set {info.name}` sets them again")
        held = frozenset(info.here) if count > len(list(info.here)) else None
        if info.topic_id != NO_ID:
            found[info.name] = info._replace(partitions=count, config=config, held=held, adopted=False)
    path = disk.directory / TOPICS_NAME
    remedy = f"write {len(found)} topics from the directories of their partitions; then run the repair again"

    def write(now_ms: int) -> None:
        disk.move([path], now_ms)
        write_topics(disk.directory, disk.files, found)

    return RepairAction(NO_PARTITION, str(path), problem, remedy, notes=tuple(notes), act=disk.act(write))


# -- a partition -----------------------------------------------------------------------------------------------------


def _partition(
    disk: RepairDirectory,
    tp: TopicPartition,
    topics: Mapping[str, TopicInfo],
    found: Sequence[Finding],
    options: RepairOptions,
    *,
    remote: bool,
) -> Steps[list[RepairAction]]:
    actions: list[RepairAction] = []
    logs = [one for one in found if one.code.startswith("log_")]
    for one in found:
        if logs and one.where.endswith(LOG_SUFFIX):
            continue  # files beside a segment are judged by its batches
        folder = disk.directory / partition_dir(tp)
        if one.code in BESIDE:
            name, after = BESIDE[one.code]
            path = Path(one.where).with_suffix(name) if name.startswith(".") else folder / name
            actions.append(_set_aside(disk, tp, path, one.message, after))
        elif one.code == "leader_epochs":
            act = disk.act(partial(rebuild_epochs, disk, tp))
            actions.append(
                RepairAction(tp, str(folder / EPOCHS_NAME), one.message, "write it from the batches", act=act)
            )
        else:
            actions.append(RepairAction(tp, one.where, one.message, "put it back from a copy"))
    if logs:
        entry: TopicEntry | None = (yield from load_topic(tp.topic)) if remote else None
        info = topics.get(tp.topic)
        mine = entry is not None and (info is None or entry.topic_id == info.topic_id)
        actions += yield from plan_damage(disk, tp, logs, options, entry if mine else None)
    return actions


def _gone(disk: RepairDirectory, tp: TopicPartition, options: RepairOptions) -> Steps[RepairAction]:
    """Return the action for a partition whose directory is gone: it continues at the bucket's end, or as an empty log.

    Without ``accept_loss`` the action has no remedy if records are lost.
    """
    uploads = yield from blocking(UploadCheckpoint(disk.directory, disk.files).read)
    end = (yield from blocking(partial(find_gone, disk.directory, disk.files, uploads)))[tp]
    tiered = tp in uploads or tp in (yield from blocking(Claims(disk.directory, disk.files).read))
    starts = yield from blocking(OffsetsFile(disk.directory, LOG_START_NAME, disk.files).read)
    first = (uploads[tp].end_offset if tp in uploads else 0) if tiered else starts.get(tp, 0)
    lost = ((first, end),) if first < end else ()
    problem = f"the directory is gone or has no .log file; it held records up to offset {end}"
    act: Act | None = None
    remedy = f"go on at offset {first}, the bucket's end" if tiered else f"go on empty at offset {end}"
    if lost and not options.accept_loss:
        remedy = (
            f"put it back; `{disk.command(tp)} --accept-loss` gives up offsets {first} to {end}, which no bucket holds"
        )
    else:
        act = partial(_rejoin, disk, tp) if tiered else disk.act(partial(_accept_gone, disk, tp, end))
    return RepairAction(tp, str(disk.directory / partition_dir(tp)), problem, remedy, lost, act=act)


def _rejoin(disk: RepairDirectory, tp: TopicPartition, _: Workbench) -> Steps[None]:
    plan = yield from plan_rejoin_steps(disk.directory, [tp], SystemClock())
    yield from rejoin_steps(plan, SystemClock(), disk.files)


def _accept_gone(disk: RepairDirectory, tp: TopicPartition, end: int, _: int) -> None:
    now = find_gone(disk.directory, disk.files, UploadCheckpoint(disk.directory, disk.files).read()).get(tp)
    if now != end:
        raise ConfigError(
            f"{tp} ends at offset {now} now, and ended at {end} when the repair was planned",
            hint="run `tiered repair` again",
        )
    starts = OffsetsFile(disk.directory, LOG_START_NAME, disk.files)
    starts.write({**starts.read(), tp: end})  # first: no offset is given out twice, wherever a crash comes
    path = disk.directory / partition_dir(tp)
    disk.files.make_directory(path)
    ensure_topic_id(path, disk.files, expected_topics(disk.directory, disk.files)[tp.topic].topic_id)


def _forget(disk: RepairDirectory, tp: TopicPartition, now_ms: int) -> None:
    """Set a partition of ``__transaction_state`` aside, so that the next open aborts its open transactions.

    ``now_ms``: time in the name of the directory that gets its files.
    """
    path = disk.directory / partition_dir(tp)
    disk.files.unlink(disk.directory / CLEAN_SHUTDOWN_NAME)  # only an open after a crash looks for transactions
    if disk.files.is_directory(path):
        disk.move([path / name for name in disk.files.names(path)], now_ms)
        disk.files.remove_directory(path)
    # A partition that is noted and not there is out of service.
    disk.forget_offsets([tp], RECOVERY_POINT_NAME, LOG_START_NAME, REPLICATION_NAME)


# -- a damaged segment -------------------------------------------------------------------------------------------------


class DamagedLog(NamedTuple):
    """A ``.log`` of the offsets ``base`` to ``end`` (exclusive): undamaged batches ``spans``, ``lost`` ranges."""

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
    """Return the actions for damaged segments of a partition. ``found``: the findings of ``check`` about them.

    ``entry``: the topic's entry in the bucket, None without one.
    """
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
    uploads = yield from blocking(UploadCheckpoint(disk.directory, disk.files).read)
    uploaded = uploads[tp].end_offset if entry is None and tp in uploads else bases[0]
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
        elif end <= uploaded:
            remedy = f"name the bucket, which got these offsets: `{disk.command(tp)} --remote URL`"
            actions.append(RepairAction(tp, path, problems[base], remedy))
        else:
            offsets = Offsets(base, end)
            actions.append((yield from blocking(partial(_lost, disk, tp, offsets, problems[base], options))))
    return actions


def _clean_end(disk: RepairDirectory, tp: TopicPartition, base: int) -> int:
    """Return the end of a log whose last segment, at ``base``, is damaged. -1: unknown, for example after a crash."""
    if disk.files.state(disk.directory / CLEAN_SHUTDOWN_NAME) is None:
        return -1
    folder = disk.directory / partition_dir(tp)
    ends = [OffsetsFile(disk.directory, RECOVERY_POINT_NAME, disk.files).read().get(tp, 0)]
    ends += snapshot_offsets(disk.files, folder)
    with LogFile(disk.files, folder / log_name(base)) as log:
        ends += [span.last_offset + 1 for span in salvage(log, 0, log.size(), Offsets(base, NO_LIMIT))][-1:]
    return max(ends) if max(ends) > base else -1


def _held_end(tp: TopicPartition, start: int, entry: TopicEntry) -> Steps[int]:
    """Return the end of the undamaged segments in the bucket that follow each other from ``start`` on."""
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
    """Set aside the files of all segments that begin below ``end``, oldest first: an interruption leaves no gap.

    ``now_ms``: time in the name of the directory that gets the files.
    """
    folder = disk.directory / partition_dir(tp)
    for base in sorted({each.base for each in local_files(disk.files, folder) if each.base < end and not each.work}):
        disk.move([folder / local_name(base, suffix) for suffix in SEGMENT_SUFFIXES], now_ms)


# -- a hole ----------------------------------------------------------------------------------------------------------


def _lost(
    disk: RepairDirectory, tp: TopicPartition, offsets: Offsets, problem: str, options: RepairOptions
) -> RepairAction:
    """Return the action for damaged offsets that no bucket holds: an empty batch takes their place.

    Without ``accept_loss`` the action has no remedy.
    """
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
    """Pass each batch of the new ``.log`` for the damaged one ``each`` to ``write``. Return the finished rewrite."""
    epochs, path = LeaderEpochs(folder, disk.files, read_only=True), folder / log_name(each.base)

    def epoch_of(start: int, _: int, before: int) -> int:
        return max(before, epoch_at(epochs.entries, start))

    made = Rewrite(str(path), each.lost, _follower(disk, folder, each.base), epoch_of, filled=True)
    with LogFile(disk.files, path) as log:
        for _, data in made.batches(log, each.spans, each.end):
            write(data)
    return made


def _follower(disk: RepairDirectory, folder: Path, base: int) -> Follower:
    """Return a Follower with the producers where segment ``base`` begins, from the newest whole snapshot on."""
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
    """Pass the undamaged batches of segment ``base`` within ``offsets`` to ``follower``."""
    with LogFile(disk.files, folder / log_name(base)) as log:
        for span in salvage(log, 0, log.size(), Offsets(base, offsets.next)):
            if span.base_offset >= offsets.base:
                data = log.read_at(span.position, span.size)
                follower.see(read_producer(read_header(data), data))


def _write(disk: RepairDirectory, folder: Path, each: DamagedLog, now_ms: int) -> None:
    files, path = disk.files, folder / log_name(each.base)
    if _judged(disk, folder, each.base, each.end) != each:
        raise ConfigError(f"{path} has changed since the repair was planned", hint="run `tiered repair` again")
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
    """Return the files that change if segment ``base`` is rewritten.

    These are its side files, later transaction indexes, and the producer snapshots at the offsets ``snapshots``.
    """
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
    """Write ``leader-epoch-checkpoint`` of a partition from the batches of its segments.

    ``now_ms``: time in the name of the directory for the replaced file.
    """
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
