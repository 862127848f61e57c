"""The row of one partition, the limits of the engine, and the decisions about a row. No effect, no clock.

::

    NEW --claim--> CLAIMING --granted--> CLAIMED --commit without an answer--> NEW
                      |                     |
                      +------- fenced ------+----> FENCED (stays)
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from tiered.engine.failure import FATAL_ATTEMPTS, NO_FAILURES, NONE_MS, Failure, FailureKind, FailureStreak
from tiered.errors import ConfigError, DataLocalError, OffsetGapError
from tiered.format.positions import Positions, are_equal, within
from tiered.model import Row, TopicPartition
from tiered.plan.pacing import Pause

MAX_COMMIT_SEGMENTS = 64
"""Rows of one commit. Uploads run at most this many segments ahead of the committed end."""

UPLOADS = 4
COMMIT_WAIT_MS = 250
CLAIMS = 16
COMMITS = 16
DRAIN_MS = 25_000
REPEAT_REPORT_MS = 300_000
DISK_WARN_PERCENT = 80
SEAL_IDLE_MS = 600_000


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of the engine. ``uploads`` run at once; one partition has over a quarter of them only if no other waits.

    ``seal_idle_ms``: an active segment whose first record is older than this is sealed by the uploader if ``.lock`` is
    free (-1: never).
    """

    uploads: int = UPLOADS
    commit_segments: int = MAX_COMMIT_SEGMENTS
    commit_wait_ms: int = COMMIT_WAIT_MS
    claims: int = CLAIMS
    commits: int = COMMITS
    repeat_report_ms: int = REPEAT_REPORT_MS
    seal_idle_ms: int = SEAL_IDLE_MS
    disk_warn_percent: int = DISK_WARN_PERCENT

    def __post_init__(self) -> None:
        for name in ("uploads", "commit_segments", "claims", "commits"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.commit_segments > MAX_COMMIT_SEGMENTS:
            raise ConfigError(f"commit_segments is {self.commit_segments}; it must be at most {MAX_COMMIT_SEGMENTS}")

    @property
    def share(self) -> int:
        """Return the number of uploads that one partition may have while another one waits."""
        return max(1, self.uploads // 4)


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

    def refuse_commit(self, failure: Failure, end: int) -> None:
        """Note that the commit up to ``end`` is proven not to be in the catalog. Retries become rarer."""
        times = 0 if self.refused is None else self.refused.times
        self.trouble = replace(self.trouble, attempts=times)
        self.refusal = RefusedCommit(self.committed, end, times + 1, failure)

    def still_refused(self, refused: RefusedCommit) -> FailureStreak:
        """Return the record of a commit that stays refused: no other success cures it."""
        doing, attempts = self.committing_text, refused.times
        return replace(self.trouble, failure=refused.failure, doing=doing, attempts=attempts, retry_at_ms=0)

    @property
    def committing_text(self) -> str:
        """Return the name of the partition's commit in reports."""
        return f"committing {self.tp} from offset {self.committed}"

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


Wanted = Callable[[Partition, int], bool]
"""Predicate: True if the segment of a partition at this base offset will be uploaded. A drain wants only some."""


def has_work(p: Partition, wanted: Wanted, *, lazy: bool = False) -> bool:
    """Return True while a partition needs its coroutine; without one it is a row that waits for a change.

    ``lazy``: a partition that the checkpoint notes as wholly committed is not claimed (one-shot runs).
    """
    if p.at_work:
        return True
    if p.phase is Phase.FENCED or p.given_up:
        return False
    if p.phase is not Phase.CLAIMED:
        return not (lazy and p.committed < 0 and p.end <= max(p.noted, 0) and not p.positions)
    if not p.settled or p.prefix() or p.positions_to_copy() is not None:
        return True
    return upload_due(p, wanted) is not None


def upload_due(p: Partition, wanted: Wanted) -> SegmentUpload | None:
    """Return the segment whose upload may begin now, None if there is none.

    After a failure one upload at a time is the probe. Nothing after a commit that was refused is uploaded.
    """
    if p.phase is not Phase.CLAIMED or p.pause is not None or p.given_up:
        return None  # stored segments are committed all the same
    work = p.next_upload()
    if work is None or (p.uploading and (p.trouble.attempts or p.one_by_one)):
        return None
    if p.refused is not None and work.segment.base != p.committed:
        return None
    return work if wanted(p, work.segment.base) else None


def rows_due(p: Partition, limits: EngineLimits, now_ms: int) -> tuple[Row, ...]:
    """Return the rows to commit now: the stored prefix, once it is full, old enough, or no upload is under way."""
    most = 1 if p.one_by_one else limits.commit_segments
    prefix = p.prefix()[:most]
    if not prefix or (len(prefix) < most and now_ms < commit_at_ms(p, limits)):
        return ()
    return tuple([work.row for work in prefix if work.row is not None])


def commit_at_ms(p: Partition, limits: EngineLimits) -> int:
    """Return when the stored prefix is to be committed: at once if nothing else is under way; -1: it is empty."""
    first = p.works.get(p.committed)
    if first is None or first.row is None:
        return NONE_MS
    return first.stored_ms + limits.commit_wait_ms if p.uploading else 0


def copy_due(p: Partition, wanted: Wanted, *, has_committed: bool) -> bool:
    """Return True if positions are to be copied now: after a commit, or if none is on its way that covers more."""
    if p.phase is not Phase.CLAIMED or p.positions_to_copy() is None:
        return False
    return has_committed or not (p.uploading or upload_due(p, wanted))


def dead_upload_sweep_due(p: Partition, now_ms: int) -> bool:
    """Return True if the uploads of dead claims are due for a sweep. No commit comes before the first attempt."""
    return p.phase is Phase.CLAIMED and not p.settled and p.sweep.retry_at_ms <= now_ms


def next_ms(p: Partition, limits: EngineLimits) -> int:
    """Return when the passing of time alone makes something due; -1: never."""
    times = [commit_at_ms(p, limits), NONE_MS if p.settled else p.sweep.retry_at_ms]
    return min((at_ms for at_ms in times if at_ms != NONE_MS), default=NONE_MS)


def has_diverged(p: Partition) -> bool:
    """Return True if this disk holds records at offsets that the bucket has given to another writer's."""
    has_records = p.end > p.local_start
    if p.resume_at >= 0:
        return has_records and p.local_start < p.resume_at
    return has_records and p.committed > p.end


def matches(row: Row, work: SegmentUpload, claim_epoch: int) -> bool:
    """Return True if the row is of the segment that was to be uploaded. No other row may reach a commit."""
    segment = work.segment
    return (row.base, row.next, row.size, row.claim_epoch) == (
        segment.base,
        segment.end,
        segment.size_bytes,
        claim_epoch,
    )
