"""Objects as files of one folder: atomic, durable, and safe between processes of one machine.

A conditional PUT writes and fsyncs a temporary file. Then, under the lock of the key, it compares the ETag and
renames. Readers take no lock: an open file is one version, whatever is renamed over it. On folders shared over NFS
the lock is only as good as that server's ``flock``; object stores are the better choice there.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.errors import (
    ClosedError,
    ConfigError,
    CorruptionError,
    NotFoundError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.store.base import (
    MIN_PART_BYTES,
    AbortUpload,
    Absent,
    CompleteUpload,
    Condition,
    Delete,
    Deleted,
    Get,
    Head,
    List,
    ListEntry,
    ListPage,
    ListUploads,
    ListVersions,
    Missing,
    NotModified,
    Object,
    Outcome,
    PartStored,
    Put,
    PutResult,
    PutStatus,
    StartUpload,
    StoreRequest,
    UnfinishedUpload,
    UploadPage,
    UploadPart,
    UploadStarted,
    Versions,
)
from tiered.store.directory_files import (
    DirectoryFiles,
    FolderClock,
    ObjectInfo,
    body_pieces,
    damaged,
    info_of_file,
    object_path,
    open_object,
    read_body,
    read_info,
    refuse_store_file,
    sync_dir,
    walk_keys,
    write_all,
)
from tiered.store.key_rules import check_request

MAX_LOGGED = 100
"""Limit of damaged files that a store logs, each once: a check names all of them."""

_logger = logging.getLogger("tiered.store")
_UPLOAD_ID = re.compile(r"[0-9a-f]{32}")


class DirectoryStore:
    """Store over a folder, a :class:`~tiered.store.base.Store`.

    ``create``: make the folder if it is absent. Otherwise an absent folder raises ``NotFoundError`` at the first
    request, like an absent bucket. ``min_part_bytes``: least size of a part of a multipart upload, except the last.
    Only writes create files; a reader needs no write permission.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        create: bool = True,
        min_part_bytes: int = MIN_PART_BYTES,
    ) -> None:
        self._root = Path(path).absolute()
        self._files = DirectoryFiles(self._root, ids or SystemIds())
        self._clock = FolderClock(clock or SystemClock(), self._files.internal / "locks")
        self._ids = ids or SystemIds()
        self._min_part_bytes = min_part_bytes
        self._closed = False
        self._logged: set[str] = set()
        if create:
            try:
                self._root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                if isinstance(error, FileExistsError):
                    refuse_store_file(self._root)
                raise self._translated(error, "create") from error

    @property
    def url(self) -> str:
        """``file:///absolute/path``, percent-encoded."""
        return self._root.as_uri()

    def __repr__(self) -> str:
        return f"DirectoryStore({self.url!r})"

    def close(self) -> None:
        """Refuse further requests. There is no open file to close."""
        self._closed = True

    def execute(self, request: StoreRequest) -> Outcome:
        """Carry out one request and return its outcome.

        On a full or failing disk a conditional write gives ``UNKNOWN``, other requests raise RemoteUnavailableError.
        Also raises NotFoundError (no folder or upload), RemotePermissionError, ClosedError (after ``close``). Raises
        CorruptionError for a damaged file or a wrong checksum, ConfigError for a wrong request or file system.
        """
        if self._closed:
            raise ClosedError(f"{self.url} was closed")
        check_request(request)
        operation = type(request).__name__
        try:
            return self._execute(request)
        except OSError as error:
            translated = self._translated(error, operation)
            if isinstance(request, Put | CompleteUpload) and isinstance(translated, RemoteUnavailableError):
                return PutResult(PutStatus.UNKNOWN, cause=str(translated))
            raise translated from error

    def _execute(self, request: StoreRequest) -> Outcome:
        match request:
            case Get():
                return self._get(request)
            case Head():
                info = self._standing(request.key)
                return Missing() if info is None else self._object(info, b"")
            case List():
                return self._list(request)
            case ListUploads():
                return self._list_uploads(request)
            case ListVersions():
                return Versions((), supported=False)
        self._require_root()
        self._files.ready_for_writes()
        match request:
            case Put():
                return self._put(request)
            case Delete():
                return self._delete(request)
            case StartUpload():
                return self._start_upload(request)
            case UploadPart():
                return self._upload_part(request)
            case CompleteUpload():
                return self._complete(request)
            case AbortUpload():
                if _UPLOAD_ID.fullmatch(request.upload_id):
                    shutil.rmtree(self._upload_dir(request.upload_id), ignore_errors=True)
                return None

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, ObjectInfo | None]]:
        path = object_path(self._root, key)
        try:
            fd = open_object(path)
        except FileNotFoundError:
            self._require_root()
            yield -1, None
            return
        except CorruptionError:
            self._require_root()  # otherwise the folder of the store itself is in the way
            raise
        try:
            try:
                info = read_info(fd, path)
            except CorruptionError as damage:
                self._log_damage(damage)
                info = info_of_file(os.fstat(fd), key)
            if info.key != key:
                why = f"it ends in the key {info.key!r}: its end is damaged, or it was moved"
                another = damaged(path, info.size, why)
                if not _is_flipped(info.key, key):
                    raise another
                self._log_damage(another)
                info = info_of_file(os.fstat(fd), key)
            yield fd, info
        finally:
            os.close(fd)

    def _log_damage(self, damage: CorruptionError) -> None:
        if damage.message not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(damage.message)
            fields = {"remote": self.url, "key": damage.path_or_key}
            _logger.warning(
                "%s; the rest of it is read as it is",
                damage.message,
                extra={"tiered_event": "object_damaged", "tiered_fields": fields},
            )

    def _get(self, request: Get) -> Outcome:
        if request.version:
            return Missing()  # this store keeps no versions
        with self._opened(request.key) as (fd, info):
            if info is None:
                return Missing()
            if request.if_none_match == info.etag:
                return NotModified()
            end = info.size if request.end is None else min(request.end, info.size)
            request.check_body(end - request.start)
            return self._object(info, read_body(fd, request.start, end, request.key))

    def _object(self, info: ObjectInfo, data: bytes) -> Object:
        return Object(data, info.etag, info.size, info.modified_ms, self._clock.now_ms(), info.crc32c)

    def _put(self, request: Put) -> PutResult:
        refused = self._judge(request.key, request.condition)
        if refused is not None:  # saves writing the body; the check under the lock decides
            return refused
        body = request.body
        pieces = body_pieces(body, 0, len(body) if isinstance(body, bytes) else body.size)
        return self._store(request.key, pieces, request.condition, request.crc32c)

    def _store(
        self, key: str, pieces: Iterator[bytes | memoryview], condition: Condition, crc: int | None
    ) -> PutResult:
        with self._files.temporary() as (fd, path):
            info = self._files.write_object(fd, pieces, key=key, announced_crc32c=crc, now_ms=self._clock.now_ms())
            with self._files.key_lock(key):
                refused = self._judge(key, condition)
                if refused is not None:
                    return refused
                self._files.publish(path, key)
        return PutResult(PutStatus.LANDED, info.etag, info.crc32c)

    def _judge(self, key: str, condition: Condition) -> PutResult | None:
        info = self._standing(key)
        if isinstance(condition, Absent):
            return None if info is None else PutResult(PutStatus.LOST)
        if info is None:
            return PutResult(PutStatus.ABSENT)
        return None if info.etag == condition.etag else PutResult(PutStatus.LOST)

    def _standing(self, key: str) -> ObjectInfo | None:
        """Return the metadata of the file of a key, None without one. A damaged file counts, because it blocks a PUT.

        For a file that is no valid object of this key, the size is that of the file, and there is no checksum.
        """
        try:
            with self._opened(key) as (_, info):
                return info
        except CorruptionError:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return info_of_file(os.lstat(object_path(self._root, key)), key)
            return None

    def _delete(self, request: Delete) -> Deleted:
        failed: list[tuple[str, str]] = []
        folders: set[Path] = set()
        for key in request.keys:
            path = Path(object_path(self._root, key))
            try:
                with self._files.key_lock(key):
                    path.unlink()
                folders.add(path.parent)
            except FileNotFoundError:
                continue
            except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
                failed.append((key, error.strerror or "permission denied"))
        for folder in folders:
            sync_dir(folder)  # otherwise a power cut could bring a deleted object back for ever
        return Deleted(tuple(failed))

    def _list(self, request: List) -> ListPage:
        self._require_root()
        entries: list[ListEntry] = []
        keys = walk_keys(self._root, request.prefix, request.start_after)
        for key in keys:
            info = self._standing(key)
            if info is not None:
                entries.append(ListEntry(key, info.size, info.etag, info.modified_ms))
            if len(entries) == request.limit:
                return ListPage(tuple(entries), next(keys, None) is not None, self._clock.now_ms())
        return ListPage(tuple(entries), False, self._clock.now_ms())

    def _start_upload(self, request: StartUpload) -> UploadStarted:
        upload_id = self._ids.uid()
        folder = self._upload_dir(upload_id)
        folder.mkdir()
        fd = os.open(folder / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            write_all(fd, request.key.encode())
            started_ns = self._clock.now_ms() * 1_000_000
            os.utime(fd, ns=(started_ns, started_ns))  # by the clock that dates objects, too
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_dir(folder)
        sync_dir(folder.parent)
        return UploadStarted(upload_id)

    def _list_uploads(self, request: ListUploads) -> UploadPage:
        self._require_root()
        found = []
        for folder in self._files.uploads():
            path = folder / "key"
            try:
                key, started_ms = path.read_bytes().decode(), path.stat().st_mtime_ns // 1_000_000
            except FileNotFoundError:
                continue  # begun, completed or aborted at this moment
            if key.startswith(request.prefix):
                found.append(UnfinishedUpload(key, folder.name, started_ms))
        return UploadPage.page_of(found, request.after, self._clock.now_ms())

    def _upload_part(self, request: UploadPart) -> PartStored:
        folder = self._known_upload(request.upload_id, request.key)
        if folder is None:
            raise NotFoundError(f"no multipart upload {request.upload_id!r} of {request.key!r} in {self.url}")
        with self._files.temporary() as (fd, path):
            info = self._files.write_object(
                fd,
                body_pieces(request.body, request.start, request.end),
                key=request.key,
                announced_crc32c=request.crc32c,
                now_ms=self._clock.now_ms(),
            )
            path.replace(folder / f"{request.number:05d}")
        sync_dir(folder)
        return PartStored(request.number, info.etag, info.crc32c)

    def _complete(self, request: CompleteUpload) -> PutResult:
        folder = self._known_upload(request.upload_id, request.key)
        if folder is None:
            return PutResult(PutStatus.UNKNOWN, cause="NoSuchUpload")
        numbers = [part.number for part in request.parts]
        if not numbers or numbers != sorted(set(numbers)):
            raise ConfigError(f"the parts {numbers} of {request.key!r} are not in ascending order")
        pieces = itertools.chain.from_iterable(
            self._part_pieces(folder, part, last=part.number == numbers[-1]) for part in request.parts
        )
        result = self._store(request.key, pieces, Absent(), None)
        if result.status is PutStatus.LANDED:
            shutil.rmtree(folder, ignore_errors=True)
        return result

    def _part_pieces(self, folder: Path, part: PartStored, *, last: bool) -> Iterator[bytes]:
        path = folder / f"{part.number:05d}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ConfigError(f"part {part.number} was never stored in {self.url}") from error
        try:
            info = read_info(fd, str(path))
            if info.etag != part.etag:
                raise ConfigError(f"part {part.number} of {info.key!r} was not stored with ETag {part.etag}")
            if not last and info.size < self._min_part_bytes:
                raise ConfigError(
                    f"part {part.number} of {info.key!r} has {info.size} bytes",
                    hint=f"send at least {self._min_part_bytes} bytes in every part but the last",
                )
            for start in range(0, info.size, 1 << 20):
                yield read_body(fd, start, min(info.size, start + (1 << 20)), str(path))
        finally:
            os.close(fd)

    def _upload_dir(self, upload_id: str) -> Path:
        return self._files.internal / "uploads" / upload_id

    def _known_upload(self, upload_id: str, key: str) -> Path | None:
        if not _UPLOAD_ID.fullmatch(upload_id):
            return None  # the id comes from a journal and must not become a path
        folder = self._upload_dir(upload_id)
        try:
            return folder if (folder / "key").read_bytes() == key.encode() else None
        except FileNotFoundError:
            return None

    def _require_root(self) -> None:
        if not self._root.is_dir():
            raise NotFoundError(
                f"the folder {self._root} does not exist", hint="mount it, create it, or correct the file:// URL"
            )

    def _translated(self, error: OSError, operation: str) -> TieredError:
        where = f"{operation} in {self.url} failed: {error.strerror or error} ({error.filename or self._root})"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return RemotePermissionError(
                where, operation=operation, resource=self.url, hint="let this user read and write the folder"
            )
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP):
            return ConfigError(where, hint="correct the URL: it must name a folder")
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            hint = "the file system lacks flock or the fsync of directories: name a folder on one that has both"
            return ConfigError(where, hint=hint)
        hint = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the disk or the mount"
        return RemoteUnavailableError(where, hint=hint)


def _is_flipped(found: str, key: str) -> bool:
    """Return True if two keys differ by one bit: that is damage, because no object is moved to so similar a name."""
    one, two = found.encode(), key.encode()
    return len(one) == len(two) and (int.from_bytes(one) ^ int.from_bytes(two)).bit_count() == 1
