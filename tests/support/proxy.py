"""A fault proxy for real servers: it stands between a client and one plain-http server and does what networks do.

::

    with FaultProxy("http://127.0.0.1:9000") as proxy:
        store = open_store("s3://bucket/log", endpoint_url=proxy.url)
        proxy.add(Fault(FaultKind.LOST_RESPONSE, method="PUT", path="*/root"))

Signatures stay valid: the Host header and the bytes of the path go through unchanged. Bodies are held in memory.
Which request meets a fault is decided by counting, never by time, so that a failure repeats; ``choose`` lets a caller
with dice of its own decide what no planned fault has taken.

A request that meets ``HOLD`` or ``HOLD_ANSWER`` stays in the proxy until ``release``: ``held`` tells when it is there,
so that a test can stop its sender at exactly that moment.
"""

from __future__ import annotations

import enum
import fnmatch
import http.client
import http.server
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

HOST = "127.0.0.1"
UPSTREAM_TIMEOUT_SECONDS = 60.0
MAX_BODY_BYTES = 256 * 1024 * 1024
WRITE_BUFFER_BYTES = 64 * 1024
SLOW_PIECES = 8
HELD_TIMEOUT_SECONDS = 60.0

_HOP_BY_HOP = frozenset({"connection", "expect", "keep-alive", "transfer-encoding"})
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultKind(enum.Enum):
    """What happens to a request. ``applied`` tells whether the server has carried it out."""

    ERROR = "error"  # answered by the proxy with ``status`` and ``code``; not applied
    LATENCY = "latency"  # ``seconds`` late; applied
    HANG = "hang"  # no answer for ``seconds`` (or until the proxy closes), then a reset; not applied
    RESET_BEFORE = "reset_before"  # reset before the body is read; not applied
    LOST_RESPONSE = "lost_response"  # applied, then a reset instead of the answer
    TRUNCATE = "truncate"  # applied, half of the answer's body, then the end
    SLOW = "slow"  # applied, the answer's body in pieces over ``seconds``
    HOLD = "hold"  # the server sees it once it is released: a packet that was under way for long
    HOLD_ANSWER = "hold_answer"  # applied at once, answered once it is released

    @property
    def applied(self) -> bool:
        """Whether the server sees the request."""
        return self not in (FaultKind.ERROR, FaultKind.HANG, FaultKind.RESET_BEFORE)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: after ``skip`` requests that match, each ``every``-th meets it, ``times`` times (-1: for ever).

    ``path`` is a shell pattern over the decoded path without the query (``*`` matches slashes too), ``query`` must
    occur in the query as sent (``uploadId=``), ``method`` is exact; empty means any.
    """

    kind: FaultKind
    method: str = ""
    path: str = "*"
    query: str = ""
    skip: int = 0
    every: int = 1
    times: int = 1
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0

    def matches(self, method: str, target: str) -> bool:
        """Whether a request line is one that this fault counts."""
        path, _, query = target.partition("?")
        return (
            (not self.method or self.method == method)
            and fnmatch.fnmatchcase(unquote(path), self.path)
            and self.query in query
        )


class Seen(NamedTuple):
    """One request that passed; ``fault`` is None if nothing was done to it, ``status`` 0 if no answer was sent."""

    method: str
    target: str
    fault: FaultKind | None
    status: int


Choose = Callable[[str, str], Fault | None]
"""``choose(method, target)``: the fault of a request that no planned one takes. Called under a lock."""


class _Planned:
    """A fault with its counters."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.skip = fault.skip
        self.times = fault.times

    def take(self, method: str, target: str) -> bool:
        """Counts a request; whether it meets the fault."""
        if self.times == 0 or not self.fault.matches(method, target):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.skip = self.fault.every - 1
        self.times -= self.times > 0
        return True


