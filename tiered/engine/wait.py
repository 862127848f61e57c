"""Wait until the bucket has the appended records. This thread, this process or a daemon uploads them."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tiered.clock import Clock
from tiered.engine.disk import LogDirectory
from tiered.engine.partition import PAUSED_HINT
from tiered.errors import (
    CommitUnknownError,
    DataLocalError,
    FencedError,
    LockedError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.disk.uploader_files import PartitionUpload, PauseFile
from tiered.model import TopicPartition
from tiered.plan.pacing import ALL_TOPICS, Pause
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions

if TYPE_CHECKING:
    from tiered.engine.tiering import SpreadTiering

UPLOAD_CHECK_S = 1.0
"""Interval in seconds between checks of a wait for sealed segments without an uploader."""
POLL_S = 0.05
"""Interval in seconds between an application's reads of the checkpoint of another process's uploader."""
FOLLOW_S = 0.2
"""Interval in seconds between a program's reads of the checkpoint while it waits for a running uploader."""
PROGRESS_SECONDS = 10.0
"""Interval between reports of progress to a caller who waits for uploads."""
NAMES = 5
"""Partitions that one sentence names."""
ASK_S = 30.0
"""Time in seconds after which the writer is asked to roll again."""
FENCED_HINT = (
    "`tiered repair rejoin` sets the records that only this disk has aside, and continues at the end of the bucket"
)
WAITS_HINT = "`tiered status` says what the upload waits for; the data is safe on this disk meanwhile"

_logger = logging.getLogger("tiered")


class UploaderHandle(Protocol):
    """Running uploader of an open log."""

    def scan_now(self) -> None: ...

    def close(self, timeout: float) -> None:
        """Stop the uploader, within ``timeout`` seconds. Records that are not committed stay on the disk."""

    @property
    def error(self) -> TieredError | None:
        """Return the error with which the uploader ended by itself, None while it runs."""

    def when_ended(self, callback: Callable[[TieredError], None]) -> None:
        """Call ``callback`` from any thread once the uploader stopped by itself; immediately if it has stopped."""


class UploaderComponent(Protocol):
    """Interface of ``uploader.Uploader()``, which is passed to ``tiered.open``. The library never imports it."""

    def attach(self, directory: Path, location: StoreLocation, options: StoreOptions) -> UploaderHandle:
        """Start uploading the sealed segments of ``directory`` to ``location``, within the limits of ``options``."""


class Uploaders:
    """All in-process uploaders of a log: one for each directory in service."""

    def __init__(self, clock: Clock, ended: Callable[[TieredError], None]) -> None:
        """``ended``: called from another thread with the error of an uploader that stopped by itself."""
        self._parts: list[UploaderHandle] = []
        self._clock = clock
        self._ended = ended

    def start(
        self, component: UploaderComponent, local: LocalTier, location: StoreLocation, options: StoreOptions
    ) -> None:
        """Start an uploader for each directory in service. If one cannot start, stop all and raise its error."""
        paths = sorted(local.logs().keys() - local.offline.keys())
        try:
            for path in paths:
                self._parts.append(component.attach(path, location, options))
        except BaseException:
            self.close(0.0)
            raise
        for path, part in zip(paths, self._parts, strict=True):
            part.when_ended(functools.partial(self._report, path))

    def _report(self, path: Path, error: TieredError) -> None:
        _logger.error("the uploader of %s ended by itself, records stay on this disk: %s", path, error)
        self._ended(error)

    @property
    def error(self) -> TieredError | None:
        """Return the error of the first uploader that ended by itself, None if there is none."""
        return next((part.error for part in self._parts if part.error is not None), None)

    def scan_now(self) -> None:
        for part in self._parts:
            part.scan_now()

    def close(self, timeout: float) -> None:
        """Stop all uploaders, within ``timeout`` seconds in total. Records that are not committed stay on the disk."""
        deadline = self._clock.monotonic() + timeout
        for part in self._parts:
            part.close(max(deadline - self._clock.monotonic(), 0.0))


def wait_uploaded(
    local: LocalTier,
    ends: Mapping[TopicPartition, int],
    timeout_s: float | None,
    *,
    tiering: SpreadTiering | None,
    uploader: Uploaders | None,
    clock: Clock,
    closed: threading.Event,
) -> None:
    """Wait until the committed end of each partition reaches its offset in ``ends``.

    The wait seals nothing: segments are sealed by their size, by ``seal.ms`` or by ``sync``. Without ``uploader``, the
    one in this process, the waiting thread uploads sealed segments with ``tiering``, unless a daemon does. Raises
    DataLocalError after ``timeout_s`` (None: no limit), once ``closed`` is set, or for paused uploads. Raises
    FencedError if another writer owns a partition. Raises the error that ended ``uploader``, and errors of this
    thread's uploads that no wait cures.
    """
    deadline = None if timeout_s is None else clock.monotonic() + timeout_s
    look = clock.monotonic()
    while behind := _behind_of(local, ends):
        if clock.monotonic() >= look:
            if uploader is None and tiering is not None:
                left_s = None if deadline is None else deadline - clock.monotonic()
                _upload_sealed(local, tiering, ends, left_s)
            look = clock.monotonic() + UPLOAD_CHECK_S
            continue
        if uploader is not None and uploader.error is not None:
            raise uploader.error
        if deadline is not None and clock.monotonic() >= deadline:
            raise DataLocalError(f"not uploaded after {timeout_s:.0f} s: {', '.join(behind)}", hint=WAITS_HINT)
        clock.wait(closed, POLL_S)
        if closed.is_set():
            raise DataLocalError(
                f"the log was closed during the wait; not uploaded yet: {', '.join(behind)}",
                hint="open the log again and call sync(); the data is safe on this disk meanwhile",
            )


