"""State of one partition in the engine, the engine's limits, and the decisions about due work. No I/O, no clock.

::

    NEW --claim--> CLAIMING --granted--> CLAIMED --commit without an answer--> NEW
                      |                     |
                      +------- fenced ------+----> FENCED (stays)
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
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
    """Limits of the engine. ``uploads``, ``claims``, ``commits``: how many may run at the same time.

    One partition gets more than a quarter of the uploads only if no other waits. ``commit_segments``: limit of rows in
    one commit. ``commit_wait_ms``: wait of a stored segment for more segments. ``seal_idle_ms``: age of the first
    record at which the uploader seals an active segment, if the log has no writer; -1: never. ``repeat_report_ms``:
    time after which a lasting failure is reported again. ``disk_warn_percent``: used disk space, in percent, from
    which a warning is reported.
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


BLOCKED_HINT = "run `tiered restore`, or bring the missing segments back into the log directory"

PAUSED_HINT = "run `tiered-uploader resume`"

NEEDS_OPERATOR = frozenset({FailureKind.PERMISSION, FailureKind.FATAL, FailureKind.FENCED})
"""Failures that time alone does not cure."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """Reference to a sealed segment: offsets ``base`` to ``end`` (exclusive), and the size of its ``.log``.

    ``first_ms``: approximate time of its first append, by which the upload queue is sorted.
    """

    base: int
    end: int
    size_bytes: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """State of a changed partition, as found by a scan. ``sealed``: the newly found sealed segments.

    ``end_offset``: a lower bound, because the active segment is not read and counts as one record. ``active_since_ms``:
    approximate time of the first append to the active segment, -1 if it is empty. ``noted_offset``: committed end in
    the checkpoint of an earlier run, -1 if none. ``seal_ms``: the topic's ``seal.ms``, after which its writer seals an
    active segment; -1: never.
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
    """State of the engine's claim on a partition."""

    NEW = "new"
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    FENCED = "fenced"


@dataclass(slots=True)
class SegmentUpload:
    """Sealed segment that the bucket lacks. ``row`` is set when both objects are verified, at ``stored_ms``."""

    segment: SegmentRef
    uploading: bool = False
    row: Row | None = None
    stored_ms: int = NONE_MS


