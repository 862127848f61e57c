"""The bucket side of a log over several directories: each is a volume of its own, with its claims and its uploader.

::

    a/  volume A, claims of t-0 t-2, tiered-uploader.lock ──┬──> one prefix, one registry of topics,
    b/  volume B, claims of t-1,     tiered-uploader.lock ──┘    a root per partition

A directory that a daemon serves is left to it; the others are uploaded inline. One that is offline keeps no other back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tiered.clock import Clock, IdSource
from tiered.errors import TieredError
from tiered.local.directory.directories import LocalLogs
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.topics import TopicInfo
from tiered.model import TopicPartition
from tiered.plan.known import Known
from tiered.remote.topics import TopicEntry
from tiered.store.base import Store
from tiered.tiering.inline import Tiering
from tiered.tiering.wait import UploaderHandle


class Bucket(Protocol):
    """What an open log asks of its bucket side: ``Tiering`` of one directory, or :class:`SpreadTiering` of several."""

    def find_topic(self, name: str) -> TopicEntry | None:
        """The bucket's entry of a topic."""

    def adopt(self, info: TopicInfo) -> None:
        """Registers the topic, claims its partitions on this disk."""

    def known(self, tp: TopicPartition) -> Known:
        """What a reader of this log holds the root of a partition against."""

    def ours(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those whose directory no other process uploads."""

    def sync(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> None:
        """Uploads and commits what is sealed below these offsets."""

    def close(self) -> None:
        """Closes what is open on the disk."""


def bucket_of(
    local: LocalLogs, store: Store, *, clock: Clock, ids: IdSource, reachable: bool
) -> Tiering | SpreadTiering:
    """The bucket side of an open log."""

    def one(log: LocalLog) -> Tiering:
        return Tiering(log, store, clock=clock, ids=ids, reachable=reachable)

    logs = local.logs()
    return one(logs[local.directory]) if len(local.directories) == 1 else SpreadTiering(local, one, clock)


class SpreadTiering:
    """Thread-safe, as each of its parts is."""

    def __init__(self, local: LocalLogs, make: Callable[[LocalLog], Tiering], clock: Clock) -> None:
        self._local = local
        self._clock = clock
        self._parts = {path: make(log) for path, log in local.logs().items()}

    def find_topic(self, name: str) -> TopicEntry | None:
        """As ``Tiering.find_topic``."""
        return next(iter(self._parts.values())).find_topic(name)

    def adopt(self, info: TopicInfo) -> None:
        """As ``Tiering.adopt``, in every directory that holds a part of the topic and is in service."""
        for path, log in self._local.logs().items():
            held = None if path in self._local.offline else log.topics().get(info.name)
            if held is not None:
                self._parts[path].adopt(held)

    def known(self, tp: TopicPartition) -> Known:
        """As ``Tiering.known``."""
        return self._parts[self._local.directory_of(tp)].known(tp)

    def ours(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those whose directory no other process uploads."""
        found: dict[TopicPartition, int] = {}
        for path, part in self._by_path(ends).items():
            found |= self._parts[path].ours(part)
        return found

    def sync(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> None:
        """As ``Tiering.sync``, one directory after the other; the first error is raised after the last."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        first: TieredError | None = None
        for path, part in self._by_path(ends).items():
            left = None if deadline is None else max(deadline - self._clock.monotonic(), 0.0)
            try:
                self._parts[path].sync(part, left)
            except TieredError as error:
                first = first or error
        if first is not None:
            raise first

    def close(self) -> None:
        """As ``Tiering.close``."""
        for part in self._parts.values():
            part.close()

    def _by_path(self, ends: Mapping[TopicPartition, int]) -> dict[Path, dict[TopicPartition, int]]:
        found: dict[Path, dict[TopicPartition, int]] = {}
        for tp, end in ends.items():
            found.setdefault(self._local.directory_of(tp), {})[tp] = end
        return found


class SpreadUploader:
    """The in-process uploaders of several directories as one (``wait.UploaderHandle``)."""

    def __init__(self, parts: Sequence[UploaderHandle], clock: Clock) -> None:
        self._parts = list(parts)
        self._clock = clock

    @property
    def error(self) -> TieredError | None:
        """Why the first that stopped by itself did."""
        return next((part.error for part in self._parts if part.error is not None), None)

    def poke(self) -> None:
        """Look now instead of at the next scan."""
        for part in self._parts:
            part.poke()

    def close(self, timeout: float) -> None:
        """Stops them all, within ``timeout`` seconds together; what is not committed stays local."""
        deadline = self._clock.monotonic() + timeout
        for part in self._parts:
            part.close(max(deadline - self._clock.monotonic(), 0.0))


def attach_all(
    attach: Callable[[Path, str, Mapping[str, Any]], UploaderHandle],
    local: LocalLogs,
    remote: str,
    options: Mapping[str, Any],
    clock: Clock,
) -> UploaderHandle:
    """One in-process uploader for each directory in service. If one cannot start, none stays."""
    if len(local.directories) == 1:
        return attach(local.directory, remote, options)
    parts: list[UploaderHandle] = []
    try:
        for path in sorted(local.logs().keys() - local.offline.keys()):
            parts.append(attach(path, remote, options))  # noqa: PERF401 - those that started are to be stopped
    except BaseException:
        SpreadUploader(parts, clock).close(0.0)
        raise
    return SpreadUploader(parts, clock)
