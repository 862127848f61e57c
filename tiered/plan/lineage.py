"""Which remote segments belong to the history of a log, by their leader epochs? Kafka's rules (reference 11.7). Pure.

A *chain* is a leader-epoch list, (epoch, first offset) ascending; a segment brings its own, from its first offset on.
Ends are exclusive here, where Kafka names last offsets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from tiered.model import EpochEntry

NOTHING = EpochEntry(-1, -1)


def filled(chain: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
    """Without the epochs that have no records: of several that begin at one offset the last stays."""
    starts = {entry.start_offset: entry for entry in chain}
    return tuple(starts[start] for start in sorted(starts))


def belongs(segment: Sequence[EpochEntry], end_offset: int, chain: Sequence[EpochEntry], log_end: int) -> bool:
    """Whether a segment with these epochs, up to ``end_offset``, is a part of the log with this chain and end.

    Epochs of the segment below the chain's first are passed over: the chain may have been cut at its start.
    """
    ours = filled(chain)
    theirs = [entry for entry in filled(segment) if ours and entry.epoch >= ours[0].epoch]
    if not ours or not theirs or end_offset > log_end:
        return False
    places = {entry.epoch: i for i, entry in enumerate(ours)}
    if any(entry.epoch not in places for entry in theirs):
        return False
    first, last = theirs[0], theirs[-1]
    if first.epoch != ours[0].epoch and first.start_offset < ours[places[first.epoch]].start_offset:
        return False
    for entry, following in itertools.pairwise(theirs):
        if following != ours[places[entry.epoch] + 1]:
            return False
    after = places[last.epoch] + 1
    return after == len(ours) or end_offset <= ours[after].start_offset


def highest_remote(chain: Sequence[EpochEntry], end_of: Callable[[int], int | None]) -> tuple[int, int]:
    """(exclusive end, epoch) up to which the bucket holds this log; (0, -1) if it holds nothing of it.

    ``end_of(epoch)``: the end of the highest remote segment of that epoch, None without any. What lies above the end
    of the epoch in the chain was written by a leader that lost, and does not count.
    """
    bound: int | None = None
    for entry in reversed(chain):
        end = end_of(entry.epoch)
        if end is not None:
            return (end if bound is None else min(end, bound)), entry.epoch
        bound = entry.start_offset
    return 0, NOTHING.epoch


def first_remote(chain: Sequence[EpochEntry], starts_of: Callable[[int], Iterable[int]], local_start: int) -> int:
    """Where the whole log begins: the first remote segment of the earliest epoch that has one, else ``local_start``."""
    for entry in chain:
        starts = sorted(starts_of(entry.epoch))
        if starts:
            return starts[0]
    return local_start