@dataclass(slots=True)
class Partition:
    """State of one partition in the engine.

    ``local_start``, ``flushed``, ``end``: offsets of the local log; ``end`` may be a lower bound. ``noted``: committed
    end in the checkpoint of an earlier run, -1: none. ``committed``, ``remote_start``: end and start of the root, -1
    until a claim has read it. ``works``: sealed segments that the bucket lacks, by base offset. ``doubt_end``: end of a
    commit with an unknown outcome, which the next claim resolves; 0: none. ``resume_at``: offset at which a log without
    records must still begin, -1: none. ``positions``: those of groups on the disk, None if there never were any.
    ``copied``: those in the bucket, None if unknown. ``given_up``: True if this run starts no more work on it.
    ``settled``: True once the unfinished uploads of earlier claims are deleted. ``sweep``: failures of these deletions.
    ``trouble``: failures of other steps. ``wait_code``, ``wait_since_ms``: reason and start of the present wait.
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
    trouble: FailureStreak = NO_FAILURES
    pause: Pause | None = None
    given_up: bool = False
    wait_code: str = ""
    wait_since_ms: int = 0

    # ------------------------------------------------------------------ what is on the disk

    def see(self, seen: PartitionSeen) -> None:
        """Update the local log's offsets from the result of a scan, and add its sealed segments."""
        self.local_start, self.flushed, self.end = seen.local_start_offset, seen.flushed_offset, seen.end_offset
        self.active_bytes, self.active_since_ms = seen.active_bytes, seen.active_since_ms
        self.seal_ms = seen.seal_ms
        self.noted = max(self.noted, seen.noted_offset)
        for segment in seen.sealed:
            self.add(segment)

    def add(self, segment: SegmentRef) -> None:
        """Add a sealed segment, unless the bucket has it."""
        if segment.end <= self.known_committed:
            return
        known = self.works.get(segment.base)
        if known is None:
            self.works[segment.base] = SegmentUpload(segment)
            self.end = max(self.end, segment.end)
        elif known.segment != segment and not known.uploading and known.row is None:
            known.segment = segment

    def seal_at(self, idle_ms: int) -> int:
        """Return the time in ms at which the uploader seals the active segment if the log has no writer. -1: never.

        It is the first record's time plus the smaller of ``seal.ms`` and ``idle_ms``, where -1 means no limit.
        """
        if not self.active_bytes or self.active_since_ms <= NONE_MS:
            return NONE_MS
        limits = [limit for limit in (idle_ms, self.seal_ms) if limit >= 0]
        return self.active_since_ms + min(limits) if limits else NONE_MS

    # ------------------------------------------------------------------ where it stands

    @property
    def at_work(self) -> bool:
        """Return True while an upload or commit of the partition runs."""
        return bool(self.uploading or self.committing)

    @property
    def moves(self) -> bool:
        """Return True if the partition makes progress: an upload or commit runs, or a commit is possible now."""
        first = self.works.get(self.committed)
        return self.at_work or (self.trouble.failure is None and first is not None and first.row is not None)

    @property
    def known_committed(self) -> int:
        """Return the end of the root; before it is read, the end in the checkpoint of an earlier run, or 0."""
        return max(self.noted, 0) if self.committed < 0 else self.committed

    @property
    def sealed_end(self) -> int:
        """Return the end of the last sealed segment, or the committed end if that is higher."""
        return max((work.segment.end for work in self.works.values()), default=self.known_committed)

    def prefix(self) -> list[SegmentUpload]:
        """Return the stored segments that follow the committed end without a gap, at most as many as fit a commit."""
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
        """Return the next segment to upload, None if there is none.

        It is at most ``MAX_COMMIT_SEGMENTS`` segments after the committed end.
        """
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
        """Return the positions of consumer groups to copy to the bucket. A position above the committed end is lowered.

        None: the bucket has them, the log has no groups, or the partition is paused or fenced.
        """
        if self.positions is None or self.pause is not None or self.phase is Phase.FENCED:
            return None
        wanted = within(self.positions, 0, self.known_committed)
        return None if self.copied is not None and are_equal(wanted, self.copied) else wanted

    def blocked(self) -> tuple[str, str] | None:
        """Return (code, sentence) if the local segments cannot continue the root. None: they can, or there is no claim.

        Codes: ``gap`` if segments between are missing, ``misaligned`` if the root ends inside a local segment.
        """
        if self.phase is not Phase.CLAIMED or self.committed in self.works or not self.works:
            return None
        first = min(self.works)
        if first < self.committed:
            end = self.works[first].segment.end
            return "misaligned", f"the bucket ends at offset {self.committed}, inside the local segment {first}..{end}"
        return "gap", f"offsets {self.committed}..{first} are neither in the bucket nor on this disk"

    def obstacle(self) -> Failure | None:
        """Return the failure that only an operator can correct, None if the partition continues by itself."""
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
        """Apply a granted claim. ``committed``: the end of its root."""
        self.phase, self.claim_epoch, self.committed = Phase.CLAIMED, claim_epoch, committed
        self.copied = None  # the first copy under this claim fences the copies of earlier ones
        self.forget_committed()

    def drop_claim(self) -> None:
        """Give up the claim. Its uploaded segments count as not uploaded, because a later claim cannot commit them."""
        self.phase = Phase.NEW
        for work in self.works.values():
            work.uploading, work.row, work.stored_ms = False, None, NONE_MS

    def forget_committed(self) -> None:
        """Remove the segments that the root contains."""
        self.works = {base: work for base, work in self.works.items() if work.segment.end > self.committed}

    @property
    def is_refused(self) -> bool:
        """Return True if the next commit was refused. Only a commit that succeeds changes that, and no upload."""
        failure = self.trouble.failure
        return failure is not None and failure.kind is FailureKind.FATAL and self.trouble.doing == self.committing_text

    @property
    def committing_text(self) -> str:
        """Return the description of the partition's next commit, for reports."""
        return f"committing {self.tp} from offset {self.committed}"

    # ------------------------------------------------------------------ how far it is behind

    def lag_bytes(self) -> int:
        """Return the bytes on this disk that the bucket lacks."""
        return self.active_bytes + sum(work.segment.size_bytes for work in self.works.values())

    def oldest_sealed_ms(self) -> int:
        """Return the time of the oldest append in a sealed segment that the bucket lacks; -1 if there is none."""
        return min((work.segment.first_ms for work in self.works.values()), default=NONE_MS)

    def oldest_ms(self) -> int:
        """Return the time of the oldest append that the bucket lacks, even in the active segment; -1: none."""
        sealed = self.oldest_sealed_ms()
        return sealed if sealed != NONE_MS else self.active_since_ms


