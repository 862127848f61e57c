"""S3 through boto3, and its clients, which the stores of one process share.

Stores share a client with the same settings and credentials. Only this module and ``aio_s3`` touch an SDK, which they
import with their first client.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import threading
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from tiered.errors import ClosedError, ConfigError, RemotePermissionError, TieredError, install_command
from tiered.format.buffers import BufferPool
from tiered.store.base import Get, Head, Outcome, StoreRequest
from tiered.store.key_rules import check_request
from tiered.store.s3_errors import translate, without_data
from tiered.store.s3_requests import S3Target, call_for, expect_of_large, forbid_redirect, mark_foreign_page, outcome_of
from tiered.store.sources import PIECE_BYTES

LEND_BYTES = 1024 * 1024
"""Size from which bodies are lent, if the request allows it: for small ones a fresh buffer costs nothing."""

POOL_BYTES = 64 * 1024 * 1024
"""Limit of the body buffers that one process keeps."""

BUFFERS = BufferPool(POOL_BYTES, LEND_BYTES)
"""Buffers of this process; empty while no store of it is open."""


IDLE_CLIENTS = 4
"""Unused clients that are kept for the next store; their connections are closed."""

_CREDENTIAL_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))


class S3Store:
    """Store on S3 or a compatible server, a :class:`~tiered.store.base.Store`. Thread-safe.

    Credentials come from the AWS chain only (environment, profile, role). After a refused request, the next
    request looks for newer credentials. Each call makes one attempt.
    """

    def __init__(self, target: S3Target) -> None:
        self.target = target
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._client: S3Client | None = None
        self._refused = False
        self._closed = False

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``."""
        return self.target.url

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def close(self) -> None:
        """Refuse further requests. Close the connections if no other store uses them."""
        self._leave_to_the_parent()
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            CLIENTS.release(client)
            free_buffers()

    def execute(self, request: StoreRequest) -> Outcome:
        """Send one request, without repeats, and return its outcome.

        Raises RemoteUnavailableError (no answer, or busy), RemotePermissionError, NotFoundError (no bucket or upload),
        ClosedError (after ``close``). Raises CorruptionError for a wrong checksum or too large a body, ConfigError
        for a request or settings that the store refuses, ConditionalWritesUnsupportedError if it refuses conditions.
        """
        check_request(request)
        client = self._connected()
        call = call_for(self.target, request, at_once=True)
        try:
            response = getattr(client.boto, call.method)(**call.parameters)
            data = _read_body(request, response) if isinstance(request, Get) else b""
            return outcome_of(self.target, request, response, data)
        except client.sdk_errors as error:
            settled = translate(self.target, request, call, error)
            self._refused = self._refused or isinstance(settled, RemotePermissionError)
            if isinstance(settled, TieredError):
                raise settled from error
        if isinstance(settled, Get | Head):
            return without_data(self.execute(settled))
        return settled

    def _connected(self) -> S3Client:
        self._leave_to_the_parent()
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self.url} was closed")
            refused, self._refused = self._refused, False
            if refused and self._client is not None and self._client.origin != origin_of(self.target):
                CLIENTS.release(self._client)
                self._client = None
            if self._client is None:
                self._client = CLIENTS.lease(self.target)
            return self._client

    def _leave_to_the_parent(self) -> None:
        """Drop client and lock in a fork: on shared connections each process would read the other's responses."""
        pid = os.getpid()
        if pid != self._pid:
            self._lock, self._client, self._pid = threading.Lock(), None, pid


def free_buffers() -> None:
    """Free the buffers for response bodies, unless a boto3 store is open. Existing views stay valid."""
    if not CLIENTS.in_use:
        BUFFERS.forget()


def lendable_bytes(request: Get, response: dict[str, Any]) -> int:
    """Return the size of a response body that can be read into a pooled buffer. 0: it cannot.

    It can if ``request`` allows it and the response has exactly the requested range, of at least ``LEND_BYTES``.
    """
    size = 0 if request.end is None else request.end - request.start
    whole = size == response.get("ContentLength") and "ContentRange" in response
    return size if request.lend and whole and size >= LEND_BYTES else 0


def _read_body(request: Get, response: dict[str, Any]) -> bytes | memoryview:
    if "Body" not in response:
        return b""
    pieces: list[bytes] = []
    size = 0
    with contextlib.closing(response["Body"]) as body:
        length = response.get("ContentLength") or 0
        request.check_body(length)
        lent = _lent_body(request, response, body)
        if lent is not None:
            return lent
        most = max(length + 1, PIECE_BYTES)  # a body in one piece: to join several costs five times as much
        while piece := body.read(most):
            size += len(piece)
            request.check_body(size)
            pieces.append(piece)
    return b"".join(pieces)