class FaultProxy:
    """The proxy, in threads of this process. ``url`` is where clients go; ``seen`` what passed, in order."""

    def __init__(self, upstream: str, *, port: int = 0, choose: Choose | None = None) -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise ValueError(f"the upstream must be http://host:port, not {upstream!r}")
        self.upstream = (parts.hostname, parts.port)
        self.seen: list[Seen] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._planned: list[_Planned] = []
        self._choose = choose
        self._holding = threading.Condition(self._lock)
        self._held: list[Seen] = []
        self._releases = 0
        self._server = _Server(self, port)
        self.address = (HOST, int(self._server.server_address[1]))
        self.url = f"http://{HOST}:{self.address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fault-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    def add(self, fault: Fault) -> None:
        """Plans a fault; the first planned that matches a request is the one it meets."""
        with self._lock:
            self._planned.append(_Planned(fault))

    def clear(self) -> None:
        """Forgets all faults, and what was seen."""
        with self._lock:
            self._planned.clear()
            self.seen.clear()

    def faults_met(self) -> list[FaultKind]:
        """Kinds of the faults that requests met so far, in order."""
        with self._lock:
            return [one.fault for one in self.seen if one.fault is not None]

    def choose_by(self, choose: Choose | None) -> None:
        """Who decides from now on what no planned fault takes; None: nobody."""
        with self._lock:
            self._choose = choose

    def held(self) -> Seen:
        """Waits until a request is held; which one. Raises TimeoutError after ``HELD_TIMEOUT_SECONDS``."""
        with self._holding:
            if not self._holding.wait_for(lambda: self._held, HELD_TIMEOUT_SECONDS):
                raise TimeoutError("no request has come that is to be held")
            return self._held[0]

    def release(self) -> None:
        """Lets go of what is held, and returns when the server has seen it; whether the client hears, or sleeps."""
        with self._holding:
            self._releases += 1
            self._holding.notify_all()
            self._holding.wait_for(lambda: not self._held)

    def _hold(self, seen: Seen) -> None:
        with self._holding:
            before = self._releases
            self._held.append(seen)
            self._holding.notify_all()
            self._holding.wait_for(lambda: self._releases > before or self.closing.is_set())

    def _pick(self, method: str, target: str) -> Fault | None:
        with self._lock:
            planned = next((p.fault for p in self._planned if p.take(method, target)), None)
            if planned is None and self._choose is not None:
                return self._choose(method, target)
            return planned

    def _note(self, seen: Seen) -> None:
        with self._holding:
            self.seen.append(seen)
            if seen.fault in (FaultKind.HOLD, FaultKind.HOLD_ANSWER):
                self._held.remove(next(one for one in self._held if one[:2] == seen[:2]))
                self._holding.notify_all()


class _Server(http.server.ThreadingHTTPServer):
    """Keeps its open connections, so that closing the proxy ends the threads that wait on them."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, proxy: FaultProxy, port: int) -> None:
        self.proxy = proxy
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__((HOST, port), _Handler)

    def keep(self, connection: socket.socket) -> None:
        with self._open_lock:
            self._open.add(connection)

    def forget(self, connection: socket.socket) -> None:
        with self._open_lock:
            self._open.discard(connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is nothing to speak of: processes are killed here."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # the base class's own words

    def hang_up(self) -> None:
        """Ends every connection; the handlers see the end of their input."""
        with self._open_lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # the client was faster


class _Answer(NamedTuple):
    """What the server, or the proxy for it, says."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes


