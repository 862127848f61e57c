"""What loading a partition directory found: plain values that the writer starts from."""

from __future__ import annotations

from dataclasses import dataclass

from tiered.local.segment.indexes import SegmentIndexes
from tiered.model import AbortedTxn


@dataclass(slots=True)
class FoundSegment:
    """One ``.log`` after loading. ``end_offset`` exclusive; ``indexes`` None: load when needed.

    ``records_end``: where the last batch ends, -1 if nobody looked or there is none.
    ``largest``: the largest timestamp and the last offset of its batch; None: the last entry of the time index.
    ``aborted``: the transactions whose ABORT markers it holds; None: its note, or the log, has to be asked.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    indexes: SegmentIndexes | None = None
    first_timestamp: int = -1
    damaged: bool = False
    largest: tuple[int, int] | None = None
    records_end: int = -1
    aborted: list[AbortedTxn] | None = None


@dataclass(slots=True)
class LoadedPartition:
    """Segments ascending, the last one to be appended to; ``torn_bytes`` were copied aside."""

    segments: list[FoundSegment]
    torn_bytes: int = 0
