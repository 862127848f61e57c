"""All operations on the local disk, in one place, so that tests can simulate torn writes, errors and crashes.

Errors of the operating system are translated here only. No space: DiskFullError. A missing file: NotFoundError. Owner
and mode: LocalPermissionError. All others: LocalIOError. Each error names the path and the operation.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from tiered.errors import (
    ConfigError,
    DiskFullError,
    LocalIOError,
    LocalPermissionError,
    NotFoundError,
    TieredError,
    TooManyOpenFilesError,
)

T = TypeVar("T")

MAX_SMALL_FILE_BYTES = 64 * 1024 * 1024
"""Largest checkpoint, index or JSON file that is read."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_OPENING = ("open", "read", "list")
"""Operations that begin with an open. If that fails for want of a descriptor, nothing was done."""
_NAMING = ("unlink", "rename", "rmdir")
"""Operations on the name of an existing file: the mode of its directory decides."""

_BROKEN = frozenset(
    getattr(errno, name, errno.EIO)  # not every system has them all
    for name in ("EIO", "ENXIO", "ENODEV", "EROFS", "ESTALE", "EUCLEAN", "EREMOTEIO")
)
"""Errors that show a failing disk."""


TEMPORARY_SUFFIX = ".tmp"
_TEMPORARY = re.compile(r"(?P<name>.+)\.\d+-\d+\.tmp", re.DOTALL)
_TURN = itertools.count()
"""Counter for temporary names, because several threads may replace one file at the same time."""


class DiskSpace(NamedTuple):
    """Bytes of a file system, as ``df`` counts: ``free`` without privileges, ``total`` without root's reserve."""

    free: int
    total: int


class FileState(NamedTuple):
    """Size in bytes, modification time and inode of a file. A different value shows that the file was changed."""

    size: int
    modified_ns: int
    inode: int


def _modified_ns(name: str, folder: int) -> int:
    try:
        return os.stat(name, dir_fd=folder).st_mtime_ns  # thousands of them at each look: neither a Path nor its join
    except OSError:
        return -1


