"""Drain: records that must be in the bucket before the program ends, and the exit status."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tiered.engine.failure import Failure, FailureKind
from tiered.engine.partition import Partition, Phase
from tiered.engine.reports import Exit
from tiered.errors import DataLocalError
from tiered.model import TopicPartition

LEFT_HINT = "start the uploader again, or run `tiered-uploader sync --wait`; `tiered status` says what is left"
DONE = "everything that was asked for is committed"


class DrainMode(enum.Enum):
    """Records to send before the program ends."""

    INFLIGHT = "inflight"  # uploads under way
    SEALED = "sealed"  # every sealed segment
    ALL = "all"  # the active segments too: they are rolled first


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Request to send the records of ``mode`` and end; ``deadline_ms`` (None: never) is on the engine's clock.

    ``oneshot`` (``sync --wait``): the exit status is that of the failure that is in the way. ``last`` (SIGTERM): no
    process uploads from this disk afterwards. Records that a writer leaves while it ends are sent too. Status 0 means
    that a last scan of the disk has found no record that the bucket lacks.
    """

    mode: DrainMode
    deadline_ms: int | None
    oneshot: bool = False
    last: bool = False


@dataclass(slots=True)
class Drain:
    """Drain in progress. ``targets``: committed end that each partition has to reach; ``ends``: its end on this disk.

    Both are those of the moment when the drain began (``ends``: only of the last drain); ``follow`` raises them later.
    """

    request: DrainRequested
    targets: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]

    @staticmethod
    def start(request: DrainRequested, partitions: Mapping[TopicPartition, Partition]) -> Drain:
        """Return the drain that ``request`` asks for, on the partitions' current state."""
        targets = {tp: _target(p, request.mode) for tp, p in partitions.items()}
        ends = {tp: _target(p, DrainMode.ALL) for tp, p in partitions.items()} if request.last else {}
        return Drain(request, targets, ends)

    def follow(self, p: Partition) -> bool:
        """Raise the targets to the records found of ``p`` since the drain began. Return True if there are more.

        Call it only without a writer: the drain of a log that grows would not end.
        """
        self.ends[p.tp] = max(self.ends.get(p.tp, 0), _target(p, DrainMode.ALL))
        target = _target(p, self.request.mode) if self.request.mode is not DrainMode.INFLIGHT else 0
        if target <= self.targets.get(p.tp, 0):
            return False
        self.targets[p.tp] = target
        return True

    def wants(self, p: Partition, base: int) -> bool:
        """Return True if the segment at ``base`` has to be uploaded before the end."""
        return base < self.targets.get(p.tp, 0)

    def left(self, partitions: Mapping[TopicPartition, Partition]) -> list[Partition]:
        """Return the partitions that have not reached their targets, by name."""
        copies = self.request.mode is not DrainMode.INFLIGHT
        left = [
            p
            for p in partitions.values()
            if p.known_committed < self.targets.get(p.tp, 0) or (copies and p.positions_to_copy() is not None)
        ]
        return sorted(left, key=lambda p: p.tp)

    def needs_seal(self, left: Sequence[Partition]) -> bool:
        """Return True while a target lies in an active segment."""
        if self.request.mode is not DrainMode.ALL:
            return False
        return any(p.sealed_end < self.targets[p.tp] and p.phase is not Phase.FENCED for p in left)

    def is_over(self, now_ms: int) -> bool:
        """Return True if its time is up."""
        return self.request.deadline_ms is not None and now_ms >= self.request.deadline_ms

    def ending(
        self, left: Sequence[Partition], now_ms: int, *, obstacle: Callable[[Partition], Failure | None]
    ) -> Exit | None:
        """Return the exit of a drain with something ``left``: at the deadline, or if all are stuck; None before."""
        if self.is_over(now_ms):
            what = "wait" if self.request.oneshot else "drain"
            reason = f"the time to {what} is over: {_names(left)} only on this disk"
            return Exit(DataLocalError.exit_code, reason, LEFT_HINT)
        failures = []
        for p in left:
            failure = obstacle(p)
            if failure is None or p.moves:
                return None  # this one goes on without help
            failures.append(failure)
        fenced = [failure for failure in failures if failure.kind is FailureKind.FENCED]
        first = fenced[-1] if fenced else failures[0]
        code = first.exit_code if self.request.oneshot else DataLocalError.exit_code
        return Exit(code, f"{_names(left)} only on this disk: {first.message}", first.hint or LEFT_HINT)

    def all_sent(self, partitions: Mapping[TopicPartition, Partition]) -> Exit:
        """Return the exit once all that the mode allows is sent. The last drain reports the records that stay here."""
        kept = [p for p in partitions.values() if p.known_committed < self.ends.get(p.tp, 0)]
        if not kept:
            return Exit(0, DONE)
        reason = f"a drain of {self.request.mode.value} data sends no more: {_names(kept)} only on this disk"
        return Exit(DataLocalError.exit_code, reason, LEFT_HINT)


def _target(p: Partition, mode: DrainMode) -> int:
    if mode is DrainMode.ALL:
        return p.end if p.end > p.local_start or p.works else 0
    if mode is DrainMode.SEALED:
        return p.sealed_end
    at = p.known_committed
    while (work := p.works.get(at)) is not None and (work.uploading or work.row is not None):
        at = work.segment.end
    return at


def _only_here(p: Partition) -> str:
    known = p.known_committed
    if p.end <= known and p.positions_to_copy() is not None:
        return f"the positions of groups in {p.tp}"
    if p.doubt_end <= known:
        return f"{p.tp} from offset {known}"
    return f"{p.tp} from offset {p.doubt_end} (whether the bucket holds {known}..{p.doubt_end} is not known)"


def _names(left: Sequence[Partition]) -> str:
    shown = ", ".join(_only_here(p) for p in left[:5])
    if len(left) > 5:
        return f"{shown} and {len(left) - 5} more are"
    return f"{shown} is" if len(left) == 1 else f"{shown} are"
