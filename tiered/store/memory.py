"""Store in memory, the reference implementation: objects in a dictionary under one lock.

``memory://name`` is one place per name and process: two stores of the same name see the same objects.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

from tiered.clock import Clock, SystemClock
from tiered.errors import ClosedError, ConfigError, CorruptionError, NotFoundError
from tiered.format.kernels import crc32c
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
    ObjectVersion,
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
from tiered.store.key_rules import check_key, check_request


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    etag: str
    crc32c: int
    modified_ms: int
    tags: tuple[tuple[str, str], ...]

    @property
    def version(self) -> str:
        """Id of this version: ETags never repeat."""
        return self.etag.strip('"')


@dataclass(slots=True)
class _Upload:
    key: str
    tags: tuple[tuple[str, str], ...]
    started_ms: int
    parts: dict[int, tuple[bytes, str, int]] = field(default_factory=dict)


class _Bucket:
    """Contents shared by the stores of one name."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, _Stored] = {}
        self.versions: dict[str, list[_Stored]] = {}
        self.versioned = False
        self.uploads: dict[str, _Upload] = {}
        self.numbers = itertools.count(1)  # ETags and upload ids never repeat, so that CAS has no ABA

    def next_etag(self) -> str:
        return f'"{next(self.numbers):032x}"'


_REGISTRY: dict[str, _Bucket] = {}
_REGISTRY_LOCK = threading.Lock()


