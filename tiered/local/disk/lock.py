"""Lock of a log directory: a file lock that ends with its process, and a note in the file that names the holder.

The lock is ``flock`` on the file, not its existence. A killed process leaves the file, without a lock. The content is
JSON for people and error messages (``pid``, ``host``, ``program``, ``since_ms``); Kafka's own ``.lock`` is empty.

A forked child inherits the open file. It closes its copy at once: otherwise it would hold the lock after its parent
released it or died.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import socket
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tiered.clock import Clock
from tiered.errors import DiskFullError, ForkedLogError, LockedError, NotFoundError
from tiered.format.kernels import PlainLock
from tiered.local.disk.directory_files import first_json
from tiered.local.disk.files import Files, FileState, translate
from tiered.times import format_time

LOCK_NAME = ".lock"
UPLOADER_LOCK_NAME = "tiered-uploader.lock"
SIDECAR_NAME = "tiered-sidecar"
"""File in a directory of links to a broker's files: a write here would be one into the broker's log."""

NOTE_BYTES = 4096
"""Length limit of a note."""

LOOK_SECONDS = 0.02
"""Interval in seconds between attempts to take a lock that another process has."""

UNNAMED_HOLDER_SECONDS = 0.2
"""Longest wait in seconds for a holder that wrote no note."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Process that holds the lock, as the text in the lock file names it. Fields are 0 or empty without such a text.

    ``passing``: True if it releases the lock soon by itself, such as an uploader that seals.
    """

    pid: int = 0
    host: str = ""
    program: str = ""
    since_ms: int = 0
    passing: bool = False

    def __str__(self) -> str:
        return (
            f"process {self.pid} on {self.host} ({self.program}), since {format_time(self.since_ms)}"
            if self.pid
            else "another process"
        )


class LockTerms(NamedTuple):
    """Options for taking a lock. ``patience_seconds``: longest wait for a holder that will release the lock soon.

    ``passing``: True writes into the lock file that this process will release it soon. ``standby``: True allows a
    directory that follows a bucket, in order to promote it.
    """

    patience_seconds: float = 0.0
    passing: bool = False
    standby: bool = False


class DirectoryLock:
    """Exclusive lock on the file ``name`` in ``directory``, between processes and between objects of one process.

    It is not reentrant: a second :meth:`acquire` of the same object raises LockedError.
    """

    def __init__(self, directory: Path, files: Files, *, name: str = LOCK_NAME) -> None:
        self.path = directory / name
        self._files = files
        self._handle: int | None = None
        self._locked = False
        self._file: tuple[int, int] | None = None
        self._state: FileState | None = None
        self._owner = 0
        self._note: dict[str, Any] = {}
        self._changing = PlainLock()  # a signal handler may sync while this thread takes or releases the lock

    def acquire(self, clock: Clock, terms: LockTerms = LockTerms()) -> None:  # noqa: B008 - it never changes
        """Take the lock or raise LockedError, which names the holder.

        Waits up to ``terms.patience_seconds`` for a holder that will release the lock soon (:attr:`Holder.passing`). At
        most ``UNNAMED_HOLDER_SECONDS`` of this are for a holder whose name is not in the lock file: it may be about to
        write it, or it is a broker, which writes none. Waits for no other holder. Raises LockedError also for a
        directory of links to a broker's files (``tiered-sidecar``).
        """
        if self.path.name == LOCK_NAME and self._files.state(self.path.parent / SIDECAR_NAME) is not None:
            raise LockedError(
                f"{self.path.parent} cannot be opened for writing: it holds links to the files of a broker",
                hint="open it read-only; to start over, stop `tiered-uploader run --sidecar`, then remove the "
                "directory",
            )
        begun = clock.monotonic()
        while (handle := self._try()) is None:
            holder = self.holder()
            patience = terms.patience_seconds if holder.passing else 0.0 if holder.pid else UNNAMED_HOLDER_SECONDS
            if clock.monotonic() - begun >= min(patience, terms.patience_seconds):
                hint = "stop that process, or open the directory read-only"
                if holder.passing:
                    hint = "it is an uploader that seals idle segments: try again in a moment"
                elif self.path.name == LOCK_NAME and self._is_held_here():
                    hint = (
                        f"tiered.Log.opened({str(self.path.parent)!r}) returns the open log; close it to open another"
                    )
                    raise LockedError(f"{self.path.parent} is open in this process already: {holder}", hint=hint)
                raise LockedError(f"{self.path.parent} is held by {holder}", hint=hint)
            clock.sleep(LOOK_SECONDS)
        self._note = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "program": _program(),
            "since_ms": clock.now_ms(),
            **({"passing": True} if terms.passing else {}),
        }
        try:
            self._write_note(handle)  # the rest of a longer one of the dead stays
        except BaseException:
            with self._changing:
                self._release()
            raise

    def _write_note(self, handle: int) -> int:
        """Write the note and return its length. On a full disk the lock is held without a note."""
        data = json.dumps(self._note).encode() + b"\n"
        try:
            self._files.write_at(handle, data, 0)
        except DiskFullError:  # `tiered disk drop` needs the lock to make room
            self._files.truncate(handle, 0)
            return 0
        return len(data)

    def _try(self) -> int | None:
        """Take the lock and return the file's handle. None: another process, another object or this object has it."""
        with self._changing:
            if self._locked:
                return None
            self._release()  # the file of an acquire that an interrupt ended
            self._owner = os.getpid()
            self._handle = handle = self._files.open_lock(self.path)  # noted first: an interrupt loses no locked file
            self._file = _file_of(handle)
            if not self._files.try_lock(handle, self.path):
                self._release()
                return None
            self._state = self._files.state(self.path)
            _HELD.add(self)
            self._locked = True
            return handle

    @property
    def is_held(self) -> bool:
        """Return True while this object holds the lock."""
        return self._locked

    def check(self) -> None:
        """Raise LocalIOError if the directory was removed, or replaced by another, while this object holds the lock.

        Do nothing without the lock. Without this check, writes would continue in open files that were deleted.
        """
        if not self._locked or self._state is None:
            return
        now = self._files.state(self.path)
        if now is not None and now.inode == self._state.inode:
            return
        what = "the directory was removed while it was open" if now is None else "another directory is in its place"
        gone = translate(OSError(errno.ESTALE, what), "use", self.path.parent)
        gone.hint = "put the directory back, or restore it from the bucket with `tiered restore`; then start again"
        raise gone

    def _is_held_here(self) -> bool:
        """Return True if another object of this process has the lock."""
        try:
            state = self.path.stat()
        except OSError:
            return False
        return any(each._file == (state.st_dev, state.st_ino) for each in list(_HELD))

    def try_acquire(self, clock: Clock) -> bool:
        """Acquire the lock and return True. Return False if another process or object has it."""
        try:
            self.acquire(clock)
        except LockedError:
            return False
        return True

    @contextlib.contextmanager
    def held_while(self, clock: Clock) -> Iterator[None]:
        """Hold the lock for the duration of a block. Raises LockedError."""
        self.acquire(clock)
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Release the lock and empty the file. Do nothing without the lock.

        The file stays: removing it would let two processes lock two files of one name. Raises ReentrantCallError in a
        signal handler that interrupted this method.
        """
        if self._owner != os.getpid():
            self._release()  # a forked child closes its copy; the note stays
            return
        with self._changing:
            if self._handle is None:
                return
            try:
                if self._locked:
                    self._files.truncate(self._handle, 0)
            finally:
                self._release()

    def _release(self) -> None:
        _HELD.discard(self)
        self._locked = False
        if self._handle is None:
            return
        # An interrupt may have ended an earlier release before the close, or just after it: forgotten last, the lock
        # is released by the next call, and a number that is another file's by now stays open.
        if _file_of(self._handle) == self._file:
            self._files.close(self._handle)
        self._handle = None

    def add_note(self, **fields: str) -> None:
        """Add fields to the note in the lock file, while this object holds the lock.

        Other processes read it with :meth:`note`.
        """
        if self._handle is not None:
            self._note |= fields
            self._files.truncate(self._handle, self._write_note(self._handle))

    def note(self) -> dict[str, Any]:
        """Return the fields of the note in the lock file, empty if there is none or it is no JSON object."""
        try:
            note = first_json(self._files.read(self.path)[:NOTE_BYTES])
        except NotFoundError:
            return {}
        return note if isinstance(note, dict) else {}

    def holder(self) -> Holder:
        """Return the process that the note in the lock file names; an empty :class:`Holder` if it names none.

        The note may be of a process that has ended.
        """
        try:
            note = self.note()
            return Holder(
                int(note["pid"]),
                str(note["host"]),
                str(note["program"]),
                int(note["since_ms"]),
                note.get("passing") is True,
            )
        except (NotFoundError, ValueError, KeyError, TypeError):
            return Holder()


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()
"""Locks that this process holds."""


def _release_after_fork() -> None:
    for lock in list(_HELD):
        with contextlib.suppress(Exception):  # one that cannot be closed must not stop the others
            lock._release()


os.register_at_fork(after_in_child=_release_after_fork)


def _file_of(handle: int) -> tuple[int, int] | None:
    """Return device and inode of the open file ``handle``; None if this process has no such descriptor."""
    try:
        state = os.fstat(handle)
    except OSError:
        return None
    return state.st_dev, state.st_ino


@functools.cache
def _program() -> str:
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"


def forked_error(what: object, pid: int) -> ForkedLogError:
    """Return the error of a call in a forked process on ``what``, an object that process ``pid`` opened."""
    return ForkedLogError(
        f"{what} was opened by process {pid}; the forked process {os.getpid()} cannot use it",
        hint="open the log in the child, after the fork; the parent keeps writing",
    )


class _Forks:
    """Counter of forks: after a fork the child's value is one higher."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        """Count the fork that made this process."""
        self.count += 1


FORKS = _Forks()


os.register_at_fork(after_in_child=FORKS.add)
