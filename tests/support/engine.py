"""Looks at a log directory of which nothing is uploaded yet."""

from __future__ import annotations

from tiered.engine.disk import LogDirectory
from tiered.engine.partition import Partition, SegmentRef
from tiered.engine.scanner import Look
from tiered.engine.status import PartitionView, view_of


def sealed_in(look: Look) -> list[SegmentRef]:
    """Return the segments that a look found first."""
    return [segment for seen in look.seen for segment in seen.sealed]


def seen_views(directory: LogDirectory, now_ms: int) -> list[PartitionView]:
    """Return the status record: one line per partition."""
    rows = []
    for seen in directory.scan().seen:
        rows.append(Partition(seen.tp, seen.topic_id))
        rows[-1].see(seen)
    return [view_of(row, now_ms, None, True) for row in rows]
