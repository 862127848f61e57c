"""``repair accept-loss``: a partition whose directory is gone, and that no bucket has, goes on behind what it lost.

::

    log-start-offset-checkpoint   names the end that was noted of the partition: no offset is given twice
    {log_dir}/flights-0/          made, empty, with the topic id; the next open takes it into service

Until the directory is made the partition is as before: a crash in between leaves it out of service.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tiered.clock import Clock
from tiered.errors import ConfigError, UnknownTopicError
from tiered.format.keys import partition_dir
from tiered.local.directory.view import find_gone
from tiered.local.disk.checkpoints import LOG_START_NAME, OffsetsFile
from tiered.local.disk.claims import Claims
from tiered.local.disk.files import Files
from tiered.local.disk.lock import DirectoryLock
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploads import UploadCheckpoint
from tiered.local.disk.volume import ensure_topic_id, expected_topics
from tiered.model import TopicPartition
from tiered.store.base import Steps, blocking


@dataclass(frozen=True, slots=True)
class LossPlan:
    """Offsets of ``tp`` below ``end_offset`` that are on this disk no more are given up; it goes on there."""

    directory: Path
    tp: TopicPartition
    end_offset: int


def plan_loss_steps(directory: Path, tp: TopicPartition, files: Files) -> Steps[LossPlan]:
    """Looks at the disk only. Raises UnknownTopicError, and ConfigError for a partition that this is not for."""
    return blocking(partial(_planned, directory, tp, files))


def accept_loss_steps(plan: LossPlan, clock: Clock, files: Files) -> Steps[None]:
    """All of it in one go, whoever is cancelled. Raises LockedError, ConfigError if it is another loss by now."""
    return blocking(partial(_accept, plan, clock, files))


def _planned(directory: Path, tp: TopicPartition, files: Files) -> LossPlan:
    _topic(directory, tp, files)
    uploads, claims = UploadCheckpoint(directory, files).read(), Claims(directory, files).read()
    gone = find_gone(directory, files, uploads)
    if tp in uploads or tp in claims:
        raise ConfigError(
            f"{tp} is in a bucket, too: nothing of what that holds is to be given up",
            hint=f"`tiered repair rejoin {tp.topic}:{tp.partition} --log-dir {directory}` lets it go on there",
        )
    if tp not in gone:
        is_there = files.is_directory(directory / partition_dir(tp))
        what = "its directory is there" if is_there else "nothing was noted of it"
        raise ConfigError(f"{tp} has lost no directory: {what}", hint="open the log; `tiered check` verifies it")
    return LossPlan(directory, tp, gone[tp])


def _topic(directory: Path, tp: TopicPartition, files: Files) -> TopicInfo:
    topic = expected_topics(directory, files).get(tp.topic)
    if topic is None or tp.partition not in topic.here:
        raise UnknownTopicError(f"{directory} holds no partition {tp}", hint="`tiered status` names them")
    return topic


def _accept(plan: LossPlan, clock: Clock, files: Files) -> None:
    lock = DirectoryLock(plan.directory, files)
    lock.acquire(clock)
    try:
        now = _planned(plan.directory, plan.tp, files)
        if now != plan:
            raise ConfigError(f"{plan.tp} reached offset {now.end_offset} by now, not {plan.end_offset}: plan it again")
        starts = OffsetsFile(plan.directory, LOG_START_NAME, files)
        starts.write({**starts.read(), plan.tp: plan.end_offset})
        path = plan.directory / partition_dir(plan.tp)
        files.make_directory(path)
        ensure_topic_id(path, files, _topic(plan.directory, plan.tp, files).topic_id)
    finally:
        lock.release()
