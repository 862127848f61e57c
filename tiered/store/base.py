"""The store contract: requests, outcomes, and which of them may be retried.

A protocol of several requests is written as *steps*: a generator that yields frozen requests and receives their
outcomes (``yield Get(key)`` gives an :class:`Object` or :class:`Missing`). A driver (``store.driver``) carries the
requests out on a :class:`Store` or an :class:`AioStore`. Keys are relative to the URL that the store was opened with;
they never begin with ``/`` and have no empty, ``.`` or ``..`` part.

Hard rules, checked for each backend by ``tiered.testing.store_contract``:

* ``execute`` makes one attempt. It never retries; ``store.retry`` wraps it and retries what is safe.
* A conditional PUT has three results: landed, lost, unknown; ``CONFLICT`` (409) means "did not land, send the same
  again". It is never retried below the steps that sent it. An unconditional PUT does not exist.
* An absent key is an outcome (:class:`Missing`), never an exception. A refusal is ``RemotePermissionError``, an
  absent bucket ``NotFoundError``, any temporary failure ``RemoteUnavailableError``. A PUT with an unknown outcome
  never raises: it returns ``UNKNOWN``.
* GET after a landed PUT sees it (strong consistency). LIST is in UTF-8 order if the store's is; callers sort.
* DELETE of an absent key succeeds.
* A GET whose body would be larger than ``Get.body_limit`` raises CorruptionError, and reads no more than that.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tiered.errors import CorruptionError
from tiered.format.locks import Signal
from tiered.model import ByteSource

MAX_DELETE_KEYS = 1000
"""Limit of keys in one :class:`Delete`, S3's limit."""

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Largest body of a GET without an end or a limit of its own."""

LIST_KEYS = 1000
"""Keys of one page of a listing, S3's limit."""

MAX_PAGE_UPLOADS = 1000
"""Uploads of one page of :class:`UploadPage`, S3's limit."""

MIN_PART_BYTES = 5 * 1024 * 1024
"""Smallest part of a multipart upload except the last, S3's limit."""

Body = bytes | ByteSource


@dataclass(frozen=True, slots=True)
class Match:
    """``If-Match``: the PUT lands only on the version with this ETag (opaque, quotes included)."""

    etag: str


@dataclass(frozen=True, slots=True)
class Absent:
    """``If-None-Match: *``: the PUT lands only if the key does not exist."""


ABSENT = Absent()
Condition = Match | Absent


@dataclass(frozen=True, slots=True)
class Get:
    """Bytes ``start`` to ``end`` (exclusive, None: to the end) of an object; by default all of it.

    A range that begins at or beyond the size gives an :class:`Object` with no data. ``if_none_match``: an ETag; gives
    :class:`NotModified` while it is current. A body larger than ``max_bytes``, of a GET without ``end``, raises
    CorruptionError before it is in memory. ``lend``: the body may come in a buffer that is reused once no view of it is
    left (``Object.lent``). ``version``: the id of an older version (``ListVersions``).
    """

    key: str
    start: int = 0
    end: int | None = None
    if_none_match: str | None = None
    max_bytes: int = MAX_BODY_BYTES
    lend: bool = False
    version: str = ""

    @property
    def body_limit(self) -> int:
        """Limit of a response body, also from a server that ignores ranges."""
        return self.max_bytes if self.end is None else max(self.max_bytes, self.end)

    def check_body(self, size_bytes: int) -> None:
        """Raise CorruptionError if a body of ``size_bytes`` is larger than the request allows."""
        if size_bytes > self.max_bytes and size_bytes > self.body_limit:
            raise CorruptionError(
                f"the object {self.key} has {size_bytes} bytes, more than the limit of {self.body_limit}",
                path_or_key=self.key,
                position=self.body_limit,
                hint="another object is stored there: look for another version of it in the bucket, run `tiered check`",
            )


@dataclass(frozen=True, slots=True)
class Head:
    """Size, ETag and checksum of an object, without its data."""

    key: str


@dataclass(frozen=True, slots=True)
class Put:
    """One whole object, stored under a condition. The store verifies ``crc32c`` if it can.

    ``tags`` are object tags (``kind=segment``); a store without tags ignores them.
    """

    key: str
    body: Body = field(repr=False)
    condition: Condition
    crc32c: int | None = None
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of at most ``MAX_DELETE_KEYS`` keys at once."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class List:
    """One page of at most ``limit`` keys that begin with ``prefix``, after ``start_after``."""

    prefix: str
    start_after: str = ""
    limit: int = LIST_KEYS


