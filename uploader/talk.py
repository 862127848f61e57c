"""What the command line says to people, on stderr, of what it did."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.model import TopicPartition
from tiered.program.output import counted

NAMES = 5
"""Partitions that one sentence names."""


def committed(counts: Mapping[TopicPartition, int]) -> str:
    """``2,000 records committed in t-0, t-1``."""
    total = sum(counts.values())
    if not total:
        return "nothing to commit: the bucket holds all that was asked for"
    names = [str(tp) for tp in sorted(counts)]
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return f"{counted(total, 'record')} committed in {', '.join(names[:NAMES])}{more}"
