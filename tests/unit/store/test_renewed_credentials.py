"""Credentials of a file that expire in the life of a store: who logs in again need not start the program again."""

from __future__ import annotations

import asyncio
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiered.errors import RemotePermissionError
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import AioStore, Get, Head, Missing, Object, Store, StoreRequest
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import S3Target
from tiered.testing.store_contract import BlockingStore

SECONDS = 30
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
ABSENT = b"<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>"


class Server(http.server.ThreadingHTTPServer):
    """Knows one access key at a time; a GET of ``slow`` is answered when ``go`` is set, whoever sends it."""

    daemon_threads = True

    def __init__(self) -> None:
        self.key, self.came, self.go = "old", threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def target(self) -> S3Target:
        return S3Target("bucket", endpoint_url=f"http://127.0.0.1:{self.server_port}")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self) -> None:
        slow = self.path.endswith("/slow")
        if slow:
            self.server.came.set()
            self.server.go.wait(SECONDS)
        known = slow or f"Credential={self.server.key}/" in self.headers["Authorization"]
        status, body = (200, b"record") if known else (400, EXPIRED)
        if known and self.path.endswith("/absent"):
            status, body = 404, ABSENT
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"e"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = answer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    log_in(tmp_path, "old")
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.go.set()
        made.shutdown()
        thread.join()


def log_in(folder: Path, key: str) -> None:
    lines = ["[default]", f"aws_access_key_id = {key}", "aws_secret_access_key = s", f"aws_session_token = of {key}"]
    (folder / "credentials").write_text("\n".join(lines) + "\n")


def told(answer: object) -> object:
    return answer.data if isinstance(answer, Object) else answer


@pytest.mark.parametrize("sdk", ["boto3", "aiobotocore"])
def test_a_new_login_is_found_after_a_refusal(server: Server, tmp_path: Path, sdk: str) -> None:
    async def make() -> AioStore:
        await asyncio.sleep(0)
        return AioS3Store(server.target)

    store: Store = S3Store(server.target) if sdk == "boto3" else BlockingStore(make)

    def ask(request: StoreRequest) -> object:
        try:
            return told(store.execute(request))
        except RemotePermissionError as error:
            return error.message.partition(": ")[2].partition(",")[0]

    assert ask(Get("k")) == b"record"
    server.key = "new"
    assert [ask(Get("k")), ask(Head("k")), ask(Get("k"))] == ["400 ExpiredToken"] * 3
    log_in(tmp_path, "new")
    assert [ask(Get("k")), ask(Head("absent"))] == [b"record", Missing()]
    server.key = "newer"
    log_in(tmp_path, "newer")
    assert [ask(Get("k")), ask(Get("k"))] == ["400 ExpiredToken", b"record"]  # nothing looks before a refusal
    store.close()


async def test_a_request_under_way_keeps_its_connection(server: Server, tmp_path: Path) -> None:
    store = AioS3Store(server.target)
    slow = asyncio.create_task(store.execute(Get("slow")))
    await asyncio.to_thread(server.came.wait, SECONDS)
    server.key = "new"
    with pytest.raises(RemotePermissionError):
        await store.execute(Get("k"))
    log_in(tmp_path, "new")
    assert told(await store.execute(Get("k"))) == b"record"
    server.go.set()
    assert told(await slow) == b"record"
    assert store._replaced == []
    await store.close()
