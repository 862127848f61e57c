"""Whether a log directory is in service: how a failing disk takes it out, and how it ends in bounded time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from tiered.errors import LocalIOError, TieredError
from tiered.local.cleaning.cleaner import LogCleaner
from tiered.local.directory.tasks import Workers
from tiered.local.disk.files import disk_failed
from tiered.local.partition.roster import Roster
from tiered.local.partition.surroundings import Surroundings

LOGGER = logging.getLogger("tiered.local")

LEAST_WAIT_SECONDS = 0.01
"""What a partition gets at the end for its locks when those before it took all the time."""


class DirectoryService:
    """Kafka's rule: a file that the disk fails (EIO, read-only, gone) takes its whole directory offline.

    Nothing is acknowledged any more, in any partition, until the next open; what can still be read is read. Errors that
    are of one file, its owner, its room or its contents are not the disk's.
    """

    def __init__(self, around: Surroundings, roster: Roster) -> None:
        self._directory = roster.directory
        self._roster = roster
        self._clock = around.clock
        self._config = around.config

    def failed(self, error: TieredError) -> None:
        """Takes the directory offline if the error says so. Callers may hold a partition's lock."""
        if disk_failed(error) and self._roster.offline is None:
            LOGGER.error("directory_offline path=%s error=%s", self._directory, error)
            self._roster.go_offline(error)

    def check(self) -> None:
        """Raises LocalIOError while the directory is offline."""
        error = self._roster.offline
        if error is not None:
            raise LocalIOError(
                f"log directory {self._directory} is offline: {error.message}",
                hint="repair the disk, then open the log again",
            )

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Work of a caller's that changes the directory: refused while it is offline, looked at when it fails."""
        self.check()
        try:
            yield
        except TieredError as error:
            self.failed(error)
            raise

    def end(self, cleaner: LogCleaner, workers: Workers) -> bool:
        """Ends rounds of compaction, closes every partition; whether all is durable. At most ``close_timeout_ms``.

        LocalIOError if a thread hangs in the disk; all that can be made durable is durable then, too.
        """
        limit_ms = self._config.close_timeout_ms
        deadline = self._clock.monotonic() + limit_ms / 1000
        cleaner.stop()
        hung = None
        if not workers.join(self._left(deadline)):
            hung = LocalIOError(f"{self._directory}: a background task has not ended for {limit_ms} ms")
        clean = self._roster.offline is None
        for writer in self._roster.awake():
            try:
                clean = writer.close(self._left(deadline)) and clean
            except LocalIOError as error:
                hung = hung or error
        if hung is not None:
            raise hung
        return clean

    def _left(self, deadline: float) -> float:
        return max(deadline - self._clock.monotonic(), LEAST_WAIT_SECONDS)
