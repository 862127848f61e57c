"""Moves one partition to another log directory: a copy beside, caught up, then swapped in by renames.

::

    B/{tp}.{uuid}-future/     a copy; appends to A go on while it grows
    A closed to appends       the rest is copied, all of it fsynced
    B/..-future/tiered-move-ready        says: complete, from directory A, log start S, all below R durable
    A/tiered-topics.json      no longer claims the partition
    A/{tp} -> A/{tp}.{uuid}-delete       the commit point
    B/..-future -> B/{tp}

Until the commit point the partition is where it was, and the copy is thrown away by the next open. After it the copy
is all there is, and the next open of both directories finishes the renames.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tiered.errors import NotFoundError, TieredError
from tiered.format.keys import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    parse_local_name,
    partition_dir,
    renamed_dir,
)
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.files import Files
from tiered.local.disk.topics import TopicInfo
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")

READY_NAME = "tiered-move-ready"
COPY_BYTES = 1024 * 1024
CATCH_UP_ROUNDS = 4
"""Copies while appends go on; what is left after them is copied while they wait."""


class Ready(NamedTuple):
    """What the mark of a complete copy says: the directory that it was made from, log start and recovery point."""

    source: UUID
    log_start: int
    recovery_point: int


def copy_partition(log: LocalLog, tp: TopicPartition, target: Path, *, filled_in: bool) -> None:
    """Makes ``target`` what the directory of ``tp`` is now, as far as files stand still.

    ``filled_in``: there are preallocated files, which change below their length, too.
    """
    files, source = log.files, log.directory / partition_dir(tp)
    names = [name for name in files.names(source) if not name.endswith((DELETED_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX))]
    for name in set(files.names(target)) - set(names) - {READY_NAME}:
        files.unlink(target / name)
    for name in names:
        parsed = parse_local_name(name)
        grown = parsed is not None and parsed.suffix == LOG_SUFFIX and not parsed.work and not filled_in
        try:
            _copy_file(files, source / name, target / name, grown=grown)
        except NotFoundError:
            continue  # retention took it since the listing


def _copy_file(files: Files, source: Path, target: Path, *, grown: bool) -> None:
    """``grown``: a file that is only appended to; what was copied before is not copied again."""
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
            files.sync(writing)
        finally:
            files.close(writing)
    finally:
        files.close(reading)


def move(source: LocalLog, target: LocalLog, tp: TopicPartition, *, uid: str, timeout_seconds: float) -> None:
    """Moves ``tp``. Objects that were got for it before raise ClosedError afterwards: ask for the partition again."""
    told = source.roster.writers[tp].watermark.told  # of one that is out of service: why, before anything is made
    future = target.directory / renamed_dir(tp, uid, "future")
    target.files.make_directory(future)
    with source.cleaner.paused(tp):
        cleaned = source.cleaner.checkpoint.offset(tp)
        _move(source, target, tp, future, timeout_seconds=timeout_seconds)
    target.cleaner.checkpoint.adopt(tp, cleaned)
    if told is not None:
        target.roster.writers[tp].tell_high_watermark(told)
    source.cleaner.forget_gone()
    LOGGER.info("partition_moved partition=%s from=%s to=%s", tp, source.directory, target.directory)


def _move(source: LocalLog, target: LocalLog, tp: TopicPartition, future: Path, *, timeout_seconds: float) -> None:
    files = target.files
    partition = source.partition(tp)
    writer, filled_in = source.roster.writers[tp], False
    for _ in range(CATCH_UP_ROUNDS):
        before = partition.positions().end_offset
        partition.flush()
        filled_in = filled_in or writer.preallocated
        copy_partition(source, tp, future, filled_in=filled_in)
        if partition.positions().end_offset == before:
            break
    start = writer.log_start
    topic = source.topics()[tp.topic]
    filled_in = filled_in or writer.preallocated
    source.roster.forget(tp, timeout_seconds)
    try:
        copy_partition(source, tp, future, filled_in=filled_in)
        files.sync_directory(future)
        ready = Ready(source.volume_id, start, writer.flusher.recovery_point)
        files.replace(future / READY_NAME, json.dumps({**ready._asdict(), "source": str(ready.source)}).encode())
        source.registry.release(topic._replace(held=frozenset(topic.here) - {tp.partition}), tp)
    except TieredError:
        if files.is_directory(source.directory / partition_dir(tp)):  # it stays; the copy goes with the next open
            source.roster.adopt(tp, clean=True, recovery_point=writer.flusher.recovery_point, start=start)
        raise
    swap_in(target, future.name, tp, topic, ready)


def swap_in(target: LocalLog, name: str, tp: TopicPartition, topic: TopicInfo, ready: Ready) -> None:
    """The complete copy takes the partition's name; from then on it is the partition."""
    files, final = target.files, target.directory / partition_dir(tp)
    target.notes.expect(tp, ready.log_start)
    files.rename(target.directory / name, final)
    files.sync_directory(target.directory)  # before the mark goes: a copy without it is thrown away
    files.unlink(final / READY_NAME)
    files.sync_directory(final)
    known = target.topics().get(tp.topic)
    held = frozenset(known.here) if known is not None else frozenset[int]()
    info = topic._replace(held=held | {tp.partition})
    target.registry.take(info, tp, log_start=ready.log_start, recovery_point=ready.recovery_point)
    target.notes.arrived(tp)


def read_ready(files: Files, future: Path) -> Ready | None:
    """The mark of a complete copy; None: it is not complete."""
    try:
        value = json.loads(files.read(future / READY_NAME))
        return Ready(UUID(value["source"]), int(value["log_start"]), int(value.get("recovery_point", 0)))
    except (NotFoundError, ValueError, KeyError, TypeError):
        return None
