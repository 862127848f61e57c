"""What the uploader knows of one partition, and the questions that the rules ask about it. No rule, no I/O.

::

    NEW --Claim--> CLAIMING --ClaimDone--> CLAIMED --CommitUnknown--> NEW
                       |                      |
                       +------ Fenced --------+----> FENCED (stays)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tiered.errors import DataLocalError, OffsetGapError
from tiered.format.keys import Role
from tiered.model import Row, TopicPartition
from tiered.plan.tiering.backoff import FATAL_ATTEMPTS
from tiered.plan.tiering.facts import Failure, FailureKind, SegmentRef
from tiered.plan.tiering.pauses import Pause

MAX_COMMIT_SEGMENTS = 64
"""Rows of one commit; also how far uploads run ahead of the committed end."""

NONE_MS = -1

BLOCKED_HINT = "`tiered restore`, or bring the missing segments back into the log directory"

PAUSED_HINT = "`tiered-uploader resume`"

NEEDS_SOMEBODY = frozenset({FailureKind.PERMISSION, FailureKind.FATAL, FailureKind.FENCED})
"""Failures that time alone does not cure."""


class Phase(enum.Enum):
    """Where the partition stands towards the bucket."""

    NEW = "new"
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    FENCED = "fenced"


@dataclass(slots=True)
class Work:
    """One sealed segment on its way. ``order`` is its open upload (0: none), ``row`` is set once verified."""

    segment: SegmentRef
    order: int = 0
    row: Row | None = None


class RefusedCommit(NamedTuple):
    """A commit of the rows from ``base`` to ``end`` that is proven not to be in the catalog; for the ``times``-th time.

    The claims and uploads that go before the next look at it do not mend it: only a catalog beyond ``base`` does.
    """

    base: int
    end: int
    times: int
    failure: Failure


@dataclass(slots=True)
class Partition:
    """Mutable record of one partition. ``committed`` is -1 until a claim has read the root.

    ``doubt_end``: where a commit ends of which only the next claim can tell whether it is in the root; 0: none.
    """

    tp: TopicPartition
    topic_id: UUID
    role: Role = Role.WRITER
    local_start: int = 0
    flushed: int = 0
    end: int = 0
    active_bytes: int = 0
    active_since_ms: int = NONE_MS
    seal_ms: int = NONE_MS
    seal_listed_ms: int = NONE_MS
    noted: int = -1
    resume_at: int = -1
    phase: Phase = Phase.NEW
    claim_epoch: int = 0
    committed: int = -1
    remote_start: int = -1
    works: dict[int, Work] = field(default_factory=dict)
    uploading: int = 0
    stale_uploads: int = 0
    commit_order: int = 0
    doubt_end: int = 0
    settled: bool = True
    settle_order: int = 0
    settle_attempts: int = 0
    settle_at_ms: int = 0
    ready_since_ms: int = NONE_MS
    attempts: int = 0
    refusal: RefusedCommit | None = None
    retry_at_ms: int = 0
    failure: Failure | None = None
    failed_doing: str = ""
    reported_ms: int = NONE_MS
    reported_code: str = ""
    pause: Pause | None = None
    wait_code: str = ""
    wait_since_ms: int = 0

    def seal_at(self, idle_ms: int) -> int:
        """When the active segment is to be sealed if nobody writes: by its own ``seal.ms`` or after ``idle_ms``.

        -1: never. A limit of -1 is none.
        """
        if not self.active_bytes or self.active_since_ms <= NONE_MS:
            return NONE_MS
        limits = [limit for limit in (idle_ms, self.seal_ms) if limit >= 0]
        return self.active_since_ms + min(limits) if limits else NONE_MS

    @property
    def refused(self) -> RefusedCommit | None:
        """The refusal of the commit that is due next, None if there is none."""
        return self.refusal if self.refusal is not None and self.refusal.base == self.committed else None

    @property
    def one_by_one(self) -> bool:
        """Whether segments of a refused commit are left: those before the one that is refused can be committed."""
        return self.refusal is not None and self.committed < self.refusal.end

    @property
    def at_work(self) -> bool:
        """Whether something of it is on its way."""
        return bool(self.uploading or self.commit_order)

    @property
    def known_committed(self) -> int:
        """Committed end as the root said, or as the checkpoint of an earlier run did; 0 if neither."""
        return max(self.committed, self.noted, 0) if self.committed < 0 else self.committed

    @property
    def sealed_end(self) -> int:
        """End of the last sealed segment known, at least the committed end."""
        return max((work.segment.end for work in self.works.values()), default=self.known_committed)

    def obstacle(self) -> Failure | None:
        """What somebody has to put right before this partition goes on; None if waiting helps."""
        blocked = self.blocked()
        if blocked is not None:
            return Failure(
                FailureKind.FATAL, blocked[0], f"{self.tp}: {blocked[1]}", BLOCKED_HINT, OffsetGapError.exit_code
            )
        if self.pause is not None:
            text = f"{self.tp}: {self.pause}"
            return Failure(FailureKind.FATAL, "paused", text, PAUSED_HINT, DataLocalError.exit_code)
        if self.failure is not None and self.failure.kind in NEEDS_SOMEBODY:
            again = self.failure.kind is FailureKind.FATAL and self.attempts < FATAL_ATTEMPTS
            return None if again else self.failure
        return None

    def prefix(self) -> list[Work]:
        """Stored and verified segments that continue the committed end without a gap, at most one commit's worth."""
        found: list[Work] = []
        at = self.committed
        while len(found) < MAX_COMMIT_SEGMENTS:
            work = self.works.get(at)
            if work is None or work.row is None:
                break
            found.append(work)
            at = work.segment.end
        return found

    def next_upload(self) -> Work | None:
        """First segment in the window above the committed end that is neither stored nor under way."""
        at = self.committed
        for _ in range(MAX_COMMIT_SEGMENTS):
            work = self.works.get(at)
            if work is None:
                return None
            if work.row is None and not work.order:
                return work
            at = work.segment.end
        return None

    def forget_committed(self) -> None:
        """Drops the segments that the root covers."""
        for base in [base for base, work in self.works.items() if work.segment.end <= self.committed]:
            del self.works[base]

    def blocked(self) -> tuple[str, str] | None:
        """Why the local segments cannot continue the root: (code, sentence), None if they can."""
        if self.phase is not Phase.CLAIMED or self.committed in self.works or not self.works:
            return None
        first = min(self.works)
        if first < self.committed:
            end = self.works[first].segment.end
            return "misaligned", f"the bucket ends at offset {self.committed}, inside the local segment {first}..{end}"
        return "gap", f"offsets {self.committed}..{first} are neither in the bucket nor on this disk"

    def lag_bytes(self) -> int:
        """Bytes on this disk that the bucket does not hold."""
        return self.active_bytes + sum(work.segment.size_bytes for work in self.works.values())

    def oldest_sealed_ms(self) -> int:
        """When the oldest sealed byte that is not in the bucket was appended; -1 if there is none."""
        return min((work.segment.first_ms for work in self.works.values()), default=NONE_MS)

    def oldest_ms(self) -> int:
        """The same, the active segment included."""
        sealed = self.oldest_sealed_ms()
        return sealed if sealed != NONE_MS else self.active_since_ms
