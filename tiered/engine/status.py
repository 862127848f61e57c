"""Status of each partition: why it waits, since when, and what unblocks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tiered.engine.failure import Failure, FailureKind
from tiered.engine.partition import BLOCKED_HINT, PAUSED_HINT, Partition, Phase
from tiered.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Waiting:
    """Reason why a partition waits. ``code``: a stable word. ``since_ms``: wall-clock time, -1 if unknown.

    ``unblocks``: the event or command that ends the wait.
    """

    code: str
    reason: str
    since_ms: int
    unblocks: str

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, for ``status --json``."""
        return {"code": self.code, "reason": self.reason, "since_ms": self.since_ms, "unblocks": self.unblocks}


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Status of one partition. Ends are exclusive. ``lag_bytes``: bytes that only this disk has.

    ``end_offset`` may be a lower bound: a scan counts the active segment as one record. ``segments_waiting``: number of
    sealed segments that the bucket lacks. ``uploading``: number of those that are being uploaded. ``lag_ms``: age of
    the oldest append in a sealed segment that the bucket lacks. ``oldest_unuploaded_ms``: the same, with the active
    segment. Both are 0 if the bucket lacks nothing.
    """

    tp: TopicPartition
    topic_id: UUID
    phase: str
    claim_epoch: int
    local_start_offset: int
    end_offset: int
    flushed_offset: int
    uploaded_offset: int
    lag_bytes: int
    lag_ms: int
    oldest_unuploaded_ms: int
    segments_waiting: int
    uploading: int
    waiting: Waiting | None
    paused: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, for ``status --json``."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "topic_id": str(self.topic_id),
            "phase": self.phase,
            "claim_epoch": self.claim_epoch,
            "local_start_offset": self.local_start_offset,
            "least_end_offset": self.end_offset,  # while a writer appends, its active segment counts as one record
            "flushed_offset": self.flushed_offset,
            "uploaded_offset": self.uploaded_offset,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": self.lag_ms / 1000,
            "oldest_unuploaded_seconds": self.oldest_unuploaded_ms / 1000,
            "segments_waiting": self.segments_waiting,
            "uploading": self.uploading,
            "paused": self.paused,
            "waiting": self.waiting.as_json() if self.waiting else None,
        }


def segments_are(count: int) -> str:
    """Return ``1 segment is`` or ``{count} segments are``, for a sentence."""
    return "1 segment is" if count == 1 else f"{count} segments are"


def wait_of(p: Partition, topic_failure: Failure | None, topic_registered: bool) -> tuple[str, str, str]:
    """Return (code, reason, event that ends the wait) for ``p``; all ``""`` if it does not wait.

    ``topic_failure``: failure of the topic's registration in the bucket, None without one.
    """
    failure = p.trouble.failure or topic_failure
    if p.phase is Phase.FENCED:
        message = failure.message if failure else "a newer claim owns the partition"
        hint = (failure.hint if failure else "") or "`tiered repair rejoin` starts again at the bucket's end"
        return "fenced", message, hint
    if failure is not None:
        return _failure_wait(failure, p.trouble.doing or "registering the topic")
    if not topic_registered:
        return "topic", "the topic is being registered in the bucket", "an answer of the store"
    if p.phase is Phase.CLAIMING:
        return "claim", "the writer role is being claimed", "an answer of the store"
    if p.phase is Phase.NEW:
        if p.uploading:
            return "cancel", "uploads of the last claim are being cancelled", "their end"
        return "claim", "the writer role is to be claimed", "a free slot among the claims"
    blocked = p.blocked()
    if blocked is not None:
        return (*blocked, BLOCKED_HINT)
    if p.committing:
        return "commit", "stored segments are being committed", "an answer of the store"
    if p.uploading:
        return "upload", f"{segments_are(p.uploading)} being uploaded", "the end of the uploads"
    if p.pause is not None and (p.works or p.end > p.committed):
        return "paused", str(p.pause), PAUSED_HINT
    if p.works:
        return "pool", "all upload slots are taken by older data", "a free slot"
    if p.end > p.committed:
        unblocks = "the next roll (seal.ms, segment.bytes, sync)"
        return "seal", f"{p.active_bytes} bytes are in the active segment", unblocks
    return "", "", ""


def _failure_wait(failure: Failure, doing: str) -> tuple[str, str, str]:
    reason = f"{doing}: {failure.message}"
    if failure.kind is FailureKind.PERMISSION:
        return "permission", reason, failure.hint or "a policy that allows it; retried every minute"
    if failure.kind is FailureKind.FATAL:
        return failure.code, reason, failure.hint or "a correction by hand; retried within ten minutes"
    return "retry", reason, failure.hint or "a store that answers; tried again within a minute"


def track(p: Partition, topic_failure: Failure | None, topic_registered: bool, now_ms: int) -> None:
    """Set the start of the current wait of ``p`` to ``now_ms`` if the reason of the wait has changed.

    ``topic_failure``: failure of the topic's registration in the bucket, None without one.
    """
    code = wait_of(p, topic_failure, topic_registered)[0]
    if code != p.wait_code:
        p.wait_code, p.wait_since_ms = code, now_ms


def view_of(p: Partition, now_ms: int, topic_failure: Failure | None, topic_registered: bool) -> PartitionView:
    """Return the status of partition ``p`` at ``now_ms``.

    ``topic_failure``: failure of the topic's registration in the bucket, None without one.
    """
    code, reason, unblocks = wait_of(p, topic_failure, topic_registered)
    waiting = Waiting(code, reason, p.wait_since_ms if code == p.wait_code else now_ms, unblocks) if code else None
    sealed_ms, oldest_ms = p.oldest_sealed_ms(), p.oldest_ms()
    return PartitionView(
        tp=p.tp,
        topic_id=p.topic_id,
        phase=p.phase.value,
        claim_epoch=p.claim_epoch,
        local_start_offset=p.local_start,
        end_offset=p.end,
        flushed_offset=p.flushed,
        uploaded_offset=p.known_committed,
        lag_bytes=p.lag_bytes(),
        lag_ms=max(0, now_ms - sealed_ms) if sealed_ms >= 0 else 0,
        oldest_unuploaded_ms=max(0, now_ms - oldest_ms) if oldest_ms >= 0 else 0,
        segments_waiting=len(p.works),
        uploading=p.uploading,
        waiting=waiting,
        paused=p.pause is not None,
    )
