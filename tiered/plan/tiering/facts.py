"""What happened: facts in the past tense, the only thing that :mod:`tiered.plan.tiering.state` is ever told.

Answers carry the ``order`` number of the action that they answer. An answer whose order is not open (it was
answered before, or belongs to a claim that is gone) changes nothing, so repeated and late events are legal.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from tiered.errors import (
    CommitUnknown,
    FencedError,
    RemotePermissionError,
    TieredError,
)
from tiered.model import Row, TopicPartition
from tiered.plan.tiering.pauses import Pause


class FailureKind(enum.Enum):
    """What the rules do about a failure."""

    RETRIABLE = "retriable"  # backs off and tries again, for ever
    PERMISSION = "permission"  # said at once, looked at again every minute
    FATAL = "fatal"  # said at once, looked at again every ten minutes
    FENCED = "fenced"  # stops the partition
    UNKNOWN = "unknown"  # a commit that may have landed: the next claim settles it


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an order did not succeed, as data: ``code`` and ``exit_code`` are those of ``tiered.errors``."""

    kind: FailureKind
    code: str
    message: str
    hint: str = ""
    exit_code: int = 1

    @staticmethod
    def of(error: BaseException) -> Failure:
        """The failure that ``error`` stands for; what is not in the error tree is a bug, and fatal to its order."""
        if isinstance(error, (TimeoutError, ConnectionError)):
            return Failure(FailureKind.RETRIABLE, "timeout", str(error) or "timed out", exit_code=75)
        if not isinstance(error, TieredError):
            return Failure(FailureKind.FATAL, "internal", f"{type(error).__name__}: {error}", "report this as a bug")
        if isinstance(error, FencedError):
            kind = FailureKind.FENCED
        elif isinstance(error, CommitUnknown):
            kind = FailureKind.UNKNOWN
        elif isinstance(error, RemotePermissionError):
            kind = FailureKind.PERMISSION
        elif error.retriable:
            kind = FailureKind.RETRIABLE
        else:
            kind = FailureKind.FATAL
        return Failure(kind, error.code, error.message, error.hint, error.exit_code)


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A sealed segment by name and size; offsets ``base`` to ``end`` (exclusive).

    ``first_ms`` is about when its first byte was appended: the age that the fair queue goes by.
    """

    base: int
    end: int
    size_bytes: int
    first_ms: int


class DrainMode(enum.Enum):
    """What is sent before the program ends."""

    INFLIGHT = "inflight"  # what is being uploaded now
    SEALED = "sealed"  # every sealed segment
    ALL = "all"  # the active segments too: they are rolled first


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """The scanner read the positions of a local partition; ``active_since_ms`` is -1 if nothing is active.

    ``end_offset`` is a lower bound while a writer appends: the active segment is not read, so it counts as one record.
    ``noted_offset`` is the committed end in the checkpoint that an earlier run left, -1 if none. ``seal_ms`` is the
    topic's ``seal.ms``, by which its writer seals an active segment; -1: never.
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


@dataclass(frozen=True, slots=True)
class PartitionGone:
    """The partition is no longer in the log directory."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class SegmentSealed:
    """A sealed segment was found."""

    tp: TopicPartition
    segment: SegmentRef


@dataclass(frozen=True, slots=True)
class ClaimHeld:
    """A claim that this process made before still stands, and so does the topic's entry; the root ends there."""

    tp: TopicPartition
    claim_epoch: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The order was not carried out: refused, without an answer, cancelled, or (a commit: ``unknown``) nobody knows."""

    order: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Done:
    """The bucket's registry names the topic with our id; or the log directory was read, and all that it holds told."""

    order: int


@dataclass(frozen=True, slots=True)
class ClaimDone:
    """The role is ours under ``claim_epoch``; the root, read back, says which offsets it holds.

    ``resumes``: the volume held no records; its log has yet to begin at ``next_offset`` before it takes any.
    ``warnings``: sentences for who operates it.
    """

    order: int
    claim_epoch: int
    start_offset: int
    next_offset: int
    resumes: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UploadDone:
    """Both objects of a segment are stored and verified; ``row`` is what a commit would add."""

    order: int
    row: Row


@dataclass(frozen=True, slots=True)
class CommitDone:
    """A root that was read back after the commit ends at ``next_offset``, and begins at ``start_offset``."""

    order: int
    next_offset: int
    start_offset: int = -1


@dataclass(frozen=True, slots=True)
class SealDone:
    """The active segments of the directory were rolled (by us, or the writer was asked to)."""

    order: int
    by_writer: bool


@dataclass(frozen=True, slots=True)
class SettleDone:
    """What dead epochs left of a partition is gone from the bucket and from the journal; ``swept``: of how many."""

    order: int
    swept: int = 0


@dataclass(frozen=True, slots=True)
class WriterSeen:
    """Whether some other process holds the log directory's ``.lock``, in words (empty: nobody)."""

    holder: str


@dataclass(frozen=True, slots=True)
class PausesSeen:
    """The topics whose uploads are paused now, by name, or ``ALL_TOPICS``; all others go on."""

    pauses: Mapping[str, Pause]


@dataclass(frozen=True, slots=True)
class DiskLow:
    """The disk of the log directory is ``used_percent`` full."""

    free_bytes: int
    used_percent: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Send what ``mode`` names and end; ``deadline_ms`` (None: never) is on the state's clock.

    ``oneshot`` (``sync --wait``): the exit status is that of the failure that is in the way.
    ``last`` (SIGTERM): nobody looks after this disk afterwards. What a writer leaves while it ends is sent too, and
    status 0 means that a last look at the disk has found nothing that the bucket lacks.
    ``ends``: only these partitions, only up to these offsets, and what has begun at the deadline is committed.
    ``claims``: each of them is claimed first, also where nothing is to be sent.
    """

    mode: DrainMode
    deadline_ms: int | None
    oneshot: bool = False
    last: bool = False
    ends: Mapping[TopicPartition, int] | None = None
    claims: bool = False


@dataclass(frozen=True, slots=True)
class Poked:
    """Somebody is waiting (an application's sync): waits for retries end now."""


Answer = Failed | Done | ClaimDone | UploadDone | CommitDone | SealDone | SettleDone
Seen = PartitionSeen | PartitionGone | SegmentSealed | ClaimHeld | WriterSeen | PausesSeen | DiskLow
Event = Answer | Seen | Tick | DrainRequested | Poked
