"""The high watermark of one partition: below it every record is on every replica."""

from __future__ import annotations

from pathlib import Path

from tiered.local.disk.files import Files
from tiered.local.partition.log_segments import LogSegments

WATERMARK_NAME = "tiered-follows"
"""Empty file in a partition whose high watermark somebody else tells; in all others it is the end."""


class HighWatermark:
    """Changed under the partition's lock. ``told``: as a leader or followers told it; None: the log is alone."""

    def __init__(self, files: Files, directory: Path, segments: LogSegments, *, noted: int | None) -> None:
        """``noted``: as it was checkpointed, None if it was not."""
        self.told: int | None = None
        self._files = files
        self._mark = directory / WATERMARK_NAME
        self._segments = segments
        if files.state(self._mark) is not None:
            self.told = segments.log_start if noted is None else noted

    @property
    def offset(self) -> int:
        """Of a log that has no leader above it and no followers: its end."""
        told, segments = self.told, self._segments
        return segments.end if told is None else max(min(told, segments.end), segments.log_start)

    def tell(self, offset: int | None) -> None:
        """From now on it moves only by being told, between log start and end. None: it is the end again."""
        if offset is None and self.told is not None:
            self._files.unlink(self._mark)
        elif offset is not None and self.told is None:
            self._files.replace(self._mark, b"")
        self.told = None if offset is None else max(min(offset, self._segments.end), self._segments.log_start)

    def cut(self, offset: int) -> None:
        """The log ends at ``offset`` now."""
        if self.told is not None:
            self.told = min(self.told, offset)

    def start_again(self, offset: int) -> None:
        """The log is empty and begins at ``offset``."""
        if self.told is not None:
            self.told = offset