def _upload_sealed(
    local: LocalTier, tiering: SpreadTiering, ends: Mapping[TopicPartition, int], left_s: float | None
) -> None:
    """Upload the sealed segments of the partitions in ``ends``. Failures that time cures are only logged.

    ``left_s``: seconds in which uploads may begin, None: no limit.
    """
    logs = [local.partition(tp) for tp in ends]
    found = ((log.tp, log.sealed_segments(log.positions().uploaded_offset)) for log in logs)
    sealed = {tp: segments[-1].end_offset for tp, segments in found if segments}
    try:
        if sealed:
            tiering.sync(sealed, None if left_s is None else max(0.0, left_s))
    except RemoteUnavailableError as error:  # every second: the store's own log has the begin and the end
        _logger.debug("what waits for the bucket goes on waiting: %s", error)
    except (CommitUnknownError, LockedError) as error:
        _logger.warning("what waits for the bucket goes on waiting: %s", error)


def _behind_of(local: LocalTier, ends: Mapping[TopicPartition, int]) -> list[str]:
    local.refresh_uploads()
    uploads = {tp: upload for log in local.logs().values() for tp, upload in log.uploads.read().items()}
    committed = {tp: local.partition(tp).positions().uploaded_offset for tp in ends}
    pauses: dict[str, Pause] = {}
    for log in local.logs().values():
        pauses |= PauseFile(log.directory, log.files).read()
    return _behind(ends, committed, uploads, pauses)


def _behind(
    ends: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
    uploads: Mapping[TopicPartition, PartitionUpload],
    pauses: Mapping[str, Pause],
) -> list[str]:
    """Return a text for each partition that is not committed up to its offset in ``ends``.

    Raises FencedError for a fenced partition, DataLocalError for a paused one.
    """
    for tp, end in ends.items():
        if tp in uploads and uploads[tp].fenced:
            raise FencedError(
                f"{tp}: another writer owns this partition; this log directory has not uploaded the records "
                f"up to offset {end}",
                hint=FENCED_HINT,
            )
    behind = [tp for tp, end in sorted(ends.items()) if committed[tp] < end]
    for tp in behind:
        if (pause := pauses.get(tp.topic) or pauses.get(ALL_TOPICS)) is not None:
            raise DataLocalError(
                f"{tp}: not all is uploaded, offset {committed[tp]} of {ends[tp]}: {pause}", hint=PAUSED_HINT
            )
    return [f"{tp} at offset {committed[tp]} of {ends[tp]}" for tp in behind]


def follow(
    directory: LogDirectory,
    *,
    clock: Clock,
    timeout_ms: int | None,
    roll: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[TopicPartition, int] | None:
    """Wait until a running uploader has committed the records that are in the log now.

    Return the number of offsets that were committed during the wait, by partition; None if the uploader ended before.
    ``roll``: seal the active segments first; without it only sealed segments count. ``progress`` gets a sentence every
    ``PROGRESS_SECONDS``.
    Raises FencedError, DataLocalError after ``timeout_ms`` (None: never) or for paused uploads, and the error of a
    partition that cannot be read.
    """
    ends: dict[TopicPartition, int] = {}
    for seen in directory.scan().seen:
        sealed = max([segment.end for segment in seen.sealed], default=0)
        ends[seen.tp] = seen.end_offset if roll else max(seen.noted_offset, sealed)
    for error in directory.unreadable().values():
        raise error  # its records may be on this disk only
    before = committed = _committed(directory, ends)
    begun = reported = clock.monotonic()
    asked = begun - ASK_S
    never = threading.Event()
    while behind := _behind(ends, committed, directory.uploads(), directory.pauses()):
        now = clock.monotonic()
        if roll and now - asked >= ASK_S:
            directory.seal()
            asked = now
        if now - reported >= PROGRESS_SECONDS:
            reported = now
            progress(f"not committed by the running uploader yet: {shown(behind)}")
        if timeout_ms is not None and now - begun >= timeout_ms / 1000:
            raise DataLocalError(
                f"not committed by the running uploader yet: {', '.join(behind)}",
                hint="`tiered status` says what it waits for",
            )
        clock.wait(never, FOLLOW_S)
        if not directory.uploader():
            return None
        committed = _committed(directory, ends)
    return {tp: committed[tp] - before[tp] for tp in sorted(ends) if committed[tp] > before[tp]}


def shown(names: Sequence[str]) -> str:
    """Return the first ``NAMES`` names in one text, followed by the number of the other names."""
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def _committed(directory: LogDirectory, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    uploads = directory.uploads()
    return {tp: uploads[tp].end_offset if tp in uploads else 0 for tp in ends}
