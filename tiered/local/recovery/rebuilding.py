"""What a recovery learns from the good batches of one segment: its indexes, and where leader epochs begin."""

from __future__ import annotations

from tiered.format.header import BatchHeader
from tiered.format.walk import Span
from tiered.local.segment.indexes import SegmentIndexes
from tiered.model import EpochEntry


class Rebuilding:
    """``indexes`` cover what is known to be good already; ``epoch`` is the newest that the log knows of."""

    def __init__(self, indexes: SegmentIndexes, *, interval_bytes: int, epoch: int) -> None:
        self.indexes = indexes
        self.epochs: list[EpochEntry] = []
        self._interval = interval_bytes
        self._since = 0
        self._known_epoch = epoch
        self._largest, self._at = indexes.last_time

    def add(self, span: Span, header: BatchHeader, *, intact: bool) -> None:
        """The next good batch. ``intact``: so are all before it, so that its epoch counts."""
        if header.max_timestamp > self._largest:
            self._largest, self._at = header.max_timestamp, span.last_offset
        if self._since > self._interval:
            self.indexes.append(span.last_offset, span.position, self._largest, self._at)
            self._since = 0
        self._since += span.size
        if intact and header.leader_epoch > (self.epochs[-1].epoch if self.epochs else self._known_epoch):
            self.epochs.append(EpochEntry(header.leader_epoch, span.base_offset))

    def take_back(self, offset: int) -> None:
        """What was learnt from ``offset`` on came from a batch that was not where it said."""
        self.indexes.truncate_to(offset)
        self.epochs = [entry for entry in self.epochs if entry.start_offset < offset]
        if self._at >= offset:
            self._largest, self._at = self.indexes.last_time

    def finish(self) -> SegmentIndexes:
        """The indexes with their closing entry."""
        self.indexes.close_times(self._largest, self._at)
        return self.indexes
