"""The store contract: requests, outcomes, and who may retry what.

Everything that talks to a store in more than one step is written as *steps*: a generator that yields frozen
requests and receives their outcomes (``yield Get(key)`` gives an :class:`Object` or :class:`Missing`). A driver
(``store.driver``) carries the requests out on a :class:`Store` or an :class:`AioStore`. Keys are relative to
the URL that the store was opened with; they never begin with ``/`` and hold no empty, ``.`` or ``..`` part.

Hard rules, checked for each backend by ``tiered.testing.store_contract``:

* ``execute`` makes one attempt. It never retries; ``store.retry`` wraps it and retries what is safe.
* A conditional PUT has three results: landed, lost, unknown; ``CONFLICT`` (409) is "did not land, send the same
  again". It is never retried below the steps that sent it. An unconditional PUT does not exist.
* An absent key is an outcome (:class:`Missing`), never an exception. A refusal is ``RemotePermissionError``, an
  absent bucket ``NotFoundError``, all that may pass by itself ``RemoteUnavailableError``; a PUT whose outcome is
  not known is never raised but returned as ``UNKNOWN``.
* GET after a landed PUT sees it (strong consistency). LIST is in UTF-8 order where the store does so; callers sort.
* DELETE of an absent key succeeds.
* A GET whose body would be larger than ``Get.body_limit`` raises CorruptionError; no more than that is read of it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from tiered.errors import ConfigError, CorruptionError
from tiered.model import ByteSource

MAX_DELETE_KEYS = 1000
"""Keys of one :class:`Delete`, S3's limit."""

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Largest body of a GET that names neither an end nor a limit of its own."""

LIST_KEYS = 1000
"""Keys of one page of a listing, S3's limit."""

MAX_PAGE_UPLOADS = 1000
"""Uploads of one page of :class:`Uploads`, S3's limit."""

MIN_PART_BYTES = 5 * 1024 * 1024
"""Smallest part of a multipart upload but the last, S3's limit."""

Body = bytes | ByteSource


@dataclass(frozen=True, slots=True)
class Match:
    """``If-Match``: the PUT lands only on the version with this ETag (opaque, quotes included)."""

    etag: str


@dataclass(frozen=True, slots=True)
class Absent:
    """``If-None-Match: *``: the PUT lands only where the key does not exist."""


ABSENT = Absent()
Condition = Match | Absent


@dataclass(frozen=True, slots=True)
class Get:
    """Bytes ``start`` to ``end`` (exclusive, None: to the end) of an object; both None-able ends default to all.

    A range that begins at or beyond the size gives an :class:`Object` with no data. ``if_none_match``: an
    ETag; gives :class:`NotModified` while it is current. A body larger than ``max_bytes``, of a GET without
    ``end``, is refused with CorruptionError before it is in memory. ``lend``: the body may come in a buffer that is
    used again when nobody refers to it (``Object.lent``). ``version``: the id of an older version (``ListVersions``).
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
        """Most bytes that an answer may have, also one of a server that ignores ranges."""
        return self.max_bytes if self.end is None else max(self.max_bytes, self.end)

    def check_body(self, size_bytes: int) -> None:
        """Raises CorruptionError if an answer of ``size_bytes`` is larger than what was asked for can be."""
        if size_bytes > self.max_bytes and size_bytes > self.body_limit:
            raise CorruptionError(
                f"the object {self.key} has {size_bytes} bytes, {self.body_limit} are the most that is read of it",
                path_or_key=self.key,
                position=self.body_limit,
                hint="it is not the object that was stored: look for another version of it in the bucket, run check",
            )


@dataclass(frozen=True, slots=True)
class Head:
    """Size, ETag and checksum of an object, without its data."""

    key: str


@dataclass(frozen=True, slots=True)
class Put:
    """One object, whole, under a condition. ``crc32c`` is sent and, where the store can, verified by it.

    ``tags`` are object tags (``kind=segment``); a store without tags ignores them.
    """

    key: str
    body: Body = field(repr=False)
    condition: Condition
    crc32c: int | None = None
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """At most ``MAX_DELETE_KEYS`` keys, at once."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class List:
    """Keys that begin with ``prefix``, after ``start_after``; one page of at most ``limit``."""

    prefix: str
    start_after: str = ""
    limit: int = LIST_KEYS


@dataclass(frozen=True, slots=True)
class StartUpload:
    """Begins a multipart upload; gives :class:`UploadStarted`."""

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
    """Makes the object visible, create-only (``If-None-Match: *``); gives a :class:`PutResult`.

    ``UNKNOWN`` includes ``NoSuchUpload`` after an attempt whose answer was lost: HEAD the key to settle it
    (legal here because the key is unique and never reused).
    """

    key: str
    upload_id: str
    parts: tuple[PartStored, ...]


