"""An endpoint that is no S3 server: every door says so in one sentence, and none takes it for an empty bucket."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiered
from tiered import aio
from tiered.errors import ConfigError

PAGE = b"<!DOCTYPE html><html><head><meta charset=utf-8><title>Console</title></head><body>Log in</body></html>"


@pytest.fixture(params=[200, 404])
def page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A web console: the same page whatever was asked, and how."""

    class Console(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # else a PUT waits for a "100 Continue" that never comes

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(request.param)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(PAGE)))
            self.send_header("ETag", '"65f0a1-61"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(PAGE)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            """Nothing."""

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Console) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_library(page: str, tmp_path: Path) -> None:
    def reader() -> tiered.Reader:
        return tiered.open_reader("s3://bucket", endpoint_url=page)

    async def asyncio_open() -> None:
        async with aio.open(tmp_path / "log", "s3://bucket", endpoint_url=page):
            pass

    doors: list[Callable[[], object]] = [
        lambda: tiered.open(tmp_path / "log", "s3://bucket", endpoint_url=page),
        lambda: asyncio.run(asyncio_open()),
        lambda: reader().topics(),
        lambda: reader().topic("t"),
        lambda: reader().find("t", key=b"k"),
    ]
    for door in doors:
        with pytest.raises(ConfigError, match=f"{page} does not answer as S3 does"):
            door()
