"""What a log directory does as time passes, all from one call about once a second: no thread of its own."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

from tiered.clock import Clock
from tiered.config import LogConfig
from tiered.errors import TieredError
from tiered.local.space import DiskReserve
from tiered.local.uploads import SealRequest, UploadCheckpoint
from tiered.local.writer import PartitionWriter
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")


class Upkeep:
    """Upload checkpoint, seal requests, timers of the partitions, recovery checkpoint, disk reserve.

    ``writers`` is the directory's live mapping. A clock that jumps back makes every step due.
    """

    def __init__(
        self,
        clock: Clock,
        config: LogConfig,
        writers: Mapping[TopicPartition, PartitionWriter],
        *,
        reserve: DiskReserve,
        uploads: UploadCheckpoint,
        seal_requests: SealRequest,
        checkpoint: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._config = config
        self._writers = writers
        self._reserve = reserve
        self._uploads = uploads
        self._seal_requests = seal_requests
        self._checkpoint = checkpoint
        self._last_request = ""
        self._last_checkpoint_ms = self._last_uploads_ms = clock.now_ms()

    def tick(self) -> None:
        """One round. A step that fails keeps no other from its turn; the first error is raised at the end."""
        now_ms = self._clock.now_ms()
        failures: list[TieredError] = []
        with _collected(failures):
            self._reserve.check()
        if not 0 <= now_ms - self._last_uploads_ms < self._config.uploads_check_interval_ms:
            self._last_uploads_ms = now_ms
            with _collected(failures):
                self.refresh_uploads()
            with _collected(failures):
                self._obey_seal_request()
        for writer in list(self._writers.values()):
            with _collected(failures):
                writer.tick(now_ms)
        if not 0 <= now_ms - self._last_checkpoint_ms < self._config.checkpoint_interval_ms:
            self._last_checkpoint_ms = now_ms
            with _collected(failures):
                self._checkpoint()
        if failures:
            raise failures[0]

    def refresh_uploads(self) -> None:
        """Hands each partition its part of ``tiered-offset-checkpoint``; one ``stat`` while nothing changed."""
        for tp, upload in self._uploads.read().items():
            writer = self._writers.get(tp)
            if writer is not None and writer.upload != upload:
                writer.set_uploaded(upload)

    def _obey_seal_request(self) -> None:
        request = self._seal_requests.read()
        if request is None or request[0] == self._last_request:
            return
        self._last_request, wanted = request
        for tp, writer in list(self._writers.items()):
            if wanted is None or tp in wanted:
                writer.roll()


@contextlib.contextmanager
def _collected(failures: list[TieredError]) -> Iterator[None]:
    try:
        yield
    except TieredError as error:
        LOGGER.warning("tick_failed error=%s", error)
        failures.append(error)