@dataclass(frozen=True, slots=True)
class AbortUpload:
    """Throws a multipart upload away; an unknown upload is a success."""

    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class ListUploads:
    """Multipart uploads, neither completed nor aborted, of keys that begin with ``prefix``; gives :class:`Uploads`.

    ``after``: where the page before says that the next one begins. For a sweep alone, never on a hot path.
    ``everywhere``: those of the whole bucket are asked for, of a server that takes ``prefix`` for a whole key.
    """

    prefix: str
    after: tuple[str, str] = ("", "")
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class ListVersions:
    """Versions of the object ``key`` that the store keeps, newest first; gives :class:`Versions`.

    ``after`` is the version id at which the page before ended. Only ``repair`` and ``check`` ask for versions.
    """

    key: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Wait before attempt ``attempt`` (from 1): full jitter, bounded; no store is touched. Gives None.

    ``most_seconds``: no longer than this, whatever the attempt: what is left until a deadline.
    """

    attempt: int
    most_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Now:
    """Gives a :class:`Time`: the driver's clocks, so that steps read none."""


@dataclass(frozen=True, slots=True)
class NewId:
    """Gives a fresh 32-hex-digit id, so that steps need no randomness."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """Work on this machine that may wait for its disk, in the middle of a protocol: what must be durable before the
    next request. No store is touched. Gives what ``call`` returns; its ``TieredError`` is thrown into the steps.

    The asyncio driver calls it in a thread and, when cancelled, waits until it has ended: a write that went on behind
    its caller's back could replace what a later one has written.
    """

    call: Callable[[], Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Together:
    """Requests that may run at the same time; gives a tuple of outcomes in the same order.

    If one raises, the others finish first, then the first exception is raised; with ``errors`` none is: what a request
    raised stands in the place of its outcome.
    """

    requests: tuple[StoreRequest, ...]
    errors: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """A request that is carried out behind the steps' back; gives a ticket. How many are under way is their business.

    What is under way when the steps end is thrown away: begin nothing that changes the store.
    """

    request: StoreRequest


@dataclass(frozen=True, slots=True)
class Take:
    """Waits for what :class:`Begin` began: gives its outcome, or throws its error. A ticket is taken once."""

    ticket: object = field(repr=False)


@dataclass(frozen=True, slots=True)
class Emit:
    """Hands ``value`` to whoever iterates over the steps (``drive_stream``); gives None when more is wanted."""

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
Request = StoreRequest | Backoff | Now | NewId | Blocking | Together | Begin | Take | Emit


@dataclass(frozen=True, slots=True)
class Object:
    """An object or a range of it. ``size`` is that of the whole object.

    ``crc32c`` is the stored full-object checksum, None if the store returns none. ``date_ms`` is the store's clock.
    ``archived``: the storage class of an object that must be restored before it can be read, else empty.
    ``encryption``: method and key of it, as the store tells; empty if it tells none. ``lent``: the bytes of a GET that
    said ``lend``, read-only, of a store that does; ``data`` is empty then.
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
        """The bytes, lent or not."""
        return self.data if self.lent is None else self.lent


@dataclass(frozen=True, slots=True)
class Missing:
    """No such key."""


@dataclass(frozen=True, slots=True)
class NotModified:
    """The ETag given is still current."""


class PutStatus(enum.Enum):
    """What became of a conditional PUT."""

    LANDED = "landed"
    LOST = "lost"  # 412: this attempt did not land
    CONFLICT = "conflict"  # 409: did not land, send the same again
    ABSENT = "absent"  # 404 to If-Match: the key is gone
    UNKNOWN = "unknown"  # 5xx, timeout, reset: landed, lost or still under way


@dataclass(frozen=True, slots=True)
class PutResult:
    """``etag`` and ``crc32c`` (as stored, None if not told) only if landed; ``cause`` says why if unknown.

    ``slow_down``: the store refused it as one request too many.
    """

    status: PutStatus
    etag: str = ""
    crc32c: int | None = None
    cause: str = ""
    slow_down: bool = False


ACCESS_DENIED = "AccessDenied"
"""The reason of a key that a role must not delete."""


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


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing; ``more`` tells whether to ask again with ``start_after`` the last key."""

    entries: tuple[ListEntry, ...]
    more: bool
    date_ms: int = 0


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """One multipart upload that was begun, by the store's clock at ``started_ms``."""

    key: str
    upload_id: str
    started_ms: int


@dataclass(frozen=True, slots=True)
class Uploads:
    """One page of unfinished multipart uploads; ``after`` is where the next one begins, None behind the last.

    ``by_key``: this server takes a prefix for a whole key, so that the page tells nothing of the keys below it.
    """

    entries: tuple[UnfinishedUpload, ...]
    after: tuple[str, str] | None = None
    date_ms: int = 0
    by_key: bool = False

    @classmethod
    def page_of(cls, found: Iterable[UnfinishedUpload], after: tuple[str, str], date_ms: int) -> Uploads:
        """The page behind ``after``, of a store that has all of them at hand; ordered by key and id."""
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
    """The id of a multipart upload; journal it before the first part."""

    upload_id: str


@dataclass(frozen=True, slots=True)
class PartStored:
    """An acknowledged part."""

    number: int
    etag: str
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Time:
    """``now_ms`` is the wall clock, ``monotonic`` seconds that never go back."""

    now_ms: int
    monotonic: float


