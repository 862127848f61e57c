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
    """Condition ``If-Match``: a PUT lands only if the object has this ETag (opaque, quotes included)."""

    etag: str


@dataclass(frozen=True, slots=True)
class Absent:
    """Condition ``If-None-Match: *``: a PUT lands only if the key does not exist."""


ABSENT = Absent()
Condition = Match | Absent


@dataclass(frozen=True, slots=True)
class Get:
    """Request for bytes ``start`` to ``end`` (exclusive, None: to the end) of an object; by default all bytes.

    A range that begins at or beyond the size gives an :class:`Object` with no data. ``if_none_match``: an ETag; gives
    :class:`NotModified` while it is current. A body larger than ``max_bytes``, of a GET without ``end``, raises
    CorruptionError before it is in memory. ``lend``: the body may come in a buffer that is reused once no view of it is
    left (``Object.lent``). ``version``: id of one version of the object in a versioned bucket (``ListVersions``);
    empty: the newest.
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
        """Largest accepted response body in bytes. It also applies to a server that ignores ranges."""
        return self.max_bytes if self.end is None else max(self.max_bytes, self.end)

    def check_body(self, size_bytes: int) -> None:
        """Raise CorruptionError if a body of ``size_bytes`` is larger than the request allows."""
        if size_bytes > self.max_bytes and size_bytes > self.body_limit:
            raise CorruptionError(
                f"the object {self.key} has {size_bytes} bytes, more than the limit of {self.body_limit}",
                path_or_key=self.key,
                position=self.body_limit,
                hint="`tiered check` names the damage; `tiered repair TOPIC --dry-run` shows if an older one exists",
            )


@dataclass(frozen=True, slots=True)
class Head:
    """Request for the size, ETag and checksum of an object, without its data."""

    key: str


@dataclass(frozen=True, slots=True)
class Put:
    """Request to store one whole object under a condition; gives a :class:`PutResult`.

    The store verifies ``crc32c`` if it can.

    ``tags`` are object tags (``kind=segment``); a store without tags ignores them.
    """

    key: str
    body: Body = field(repr=False)
    condition: Condition
    crc32c: int | None = None
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """Request to delete at most ``MAX_DELETE_KEYS`` keys."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class List:
    """Request for one page of at most ``limit`` keys that begin with ``prefix`` and come after ``start_after``."""

    prefix: str
    start_after: str = ""
    limit: int = LIST_KEYS


@dataclass(frozen=True, slots=True)
class StartUpload:
    """Request to start a multipart upload; gives :class:`UploadStarted`."""

    key: str
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UploadPart:
    """Request to upload part ``number`` (from 1), ``body[start:end]``; gives :class:`PartStored`. Safe to retry."""

    key: str
    upload_id: str
    number: int
    body: ByteSource = field(repr=False)
    start: int
    end: int
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class CompleteUpload:
    """Request to end a multipart upload and create its object (``If-None-Match: *``); gives a :class:`PutResult`.

    ``UNKNOWN`` includes ``NoSuchUpload`` after an attempt whose response was lost: a HEAD of the key decides. That is
    valid only because the key is unique and never reused.
    """

    key: str
    upload_id: str
    parts: tuple[PartStored, ...]


@dataclass(frozen=True, slots=True)
class AbortUpload:
    """Request to delete a multipart upload. If the upload is unknown, the request succeeds."""

    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class ListUploads:
    """Request for unfinished multipart uploads of keys that begin with ``prefix``; gives :class:`UploadPage`.

    ``after``: the marker of the previous page. Only the search for orphans and ``tiered cost`` send this
    request. ``everywhere`` lists the whole bucket, for a server that takes ``prefix`` for a whole key.
    """

    prefix: str
    after: tuple[str, str] = ("", "")
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class ListVersions:
    """Request for the versions of the object ``key`` that the store keeps, newest first; gives :class:`Versions`.

    ``after``: the version id at which the previous page ended. Only ``repair`` and ``check`` send this request.
    """

    key: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Request to wait a random time before retry ``attempt`` (from 1). Nothing is sent. Gives None.

    The bound of the time grows with ``attempt``. ``most_seconds`` is another bound, such as the time until a deadline.
    """

    attempt: int
    most_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Wait:
    """Request to wait until ``signal`` is set, at most ``seconds``. Nothing is sent. Gives None."""

    signal: Signal
    seconds: float


@dataclass(frozen=True, slots=True)
class Now:
    """Request for the driver's clocks, so that steps read none themselves; gives a :class:`Time`."""


