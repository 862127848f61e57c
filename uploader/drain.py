"""When the program may end: what still has to be in the bucket, and the exit status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tiered.errors import DataLocalError
from tiered.model import TopicPartition
from uploader.actions import Exit
from uploader.events import DrainMode, DrainRequested, Failure, FailureKind
from uploader.partition import Partition


@dataclass(frozen=True, slots=True)
class Drain:
    """``targets``: committed end that each partition has to reach, fixed when the drain began."""

    mode: DrainMode
    deadline_ms: int | None
    oneshot: bool
    targets: Mapping[TopicPartition, int]

    @staticmethod
    def begin(request: DrainRequested, partitions: Mapping[TopicPartition, Partition]) -> Drain:
        """The drain that ``request`` asks for, on what is known of the partitions now."""
        targets = {tp: _target(p, request.mode) for tp, p in partitions.items()}
        return Drain(request.mode, request.deadline_ms, request.oneshot, targets)

    def wants(self, p: Partition, base: int) -> bool:
        """Whether the segment at ``base`` has to be uploaded before the end."""
        return base < self.targets.get(p.tp, 0)

    def is_met(self, p: Partition) -> bool:
        """Whether the bucket holds all of ``p`` that this drain is to send."""
        return p.known_committed >= self.targets.get(p.tp, 0)

    def ending(
        self,
        partitions: Mapping[TopicPartition, Partition],
        now_ms: int,
        *,
        obstacle: Callable[[Partition], Failure | None],
    ) -> Exit | None:
        """The end, if it has come: all sent, nothing more can be sent, or the deadline."""
        left = [p for p in partitions.values() if not self.is_met(p)]
        if not left:
            return Exit(0, "everything that was asked for is committed")
        if self.deadline_ms is not None and now_ms >= self.deadline_ms:
            return Exit(DataLocalError.exit_code, f"the time to drain is over: {_names(left)} only on this disk")
        first: Failure | None = None
        for p in left:
            failure = obstacle(p)
            if failure is None or p.uploading or p.commit_order:
                return None
            if first is None or failure.kind is FailureKind.FENCED:
                first = failure
        code = first.exit_code if first is not None and self.oneshot else DataLocalError.exit_code
        reason = (
            f"{first.message} ({first.hint})" if first is not None and first.hint else first.message if first else ""
        )
        return Exit(code, f"{_names(left)} only on this disk: {reason}")


def _target(p: Partition, mode: DrainMode) -> int:
    if mode is DrainMode.ALL:
        return p.end if p.end > p.local_start or p.works else 0
    if mode is DrainMode.SEALED:
        return p.sealed_end
    at = p.known_committed
    while (work := p.works.get(at)) is not None and (work.order or work.row is not None):
        at = work.segment.end
    return at


def _names(left: list[Partition]) -> str:
    shown = ", ".join(f"{p.tp} from offset {p.known_committed}" for p in left[:5])
    return (
        f"{shown} and {len(left) - 5} more are"
        if len(left) > 5
        else f"{shown} is"
        if len(left) == 1
        else f"{shown} are"
    )
