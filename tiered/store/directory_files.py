"""File system effects of the directory store: durable writes, locks that die with their process, sweeping.

A file being written is ``.tiered/tmp/{uid}`` and stays locked (``flock``) by its writer. The kernel releases the lock
when the process dies. A process that gets the lock thus knows that the file is abandoned: no clock, no pid.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from tiered.clock import IdSource
from tiered.errors import CorruptionError
from tiered.format.kernels import crc32c
from tiered.store.base import Body
from tiered.store.directory_paths import (
    INTERNAL_DIR,
    NAME_FILE,
    ObjectInfo,
    damaged,
    encode_tail,
    folder_name,
    object_path,
)
from tiered.store.sources import pieces_of

DURABLE_KNOWN = 1024
"""Limit of the folders that are known to be durable. Another one costs a ``mkdir`` and an fsync more."""

KEY_LOCKS = 64
"""Lock files of a store; a conditional write holds the one that its key hashes to."""


class DirectoryFiles:
    """Durable file operations below ``root``. They raise ``OSError``, which the store translates."""

    def __init__(self, root: Path, ids: IdSource) -> None:
        self.root = root
        self.internal = root / INTERNAL_DIR
        self._ids = ids
        self._durable: set[str] = set()
        self._swept = False
        self._sweep_lock = threading.Lock()

    def ready_for_writes(self) -> None:
        """Make the internal folders and, once, remove the files of killed processes."""
        with self._sweep_lock:
            if self._swept:
                return
            for name in ("tmp", "locks", "uploads"):
                self._make_durable_dir(self.internal / name)
            sweep_temporary(self.internal / "tmp")
            self._swept = True

    def uploads(self) -> list[Path]:
        """Return the folders of multipart uploads in progress."""
        try:
            return sorted((self.internal / "uploads").iterdir())
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def key_lock(self, key: str) -> Iterator[None]:
        """Lock ``key`` against other writers, in all threads and processes."""
        shard = blake2b(key.encode(), digest_size=1).digest()[0] % KEY_LOCKS
        fd = os.open(self.internal / "locks" / f"{shard:02x}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def temporary(self) -> Iterator[tuple[int, Path]]:
        """Yield a new, locked temporary file; it is deleted at the end unless it was renamed."""
        fd, path = self._open_temporary()
        try:
            yield fd, path
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            os.close(fd)

    def _open_temporary(self) -> tuple[int, Path]:
        while True:
            path = self.internal / "tmp" / self._ids.uid()
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd, path
            os.close(fd)  # a sweeper deleted it between creation and lock

    def write_object(
        self, fd: int, pieces: Iterator[bytes | memoryview], *, key: str, announced_crc32c: int | None, now_ms: int
    ) -> ObjectInfo:
        """Write body, key and trailer into ``fd`` and fsync. Raises ``CorruptionError`` for a wrong body checksum."""
        size = crc = 0
        for piece in pieces:
            write_all(fd, piece)
            crc = crc32c(piece, crc)
            size += len(piece)
        if announced_crc32c is not None and announced_crc32c != crc:
            raise CorruptionError(
                f"the body for {key!r} has CRC32C {crc:08x}, {announced_crc32c:08x} was announced; it was not stored",
                path_or_key=key,
                hint="the bytes changed since the seal: `tiered check --log-dir DIR` names what is damaged",
            )
        info = ObjectInfo(key, f'"{self._ids.uid()}"', size, now_ms, crc)
        write_all(fd, encode_tail(info))
        os.fsync(fd)
        return info

    def publish(self, temporary: Path, key: str) -> None:
        """Rename a finished file over the object of ``key`` and make the name durable."""
        target = Path(object_path(self.root, key))
        try:
            self._make_key_dirs(key)
            temporary.replace(target)
        except FileNotFoundError:
            self._durable.clear()  # another process removed empty folders that this one had made
            self._make_key_dirs(key)
            temporary.replace(target)
        sync_dir(target.parent)

    def _make_key_dirs(self, key: str) -> None:
        folder = self.root
        for part in key.split("/")[:-1]:
            folder = folder / folder_name(part)
            self._make_durable_dir(folder)
            if folder.name != part:
                self._write_folder_name(folder, part)

    def _write_folder_name(self, folder: Path, part: str) -> None:
        if (folder / NAME_FILE).exists():
            return
        with self.temporary() as (fd, path):
            write_all(fd, part.encode())
            os.fsync(fd)
            path.replace(folder / NAME_FILE)
        sync_dir(folder)

    def _make_durable_dir(self, path: Path) -> None:
        """Make a folder such that its own entry, and those above it, survive a power cut, even if it existed."""
        name = str(path)
        if name in self._durable or path == self.root:
            return
        self._make_durable_dir(path.parent)
        try:
            path.mkdir(exist_ok=True)
        except FileExistsError:
            raise damaged(str(path), 0, "a file stands where a folder of keys has to be") from None
        sync_dir(path.parent)
        if len(self._durable) >= DURABLE_KNOWN:
            self._durable.clear()
        self._durable.add(name)


def sweep_temporary(folder: Path) -> int:
    """Remove temporary files whose writers are dead; return how many."""
    removed = 0
    for path in folder.iterdir():
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            removed += 1
        except BlockingIOError:
            continue  # its writer is alive
        finally:
            os.close(fd)
    return removed


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of ``data``: one ``write`` may take less."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_dir(path: Path) -> None:
    """Make the entries of a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def body_pieces(body: Body, start: int, end: int) -> Iterator[bytes | memoryview]:
    """Yield ``body[start:end]``, piece by piece, each valid until the next one is requested."""
    return pieces_of(body, start, end) if not isinstance(body, bytes) else iter((memoryview(body)[start:end],))
