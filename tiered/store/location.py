"""Location of a store, from a URL: checked before anything is touched, opened with retries, limits and metrics.

Operations on whole logs take a :data:`Place`: a URL, a path or an open store.

::

    s3://bucket/prefix        S3; s3://bucket/prefix?endpoint=http://host:9000 is a server that speaks it
    file:///dir, ./dir, /dir  objects as files of a folder
    memory://name             objects of this process

The query of an S3 URL has the words of :data:`QUERY_WORDS`, as ``?endpoint=URL&region=R&sse=aws:kms&kms_key=K``.

The layers around the store are, from the outside: retries, limits, metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Unpack, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tiered.arguments import at_home, has
from tiered.clock import Clock, IdSource
from tiered.config import S3Keywords
from tiered.errors import ClosedError, ConfigError
from tiered.store.aio_driver import in_thread
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import AioStore, Outcome, Store, StoreRequest
from tiered.store.directory import DirectoryStore
from tiered.store.directory_files import refuse_overlap, require_store_folder
from tiered.store.key_rules import check_key
from tiered.store.layers import AioLayeredStore, Layer, LayeredStore
from tiered.store.memory import MemoryStore
from tiered.store.metrics import Meter, StoreMetrics
from tiered.store.options import DEFAULTS, StoreOptions
from tiered.store.retry import Retries
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import (
    KMS,
    SSE,
    S3Target,
)
from tiered.store.threads import ThreadPool

MAX_PREFIX_BYTES = 512
"""Longest prefix in a bucket: the rest of S3's 1,024 bytes a key is for the keys below it."""

