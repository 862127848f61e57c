"""Right bytes of an object, and their way back under its key. Repair of the small objects beside a root.

::

    an older version of it ──┐
    local segments ──────────┴── RepairSource ──> a file ──> aside/ (the current object) ──> PUT If-Match ──> read back

A damaged copy of a root, snapshot or pin comes back from a version. Without a version it is deleted, after a copy of
its bytes went to ``aside/``. A damaged decision of a sink is named with its batch: only its sink can write it again.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tiered.check.findings import Severity
from tiered.check.remote import KINDS, check_decisions, decode_beside, read_beside
from tiered.check.segment_check import object_crc32c
from tiered.errors import ConfigError, CorruptionError, TieredError
from tiered.format.decision import decode_decision
from tiered.format.framed_object import MAX_OBJECT_BYTES
from tiered.format.kernels import crc32c
from tiered.format.keys import aside_key, parse_decision_key
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.sealed import FileSource
from tiered.model import SealedSegment, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.remote.conditional_put import conditional_put, deadline_after
from tiered.remote.root_view import RootView
from tiered.remote.topics import list_topics
from tiered.repair.plan import NO_PARTITION, Ground, RepairAction, Workbench
from tiered.store.base import ABSENT, Body, Delete, Get, Head, Match, NewId, Object, Put, Steps
from tiered.store.steps import blocking, list_versions
from tiered.store.unique_upload import ObjectWriter, Tags

PUT_DEADLINE_MS = 600_000
"""Time in milliseconds for retries of one PUT while the store gives no answer."""

Fits = Callable[[bytes], bool]


class Stored(NamedTuple):
    """Object to restore: its key, and the size and CRC32C that it should have. ``etag``: of the current object, ``""``
    without one.

    ``topic_id``, ``partition``: partition below whose ``aside/`` the current object is copied.
    """

    topic_id: UUID
    partition: int
    key: str
    size: int
    crc: int
    etag: str


class RepairSource(NamedTuple):
    """Bytes to restore an object from: the first ``size`` bytes of the object ``key``, or the segments in ``run``.

    ``version``: version id of the object to read, ``""`` for the current one.
    """

    key: str
    size: int
    version: str = ""
    run: tuple[SealedSegment, ...] = ()

    def copy(self, take: Callable[[bytes], object]) -> Steps[int]:
        """Pass the bytes to ``take``, in pieces. Return their CRC32C, or -1 if there are fewer than ``size``."""
        if self.run:
            return (yield from blocking(partial(self._copy_run, take)))
        return (yield from object_crc32c(self.key, self.size, self.version, take))

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
    """Return the action that restores a small object from the newest version for which ``fits`` is True, and its bytes.

    ``stored``: the object; its size and checksum are replaced by the version's. ``problem``: damage, for the action.
    ``max_bytes``: larger versions are skipped. ``tags``: for the restored object. None: there is no such version.
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
    """Return the action that restores an object from its version ``version``.

    ``problem``: damage, for the action. ``tags``: for the restored object.
    """

    def act(_: object) -> Steps[None]:
        yield from put_source(stored, RepairSource(stored.key, stored.size, version), tags)

    return RepairAction(tp, stored.key, problem, f"put version {version} back", act=act)


def find_whole_version(key: str, size: int, crc: int) -> Steps[str]:
    """Return the id of the newest version of an object that has this size and CRC32C, ``""`` without one."""
    for each in (yield from list_versions(key)):
        if each.size == size and (yield from object_crc32c(key, size, each.version)) == crc:
            return each.version
    return ""


def put_source(each: Stored, source: RepairSource, tags: Tags) -> Steps[None]:
    """Write the bytes of ``source`` under the key of ``each``, and read them back.

    Raises CorruptionError for other bytes than expected, and ConfigError if the object was replaced since. Raises
    CommitUnknownError if the outcome of the PUT stays unknown.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "object"
        with path.open("wb") as file:
            crc = yield from source.copy(file.write)
        if crc != each.crc:
            raise CorruptionError(
                f"the object to restore as {each.key} does not have the planned CRC32C {each.crc:#010x}",
                path_or_key=each.key,
                position=0,
                hint="run `tiered repair` again",
            )
        with contextlib.closing(FileSource(PosixFiles(), path, each.size, sync=False)) as body:
            yield from put_back(each, body, tags)


def put_back(each: Stored, body: Body, tags: Tags = ()) -> Steps[None]:
    """Write ``body`` under the key of ``each``, and read it back. The replaced bytes are first copied below ``aside/``.

    Raises ConfigError if the object was replaced since, and CorruptionError if it cannot be copied. Raises
    CommitUnknownError if the outcome of the PUT stays unknown.
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
    if not isinstance(got, Object) or got.size != each.size or (yield from object_crc32c(key, each.size)) != each.crc:
        raise _another(key)


