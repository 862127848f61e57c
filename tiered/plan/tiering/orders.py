"""What to do: orders in the imperative, the only thing that :mod:`tiered.plan.tiering.state` ever says.

An action with an ``order`` is answered exactly once by a fact with the same number (:mod:`tiered.plan.tiering.facts`);
the others are carried out and forgotten.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tiered.model import Row, TopicPartition
from tiered.plan.tiering.facts import SegmentRef


@dataclass(frozen=True, slots=True)
class RegisterTopic:
    """Register the topic in the bucket, or adopt the entry with the same id."""

    order: int
    topic: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Take the role of a partition; a writer's proof is on the volume's disk before the PUT."""

    order: int
    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class Settle:
    """Abort and delete what epochs before ``claim_epoch`` left at or above ``next_offset``, as the journal names it."""

    order: int
    tp: TopicPartition
    claim_epoch: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Upload:
    """Store and verify both objects of a segment."""

    order: int
    tp: TopicPartition
    segment: SegmentRef
    claim_epoch: int


@dataclass(frozen=True, slots=True)
class CancelUpload:
    """Stop the upload of that order; it is still answered."""

    upload: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Append ``rows`` (contiguous, the first at the committed end) and read the root back."""

    order: int
    tp: TopicPartition
    claim_epoch: int
    rows: tuple[Row, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Note:
    """Write what the bucket holds of a partition to the checkpoint that the log's writer reads; -1: not told."""

    tp: TopicPartition
    end_offset: int
    claim_epoch: int
    fenced: bool
    start_offset: int = -1


@dataclass(frozen=True, slots=True)
class Seal:
    """Roll the active segments: by taking ``.lock`` if nobody holds it, else by asking the writer."""

    order: int


@dataclass(frozen=True, slots=True)
class Look:
    """Scan the log directory now: what it finds is told before the answer."""

    order: int


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Send a ``Tick`` at ``at_ms``."""

    at_ms: int


class Level(enum.Enum):
    """How loud a report is."""

    INFO = "info"
    WARN = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the operator; ``event`` is a stable name."""

    level: Level
    event: str
    message: str
    tp: TopicPartition | None = None
    fields: tuple[tuple[str, str | int], ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """End the program with this status; whatever is still under way is cancelled."""

    code: int
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


AtTheBucket = RegisterTopic | Claim | Settle | Upload | Commit
Order = AtTheBucket | Seal | Look
Action = Order | CancelUpload | Note | RetryAt | Report | Exit
