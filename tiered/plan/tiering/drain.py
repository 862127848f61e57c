"""When the program may end: what still has to be in the bucket, and the exit status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tiered.errors import DataLocalError
from tiered.model import TopicPartition
from tiered.plan.tiering.facts import DrainMode, DrainRequested, Failure, FailureKind
from tiered.plan.tiering.orders import Exit
from tiered.plan.tiering.partition import Partition, Phase

LEFT_HINT = "start the uploader again, or run `tiered-uploader sync --wait`; `tiered status` says what is left"
DONE = "everything that was asked for is committed"


@dataclass(slots=True)
class Drain:
    """``targets``: committed end that each partition has to reach; ``ends``: where its records end on this disk.

    Both are those of the moment when the drain began (ends: of the last one); ``follow`` raises them for what is found
    later. ``left`` are the partitions that have not reached their target, ``unsealed``, where active segments are to be
    sent, those of them whose target lies in one; ``review`` keeps both, so that no event has to look at all partitions.
    """

    mode: DrainMode
    deadline_ms: int | None
    oneshot: bool
    last: bool
    targets: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    finishes: bool = False  # at its deadline it begins nothing more, and commits what it has begun
    claims: bool = False
    left: dict[TopicPartition, None] = field(default_factory=dict)
    unsealed: set[TopicPartition] = field(default_factory=set)
    _moving: TopicPartition | None = None  # one that was seen to need nobody: while it does, this is not the end

    @staticmethod
    def begin(request: DrainRequested, partitions: Mapping[TopicPartition, Partition]) -> Drain:
        """The drain that ``request`` asks for, on what is known of the partitions now: each has yet to be reviewed."""
        finishes = request.ends is not None
        if request.ends is None:
            targets = {tp: _target(p, request.mode) for tp, p in partitions.items()}
        else:
            targets = {tp: request.ends.get(tp, 0) for tp in partitions}
        ends = {tp: _target(p, DrainMode.ALL) for tp, p in partitions.items()} if request.last else {}
        return Drain(
            request.mode, request.deadline_ms, request.oneshot, request.last, targets, ends, finishes, request.claims
        )

    def follow(self, p: Partition) -> bool:
        """Takes in what was found of ``p`` since the drain began; whether that asks for more.

        Only where nobody writes any more: the drain of a log that grows would not end.
        """
        self.ends[p.tp] = max(self.ends.get(p.tp, 0), _target(p, DrainMode.ALL))
        target = _target(p, self.mode) if self.mode is not DrainMode.INFLIGHT else 0
        if target <= self.targets.get(p.tp, 0):
            return False
        self.targets[p.tp] = target
        return True

    def review(self, p: Partition) -> None:
        """``p`` has changed, or its target has."""
        claimed = not self.claims or (p.phase is Phase.CLAIMED and (p.settled or p.settle_attempts > 0))
        if claimed and p.known_committed >= self.targets.get(p.tp, 0):
            self.forget(p.tp)
            return
        self.left.setdefault(p.tp)
        if self.mode is not DrainMode.ALL:
            return
        if p.sealed_end < self.targets[p.tp] and p.phase is not Phase.FENCED:
            self.unsealed.add(p.tp)
        else:
            self.unsealed.discard(p.tp)

    def forget(self, tp: TopicPartition) -> None:
        """Nothing of ``tp`` is waited for."""
        self.left.pop(tp, None)
        self.unsealed.discard(tp)

    def wants(self, p: Partition, base: int, now_ms: int) -> bool:
        """Whether the segment at ``base`` has to be uploaded before the end."""
        return base < self.targets.get(p.tp, 0) and not (self.finishes and self.is_over(now_ms))

    def is_over(self, now_ms: int) -> bool:
        """Whether its time is up."""
        return self.deadline_ms is not None and now_ms >= self.deadline_ms

    def ending(
        self,
        partitions: Mapping[TopicPartition, Partition],
        now_ms: int,
        *,
        obstacle: Callable[[Partition], Failure | None],
    ) -> Exit | None:
        """The end, if it has come: all sent, nothing more can be sent, or the deadline."""
        if not self.left:
            return self._all_sent(partitions)
        if self.is_over(now_ms) and not (self.finishes and any(partitions[tp].at_work for tp in self.left)):
            what = "wait" if self.oneshot else "drain"
            reason = f"the time to {what} is over: {_names(self._sorted_left(partitions))} only on this disk"
            return Exit(DataLocalError.exit_code, reason, LEFT_HINT)
        if self._goes_on(partitions, obstacle):
            return None
        left = self._sorted_left(partitions)
        failures = [failure for p in left if (failure := obstacle(p)) is not None]
        if not failures:
            return None
        fenced = [failure for failure in failures if failure.kind is FailureKind.FENCED]
        first = fenced[-1] if fenced else failures[0]
        code = first.exit_code if self.oneshot else DataLocalError.exit_code
        return Exit(code, f"{_names(left)} only on this disk: {first.message}", first.hint or LEFT_HINT)

    def _goes_on(
        self, partitions: Mapping[TopicPartition, Partition], obstacle: Callable[[Partition], Failure | None]
    ) -> bool:
        """Whether a partition that is left can go on without help. Those that cannot are tried last, and less often."""
        moving, self._moving = self._moving, None
        stuck = []
        for tp in (moving, *self.left) if moving in self.left else self.left:
            p = partitions[tp]
            if p.at_work or obstacle(p) is None:
                self._moving = tp
                break
            stuck.append(tp)
        for tp in stuck:
            self.left[tp] = self.left.pop(tp)
        return self._moving is not None

    def _sorted_left(self, partitions: Mapping[TopicPartition, Partition]) -> list[Partition]:
        return [partitions[tp] for tp in sorted(self.left)]

    def _all_sent(self, partitions: Mapping[TopicPartition, Partition]) -> Exit:
        """All that the mode allows is in the bucket; the last drain owns up to what it does not allow."""
        if not self.last:
            return Exit(0, DONE)
        kept = [p for p in partitions.values() if p.known_committed < self.ends.get(p.tp, 0)]
        if not kept:
            return Exit(0, DONE)
        reason = f"a drain of {self.mode.value} data sends no more: {_names(kept)} only on this disk"
        return Exit(DataLocalError.exit_code, reason, LEFT_HINT)


def _target(p: Partition, mode: DrainMode) -> int:
    if mode is DrainMode.ALL:
        return p.end if p.end > p.local_start or p.works else 0
    if mode is DrainMode.SEALED:
        return p.sealed_end
    at = p.known_committed
    while (work := p.works.get(at)) is not None and (work.order or work.row is not None):
        at = work.segment.end
    return at


def _only_here(p: Partition) -> str:
    known = p.known_committed
    if p.doubt_end <= known:
        return f"{p.tp} from offset {known}"
    return f"{p.tp} from offset {p.doubt_end} (whether the bucket holds {known}..{p.doubt_end} is not known)"


def _names(left: list[Partition]) -> str:
    shown = ", ".join(_only_here(p) for p in left[:5])
    return (
        f"{shown} and {len(left) - 5} more are"
        if len(left) > 5
        else f"{shown} is"
        if len(left) == 1
        else f"{shown} are"
    )
