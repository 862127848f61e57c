"""Service state of a log directory: a failing disk takes it offline, and a close ends it in bounded time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from tiered.errors import LocalIOError, TieredError
from tiered.local.cleaning.cleaner import LogCleaner
from tiered.local.directory.tasks import Workers
from tiered.local.disk.files import disk_failed
from tiered.local.partition.context import DirectoryContext
from tiered.local.partition.open_partitions import Roster

LOGGER = logging.getLogger("tiered.local")

LEAST_WAIT_SECONDS = 0.01
"""Minimal wait at a close for a partition's locks, when those before it took all the time."""


class DirectoryService:
    """Service state of a directory. As in Kafka, one disk error (EIO, read-only, gone) takes it offline as a whole.

    No partition then acknowledges anything until the next open; reads go on where the disk allows. Errors of a single
    file (its owner, its contents) and a full disk do not take it offline.
    """

    def __init__(self, around: DirectoryContext, roster: Roster) -> None:
        self._directory = roster.directory
        self._roster = roster
        self._clock = around.clock
        self._config = around.config

    def failed(self, error: TieredError) -> None:
        """Take the directory offline if ``error`` is a disk error. Callers may hold a partition's lock."""
        if disk_failed(error) and self._roster.offline is None:
            LOGGER.error("directory_offline path=%s error=%s", self._directory, error)
            self._roster.go_offline(error)

    def check(self) -> None:
        """Raise LocalIOError while the directory is offline."""
        error = self._roster.offline
        if error is not None:
            raise LocalIOError(
                f"log directory {self._directory} is offline: {error.message}",
                hint="repair the disk, then open the log again",
            )

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Guard a change of the directory: raise while offline, and go offline after a disk error inside the block."""
        self.check()
        try:
            yield
        except TieredError as error:
            self.failed(error)
            raise

    def end(self, cleaner: LogCleaner, workers: Workers) -> bool:
        """Close every partition within ``close_timeout_ms``, compaction first. Return True if all is durable.

        Raises LocalIOError if a thread does not return from the disk, after it has closed the other partitions.
        """
        limit_ms = self._config.close_timeout_ms
        deadline = self._clock.monotonic() + limit_ms / 1000
        cleaner.stop()
        hung = None
        if not workers.join(self._remaining_seconds(deadline)):
            hung = LocalIOError(f"{self._directory}: a background task has not ended for {limit_ms} ms")
        clean = self._roster.offline is None
        for writer in self._roster.awake():
            try:
                clean = writer.close(self._remaining_seconds(deadline)) and clean
            except LocalIOError as error:
                hung = hung or error
        if hung is not None:
            raise hung
        return clean

    def _remaining_seconds(self, deadline: float) -> float:
        return max(deadline - self._clock.monotonic(), LEAST_WAIT_SECONDS)