class MemoryStore:
    """Store in memory, a :class:`~tiered.store.base.Store`.

    ``name`` None: a private store. Otherwise all stores of that name in this process share their objects. ``prefix``
    precedes every key. Tests of multipart uploads may lower ``min_part_bytes``. ``versioned`` keeps all versions of all
    objects, like a bucket with versioning.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        prefix: str = "",
        clock: Clock | None = None,
        min_part_bytes: int = MIN_PART_BYTES,
        versioned: bool = False,
    ) -> None:
        if prefix:
            check_key(prefix, what="prefix")
        if name is None:
            self._bucket = _Bucket()
        else:
            with _REGISTRY_LOCK:
                self._bucket = _REGISTRY.setdefault(name, _Bucket())
        self._bucket.versioned = self._bucket.versioned or versioned
        self._name = name
        self._prefix = f"{prefix}/" if prefix else ""
        self._clock = clock or SystemClock()
        self._min_part_bytes = min_part_bytes
        self._closed = False

    @staticmethod
    def forget(name: str) -> None:
        """Make the next store of ``name`` begin empty. Open stores of that name still share the old objects."""
        with _REGISTRY_LOCK:
            _REGISTRY.pop(name, None)

    @property
    def url(self) -> str:
        """``memory://name`` or ``memory://name/prefix``."""
        return f"memory://{self._name or ''}" + (f"/{self._prefix[:-1]}" if self._prefix else "")

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r})"

    def close(self) -> None:
        """Refuse further requests to this object. Other stores of the same name still have the objects."""
        self._closed = True

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of an object, for tests. Raises ``NotFoundError`` if it is absent."""
        with self._bucket.lock:
            stored = self._bucket.objects.get(self._prefix + key)
        if stored is None:
            raise NotFoundError(f"no object {key!r} in {self.url}")
        return dict(stored.tags)

    def execute(self, request: StoreRequest) -> Outcome:
        """Carry out one request atomically and return its outcome.

        Raises CorruptionError for a wrong checksum or too large a body, NotFoundError (no upload), ConfigError for a
        wrong request, ClosedError (after ``close``).
        """
        if self._closed:
            raise ClosedError(f"{self.url} was closed")
        check_request(request)
        match request:
            case Put():
                return self._put(request)
            case UploadPart():
                data = request.body.read_at(request.start, request.end - request.start)
                crc = _checked(data, request.crc32c, request.key)
                with self._bucket.lock:
                    return self._upload_part(request, data, crc)
        with self._bucket.lock:
            match request:
                case Get():
                    return self._get(request)
                case Head():
                    return self._head(request)
                case Delete():
                    for key in request.keys:
                        self._bucket.objects.pop(self._prefix + key, None)
                    return Deleted()
                case List():
                    return self._list(request)
                case StartUpload():
                    upload_id = f"upload-{next(self._bucket.numbers)}"
                    self._bucket.uploads[upload_id] = _Upload(
                        self._prefix + request.key, request.tags, self._clock.now_ms()
                    )
                    return UploadStarted(upload_id)
                case CompleteUpload():
                    return self._complete(request)
                case AbortUpload():
                    self._bucket.uploads.pop(request.upload_id, None)
                    return None
                case ListUploads():
                    return self._list_uploads(request)
                case ListVersions():
                    return self._list_versions(request)

    def _get(self, request: Get) -> Outcome:
        stored = self._stored(request)
        if stored is None:
            return Missing()
        if request.if_none_match == stored.etag:
            return NotModified()
        end = len(stored.data) if request.end is None else min(request.end, len(stored.data))
        request.check_body(end - request.start)
        return self._object(stored, stored.data[request.start : end])

    def _stored(self, request: Get) -> _Stored | None:
        key = self._prefix + request.key
        if not request.version:
            return self._bucket.objects.get(key)
        found = self._bucket.versions.get(key, ())
        return next((stored for stored in found if stored.version == request.version), None)

    def _list_versions(self, request: ListVersions) -> Versions:
        found = reversed(self._bucket.versions.get(self._prefix + request.key, ()))
        entries = tuple(ObjectVersion(one.version, len(one.data), one.etag, one.modified_ms) for one in found)
        return Versions(entries, supported=self._bucket.versioned)

    def _head(self, request: Head) -> Outcome:
        stored = self._bucket.objects.get(self._prefix + request.key)
        return Missing() if stored is None else self._object(stored, b"")

    def _object(self, stored: _Stored, data: bytes) -> Object:
        return Object(data, stored.etag, len(stored.data), stored.modified_ms, self._clock.now_ms(), stored.crc32c)

    def _put(self, request: Put) -> PutResult:
        body = request.body
        data = body if isinstance(body, bytes) else body.read_at(0, body.size)
        crc = _checked(data, request.crc32c, request.key)
        with self._bucket.lock:
            return self._place(self._prefix + request.key, data, crc, request.condition, request.tags)

    def _place(
        self, full_key: str, data: bytes, crc: int, condition: Condition, tags: tuple[tuple[str, str], ...]
    ) -> PutResult:
        current = self._bucket.objects.get(full_key)
        if isinstance(condition, Absent):
            if current is not None:
                return PutResult(PutStatus.LOST)
        elif current is None:
            return PutResult(PutStatus.ABSENT)
        elif current.etag != condition.etag:
            return PutResult(PutStatus.LOST)
        stored = _Stored(data, self._bucket.next_etag(), crc, self._clock.now_ms(), tags)
        self._bucket.objects[full_key] = stored
        if self._bucket.versioned:
            self._bucket.versions.setdefault(full_key, []).append(stored)
        return PutResult(PutStatus.LANDED, stored.etag, crc)

    def _list(self, request: List) -> ListPage:
        prefix, after = self._prefix + request.prefix, self._prefix + request.start_after
        found = [
            key
            for key in self._bucket.objects
            if key.startswith(prefix) and (not request.start_after or key.encode() > after.encode())
        ]
        found.sort(key=str.encode)
        entries = []
        for key in found[: request.limit]:
            stored = self._bucket.objects[key]
            entries.append(
                ListEntry(key[len(self._prefix) :], len(stored.data), stored.etag, stored.modified_ms),
            )
        return ListPage(tuple(entries), len(found) > request.limit, self._clock.now_ms())

    def _list_uploads(self, request: ListUploads) -> UploadPage:
        prefix, cut = self._prefix + request.prefix, len(self._prefix)
        found = [
            UnfinishedUpload(upload.key[cut:], upload_id, upload.started_ms)
            for upload_id, upload in self._bucket.uploads.items()
            if upload.key.startswith(prefix)
        ]
        return UploadPage.page_of(found, request.after, self._clock.now_ms())

    def _upload_part(self, request: UploadPart, data: bytes, crc: int) -> PartStored:
        upload = self._bucket.uploads.get(request.upload_id)
        if upload is None or upload.key != self._prefix + request.key:
            raise NotFoundError(f"no multipart upload {request.upload_id!r} of {request.key!r} in {self.url}")
        etag = self._bucket.next_etag()
        upload.parts[request.number] = (data, etag, crc)
        return PartStored(request.number, etag, crc)

    def _complete(self, request: CompleteUpload) -> PutResult:
        upload = self._bucket.uploads.get(request.upload_id)
        if upload is None or upload.key != self._prefix + request.key:
            return PutResult(PutStatus.UNKNOWN, cause="NoSuchUpload")
        numbers = [part.number for part in request.parts]
        if not numbers or numbers != sorted(set(numbers)):
            raise ConfigError(f"the parts {numbers} of {request.key!r} are not in ascending order")
        pieces: list[bytes] = []
        for part in request.parts:
            data, etag, _ = upload.parts.get(part.number, (b"", "", 0))
            if etag != part.etag:
                raise ConfigError(f"part {part.number} of {request.key!r} was not stored with ETag {part.etag}")
            if part.number != numbers[-1] and len(data) < self._min_part_bytes:
                raise ConfigError(
                    f"part {part.number} of {request.key!r} has {len(data)} bytes",
                    hint=f"send at least {self._min_part_bytes} bytes in every part but the last",
                )
            pieces.append(data)
        body = b"".join(pieces)
        result = self._place(upload.key, body, crc32c(body), Absent(), upload.tags)
        if result.status is PutStatus.LANDED:
            del self._bucket.uploads[request.upload_id]
        return result


def _checked(data: bytes, announced: int | None, key: str) -> int:
    actual = crc32c(data)
    if announced is not None and announced != actual:
        raise CorruptionError(
            f"{key!r} was not stored: its body has CRC32C {actual:08x}, and the upload named {announced:08x}",
            path_or_key=key,
            hint="the bytes changed since the seal: `tiered check --log-dir DIR` shows what is damaged",
        )
    return actual
