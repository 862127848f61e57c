"""Interval between two looks at the end of a partition that another machine writes. Pure: the caller has the clock."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

_CHANGES = 8
_LOOKS = 4
"""Looks in the smallest gap between two changes, and in a silence of any length."""


class PollInterval:
    """Times of the last changes of one partition, in monotonic seconds. ``least_s`` and ``most_s`` bound the interval.

    The interval is a quarter of the smallest gap between the last eight changes. Once the partition has been silent
    for longer than that gap, it is a quarter of the silence.
    """

    __slots__ = ("_changes", "_least_s", "_most_s")

    def __init__(self, now_s: float, least_s: float, most_s: float) -> None:
        """Begin as if the partition had changed at ``now_s``."""
        self._least_s = least_s
        self._most_s = most_s
        self._changes = deque([now_s], maxlen=_CHANGES)

    def changed(self, now_s: float) -> None:
        """Add a change at ``now_s``."""
        self._changes.append(now_s)

    def interval_s(self, now_s: float) -> float:
        """Return the seconds until the next look."""
        gap = min((later - earlier for earlier, later in pairwise(self._changes)), default=0.0)
        silence = now_s - self._changes[-1]
        return min(max(gap / _LOOKS, silence / _LOOKS, self._least_s), self._most_s)