@dataclass(frozen=True, slots=True)
class StartUpload:
    """Start of a multipart upload; gives :class:`UploadStarted`."""

    key: str
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UploadPart:
    """Part ``number`` (from 1): ``body[start:end]``; gives :class:`PartStored`. Safe to retry."""

    key: str
    upload_id: str
    number: int
    body: ByteSource = field(repr=False)
    start: int
    end: int
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class CompleteUpload:
    """End of a multipart upload: creates the object (``If-None-Match: *``); gives a :class:`PutResult`.

    ``UNKNOWN`` includes ``NoSuchUpload`` after an attempt whose response was lost: a HEAD of the key decides. That is
    valid only because the key is unique and never reused.
    """

    key: str
    upload_id: str
    parts: tuple[PartStored, ...]


@dataclass(frozen=True, slots=True)
class AbortUpload:
    """Deletion of a multipart upload; an unknown upload is a success."""

    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class ListUploads:
    """Multipart uploads, neither completed nor aborted, of keys that begin with ``prefix``; gives :class:`UploadPage`.

    ``after``: the marker of the previous page. For a sweep alone, never on a hot path. ``everywhere`` lists the whole
    bucket, for a server that takes ``prefix`` for a whole key.
    """

    prefix: str
    after: tuple[str, str] = ("", "")
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class ListVersions:
    """Versions of the object ``key`` that the store keeps, newest first; gives :class:`Versions`.

    ``after`` is the version id at which the previous page ended. Only ``repair`` and ``check`` list versions.
    """

    key: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Wait before attempt ``attempt`` (from 1): full jitter, bounded, without a request. Gives None.

    ``most_seconds`` bounds it further, for example by the time until a deadline.
    """

    attempt: int
    most_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until ``signal`` is set, at most ``seconds``, without a request. Gives None."""

    signal: Signal
    seconds: float


@dataclass(frozen=True, slots=True)
class Now:
    """Reading of the driver's clocks; gives a :class:`Time`, so that steps read none."""


@dataclass(frozen=True, slots=True)
class NewId:
    """Request for a fresh id of 32 hex digits, so that steps need no randomness."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """Local work that may wait for the disk, in the middle of a protocol: what must be durable before the next request.
    Gives what ``call`` returns; its ``TieredError`` is thrown into the steps.

    The asyncio driver calls it in a thread and, when cancelled, waits until it has ended. Otherwise an abandoned write
    could overwrite a later one.
    """

    call: Callable[[], Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Together:
    """Requests that may run at the same time; gives a tuple of outcomes in the same order.

    If one raises, the others finish first, then the first exception is raised. With ``errors``, exceptions take the
    place of their outcomes and none is raised.
    """

    requests: tuple[StoreRequest, ...]
    errors: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """Request in the background; gives a ticket. The steps decide how many are in flight.

    Requests in flight at the end of the steps are abandoned: begin none that changes the store.
    """

    request: StoreRequest


@dataclass(frozen=True, slots=True)
class Take:
    """Wait for a request that :class:`Begin` began: gives its outcome, or throws its error. Take a ticket once."""

    ticket: object = field(repr=False)


@dataclass(frozen=True, slots=True)
class Emit:
    """A value for the consumer of the steps (``drive_stream``); gives None when the next one is wanted."""

    value: Any = field(repr=False)


StoreRequest = (
    Get
    | Head
    | Put
    | Delete
    | List
    | StartUpload
    | UploadPart
    | CompleteUpload
    | AbortUpload
    | ListUploads
    | ListVersions
)
Request = StoreRequest | Backoff | Wait | Now | NewId | Blocking | Together | Begin | Take | Emit


@dataclass(frozen=True, slots=True)
class Object:
    """An object or a range of it. ``size`` is that of the whole object.

    ``crc32c`` is the stored full-object checksum, None if the store returns none. ``date_ms`` is the store's clock.
    ``archived``: the storage class of an object that must be restored before it can be read, otherwise empty.
    ``encryption``: its method and key as the store reports them, or empty. ``lent``: the read-only bytes of a GET with
    ``lend``, from a store that lends; ``data`` is empty then.
    """

    data: bytes = field(repr=False)
    etag: str
    size: int
    last_modified_ms: int = 0
    date_ms: int = 0
    crc32c: int | None = None
    encryption: str = ""
    archived: str = ""
    lent: memoryview | None = field(default=None, repr=False)

    @property
    def body(self) -> bytes | memoryview:
        """Bytes of the object, lent or not."""
        return self.data if self.lent is None else self.lent


@dataclass(frozen=True, slots=True)
class Missing:
    """Outcome for an absent key."""


@dataclass(frozen=True, slots=True)
class NotModified:
    """Outcome for an ETag that is still current."""


class PutStatus(enum.Enum):
    """Result of a conditional PUT."""

    LANDED = "landed"
    LOST = "lost"  # 412: this attempt did not land
    CONFLICT = "conflict"  # 409: did not land, send the same again
    ABSENT = "absent"  # 404 to If-Match: the key is gone
    UNKNOWN = "unknown"  # 5xx, timeout, reset: landed, lost or still under way


@dataclass(frozen=True, slots=True)
class PutResult:
    """Result of a PUT. ``etag`` and ``crc32c`` (as stored, None if not returned) only if landed; ``cause`` if unknown.

    ``slow_down``: the store refused the request as too many.
    """

    status: PutStatus
    etag: str = ""
    crc32c: int | None = None
    cause: str = ""
    slow_down: bool = False


ACCESS_DENIED = "AccessDenied"
"""Reason reported for a key that a role must not delete."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """Keys that the store refused to delete, each with its reason; all others are gone.

    ``one_by_one``: the store refuses to delete several keys at once, so that each was a request of its own.
    """

    failed: tuple[tuple[str, str], ...] = ()
    one_by_one: bool = False


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One key of a listing."""

    key: str
    size: int
    etag: str
    last_modified_ms: int
    storage_class: str = "STANDARD"


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing; ``more``: ask again with ``start_after`` the last key."""

    entries: tuple[ListEntry, ...]
    more: bool
    date_ms: int = 0


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """One multipart upload, begun at ``started_ms`` by the store's clock."""

    key: str
    upload_id: str
    started_ms: int


