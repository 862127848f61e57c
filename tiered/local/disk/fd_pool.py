"""Limit of the number of open files. A handle for writing that is not in use loses its descriptor to another handle.

::

    open_write ──> Lease (a number above every descriptor) ── used ──> descriptor open, dirty after a write
                                     ^                                      │ more leases than descriptors:
                                     └── reopened at the next use <── fsync, close: the one used longest ago

The fsync before the close is needed because the kernel reports a write error once, to descriptors that are open then.
If that fsync fails, every later use of the lease raises, and its partition goes offline. A file with another inode or
length than at the close is never reopened.

Handles for reading live as long as one read. They are not limited, and use the reserve of descriptors.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import NoReturn, TypeVar

from tiered.errors import LocalIOError, ReentrantCallError, TieredError, TooManyOpenFilesError
from tiered.format.kernels import PlainLock
from tiered.local.disk.files import Files, FileState, PosixFiles

T = TypeVar("T")

FIRST_LEASE = 1 << 32
"""Number of the first lease; the system's descriptors stay below."""

RESERVED_DESCRIPTORS = 256
"""Descriptors for the rest of the process: readers, sockets, locks, the application. Half of a smaller limit."""

MOST_OPEN_FILES = 16_384
"""Largest default limit of open files, also if the system allows more or sets no limit."""

LEAST_OPEN_FILES = 8
"""Smallest default limit of open files: an append may need a log and both of its indexes."""

EVICTED_AT_ONCE = 16
"""Number of descriptors that are closed together, so that one search serves several opens."""


