"""Plans the repair of a log directory: its small files, partitions whose directory is gone, damaged segments.

=================================  ====================================================================
wrong                              remedy
=================================  ====================================================================
a checkpoint                       set aside: the next open, or the uploader, writes it from other files
``tiered-topics.json``             written from the partitions' directories and the bucket's registry
``meta.properties``, the claims    set aside; the bucket goes on after ``tiered repair rejoin``
``partition.metadata``             written from ``tiered-topics.json``
``leader-epoch-checkpoint``        written from the batches
``__transaction_state``            set aside: the next open aborts what is open
a directory that is gone           rejoin at the bucket's end; else with ``accept_loss`` an empty one
a segment (``disk_segments``)      reads of it go to the bucket; else with ``accept_loss`` a hole
=================================  ====================================================================

What is replaced is kept in a directory beside the log directory, named ``{log_dir}.aside-{ms}``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from tiered.checking.local import LocalCheck
from tiered.clock import SystemClock, SystemIds
from tiered.config import TopicConfig
from tiered.errors import ConfigError, CorruptionError, NewerFormatError, NotFoundError
from tiered.findings import Finding, Severity
from tiered.format.checkpoint import decode_offsets, encode_partition_metadata
from tiered.format.coordinator_records import TRANSACTION_STATE_TOPIC
from tiered.format.keys import LOG_SUFFIX, partition_dir
from tiered.local.directory.view import DirectoryView, find_gone
from tiered.local.disk.checkpoints import (
    CLEAN_SHUTDOWN_NAME,
    CLEANER_NAME,
    LOG_START_NAME,
    META_PROPERTIES_NAME,
    RECOVERY_POINT_NAME,
    REPLICATION_NAME,
    OffsetsFile,
)
from tiered.local.disk.claims import CLAIMS_NAME, ClaimProof, Claims
from tiered.local.disk.epochs import EPOCHS_NAME
from tiered.local.disk.files import Files, PosixFiles
from tiered.local.disk.topics import TOPICS_NAME, TopicInfo, write_topics
from tiered.local.disk.uploads import OFFSET_CHECKPOINT_NAME, PartitionUpload, UploadCheckpoint
from tiered.local.disk.volume import (
    PARTITION_METADATA_NAME,
    ensure_topic_id,
    expected_topics,
    read_topic_ids,
    read_volume,
)
from tiered.local.transactions.producer_ids import PRODUCER_IDS_NAME, ProducerIds
from tiered.local.transactions.state_log import STATE_CONFIG
from tiered.model import TopicPartition
from tiered.remote.topics import TopicEntry, load_topic
from tiered.repair.bench import Workbench
from tiered.repair.disk_segments import Disk, plan_damage, rebuild_epochs
from tiered.repair.plan import Action, RepairOptions
from tiered.repair.rejoin import plan_rejoin_steps, rejoin_steps
from tiered.store.base import Blocking, Now, Steps, blocking

NOBODY = TopicPartition("", -1)
"""Partition of an action on a file of the whole log directory."""

SIDE_FILES = {"offset_index": ".index", "time_index": ".timeindex"}
"""Suffix of a derived file by the finding's code: a read of the segment makes it again."""

