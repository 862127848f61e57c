"""Right bytes of an object, and their way back under its key.

::

    an older version of it ──┐
    local segments ──────────┴── RepairSource ──> a file ──> aside/ (the current object) ──> PUT If-Match ──> read back
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tiered.check.judge import sum_of
from tiered.errors import ConfigError, CorruptionError
from tiered.format.kernels import crc32c
from tiered.format.keys import aside_key
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.sealed import FileSource
from tiered.model import SealedSegment, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.remote.conditional_put import conditional_put, deadline_after
from tiered.repair.aside import keep_copy
from tiered.repair.plan import RepairAction
from tiered.store.base import ABSENT, Body, Get, Match, NewId, Object, Put, Steps
from tiered.store.steps import blocking, list_versions
from tiered.store.unique_upload import Tags

PUT_DEADLINE_MS = 600_000
"""Time in milliseconds for retries of one PUT while the store gives no answer."""

Fits = Callable[[bytes], bool]


class Stored(NamedTuple):
    """An object as it is to be. ``etag`` is that of the current object, ``""`` for nothing."""

    topic_id: UUID
    partition: int
    key: str
    size: int
    crc: int
    etag: str


class RepairSource(NamedTuple):
    """Bytes that may be those of an object: the first ``size`` of a version of it, or those of local segments."""

    key: str
    size: int
    version: str = ""
    run: tuple[SealedSegment, ...] = ()

    def copy(self, take: Callable[[bytes], object]) -> Steps[int]:
        """Hand the bytes to ``take``. Return their CRC32C, -1 if there are not ``size``."""
        if self.run:
            return (yield from blocking(partial(self._copy_run, take)))
        return (yield from sum_of(self.key, self.size, self.version, take))

    def _copy_run(self, take: Callable[[bytes], object]) -> int:
        crc = size = 0
        for segment in self.run:
            with contextlib.closing(segment.open_log()) as log:
                for at in range(0, log.size, READ_BYTES):
                    data = log.read_at(at, min(READ_BYTES, log.size - at))
                    take(data)
                    crc, size = crc32c(data, crc), size + len(data)
        return crc if size == self.size else -1


def restored(  # noqa: PLR0917 - an object, and the test of a version
    tp: TopicPartition, stored: Stored, problem: str, fits: Fits, max_bytes: int, tags: Tags = ()
) -> Steps[tuple[RepairAction, bytes] | None]:
    """Return the action that puts the newest version of a small object back whose bytes fit, and these bytes.

    ``stored``: the object; its size and checksum are taken from the version. Returns None without such a version.
    """
    for each in (yield from list_versions(stored.key)):
        if each.size <= max_bytes:
            got = yield Get(stored.key, max_bytes=max_bytes, version=each.version)
            if isinstance(got, Object) and fits(bytes(got.data)):
                data = bytes(got.data)
                right = stored._replace(size=len(data), crc=crc32c(data))
                return put_action(tp, right, problem, each.version, tags), data
    return None


def put_action(tp: TopicPartition, stored: Stored, problem: str, version: str, tags: Tags) -> RepairAction:
    """Return the action that makes an older version the newest."""

    def act(_: object) -> Steps[None]:
        yield from put_source(stored, RepairSource(stored.key, stored.size, version), tags)

    return RepairAction(tp, stored.key, problem, f"put version {version} back", act=act)


def find_whole_version(key: str, size: int, crc: int) -> Steps[str]:
    """Return the newest version of an object that has this size and CRC32C, ``""`` without one."""
    for each in (yield from list_versions(key)):
        if each.size == size and (yield from sum_of(key, size, each.version)) == crc:
            return each.version
    return ""


def put_source(each: Stored, source: RepairSource, tags: Tags) -> Steps[None]:
    """Put the bytes of a source under a key. Raises CorruptionError for other bytes, and as :func:`put_back`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "object"
        with path.open("wb") as file:
            crc = yield from source.copy(file.write)
        if crc != each.crc:
            raise CorruptionError(
                f"what was to be put back as {each.key} does not read as CRC32C {each.crc:#010x}",
                path_or_key=each.key,
                position=0,
                hint="plan the repair again",
            )
        with contextlib.closing(FileSource(PosixFiles(), path, each.size, sync=False)) as body:
            yield from put_back(each, body, tags)


def put_back(each: Stored, body: Body, tags: Tags = ()) -> Steps[None]:
    """Put right bytes under a key, and read them back. Copy replaced bytes below ``aside/`` first.

    Raises ConfigError if the object was replaced since, CommitUnknownError.
    """
    key = each.key
    aside = aside_key(each.topic_id, each.partition, (yield NewId()))
    # mutant repair-keeps-what-it-replaces
    if each.etag and not (yield from keep_copy(key, aside)):
        raise _another(key)
    deadline = yield from deadline_after(PUT_DEADLINE_MS)
    # A lost PUT may be an attempt of ours whose answer was lost: the stored bytes decide.
    yield from conditional_put(Put(key, body, Match(each.etag) if each.etag else ABSENT, each.crc, tags), deadline, key)
    got = yield Get(key, 0, 1)
    if not isinstance(got, Object) or got.size != each.size or (yield from sum_of(key, each.size)) != each.crc:
        raise _another(key)


def _another(key: str) -> ConfigError:
    return ConfigError(f"{key} is another object by now; nothing was replaced", hint="plan the repair again")
