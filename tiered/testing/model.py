"""A log that is always right: a list. Property tests run it beside the real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tiered.model import NewRecord, Record


@dataclass
class ModelLog:
    """One partition: records by offset, the ends of its append calls, and how much of it was promised.

    Offsets below ``start`` were deleted, those below ``flushed`` survive a power cut, those below ``end`` a kill.
    """

    start: int = 0
    end: int = 0
    flushed: int = 0
    records: list[Record] = field(default_factory=list)
    call_ends: list[int] = field(default_factory=list)

    def append(self, records: Sequence[NewRecord], now_ms: int) -> int:
        """One call; returns its first offset."""
        first = self.end
        for record in records:
            timestamp = now_ms if record.timestamp < 0 else record.timestamp
            self.records.append(Record(self.end, timestamp, record.key, record.value, list(record.headers or [])))
            self.end += 1
        self.call_ends.append(self.end)
        return first

    def flush(self) -> None:
        """Everything appended so far is promised."""
        self.flushed = self.end

    def read(self, start: int, end: int | None = None) -> list[Record]:
        """Records from ``start`` to below ``end``."""
        limit = self.end if end is None else end
        return [record for record in self.records if start <= record.offset < limit]

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record, by offset, at or after ``timestamp``."""
        for record in self.records:
            if record.timestamp >= timestamp:
                return record.offset, record.timestamp
        return None

    def delete_before(self, offset: int) -> None:
        """Records below ``offset`` are gone."""
        self.start = max(self.start, offset)
        self.records = [record for record in self.records if record.offset >= self.start]

    def power_cut(self, end: int) -> None:
        """The log came back ending at ``end``: legal if nothing promised is missing and no call is cut in two."""
        if not self.flushed <= end <= self.end:
            raise AssertionError(f"came back with end {end}; promised {self.flushed}, appended {self.end}")
        if end not in (self.start, self.flushed, *self.call_ends):
            raise AssertionError(f"came back with end {end}, in the middle of a call")
        self.records = [record for record in self.records if record.offset < end]
        self.call_ends = [call_end for call_end in self.call_ends if call_end <= end]
        self.end = end
