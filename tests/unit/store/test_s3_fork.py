"""A store that was open before a fork: parent and child must not send requests through one connection."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tiered.store.base import Get, Object
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import S3Target

PATIENCE_S = 10


class KeepsConnections(BaseHTTPRequestHandler):
    """Answers each request with the port of the connection that it came through, and keeps that open."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b"%d" % self.client_address[1]
        self.send_response(200)
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", "Wed, 01 Jan 2020 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), KeepsConnections)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def connection_of(store: S3Store) -> bytes:
    got = store.execute(Get("k"))
    assert isinstance(got, Object)
    return bytes(got.data)


def in_a_fork(store: S3Store) -> list[bytes]:
    """The connections of two requests there; the lock is as a thread of the parent may have held it."""
    reading, writing = os.pipe()
    with store._lock:
        pid = os.fork()
        if pid == 0:
            signal.alarm(PATIENCE_S)  # without its own lock it would wait for ever
            try:
                os.write(writing, b" ".join([connection_of(store), connection_of(store)]))
                store.close()
            finally:
                os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        found = answer.read().split()
    os.waitpid(pid, 0)
    return found


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_has_connections_of_its_own(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    store = S3Store(S3Target("bucket", endpoint_url=endpoint, region="us-east-1"))
    ours = connection_of(store)
    assert connection_of(store) == ours  # it is kept
    theirs = in_a_fork(store)
    assert len(theirs) == 2
    assert theirs[0] == theirs[1] != ours
    assert connection_of(store) == ours  # which the fork has not closed
    store.close()
