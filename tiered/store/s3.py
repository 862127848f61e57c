"""S3 through boto3. The only module, with ``aio_s3``, that touches an SDK; boto3 is imported at the first request."""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import Any

from tiered.errors import ClosedError, ConfigError, TieredError
from tiered.store.base import Get, Outcome, StoreRequest
from tiered.store.key_rules import check_request
from tiered.store.s3_errors import NeedsGet, NeedsHead, follow_up_of, translate, without_data
from tiered.store.s3_requests import S3Target, call_for, forbid_redirect, outcome_of, tell_page
from tiered.store.sources import PIECE_BYTES

_loader: Any = None
"""Of botocore: it keeps S3's model, which costs five times what the rest of a client does."""
_loader_lock = threading.Lock()


class S3Store:
    """A :class:`~tiered.store.base.Store` on S3 or a server that speaks it.

    Credentials come from the AWS chain only (environment, profile, role). One request, one attempt. Thread-safe.
    """

    def __init__(self, target: S3Target) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._client: Any = None
        self._sdk_errors: tuple[type[Exception], ...] = ()
        self._closed = False

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``."""
        return self.target.url

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def execute(self, request: StoreRequest) -> Outcome:
        """One attempt; errors are mapped by ``store.s3_errors``."""
        check_request(request)
        client = self._connected(request)
        call = call_for(self.target, request, at_once=True)
        try:
            response = getattr(client, call.method)(**call.parameters)
            data = _read_body(request, response) if isinstance(request, Get) else b""
            return outcome_of(self.target, request, response, data)
        except self._sdk_errors as error:
            settled = translate(self.target, request, call, error)
            if isinstance(settled, TieredError):
                raise settled from error
        if isinstance(settled, NeedsHead | NeedsGet):
            return without_data(self.execute(follow_up_of(request)))
        return settled

    def _connected(self, request: StoreRequest) -> Any:
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self.url} was closed")
            if self._client is None:
                self._client = self._connect(request)
            return self._client

    def _connect(self, request: StoreRequest) -> Any:
        try:
            boto3_session = importlib.import_module("boto3.session")
            core = _core_session(
                importlib.import_module("botocore.session"), importlib.import_module("botocore.loaders")
            )
            exceptions = importlib.import_module("botocore.exceptions")
            config = importlib.import_module("botocore.config")
            parsers = importlib.import_module("botocore.parsers")
        except ImportError as error:
            raise ConfigError("s3:// needs boto3", hint="pip install 'tieredlog[s3]'") from error
        self._sdk_errors = (
            exceptions.BotoCoreError,
            exceptions.ClientError,
            parsers.ResponseParserError,
            OSError,
        )
        try:
            client = boto3_session.Session(botocore_session=core).client(
                "s3", config=config.Config(**self.target.config_arguments()), **self.target.client_arguments()
            )
        except (exceptions.BotoCoreError, ValueError) as error:
            raise ConfigError(f"cannot connect to {self.url}: {error}", hint="check region and endpoint") from error
        client.meta.events.register("before-call.s3", forbid_redirect)
        client.meta.events.register("response-received.s3", tell_page)
        return client


def _core_session(botocore_session: Any, loaders: Any) -> Any:
    """A session of its own, so that it finds credentials anew, over what all of this process have read of the SDK."""
    global _loader  # noqa: PLW0603
    with _loader_lock:
        if _loader is None:
            _loader = loaders.create_loader()
        loader = _loader
    core = botocore_session.get_session()
    core.register_component("data_loader", loader)
    return core


def _read_body(request: Get, response: dict[str, Any]) -> bytes:
    if "Body" not in response:
        return b""
    pieces: list[bytes] = []
    size = 0
    with contextlib.closing(response["Body"]) as body:
        length = response.get("ContentLength") or 0
        request.check_body(length)
        most = max(length + 1, PIECE_BYTES)  # a body in one piece: to join several costs five times as much
        while piece := body.read(most):
            size += len(piece)
            request.check_body(size)
            pieces.append(piece)
    return b"".join(pieces)
