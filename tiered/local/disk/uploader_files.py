"""Small files in the root of a log directory, by which writer, uploader and operator communicate.

====================================  ==================  =====================================================
file                                  written by          content
====================================  ==================  =====================================================
``tiered-offset-checkpoint``          the uploader        committed end, claim epoch, fenced flag of each partition
``tiered-uploader.lock``              the uploader        the uploader's process (``disk.lock.DirectoryLock``)
``tiered-uploader.journal``           the uploader        uploads under way
``tiered-seal-request``               the uploader        "roll all partitions"; the writer removes it
``tiered-positions``                  the writer          positions of groups, to be copied to the bucket
``tiered-pause``                      an operator         topics whose uploads are paused
``tiered-pause.lock``                 an operator         lock for a change of ``tiered-pause``
``tiered-claims.json``                a committer         proof that this is the volume which the bucket knows
====================================  ==================  =====================================================

Except for the locks and the last file (``disk.claims``), each is replaced atomically. An unparsable file is an error,
never "nothing uploaded", because deletion and fencing rely on it. ``known_*`` return lower bounds of a root, from the
checkpoint and the claims.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tiered.clock import Clock
from tiered.errors import CorruptionError
from tiered.format.positions import Positions
from tiered.local.disk.claims import CLAIMS_NAME, ClaimProof
from tiered.local.disk.directory_files import VERSION, parse_json
from tiered.local.disk.files import Files, SmallFile
from tiered.local.disk.lock import UPLOADER_LOCK_NAME, DirectoryLock, LockTerms
from tiered.model import Position, TopicPartition
from tiered.plan.pacing import ALL_TOPICS, Pause
from tiered.plan.root_lower_bounds import RootLowerBounds, held_ids

OFFSET_CHECKPOINT_NAME = "tiered-offset-checkpoint"
JOURNAL_NAME = "tiered-uploader.journal"
SEAL_REQUEST_NAME = "tiered-seal-request"
POSITIONS_NAME = "tiered-positions"
PAUSE_NAME = "tiered-pause"
PAUSE_LOCK_NAME = "tiered-pause.lock"

LOGGER = logging.getLogger("tiered.local")

T = TypeVar("T")

UPLOADER_FILES = (OFFSET_CHECKPOINT_NAME, CLAIMS_NAME, JOURNAL_NAME, SEAL_REQUEST_NAME)
"""Files that the holder of the uploader's lock replaces."""

PAUSE_PATIENCE_SECONDS = 10.0
"""Longest wait in seconds for the lock of ``tiered-pause``, while another process changes the file."""


@dataclass(frozen=True, slots=True)
class PartitionUpload:
    """State of one partition in the bucket. The uploader stores it after it has read the root back.

    ``end_offset``: exclusive end of the committed records. ``claim_epoch``: epoch of this volume's claim, -1 if none.
    ``fenced``: True if a newer claim of another volume owns the partition. ``start_offset``: first offset in the
    bucket, -1 if unknown.
    """

    end_offset: int
    claim_epoch: int = -1
    fenced: bool = False
    start_offset: int = -1

    def reaches_below(self, first: int) -> bool:
        """Return True if the bucket may hold records before ``first``, the first offset on this disk."""
        return self.end_offset > 0 and self.start_offset < first


def _json_file(path: Path, files: Files, take: Callable[[dict[str, Any]], T]) -> SmallFile[T]:
    """Return a cached file whose content is the result of ``take`` for the JSON object in it.

    Loading raises CorruptionError if the file has no JSON object of version 1, or if ``take`` fails.
    """
    hint = "move the file away: the program that writes it makes a new one"
    return SmallFile(path, files, lambda data: parse_json(path, data, take, hint))


def _bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **value}, sort_keys=True).encode() + b"\n"


class UploadCheckpoint:
    """File ``tiered-offset-checkpoint``: the state of each uploaded partition.

    Reading an unchanged file costs one ``stat``.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._file = _json_file(directory / OFFSET_CHECKPOINT_NAME, files, _uploads)

    def read(self) -> Mapping[TopicPartition, PartitionUpload]:
        """Return the state of each partition in the file; empty without a file.

        Raises CorruptionError if the file is unreadable.
        """
        return self._file.load() or MappingProxyType({})

    def write(self, uploads: Mapping[TopicPartition, PartitionUpload]) -> None:
        """Replace all entries by ``uploads``, durably. The caller must have the uploader's lock."""
        lines = ", ".join([_entry(tp, upload) for tp, upload in sorted(uploads.items())])  # no object of each at once
        data = f'{{"partitions": [{lines}], "version": {VERSION}}}\n'.encode()
        self._file.store(data, MappingProxyType(dict(uploads)))

    def update(self, uploads: Mapping[TopicPartition, PartitionUpload]) -> None:
        """Change the entries of these partitions, durably. All other entries stay."""
        self.write({**self.read(), **uploads})

    def forget(self, gone: Collection[TopicPartition]) -> None:
        """Remove the entries of deleted partitions. A new partition of the same name must not get their state."""
        known = self.read()
        if known.keys() & set(gone):
            self.write({tp: upload for tp, upload in known.items() if tp not in gone})


def _entry(tp: TopicPartition, upload: PartitionUpload) -> str:
    return json.dumps(
        {
            "claim_epoch": upload.claim_epoch,
            "end_offset": upload.end_offset,
            "fenced": upload.fenced,
            "partition": tp.partition,
            "start_offset": upload.start_offset,
            "topic": tp.topic,
        }
    )


def _uploads(value: Mapping[str, Any]) -> Mapping[TopicPartition, PartitionUpload]:
    uploads = {
        TopicPartition(sys.intern(str(entry["topic"])), int(entry["partition"])): PartitionUpload(
            int(entry["end_offset"]),
            int(entry["claim_epoch"]),
            bool(entry["fenced"]),
            int(entry.get("start_offset", -1)),
        )
        for entry in value["partitions"]
    }
    return MappingProxyType(uploads)


