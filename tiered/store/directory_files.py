"""Objects as files of the directory store: keys as paths, the trailer of a file, durable writes, locks and the clock.

No key can leave the folder, hit an internal file, or hide another key.

A file being written is ``.tiered/tmp/{uid}`` and stays locked (``flock``) by its writer. The kernel releases the lock
when the process dies. A process that gets the lock thus knows that the file is abandoned: no clock, no pid.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import stat
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from tiered.clock import Clock, IdSource, SystemClock
from tiered.errors import ConfigError, CorruptionError, NotFoundError
from tiered.format.kernels import crc32c
from tiered.store.base import Body
from tiered.store.key_rules import MAX_KEY_BYTES
from tiered.store.sources import pieces_of

OBJECT_SUFFIX = ".obj"
NAME_FILE = ".name"
INTERNAL_DIR = ".tiered"
MAX_NAMES = 100_000
"""Limit of names read in a folder to find out whether it is a store."""
OF_A_FILE_SYSTEM = frozenset({"lost+found", "@eaDir"})
"""Folders that a system makes in the root of a volume; no key begins so."""
_OF_A_STORE = re.compile(r"\.tiered|topics|[0-9a-f]{2}")
MAX_NAME_BYTES = 240
"""Longest path part that is not hashed: with the suffix it stays below the 255 bytes of Linux file systems."""

TRAILER_BYTES = 64
_MAGIC = b"TLOBJ\0\0\1"
_TRAILER = struct.Struct("<8s16sQqII12x")

DURABLE_KNOWN = 1024
"""Limit of the folders that are known to be durable. Another one costs a ``mkdir`` and an fsync more."""

KEY_LOCKS = 64
"""Lock files of a store; a conditional write holds the one that its key hashes to."""


def folder_name(part: str) -> str:
    """Return the directory name for ``part``, one of the parts of a key between slashes, except the last."""
    return _hashed(part) if part.endswith(OBJECT_SUFFIX) or _is_special(part) else part


def file_name(part: str) -> str:
    """Return the file name for ``part``, the last part of a key."""
    return (_hashed(part) if _is_special(part) else part) + OBJECT_SUFFIX


def require_store_folder(root: Path) -> None:
    """Raise NotFoundError if ``root`` is absent or has only foreign contents, ConfigError if it is a file.

    An empty folder is an empty store.
    """
    hint = "mount it, create it, or correct the file:// URL"
    try:
        with os.scandir(root) as entries:
            # The root of a volume is an empty store, too.
            seen = itertools.islice(entries, MAX_NAMES)
            names = {entry.name for entry in seen if entry.name not in OF_A_FILE_SYSTEM}
            names -= {name for name in names if name.startswith(".") and name != ".tiered"}
    except (FileNotFoundError, NotADirectoryError):
        refuse_store_file(root)
        raise NotFoundError(f"the folder {root} does not exist", hint=hint) from None
    except PermissionError:
        return  # the first request reports the missing permission
    if names and not any(_OF_A_STORE.fullmatch(name) for name in names):
        raise NotFoundError(f"the folder {root} is not a store: it contains {min(names)!r}, but no topics", hint=hint)


def refuse_overlap(root: Path, directory: Path) -> None:
    """Raise ConfigError if the folder ``root`` of a store and a log directory overlap.

    They overlap if the store is in the log directory, or the log directory is among the store's objects.
    """
    store, log = root.resolve(), directory.resolve()
    inside = log.relative_to(store).parts if log.is_relative_to(store) else None
    if store.is_relative_to(log) or (inside and _OF_A_STORE.fullmatch(inside[0])):
        raise ConfigError(
            f"the store {root} and the log directory {directory} overlap, and one must not contain the other",
            hint="name two separate folders, such as data/log and data/bucket",
        )


def refuse_store_file(root: Path) -> None:
    """Raise ConfigError if ``root``, the folder of a store, is a file."""
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root} is a file, not the folder of a store", hint="name a folder as the remote")


def object_path(root: Path, key: str) -> str:
    """Return the path of the file of an object. ``key`` must be checked already."""
    *folders, last = key.split("/")
    return "/".join([str(root), *map(folder_name, folders), file_name(last)])


def walk_keys(root: Path, prefix: str, start_after: str) -> Iterator[str]:
    """Yield keys with ``prefix`` after ``start_after`` in UTF-8 order. Folders outside the range are not read."""
    yield from _walk(root, "", prefix.encode(), start_after.encode())


def _walk(directory: Path, base: str, prefix: bytes, start_after: bytes) -> Iterator[str]:
    # Sorting a folder as "name/" puts "a-b" before "a/..." and "a" before both: the order of whole keys.
    found: list[tuple[bytes, str, Path | None]] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in OF_A_FILE_SYSTEM or not _is_utf8(entry.name):
                    continue
                # A folder of that name is foreign: an object belongs in its place.
                in_the_way = entry.name.endswith(OBJECT_SUFFIX) and not entry.name.startswith("~")
                if entry.is_dir(follow_symlinks=False) and not in_the_way:
                    part = _folder_part(directory / entry.name, entry.name)
                    if part is not None:
                        key = f"{base}{part}/"
                        found.append((key.encode(), key, directory / entry.name))
                elif entry.name.endswith(OBJECT_SUFFIX):
                    part = _file_part(directory / entry.name, entry.name)
                    if part is not None:
                        found.append(((base + part).encode(), base + part, None))
    except FileNotFoundError:
        return
    found.sort(key=lambda each: each[0])
    for sort_key, key, folder in found:
        if folder is None:
            if sort_key.startswith(prefix) and sort_key > start_after:
                yield key
        elif (sort_key.startswith(prefix) or prefix.startswith(sort_key)) and (
            sort_key > start_after or start_after.startswith(sort_key)
        ):
            yield from _walk(folder, key, prefix, start_after)


def _folder_part(path: Path, name: str) -> str | None:
    if not name.startswith("~"):
        return name
    try:
        return (path / NAME_FILE).read_text("utf-8")
    except FileNotFoundError:
        return None  # a crash before the name was written: the folder is empty


def _file_part(path: Path, name: str) -> str | None:
    if not name.startswith("~"):
        return name.removesuffix(OBJECT_SUFFIX)
    try:
        fd = open_object(path)
    except FileNotFoundError:
        return None  # deleted since the folder was read
    try:
        return read_info(fd, str(path)).key.rpartition("/")[2]
    finally:
        os.close(fd)


def _is_utf8(name: str) -> bool:
    """Return True for UTF-8, as all keys are: any other name is foreign or damaged."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_special(part: str) -> bool:
    return part[0] in ".~" or len(part.encode()) > MAX_NAME_BYTES


