"""Split of a job over a bucket into tasks. Pure: the caller adds the rows of a catalog in offset order.

A task costs about 70 ms of overhead, and runs again as a whole if its machine is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiered.format.keys import FLAG_HOLE
from tiered.model import Row

SPAN_BYTES = 1024 * 1024 * 1024
"""Bytes of one task that reads segments: seconds of work."""

MAX_SPAN_SEGMENTS = 10_000
"""Segments of one task, however small they are, as each costs requests."""

TWO_PHASE_BYTES = 4 * 1024**3
"""Size above which a log is compacted by all tasks in two phases, not by one task."""

TWO_PHASE_RECORDS = 50_000_000
"""Number of records with the same effect, as each may have a key of its own."""


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """Adjacent segments of one partition, which cover offsets ``start`` to ``end`` (exclusive).

    ``segments``: their number. ``size_bytes``: their size.
    """

    start: int
    end: int
    segments: int
    size_bytes: int


class SpanCutter:
    """Cutter of adjacent rows into spans. A span ends at ``least_bytes`` or ``MAX_SPAN_SEGMENTS``, or with the rows."""

    def __init__(self, least_bytes: int = SPAN_BYTES) -> None:
        self._least_bytes = least_bytes
        self._spans: list[SegmentSpan] = []
        self._start = self._end = -1
        self._segments = self._bytes = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Add the rows that follow those of earlier calls."""
        for row in rows:
            if self._start < 0:
                self._start = row.base
            self._end = row.next
            self._segments += not row.flags & FLAG_HOLE
            self._bytes += row.size
            if self._bytes >= self._least_bytes or self._segments >= MAX_SPAN_SEGMENTS:
                self._close()

    def finish(self) -> list[SegmentSpan]:
        """End the last span. Return all spans, in offset order."""
        if self._start >= 0:
            self._close()
        return self._spans

    def _close(self) -> None:
        self._spans.append(SegmentSpan(self._start, self._end, self._segments, self._bytes))
        self._start, self._segments, self._bytes = -1, 0, 0


def groups_by_size(sizes: Sequence[int], most_bytes: int, most: int) -> list[list[int]]:
    """Return the indexes of ``sizes`` in groups of at most ``most`` items and ``most_bytes`` in total.

    An item above ``most_bytes`` is a group of its own. The largest items come first, as the longest task must not start
    last.
    """
    groups: list[list[int]] = []
    left = 0
    for at in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        if not groups or sizes[at] > left or len(groups[-1]) == most:
            groups.append([])
            left = most_bytes
        groups[-1].append(at)
        left -= sizes[at]
    return groups
