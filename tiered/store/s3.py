"""S3 through boto3. Only ``s3_clients`` and ``aio_s3`` touch an SDK, which they import when they need it."""

from __future__ import annotations

import contextlib
import os
import threading
from http.client import HTTPResponse
from typing import Any

from tiered.errors import ClosedError, RemotePermissionError, TieredError
from tiered.format.buffers import BufferPool
from tiered.store.base import Get, Outcome, StoreRequest
from tiered.store.key_rules import check_request
from tiered.store.s3_clients import CLIENTS, S3Client, origin_of
from tiered.store.s3_errors import NeedsGet, NeedsHead, follow_up_of, translate, without_data
from tiered.store.s3_requests import S3Target, call_for, outcome_of
from tiered.store.sources import PIECE_BYTES

LEND_BYTES = 1024 * 1024
"""Size from which bodies are lent, if the request allows it: for small ones a fresh buffer costs nothing."""

POOL_BYTES = 64 * 1024 * 1024
"""Limit of the body buffers that one process keeps."""

BUFFERS = BufferPool(POOL_BYTES, LEND_BYTES)
"""Buffers of this process; empty while no store of it is open."""


class S3Store:
    """A :class:`~tiered.store.base.Store` on S3 or a server that speaks it.

    Credentials come from the AWS chain only (environment, profile, role); after a refused request, the next one looks
    for newer ones. One request, one attempt. Thread-safe.
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
        """Refuse further requests, and close connections that no other store uses."""
        self._leave_to_the_parent()
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            CLIENTS.release(client)
            free_buffers()

    def execute(self, request: StoreRequest) -> Outcome:
        """Make one attempt; ``store.s3_errors`` maps errors."""
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
        if isinstance(settled, NeedsHead | NeedsGet):
            return without_data(self.execute(follow_up_of(request)))
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
    """Drop all buffers if no store of boto3's is open; views keep theirs."""
    if not CLIENTS.in_use:
        BUFFERS.forget()


def lendable_bytes(request: Get, response: dict[str, Any]) -> int:
    """Return the size of a body that goes into a buffer of the pool: exactly the requested range. 0: it does not."""
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

    The SDK has no API for that: ``readinto`` of its body, and of urllib3's below, copies the bytes. The caller refuses
    too few bytes, as of any other response.
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
