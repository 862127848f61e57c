"""Waits until the bucket holds what was appended, whoever uploads it: this thread, this process, or a daemon."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Protocol

from tiered.clock import Clock
from tiered.errors import (
    CommitUnknown,
    DataLocalError,
    FencedError,
    LockedError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.local.directory.directories import LocalLogs
from tiered.model import TopicPartition

UPLOAD_CHECK_S = 1.0
"""How often a wait looks for sealed segments that nobody uploads."""
POLL_S = 0.05
"""How often a wait for an uploader in another process looks at its checkpoint."""
FENCED_HINT = "another volume writes this partition now; its records and these differ from the committed end on"

_logger = logging.getLogger("tiered")


class Uploads(Protocol):
    """The bucket side of an open log, as far as a wait needs it."""

    def ours(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those whose directory no other process uploads."""

    def sync(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> None:
        """Uploads and commits what is sealed below these offsets."""


class UploaderHandle(Protocol):
    """An uploader at work for an open log."""

    def poke(self) -> None:
        """Look now instead of at the next scan."""

    def close(self, timeout: float) -> None:
        """Stops it; what is not committed stays local."""

    @property
    def error(self) -> TieredError | None:
        """Why it stopped by itself, None while it works."""


def wait_uploaded(
    local: LocalLogs,
    ends: Mapping[TopicPartition, int],
    timeout_s: float | None,
    *,
    tiering: Uploads | None,
    uploader: UploaderHandle | None,
    clock: Clock,
    closed: threading.Event,
) -> None:
    """Waits until the committed end of each partition reaches its offset; DataLocalError on time-out.

    It seals nothing: segments are sealed by their size, by ``seal.ms`` or by ``sync``. Where neither an in-process
    uploader nor a daemon uploads what is sealed, the waiting thread does.
    """
    deadline = None if timeout_s is None else clock.monotonic() + timeout_s
    look = clock.monotonic()
    while behind := _behind(local, ends):
        if clock.monotonic() >= look:
            if uploader is None and tiering is not None:
                left_s = None if deadline is None else deadline - clock.monotonic()
                _upload_sealed(local, tiering, tiering.ours(ends), left_s)
            look = clock.monotonic() + UPLOAD_CHECK_S
            continue
        if uploader is not None and uploader.error is not None:
            raise uploader.error
        if deadline is not None and clock.monotonic() >= deadline:
            raise DataLocalError(
                f"after {timeout_s:.0f} s not committed yet: {behind}",
                hint="tiered-uploader status says what it waits for; the data is safe on this disk meanwhile",
            )
        clock.wait(closed, POLL_S)
        if closed.is_set():
            raise DataLocalError(f"the log was closed while waiting; not committed yet: {behind}")


def _upload_sealed(
    local: LocalLogs, tiering: Uploads, ends: Mapping[TopicPartition, int], left_s: float | None
) -> None:
    """What an uploader would do now; trouble that may pass is left to the next look."""
    logs = [local.partition(tp) for tp in ends]
    found = ((log.tp, log.sealed_segments(log.positions().uploaded_offset)) for log in logs)
    sealed = {tp: segments[-1].end_offset for tp, segments in found if segments}
    try:
        if sealed:
            tiering.sync(sealed, None if left_s is None else max(0.0, left_s))
    except RemoteUnavailableError as error:  # every second: the store's own log says when it began and when it ends
        _logger.debug("what waits for the bucket goes on waiting: %s", error)
    except (CommitUnknown, LockedError) as error:
        _logger.warning("what waits for the bucket goes on waiting: %s", error)


def _behind(local: LocalLogs, ends: Mapping[TopicPartition, int]) -> str:
    waiting = []
    local.refresh_uploads()
    uploads = {tp: upload for log in local.logs().values() for tp, upload in log.uploads.read().items()}
    for tp, end in ends.items():
        if tp in uploads and uploads[tp].fenced:
            raise FencedError(f"{tp}: a newer claim owns it; {end} was not committed by this volume", hint=FENCED_HINT)
        uploaded = local.partition(tp).positions().uploaded_offset
        if uploaded < end:
            waiting.append(f"{tp} {uploaded} of {end}")
    return ", ".join(waiting)
