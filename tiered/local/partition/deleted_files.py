"""Deletion of files after a delay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tiered.clock import Clock
from tiered.errors import TieredError
from tiered.local.disk.files import Files
from tiered.local.disk.plain_lock import PlainLock
from tiered.local.segment.sealed import SealedLocalSegment


class DeletedFiles:
    """``.deleted`` files of one partition, which are unlinked after ``file.delete.delay.ms``.

    A read that is in progress goes on in the renamed file. ``lock`` is the partition's; callers that add files hold it.
    """

    __slots__ = ("_clock", "_files", "_lock", "_waiting", "delay_ms")

    def __init__(self, files: Files, clock: Clock, lock: PlainLock) -> None:
        self.delay_ms = 0
        self._files = files
        self._clock = clock
        self._lock = lock
        self._waiting: list[tuple[int, Path]] = []

    def throw_away(self, segments: Iterable[SealedLocalSegment]) -> None:
        """Rename the files of ``segments`` and add them. The lock is held."""
        for segment in segments:
            self.put(segment.rename_away())

    def put(self, paths: Sequence[Path]) -> None:
        """Add files that are renamed already. The lock is held."""
        due_ms = self._clock.now_ms() + self.delay_ms
        self._waiting += [(due_ms, path) for path in paths]

    @property
    def size_bytes(self) -> int:
        """Return the size of the files that are not unlinked yet."""
        with self._lock:
            waiting = [path for _, path in self._waiting]
        states = (self._files.state(path) for path in waiting)
        return sum(state.size for state in states if state is not None)

    def empty(self, now_ms: int) -> int | None:
        """Unlink the files whose delay is over. Return their bytes, None if there was none.

        A file that cannot be unlinked is tried again by the next call. The error is raised after all were tried.
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
