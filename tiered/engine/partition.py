"""The row of one partition: its state in the engine, and questions about it. No effect, no clock.

::

    NEW --claim--> CLAIMING --granted--> CLAIMED --commit without an answer--> NEW
                      |                     |
                      +------- fenced ------+----> FENCED (stays)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tiered.engine.failure import FATAL_ATTEMPTS, NO_FAILURES, Failure, FailureKind, FailureStreak
from tiered.engine.limits import MAX_COMMIT_SEGMENTS
from tiered.errors import DataLocalError, OffsetGapError
from tiered.format.positions import Positions, are_equal, within
from tiered.model import Row, TopicPartition
from tiered.plan.pauses import Pause

NONE_MS = -1

BLOCKED_HINT = "`tiered restore`, or bring the missing segments back into the log directory"

PAUSED_HINT = "`tiered-uploader resume`"

NEEDS_OPERATOR = frozenset({FailureKind.PERMISSION, FailureKind.FATAL, FailureKind.FENCED})
"""Failures that time alone does not cure."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A sealed segment by name and size; offsets ``base`` to ``end`` (exclusive).

    ``first_ms`` is about when its first byte was appended: the age for the fair queue.
    """

    base: int
    end: int
    size_bytes: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """Result of a scan for a partition that changed; ``sealed`` are the newly found segments.

    ``end_offset`` is a lower bound while a writer appends: the active segment is not read, so it counts as one record.
    ``active_since_ms`` is -1 if nothing is active. ``noted_offset`` is the committed end in the checkpoint that an
    earlier run left, -1 if none. ``seal_ms`` is the topic's ``seal.ms``, by which its writer seals an active segment;
    -1: never.
    """

    tp: TopicPartition
    topic_id: UUID
    local_start_offset: int
    flushed_offset: int
    end_offset: int
    active_bytes: int = 0
    active_since_ms: int = -1
    noted_offset: int = -1
    seal_ms: int = -1
    sealed: tuple[SegmentRef, ...] = ()


class Phase(enum.Enum):
    """The state of the partition's claim."""

    NEW = "new"
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    FENCED = "fenced"


@dataclass(slots=True)
class SegmentUpload:
    """One sealed segment that the bucket lacks. ``row`` is set once both objects are verified, at ``stored_ms``."""

    segment: SegmentRef
    uploading: bool = False
    row: Row | None = None
    stored_ms: int = NONE_MS


class RefusedCommit(NamedTuple):
    """A commit of the rows from ``base`` to ``end`` that is proven not to be in the catalog, for the ``times``-th time.

    Claims and uploads that succeed afterwards do not cure it. Only a catalog beyond ``base`` does.
    """

    base: int
    end: int
    times: int
    failure: Failure


