"""Comparison of two logs by their leader epochs.

A leader epoch has one leader, and a leader assigns each offset once. Two logs with the same epoch at an offset hold the
same records up to it. An unclean election assigns offsets again, under another epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.errors import OffsetGapError
from tiered.model import EpochEntry

UNKNOWN_EPOCH = -1


def epoch_at(epochs: Sequence[EpochEntry], offset: int) -> int:
    """Return the leader epoch of the record at ``offset``. ``UNKNOWN_EPOCH`` if no entry begins at or below it."""
    return max((entry.epoch for entry in epochs if entry.start_offset <= offset), default=UNKNOWN_EPOCH)


def are_other_epochs(one: int, another: int) -> bool:
    """Return True if both leader epochs are known and differ."""
    return one != another and UNKNOWN_EPOCH not in {one, another}


def common_end(epochs: Sequence[EpochEntry], epoch: int, end: int) -> int | None:
    """Return the offset up to which this log has the records that a reader at leader epoch ``epoch`` has read.

    The result is exclusive: the end of the greatest epoch at or below ``epoch``, as in Kafka. None: ``epoch`` is
    unknown, or below all epochs of this log. ``epochs``, ``end``: leader epochs and end of this log.
    """
    if epoch == UNKNOWN_EPOCH or not epochs or epochs[0].epoch > epoch:
        return None
    return next((entry.start_offset for entry in epochs if entry.epoch > epoch), end)


def need_same_records(name: str, held: Sequence[EpochEntry], theirs: Sequence[EpochEntry], end: int) -> None:
    """Raise OffsetGapError if a broker's log has another leader epoch than the bucket just below ``end``.

    ``name``: partition, for the message. ``held``: leader epochs of the bucket. ``theirs``: those of the broker. The
    error names the first offset at which both differ. Unknown epochs raise nothing.
    """
    was, now = epoch_at(held, end - 1), epoch_at(theirs, end - 1)
    if are_other_epochs(was, now):
        starts = sorted(entry.start_offset for entry in (*held, *theirs) if entry.start_offset < end)
        start = next(at for at in starts if are_other_epochs(epoch_at(held, at), epoch_at(theirs, at)))
        raise rewritten(name, start, end, f": they are of leader epoch {was}, the broker's are of {now}")


def rewritten(name: str, start: int, end: int, why: str = "") -> OffsetGapError:
    """Return the error for offsets ``start`` to ``end`` in the bucket that the broker replaced or deleted.

    ``name``: partition. ``why``: text that is added to the message.
    """
    return OffsetGapError(
        f"{name}: of the offsets {start} to {end} the bucket holds records that the broker no longer has{why}: its log "
        "was truncated below the high watermark",
        start=start,
        end=end,
        hint="upload to another prefix, which begins a new log; the cause is an unclean leader election",
    )
