"""Store on S3 through aiobotocore, for asyncio. Requests and responses: ``store.s3_requests``; errors:
``store.s3_errors``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from dataclasses import dataclass
from typing import Any

from tiered.errors import ClosedError, ConfigError, RemotePermissionError, TieredError, install_command
from tiered.store.aio_driver import DaemonLoop
from tiered.store.base import Get, Head, Outcome, StoreRequest
from tiered.store.key_rules import check_request
from tiered.store.s3 import BUFFERS, S3Store, free_buffers, lendable_bytes, origin_of
from tiered.store.s3_errors import translate, without_data
from tiered.store.s3_requests import S3Target, call_for, expect_of_large, forbid_redirect, mark_foreign_page, outcome_of
from tiered.store.sources import PIECE_BYTES
from tiered.store.threads import ThreadPool, main_has_ended

THREADS = 16
"""Simultaneous requests after the main thread has ended."""


@dataclass(slots=True, eq=False)
class _Client:
    """A client, the stack that closes it, the hash of its settings, and the number of its requests in flight."""

    boto: Any
    exits: contextlib.AsyncExitStack
    origin: bytes
    requests: int = 0


class AioS3Store:
    """S3 store for asyncio, an :class:`~tiered.store.base.AioStore`. It belongs to the event loop of its first request.

    Credentials come from the AWS chain only (environment, profile, role). Cancelling a request closes its connection; a
    cancelled conditional PUT may still land. aiohttp and aiobotocore need the loop's default executor. Once the main
    thread has ended and the interpreter has closed that, boto3 sends the requests on threads.
    """

    def __init__(self, target: S3Target) -> None:
        self.target = target
        self._lock = asyncio.Lock()
        self._client: _Client | None = None
        self._replaced: list[_Client] = []  # clients with older credentials, while requests use them
        self._sdk_errors: tuple[type[Exception], ...] = ()
        self._refused = False
        self._closed = False
        self._on_threads: S3Store | None = None
        self._pool = ThreadPool(THREADS, "tiered-store")

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``."""
        return self.target.url

    def __repr__(self) -> str:
        return f"AioS3Store({self.url!r})"

    async def close(self) -> None:
        """Close the connections."""
        async with self._lock:
            self._closed = True
            clients = [*self._replaced, *([] if self._client is None else [self._client])]
            self._client, self._replaced = None, []
            for client in clients:
                await client.exits.aclose()
            if self._on_threads is not None:
                self._on_threads.close()
            self._pool.shutdown(wait=False)
        free_buffers()

    async def execute(self, request: StoreRequest) -> Outcome:
        """Send one request, without repeats, and return its outcome.

        Raises RemoteUnavailableError (no answer, or busy), RemotePermissionError, NotFoundError (no bucket or upload),
        ClosedError (after ``close``). Raises CorruptionError for a wrong checksum or too large a body, ConfigError
        for a request or settings that the store refuses, ConditionalWritesUnsupportedError if it refuses conditions.
        """
        check_request(request)
        loop = asyncio.get_running_loop()
        if not isinstance(loop, DaemonLoop) and main_has_ended():
            store = self._on_threads = self._on_threads or S3Store(self.target)
            if self._closed:
                raise ClosedError(f"{self.url} was closed")
            return await loop.run_in_executor(self._pool, store.execute, request)
        client = await self._connected()
        call = call_for(self.target, request)
        client.requests += 1
        try:
            response = await getattr(client.boto, call.method)(**call.parameters)
            data = await _read_body(request, response) if isinstance(request, Get) else b""
            return outcome_of(self.target, request, response, data)
        except self._sdk_errors as error:
            settled = translate(self.target, request, call, error)
            self._refused = self._refused or isinstance(settled, RemotePermissionError)
            if isinstance(settled, TieredError):
                raise settled from error
        finally:
            client.requests -= 1
            await self._close_unused()
        if isinstance(settled, Get | Head):
            return without_data(await self.execute(settled))
        return settled

    async def _connected(self) -> _Client:
        async with self._lock:
            if self._closed:
                raise ClosedError(f"{self.url} was closed")
            refused, self._refused = self._refused, False
            if refused and self._client is not None and self._client.origin != origin_of(self.target):
                self._replaced.append(self._client)
                self._client = None
                await self._close_unused()
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _close_unused(self) -> None:
        """Close replaced clients without requests."""
        unused = [client for client in self._replaced if not client.requests]
        self._replaced = [client for client in self._replaced if client.requests]
        for client in unused:
            await client.exits.aclose()

    async def _connect(self) -> _Client:
        origin, exits = origin_of(self.target), contextlib.AsyncExitStack()
        try:
            session = importlib.import_module("aiobotocore.session")
            config = importlib.import_module("aiobotocore.config")
            http = importlib.import_module("aiobotocore.httpsession")
            aiohttp = importlib.import_module("aiohttp")
            exceptions = importlib.import_module("botocore.exceptions")
            parsers = importlib.import_module("botocore.parsers")
        except ImportError as error:
            raise ConfigError("s3:// with asyncio needs aiobotocore", hint=install_command("aio")) from error
        self._sdk_errors = (
            exceptions.BotoCoreError,
            exceptions.ClientError,
            parsers.ResponseParserError,
            aiohttp.ClientError,
            OSError,
        )
        options = {**self.target.config_arguments(), "http_session_cls": _single_attempt(http.AIOHTTPSession)}
        context = session.get_session().create_client(
            "s3", config=config.AioConfig(**options), **self.target.client_arguments()
        )
        try:
            client = await exits.enter_async_context(context)
        except (exceptions.BotoCoreError, ValueError) as error:
            raise ConfigError(
                f"cannot connect to {self.url}: {error}", hint="check region, endpoint and AWS_PROFILE"
            ) from error
        client.meta.events.register("before-call.s3", forbid_redirect)
        client.meta.events.register("before-call.s3", expect_of_large)
        client.meta.events.register("response-received.s3", mark_foreign_page)
        return _Client(client, exits, origin)


def _single_attempt(base: Any) -> Any:
    """Return ``base`` without aiohttp's own repeat of a PUT whose kept-alive connection broke.

    That repeat happens below the SDK and its retry settings: it turns our landed PUT with a lost response into 412.
    """

    class SingleAttemptSession(base):  # type: ignore[misc]  # the base is imported only when it is needed
        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            session._retry_connection = False
            return session

    return SingleAttemptSession


async def _read_body(request: Get, response: dict[str, Any]) -> bytes | memoryview:
    if "Body" not in response:
        return b""
    size = 0
    lent = lendable_bytes(request, response)
    view = BUFFERS.acquire(lent) if lent else None
    pieces: list[bytes] = []
    async with response["Body"] as body:
        request.check_body(response.get("ContentLength") or 0)
        while piece := await body.read(PIECE_BYTES):
            request.check_body(size + len(piece))
            if view is None:
                pieces.append(piece)
            else:
                view[size : size + len(piece)] = piece
            size += len(piece)
    return b"".join(pieces) if view is None else view[:size].toreadonly()