_DERIVED = {
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
"""Small files of a log directory, and where what they say comes from once they are set aside."""


def plan_disk(
    directory: Path,
    selected: Sequence[str | TopicPartition],
    options: RepairOptions,
    *,
    remote: bool,
    files: Files | None = None,
) -> Steps[list[Action]]:
    """Find what is wrong with a log directory, and plan its repair. ``remote``: there is a bucket to ask.

    Reads without the lock. Raises NotFoundError for a directory that is not there, NewerFormatError.
    """
    files = files or PosixFiles()
    if not files.is_directory(directory):
        raise NotFoundError(f"the log directory {directory} does not exist", hint="correct the path")
    disk = Disk(directory, files)
    actions: list[Action] = yield Blocking(partial(_small_files, disk))
    try:
        topics = yield from blocking(partial(expected_topics, directory, files))
    except CorruptionError as damage:
        _refuse_newer(damage)
        topics, action = yield from _topics_file(disk, damage.message, remote=remote)
        actions.append(action)
        return actions  # the rest is judged by this file: another run finds it
    if any(Path(action.where).name in (OFFSET_CHECKPOINT_NAME, CLAIMS_NAME) for action in actions):
        return actions  # these say which partitions a bucket holds
    names = {each if isinstance(each, str) else each.topic for each in selected}
    compacted = {name: topic.config.compacted or topic.adopted for name, topic in topics.items()}
    check = LocalCheck(
        directory, files, lambda name: compacted.get(name, True), names and {*names, TRANSACTION_STATE_TOPIC}
    )
    found: list[Finding] = yield Blocking(partial(_look, check))
    wanted = {each for each in selected if isinstance(each, TopicPartition)}
    errors: dict[TopicPartition, list[Finding]] = {}
    for finding in found:
        tp = TopicPartition(finding.topic, finding.partition)
        asked = not wanted or tp in wanted or tp.topic in (set(selected) | {TRANSACTION_STATE_TOPIC})
        if finding.severity is Severity.ERROR and finding.partition >= 0 and asked:
            errors.setdefault(tp, []).append(finding)
    for tp, several in sorted(errors.items()):
        if tp.topic == TRANSACTION_STATE_TOPIC and not topics[tp.topic].adopted:
            actions.append(_transaction_state(disk, tp, several[0].message))
        elif any(one.code == "partition_gone" for one in several):
            actions.append((yield from _gone(disk, tp, options)))
        else:
            actions += yield from _partition(disk, tp, topics, several, options, remote=remote)
    return actions


def _look(check: LocalCheck) -> list[Finding]:
    return [seen for several in check.look() for seen in several if isinstance(seen, Finding)]


def _refuse_newer(damage: CorruptionError) -> None:
    if isinstance(damage, NewerFormatError):
        raise damage


# -- small files -----------------------------------------------------------------------------------------------------


def _small_files(disk: Disk) -> list[Action]:
    directory, files = disk.directory, disk.files
    reads: dict[str, Callable[[], object]] = {
        name: partial(_read_offsets, disk, name)
        for name in (RECOVERY_POINT_NAME, LOG_START_NAME, REPLICATION_NAME, CLEANER_NAME)
    }
    reads[OFFSET_CHECKPOINT_NAME] = UploadCheckpoint(directory, files).read
    reads[CLAIMS_NAME] = Claims(directory, files).read
    reads[META_PROPERTIES_NAME] = partial(read_volume, directory, files)
    reads[PRODUCER_IDS_NAME] = ProducerIds([directory], files, SystemIds()).any_given
    actions: list[Action] = []
    for name, read in reads.items():
        try:
            read()
        except (CorruptionError, UnicodeDecodeError) as damage:
            if isinstance(damage, CorruptionError):
                _refuse_newer(damage)
            path = directory / name
            act = partial(_set_aside, disk, [path])
            actions.append(Action(NOBODY, str(path), "it cannot be read", f"set it aside: {_DERIVED[name]}", act=act))
    return actions


def _read_offsets(disk: Disk, name: str) -> None:
    path = disk.directory / name
    if disk.files.state(path) is not None:
        decode_offsets(disk.files.read(path).decode())


def _set_aside(disk: Disk, paths: Collection[Path], _: Workbench) -> Steps[None]:
    now_ms = (yield Now()).now_ms
    yield Blocking(partial(disk.locked, partial(disk.move, paths, now_ms)))


def _topics_file(disk: Disk, problem: str, *, remote: bool) -> Steps[tuple[dict[str, TopicInfo], Action]]:
    """Return the topics that the directories tell, with the settings of the bucket, and the action that writes them."""
    found = yield from blocking(partial(_topics_of_directories, disk))
    notes: list[str] = []
    for name, info in found.items():
        entry: TopicEntry | None = (yield from load_topic(name)) if remote else None
        if entry is not None and entry.topic_id == info.topic_id:
            found[name] = _sized(info, max(entry.partitions, info.partitions), entry.settings)
        elif name != TRANSACTION_STATE_TOPIC:
            notes.append(f"the settings of {name} are lost: `tiered topics alter {name}` sets them again")
    path = disk.directory / TOPICS_NAME
    remedy = f"write {len(found)} topics from the directories of their partitions; then run the repair again"
    act = partial(_write_topics, disk, found)
    return found, Action(NOBODY, str(path), problem, remedy, notes=tuple(notes), act=act)


def _topics_of_directories(disk: Disk) -> dict[str, TopicInfo]:
    folders = DirectoryView.look(disk.directory, disk.files).partitions
    ids = read_topic_ids(disk.directory, disk.files, sorted(folders), {})
    points = OffsetsFile(disk.directory, RECOVERY_POINT_NAME, disk.files).read()
    found: dict[str, TopicInfo] = {}
    for name, numbers in ids.items():
        topic_id = next((each for each in numbers.values() if each is not None), None)
        if topic_id is None:
            raise CorruptionError(
                f"{disk.directory / TOPICS_NAME} cannot be read, and no partition of {name} has its topic id",
                path_or_key=str(disk.directory / TOPICS_NAME),
                hint=f"put {PARTITION_METADATA_NAME} of one of its partitions back from a copy",
            )
        here = {*numbers, *(tp.partition for tp, end in points.items() if tp.topic == name and end > 0)}
        config = STATE_CONFIG if name == TRANSACTION_STATE_TOPIC else TopicConfig()
        found[name] = _sized(TopicInfo(name, topic_id, 0, config, frozenset(here)), max(here) + 1, config)
    return found


def _sized(info: TopicInfo, partitions: int, config: TopicConfig) -> TopicInfo:
    held = frozenset(info.here)
    return info._replace(
        partitions=partitions, config=config, held=None if held == frozenset(range(partitions)) else held
    )


def _write_topics(disk: Disk, topics: Mapping[str, TopicInfo], _: Workbench) -> Steps[None]:
    now_ms = (yield Now()).now_ms

    def write() -> None:
        disk.move([disk.directory / TOPICS_NAME], now_ms)
        write_topics(disk.directory, disk.files, topics)

    yield Blocking(partial(disk.locked, write))


# -- a partition -----------------------------------------------------------------------------------------------------


def _partition(
    disk: Disk,
    tp: TopicPartition,
    topics: Mapping[str, TopicInfo],
    found: Sequence[Finding],
    options: RepairOptions,
    *,
    remote: bool,
) -> Steps[list[Action]]:
    folder = disk.directory / partition_dir(tp)
    actions: list[Action] = []
    logs = [one for one in found if one.code.startswith("log_")]
    for one in found:
        if logs and one.where.endswith(LOG_SUFFIX):
            continue  # what stands beside a segment is judged by its batches
        if one.code == "partition_metadata":
            path = folder / PARTITION_METADATA_NAME
            actions.append(Action(tp, str(path), "it cannot be read", f"write it from {TOPICS_NAME}",
                                  act=partial(_write_topic_id, disk, tp)))  # fmt: skip
        elif one.code == "leader_epochs":
            path, act = folder / EPOCHS_NAME, partial(rebuild_epochs, disk, tp)
            actions.append(Action(tp, str(path), one.message, "write it from the batches", act=act))
        elif one.code in SIDE_FILES:
            path = Path(one.where).with_suffix(SIDE_FILES[one.code])
            act = partial(_set_aside, disk, [path])
            actions.append(Action(tp, str(path), one.message, "set it aside: the next read makes it again", act=act))
        else:
            actions.append(Action(tp, one.where, one.message, "put it back from a copy"))
    if logs:
        entry: TopicEntry | None = (yield from load_topic(tp.topic)) if remote else None
        info = topics.get(tp.topic)
        mine = entry is not None and (info is None or entry.topic_id == info.topic_id)
        actions += yield from plan_damage(disk, tp, logs, options, entry if mine else None)
    return actions


def _write_topic_id(disk: Disk, tp: TopicPartition, _: Workbench) -> Steps[None]:
    now_ms = (yield Now()).now_ms
    path = disk.directory / partition_dir(tp) / PARTITION_METADATA_NAME

    def write() -> None:
        topic = expected_topics(disk.directory, disk.files)[tp.topic]
        disk.move([path], now_ms)
        disk.files.replace(path, encode_partition_metadata(topic.topic_id).encode())

    yield Blocking(partial(disk.locked, write))


def _gone(disk: Disk, tp: TopicPartition, options: RepairOptions) -> Steps[Action]:
    """Return the action for a partition whose directory is gone: it goes on at the bucket's end, or empty."""
    uploads, claims, gone, starts = yield from blocking(partial(_noted, disk))
    end, path = gone[tp], str(disk.directory / partition_dir(tp))
    tiered = tp in uploads or tp in claims
    first = (uploads[tp].end_offset if tp in uploads else 0) if tiered else starts.get(tp, 0)
    lost = ((first, end),) if first < end else ()
    problem = f"the directory is gone; it held records up to offset {end}"
    if lost and not options.accept_loss:
        remedy = (
            f"put it back; `{disk.command(tp)} --accept-loss` gives up offsets {first} to {end}, which no bucket holds"
        )
        return Action(tp, path, problem, remedy, lost)
    if tiered:
        act = partial(_rejoin, disk, tp)
        return Action(tp, path, problem, f"go on at offset {first}, the bucket's end", lost, act=act)
    return Action(tp, path, problem, f"go on empty at offset {end}", lost, act=partial(_accept_gone, disk, tp, end))


def _noted(
    disk: Disk,
) -> tuple[
    Mapping[TopicPartition, PartitionUpload],
    Mapping[TopicPartition, ClaimProof],
    Mapping[TopicPartition, int],
    Mapping[TopicPartition, int],
]:
    uploads = UploadCheckpoint(disk.directory, disk.files).read()
    starts = OffsetsFile(disk.directory, LOG_START_NAME, disk.files).read()
    return (
        uploads,
        Claims(disk.directory, disk.files).read(),
        find_gone(disk.directory, disk.files, uploads),
        starts,
    )


def _rejoin(disk: Disk, tp: TopicPartition, _: Workbench) -> Steps[None]:
    plan = yield from plan_rejoin_steps(disk.directory, [tp], SystemClock())
    yield from rejoin_steps(plan, SystemClock(), disk.files)


def _accept_gone(disk: Disk, tp: TopicPartition, end: int, _: Workbench) -> Steps[None]:
    def accept() -> None:
        now = _noted(disk)[2].get(tp)
        if now != end:
            raise ConfigError(f"{tp} reached offset {now} by now, not {end}", hint="plan the repair again")
        starts = OffsetsFile(disk.directory, LOG_START_NAME, disk.files)
        starts.write({**starts.read(), tp: end})  # first: no offset is given out twice, wherever a crash comes
        path = disk.directory / partition_dir(tp)
        disk.files.make_directory(path)
        ensure_topic_id(path, disk.files, expected_topics(disk.directory, disk.files)[tp.topic].topic_id)

    yield Blocking(partial(disk.locked, accept))


def _transaction_state(disk: Disk, tp: TopicPartition, problem: str) -> Action:
    path = disk.directory / partition_dir(tp)
    remedy = "set it aside: the next open aborts the transactions that are open"
    return Action(tp, str(path), problem, remedy, act=partial(_without_state, disk, tp))


def _without_state(disk: Disk, tp: TopicPartition, _: Workbench) -> Steps[None]:
    now_ms = (yield Now()).now_ms
    path = disk.directory / partition_dir(tp)

    def forget() -> None:
        disk.files.unlink(disk.directory / CLEAN_SHUTDOWN_NAME)  # only an open after a crash looks for transactions
        if disk.files.is_directory(path):
            disk.move([path / name for name in disk.files.names(path)], now_ms)
            disk.files.remove_directory(path)
        for name in (RECOVERY_POINT_NAME, LOG_START_NAME, REPLICATION_NAME):
            offsets = OffsetsFile(disk.directory, name, disk.files)
            if tp in offsets.read():  # a partition that is noted and not there is out of service
                offsets.write({each: at for each, at in offsets.read().items() if each != tp})

    yield Blocking(partial(disk.locked, forget))