@dataclass(frozen=True, slots=True)
class UploadPage:
    """One page of unfinished multipart uploads; ``after`` is the marker of the next page, None after the last.

    ``by_key``: this server takes a prefix for a whole key, so that the page does not cover the keys below it.
    """

    entries: tuple[UnfinishedUpload, ...]
    after: tuple[str, str] | None = None
    date_ms: int = 0
    by_key: bool = False

    @classmethod
    def page_of(cls, found: Iterable[UnfinishedUpload], after: tuple[str, str], date_ms: int) -> UploadPage:
        """Return the page after ``after``, for a store that has all uploads in memory; ordered by key and id."""
        behind = sorted(
            (each for each in found if (each.key, each.upload_id) > after), key=lambda x: (x.key, x.upload_id)
        )
        entries = tuple(behind[:MAX_PAGE_UPLOADS])
        last = (entries[-1].key, entries[-1].upload_id) if len(behind) > len(entries) else None
        return cls(entries, last, date_ms)


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One version of an object. Delete markers are left out."""

    version: str
    size: int
    etag: str
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class Versions:
    """One page of versions, newest first; ``after`` is where the next page begins, None at the end.

    ``supported`` is False for a store that keeps no versions, such as a directory.
    """

    entries: tuple[ObjectVersion, ...]
    after: str | None = None
    supported: bool = True


@dataclass(frozen=True, slots=True)
class UploadStarted:
    """Id of a multipart upload; journal it before the first part."""

    upload_id: str


@dataclass(frozen=True, slots=True)
class PartStored:
    """An acknowledged part."""

    number: int
    etag: str
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Time:
    """Readings of the clocks: ``now_ms`` of the wall clock, ``monotonic`` seconds that never go back."""

    now_ms: int
    monotonic: float


Outcome = (
    Object
    | Missing
    | NotModified
    | PutResult
    | Deleted
    | ListPage
    | UploadStarted
    | PartStored
    | UploadPage
    | Versions
    | Time
    | str
    | None
)

T = TypeVar("T")
Steps = Generator[Request, Any, T]
"""Protocol without I/O: yields requests, receives their outcomes, returns ``T``."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Findings of the probe. ``conditional_writes`` False means two writers could both win."""

    conditional_writes: bool
    ranges: bool
    returns_crc32c: bool
    verifies_crc32c: bool
    multi_delete: bool = True


INCAPABLE = Capabilities(conditional_writes=False, ranges=False, returns_crc32c=False, verifies_crc32c=False)
"""Capabilities of a store that was not probed, because it is only read, or that has none of them."""


class Store(Protocol):
    """A store of objects, synchronous and thread-safe. ``url`` is safe to print: it has no credentials."""

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``, ``file:///dir`` or ``memory://name``."""

    def execute(self, request: StoreRequest) -> Outcome:
        """Make one attempt. Raises RemoteUnavailableError, RemotePermissionError, NotFoundError (no bucket)."""

    def close(self) -> None:
        """Release connections. Objects stay."""


class AioStore(Protocol):
    """A store for asyncio. Cancelling ``execute`` leaves no task."""

    @property
    def url(self) -> str:
        """URL without credentials, like :attr:`Store.url`."""

    async def execute(self, request: StoreRequest) -> Outcome:
        """Make one attempt."""

    async def close(self) -> None:
        """Release connections."""


class StoreAround:
    """Base of a store around another one; subclasses have their own ``execute``."""

    def __init__(self, inner: Store) -> None:
        self.inner, self.url = inner, inner.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()


def sent_bytes(request: StoreRequest) -> int:
    """Return the bytes of body that ``request`` uploads."""
    match request:
        case Put(body=body):
            return len(body) if isinstance(body, bytes) else body.size
        case UploadPart(start=start, end=end):
            return end - start
        case _:
            return 0
