"""The engine on the calling thread: drains partitions to given offsets, once, without patience.

The same rules as on an event loop (``plan.tiering``), told what is on the disk of an open log. What fails is not tried
again here: whoever called knows whether to wait. A failure that is not one partition's own ends the run; what has
begun by then is waited for.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from tiered.clock import Clock, IdSource
from tiered.errors import (
    CorruptionError,
    DataLocalError,
    FencedError,
    LogDestroyedError,
    OffsetGapError,
    TieredError,
)
from tiered.local.directory.manager import LocalLog
from tiered.model import TopicPartition
from tiered.plan.tiering import facts, orders
from tiered.plan.tiering.facts import DrainMode, Failure, SegmentRef
from tiered.plan.tiering.limits import Limits
from tiered.plan.tiering.partition import NONE_MS, Phase
from tiered.plan.tiering.state import State, failed
from tiered.remote.roots import REGISTRATION_REQUESTS
from tiered.store.base import Steps, Store
from tiered.store.driver import drive
from tiered.store.puts import PUT_DEADLINE_SECONDS
from tiered.store.retry import RetryingStore
from tiered.tiering.steps import BucketSteps, Granted

UPLOADS_TOGETHER = 4
"""Segments that a run uploads at once."""
LIMITS = Limits(uploads=UPLOADS_TOGETHER, commit_wait_ms=1 << 40, seal_idle_ms=NONE_MS)
"""A run commits when nothing more is under way: nobody reads along meanwhile."""
ALONE = (FencedError, OffsetGapError, CorruptionError, LogDestroyedError)
"""What is wrong with one partition and keeps no other from being drained."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Driver:
    """Runs the engine's steps on the calling thread."""

    store: Store
    clock: Clock
    ids: IdSource

    def __call__(self, steps: Steps[T]) -> T:
        """The value of the steps."""
        return drive(self.store, steps, clock=self.clock, ids=self.ids, together=REGISTRATION_REQUESTS)

    def once(self) -> Driver:
        """One that asks a store that may not answer a single time."""
        inner = self.store.inner if isinstance(self.store, RetryingStore) else self.store
        return Driver(inner, self.clock, self.ids)


