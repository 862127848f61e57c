"""An HTTP server that answers what the test wrote down: the SDKs run for real, without a store behind them."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.moto import CREDENTIALS


@dataclass(frozen=True)
class Answer:
    """``status`` 0 closes the connection without a word; ``declared`` is a false Content-Length."""

    status: int
    code: str = ""
    message: str = "told by the server"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    declared: int | None = None
    keep_alive: bool = False

    def encode(self, method: str) -> bytes:
        body = self.body
        if body is None:
            body = b""
            if self.code:
                body = (
                    f"<?xml version='1.0'?><Error><Code>{self.code}</Code><Message>{self.message}</Message>"
                    f"<AWSAccessKeyId>{CREDENTIALS['AWS_ACCESS_KEY_ID']}</AWSAccessKeyId></Error>"
                ).encode()
        length = len(body) if self.declared is None else self.declared
        head = f"HTTP/1.1 {self.status} X\r\nContent-Length: {length}\r\n"
        head += "" if self.keep_alive else "Connection: close\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        return head.encode() + b"\r\n" + (b"" if method == "HEAD" else body)


@dataclass
class Script:
    """``answer`` is given to every request; ``requests`` collects (method, target, headers, body bytes)."""

    url: str = ""
    answer: Answer = Answer(200)
    requests: list[tuple[str, str, dict[str, str], int]] = field(default_factory=list)


class _Handler(socketserver.StreamRequestHandler):
    timeout = 10

    def handle(self) -> None:
        while self.one_request():
            pass

    def one_request(self) -> bool:
        script: Script = self.server.script  # type: ignore[attr-defined]  # set where the server is made
        line = self.rfile.readline().decode().split()
        if not line:
            return False
        headers = {}
        while text := self.rfile.readline().decode().strip():
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("expect"):
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body_bytes = 0
        length = int(headers.get("content-length", 0))
        while body_bytes < length and (piece := self.rfile.read(min(65536, length - body_bytes))):
            body_bytes += len(piece)
        if body_bytes < length:
            return False  # the client gave up: were it counted, it might be counted in the next test
        script.requests.append((line[0], line[1], headers, body_bytes))
        answer = script.answer  # once: the test writes the next one as soon as it has this one
        if answer.status:
            self.wfile.write(answer.encode(line[0]))
        return answer.keep_alive


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = False  # joined at the end, so that no socket outlives the test
    allow_reuse_address = True
    request_queue_size = 64


@contextlib.contextmanager
def scripted_server() -> Iterator[Script]:
    """A server on a free port of 127.0.0.1."""
    script = Script()
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.script = script  # type: ignore[attr-defined]  # read by the handler
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()