@dataclass(slots=True)
class Partition:
    """One row of the engine's table.

    ``committed`` is -1 until a claim has read the root. ``doubt_end`` is the end of a commit of which only the next
    claim can say whether it is in the root; 0: none. ``resume_at``: a log without records has yet to begin there.
    ``positions``: those of groups on the disk, None if there never were any; ``copied``: those in the bucket, None if
    that is not known.
    ``given_up``: this run starts no more work on it. ``settled``: the objects of earlier claims were deleted;
    ``sweep`` holds the failures of these deletions.
    """

    tp: TopicPartition
    topic_id: UUID
    local_start: int = 0
    flushed: int = 0
    end: int = 0
    active_bytes: int = 0
    active_since_ms: int = NONE_MS
    seal_ms: int = NONE_MS
    noted: int = -1
    resume_at: int = -1
    phase: Phase = Phase.NEW
    claim_epoch: int = 0
    committed: int = -1
    remote_start: int = -1
    works: dict[int, SegmentUpload] = field(default_factory=dict)
    uploading: int = 0
    committing: bool = False
    positions: Positions | None = None
    copied: Positions | None = None
    doubt_end: int = 0
    settled: bool = True
    sweep: FailureStreak = NO_FAILURES
    refusal: RefusedCommit | None = None
    trouble: FailureStreak = NO_FAILURES
    pause: Pause | None = None
    given_up: bool = False
    wait_code: str = ""
    wait_since_ms: int = 0

    # ------------------------------------------------------------------ what is on the disk

    def see(self, seen: PartitionSeen) -> None:
        """Update the positions of the local log, and add newly sealed segments."""
        self.local_start, self.flushed, self.end = seen.local_start_offset, seen.flushed_offset, seen.end_offset
        self.active_bytes, self.active_since_ms = seen.active_bytes, seen.active_since_ms
        self.seal_ms = seen.seal_ms
        self.noted = max(self.noted, seen.noted_offset)
        for segment in seen.sealed:
            self.add(segment)

    def add(self, segment: SegmentRef) -> None:
        """Add a sealed segment, unless the bucket holds it."""
        if segment.end <= self.known_committed:
            return
        known = self.works.get(segment.base)
        if known is None:
            self.works[segment.base] = SegmentUpload(segment)
            self.end = max(self.end, segment.end)
        elif known.segment != segment and not known.uploading and known.row is None:
            known.segment = segment

    def seal_at(self, idle_ms: int) -> int:
        """Return when the uploader seals the active segment if the log has no writer; -1: never.

        The limit is the smaller of ``seal.ms`` and ``idle_ms``. A limit of -1 is none.
        """
        if not self.active_bytes or self.active_since_ms <= NONE_MS:
            return NONE_MS
        limits = [limit for limit in (idle_ms, self.seal_ms) if limit >= 0]
        return self.active_since_ms + min(limits) if limits else NONE_MS

    # ------------------------------------------------------------------ where it stands

    @property
    def refused(self) -> RefusedCommit | None:
        """Return the refusal of the commit that is due next, None if there is none."""
        return self.refusal if self.refusal is not None and self.refusal.base == self.committed else None

    @property
    def one_by_one(self) -> bool:
        """Return True while segments of a refused commit are left. Earlier ones can be committed alone."""
        return self.refusal is not None and self.committed < self.refusal.end

    @property
    def at_work(self) -> bool:
        """Return True while an upload or a commit of it is under way."""
        return bool(self.uploading or self.committing)

    @property
    def moves(self) -> bool:
        """Return True while the partition makes progress: an upload or commit runs, or a stored segment can commit."""
        first = self.works.get(self.committed)
        return self.at_work or (self.trouble.failure is None and first is not None and first.row is not None)

    @property
    def known_committed(self) -> int:
        """Return the committed end from the root, otherwise from the checkpoint of an earlier run, otherwise 0."""
        return max(self.noted, 0) if self.committed < 0 else self.committed

    @property
    def sealed_end(self) -> int:
        """Return the end of the last sealed segment, at least the committed end."""
        return max((work.segment.end for work in self.works.values()), default=self.known_committed)

    def prefix(self) -> list[SegmentUpload]:
        """Return the stored segments that continue the committed end without a gap, at most one commit's worth."""
        found: list[SegmentUpload] = []
        at = self.committed
        while len(found) < MAX_COMMIT_SEGMENTS:
            work = self.works.get(at)
            if work is None or work.row is None:
                break
            found.append(work)
            at = work.segment.end
        return found

    def next_upload(self) -> SegmentUpload | None:
        """Return the first segment in the window above the committed end that is neither stored nor under way."""
        at = self.committed
        for _ in range(MAX_COMMIT_SEGMENTS):
            work = self.works.get(at)
            if work is None:
                return None
            if work.row is None and not work.uploading:
                return work
            at = work.segment.end
        return None

    def positions_to_copy(self) -> Positions | None:
        """Return the positions to copy, None if there is nothing to copy. None of them is beyond the committed end."""
        if self.positions is None or self.pause is not None or self.phase is Phase.FENCED:
            return None
        wanted = within(self.positions, 0, self.known_committed)
        return None if self.copied is not None and are_equal(wanted, self.copied) else wanted

    def blocked(self) -> tuple[str, str] | None:
        """Return (code, sentence) if the local segments cannot continue the root, None if they can."""
        if self.phase is not Phase.CLAIMED or self.committed in self.works or not self.works:
            return None
        first = min(self.works)
        if first < self.committed:
            end = self.works[first].segment.end
            return "misaligned", f"the bucket ends at offset {self.committed}, inside the local segment {first}..{end}"
        return "gap", f"offsets {self.committed}..{first} are neither in the bucket nor on this disk"

    def obstacle(self) -> Failure | None:
        """Return the failure that an operator has to correct; None if the partition continues by itself."""
        blocked = self.blocked()
        if blocked is not None:
            text = f"{self.tp}: {blocked[1]}"
            return Failure(FailureKind.FATAL, blocked[0], text, BLOCKED_HINT, OffsetGapError.exit_code)
        if self.pause is not None:
            text = f"{self.tp}: {self.pause}"
            return Failure(FailureKind.FATAL, "paused", text, PAUSED_HINT, DataLocalError.exit_code)
        failure = self.trouble.failure
        if failure is not None and failure.kind in NEEDS_OPERATOR:
            again = failure.kind is FailureKind.FATAL and self.trouble.attempts < FATAL_ATTEMPTS
            return None if again else failure
        return None

    # ------------------------------------------------------------------ what a step changes

    def claimed(self, claim_epoch: int, committed: int) -> None:
        """Apply a claim that stands. The root ends at ``committed``."""
        self.phase, self.claim_epoch, self.committed = Phase.CLAIMED, claim_epoch, committed
        self.copied = None  # the first copy under this claim fences the copies of earlier ones
        self.forget_committed()

    def drop_claim(self) -> None:
        """Forget all uploads under the claim: no epoch adopts another's uploads."""
        self.phase = Phase.NEW
        for work in self.works.values():
            work.uploading, work.row, work.stored_ms = False, None, NONE_MS

    def forget_committed(self) -> None:
        """Drop the segments that the root covers."""
        self.works = {base: work for base, work in self.works.items() if work.segment.end > self.committed}

    # ------------------------------------------------------------------ how far it is behind

    def lag_bytes(self) -> int:
        """Return the bytes on this disk that the bucket does not hold."""
        return self.active_bytes + sum(work.segment.size_bytes for work in self.works.values())

    def oldest_sealed_ms(self) -> int:
        """Return when the oldest sealed byte that is not in the bucket was appended; -1 if there is none."""
        return min((work.segment.first_ms for work in self.works.values()), default=NONE_MS)

    def oldest_ms(self) -> int:
        """Return when the oldest byte that the bucket lacks was appended, the active segment included; -1: none."""
        sealed = self.oldest_sealed_ms()
        return sealed if sealed != NONE_MS else self.active_since_ms