class PosixFiles:
    """Operations on files of the real disk. Handles are file descriptors. Positions and lengths are in bytes."""

    def open_write(self, path: Path) -> int:
        """Open a file for reading and writing, and return its handle. A missing file is created."""
        with _translated("open", path):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def open_read(self, path: Path) -> int:
        """Open a file for reading, and return its handle. Raises NotFoundError if there is no such file."""
        with _translated("open", path):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        """Close a handle."""
        os.close(handle)

    def write_at(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of ``data`` at ``position``. On an error any part of it may have been written."""
        try:
            written = os.pwrite(handle, data, position)
            while written < len(data):  # a full disk or a signal may cut a write short
                more = os.pwrite(handle, memoryview(data)[written:], position + written)
                # mutant short-write-goes-on
                if more == 0:
                    raise OSError(errno.EIO, "nothing was written")
                written += more
        except OSError as error:
            raise translate(error, "write", _name(handle)) from error

    def read_into(self, handle: int, buffer: bytearray | memoryview, position: int) -> int:
        """Fill ``buffer`` with the bytes at ``position``. Return their number.

        The number is lower than the length of ``buffer`` only at the end of the file.
        """
        view = memoryview(buffer)
        filled = 0
        try:
            while filled < len(view):
                count = os.preadv(handle, [view[filled:]], position + filled)
                if count == 0:
                    break
                filled += count
        except OSError as error:
            raise translate(error, "read", _name(handle)) from error
        return filled

    def size(self, handle: int) -> int:
        """Return the length of an open file."""
        return os.fstat(handle).st_size

    def truncate(self, handle: int, size: int) -> None:
        """Set the file's length to ``size``. A shorter file is extended with zeros."""
        with _translated("truncate", handle):
            os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """Fsync the file, so that its data and length survive a power cut.

        After an error, never call this on the file again: the kernel may have dropped the data and report success.
        """
        with _translated("fsync", handle):
            os.fdatasync(handle)

    def sync_directory(self, path: Path) -> None:
        """Fsync the directory, so that created, renamed and removed names in it survive a power cut."""
        with _translated("open", path):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _translated("fsync the directory", path):
                os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically. An existing ``target`` is replaced."""
        with _translated("rename", source):
            source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """Make ``target`` a hard link to ``source``.

        Raises NotFoundError if ``source`` is missing, LocalIOError if ``target`` exists.
        """
        with _translated("link", source):
            target.hardlink_to(source)

    def unlink(self, *paths: Path) -> None:
        """Remove files, one after the other. A missing file is no error."""
        for path in paths:
            try:
                os.unlink(path)  # noqa: PTH108 - half the time of Path.unlink, for files that are seldom there
            except FileNotFoundError:
                pass
            except OSError as error:
                raise translate(error, "unlink", path) from error

    def make_directory(self, path: Path) -> None:
        """Create a directory and its missing parents, durably. An existing directory is no error."""
        with _translated("mkdir", path):
            missing = [place for place in (path, *path.parents) if not place.exists()]
            path.mkdir(parents=True, exist_ok=True)
        try:
            for place in reversed(missing):  # otherwise files flushed into it may vanish with its name
                # mutant new-directory-is-fsynced
                self.sync_directory(place.parent)
        except TooManyOpenFilesError:
            with contextlib.suppress(OSError):  # a retry would find it there, and fsync nothing
                for place in missing:
                    place.rmdir()
            raise

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory. If ``path`` is a link to a directory, remove both."""
        with _translated("rmdir", path):
            if path.is_symlink():  # a partition on another disk
                path.resolve().rmdir()
                path.unlink()
                return
            path.rmdir()

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted. Raises NotFoundError if there is no such directory."""
        with _translated("list", path):
            return sorted(os.listdir(path))  # noqa: PTH208 - a Path for each of thousands costs ten times as much

    def state(self, path: Path) -> FileState | None:
        """Return size, modification time and inode of a file, None if it does not exist."""
        try:
            state = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise translate(error, "stat", path) from error
        return FileState(state.st_size, state.st_mtime_ns, state.st_ino)

    def modified_ns(self, folder: Path, names: Sequence[str]) -> list[int]:
        """Return the modification time of each of ``names`` in ``folder``, -1 for a missing file."""
        with _translated("open", folder):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return [_modified_ns(name, handle) for name in names]
        finally:
            os.close(handle)

    def set_modified(self, path: Path, modified_ms: int) -> None:
        """Set the modification time, so that a compacted segment keeps the age of the old one."""
        with _translated("touch", path):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def is_directory(self, path: Path) -> bool:
        """Return True if ``path`` is a directory. False if it is missing or a file."""
        return path.is_dir()

    def read(self, path: Path) -> bytes:
        """Return the whole content of a small file.

        Raises NotFoundError if there is no such file, LocalIOError if it is larger than MAX_SMALL_FILE_BYTES.
        """
        try:
            with path.open("rb") as file:
                data = file.read(MAX_SMALL_FILE_BYTES + 1)
        except OSError as error:
            raise translate(error, "read", path) from error
        if len(data) > MAX_SMALL_FILE_BYTES:
            raise LocalIOError(
                f"cannot read {path}: it is larger than {MAX_SMALL_FILE_BYTES} bytes",
                hint="put the file back from a copy: this log never writes such a large one",
            )
        return data

    def replace(self, path: Path, data: bytes) -> FileState:
        """Replace the content of the file by ``data``, durably, and return its new state.

        A temporary file is written, fsynced and renamed, then the folder is fsynced. After an error the file has its
        old content. Only if the last fsync failed, it has the new content, which a power cut may undo.
        """
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{next(_TURN)}{TEMPORARY_SUFFIX}")
        try:
            handle = self.open_write(temporary)
            try:
                self.write_at(handle, data, 0)
                state = os.fstat(handle)
                if state.st_size > len(data):  # a process that had our number died over it
                    self.truncate(handle, len(data))
                    state = os.fstat(handle)
                # mutant replaced-file-is-fsynced
                self.sync(handle)
            finally:
                self.close(handle)
            self.rename(temporary, path)
        except TieredError:
            with contextlib.suppress(TieredError):  # otherwise the next open sweeps it
                self.unlink(temporary)
            raise
        # mutant replaced-name-is-fsynced
        self.sync_directory(path.parent)
        return FileState(state.st_size, state.st_mtime_ns, state.st_ino)

    def patch(self, path: Path, data: bytes, position: int, *, sync: bool) -> None:
        """Write ``data`` at ``position`` of a small file, and end the file after it. A missing file is created.

        ``sync``: fsync the file afterwards.
        """
        file = self.open_write(path)
        try:
            if os.fstat(file).st_size > position:
                self.truncate(file, position)
            self.write_at(file, data, position)
            if sync:
                # mutant claim-line-is-fsynced
                self.sync(file)
        finally:
            self.close(file)

    def open_lock(self, path: Path) -> int:
        """Open a file for :meth:`try_lock`, and return its handle. A missing file is created."""
        return self.open_write(path)

    def try_lock(self, handle: int, path: Path) -> bool:
        """Lock the file until ``handle`` is closed. Return False if another handle has the lock.

        ``path``: the file's name in errors.
        """
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise translate(error, "lock", path) from error
        return True

    def space(self, path: Path) -> DiskSpace | None:
        """Return free and total bytes of the file system, None if it reports no size (ramfs, some of FUSE)."""
        with _translated("statvfs", path):
            stats = os.statvfs(path)
        if not stats.f_blocks:
            return None
        total = stats.f_blocks - stats.f_bfree + stats.f_bavail
        return DiskSpace(stats.f_bavail * stats.f_frsize, total * stats.f_frsize)


Files = PosixFiles
"""Type of a disk: the real one, a pool over it, or one of a test that fails."""


class SmallFile(Generic[T]):
    """Small file with a cache of its parsed content. The file is read again after its size, time or inode changed.

    ``parse`` converts the bytes of the file to its content.
    """

    def __init__(self, path: Path, files: Files, parse: Callable[[bytes], T]) -> None:
        self.path = path
        self._files = files
        self._parse = parse
        self._known: tuple[FileState, T] | None = None  # one tuple: threads read it without a lock

    def load(self) -> T | None:
        """Return the parsed content, None without a file. Raises the errors of ``parse``.

        An unchanged file costs one ``stat``.
        """
        state = self._files.state(self.path)  # from before the read, so that a later change is read again
        if state is None:
            return None
        known = self._known
        if known is None or known[0] != state:
            try:
                known = self._known = state, self._parse(self._files.read(self.path))
            except NotFoundError:
                return None
        return known[1]

    def store(self, data: bytes, value: T) -> None:
        """Replace the file, durably, by ``data``, whose parsed form is ``value``."""
        self._known = self._files.replace(self.path, data), value


def sweep_temporaries(files: Files, directory: Path, *, of: tuple[str, ...] = ("",), but: tuple[str, ...] = ()) -> None:
    """Remove the temporary files that a crash inside :meth:`Files.replace` left in ``directory``.

    ``of``: only those of files whose names begin with one of these prefixes. The caller has the lock under which these
    files are replaced. ``but``: prefixes of files to skip, because other processes replace them.
    """
    for name in files.names(directory):
        found = _TEMPORARY.fullmatch(name)
        if found is not None and found["name"].startswith(of) and not (but and found["name"].startswith(but)):
            files.unlink(directory / name)


def translate(error: OSError, operation: str, path: Path | str) -> TieredError:
    """Return ``error`` as an error of this product. ``operation`` (a verb, as "open") and ``path`` name the failure."""
    found = _translation(error, operation, path)
    found.__cause__ = error
    return found


def _translation(error: OSError, operation: str, path: Path | str) -> TieredError:
    text = f"cannot {operation} {path}: {error.strerror or error}"
    if error.errno in _NO_SPACE:
        return DiskFullError(text, hint="free some space: `tiered disk drop TOPIC --remote URL` deletes local copies")
    if error.errno == errno.ENOTDIR:
        return NotFoundError(text, hint="correct the path: a part of it is a file, not a directory")
    if error.errno == errno.ENOENT:
        return NotFoundError(text)
    if error.errno == errno.EEXIST and operation == "mkdir":  # a failed directory: of several, the others go on
        return LocalIOError(f"{path} is a file, not a directory", hint="name a directory, or move the file away")
    if error.errno in _NO_DESCRIPTOR and operation in _OPENING:
        return TooManyOpenFilesError(text, hint="close files that are not needed, or raise the limit (ulimit -n)")
    if operation == "lock" and error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
        hint = "this file system has no flock: name a directory on another, such as a local disk"
        return LocalIOError(text, hint=hint)
    if operation == "fsync the directory" and error.errno == errno.EINVAL:
        hint = "this file system may lose file names at a power cut: name a directory on another, such as a local disk"
        return LocalIOError(text, hint=hint)
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = f"check owner and mode of {_denying(operation, path)} (this process runs as uid {os.geteuid()})"
        return LocalPermissionError(text, hint=hint)
    if error.errno == errno.EROFS:
        hint = "mount the file system for writing; a kernel makes it read-only after a disk error (see `dmesg`)"
        return LocalPermissionError(text, hint=hint)
    return LocalIOError(text)


def _denying(operation: str, path: Path | str) -> Path | str:
    """Return the path whose mode decides about ``operation``: the directory for a name that is made or removed."""
    if isinstance(path, str):  # of an open file
        return path
    place = path.parent if operation in _NAMING else path
    return next((each for each in (place, *place.parents) if os.path.lexists(each)), place)


def no_directory(files: Files, path: Path, *, hint: str) -> TieredError:
    """Return the error for a ``path`` that should be a directory: NotFoundError if missing, ConfigError if a file.

    ``hint``: the hint of the NotFoundError.
    """
    if files.state(path) is None:
        return NotFoundError(f"there is no log directory {path}", hint=hint)
    return ConfigError(f"{path} is a file, not a log directory", hint="name the directory that holds the partitions")


def make_inside(files: Files, path: Path) -> None:
    """Create the directory ``path`` in an existing parent, durably. Raises NotFoundError if the parent is missing."""
    if not files.is_directory(path.parent):
        raise NotFoundError(
            f"cannot create {path}: its parent directory is missing", hint="put that directory back, then try again"
        )
    files.make_directory(path)


def is_another_disk(error: LocalIOError) -> bool:
    """Return True if ``error``, of a rename or link, means that source and target are on different file systems.

    A mount point as source or target counts, too.
    """
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.EXDEV, errno.EBUSY)


def disk_failed(error: BaseException | None) -> bool:
    """Return True if an error or its cause shows a failing disk. False for a full disk or a file's permissions."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _BROKEN:
            return True
        error = error.__cause__
    return False


@contextlib.contextmanager
def _translated(operation: str, place: Path | int) -> Iterator[None]:
    """Raise an OSError inside the block as the product's error. ``place``: a path or a descriptor."""
    try:
        yield
    except OSError as error:
        raise translate(error, operation, _name(place) if isinstance(place, int) else place) from error


def _name(handle: int) -> str:
    """Return the path of a descriptor; "descriptor N" if the system does not know the path."""
    try:
        return str(Path(f"/proc/self/fd/{handle}").readlink())
    except OSError:
        return f"descriptor {handle}"
