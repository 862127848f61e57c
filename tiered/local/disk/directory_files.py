"""Small files in the root of a log directory: Kafka's, and those with a format of their own.

* Offset checkpoints. A damaged one counts as empty, as in Kafka, and is reported. Its price is a longer recovery, not
  data.
* ``meta.properties``: the identity of the volume.
* ``.kafka_cleanshutdown``: the mark of a clean shutdown.
* ``tiered-standby.json``: marks a log directory that follows a bucket. Only ``tiered restore`` writes there.

A file of our own from a newer release is no damage: it is left as it is, and the error says "upgrade".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from tiered.clock import IdSource
from tiered.config import LogConfig
from tiered.errors import ConfigError, CorruptionError, NewerFormatError, NotFoundError, message_of
from tiered.format.checkpoint import (
    MetaProperties,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_offsets,
    encode_clean_shutdown,
    encode_meta_properties,
    encode_offsets,
    encode_uuid,
)
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
STANDBY_NAME = "tiered-standby.json"
"""Name of the mark of a directory that follows a bucket::

    {"version": 1, "remote": "s3://acme-logs/prod", "pulled_ms": 1767225600000}      0: never whole yet

The file is made before anything else in the directory, and removed once a promotion has claimed every partition.
"""

VERSION = 1
"""Version of the JSON files in a log directory."""

NO_ID = UUID(int=0)
_WITHOUT_META = (
    "put it back from a copy. Without one, move it away: the next `tiered.open` gives the directory another id. "
    "No record is lost. A tiered partition then needs `tiered repair rejoin TOPIC:P`"
)


class OffsetsFile:
    """One ``*-offset-checkpoint`` file in the root of a log directory: an offset for each partition.

    Reading an unchanged file costs one ``stat``.
    """

    def __init__(self, directory: Path, name: str, files: Files) -> None:
        self.path = directory / name
        self.damaged = False
        self._file = SmallFile(self.path, files, _parse)
        self._told: Exception | None = None

    def read(self) -> Mapping[TopicPartition, int]:
        """Return the offsets by partition; an empty mapping if the file is missing or damaged.

        Damage sets ``damaged`` and is logged once.
        """
        offsets, damage = self._load()
        self.damaged = damage is not None
        if damage is not None and damage is not self._told:
            self._told = damage
            LOGGER.warning("checkpoint_damaged path=%s error=%s", self.path, damage)
        return offsets

    def read_or_raise(self, lost: str) -> Mapping[TopicPartition, int]:
        """Return the offsets by partition; an empty mapping if the file is missing.

        Raises CorruptionError for a damaged file, with the text ``lost`` as its hint, and NewerFormatError for a file
        of a newer release.
        """
        offsets, damage = self._load()
        if isinstance(damage, NewerFormatError):
            damage.hint = damage.hint or "upgrade tieredlog; nothing was changed"
            raise damage.with_traceback(None)
        if damage is not None:
            text = f"{self.path} cannot be read: {damage}"
            raise CorruptionError(text, path_or_key=str(self.path), hint=lost) from damage
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the content of the file by ``offsets``, durably."""
        known = dict(offsets)
        self._file.store(encode_offsets(known).encode(), _CheckpointContent(MappingProxyType(known), None))

    def _load(self) -> _CheckpointContent:
        return self._file.load() or _CheckpointContent(_NONE, None)


class _CheckpointContent(NamedTuple):
    """Offsets in a checkpoint file. ``damage``: the error if the file is damaged, otherwise None."""

    offsets: Mapping[TopicPartition, int]
    damage: Exception | None


def _parse(data: bytes) -> _CheckpointContent:
    try:
        return _CheckpointContent(MappingProxyType(dict(decode_offsets(data.decode()))), None)
    except (CorruptionError, UnicodeDecodeError) as damage:
        return _CheckpointContent(_NONE, damage)


def read_volume(directory: Path, files: Files) -> MetaProperties | None:
    """Return the content of ``meta.properties``, None if there is no such file.

    Raises CorruptionError if the content cannot be decoded.
    """
    path = directory / META_PROPERTIES_NAME
    try:
        return decode_meta_properties(files.read(path).decode())
    except NotFoundError:
        return None
    except NewerFormatError as newer:
        newer.hint = "upgrade tieredlog; nothing was changed"
        raise
    except (CorruptionError, UnicodeDecodeError) as error:
        what = f"{path} cannot be read: {message_of(error)}"
        raise CorruptionError(what, path_or_key=str(path), hint=_WITHOUT_META) from error


def ensure_volume(directory: Path, files: Files, ids: IdSource, config: LogConfig) -> UUID:
    """Return the id in ``meta.properties``. A directory without an id gets a new one, written durably.

    The directory is then new, or an old broker's. ``config``: cluster id and node id for a new file. Raises
    CorruptionError if the file is unreadable.
    """
    meta = read_volume(directory, files)
    if meta is not None and meta.directory_id is not None:
        return meta.directory_id
    volume_id = ids.uuid()
    cluster_id = config.cluster_id or (meta.cluster_id if meta else encode_uuid(ids.uuid()))
    new = MetaProperties(cluster_id, config.node_id if meta is None else meta.node_id, volume_id)
    files.replace(directory / META_PROPERTIES_NAME, encode_meta_properties(new).encode())
    return volume_id