class _Handler(http.server.BaseHTTPRequestHandler):
    """One client connection. The base class answers ``Expect: 100-continue``, which spares clients a second."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = WRITE_BUFFER_BYTES
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.keep(self.connection)

    def finish(self) -> None:
        self.server.forget(self.connection)
        try:
            super().finish()
        except OSError:
            return  # the client hung up before the last bytes

    def handle_expect_100(self) -> bool:
        """At once, not with the answer."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Quiet: ``FaultProxy.seen`` is the log."""

    def _relay(self) -> None:
        proxy = self.server.proxy
        fault = proxy._pick(self.command, self.path)
        kind = fault.kind if fault else None
        if fault is not None and kind is FaultKind.RESET_BEFORE:
            self._vanish(kind)
            return
        body = self._read_body()
        if fault is not None and fault.seconds and kind is not FaultKind.SLOW:
            proxy.closing.wait(fault.seconds)
        if fault is not None and kind is FaultKind.HANG:
            self._vanish(kind)
            return
        if kind is FaultKind.HOLD:
            proxy._hold(Seen(self.command, self.path, kind, 0))
        answer = _refusal(fault) if fault is not None and kind is FaultKind.ERROR else self._ask(body)
        if kind is FaultKind.LOST_RESPONSE:
            self._vanish(kind)
            return
        if kind is FaultKind.HOLD_ANSWER:
            proxy._hold(Seen(self.command, self.path, kind, answer.status))
        proxy._note(Seen(self.command, self.path, kind, answer.status))
        self._send(answer, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _relay

    def _read_body(self) -> bytes:
        """The body as sent; a chunked one with its framing (``aws-chunked`` trailers are part of a signature)."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            return self._read_chunks()
        length = int(self.headers.get("content-length", 0))
        if length > MAX_BODY_BYTES:
            raise ValueError(f"a body of {length} bytes is more than the proxy holds ({MAX_BODY_BYTES})")
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        """A client that dies in the middle of a body has sent nothing that a server would carry out."""
        data = self.rfile.read(size)
        if len(data) < size:
            raise ConnectionResetError(f"the client hung up after {len(data)} of {size} bytes")
        return data

    def _read_chunks(self) -> bytes:
        raw = bytearray()
        while True:
            line = self.rfile.readline()
            raw += line
            if not line:
                raise ConnectionResetError("the client hung up in the middle of a chunked body")
            size = int(line.split(b";")[0], 16)
            if len(raw) + size > MAX_BODY_BYTES:
                raise ValueError(f"a chunked body is more than the proxy holds ({MAX_BODY_BYTES} bytes)")
            if not size:
                break
            raw += self._exactly(size + 2)
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            raw += line
        return bytes(raw + b"\r\n")

    def _ask(self, body: bytes) -> _Answer:
        connection = http.client.HTTPConnection(*self.server.proxy.upstream, timeout=UPSTREAM_TIMEOUT_SECONDS)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP or name.lower() == "transfer-encoding":
                    connection.putheader(name, value)
            connection.putheader("Connection", "close")
            connection.endheaders(body)
            response = connection.getresponse()
            return _Answer(response.status, response.reason, response.getheaders(), response.read())
        except (OSError, http.client.HTTPException) as error:
            return _Answer(502, "Bad Gateway", [], f"upstream: {error!r}".encode())
        finally:
            connection.close()

    def _send(self, answer: _Answer, fault: Fault | None) -> None:
        bodiless = self.command == "HEAD" or answer.status in (204, 304)
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers:
            if name.lower() not in _HOP_BY_HOP and (bodiless or name.lower() != "content-length"):
                self.send_header(name, value)
        if not bodiless:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        body = b"" if bodiless else answer.body
        if fault is not None and fault.kind is FaultKind.TRUNCATE:
            body = body[: len(body) // 2]
            self.close_connection = True
        if fault is not None and fault.kind is FaultKind.SLOW:
            self._drip(body, fault.seconds)
            return
        self.wfile.write(body)
        self.wfile.flush()

    def _drip(self, body: bytes, seconds: float) -> None:
        piece = max(1, -(-len(body) // SLOW_PIECES))
        for at in range(0, len(body), piece):
            self.wfile.write(body[at : at + piece])
            self.wfile.flush()
            self.server.proxy.closing.wait(seconds / SLOW_PIECES)

    def _vanish(self, kind: FaultKind) -> None:
        """Ends the connection with a reset: the client cannot take it for an orderly end."""
        self.server.proxy._note(Seen(self.command, self.path, kind, 0))
        self.server.forget(self.connection)
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        os.close(self.connection.detach())


def _refusal(fault: Fault) -> _Answer:
    text = f"<Error><Code>{fault.code}</Code><Message>injected</Message></Error>"
    return _Answer(fault.status, "Injected", [("Content-Type", "application/xml")], text.encode())
