"""Whether two logs hold the same records, by their leader epochs.

A leader epoch has one leader, and a leader gives each offset once: where two logs have the same epoch at an offset they
hold the same records up to it. An unclean election gives offsets again, under another epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.errors import OffsetGapError
from tiered.model import EpochEntry

UNKNOWN_EPOCH = -1


def epoch_at(epochs: Sequence[EpochEntry], offset: int) -> int:
    """The leader epoch under which ``offset`` was written; ``UNKNOWN_EPOCH`` if these begin above it."""
    return max((entry.epoch for entry in epochs if entry.start_offset <= offset), default=UNKNOWN_EPOCH)


def are_other_epochs(one: int, another: int) -> bool:
    """Whether both are known, and differ: what begins later, or tells nothing, contradicts nothing."""
    return one != another and UNKNOWN_EPOCH not in {one, another}


def need_same_records(name: str, held: Sequence[EpochEntry], theirs: Sequence[EpochEntry], end: int) -> None:
    """That a broker whose leader epochs are ``theirs`` has the records that the bucket holds below ``end``.

    ``held``: the leader epochs of these. Raises OffsetGapError from the first offset of which both differ.
    """
    was, now = epoch_at(held, end - 1), epoch_at(theirs, end - 1)
    if are_other_epochs(was, now):
        starts = sorted(entry.start_offset for entry in (*held, *theirs) if entry.start_offset < end)
        start = next(at for at in starts if are_other_epochs(epoch_at(held, at), epoch_at(theirs, at)))
        raise rewritten(name, start, end, f": they are of leader epoch {was}, the broker's are of {now}")


def rewritten(name: str, start: int, end: int, why: str = "") -> OffsetGapError:
    """The error of a bucket that holds what its broker has given again, or no longer has."""
    return OffsetGapError(
        f"{name}: of the offsets {start} to {end} the bucket holds records that the broker no longer has{why}: its log "
        "was truncated below the high watermark",
        start=start,
        end=end,
        hint="a leader was elected uncleanly: begin a new log under another prefix",
    )
