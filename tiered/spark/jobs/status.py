"""How far the tasks of a phase are: each attempt tells it in the bucket now and then, the driver looks there.

::

    worker   {phase}/{number}.{run}.{uid}.json   {"bytes": read so far}, after STATUS_SECONDS, then replaced
    driver   LIST {phase}/ ──> receipts, statuses of tasks without one ──> bytes of the progress bar

Nothing depends on it: what cannot be told is not told. A task's furthest attempt counts, so that neither a retry nor
an attempt beside the first one takes the bar back. What an earlier run of the job told does not count: its tasks begin
anew. It works wherever Spark runs, also over Connect, which tells nothing of tasks.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Sequence

from tiered.clock import Clock, SystemClock, SystemIds
from tiered.errors import TieredError
from tiered.format.crc import crc32c
from tiered.program.output import counted
from tiered.spark.jobs.plan import Task
from tiered.spark.jobs.receipts import JobFolder
from tiered.spark.stores import capabilities_of
from tiered.store.base import (
    ABSENT,
    Capabilities,
    Match,
    Object,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    Store,
    StoreAround,
    StoreRequest,
)

STATUS_SECONDS = 10.0
"""An attempt that takes longer tells how far it is, at most this often: a small PUT each time."""

LOOK_AGAIN_SECONDS = 2.0
"""Between two looks of the driver; longer where looks take more than a tenth of the time."""


class CountedStore(StoreAround):
    """The store of one attempt: counts the bytes that are read from it, and tells them below ``stem``. Thread-safe."""

    def __init__(self, inner: Store, stem: str, *, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self._stem = stem
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._told_at = self._clock.monotonic()
        self._bytes = 0
        self._is_telling = False
        self._key = self._etag = ""

    def execute(self, request: StoreRequest) -> Outcome:
        """One attempt, counted. What goes wrong with the telling is no error."""
        outcome = self.inner.execute(request)
        if isinstance(outcome, Object) and self._counted(len(outcome.data)):
            try:
                with contextlib.suppress(TieredError):
                    self._tell()
            finally:
                self._is_telling = False
        return outcome

    def _counted(self, more_bytes: int) -> bool:
        """Whether it is time to tell."""
        with self._lock:
            self._bytes += more_bytes
            now = self._clock.monotonic()
            if self._is_telling or now - self._told_at < STATUS_SECONDS:
                return False
            self._told_at, self._is_telling = now, True
            return True

    def _tell(self) -> None:
        body = json.dumps({"bytes": self._bytes}).encode()
        condition = Match(self._etag) if self._etag else ABSENT
        key, self._etag = self._key if self._etag else f"{self._stem}.{SystemIds().uid()[:12]}.json", ""
        outcome = self.inner.execute(Put(key, body, condition, crc32c(body)))
        if isinstance(outcome, PutResult) and outcome.status is PutStatus.LANDED:
            self._key, self._etag = key, outcome.etag  # else the next one is another object


def task_capabilities(store: Store) -> Capabilities:
    """Of the store of one attempt, as its process knows them."""
    return capabilities_of(store.inner if isinstance(store, CountedStore) else store)


class PhaseStatus:
    """The driver's view of the tasks of one phase, of which ``done`` have ended; ``run``: the run that tells."""

    def __init__(
        self, folder: JobFolder, phase: str, run: str, tasks: Sequence[Task], *, done: Iterable[int], clock: Clock
    ) -> None:
        self._folder, self._phase, self._run, self._clock = folder, phase, run, clock
        self._sizes = [int(task.get("size_bytes", 0)) for task in tasks]
        self._done = set(done)
        self._told: dict[int, int] = {}
        self._next_look = clock.monotonic() + LOOK_AGAIN_SECONDS

    @property
    def total_bytes(self) -> int:
        """Of all tasks; 0 where that is not known."""
        return sum(self._sizes)

    def shown(self, ended: int) -> tuple[int, int, str]:
        """What is done, of how much, and a note: bytes where sizes are known, else tasks.

        ``ended``: tasks that have ended, by what Spark knows or this run began with.
        """
        if self._clock.monotonic() >= self._next_look:
            self._look()
        ended = max(ended, len(self._done))
        if not self.total_bytes:
            return ended, len(self._sizes), ""
        running = sum(min(told, self._sizes[at]) for at, told in self._told.items() if at not in self._done)
        done = sum(self._sizes[at] for at in self._done)
        return done + running, self.total_bytes, f"{ended} of {counted(len(self._sizes), 'task')}"

    def _look(self) -> None:
        begun = self._clock.monotonic()
        with contextlib.suppress(TieredError):
            done, told = self._folder.statuses(self._phase, self._run)
            self._done |= done
            for number, read_bytes in told.items():
                self._told[number] = max(read_bytes, self._told.get(number, 0))
        ended = self._clock.monotonic()
        self._next_look = ended + max(LOOK_AGAIN_SECONDS, 10 * (ended - begun))
