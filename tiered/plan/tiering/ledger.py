"""The books of the state: partitions, open orders, timers, what was said. Bookkeeping only, no rule."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tiered.model import TopicPartition
from tiered.plan.tiering.backoff import RECHECK_PERMISSION_MS, Dice, fatal_delay_ms, retry_delay_ms
from tiered.plan.tiering.drain import Drain
from tiered.plan.tiering.facts import Failure, FailureKind
from tiered.plan.tiering.limits import Limits
from tiered.plan.tiering.orders import (
    Action,
    CancelUpload,
    Level,
    Order,
    Report,
    RetryAt,
)
from tiered.plan.tiering.partition import NONE_MS, Partition, Phase, Work
from tiered.plan.tiering.waits import wait_of

ReadyKey = tuple[bool, int]
"""Whether a partition has its share of the uploads already, and when its next segment's first byte was appended."""
HEAP_SLACK = 64
O = TypeVar("O", bound=Order)  # noqa: E741 - an order


@dataclass(slots=True)
class TopicState:
    """Registration of one topic: ``order`` is the open order (0: none), ``members`` its partitions on this disk."""

    registered: bool = False
    order: int = 0
    attempts: int = 0
    retry_at_ms: int = 0
    failure: Failure | None = None
    reported_ms: int = NONE_MS
    members: dict[TopicPartition, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenOrder:
    """An order that is not answered yet; once not ``live`` its answer only frees the slot."""

    action: Order
    owner: Partition | None = None
    work: Work | None = None
    live: bool = True


class Ledger:
    """What the rules keep between two events.

    An event costs what it touches, not what is held: ``_queue`` has the partitions that something happened to, those
    that wait for a slot stand in lines of their own, and what is asked of all partitions at once (who uploads next,
    which active segment is the oldest) is kept in heaps whose stale entries are dropped when they come up.
    """

    def __init__(self, dice: Dice, limits: Limits, *, lazy: bool) -> None:
        self.limits = limits
        self._dice = dice
        self._lazy = lazy
        self._partitions: dict[TopicPartition, Partition] = {}
        self._topics: dict[str, TopicState] = {}
        self._orders: dict[int, OpenOrder] = {}
        self._last_order = 0
        self._uploads = 0
        self._claims = 0
        self._commits = 0
        self._timers: list[tuple[int, str, int]] = []
        self._wake_ms = NONE_MS
        self._queue: OrderedDict[TopicPartition, None] = OrderedDict()
        self._claim_line: OrderedDict[TopicPartition, None] = OrderedDict()
        self._commit_line: OrderedDict[TopicPartition, None] = OrderedDict()
        self._ready: dict[TopicPartition, ReadyKey] = {}
        self._ready_heap: list[tuple[bool, int, TopicPartition]] = []
        self._idle_heap: list[tuple[int, TopicPartition]] = []
        self._drain: Drain | None = None
        self._out: list[Action] = []

    # ------------------------------------------------------------------ orders

    def _order(self, make: Callable[[int], O], owner: Partition | None = None, work: Work | None = None) -> O:
        """Gives out an order under the next number."""
        self._last_order += 1
        action = make(self._last_order)
        self._orders[self._last_order] = OpenOrder(action, owner, work)
        self._out.append(action)
        return action

    def _void(self, order: int) -> None:
        opened = self._orders.get(order)
        if opened is not None:
            self._orders[order] = replace(opened, live=False)

    def _drop_claim(self, p: Partition) -> None:
        """Forgets all that was stored or ordered under the claim: no epoch adopts another's uploads."""
        for work in p.works.values():
            if work.order:
                self._void(work.order)
                self._out.append(CancelUpload(work.order))
                p.stale_uploads += 1
                work.order = 0
            work.row = None
        p.uploading = 0
        self._void(p.commit_order)
        self._void(p.settle_order)
        p.commit_order = p.settle_order = 0
        p.ready_since_ms = NONE_MS
        self._ready.pop(p.tp, None)

    def _gone(self, tp: TopicPartition) -> None:
        p = self._partitions.pop(tp, None)
        if p is None:
            return
        self._drop_claim(p)
        for line in (self._queue, self._claim_line, self._commit_line):
            line.pop(tp, None)
        if self._drain is not None:
            self._drain.forget(tp)
        for number, opened in list(self._orders.items()):
            if opened.owner is p:
                self._void(number)
        members = self._topics[tp.topic].members
        members.pop(tp, None)
        if not members:
            self._void(self._topics.pop(tp.topic).order)

    # ------------------------------------------------------------------ who is the oldest

    def _make_ready(self, p: Partition, work: Work) -> None:
        """``work`` of ``p`` may be uploaded as soon as a slot is free."""
        key = (p.uploading >= self.limits.share, work.segment.first_ms)
        if self._ready.get(p.tp) != key:
            self._ready[p.tp] = key
            heapq.heappush(self._ready_heap, (*key, p.tp))
            if len(self._ready_heap) > 2 * len(self._ready) + HEAP_SLACK:
                self._ready_heap = [(*known, tp) for tp, known in self._ready.items()]
                heapq.heapify(self._ready_heap)

    def _next_ready(self) -> Partition | None:
        """The partition that a free slot goes to: oldest byte first, one above its share only if no other waits."""
        while self._ready_heap:
            over, first_ms, tp = self._ready_heap[0]
            if self._ready.get(tp) == (over, first_ms):
                return self._partitions[tp]
            heapq.heappop(self._ready_heap)
        return None

    def go_by(self, limits: Limits) -> None:
        """Other limits from now on; when segments are to be sealed follows from them."""
        self.limits = limits
        self._idle_heap = []
        for p in self._partitions.values():
            p.seal_listed_ms = NONE_MS
            self._watch_idle(p)

    def _watch_idle(self, p: Partition) -> None:
        """Remembers when the active segment of ``p`` is to be sealed if nobody writes."""
        at_ms = p.seal_at(self.limits.seal_idle_ms)
        if at_ms not in (NONE_MS, p.seal_listed_ms):
            p.seal_listed_ms = at_ms
            heapq.heappush(self._idle_heap, (at_ms, p.tp))
            if len(self._idle_heap) > 2 * len(self._partitions) + HEAP_SLACK:
                self._idle_heap = [(ms, tp) for ms, tp in set(self._idle_heap) if self._is_sealed_at(tp, ms)]
                heapq.heapify(self._idle_heap)

    def _next_seal_ms(self) -> int:
        """When the first active segment is to be sealed if nobody writes, -1 if none is."""
        while self._idle_heap:
            at_ms, tp = self._idle_heap[0]
            if self._is_sealed_at(tp, at_ms):
                return at_ms
            heapq.heappop(self._idle_heap)
            p = self._partitions.get(tp)
            if p is not None and p.seal_listed_ms == at_ms:
                p.seal_listed_ms = NONE_MS
        return NONE_MS

    def _is_sealed_at(self, tp: TopicPartition, at_ms: int) -> bool:
        p = self._partitions.get(tp)
        return p is not None and p.seal_at(self.limits.seal_idle_ms) == at_ms

    # ------------------------------------------------------------------ time

    def _wait_until(self, at_ms: int, tp: TopicPartition | None) -> None:
        heapq.heappush(self._timers, (at_ms, *(tp if tp is not None else ("", -1))))

    def _run_timers(self, now_ms: int) -> None:
        while self._timers and self._timers[0][0] <= now_ms:
            _, topic, partition = heapq.heappop(self._timers)
            tp = TopicPartition(topic, partition)
            if tp in self._partitions:
                self._queue[tp] = None

    def _ask_for_wake(self) -> None:
        at_ms = self._timers[0][0] if self._timers else NONE_MS
        if at_ms not in (NONE_MS, self._wake_ms):
            self._out.append(RetryAt(at_ms))
        self._wake_ms = at_ms

    def _delay_ms(self, failure: Failure, attempt: int) -> int:
        if failure.kind is FailureKind.PERMISSION:
            return RECHECK_PERMISSION_MS
        if failure.kind is FailureKind.FATAL:
            return fatal_delay_ms(attempt)
        return retry_delay_ms(attempt, self._dice)

    # ------------------------------------------------------------------ failures and what is said of them

    def _failed(self, p: Partition, failure: Failure, doing: str, now_ms: int) -> None:
        """Remembers the failure, says it, and sets the time of the next attempt."""
        p.attempts += 1
        p.failure, p.failed_doing = failure, doing
        p.retry_at_ms = now_ms + self._delay_ms(failure, p.attempts)
        self._wait_until(p.retry_at_ms, p.tp)
        level = Level.WARN if failure.kind in (FailureKind.RETRIABLE, FailureKind.UNKNOWN) else Level.ERROR
        self._say_once(p, level, failure.code, _text(failure, doing), now_ms)

    def _succeeded(self, p: Partition, doing: str) -> None:
        if p.failure is not None:
            if p.reported_ms != NONE_MS:
                self._say(Level.INFO, "recovered", f"{doing} works again after {p.attempts} failures", p.tp)
            p.failure, p.failed_doing, p.reported_ms, p.reported_code = None, "", NONE_MS, ""
        p.attempts = 0
        p.retry_at_ms = 0

    def _fence(self, p: Partition, failure: Failure, now_ms: int) -> None:
        """A newer claim owns the partition: nothing more is ordered for it."""
        self._drop_claim(p)
        p.phase = Phase.FENCED
        p.failure, p.failed_doing = failure, "fenced"
        self._say_once(p, Level.ERROR, "fenced", _text(failure, "the partition is fenced"), now_ms)

    def _say_once(self, p: Partition, level: Level, code: str, text: str, now_ms: int) -> None:
        """The first of its kind at once, repeats every ``repeat_report_ms``."""
        repeat = p.reported_code == code and p.reported_ms != NONE_MS
        if repeat and now_ms < p.reported_ms + self.limits.repeat_report_ms:
            return
        p.reported_code, p.reported_ms = code, now_ms
        fields = (("attempt", p.attempts), ("code", code))
        self._out.append(Report(level, "still_failing" if repeat else "failed", text, p.tp, fields))

    def _say(
        self,
        level: Level,
        event: str,
        message: str,
        tp: TopicPartition | None = None,
        fields: tuple[tuple[str, str | int], ...] = (),
    ) -> None:
        self._out.append(Report(level, event, message, tp, fields))

    def _track_wait(self, p: Partition, now_ms: int) -> None:
        topic = self._topics[p.tp.topic]
        code = wait_of(p, topic.failure, topic.registered)[0]
        if code != p.wait_code:
            p.wait_code, p.wait_since_ms = code, now_ms


def _text(failure: Failure, doing: str) -> str:
    return f"{doing}: {failure.message}" + (f" ({failure.hint})" if failure.hint else "")