class Run:
    """One drain. ``errors``: why partitions did not get there, by partition; what was committed is noted."""

    def __init__(
        self,
        local: LocalLog,
        steps: BucketSteps,
        *,
        driver: Driver,
        register: Callable[[str], None],
        claim: Callable[[TopicPartition], Granted],
        note: Callable[[orders.Note], None],
        warn: Callable[[str], None],
    ) -> None:
        self._local = local
        self._steps = steps
        self._clock = driver.clock
        self._drive = driver
        self._register = register
        self._claim = claim
        self._note = note
        self._warn = warn
        self._state = State(driver.ids, LIMITS)
        self._orders: deque[orders.Order] = deque()
        self._running: list[Future[facts.Answer]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._exit: orders.Exit | None = None
        self._stopped = False
        self._deadline: float | None = None
        self.errors: dict[TopicPartition, TieredError] = {}
        self._topic_errors: dict[str, TieredError] = {}

    def drain(self, ends: Mapping[TopicPartition, int], deadline: float | None) -> None:
        """Until every partition is committed up to its end, or nothing more can be done. ``deadline`` is monotonic."""
        self._deadline = deadline
        told: list[facts.Event] = [fact for tp, end in ends.items() for fact in self._seen(tp, end)]
        deadline_ms = None if deadline is None else int(deadline * 1000)
        self._post(*told, facts.DrainRequested(DrainMode.SEALED, deadline_ms, oneshot=True, ends=ends))
        with contextlib.ExitStack() as pools:  # leaving it waits for what is under way
            while self._exit is None and (self._orders or self._running):
                if self._orders and not self._stopped:
                    self._begin(self._orders.popleft(), pools)
                else:
                    self._collect()
        for tp, end in ends.items():
            error = self._verdict(tp, end)
            if error is not None:
                self.errors[tp] = error

    def _begin(self, order: orders.Order, pools: contextlib.ExitStack) -> None:
        """On this thread, but uploads beside each other; nothing more for a partition of which something failed."""
        if not isinstance(order, orders.RegisterTopic | orders.Seal | orders.Look) and order.tp in self.errors:
            return
        together = self._running or any(isinstance(other, orders.Upload) for other in self._orders)
        if not isinstance(order, orders.Upload) or not together:
            self._post(self._answer(order))
            return
        if self._pool is None:
            self._pool = pools.enter_context(ThreadPoolExecutor(UPLOADS_TOGETHER, thread_name_prefix="tiered-upload"))
        self._running.append(self._pool.submit(self._answer, order))

    def _verdict(self, tp: TopicPartition, end: int) -> TieredError | None:
        """Why ``tp`` is not committed up to ``end``; None if it is, or if the run ended before its turn."""
        p = self._state.partition(tp)
        if tp in self.errors:
            return self.errors[tp]
        if p.known_committed >= end:
            return None
        if tp.topic in self._topic_errors:
            return self._topic_errors[tp.topic]
        if p.phase is Phase.FENCED and p.failure is not None:
            return FencedError(p.failure.message, hint=p.failure.hint)
        if self._stopped:
            return None
        late = self._deadline is not None and self._clock.monotonic() >= self._deadline
        if p.phase is Phase.CLAIMED and p.committed not in p.works and not late:
            first = min(p.works, default=end)
            return OffsetGapError(
                f"{tp}: the catalog ends at {p.committed}, the next sealed segment on this disk begins at {first}",
                start=p.committed,
                end=first,
                hint="segments were removed from the log directory, or it belongs to another log: run tiered check",
            )
        return DataLocalError(
            f"{tp}: committed up to {p.known_committed} of {end} when the time was up",
            hint="sync again, or run tiered-uploader; the data is safe on this disk meanwhile",
        )

    def _seen(self, tp: TopicPartition, end: int) -> Iterator[facts.Event]:
        """What is on the disk, and whether a claim of an earlier run stands."""
        log = self._local.partition(tp)
        at = log.positions()
        yield facts.PartitionSeen(
            tp, log.topic_id, at.local_start_offset, at.flushed_offset, at.end_offset, noted_offset=at.uploaded_offset
        )
        start, held = at.uploaded_offset, self._steps.held(tp)
        if held is not None and held.root is not None:
            start = held.root.next_offset
            yield facts.ClaimHeld(tp, held.claim_epoch, start)
        for segment in log.sealed_segments(start):
            if segment.base_offset < end:
                ref = SegmentRef(segment.base_offset, segment.end_offset, segment.size_bytes, segment.appended_ms)
                yield facts.SegmentSealed(tp, ref)

    def _post(self, *told: facts.Event) -> None:
        for action in self._state.handle_all(told, int(self._clock.monotonic() * 1000)):
            match action:
                case orders.Note():
                    self._note(action)
                case orders.Exit():
                    self._exit = action
                case orders.Report(level=orders.Level.WARN, event="settle_failed"):
                    self._warn(f"{action.tp}: {action.message}")
                case orders.Report() | orders.RetryAt() | orders.CancelUpload():
                    pass  # whoever called is told by an error, waits or does not, and is not left before all has ended
                case _:
                    self._orders.append(action)

    def _collect(self) -> None:
        """Waits for uploads; once the run is stopped, for all of them."""
        if self._stopped:
            self._orders.clear()
        if self._running:
            wait(self._running, return_when=FIRST_COMPLETED)
            done = [future for future in self._running if future.done()]
            self._running = [future for future in self._running if future not in done]
            for future in done:
                self._post(future.result())

    def _answer(self, order: orders.Order) -> facts.Answer:
        try:
            return self._do(order)
        except TieredError as error:
            if isinstance(order, orders.RegisterTopic):
                self._topic_errors[order.topic] = error
            elif isinstance(order, orders.Claim | orders.Upload | orders.Commit):
                self.errors.setdefault(order.tp, error)
            if not isinstance(order, orders.Settle) and not isinstance(error, ALONE):
                self._stopped = True
            return failed(order, Failure.of(error))

    def _do(self, order: orders.Order) -> facts.Answer:
        match order:
            case orders.RegisterTopic(number, topic):
                self._register(topic)
                return facts.TopicRegistered(number)
            case orders.Claim(number, tp):
                granted = self._claim(tp)
                return facts.ClaimDone(number, granted.claim_epoch, granted.start_offset, granted.next_offset)
            case orders.Settle(number, tp, epoch, next_offset):
                self._drive(self._steps.settle(tp, epoch, next_offset))
                return facts.SettleDone(number)
            case orders.Upload(number, tp, segment, epoch):
                left_s = math.inf if self._deadline is None else max(self._deadline - self._clock.monotonic(), 0.0)
                seconds = min(left_s, PUT_DEADLINE_SECONDS)
                steps = self._steps.upload(tp, segment, epoch, deadline_seconds=seconds)
                return facts.UploadDone(number, self._drive(steps))
            case orders.Commit(number, tp, epoch, rows):
                root = self._drive(self._steps.commit(tp, epoch, rows))
                return facts.CommitDone(number, root.next_offset)
        raise TypeError(f"{order!r} is nothing that a run does")
