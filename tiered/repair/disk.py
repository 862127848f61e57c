"""Plans the repair of a log directory: its small files, partitions whose directory is gone, damaged segments.

=================================  ====================================================================
wrong                              remedy
=================================  ====================================================================
a file of ``DERIVED``              set aside: other files say the same, or ``tiered repair rejoin`` follows
``tiered-topics.json``             written from the partitions' directories and the bucket's registry
``leader-epoch-checkpoint``        written from the batches
``__transaction_state``            set aside: the next open aborts what is open
a directory that is gone           rejoin at the bucket's end; else with ``accept_loss`` an empty one
a segment (``disk_segments``)      reads of it go to the bucket; else with ``accept_loss`` a hole
=================================  ====================================================================

What is replaced is kept in a directory beside the log directory, named ``{log_dir}.aside-{ms}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tiered.check.findings import NEWER_RELEASE, Finding, Severity
from tiered.check.local import UNREADABLE, LocalCheck, read_small_files
from tiered.clock import SystemClock
from tiered.errors import ConfigError, CorruptionError, LocalIOError, NewerFormatError, NotFoundError
from tiered.format.coordinator_records import TRANSACTION_STATE_TOPIC
from tiered.format.local_names import LOG_SUFFIX, partition_dir
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
from tiered.local.disk.partition_files import EPOCHS_NAME
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
from tiered.local.transactions.state_log import PRODUCER_IDS_NAME, STATE_CONFIG
from tiered.model import TopicPartition
from tiered.remote.topics import TopicEntry, load_topic
from tiered.repair.bench import Workbench
from tiered.repair.disk_segments import plan_damage, rebuild_epochs
from tiered.repair.log_dir import RepairDirectory
from tiered.repair.plan import NO_PARTITION, Act, RepairAction, RepairOptions
from tiered.repair.rejoin import plan_rejoin_steps, rejoin_steps
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


def plan_disk(
    directory: Path,
    selected: Sequence[str | TopicPartition],
    options: RepairOptions,
    *,
    remote: bool,
    files: Files | None = None,
) -> Steps[list[RepairAction]]:
    """Find what is wrong with a log directory, and plan its repair. ``remote``: there is a bucket to ask.

    Reads without the lock. Raises NotFoundError for a directory that is not there, NewerFormatError.
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
    """Return what ``check`` finds wrong with the selected partitions, and with the log of transactions."""
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
    """Return the actions for what ``check`` finds. Raises NewerFormatError, LocalIOError for what it cannot judge."""
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
    """Return the action that writes the topics of the directories, with the settings of the bucket.

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
    """Return the action for a partition whose directory is gone: it goes on at the bucket's end, or empty."""
    uploads = yield from blocking(UploadCheckpoint(disk.directory, disk.files).read)
    end = (yield from blocking(partial(find_gone, disk.directory, disk.files, uploads)))[tp]
    tiered = tp in uploads or tp in (yield from blocking(Claims(disk.directory, disk.files).read))
    starts = yield from blocking(OffsetsFile(disk.directory, LOG_START_NAME, disk.files).read)
    first = (uploads[tp].end_offset if tp in uploads else 0) if tiered else starts.get(tp, 0)
    lost = ((first, end),) if first < end else ()
    problem = f"the directory is gone; it held records up to offset {end}"
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
        raise ConfigError(f"{tp} reached offset {now} by now, not {end}", hint="plan the repair again")
    starts = OffsetsFile(disk.directory, LOG_START_NAME, disk.files)
    starts.write({**starts.read(), tp: end})  # first: no offset is given out twice, wherever a crash comes
    path = disk.directory / partition_dir(tp)
    disk.files.make_directory(path)
    ensure_topic_id(path, disk.files, expected_topics(disk.directory, disk.files)[tp.topic].topic_id)


def _forget(disk: RepairDirectory, tp: TopicPartition, now_ms: int) -> None:
    """Set a partition of the log of transactions aside."""
    path = disk.directory / partition_dir(tp)
    disk.files.unlink(disk.directory / CLEAN_SHUTDOWN_NAME)  # only an open after a crash looks for transactions
    if disk.files.is_directory(path):
        disk.move([path / name for name in disk.files.names(path)], now_ms)
        disk.files.remove_directory(path)
    # A partition that is noted and not there is out of service.
    disk.forget_offsets([tp], RECOVERY_POINT_NAME, LOG_START_NAME, REPLICATION_NAME)
