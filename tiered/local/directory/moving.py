"""Move of one partition from log directory A to B: copy it, copy what was appended since, then rename.

::

    B/{tp}.{uuid}-future/     a copy; appends to A continue while it grows
    A's checkpoint gets the partition's end, so that no open of A makes an empty one if its folder is missing
    A closed to appends       the last bytes are copied, and the whole copy is fsynced
    B/..-future/tiered-move-ready        says: complete, from directory A, log start S, end E, all below R durable
    A/tiered-topics.json      no longer claims the partition
    A/{tp} -> A/{tp}.{uuid}-delete       the commit point
    B/..-future -> B/{tp}

Before the commit point, the partition is in A, and the next open discards the copy. After it, only the copy is left,
and the next open of both directories finishes the renames. The same holds if the partition's folder disappears from A
earlier: a complete copy becomes the partition (:func:`finish_moves`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tiered.errors import CorruptionError, LocalIOError, NotFoundError, TieredError
from tiered.format.local_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    parse_local_name,
    partition_dir,
    renamed_dir,
)
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import DirectoryView
from tiered.local.directory.registry import remove_tree
from tiered.local.disk.files import Files, make_inside
from tiered.local.disk.topics import TopicInfo, read_topic_id
from tiered.local.partition.write_log import WriteLog
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")

READY_NAME = "tiered-move-ready"
COPY_BYTES = 1024 * 1024
CATCH_UP_ROUNDS = 4
"""Limit of copies while appends continue. The bytes after the last of them are copied while appends wait."""


class Ready(NamedTuple):
    """Content of the file that marks a complete copy: id of the source directory, log start, recovery point and end."""

    source: UUID
    log_start: int
    recovery_point: int
    end_offset: int


def copy_partition(log: LocalLog, tp: TopicPartition, target: Path, *, grown: bool, closed: bool = False) -> None:
    """Copy the partition directory of ``tp`` to ``target``, and remove all other files from ``target``.

    ``grown``: True if the ``.log`` files only became longer since the last copy. Then only their new bytes are copied.
    Pass False after the log was truncated. ``closed``: True if the partition is closed, so that a missing file raises
    NotFoundError. Otherwise a file that disappears meanwhile is skipped.
    """
    files, source = log.files, log.directory / partition_dir(tp)
    names = [name for name in files.names(source) if not name.endswith((DELETED_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX))]
    for name in set(files.names(target)) - set(names) - {READY_NAME}:
        files.unlink(target / name)
    for name in names:
        parsed = parse_local_name(name)
        is_log = parsed is not None and parsed.suffix == LOG_SUFFIX and not parsed.work
        try:
            _copy_file(files, source / name, target / name, grown=grown and is_log)
        except NotFoundError:
            if closed:
                raise
            continue  # retention took it since the listing


def _copy_file(files: Files, source: Path, target: Path, *, grown: bool) -> None:
    """Copy a file and fsync the copy. ``grown``: copy only the bytes after the length of ``target``."""
    reading = files.open_read(source)
    try:
        writing = files.open_write(target)
        try:
            size = files.size(reading)
            position = min(files.size(writing), size) if grown else 0
            buffer = bytearray(COPY_BYTES)
            while position < size:
                count = files.read_into(reading, memoryview(buffer)[: size - position], position)
                if count == 0:
                    break
                files.write_at(writing, memoryview(buffer)[:count], position)
                position += count
            files.truncate(writing, position)
            # mutant moved-file-is-fsynced
            files.sync(writing)
        finally:
            files.close(writing)
    finally:
        files.close(reading)


def move(source: LocalLog, target: LocalLog, tp: TopicPartition, *, uid: str, timeout_seconds: float) -> None:
    """Move ``tp`` from ``source`` to ``target``. Objects that ``source`` returned for ``tp`` then raise ClosedError.

    ``uid`` makes the name of the copy unique. ``timeout_seconds``: limit of the wait for the partition's close, after
    which LocalIOError is raised. Raises the partition's error if it is out of service.
    """
    writer = source.roster.logs[tp]  # raises for one that is out of service, before anything is made
    future = target.directory / renamed_dir(tp, uid, "future")
    make_inside(target.files, future)
    with source.cleaner.paused(tp):
        cleaned = _move(source, target, writer, future, timeout_seconds=timeout_seconds)
    target.cleaner.checkpoint.adopt(tp, cleaned)
    source.cleaner.forget_gone()
    LOGGER.info("partition_moved partition=%s from=%s to=%s", tp, source.directory, target.directory)


def _move(source: LocalLog, target: LocalLog, writer: WriteLog, future: Path, *, timeout_seconds: float) -> int | None:
    """Copy the partition of ``writer`` into the directory ``future``, close it, and rename the copy.

    Return its first dirty offset (compaction), None if it has none. Raises LocalIOError if the close takes longer than
    ``timeout_seconds``.
    """
    files, tp = target.files, writer.tp
    partition = source.partition(tp)
    cuts = writer.cuts
    for _ in range(CATCH_UP_ROUNDS):
        end, before = partition.positions().end_offset, cuts
        partition.flush()
        cuts = writer.cuts
        copy_partition(source, tp, future, grown=cuts == before)
        if partition.positions().end_offset == end:
            break
    source.notes.write_points()
    cleaned = source.cleaner.checkpoint.offset(tp)  # may fail, which it must not once the partition is closed
    with source.registry.moving(tp):
        source.roster.forget(tp, timeout_seconds)
        # These may change until it is closed: read them now.
        start, point = writer.log_start, writer.durability.recovery_point
        try:
            copy_partition(source, tp, future, grown=writer.cuts == cuts, closed=True)
            files.sync_directory(future)
            ready = Ready(source.volume_id, start, point, writer.end_offset)
            mark = json.dumps({**ready._asdict(), "source": str(ready.source)})
            files.replace(future / READY_NAME, mark.encode())
            topic = source.registry.release(tp)
        except TieredError:
            if files.is_directory(source.directory / partition_dir(tp)):  # it stays; the copy goes with the next open
                source.roster.adopt(tp, clean=True, recovery_point=point, start=start)
            raise
    swap_in(target, future.name, tp, topic, ready)
    return cleaned


def swap_in(target: LocalLog, name: str, tp: TopicPartition, topic: TopicInfo, ready: Ready) -> None:
    """Rename the directory ``name``, a complete copy, to the partition's name, and add the partition to ``target``.

    ``topic``: the entry to store for its topic. ``ready``: the mark in the copy.
    """
    files, final = target.files, target.directory / partition_dir(tp)
    target.notes.expect(tp, ready.log_start)
    files.rename(target.directory / name, final)
    # mutant moved-name-is-fsynced
    files.sync_directory(target.directory)  # before the mark goes: a copy without it is thrown away
    files.unlink(final / READY_NAME)
    files.sync_directory(final)
    known = target.topics().get(tp.topic)
    held = frozenset(known.here) if known is not None else frozenset[int]()
    info = topic._replace(held=held | {tp.partition})
    target.registry.adopt(info, tp, log_start=ready.log_start, recovery_point=ready.recovery_point)
    target.notes.arrived(tp)


def finish_moves(logs: Sequence[LocalLog], topics: Mapping[str, TopicInfo], *, timeout_seconds: float) -> None:
    """Finish each committed move of a crashed process, and discard the copies of moves that were not committed.

    ``topics``: those of all ``logs``. ``timeout_seconds``: limit for the close of a partition.
    A complete copy becomes the partition if the partition's own directory is gone. If both exist and the copy has a
    higher end, both stay and a warning is logged: the partition was created again, or it has lost records.
    A copy whose source directory is not in ``logs`` stays, too.
    """
    sources = {log.volume_id: log for log in logs}
    present = {tp for log in logs for tp in log.partitions()}
    for log in logs:
        for name, tp, _ in DirectoryView.read(log.directory, log.files).renamed("future"):
            future = log.directory / name
            ready, topic = read_ready(log.files, future), topics.get(tp.topic)
            source = sources.get(ready.source) if ready is not None else None
            if ready is not None and source is not None and topic is not None and tp in source.partitions():
                if not _is_of(topic, future, log.files):
                    remove_tree(log.files, future)
                elif not source.files.is_directory(source.directory / partition_dir(tp)):
                    LOGGER.warning("move_finished partition=%s from=%s to=%s", tp, source.directory, log.directory)
                    source.roster.forget(tp, timeout_seconds)
                    source.registry.release(tp)
                    swap_in(log, name, tp, topic, ready)
                elif _reaches(source, tp, ready.end_offset):
                    remove_tree(log.files, future)
                else:
                    LOGGER.warning("move_unsettled path=%s hint=%s", future, _further(source, tp, ready))
            elif ready is None or tp in present or (topic is None and source is not None):
                remove_tree(log.files, future)
            elif topic is not None and source is not None:
                swap_in(log, name, tp, topic, ready)
            else:
                LOGGER.warning("move_unsettled path=%s hint=open its source directory too", future)


def _is_of(topic: TopicInfo, future: Path, files: Files) -> bool:
    """Return False if the copy in ``future`` has the id of another topic of this name.

    Return True if its id is missing or unreadable.
    """
    try:
        return read_topic_id(future, files) in (None, topic.topic_id)
    except (CorruptionError, LocalIOError):
        return True


def _reaches(source: LocalLog, tp: TopicPartition, end_offset: int) -> bool:
    """Return True if the partition in ``source`` ends at or above ``end_offset``; False if it cannot be read."""
    try:
        return source.partition(tp).positions().end_offset >= end_offset
    except (CorruptionError, LocalIOError):
        return False


def _further(source: LocalLog, tp: TopicPartition, ready: Ready) -> str:
    return (
        f"this copy holds records up to offset {ready.end_offset}, {source.directory / partition_dir(tp)} does not; "
        "both are kept; to use the copy, move that directory away and open the log again"
    )


def read_ready(files: Files, future: Path) -> Ready | None:
    """Return the mark of a complete copy in the directory ``future``, None if the copy is not complete."""
    try:
        value = json.loads(files.read(future / READY_NAME))
        point, end = int(value["recovery_point"]), int(value["end_offset"])
        return Ready(UUID(value["source"]), int(value["log_start"]), point, end)
    except (NotFoundError, ValueError, KeyError, TypeError):
        return None