def default_open_files() -> int:
    """Return the default limit of open files: the process's limit minus a reserve, within fixed bounds."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (resource.RLIM_INFINITY, -1):
        return MOST_OPEN_FILES
    return max(LEAST_OPEN_FILES, min(MOST_OPEN_FILES, soft - min(RESERVED_DESCRIPTORS, soft // 2)))


@dataclass(slots=True)
class Lease:
    """One handle for writing. ``descriptor``: -1 while it is closed. ``closed``: state of the file at its last close.

    ``used``: number of the last use; the lowest is the least recently used. ``dirty``: True if a write needs an fsync.
    ``failed``: the error after which the handle is unusable. ``lock`` is held during a write, never across a requested
    fsync. ``syncing`` allows one fsync at a time, and keeps the descriptor open. It is taken before ``lock``. None: no
    fsync was requested so far.
    """

    number: int
    path: Path
    descriptor: int
    used: int
    dirty: bool = False
    failed: TieredError | None = None
    closed: FileState | None = None
    lock: PlainLock = field(default_factory=PlainLock)
    syncing: PlainLock | None = None


_WITHOUT_LEASE = (
    *("rename", "link", "unlink", "remove_directory", "state", "set_modified", "is_directory", "space"),
    *("open_lock", "try_lock"),
)
"""Operations that need no lease, and go to the other disk."""


class PooledFiles(PosixFiles):
    """Wrapper of another disk that limits the descriptors for writing. Thread-safe.

    At most ``limit`` descriptors are open, unless more threads than that write at once. The tables need no lock: each
    change is a single step of a dict, so a signal handler in between never waits.
    """

    def __init__(self, inner: Files, limit: int) -> None:
        self.limit = limit
        self.inner = inner
        self._numbers = itertools.count(FIRST_LEASE)
        self._uses = itertools.count(1)
        self._leases: dict[int, Lease] = {}
        self._open: dict[int, Lease] = {}
        self.reopened = 0
        for name in _WITHOUT_LEASE:
            setattr(self, name, getattr(inner, name))

    @property
    def open_count(self) -> int:
        """Return the number of handles that have a descriptor now."""
        return len(self._open)

    def open_write(self, path: Path) -> int:
        if len(self._open) >= self.limit:
            self._make_room()
        lease = Lease(next(self._numbers), path, self._opened(self.inner.open_write, path), next(self._uses))
        self._leases[lease.number] = self._open[lease.number] = lease
        return lease.number

    def open_read(self, path: Path) -> int:
        return self._opened(self.inner.open_read, path)

    def sync_directory(self, path: Path) -> None:
        self._opened(self.inner.sync_directory, path)

    def make_directory(self, path: Path) -> None:
        self._opened(self.inner.make_directory, path)

    def names(self, path: Path) -> list[str]:
        return self._opened(self.inner.names, path)

    def modified_ns(self, folder: Path, names: Sequence[str]) -> list[int]:
        return self._opened(lambda place: self.inner.modified_ns(place, names), folder)

    def read(self, path: Path) -> bytes:
        return self._opened(self.inner.read, path)

    def replace(self, path: Path, data: bytes) -> FileState:
        return self._opened(lambda place: self.inner.replace(place, data), path)

    def patch(self, path: Path, data: bytes, position: int, *, sync: bool) -> None:
        self._opened(lambda place: self.inner.patch(place, data, position, sync=sync), path)

    def _opened(self, opening: Callable[[Path], T], path: Path) -> T:
        """Return the result of ``opening(path)``, which opens a file.

        If the system has no descriptor left, close some leases' descriptors and call it once more.
        """
        try:
            return opening(path)
        except TooManyOpenFilesError:
            self._make_room(spare=EVICTED_AT_ONCE)
            return opening(path)

    def close(self, handle: int) -> None:
        if handle < FIRST_LEASE:
            self.inner.close(handle)
            return
        lease = self._leases.pop(handle, None)
        self._open.pop(handle, None)
        if lease is None:
            return
        with self._syncing(lease), lease.lock:
            descriptor, lease.descriptor = lease.descriptor, -1
            if descriptor >= 0:
                self.inner.close(descriptor)

    def write_at(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> None:
        lease = self._leases.get(handle)
        if lease is None:
            if handle >= FIRST_LEASE:
                _closed(handle)
            self.inner.write_at(handle, data, position)
            return
        with lease.lock:
            if lease.descriptor < 0 or lease.failed is not None:
                self._reopen(lease)
            lease.used = next(self._uses)
            lease.dirty = True
            self.inner.write_at(lease.descriptor, data, position)

    def read_into(self, handle: int, buffer: bytearray | memoryview, position: int) -> int:
        if handle < FIRST_LEASE:
            return self.inner.read_into(handle, buffer, position)
        lease = self._leases.get(handle) or _closed(handle)
        with lease.lock:
            return self.inner.read_into(self._ready(lease), buffer, position)

    def size(self, handle: int) -> int:
        if handle < FIRST_LEASE:
            return self.inner.size(handle)
        lease = self._leases.get(handle) or _closed(handle)
        with lease.lock:
            return self.inner.size(self._ready(lease))

    def truncate(self, handle: int, size: int) -> None:
        if handle < FIRST_LEASE:
            self.inner.truncate(handle, size)
            return
        lease = self._leases.get(handle) or _closed(handle)
        with lease.lock:
            descriptor = self._ready(lease)
            lease.dirty = True
            self.inner.truncate(descriptor, size)

    def sync(self, handle: int) -> None:
        """Fsync the file of ``handle``. After an error the handle is unusable.

        A write that runs at the same time needs another fsync.
        """
        if handle < FIRST_LEASE:
            self.inner.sync(handle)
            return
        lease = self._leases.get(handle) or _closed(handle)
        with self._syncing(lease):
            synced = False
            try:
                with lease.lock:
                    descriptor, lease.dirty = self._ready(lease), False
                self._sync(lease, descriptor)
                # mutant write-during-fsync-is-dirty
                synced = True
            finally:
                if not synced:
                    lease.dirty = True

    def _syncing(self, lease: Lease) -> PlainLock:
        with lease.lock:
            if lease.syncing is None:
                lease.syncing = PlainLock()
            return lease.syncing

    def _sync(self, lease: Lease, descriptor: int) -> None:
        try:
            self.inner.sync(descriptor)
        except ReentrantCallError:  # a signal handler interrupted this: the file is not at fault
            raise
        except TieredError as error:
            # mutant failed-fsync-stays-failed
            lease.failed = error
            raise

    def _ready(self, lease: Lease) -> int:
        """Return the lease's descriptor; open it again if it was closed. The caller holds the lease's lock."""
        lease.used = next(self._uses)
        if lease.descriptor < 0 or lease.failed is not None:
            self._reopen(lease)
        return lease.descriptor

    def _reopen(self, lease: Lease) -> None:
        if lease.failed is not None:
            raise LocalIOError(
                f"{lease.path}: an earlier fsync or close failed: {lease.failed.message}", hint=lease.failed.hint
            ) from lease.failed
        if lease.number not in self._leases:  # a thread that had it in hand
            raise LocalIOError(f"{lease.path} was closed before", hint="open the log again")
        self._make_room(lease)
        now = self.inner.state(lease.path)
        was = lease.closed
        if now is None or was is None or (now.inode, now.size) != (was.inode, was.size):
            lease.failed = LocalIOError(
                f"{lease.path} was changed, replaced or removed by another program while the log was open",
                hint="stop the other program, then open the log again: only one process may write in a log directory",
            )
            raise lease.failed
        lease.descriptor = self._opened(self.inner.open_write, lease.path)
        self._open[lease.number] = lease
        self.reopened += 1

    def _make_room(self, wanting: Lease | None = None, *, spare: int = 0) -> None:
        """Close the least recently used descriptors, so that one more fits into the limit.

        ``spare``: least number to close, even if one more fits. Descriptors in use, and that of ``wanting``, stay open.
        """
        over = max(len(self._open) + 1 - self.limit, spare)
        if over <= 0:
            return
        idle = heapq.nsmallest(
            max(over, min(EVICTED_AT_ONCE, self.limit // 4)),
            (lease for lease in list(self._open.values()) if lease is not wanting),
            key=attrgetter("used"),
        )
        for lease in idle:
            with contextlib.suppress(ReentrantCallError):  # in use by the call that this one interrupted
                if lease.lock.hold(0):  # unlike ``acquire``: free again with this frame, wherever an interrupt comes
                    try:
                        if lease.syncing is None or not lease.syncing.locked():
                            self._give_up(lease)
                    finally:
                        lease.lock.release()

    def _give_up(self, lease: Lease) -> None:
        descriptor = lease.descriptor
        if descriptor < 0:
            return
        try:
            if lease.dirty and lease.failed is None:
                self.inner.sync(descriptor)
                lease.dirty = False
            lease.closed = self.inner.state(lease.path)
        except TieredError as error:
            lease.failed = lease.failed or error
        lease.descriptor = -1
        self._open.pop(lease.number, None)
        self.inner.close(descriptor)


def _closed(handle: int) -> NoReturn:
    raise LocalIOError(f"file handle {handle} cannot be used: it was closed before", hint="open the log again")