class SealRequest:
    """File ``tiered-seal-request``: request of the uploader that the writer (who has ``.lock``) rolls all partitions.

    The next open takes a request that the writer did not take before its end.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._path = directory / SEAL_REQUEST_NAME
        self._files = files

    def write(self) -> None:
        """Request a roll of all partitions. The caller has the uploader's lock."""
        self._files.replace(self._path, _bytes({}))

    def take(self) -> bool:
        """Remove the request and return True; False if there is none. A later request is another one."""
        if self._files.state(self._path) is None:
            return False
        self._files.unlink(self._path)
        return True


class PauseFile:
    """File ``tiered-pause``: topics whose uploads an operator paused, until they are resumed.

    Reading an unchanged file costs one ``stat``.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._file = _json_file(directory / PAUSE_NAME, files, _pauses)
        self._changing = DirectoryLock(directory, files, name=PAUSE_LOCK_NAME)

    def read(self) -> Mapping[str, Pause]:
        """Return the pauses by topic. The key ``ALL_TOPICS`` pauses all topics.

        A damaged file pauses all topics, too.
        """
        try:
            return self._file.load() or {}
        except CorruptionError:
            return {ALL_TOPICS: Pause(0, f"{self._file.path} cannot be read")}

    def change(self, edit: Callable[[Mapping[str, Pause]], Mapping[str, Pause]], clock: Clock) -> None:
        """Replace the pauses by the result of ``edit``, which gets the current pauses, under the file's lock.

        If ``edit`` raises, nothing is written. Raises LockedError if another process keeps the lock for longer than
        ``PAUSE_PATIENCE_SECONDS``.
        """
        self._changing.acquire(clock, LockTerms(PAUSE_PATIENCE_SECONDS, passing=True))
        try:
            self.write(edit(self.read()))
        finally:
            self._changing.release()

    def write(self, pauses: Mapping[str, Pause]) -> None:
        """Replace all pauses, durably.

        The file's lock is not taken; use :meth:`change` against concurrent processes.
        """
        topics = {name: {"since_ms": each.since_ms, "reason": each.reason} for name, each in pauses.items()}
        self._file.store(_bytes({"topics": topics}), dict(pauses))


def _pauses(value: Mapping[str, Any]) -> Mapping[str, Pause]:
    entries = value["topics"].items()
    return {str(name): Pause(int(each["since_ms"]), str(each["reason"])) for name, each in entries}


class PositionsFile:
    """File ``tiered-positions``: positions of consumer groups in uploaded partitions.

    The writer of the log writes it, and the uploader copies it to the bucket. Reading an unchanged file costs one
    ``stat``.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._file = _json_file(directory / POSITIONS_NAME, files, _positions)

    def read(self) -> Mapping[TopicPartition, Positions] | None:
        """Return the positions by partition and group, None if the file is missing or damaged.

        Damage is only logged, because the writer then makes a new file.
        """
        try:
            return self._file.load()
        except CorruptionError as error:
            LOGGER.warning("positions_unreadable error=%s", error)
            return None

    def write(self, positions: Mapping[TopicPartition, Positions]) -> None:
        """Replace all positions, durably. Only the writer of the log calls this."""
        entries = [[*tp, [[group, *astuple(at)] for group, at in groups.items()]] for tp, groups in positions.items()]
        self._file.store(_bytes({"partitions": entries}), positions)


def _positions(value: Mapping[str, Any]) -> Mapping[TopicPartition, Positions]:
    return {
        TopicPartition(str(topic), int(number)): {str(group): Position(*at) for group, *at in groups}
        for topic, number, groups in value["partitions"]
    }


def uploader_lock(directory: Path, files: Files) -> DirectoryLock:
    """Return the lock that allows one uploader per log directory. It is not acquired yet."""
    return DirectoryLock(directory, files, name=UPLOADER_LOCK_NAME)


def root_bounds_of(upload: PartitionUpload | None, proof: ClaimProof | None, *, made: bool = False) -> RootLowerBounds:
    """Return the bounds of one partition's root, from its checkpoint entry and its claim proof, None without one.

    A root below them is outdated. ``made``: True if the registry entry says that the root was made with the topic.
    """
    upload, proof = upload or PartitionUpload(0), proof or ClaimProof()
    version, restored_end = proof.restored_from or (0, 0)
    return RootLowerBounds(
        made=made,
        version=version,
        start_offset=max(upload.start_offset, 0),
        next_offset=max(upload.end_offset, restored_end),
        writer_epoch=max(upload.claim_epoch, 0),
        tokens=held_ids(proof.token or ""),
    )


def root_bounds_by_partition(
    uploads: Mapping[TopicPartition, PartitionUpload], claims: Mapping[TopicPartition, ClaimProof]
) -> dict[TopicPartition, RootLowerBounds]:
    """Return :func:`root_bounds_of` each partition in ``uploads``, the checkpoint, or in ``claims``."""
    return {tp: root_bounds_of(uploads.get(tp), claims.get(tp)) for tp in {*uploads, *claims}}


def root_bounds_of_topic(
    topic: str, uploads: Mapping[TopicPartition, PartitionUpload], claims: Mapping[TopicPartition, ClaimProof]
) -> dict[int, RootLowerBounds]:
    """Return the bounds of :func:`root_bounds_by_partition` of one topic, by partition number."""
    named = {tp for each in (uploads, claims) for tp in each if tp.topic == topic}
    return {tp.partition: root_bounds_of(uploads.get(tp), claims.get(tp)) for tp in named}