Wanted = Callable[[Partition, int], bool]
"""Predicate: True if this run uploads the segment of the partition at this base offset."""


def has_work(p: Partition, wanted: Wanted, *, lazy: bool = False) -> bool:
    """Return True while a step of the partition runs, or if it has anything to claim, upload or commit.

    Group positions to copy and old uploads to delete count, too. ``wanted``: selects the segments to upload. ``lazy``
    (one-shot runs): no claim if the checkpoint shows that all its records are committed.
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
    """Return the segment whose upload may begin now, None if there is none or ``wanted`` excludes it.

    After a failure only one upload runs at a time.
    """
    if p.phase is not Phase.CLAIMED or p.pause is not None or p.given_up:
        return None  # stored segments are committed all the same
    work = p.next_upload()
    if work is None or (p.uploading and p.trouble.attempts):
        return None
    return work if wanted(p, work.segment.base) else None


def rows_due(p: Partition, limits: EngineLimits, now_ms: int) -> tuple[Row, ...]:
    """Return the rows to commit now, () if none is due.

    Rows are due if they fill a commit, if the first has waited long enough, or if no upload runs. After a fatal
    failure, such as a refused row, they are committed one at a time.
    """
    failure = p.trouble.failure
    most = 1 if failure is not None and failure.kind is FailureKind.FATAL else limits.commit_segments
    prefix = p.prefix()[:most]
    if not prefix or (len(prefix) < most and now_ms < commit_at_ms(p, limits)):
        return ()
    return tuple([work.row for work in prefix if work.row is not None])


def commit_at_ms(p: Partition, limits: EngineLimits) -> int:
    """Return the time in ms at which the stored segments are committed: 0 for at once, -1 if there are none."""
    first = p.works.get(p.committed)
    if first is None or first.row is None:
        return NONE_MS
    return first.stored_ms + limits.commit_wait_ms if p.uploading else 0


def copy_due(p: Partition, wanted: Wanted, *, has_committed: bool) -> bool:
    """Return True if positions of consumer groups are copied now: after a commit, or if no commit is expected.

    ``wanted``: selects the segments that this run uploads. ``has_committed``: a commit came after the last copy.
    """
    if p.phase is not Phase.CLAIMED or p.positions_to_copy() is None:
        return False
    return has_committed or not (p.uploading or upload_due(p, wanted))


def dead_upload_sweep_due(p: Partition, now_ms: int) -> bool:
    """Return True if unfinished uploads of earlier claims are to be deleted now, at first before any commit."""
    return p.phase is Phase.CLAIMED and not p.settled and p.sweep.retry_at_ms <= now_ms


def next_ms(p: Partition, limits: EngineLimits) -> int:
    """Return the time in ms at which a commit or a deletion becomes due without another event; -1: never."""
    times = [commit_at_ms(p, limits), NONE_MS if p.settled else p.sweep.retry_at_ms]
    return min((at_ms for at_ms in times if at_ms != NONE_MS), default=NONE_MS)


def has_diverged(p: Partition) -> bool:
    """Return True if the log has records and ends below the bucket's end: new ones would repeat the bucket's offsets.

    A log that must resume at the bucket's end has diverged if it has records below that offset.
    """
    has_records = p.end > p.local_start
    if p.resume_at >= 0:
        return has_records and p.local_start < p.resume_at
    return has_records and p.committed > p.end


def matches(row: Row, work: SegmentUpload, claim_epoch: int) -> bool:
    """Return True if ``row`` describes the segment of ``work`` under this claim. Other rows must not be committed."""
    segment = work.segment
    return (row.base, row.next, row.size, row.claim_epoch) == (
        segment.base,
        segment.end,
        segment.size_bytes,
        claim_epoch,
    )
