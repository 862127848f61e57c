"""``cleaner-offset-checkpoint``: up to where each compacted partition was cleaned. Kafka's file, in memory as well."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

from tiered.local.disk.checkpoints import CLEANER_NAME, OffsetsFile
from tiered.local.disk.files import Files
from tiered.model import TopicPartition


class CleanerCheckpoint:
    """Thread-safe; read once, since only one process writes the directory. Every change is durable on return."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._file = OffsetsFile(directory, CLEANER_NAME, files)
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, int] | None = None

    def offset(self, tp: TopicPartition) -> int | None:
        """The first dirty offset; None: never cleaned."""
        with self._lock:
            return self._offsets().get(tp)

    def store(self, tp: TopicPartition, offset: int, held: Collection[TopicPartition]) -> None:
        """``offset`` is the first dirty one of ``tp``. Entries of partitions that are not in ``held`` go."""
        with self._lock:
            kept = {other: known for other, known in self._offsets().items() if other in held}
            self._write({**kept, tp: offset})

    def adopt(self, tp: TopicPartition, offset: int | None) -> None:
        """A partition that came from another directory, and what was noted there."""
        with self._lock:
            others = {other: known for other, known in self._offsets().items() if other != tp}
            if offset is not None:
                self._write({**others, tp: offset})
            elif tp in self._offsets():
                self._write(others)

    def lower(self, tp: TopicPartition, offset: int) -> None:
        """The log is about to be cut at ``offset``: what is appended from there on was never cleaned."""
        with self._lock:
            known = self._offsets()
            if known.get(tp, -1) > offset:
                self._write({**known, tp: offset})

    def keep(self, held: Collection[TopicPartition]) -> None:
        """Forgets partitions that are not in ``held``: others may get their names."""
        with self._lock:
            known = self._offsets()
            kept = {tp: offset for tp, offset in known.items() if tp in held}
            if len(kept) < len(known):
                self._write(kept)

    def _offsets(self) -> dict[TopicPartition, int]:
        if self._known is None:
            self._known = self._file.read()
        return self._known

    def _write(self, offsets: dict[TopicPartition, int]) -> None:
        self._file.write(offsets)
        self._known = offsets
