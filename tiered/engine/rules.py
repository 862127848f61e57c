"""The decisions of the engine: pure functions of one partition, the limits and the time."""

from __future__ import annotations

from collections.abc import Callable

from tiered.engine.limits import EngineLimits
from tiered.engine.partition import NONE_MS, Partition, Phase, SegmentUpload
from tiered.model import Row

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
