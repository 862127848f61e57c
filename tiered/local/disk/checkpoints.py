"""Kafka's small files of a log directory: offset checkpoints, ``meta.properties``, the mark of a clean shutdown.

A checkpoint that is damaged counts as empty, as in Kafka, but is reported: the price is a longer recovery, not data. A
file of our own from a newer release is no damage: it is left as it is, and the error says "upgrade".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from tiered.errors import CorruptionError, NewerFormatError, NotFoundError
from tiered.format.checkpoint import decode_clean_shutdown, decode_offsets, encode_clean_shutdown, encode_offsets
from tiered.local.disk.files import Files, SmallFile
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")
T = TypeVar("T")

RECOVERY_POINT_NAME = "recovery-point-offset-checkpoint"
LOG_START_NAME = "log-start-offset-checkpoint"
REPLICATION_NAME = "replication-offset-checkpoint"
CLEANER_NAME = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_NAME = ".kafka_cleanshutdown"
META_PROPERTIES_NAME = "meta.properties"
NO_BROKER_EPOCH = -1


_NONE: Mapping[TopicPartition, int] = MappingProxyType({})


class _CheckpointContent(NamedTuple):
    """Offsets in a checkpoint file. ``damage``: why it cannot be read, None if it can."""

    offsets: Mapping[TopicPartition, int]
    damage: Exception | None


class OffsetsFile:
    """One ``*-offset-checkpoint`` in the root of a log directory. Reading costs one ``stat`` while nothing changed.

    Each partition of a directory reads its own offset, and the file names all of them.
    """

    def __init__(self, directory: Path, name: str, files: Files) -> None:
        self.path = directory / name
        self.damaged = False
        self._file = SmallFile(self.path, files, _parse)
        self._told: Exception | None = None

    def read(self) -> Mapping[TopicPartition, int]:
        """Return the offsets, empty if the file is missing or damaged. Damage sets ``damaged`` and is logged once."""
        offsets, damage = self._load()
        self.damaged = damage is not None
        if damage is not None and damage is not self._told:
            self._told = damage
            LOGGER.warning("checkpoint_damaged path=%s error=%s", self.path, damage)
        return offsets

    def read_whole(self, lost: str) -> Mapping[TopicPartition, int]:
        """Return the offsets, or raise CorruptionError, with the hint ``lost``, for a damaged file."""
        offsets, damage = self._load()
        if isinstance(damage, NewerFormatError):
            damage.hint = damage.hint or "upgrade tieredlog; nothing was changed"
            raise damage.with_traceback(None)
        if damage is not None:
            text = f"{self.path} cannot be read: {damage}"
            raise CorruptionError(text, path_or_key=str(self.path), hint=lost) from damage
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file, durably."""
        known = dict(offsets)
        self._file.store(encode_offsets(known).encode(), _CheckpointContent(MappingProxyType(known), None))

    def _load(self) -> _CheckpointContent:
        return self._file.load() or _CheckpointContent(_NONE, None)


def _parse(data: bytes) -> _CheckpointContent:
    try:
        return _CheckpointContent(MappingProxyType(dict(decode_offsets(data.decode()))), None)
    except (CorruptionError, UnicodeDecodeError) as damage:
        return _CheckpointContent(_NONE, damage)


def mark_clean(directory: Path, files: Files, broker_epoch: int = NO_BROKER_EPOCH) -> None:
    """Write the mark of a clean shutdown: the next open then trusts every file as it is.

    ``broker_epoch``: what :func:`read_broker_epoch` returned, if a broker owned the directory before. Without it the
    controller assumes a crash and drops the broker from the replicas in sync.
    """
    files.replace(directory / CLEAN_SHUTDOWN_NAME, encode_clean_shutdown(broker_epoch).encode())


def read_broker_epoch(directory: Path, files: Files) -> int:
    """Return the broker epoch in the mark of a clean shutdown, -1 if there is none."""
    try:
        return decode_clean_shutdown(files.read(directory / CLEAN_SHUTDOWN_NAME).decode(errors="replace"))
    except NotFoundError:
        return NO_BROKER_EPOCH


def consume_clean_mark(directory: Path, files: Files) -> bool:
    """Return True if the last shutdown was clean. Remove the mark, so that a crash while loading is unclean."""
    path = directory / CLEAN_SHUTDOWN_NAME
    if files.state(path) is None:
        return False
    files.unlink(path)
    # mutant clean-mark-is-gone
    files.sync_directory(directory)
    return True


def usable_id(value: UUID) -> bool:
    """Return False for the ids 0 to 100, which Kafka reserves (unassigned, lost, migrating)."""
    return value.int > 100


def refuse_newer(path: Path, value: object, known: int) -> None:
    """Raise NewerFormatError if ``value``, the file's JSON, names a version above ``known``."""
    version = value.get("version") if isinstance(value, dict) else None
    if isinstance(version, int) and not isinstance(version, bool) and version > known:
        raise NewerFormatError(
            f"{path} was written by a newer release: it has version {version}, this one knows {known}",
            path_or_key=str(path),
            hint="upgrade tieredlog; nothing was changed",
        )


def read_json(path: Path, files: Files, decode: Callable[[Any], T], hint: str) -> T | None:
    """Return ``decode`` of the JSON in a small file of our own, None without a file.

    Raises CorruptionError with ``hint`` for other content, LocalIOError, and the product's errors of ``decode``.
    """
    try:
        return decode(json.loads(files.read(path)))
    except NotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path} cannot be read: {error}", path_or_key=str(path), hint=hint) from error


def first_json(data: bytes) -> object:
    """Return the JSON value of the first line, None if it has none."""
    try:
        return json.loads(data.partition(b"\n")[0])
    except ValueError:
        return None