@dataclass(frozen=True, slots=True)
class NewId:
    """Request for a new random id of 32 hex digits, so that steps use no randomness themselves."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """Request to call a function that may wait for the local disk, such as a durable write before the next request.

    Gives the result of ``call``; its ``TieredError`` is thrown into the steps. The asyncio driver calls it in a thread
    and, when cancelled, waits until it has ended. Otherwise an abandoned write could overwrite a later one.
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
    """Request to send ``request`` in the background; gives a ticket for :class:`Take`.

    The steps decide how many are in flight. Requests in flight at the end of the steps are abandoned, so ``request``
    must not change the store.
    """

    request: StoreRequest


@dataclass(frozen=True, slots=True)
class Take:
    """Request to wait for a background request of :class:`Begin`. Gives its outcome, or throws its error.

    Use a ticket once.
    """

    ticket: object = field(repr=False)


@dataclass(frozen=True, slots=True)
class Emit:
    """Value that steps emit to their consumer (``drive_stream``). Gives None when the consumer wants the next one."""

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
    """Outcome of a GET or HEAD: an object, or a range of it. ``size`` is that of the whole object.

    ``crc32c``: the stored full-object checksum, None if the store returns none. ``date_ms``: the store's clock
    at its answer, 0 if unknown. ``archived``: the storage class of an object that must be restored before it can be
    read, otherwise empty. ``encryption``: its method and key as the store reports them, or empty. ``lent``: the
    read-only bytes of a GET with ``lend``, from a store that lends; ``data`` is empty then.
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
        """Bytes of the outcome: ``lent`` if the store lent them, otherwise ``data``."""
        return self.data if self.lent is None else self.lent


@dataclass(frozen=True, slots=True)
class Missing:
    """Outcome of a GET or HEAD of a key that does not exist."""


@dataclass(frozen=True, slots=True)
class NotModified:
    """Outcome of a GET with ``if_none_match`` if the object still has this ETag."""


class PutStatus(enum.Enum):
    """Results of a conditional PUT."""

    LANDED = "landed"
    LOST = "lost"  # 412: this attempt did not land
    CONFLICT = "conflict"  # 409: did not land, send the same again
    ABSENT = "absent"  # 404 to If-Match: the key is gone
    UNKNOWN = "unknown"  # 5xx, timeout, reset: landed, lost or still under way


@dataclass(frozen=True, slots=True)
class PutResult:
    """Result of a PUT. ``etag``, ``crc32c``: those of the stored object if it landed; ``crc32c`` None: not returned.

    ``cause``: reason of an unknown outcome or a conflict. ``slow_down``: the store had too many requests.
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
    """Outcome of a :class:`Delete`. ``failed``: keys that the store refused to delete, with reasons. All others are
    deleted.

    ``one_by_one``: the store does not delete several keys at once, so each key was a request of its own.
    """

    failed: tuple[tuple[str, str], ...] = ()
    one_by_one: bool = False


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One key of a listing, with the size and time of its object."""

    key: str
    size: int
    etag: str
    last_modified_ms: int
    storage_class: str = "STANDARD"


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing. ``date_ms``: the store's clock, 0 if unknown.

    ``more``: True if another page follows; request it with the last key as ``start_after``.
    """

    entries: tuple[ListEntry, ...]
    more: bool
    date_ms: int = 0


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """Multipart upload that was neither completed nor aborted. ``started_ms``: its start, by the store's clock."""

    key: str
    upload_id: str
    started_ms: int