def mark_clean(directory: Path, files: Files, broker_epoch: int = NO_BROKER_EPOCH) -> None:
    """Write the mark of a clean shutdown. The next open then skips recovery.

    ``broker_epoch``: the result of :func:`read_broker_epoch`, if a broker owned the directory before. Without it
    Kafka's controller assumes a crash, and drops the broker from the replicas in sync.
    """
    files.replace(directory / CLEAN_SHUTDOWN_NAME, encode_clean_shutdown(broker_epoch).encode())


def read_broker_epoch(directory: Path, files: Files) -> int:
    """Return the broker epoch that Kafka wrote into the mark of a clean shutdown, -1 if there is none."""
    try:
        return decode_clean_shutdown(files.read(directory / CLEAN_SHUTDOWN_NAME).decode(errors="replace"))
    except NotFoundError:
        return NO_BROKER_EPOCH


def consume_clean_mark(directory: Path, files: Files) -> bool:
    """Return True if the last shutdown was clean. Remove its mark ``.kafka_cleanshutdown``, durably.

    After a crash the next open thus finds no mark.
    """
    path = directory / CLEAN_SHUTDOWN_NAME
    if files.state(path) is None:
        return False
    files.unlink(path)
    # mutant clean-mark-is-gone
    files.sync_directory(directory)
    return True


class StandbyMark(NamedTuple):
    """Content of ``tiered-standby.json``. ``remote``: URL of the bucket that the directory follows.

    ``pulled_ms``: wall clock at the end of the last pull without an error, 0 if there was none.
    """

    remote: str
    pulled_ms: int = 0


def read_standby(directory: Path, files: Files) -> StandbyMark | None:
    """Return the mark of a directory that follows a bucket, None for any other directory.

    Raises CorruptionError if the mark is unreadable.
    """
    return read_json(
        directory / STANDBY_NAME,
        files,
        lambda value: StandbyMark(str(value["remote"]), int(value["pulled_ms"])),
        "move the directory aside and follow the bucket into a new one",
    )


def write_standby(directory: Path, files: Files, mark: StandbyMark) -> None:
    """Write ``mark`` to ``tiered-standby.json``, durably. An older mark is replaced."""
    value = {"version": VERSION, **mark._asdict()}
    files.replace(directory / STANDBY_NAME, json.dumps(value).encode() + b"\n")


def end_standby(directory: Path, files: Files) -> None:
    """Remove the mark ``tiered-standby.json``, durably. From now on the directory can be opened for writing."""
    files.unlink(directory / STANDBY_NAME)
    files.sync_directory(directory)


def refuse_standby(directory: Path, files: Files) -> None:
    """Raise ConfigError if ``directory`` is a standby that follows a bucket.

    Raise CorruptionError if the mark of a standby is unreadable.
    """
    mark = read_standby(directory, files)
    # mutant standby-is-read-only
    if mark is not None:
        raise ConfigError(
            f"{directory} follows {mark.remote} and is read-only",
            hint=f"open it with tiered.open_reader; `tiered restore --promote --log-dir {directory} --remote "
            f"{mark.remote}` makes it the writer",
        )


def usable_id(value: UUID) -> bool:
    """Return True unless Kafka reserves this id: 0 to 100 mean unassigned, lost or migrating."""
    return value.int > 100


def refuse_newer(path: Path, value: object, known: int) -> None:
    """Raise NewerFormatError if ``value``, the parsed JSON of the file ``path``, has a version above ``known``.

    ``known``: the highest version that this release reads. All other values pass.
    """
    version = value.get("version") if isinstance(value, dict) else None
    if isinstance(version, int) and not isinstance(version, bool) and version > known:
        raise NewerFormatError(
            f"{path} was written by a newer release: the file has version {version}, this release reads up to {known}",
            path_or_key=str(path),
            hint="upgrade tieredlog; nothing was changed",
        )


def read_json(path: Path, files: Files, decode: Callable[[Any], T], hint: str) -> T | None:
    """Read a small JSON file of this product. Return the result of ``decode`` for its value, None without a file.

    Raises the errors of :func:`parse_json`, and LocalIOError.
    """
    try:
        data = files.read(path)
    except NotFoundError:
        return None
    return parse_json(path, data, decode, hint)


def parse_json(path: Path, data: bytes, decode: Callable[[Any], T], hint: str) -> T:
    """Return the result of ``decode`` for ``data``, the content of the file ``path``: a JSON object of version 1.

    Raises NewerFormatError for a higher version. Raises CorruptionError with ``hint`` for other content, and if
    ``decode`` raises an error of a value or ConfigError.
    """
    try:
        value = json.loads(data)
        refuse_newer(path, value, VERSION)
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']} is unknown")
        return decode(value)
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else message_of(error)
        if isinstance(error, TypeError | AttributeError):
            what = "a value in it has another type than this program writes"
        raise CorruptionError(f"{path} cannot be read: {what}", path_or_key=str(path), hint=hint) from error


def first_json(data: bytes) -> object:
    """Parse the first line as JSON and return its value, None if it is not JSON."""
    try:
        return json.loads(data.partition(b"\n")[0])
    except ValueError:
        return None
