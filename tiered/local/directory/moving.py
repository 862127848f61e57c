"""Move of one partition from log directory A to B: close it, copy it, then rename.

::

    A's checkpoint gets the partition's end, so that no open of A makes an empty one if its folder is missing
    B/{tp}.{uuid}-future/     a copy of the closed partition, fsynced
    B/..-future/tiered-move-ready        says: complete, from directory A, log start S, all below R durable
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

from tiered.errors import NotFoundError, TieredError
from tiered.format.local_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SWAP_SUFFIX,
    partition_dir,
    renamed_dir,
)
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import DirectoryView
from tiered.local.directory.registry import remove_tree
from tiered.local.disk.files import Files, make_inside
from tiered.local.disk.topics import TopicInfo
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")

READY_NAME = "tiered-move-ready"
COPY_BYTES = 1024 * 1024


class Ready(NamedTuple):
    """Content of the file that marks a complete copy: id of the source directory, log start, recovery point."""

    source: UUID
    log_start: int
    recovery_point: int


def copy_partition(files: Files, source: Path, target: Path) -> None:
    """Copy the files of the closed partition in ``source`` to the empty directory ``target``, durably."""
    for name in files.names(source):
        if not name.endswith((DELETED_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX)):
            _copy_file(files, source / name, target / name)
    files.sync_directory(target)


def _copy_file(files: Files, source: Path, target: Path) -> None:
    reading = files.open_read(source)
    try:
        writing = files.open_write(target)
        try:
            position, buffer = 0, bytearray(COPY_BYTES)
            while count := files.read_into(reading, buffer, position):
                files.write_at(writing, memoryview(buffer)[:count], position)
                position += count
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
    writer = source.roster.wake(tp)  # raises for one that is out of service, before anything is made
    files, place = target.files, source.directory / partition_dir(tp)
    future = target.directory / renamed_dir(tp, uid, "future")
    make_inside(files, future)
    with source.cleaner.paused(tp):
        cleaned = source.cleaner.checkpoint.offset(tp)  # may fail, which it must not once the partition is closed
        writer.flush()
        source.notes.write_points()
        source.roster.forget(tp, timeout_seconds)
        ready = Ready(source.volume_id, writer.log_start, writer.durability.recovery_point)
        try:
            copy_partition(files, place, future)
            mark = json.dumps({**ready._asdict(), "source": str(ready.source)})
            files.replace(future / READY_NAME, mark.encode())
            topic = source.registry.release(tp)
        except TieredError:
            if files.is_directory(place):  # it stays; the copy goes with the next open
                source.roster.adopt(tp, clean=True, recovery_point=ready.recovery_point, start=ready.log_start)
            raise
        swap_in(target, future.name, tp, topic, ready)
    target.cleaner.checkpoint.adopt(tp, cleaned)
    source.cleaner.forget_gone()
    LOGGER.info("partition_moved partition=%s from=%s to=%s", tp, source.directory, target.directory)


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
    A complete copy becomes the partition if the partition's own directory is gone. A copy whose source directory is
    not in ``logs`` stays, unless the partition is in one of ``logs``.
    """
    sources = {log.volume_id: log for log in logs}
    for log in logs:
        for name, tp, _ in DirectoryView.read(log.directory, log.files).renamed("future"):
            ready, topic = read_ready(log.files, log.directory / name), topics.get(tp.topic)
            source = sources.get(ready.source) if ready is not None else None
            holder = next((each for each in logs if tp in each.partitions()), None)
            lost = holder is not None and not holder.files.is_directory(holder.directory / partition_dir(tp))
            if ready is None or (holder is not None and not (lost and holder is source)):
                remove_tree(log.files, log.directory / name)
            elif source is None:
                LOGGER.warning("move_unsettled path=%s hint=open its source directory too", log.directory / name)
            elif topic is None:
                remove_tree(log.files, log.directory / name)
            else:
                LOGGER.warning("move_finished partition=%s from=%s to=%s", tp, source.directory, log.directory)
                if holder is not None:
                    source.roster.forget(tp, timeout_seconds)
                    source.registry.release(tp)
                swap_in(log, name, tp, topic, ready)


def read_ready(files: Files, future: Path) -> Ready | None:
    """Return the mark of a complete copy in the directory ``future``, None if the copy is not complete."""
    try:
        value = json.loads(files.read(future / READY_NAME))
        return Ready(UUID(value["source"]), int(value["log_start"]), int(value["recovery_point"]))
    except (NotFoundError, ValueError, KeyError, TypeError):
        return None