Outcome = (
    Object
    | Missing
    | NotModified
    | PutResult
    | Deleted
    | Page
    | UploadStarted
    | PartStored
    | Uploads
    | Versions
    | Time
    | str
    | None
)

T = TypeVar("T")
Steps = Generator[Request, Any, T]
"""A protocol without I/O: yields requests, receives their outcomes, returns ``T``."""


def blocking(call: Callable[[], T]) -> Steps[T]:
    """What ``call`` gives, which may wait for this machine's disk."""
    found: T = yield Blocking(call)
    return found


def list_unfinished(prefix: str) -> Steps[tuple[list[UnfinishedUpload], int]]:
    """All unfinished multipart uploads below ``prefix``, and the store's clock when it listed the last of them."""
    found: list[UnfinishedUpload] = []
    after: tuple[str, str] | None = ("", "")
    page, everywhere = Uploads(()), False
    while after is not None:
        page = yield ListUploads(prefix, after, everywhere)
        if page.by_key:
            if everywhere:
                raise _no_advance(prefix, after[0], "key-marker")
            everywhere = True
            continue
        # Ids of one key have no order of their own: the same marker again is what does not advance.
        if page.after is not None and (page.after == after or page.after[0] < after[0]):
            raise _no_advance(prefix, after[0], "key-marker")
        found += page.entries
        after = page.after
    return found, page.date_ms


def list_page(prefix: str, after: str = "", limit: int = LIST_KEYS) -> Steps[Page]:
    """Return a page of the keys after ``after``. Raises ConfigError for one that does not advance: it has no end."""
    request = List(prefix, start_after=after, limit=limit)
    return advanced(request, (yield request))


def advanced(request: List, page: Page) -> Page:
    """Return ``page`` without the keys that ``request`` did not ask for. Raises ConfigError if it does not advance."""
    entries = tuple([entry for entry in page.entries if entry.key > request.start_after])
    if page.more and not entries:
        raise _no_advance(request.prefix, request.start_after, "start-after")
    return page if len(entries) == len(page.entries) else replace(page, entries=entries)


def _no_advance(prefix: str, after: str, parameter: str) -> ConfigError:
    return ConfigError(
        f"the listing below {prefix!r} does not advance: the store says that there is more after {after!r}, "
        "and does not give it",
        hint=f"the store, or a proxy before it, ignores {parameter}: upgrade it, or use another store",
    )


def list_versions(key: str) -> Steps[list[ObjectVersion]]:
    """Return the versions of ``key`` that the store keeps, newest first; none for a store without versions.

    Raises ConfigError for a listing that does not advance.
    """
    found: list[ObjectVersion] = []
    after: str | None = ""
    while after is not None:
        page: Versions = yield ListVersions(key, after)
        if page.after and page.after == after:
            raise _no_advance(key, after, "version-id-marker")
        found += page.entries
        after = page.after
    return found


def list_all(prefix: str, after: str = "") -> Steps[list[ListEntry]]:
    """Every key behind ``after`` that begins with ``prefix``, in order: for small listings. Others go page by page."""
    found: list[ListEntry] = []
    while True:
        page = yield from list_page(prefix, found[-1].key if found else after)
        found += page.entries
        if not page.more or not page.entries:
            return found


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the probe saw. ``conditional_writes`` False means two writers could both win."""

    conditional_writes: bool
    ranges: bool
    returns_crc32c: bool
    verifies_crc32c: bool
    multi_delete: bool = True


INCAPABLE = Capabilities(conditional_writes=False, ranges=False, returns_crc32c=False, verifies_crc32c=False)
"""What is believed of a store that was not probed, because it is only read, or that can do nothing of this."""


class Store(Protocol):
    """A place for objects, sync, thread-safe. ``url`` is safe to print: it holds no credentials."""

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``, ``file:///dir`` or ``memory://name``."""

    def execute(self, request: StoreRequest) -> Outcome:
        """One attempt. Raises RemoteUnavailableError, RemotePermissionError, NotFoundError (no bucket)."""

    def close(self) -> None:
        """Releases connections. Objects stay."""


class AioStore(Protocol):
    """The same for asyncio. Cancelling ``execute`` leaves no task behind."""

    @property
    def url(self) -> str:
        """As :attr:`Store.url`."""

    async def execute(self, request: StoreRequest) -> Outcome:
        """One attempt."""

    async def close(self) -> None:
        """Releases connections."""


class StoreAround:
    """What a store around another one hands on to it. Each has an ``execute`` of its own."""

    def __init__(self, inner: Store) -> None:
        self.inner, self.url = inner, inner.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def close(self) -> None:
        """Closes the inner store."""
        self.inner.close()


def sent_bytes(request: StoreRequest) -> int:
    """Bytes of body that ``request`` uploads."""
    match request:
        case Put(body=body):
            return len(body) if isinstance(body, bytes) else body.size
        case UploadPart(start=start, end=end):
            return end - start
        case _:
            return 0