def _hashed(part: str) -> str:
    return "~" + blake2b(part.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Metadata of an object, from the trailer of its file. ``etag`` is quoted as S3's are. ``size`` is the body's.

    For a file without a valid trailer ``crc32c`` is None, and ``size`` is that of the file.
    """

    key: str
    etag: str
    size: int
    modified_ms: int
    crc32c: int | None


def encode_tail(info: ObjectInfo) -> bytes:
    """Return the bytes after the body of an object's file: key and trailer."""
    assert info.crc32c is not None  # noqa: S101 - what is written was summed
    key = info.key.encode()
    head = _TRAILER.pack(
        _MAGIC, bytes.fromhex(info.etag.strip('"')), info.size, info.modified_ms, len(key), info.crc32c
    )
    return key + head + struct.pack("<I", crc32c(head))


def open_object(path: str | Path) -> int:
    """Open a file for reading and return its descriptor.

    Raises ``CorruptionError`` if it is no regular file or a file is in place of a folder of ``path``. Raises
    FileNotFoundError if it is absent.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe would wait for a writer
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise
        raise damaged(str(path), 0, f"it cannot be opened ({error.strerror})") from error
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise damaged(str(path), 0, "it is no regular file")


def info_of_file(found: os.stat_result, key: str) -> ObjectInfo:
    """Return metadata for the file of a damaged object, which has no valid trailer. ``found``: its ``stat``.

    The ETag is a hash of inode, size and times, so that a conditional PUT replaces exactly this file.
    """
    is_file = stat.S_ISREG(found.st_mode)
    version = f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_mode}"
    etag = blake2b(version.encode(), digest_size=16).hexdigest()
    return ObjectInfo(key, f'"{etag}"', found.st_size if is_file else 0, found.st_mtime_ns // 1_000_000, None)


def read_info(fd: int, path: str) -> ObjectInfo:
    """Return the fields of the trailer of the open file ``fd``. ``path`` names it in errors.

    Raises ``CorruptionError`` if it is not a whole object of this store.
    """
    file_bytes = os.fstat(fd).st_size
    tail = os.pread(fd, MAX_KEY_BYTES + TRAILER_BYTES, max(0, file_bytes - MAX_KEY_BYTES - TRAILER_BYTES))
    trailer = tail[-TRAILER_BYTES:]
    if len(trailer) < TRAILER_BYTES or trailer[:8] != _MAGIC:
        raise damaged(path, file_bytes, "it does not end in the trailer of an object")
    head = trailer[:-4]
    (crc,) = struct.unpack("<I", trailer[-4:])
    if crc != crc32c(head):
        raise damaged(path, file_bytes, "its trailer fails its checksum")
    _, etag, size, modified_ms, key_bytes, body_crc = _TRAILER.unpack(head)
    if key_bytes > MAX_KEY_BYTES or size + key_bytes + TRAILER_BYTES != file_bytes:
        raise damaged(path, file_bytes, f"its trailer names {size} bytes of body and {key_bytes} of key")
    try:
        key = tail[-TRAILER_BYTES - key_bytes : -TRAILER_BYTES].decode()
    except UnicodeDecodeError as error:
        raise damaged(path, file_bytes, "its key is not UTF-8") from error
    return ObjectInfo(key, f'"{etag.hex()}"', size, modified_ms, body_crc)


def read_body(fd: int, start: int, end: int, path: str) -> bytes:
    """Return bytes ``start`` to ``end`` (exclusive) of the open file ``fd``. ``path`` names it in errors.

    Raises ``CorruptionError`` if it was truncated meanwhile.
    """
    pieces: list[bytes] = []
    position = start
    while position < end:
        piece = os.pread(fd, end - position, position)
        if not piece:
            raise damaged(path, os.fstat(fd).st_size, f"it ended at byte {position} of {start}..{end}")
        pieces.append(piece)
        position += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def damaged(path: str, file_bytes: int, why: str) -> CorruptionError:
    """Return the error for a file that is not a whole object. ``file_bytes``: its size. ``why``: the reason."""
    return CorruptionError(
        f"{path} ({file_bytes} bytes) is not an object of this store: {why}",
        path_or_key=path,
        position=file_bytes,
        hint="restore the file from a copy, or move it out of the folder and run `tiered check`; only "
        "tieredlog may write there",
    )


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
        """Create the internal folders and remove temporary files of killed processes. Later calls do nothing."""
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
        """Return a context manager that locks ``key`` against other writers, in all threads and processes."""
        shard = blake2b(key.encode(), digest_size=1).digest()[0] % KEY_LOCKS
        fd = os.open(self.internal / "locks" / f"{shard:02x}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def temporary(self) -> Iterator[tuple[int, Path]]:
        """Return a context manager that gives (descriptor, path) of a new, locked temporary file.

        The file is deleted at the end unless it was renamed.
        """
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
        """Write the body ``pieces``, the key and the trailer into ``fd`` and fsync. Return the trailer's fields.

        ``now_ms``: time of modification for the trailer. Raises ``CorruptionError`` if the body does not have
        ``announced_crc32c`` (None: not checked).
        """
        size = crc = 0
        for piece in pieces:
            write_all(fd, piece)
            crc = crc32c(piece, crc)
            size += len(piece)
        if announced_crc32c is not None and announced_crc32c != crc:
            raise CorruptionError(
                f"{key!r} was not stored: its body has CRC32C {crc:08x}, and the upload named {announced_crc32c:08x}",
                path_or_key=key,
                hint="the bytes changed since the seal: `tiered check --log-dir DIR` shows what is damaged",
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
    """Remove temporary files whose writers are dead. Return their number."""
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
    """Write all of ``data``, in several ``write`` calls if one takes only a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_dir(path: Path) -> None:
    """Fsync a folder, so that the names in it are durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def body_pieces(body: Body, start: int, end: int) -> Iterator[bytes | memoryview]:
    """Yield ``body[start:end]``, piece by piece, each valid until the next one is requested."""
    return pieces_of(body, start, end) if not isinstance(body, bytes) else iter((memoryview(body)[start:end],))


JUMP_MS = 1000
"""Difference up to which the two clocks count as one; after a larger jump they are compared again."""


class FolderClock:
    """Clock of the file system of ``folder``; ``clock`` is used while the folder is absent or may not be touched.

    A test may set ``clock`` behind the file system's time, never ahead of it.
    """

    def __init__(self, clock: Clock, folder: Path) -> None:
        self._clock, self._folder = clock, folder
        self._compared: tuple[int, int] | None = None  # wall clock without the time that passed, and its lead then

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        now_ms = self._clock.now_ms()
        origin_ms = now_ms - int(self._clock.monotonic() * 1000)
        if self._compared is None or abs(origin_ms - self._compared[0]) > JUMP_MS:
            lead_ms = self._lead_ms(now_ms)
            self._compared = None if lead_ms is None else (origin_ms, lead_ms)
        return now_ms - (self._compared[1] if self._compared is not None else 0)

    def _lead_ms(self, now_ms: int) -> int | None:
        """Return by how many ms ``clock`` is ahead of the file system's clock, 0 if they count as one.

        None if the file system cannot be asked: a reader may change nothing.
        """
        try:
            os.utime(self._folder)  # without a time: the file system uses its own clock
            lead_ms = now_ms - self._folder.stat().st_mtime_ns // 1_000_000
        except OSError:
            return None
        if abs(lead_ms) <= JUMP_MS or (lead_ms < 0 and not isinstance(self._clock, SystemClock)):
            return 0
        return lead_ms