def _lent_body(request: Get, response: dict[str, Any], body: Any) -> memoryview | None:
    """Read the requested range from the socket into a buffer of the pool; None: read it the usual way.

    The SDK has no API for that: ``readinto`` of its body, and of urllib3's below, copies the bytes. The view is too
    short if the connection was cut. The caller then refuses the response.
    """
    size = lendable_bytes(request, response)
    answer: Any = getattr(body, "_raw_stream", None)
    plain = getattr(answer, "_fp", None)
    if (
        not size
        or type(plain) is not HTTPResponse
        or plain.chunked
        or plain.length != size
        or plain.headers["Content-Encoding"]
    ):
        return None
    view, filled = BUFFERS.acquire(size), 0
    while filled < size and (got := plain.readinto(view[filled:])):
        filled += got
    if filled == size:
        answer.release_conn()
    return view[:filled].toreadonly()


@dataclass(slots=True, eq=False)
class S3Client:
    """A boto3 client, the errors that it raises, the hash of its settings, and how many stores use it."""

    boto: Any
    sdk_errors: tuple[type[Exception], ...]
    origin: bytes
    stores: int = 0


class S3Clients:
    """Pool of boto3 clients by settings and credentials. Thread-safe. A forked child begins without any.

    ``idle``: most clients in the pool that no store uses.
    """

    def __init__(self, idle: int = IDLE_CLIENTS) -> None:
        self._idle = idle
        self._loader: Any = None  # of botocore: it caches S3's model, which costs five times the rest
        self.forget()

    def forget(self) -> None:
        """Start over in a forked child: connections are its parent's, and a thread of the parent may hold the lock."""
        self._lock = threading.Lock()
        self._held: dict[bytes, S3Client] = {}

    @property
    def in_use(self) -> int:
        """Number of clients that stores use."""
        with self._lock:
            return sum(1 for each in self._held.values() if each.stores)

    def lease(self, target: S3Target) -> S3Client:
        """Return the client for ``target`` and count one more use. Raises ConfigError if it cannot be created.

        The caller calls :meth:`release` at the end.
        """
        with self._lock:
            key = origin_of(target)
            client = self._held.pop(key, None) or self._made(target, key)
            self._held[key] = client  # most recently used last
            client.stores += 1
            return client

    def release(self, client: S3Client) -> None:
        """Count one use less. After the last use the client's connections are closed."""
        with self._lock:
            client.stores -= 1
            if client.stores:
                return
            client.boto.close()  # closes connections; the next request would make new ones
            unused = [key for key, each in self._held.items() if not each.stores]
            for key in unused[: max(0, len(unused) - self._idle)]:
                del self._held[key]

    def _made(self, target: S3Target, origin: bytes) -> S3Client:
        try:
            core_session = importlib.import_module("botocore.session")
            loaders = importlib.import_module("botocore.loaders")
            exceptions = importlib.import_module("botocore.exceptions")
            config = importlib.import_module("botocore.config")
            parsers = importlib.import_module("botocore.parsers")
        except ImportError as error:
            raise ConfigError("s3:// needs boto3", hint=install_command("s3")) from error
        if self._loader is None:
            self._loader = loaders.create_loader()
        core = core_session.get_session()
        core.register_component("data_loader", self._loader)
        try:
            # Not through boto3: its client imports ThreadPoolExecutor, which fails once the main thread has ended.
            boto = core.create_client(
                "s3", config=config.Config(**target.config_arguments()), **target.client_arguments()
            )
        except (exceptions.BotoCoreError, ValueError) as error:
            raise ConfigError(
                f"cannot connect to {target.url}: {error}", hint="check region, endpoint and AWS_PROFILE"
            ) from error
        boto.meta.events.register("before-call.s3", forbid_redirect)
        boto.meta.events.register("before-call.s3", expect_of_large)
        boto.meta.events.register("response-received.s3", mark_foreign_page)
        errors = (exceptions.BotoCoreError, exceptions.ClientError, parsers.ResponseParserError, OSError)
        return S3Client(boto, errors, origin)


def origin_of(target: S3Target) -> bytes:
    """Return a hash of the settings and credential sources of a client. Another hash needs another client.

    A client reads credentials from files and the environment once, so the hash changes with them. It renews those of a
    role itself. The hash reveals no secret.
    """
    sources: list[object] = [target.client_arguments(), target.config_arguments()]
    sources += sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    for variable, default in _CREDENTIAL_FILES:
        # As botocore finds it: without a home directory (any uid, no HOME) the path stays as it is written.
        # pathlib's expanduser would raise.
        path = os.path.expanduser(os.environ.get(variable) or default)  # noqa: PTH111
        try:
            found = Path(path).stat()
        except OSError:
            sources.append((path, None))
        else:
            sources.append((path, found.st_ino, found.st_mtime_ns, found.st_size))
    return hashlib.sha256(repr(sources).encode()).digest()


CLIENTS = S3Clients()
"""The clients of this process."""

os.register_at_fork(after_in_child=CLIENTS.forget)


def lifecycle_rules(target: S3Target) -> list[dict[str, Any]] | None:
    """Return the lifecycle rules of the bucket, empty if it has none; None if they cannot be read."""
    client = CLIENTS.lease(target)
    try:
        answer = client.boto.get_bucket_lifecycle_configuration(Bucket=target.bucket)
        rules: list[dict[str, Any]] = answer.get("Rules", [])
        return rules
    except client.sdk_errors as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
        return [] if code == "NoSuchLifecycleConfiguration" else None
    finally:
        CLIENTS.release(client)
