"""Which producer snapshots of a partition to load, to keep and to write: rules over their offsets.

The offset of a snapshot is the *exclusive* end of the state in it; that of a sealed segment is the base of the next.

Kafka's rule: docs/kafka-semantics.md#producer-snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def stray(offsets: Iterable[int], bases: Iterable[int]) -> list[int]:
    """Snapshots to delete at a load: those at no segment's base, but the largest may stay above all bases.

    That one is the snapshot of a clean shutdown, at the end of the log.
    """
    live = set(bases)
    strays = sorted(set(offsets) - live)
    if strays and strays[-1] > max(live, default=-1):
        strays.pop()
    return strays


def out_of_range(offsets: Iterable[int], log_start: int, log_end: int) -> list[int]:
    """Snapshots that say nothing about ``log_start`` to ``log_end``: to be deleted before a reload."""
    return sorted(offset for offset in offsets if offset > log_end or offset <= log_start)


def loadable(offsets: Iterable[int], log_start: int, log_end: int) -> list[int]:
    """Snapshots to try, newest first; one that is corrupt is deleted and the next is tried."""
    return sorted((offset for offset in offsets if log_start < offset <= log_end), reverse=True)


def points_of_rebuild(bases: Sequence[int], log_end: int) -> list[int]:
    """Where a rebuild leaves snapshots: at the bases of the two last segments, and at the end of the log."""
    return sorted({*sorted(bases)[-2:], log_end})
