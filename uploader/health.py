"""A small HTTP server for probes and scrapers, and the status document: loopback by default, every read bounded.

=============  ==================================================================================================
``/livez``     the event loop runs; a store that is down never makes this fail, which would cause a restart loop
``/healthz``   the same
``/readyz``    all partitions claimed, store and disk answer, the lag is under its limit; paused is ready, and named
``/metrics``   Prometheus text
``/status``    the uploader's state as JSON, for ``tiered status``
=============  ==================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tiered.engine.status import PartitionView
from tiered.engine.wait import shown
from tiered.errors import ConfigError, TieredError
from tiered.model import TopicPartition
from tiered.plan.pacing import Pause
from tiered.program.output import human_bytes, human_duration
from tiered.store.aio_driver import in_thread
from tiered.store.limit import Limits
from uploader.metrics import CONTENT_TYPE

MAX_REQUEST_BYTES = 8 * 1024
REQUEST_SECONDS = 5.0
MAX_CONNECTIONS = 32
BEAT_LIMIT_MS = 30_000
"""Milliseconds after which a loop without a beat counts as dead."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Functions from which a :class:`HealthServer` makes its responses.

    All are quick and called on the event loop, except ``before_metrics``. ``beat_age_ms``: ms since the event loop last
    ran. ``not_ready``: reasons why ``/readyz`` fails, empty if ready. ``paused``: topics whose uploads are paused;
    ``ALL_TOPICS`` for all. ``before_metrics``: called on a thread before ``metrics``; it may be slow.
    """

    beat_age_ms: Callable[[], int]
    not_ready: Callable[[], list[str]]
    metrics: Callable[[], bytes]
    status: Callable[[], dict[str, Any]]
    paused: Callable[[], Iterable[str]] = tuple
    before_metrics: Callable[[], None] | None = None


class HealthServer:
    """HTTP server that listens between ``start`` and ``close``. ``port``: the actual one, also if 0 was requested."""

    def __init__(self, probes: Probes, host: str, port: int) -> None:
        self._probes = probes
        self._host = host
        self.port = port
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self) -> None:
        """Start listening. Raises ConfigError if the address cannot be used."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._host}:{self.port}: {error.strerror or error}",
                hint="choose another --http address, or --http off",
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        """Return ``host:port`` for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104 - compared, not bound
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def close(self) -> None:
        """Stop listening and close the server."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_CONNECTIONS:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await self._exchange(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3:
            status, kind, body = HTTPStatus.BAD_REQUEST, "text/plain", b"not HTTP\n"
        elif words[0] not in ("GET", "HEAD"):
            status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"GET only\n"
        else:
            path = words[1].split("?", 1)[0]
            if path == "/metrics" and self._probes.before_metrics is not None:
                await in_thread(self._probes.before_metrics)
            status, kind, body = self._answer(path)
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if words[0] == "HEAD" else body))
        await writer.drain()

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        match path:
            case "/livez" | "/healthz":
                age_ms = self._probes.beat_age_ms()
                alive = age_ms < BEAT_LIMIT_MS
                text = "alive\n" if alive else f"the loop has not turned for {age_ms} ms\n"
                return _status(alive), "text/plain", text.encode()
            case "/readyz":
                missing = self._probes.not_ready()
                paused = ", ".join(topic or "all topics" for topic in sorted(self._probes.paused()))
                ready = f"ready, paused: {paused}" if paused else "ready"  # a pause is wanted
                text = "\n".join(missing or [ready]) + "\n"
                return _status(not missing), "text/plain", text.encode("utf-8", "backslashreplace")  # paths are in it
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE, self._probes.metrics()
            case "/status":
                return HTTPStatus.OK, "application/json", json.dumps(self._probes.status()).encode() + b"\n"
        return HTTPStatus.NOT_FOUND, "text/plain", b"/livez /healthz /readyz /metrics /status\n"


def _status(good: bool) -> HTTPStatus:
    return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE


def status_document(
    views: Sequence[PartitionView],
    *,
    now_ms: int,
    remote: str,
    lag_limit_ms: int,
    unreadable: Mapping[TopicPartition, TieredError] | None = None,
    unread: TieredError | None = None,
    pauses: Mapping[str, Pause] | None = None,
) -> dict[str, Any]:
    """Return the document of ``/status``. ``unreadable``: partitions out of service.

    ``unread``: why the log directory could not be read at the last scan. All other values are then of the scan before.
    """
    return {
        "message_type": "status",
        "now_ms": now_ms,
        "remote": remote,
        "lag_bytes": sum(view.lag_bytes for view in views),
        "lag_seconds": max((view.lag_ms for view in views), default=0) / 1000,
        "lag_limit_seconds": lag_limit_ms / 1000,
        "fenced": sum(view.phase == "fenced" for view in views),
        "paused": pauses_as_json(pauses or {}),
        "partitions": [view.as_json() for view in views],
        "out_of_service": [
            {"topic": tp.topic, "partition": tp.partition, "reason": error.message, "unblocks": error.hint}
            for tp, error in sorted((unreadable or {}).items())
        ],
        "unread": None if unread is None else {"reason": unread.message, "unblocks": unread.hint},
    }


def pauses_as_json(pauses: Mapping[str, Pause]) -> list[dict[str, Any]]:
    """Return the pauses as JSON values. ``topic`` None: all topics."""
    return [
        {"topic": name or None, "since_ms": each.since_ms, "reason": each.reason}
        for name, each in sorted(pauses.items())
    ]


def paused_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each topic whose uploads are paused. ``document``: that of ``/status``."""
    for each in document.get("paused", ()):
        name, why = each["topic"] or "all topics", f": {each['reason']}" if each["reason"] else ""
        since = _age((document["now_ms"] - each["since_ms"]) / 1000)
        command = f"tiered-uploader resume {each['topic'] or ''}".strip()
        yield f"uploads of {name} have been paused for {since}{why}; unblocked by `{command}`"


def store_document(limits: Limits) -> dict[str, Any]:
    """Return the ``store`` object of ``/status``: rate limits, memory, and the number of too-many-requests answers."""
    return {
        "requests_per_second": limits.requests_per_second,
        "bytes_per_second": limits.bytes_per_second,
        "memory": {
            "limit_bytes": limits.memory.count,
            "held_bytes": limits.memory.taken,
            "waiting": limits.memory.waiting,
        },
        "slow_downs": limits.slow_downs,
    }


def progress_text(views: Sequence[PartitionView]) -> str:
    """Return one sentence about the records that are not uploaded yet, for a user who waits."""
    behind = [view for view in views if view.uploaded_offset < view.end_offset]
    if not behind:
        return "everything that was seen is committed; the end is near"
    names = [f"{view.tp} {max(view.uploaded_offset, 0)} of {view.end_offset}" for view in behind]
    return f"{human_bytes(sum(view.lag_bytes for view in behind))} to commit: {shown(names)}"


def _age(seconds: float) -> str:
    """Return a duration as text, such as ``3m08s``; ``0s`` for a negative one, which comes from differing clocks."""
    return human_duration(max(0, int(seconds * 1000)))