@dataclass(frozen=True, slots=True)
class UploadPage:
    """One page of unfinished multipart uploads; ``after`` is the marker of the next page, None after the last.

    ``date_ms``: the store's clock, 0 if unknown. ``by_key``: this server takes a prefix for a whole key, so that the
    page does not cover the keys below it.
    """

    entries: tuple[UnfinishedUpload, ...]
    after: tuple[str, str] | None = None
    date_ms: int = 0
    by_key: bool = False

    @classmethod
    def page_of(cls, found: Iterable[UnfinishedUpload], after: tuple[str, str], date_ms: int) -> UploadPage:
        """Return the page that follows the marker ``after``, ordered by key and upload id.

        ``found``: all uploads with the requested prefix, in any order. ``date_ms``: the store's clock.
        """
        behind = sorted(
            (each for each in found if (each.key, each.upload_id) > after), key=lambda x: (x.key, x.upload_id)
        )
        entries = tuple(behind[:MAX_PAGE_UPLOADS])
        last = (entries[-1].key, entries[-1].upload_id) if len(behind) > len(entries) else None
        return cls(entries, last, date_ms)


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One version of an object, in a bucket with versioning. ``version``: its id.

    Delete markers do not count as versions.
    """

    version: str
    size: int
    etag: str
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class Versions:
    """One page of versions, newest first. ``after``: marker for the request of the next page, None after the last.

    ``supported``: False for a store that keeps no versions, such as a directory.
    """

    entries: tuple[ObjectVersion, ...]
    after: str | None = None
    supported: bool = True


@dataclass(frozen=True, slots=True)
class UploadStarted:
    """Outcome of :class:`StartUpload`: the id of the upload. Journal it before the first part is sent."""

    upload_id: str


@dataclass(frozen=True, slots=True)
class PartStored:
    """Outcome of :class:`UploadPart`: a part that the store acknowledged."""

    number: int
    etag: str
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Time:
    """Readings of a driver's clocks: ``now_ms`` of the wall clock, and ``monotonic`` seconds, which never go back."""

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
    """Abilities of a store, as its probe found them. ``conditional_writes`` False: two writers could both win.

    ``ranges``: it serves byte ranges. ``returns_crc32c``: a HEAD has the stored checksum. ``verifies_crc32c``: it
    refuses a body with a wrong checksum. ``multi_delete``: it deletes several keys by one request.
    """

    conditional_writes: bool
    ranges: bool
    returns_crc32c: bool
    verifies_crc32c: bool
    multi_delete: bool = True


INCAPABLE = Capabilities(conditional_writes=False, ranges=False, returns_crc32c=False, verifies_crc32c=False)
"""Capabilities of a store that was not probed, because it is only read, or that has none of them."""


class Store(Protocol):
    """Store of objects, synchronous and thread-safe. ``url`` is safe to print: it has no credentials."""

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``, ``file:///dir`` or ``memory://name``."""

    def execute(self, request: StoreRequest) -> Outcome:
        """Send one request, in one attempt, and return its outcome.

        Raises RemoteUnavailableError (no answer, or busy), RemotePermissionError, NotFoundError (no bucket or upload),
        ClosedError (after ``close``). Raises CorruptionError for a wrong checksum or too large a body, ConfigError
        for a request or settings that the store refuses, ConditionalWritesUnsupportedError if it refuses conditions.
        """

    def close(self) -> None:
        """Release connections. Stored objects are not affected."""


class AioStore(Protocol):
    """Store of objects for asyncio. Cancelling ``execute`` leaves no task."""

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``, ``file:///dir`` or ``memory://name``, without credentials."""

    async def execute(self, request: StoreRequest) -> Outcome:
        """Send one request, in one attempt, and return its outcome.

        Raises RemoteUnavailableError (no answer, or busy), RemotePermissionError, NotFoundError (no bucket or upload),
        ClosedError (after ``close``). Raises CorruptionError for a wrong checksum or too large a body, ConfigError
        for a request or settings that the store refuses, ConditionalWritesUnsupportedError if it refuses conditions.
        """

    async def close(self) -> None:
        """Release connections."""


class StoreAround:
    """Base class of a store that wraps another one. Subclasses define ``execute``."""

    def __init__(self, inner: Store) -> None:
        self.inner, self.url = inner, inner.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def close(self) -> None:
        """Close the wrapped store."""
        self.inner.close()


def sent_bytes(request: StoreRequest) -> int:
    """Return the size of the body that ``request`` uploads, 0 for other requests."""
    match request:
        case Put(body=body):
            return len(body) if isinstance(body, bytes) else body.size
        case UploadPart(start=start, end=end):
            return end - start
        case _:
            return 0
