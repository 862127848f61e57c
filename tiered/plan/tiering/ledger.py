"""The books of the state: partitions, open orders, timers, what was said. Bookkeeping only, no rule."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping
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
from tiered.plan.tiering.partition import NONE_MS, Partition, Phase, RefusedCommit, Work
from tiered.plan.tiering.pauses import ALL_TOPICS, Pause
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

    def __init__(self, dice: Dice, limits: Limits, *, lazy: bool, watched: bool) -> None:
        self.limits = limits
        self.watched = watched
        self.dice = dice
        self.lazy = lazy
        self.partitions: dict[TopicPartition, Partition] = {}
        self.topics: dict[str, TopicState] = {}
        self.orders: dict[int, OpenOrder] = {}
        self.last_order = 0
        self.uploads = 0
        self.claims = 0
        self.commits = 0
        self.timers: list[tuple[int, str, int]] = []
        self.wake_ms = NONE_MS
        self.queue: OrderedDict[TopicPartition, None] = OrderedDict()
        self.claim_line: OrderedDict[TopicPartition, None] = OrderedDict()
        self.commit_line: OrderedDict[TopicPartition, None] = OrderedDict()
        self.ready: dict[TopicPartition, ReadyKey] = {}
        self.ready_heap: list[tuple[bool, int, TopicPartition]] = []
        self.idle_heap: list[tuple[int, TopicPartition]] = []
        self.drain: Drain | None = None
        self.pauses: Mapping[str, Pause] = {}
        self.out: list[Action] = []

    # ------------------------------------------------------------------ orders

    def order(
        self, make: Callable[..., O], *what: object, owner: Partition | None = None, work: Work | None = None
    ) -> O:
        """Gives out an order under the next number."""
        self.last_order += 1
        action = make(self.last_order, *what)
        self.orders[self.last_order] = OpenOrder(action, owner, work)
        self.out.append(action)
        return action

    def void(self, order: int) -> None:
        opened = self.orders.get(order)
        if opened is not None:
            self.orders[order] = replace(opened, live=False)

    def drop_claim(self, p: Partition) -> None:
        """Forgets all that was stored or ordered under the claim: no epoch adopts another's uploads."""
        for work in p.works.values():
            if work.order:
                self.void(work.order)
                self.out.append(CancelUpload(work.order))
                p.stale_uploads += 1
                work.order = 0
            work.row = None
        p.uploading = 0
        self.void(p.commit_order)
        self.void(p.settle_order)
        p.commit_order = p.settle_order = 0
        p.ready_since_ms = NONE_MS
        self.ready.pop(p.tp, None)

    def gone(self, tp: TopicPartition) -> None:
        p = self.partitions.pop(tp, None)
        if p is None:
            return
        self.drop_claim(p)
        for line in (self.queue, self.claim_line, self.commit_line):
            line.pop(tp, None)
        if self.drain is not None:
            self.drain.forget(tp)
        for number, opened in list(self.orders.items()):
            if opened.owner is p:
                self.void(number)
        members = self.topics[tp.topic].members
        members.pop(tp, None)
        if not members:
            self.void(self.topics.pop(tp.topic).order)

    def pause_of(self, topic: str) -> Pause | None:
        """Of the topic, or of all."""
        return self.pauses.get(topic) or self.pauses.get(ALL_TOPICS)

    # ------------------------------------------------------------------ who is the oldest

    def make_ready(self, p: Partition, work: Work) -> None:
        """``work`` of ``p`` may be uploaded as soon as a slot is free."""
        key = (p.uploading >= self.limits.share, work.segment.first_ms)
        if self.ready.get(p.tp) != key:
            self.ready[p.tp] = key
            heapq.heappush(self.ready_heap, (*key, p.tp))
            if len(self.ready_heap) > 2 * len(self.ready) + HEAP_SLACK:
                self.ready_heap = [(*known, tp) for tp, known in self.ready.items()]
                heapq.heapify(self.ready_heap)

    def next_ready(self) -> Partition | None:
        """The partition that a free slot goes to: oldest byte first, one above its share only if no other waits."""
        while self.ready_heap:
            over, first_ms, tp = self.ready_heap[0]
            if self.ready.get(tp) == (over, first_ms):
                return self.partitions[tp]
            heapq.heappop(self.ready_heap)
        return None

    def go_by(self, limits: Limits) -> None:
        """Other limits from now on; when segments are to be sealed follows from them."""
        self.limits = limits
        self.idle_heap = []
        for p in self.partitions.values():
            p.seal_listed_ms = NONE_MS
            self.watch_idle(p)

    def watch_idle(self, p: Partition) -> None:
        """Remembers when the active segment of ``p`` is to be sealed if nobody writes."""
        at_ms = p.seal_at(self.limits.seal_idle_ms)
        if at_ms not in (NONE_MS, p.seal_listed_ms):
            p.seal_listed_ms = at_ms
            heapq.heappush(self.idle_heap, (at_ms, p.tp))
            if len(self.idle_heap) > 2 * len(self.partitions) + HEAP_SLACK:
                self.idle_heap = [(ms, tp) for ms, tp in set(self.idle_heap) if self.is_sealed_at(tp, ms)]
                heapq.heapify(self.idle_heap)

    def next_seal_ms(self) -> int:
        """When the first active segment is to be sealed if nobody writes, -1 if none is."""
        while self.idle_heap:
            at_ms, tp = self.idle_heap[0]
            if self.is_sealed_at(tp, at_ms):
                return at_ms
            heapq.heappop(self.idle_heap)
            p = self.partitions.get(tp)
            if p is not None and p.seal_listed_ms == at_ms:
                p.seal_listed_ms = NONE_MS
        return NONE_MS

    def is_sealed_at(self, tp: TopicPartition, at_ms: int) -> bool:
        p = self.partitions.get(tp)
        return p is not None and p.seal_at(self.limits.seal_idle_ms) == at_ms

    # ------------------------------------------------------------------ time

    def wait_until(self, at_ms: int, tp: TopicPartition | None) -> None:
        heapq.heappush(self.timers, (at_ms, *(tp if tp is not None else ("", -1))))

    def run_timers(self, now_ms: int) -> None:
        while self.timers and self.timers[0][0] <= now_ms:
            _, topic, partition = heapq.heappop(self.timers)
            tp = TopicPartition(topic, partition)
            if tp in self.partitions:
                self.queue[tp] = None

    def ask_for_wake(self) -> None:
        at_ms = self.timers[0][0] if self.timers else NONE_MS
        if at_ms not in (NONE_MS, self.wake_ms):
            self.out.append(RetryAt(at_ms))
        self.wake_ms = at_ms

    def delay_ms(self, failure: Failure, attempt: int) -> int:
        if failure.kind is FailureKind.PERMISSION:
            return RECHECK_PERMISSION_MS
        if failure.kind is FailureKind.FATAL:
            return fatal_delay_ms(attempt)
        return retry_delay_ms(attempt, self.dice)

    # ------------------------------------------------------------------ failures and what is said of them

    def failed(self, p: Partition, failure: Failure, doing: str, now_ms: int) -> None:
        """Remembers the failure, says it, and sets the time of the next attempt."""
        p.attempts += 1
        p.failure, p.failed_doing = failure, doing
        p.retry_at_ms = now_ms + self.delay_ms(failure, p.attempts)
        self.wait_until(p.retry_at_ms, p.tp)
        level = Level.WARN if failure.kind in (FailureKind.RETRIABLE, FailureKind.UNKNOWN) else Level.ERROR
        self.say_once(p, level, failure.code, _text(failure, doing), now_ms)

    def commit_failed(self, p: Partition, failure: Failure, now_ms: int) -> None:
        """As ``failed``."""
        self.failed(p, failure, _committing(p), now_ms)

    def refused(self, p: Partition, failure: Failure, end: int, now_ms: int) -> None:
        """The commit up to ``end`` is proven not to be in the catalog: looked at again less and less often."""
        p.attempts = 0 if p.refused is None else p.refused.times
        p.refusal = RefusedCommit(p.committed, end, p.attempts + 1, failure)
        self.commit_failed(p, failure, now_ms)

    def succeeded(self, p: Partition, doing: str) -> None:
        """Ends what failed before; but a refused commit stays what ``p`` waits for until the catalog goes beyond it."""
        if p.refused is not None:
            p.failure, p.failed_doing, p.attempts = p.refused.failure, _committing(p), p.refused.times
            p.retry_at_ms = 0
            return
        if p.failure is not None:
            if p.reported_ms != NONE_MS:
                self.say(Level.INFO, "recovered", f"{doing} works again after {p.attempts} failures", p.tp)
            p.failure, p.failed_doing, p.reported_ms, p.reported_code = None, "", NONE_MS, ""
        p.attempts = 0
        p.retry_at_ms = 0

    def fence(self, p: Partition, failure: Failure, now_ms: int) -> None:
        """A newer claim owns the partition: nothing more is ordered for it."""
        self.drop_claim(p)
        p.phase = Phase.FENCED
        p.failure, p.failed_doing = failure, "fenced"
        self.say_once(p, Level.ERROR, "fenced", _text(failure, "the partition is fenced"), now_ms)

    def say_once(self, p: Partition, level: Level, code: str, text: str, now_ms: int) -> None:
        """The first of its kind at once, repeats every ``repeat_report_ms``."""
        repeat = p.reported_code == code and p.reported_ms != NONE_MS
        if repeat and now_ms < p.reported_ms + self.limits.repeat_report_ms:
            return
        p.reported_code, p.reported_ms = code, now_ms
        fields = (("attempt", p.attempts), ("code", code))
        self.out.append(Report(level, "still_failing" if repeat else "failed", text, p.tp, fields))

    def say(
        self,
        level: Level,
        event: str,
        message: str,
        tp: TopicPartition | None = None,
        fields: tuple[tuple[str, str | int], ...] = (),
    ) -> None:
        self.out.append(Report(level, event, message, tp, fields))

    def track_wait(self, p: Partition, now_ms: int) -> None:
        topic = self.topics[p.tp.topic]
        code = wait_of(p, topic.failure, topic.registered)[0]
        if code != p.wait_code:
            p.wait_code, p.wait_since_ms = code, now_ms


def _committing(p: Partition) -> str:
    return f"committing {p.tp} from offset {p.committed}"


def _text(failure: Failure, doing: str) -> str:
    return f"{doing}: {failure.message}" + (f" ({failure.hint})" if failure.hint else "")
