"""Directories on their way out: renamed ``{topic}-{p}.{uuid}-delete``, removed when their delay is over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from tiered.clock import IdSource
from tiered.errors import ConfigError, TieredError
from tiered.format.keys import partition_dir, renamed_dir
from tiered.local.disk.files import Files
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")


class LeavingDirectories:
    """Thread-safe. What is found at an open has waited long enough: it is due at once."""

    def __init__(self, directory: Path, files: Files, ids: IdSource) -> None:
        self._directory = directory
        self._files = files
        self._ids = ids
        self._lock = threading.Lock()
        self._due: dict[Path, int] = {}

    @property
    def waiting(self) -> list[Path]:
        """Renamed directories that are not removed yet."""
        with self._lock:
            return sorted(self._due)

    def rename(self, tp: TopicPartition, due_ms: int) -> Path:
        """The partition's directory leaves its name, durably; returns the new path. Nothing in it may be open."""
        source = self._directory / partition_dir(tp)
        target = self._directory / renamed_dir(tp, self._ids.uid(), "delete")
        self._files.rename(source, target)
        self._files.sync_directory(self._directory)
        with self._lock:
            self._due[target] = due_ms
        return target

    def found(self, names: Iterable[str]) -> None:
        """Directories that a process before this one has renamed."""
        with self._lock:
            self._due.update((self._directory / name, 0) for name in names)

    def remove_due(self, now_ms: int) -> int | None:
        """Removes what is due, oldest first; returns the bytes, None if nothing was due.

        What fails is tried again; the first error is raised after all.
        """
        with self._lock:
            due = [path for path, due_ms in self._due.items() if due_ms <= now_ms]
        first: TieredError | None = None
        size = 0
        for path in due:
            try:
                size += remove_tree(self._files, path)
            except TieredError as error:
                first = first or error
                continue
            with self._lock:
                self._due.pop(path, None)
            LOGGER.info("directory_removed path=%s", path)
        if first is not None:
            raise first
        return size if due else None


def remove_tree(files: Files, path: Path) -> int:
    """A partition directory and the files in it; returns their bytes.

    ConfigError if it holds a directory: that is nothing of a log's.
    """
    names = files.names(path)
    for name in names:
        if files.is_directory(path / name):
            raise ConfigError(f"{path} holds the directory {name}", hint="move it away; it is none of the log's")
    size = 0
    for name in names:
        state = files.state(path / name)
        size += state.size if state is not None else 0
        files.unlink(path / name)
    files.remove_directory(path)
    return size
