"""Older versions of an object, and the way back of right bytes under their key.

::

    ListVersions ── newest version that fits ──> aside/ (what lies there now) ──> PUT If-Match ──> read back
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from tiered.checking.judge import sum_of
from tiered.errors import ConfigError, CorruptionError
from tiered.format.crc import crc32c
from tiered.format.keys import aside_key
from tiered.model import TopicPartition
from tiered.remote.conditional_put import conditional_put, deadline_after
from tiered.repair.aside import keep_copy
from tiered.repair.plan import Action
from tiered.store.base import ABSENT, Body, Get, Match, NewId, Object, Put, Steps, list_versions
from tiered.store.puts import Tags

PUT_DEADLINE_MS = 600_000
"""Time for which one object is sent again while the store gives no answer."""
MEMORY_BYTES = 64 * 1024 * 1024
"""Larger objects wait in a temporary file between GET and PUT."""

Fits = Callable[[bytes], bool]


class Stored(NamedTuple):
    """An object as it is to be. ``etag`` is that of what lies there now, ``""`` for nothing."""

    topic_id: UUID
    partition: int
    key: str
    size: int
    crc: int
    etag: str


def restored(  # noqa: PLR0917 - an object, and what makes a version of it right
    tp: TopicPartition, stored: Stored, problem: str, fits: Fits, max_bytes: int, tags: Tags = ()
) -> Steps[tuple[Action, bytes] | None]:
    """Return the action that puts the newest version of a small object back whose bytes fit, and these bytes.

    ``stored``: the object; its size and checksum are taken from the version. Returns None without such a version.
    """
    for each in (yield from list_versions(stored.key)):
        if each.size <= max_bytes:
            got = yield Get(stored.key, max_bytes=max_bytes, version=each.version)
            if isinstance(got, Object) and fits(bytes(got.data)):
                data = bytes(got.data)
                return put_action(
                    tp, stored._replace(size=len(data), crc=crc32c(data)), problem, each.version, tags
                ), data
    return None


def put_action(tp: TopicPartition, stored: Stored, problem: str, version: str, tags: Tags) -> Action:
    """Return the action that makes an older version the newest."""

    def act(_: object) -> Steps[None]:
        yield from put_version(stored, version, tags)

    return Action(tp, stored.key, problem, f"put version {version} back", act=act)


def find_whole_version(key: str, size: int, crc: int) -> Steps[str]:
    """Return the newest version of an object that has this size and CRC32C, ``""`` without one."""
    for each in (yield from list_versions(key)):
        if each.size == size and (yield from sum_of(key, size, each.version)) == crc:
            return each.version
    return ""


class Spool:
    """Bytes of an object on their way from GET to PUT. A ``ByteSource``; large ones wait on the disk."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115 - closed by close()
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append a piece."""
        self._file.write(data)
        self.size += len(data)

    def read_at(self, position: int, length: int) -> bytes:
        """Return exactly ``length`` bytes. Raises CorruptionError if there are fewer."""
        self._file.seek(position)
        data = self._file.read(length)
        if len(data) != length:
            raise CorruptionError(f"the copy has {self.size} bytes, {position + length} were asked for", position=0)
        return data

    def close(self) -> None:
        """Delete the temporary file."""
        self._file.close()


def put_version(each: Stored, version: str, tags: Tags) -> Steps[None]:
    """Make an older version the newest. Raises as :func:`put_back`, CorruptionError if it does not read as planned."""
    spool = Spool()
    try:
        if (yield from sum_of(each.key, each.size, version, spool.write)) != each.crc:
            raise CorruptionError(
                f"version {version} of {each.key} does not read as CRC32C {each.crc:#010x}",
                path_or_key=each.key,
                position=0,
                hint="plan the repair again",
            )
        yield from put_back(each, spool, tags)
    finally:
        spool.close()


def put_back(each: Stored, body: Body, tags: Tags = ()) -> Steps[None]:
    """Put right bytes under a key, and read them back. What they replace is copied below ``aside/`` first.

    Raises ConfigError if another object lies there by now, CommitUnknown.
    """
    key = each.key
    aside = aside_key(each.topic_id, each.partition, (yield NewId()))
    # mutant repair-keeps-what-it-replaces
    if each.etag and not (yield from keep_copy(key, aside)):
        raise _another(key)
    deadline = yield from deadline_after(PUT_DEADLINE_MS)
    # A lost PUT may be an attempt of ours whose answer was lost: the bytes that lie there decide.
    yield from conditional_put(Put(key, body, Match(each.etag) if each.etag else ABSENT, each.crc, tags), deadline, key)
    got = yield Get(key, 0, 1)
    if not isinstance(got, Object) or got.size != each.size or (yield from sum_of(key, each.size)) != each.crc:
        raise _another(key)


def _another(key: str) -> ConfigError:
    return ConfigError(f"{key} is another object by now; nothing was replaced", hint="plan the repair again")