S3Word = Literal["expected_bucket_owner", "sse", "sse_kms_key_id"]
SCHEMES = ("s3", "file", "memory")
QUERY_WORDS = {
    "endpoint": "endpoint_url",
    "region": "region",
    "owner": "expected_bucket_owner",
    "sse": "sse",
    "kms_key": "sse_kms_key_id",
}
"""Words of an S3 URL's query, and the keywords that they set."""
_ENDPOINT_VARIABLES = ("TIERED_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES = ("TIERED_REGION", "AWS_REGION", "AWS_DEFAULT_REGION")
_ACCOUNT = re.compile(r"[0-9]{12}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IP_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_MEMORY_NAME = re.compile(r"[A-Za-z0-9._-]*")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
URL_HINT = "use s3://bucket/prefix, s3://bucket/prefix?endpoint=http://host:port, or file:///dir"

AIO_THREADS = 8
"""Requests of a threaded store in flight at once; more wait."""

LEAST_TIMEOUT_SECONDS = 0.1
"""Shortest timeout of a request, whatever the deadline is."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Checked URL of a store and its connection settings. ``str()`` is the URL; it has no credentials."""

    scheme: str
    bucket: str = ""
    prefix: str = ""
    path: Path | None = None
    target: S3Target | None = None

    @classmethod
    def parse(
        cls,
        url: str | os.PathLike[str] | StoreLocation,
        *,
        environ: Mapping[str, str] | None = None,
        **s3: Unpack[S3Keywords],
    ) -> StoreLocation:
        """Parse a URL without touching disk or network. Raises ``ConfigError`` if it cannot be a store.

        The query of the URL has precedence over keywords, these over the variables ``TIERED_*`` of ``environ``
        (default: the process's). The endpoint defaults to ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``. The region
        defaults to ``AWS_REGION`` or ``AWS_DEFAULT_REGION``, then to that of the AWS profile. Credentials come from the
        AWS chain only.
        """
        if isinstance(url, StoreLocation):
            return url
        scheme, rest = _split_scheme(url)
        if scheme != "s3" and any(value is not None for value in s3.values()):
            raise ConfigError(
                f"{' and '.join(s3)} cannot be used with {scheme}://", hint="leave them out: they are for s3:// only"
            )
        if isinstance(rest, Path):
            return cls("file", path=rest)
        if scheme == "file":
            return cls("file", path=_parse_folder(rest))
        if scheme == "memory":
            name, prefix = _parse_memory(rest)
            return cls("memory", bucket=name, prefix=prefix)
        environ = os.environ if environ is None else environ
        rest, query = split_query(rest)
        s3 = {**s3, **query}
        bucket, prefix = _parse_bucket(rest)
        sse, key = _encryption(s3, environ)
        target = S3Target(
            bucket,
            prefix,
            endpoint_url=_endpoint(s3.get("endpoint_url"), environ),
            region=s3.get("region") or _first(environ, _REGION_VARIABLES)[1],
            expected_bucket_owner=_owner(s3, environ),
            sse=sse,
            sse_kms_key_id=key,
        )
        return cls("s3", bucket, prefix, target=target)

    @property
    def url(self) -> str:
        """Canonical URL, without query and credentials."""
        if self.path is not None:
            return self.path.absolute().as_uri()
        if self.target is not None:
            return self.target.url
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def __str__(self) -> str:
        return self.url

    def require_folder(self) -> None:
        """Raise NotFoundError for a ``file://`` folder that is absent or has foreign contents only.

        Raise ConfigError if a file is there. An empty folder is an empty store. Other kinds of store are not checked.
        """
        if self.path is not None:
            require_store_folder(self.path)

    def refuse_overlap(self, *directories: Path) -> None:
        """Raise ConfigError if this ``file://`` folder lies in one of the log ``directories``, or contains one.

        A log directory in this folder counts only below a name that the store uses for objects. Other kinds of store
        are not checked.
        """
        if self.path is not None:
            for directory in directories:
                refuse_overlap(self.path, directory)

    def raw_store(self, *, clock: Clock | None = None, ids: IdSource | None = None, create: bool = True) -> Store:
        """Open the store without layers: one attempt per request. ``create``: make the folder of a ``file://`` URL."""
        if self.path is not None:
            return DirectoryStore(self.path, clock=clock, ids=ids, create=create)
        if self.scheme == "memory":
            return MemoryStore(self.bucket, prefix=self.prefix, clock=clock)
        return S3Store(self.s3)

    @property
    def s3(self) -> S3Target:
        """Bucket and its connection settings. Raises ConfigError for other kinds of store."""
        if self.target is None:
            raise ConfigError(f"{self.url} does not name an S3 bucket", hint="use s3://bucket/prefix")
        return self.target

    def _within(self, seconds: float) -> StoreLocation:
        """Return the same location, with timeouts no longer than the deadline of repeats."""
        if self.target is None or seconds >= self.target.read_timeout_seconds:
            return self
        read_seconds = max(seconds, LEAST_TIMEOUT_SECONDS)
        connect_seconds = min(read_seconds, self.target.connect_timeout_seconds)
        target = replace(self.target, connect_timeout_seconds=connect_seconds, read_timeout_seconds=read_seconds)
        return replace(self, target=target)

    def open(self, options: StoreOptions = DEFAULTS) -> Store:
        """Open the store with its layers: it retries what is safe, respects its limits and counts its requests."""
        within = self._within(options.deadline_seconds)
        store = within.raw_store(clock=options.clock, ids=options.ids, create=options.create)
        for layer in self._layers(options):
            store = LayeredStore(store, layer)
        return store

    def open_aio(self, options: StoreOptions = DEFAULTS) -> AioStore:
        """Open the store for asyncio, with retries, limits and counts of its requests.

        ``s3://`` is opened by aiobotocore, other stores on a thread pool.
        """
        store: AioStore
        if self.target is not None:
            store = AioS3Store(self._within(options.deadline_seconds).s3)
        else:
            store = ThreadedAioStore(self.raw_store(clock=options.clock, ids=options.ids, create=options.create))
        for layer in self._layers(options):
            store = AioLayeredStore(store, layer)
        return store

    def _layers(self, options: StoreOptions) -> list[Layer]:
        """Return the layers around the store, from the inside."""
        clock = options.clock
        metrics = options.metrics or StoreMetrics()
        meter = Meter(self.url, metrics, clock=clock, notice_outages=options.notice_outages)
        retries = Retries(clock=clock, ids=options.ids, deadline_seconds=options.deadline_seconds)
        return [meter, retries] if options.limits is None else [meter, options.limits, retries]


def open_store(
    url: str | os.PathLike[str] | StoreLocation, options: StoreOptions = DEFAULTS, **s3: Unpack[S3Keywords]
) -> Store:
    """Open the store at ``url``, with retries, limits and counts of its requests. ``s3``: settings of an S3 URL.

    Opening makes no connection; the first request does. Raises ConfigError for a wrong URL or setting.
    """
    return StoreLocation.parse(url, **s3).open(options)


def _split_scheme(url: str | os.PathLike[str]) -> tuple[str, str | Path]:
    """Return (scheme, text after ``scheme:``). A path, or text without a scheme, gives ("file", absolute path).

    Raises ConfigError for an unsupported scheme and for text that is no URL.
    """
    if isinstance(url, os.PathLike):
        return "file", _absolute(at_home("the store", Path(url)))
    if not isinstance(url, str):
        raise ConfigError(f"a store URL is text or a path, not {type(url).__name__}")
    if not url or url != url.strip() or any(ord(c) < 0x20 or ord(c) == 0x7F for c in url):
        raise ConfigError("the store URL is empty, has a space at its start or end, or has control characters")
    found = _SCHEME.fullmatch(url)
    if found is None:
        return "file", _absolute(at_home("the store", Path(url)))
    scheme, rest = found.group(1).lower(), found.group(2)
    if scheme not in SCHEMES:
        raise ConfigError(f"the scheme {scheme}:// is not supported", hint=URL_HINT)
    if not rest.startswith("//"):
        raise ConfigError(f"{scheme}: is not followed by two slashes", hint=URL_HINT)
    return scheme, rest


def _absolute(path: Path) -> Path:
    return path.resolve() if ".." in path.parts else path.absolute()


def _split_rest(scheme: str, rest: str) -> SplitResult:
    """Split ``rest``, the text after ``scheme:``, into authority and path.

    Raises ConfigError for a wrong port, a user name, a query or a fragment. The error repeats no secret.
    """
    try:
        parts = urlsplit(f"x:{rest}")
        parts.port  # noqa: B018 - raises for a port that is none
    except ValueError as error:
        raise ConfigError(f"the {scheme}:// URL cannot be read", hint="check the part after the two slashes") from error
    if "@" in parts.netloc:
        raise ConfigError(
            f"the {scheme}:// URL holds a user name or a key",
            hint="credentials come from the environment, the AWS profile or the role; take them out of the URL",
        )
    if "?" in rest or "#" in rest:
        raise ConfigError(
            f"the {scheme}:// URL has a query or a fragment", hint="only s3:// has a query: ?endpoint=URL&region=NAME"
        )
    return parts


def split_query(url: str) -> tuple[str, S3Keywords]:
    """Return (S3 URL without its query, settings in the query).

    Raises ConfigError for a setting that is unknown, empty or given twice.
    """
    head, mark, query = url.partition("?")
    found: dict[str, str] = {}
    for word, value in parse_qsl(query, keep_blank_values=True) if mark else ():
        if word not in QUERY_WORDS:
            words = ", ".join(QUERY_WORDS)
            raise ConfigError(f"{word!r} in the query of the s3:// URL is not known", hint=f"its words are {words}")
        if not value or QUERY_WORDS[word] in found:
            wrong = "is given twice" if value else "is empty"
            raise ConfigError(
                f"{word} in the query of the s3:// URL {wrong}", hint="give it one value, or leave it out"
            )
        found[QUERY_WORDS[word]] = value
    return head, cast("S3Keywords", found)


def _parse_folder(rest: str) -> Path:
    authority, slash, path = rest[2:].partition("/")
    if authority not in ("", "localhost"):
        raise ConfigError(
            f"file://{authority} names a host, not a folder",
            hint="write file:///absolute/dir, or a path without file://",
        )
    folder = unquote(slash + path)
    if "\0" in folder or not folder.strip("/"):
        raise ConfigError("the file:// URL names no folder", hint="write file:///absolute/dir")
    if ".." in folder.split("/"):
        raise ConfigError(f"the folder {folder!r} has the part '..'", hint="write the path without it")
    return Path(folder)


def _parse_memory(rest: str) -> tuple[str, str]:
    parts = _split_rest("memory", rest)
    if not _MEMORY_NAME.fullmatch(parts.netloc):
        raise ConfigError(f"memory://{parts.netloc} is not a name", hint="use letters, digits, '.', '_' and '-'")
    return parts.netloc, _parse_prefix(parts.path)


def _parse_bucket(rest: str) -> tuple[str, str]:
    if rest.startswith("//arn:"):
        raise ConfigError("an ARN is not a bucket name", hint="use the bucket, or the alias of the access point")
    parts = _split_rest("s3", rest)
    bucket = parts.netloc
    if not bucket:
        raise ConfigError("the s3:// URL names no bucket", hint="write s3://bucket/prefix")
    if ":" in bucket:
        raise ConfigError(f"s3://{bucket} has a port", hint="write s3://bucket/prefix?endpoint=http://host:port")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket or _IP_ADDRESS.fullmatch(bucket):
        raise ConfigError(
            f"{bucket!r} is not a bucket name",
            hint="use 3 to 63 of a-z, 0-9, '-' and '.', a letter or digit at both ends, no '..', no IP address",
        )
    return bucket, _parse_prefix(parts.path)


def _parse_prefix(path: str) -> str:
    prefix = path.removeprefix("/").removesuffix("/")
    if not prefix:
        if path not in ("", "/"):
            raise ConfigError("the prefix of the store URL has an empty part", hint="write '/' once in place of '//'")
        return ""
    check_key(prefix, what="prefix of the store URL")
    if len(prefix.encode()) > MAX_PREFIX_BYTES:
        raise ConfigError(f"the prefix has {len(prefix.encode())} bytes", hint=f"use at most {MAX_PREFIX_BYTES}")
    return prefix


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str | None]:
    for name in names:
        if environ.get(name):
            return name, environ[name]
    return "", None


def _word(s3: S3Keywords, word: S3Word, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Return (the keyword or the variable that sets ``word``, its value); (``""``, None) if none sets it."""
    given = s3.get(word)
    return (word, given) if given else _first(environ, (f"TIERED_{word.upper()}",))


def _owner(s3: S3Keywords, environ: Mapping[str, str]) -> str | None:
    origin, owner = _word(s3, "expected_bucket_owner", environ)
    if owner is not None and not _ACCOUNT.fullmatch(owner):
        raise ConfigError(f"{origin} {owner!r} is not an account id", hint="write its 12 digits, as 123456789012")
    return owner


def _encryption(s3: S3Keywords, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    origin, sse = _word(s3, "sse", environ)
    if sse is not None and sse not in SSE:
        raise ConfigError(
            f"{origin} is {sse!r}, which is unknown",
            hint=f"use {' or '.join(SSE)}, or leave it out for the bucket's default",
        )
    origin, key = _word(s3, "sse_kms_key_id", environ)
    if key is not None and sse != KMS:
        raise ConfigError(f"{origin} is given without sse {KMS}", hint=f"set sse to {KMS}, or leave the key out")
    return sse, key


def _endpoint(given: str | None, environ: Mapping[str, str]) -> str | None:
    origin, url = ("endpoint_url", given) if given else _first(environ, _ENDPOINT_VARIABLES)
    if not url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{origin} is not a URL", hint="write http://host:port or https://host") from error
    if "@" in parts.netloc:
        raise ConfigError(
            f"{origin} holds a user name or a key",
            hint="give credentials by the environment, the AWS profile or the role",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"{origin} {url!r} is not the URL of a server", hint="write http://host:port or https://host")
    if parts.query or parts.fragment or any(c.isspace() for c in url):
        raise ConfigError(f"{origin} has a query, a fragment or a space", hint="write http://host:port or https://host")
    return url.rstrip("/")


class ThreadedAioStore:
    """An :class:`~tiered.store.base.AioStore` over any thread-safe :class:`Store`.

    A cancelled request that has begun runs to its end on its thread: a cancelled PUT may land.
    """

    def __init__(self, inner: Store, *, threads: int = AIO_THREADS) -> None:
        self.inner = inner
        self._pool = ThreadPool(threads, "tiered-store")
        self._closed = False

    @property
    def url(self) -> str:
        """URL of the inner store."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"ThreadedAioStore({self.inner!r})"

    async def execute(self, request: StoreRequest) -> Outcome:
        """Send one request, without repeats, on a thread."""
        if self._closed:
            raise ClosedError(f"{self.url} was closed")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.inner.execute, request)

    async def close(self) -> None:
        """Wait for requests that have begun, cancel the others, then close the inner store."""
        self._closed = True
        await in_thread(self._pool.shutdown, wait=True, cancel_futures=True)
        self.inner.close()


Place = Store | str | Path
"""An open store, or the URL or path of a store that is opened for the call."""
LOOK = StoreOptions(create=False)
"""Options of a store that is opened for one call: no folder is made."""


@contextlib.contextmanager
def open_place(place: Place, s3: S3Keywords) -> Iterator[Store]:
    """Return a context manager that gives the store ``place``. ``s3``: settings of an S3 URL.

    A store that is opened from a URL or path is closed at the end. An open store stays open. Raises NotFoundError for a
    folder that is no store. Raises ConfigError for a wrong URL or an object that is no store.
    """
    if not isinstance(place, str | os.PathLike):
        yield has("remote", place, ("execute",), "a URL, a path or an open store")
        return
    store = locate(place, s3).open(LOOK)
    try:
        yield store
    finally:
        store.close()


def location_of(place: Place, s3: S3Keywords) -> StoreLocation | None:
    """Return the location of a URL or path; None for an open store. ``s3``: settings of an S3 URL.

    Creates no folder. Raises NotFoundError for a folder that is no store, ConfigError for a wrong URL.
    """
    return locate(place, s3) if isinstance(place, str | os.PathLike) else None


def locate(place: str | Path, s3: S3Keywords) -> StoreLocation:
    """Return the location for a URL or path. Creates no folder. ``s3``: settings of an S3 URL.

    Raises NotFoundError for a folder that is no store, ConfigError for a wrong URL.
    """
    location = StoreLocation.parse(place, **s3)
    location.require_folder()
    return location