def _another(key: str) -> ConfigError:
    return ConfigError(
        f"{key} has changed since the repair was planned; nothing was replaced", hint="run `tiered repair` again"
    )


def keep_copy(key: str, to: str) -> Steps[bool]:
    """Copy an object, as it is, to the key ``to``. Return False if the object does not exist any more.

    Raises CorruptionError if the copy is not complete: the object must not be replaced then.
    """
    head = yield Head(key)
    if not isinstance(head, Object):
        return False
    output = ObjectWriter(to)
    for at in range(0, head.size, READ_BYTES):
        got = yield Get(key, at, min(at + READ_BYTES, head.size))
        if isinstance(got, Object) and got.etag == head.etag:
            yield from output.write(got.data)
    differs = head.crc32c not in (None, output.crc32c)  # or its bytes have rotted below the store's checksum of them
    if output.size != head.size or (differs and (yield from object_crc32c(key, head.size)) != output.crc32c):
        yield from output.abort()
        raise CorruptionError(
            f"only {output.size} of the {head.size} bytes of {key} could be copied; nothing was replaced",
            path_or_key=key,
            position=output.size,
            hint="run `tiered repair` again; if it fails again, stop the other program that writes this key",
        )
    yield from output.finish()
    copy = yield Head(to)
    if not isinstance(copy, Object) or copy.size != head.size:
        raise CorruptionError(
            f"{to}, the copy of {key}, is missing or does not have {head.size} bytes; nothing was replaced",
            path_or_key=to,
            position=0,
            hint="run `tiered repair` again",
        )
    return True


# -- the objects beside a root -----------------------------------------------------------------------------------------


def plan_kept(ground: Ground) -> Steps[list[RepairAction]]:
    """Return the actions for damaged root copies, snapshots and pins of one partition.

    Raises ConfigError for an object of a newer release.
    """
    topic_id, tp = ground.entry.topic_id, ground.tp
    view = RootView(topic_id, tp.partition, tp.topic)
    actions: list[RepairAction] = []
    for folder, what in KINDS.items():
        for each in (yield from read_beside(view, folder)):
            if each.flaw is not None and not isinstance(each.flaw, CorruptionError):
                raise each.flaw
            if each.flaw is not None:
                remedy, act = "delete it: no version of it is whole", partial(_delete, ground, each.key)
                without = RepairAction(tp, each.key, f"the {what} is damaged: {each.flaw.message}", remedy, act=act)
                stored = Stored(topic_id, tp.partition, each.key, 0, 0, each.etag)
                actions.append((yield from _version_or(without, stored, partial(decode_beside, view, key=each.key))))
    return actions


def _version_or(without: RepairAction, stored: Stored, decode: Callable[[bytes], object]) -> Steps[RepairAction]:
    """Return the action that restores the newest version that ``decode`` accepts, or ``without`` if there is none."""

    def fits(data: bytes) -> bool:
        try:
            decode(data)
        except TieredError:
            return False
        return True

    found = yield from restored(without.tp, stored, without.problem, fits, MAX_OBJECT_BYTES)
    return without if found is None else found[0]


def _delete(ground: Ground, key: str, _: Workbench) -> Steps[None]:
    if (yield from keep_copy(key, aside_key(ground.entry.topic_id, ground.tp.partition, (yield NewId())))):
        yield Delete((key,))


def plan_decisions() -> Steps[list[RepairAction]]:
    """Return the actions for damaged sink decisions, which belong to no single partition.

    A copy of a replaced decision is stored below ``aside/`` of the first topic.
    """
    actions: list[RepairAction] = []
    entries = yield from list_topics({})
    topic_id = entries[0].topic_id if entries else UUID(int=0)
    for found in (yield from check_decisions()):
        key, parsed = found.where, parse_decision_key(found.where)
        if parsed is None or found.severity is not Severity.ERROR:
            continue
        problem = f"the decision of batch {parsed.batch} of {parsed.txn} is damaged"
        remedy = "put it back from a backup; its sink can commit no later batch before that"
        head = yield Head(key)
        stored = Stored(topic_id, 0, key, 0, 0, head.etag if isinstance(head, Object) else "")
        without = RepairAction(NO_PARTITION, key, problem, remedy)
        actions.append((yield from _version_or(without, stored, partial(decode_decision, key=key))))
    return actions
