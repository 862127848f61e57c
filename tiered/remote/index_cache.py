"""Index bundles of remote segments on disk, so that a restart need not fetch them again.

::

    remote-log-index-cache/
      4711_0d9f8c7e6b5a4c3d8e1f2a3b4c5d6e7f.idx     base offset and uid of the segment
      *.tmp                                          being written; thrown away by the next open
      *.deleted                                      on its way out; the same

A name is never used for other bytes, so an entry cannot be stale; what is read is verified by whoever asks, who calls
:meth:`IndexCache.drop` for what is damaged. Losing a file costs one request.

Kafka's rule: docs/kafka-semantics.md#index-cache.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

from tiered.errors import ClosedError

CACHE_DIRECTORY = "remote-log-index-cache"
"""Kafka's name for it inside of a log directory, where it is exempt from being a partition."""

CACHE_BYTES = 1024 * 1024 * 1024
"""Kafka's ``remote.log.index.file.cache.total.size.bytes``."""

SUFFIX = ".idx"


def entry_name(key: str) -> str:
    """What the bundle at ``key`` (``.../{base:020d}-{uid}.idx``) is called here: ``{base}_{uid}``."""
    base, _, uid = key.rpartition("/")[2].removesuffix(SUFFIX).partition("-")
    return f"{int(base)}_{uid}"


class IndexCache:
    """Least recently used files first out, bounded by ``max_bytes``. Thread-safe; one process at a time.

    Raises OSError as the disk does; the caller may go on without a cache.
    """

    def __init__(self, directory: Path, max_bytes: int = CACHE_BYTES) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False
        directory.mkdir(parents=True, exist_ok=True)
        self._load()

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(self._sizes.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Entries, the one that goes first first."""
        return tuple(self._sizes)

    def read(self, name: str) -> bytes | None:
        """The bundle, None if it is not held."""
        with self._lock:
            self._check_open()
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
            try:
                return self._path(name).read_bytes()
            except FileNotFoundError:
                del self._sizes[name]
                return None

    def keep(self, name: str, data: bytes) -> None:
        """Keeps a bundle, at the cost of those not used for longest; one larger than the cache is not kept."""
        with self._lock:
            self._check_open()
            if len(data) > self._max_bytes:
                return
            temporary = self._path(name).with_suffix(SUFFIX + ".tmp")
            temporary.write_bytes(data)
            temporary.replace(self._path(name))
            self._sizes[name] = len(data)
            self._sizes.move_to_end(name)
            self._shrink()

    def drop(self, name: str) -> None:
        """Forgets a bundle that is not what its checksums say."""
        with self._lock:
            if self._sizes.pop(name, None) is not None:
                self._remove(name)

    def close(self) -> None:
        """Files stay for the next open; every other call raises ClosedError from now on."""
        self._closed = True

    def _load(self) -> None:
        found = []
        for entry in os.scandir(self.directory):
            if entry.name.endswith(SUFFIX):
                state = entry.stat()
                found.append((state.st_mtime_ns, entry.name.removesuffix(SUFFIX), state.st_size))
            elif entry.name.endswith((".tmp", ".deleted")):
                Path(entry.path).unlink(missing_ok=True)
        self._sizes.update((name, size) for _, name, size in sorted(found))
        self._shrink()

    def _shrink(self) -> None:
        size = self.size_bytes
        while size > self._max_bytes:
            name, gone = self._sizes.popitem(last=False)
            size -= gone
            self._remove(name)

    def _remove(self, name: str) -> None:
        """Renamed first: a reader that has it open reads on, and a crash in between leaves nothing that counts."""
        away = self._path(name).with_suffix(SUFFIX + ".deleted")
        try:
            self._path(name).replace(away)
        except FileNotFoundError:
            return
        away.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.directory / (name + SUFFIX)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the index cache {self.directory} was closed before")
