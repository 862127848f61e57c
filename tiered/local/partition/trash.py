"""Files on their way out of one partition: renamed ``.deleted``, unlinked after ``file.delete.delay.ms``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from tiered.clock import Clock
from tiered.errors import TieredError
from tiered.local.disk.files import Files
from tiered.local.segment.sealed import SealedLocalSegment


class Trash:
    """Reads that began before go on in a renamed file. ``lock`` is the partition's: held by whoever puts files in."""

    def __init__(self, files: Files, clock: Clock, lock: threading.Lock) -> None:
        self.delay_ms = 0
        self._files = files
        self._clock = clock
        self._lock = lock
        self._waiting: list[tuple[int, Path]] = []

    def throw_away(self, segments: Iterable[SealedLocalSegment]) -> None:
        """Renames their files. The lock is held."""
        for segment in segments:
            self.put(segment.rename_away())

    def put(self, paths: Sequence[Path]) -> None:
        """Files that have their new names already. The lock is held."""
        due_ms = self._clock.now_ms() + self.delay_ms
        self._waiting += [(due_ms, path) for path in paths]

    @property
    def size_bytes(self) -> int:
        """Bytes of the files that wait."""
        with self._lock:
            waiting = [path for _, path in self._waiting]
        states = (self._files.state(path) for path in waiting)
        return sum(state.size for state in states if state is not None)

    def empty(self, now_ms: int) -> int | None:
        """Unlinks what is due; returns its bytes, None without any.

        What cannot be unlinked is tried again; the error is raised after all were tried.
        """
        with self._lock:
            due = [entry for entry in self._waiting if entry[0] <= now_ms]
            self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
        failed: TieredError | None = None
        size = 0
        for entry in due:
            try:
                state = self._files.state(entry[1])
                self._files.unlink(entry[1])
                size += state.size if state is not None else 0
            except TieredError as error:
                failed = failed or error
                with self._lock:
                    self._waiting.append(entry)
        if failed is not None:
            raise failed
        return size if due else None
