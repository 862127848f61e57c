"""An S3 server that keeps nothing: what a client costs, beside a socket, without the cost of a real server.

It runs in a process of its own, so that only the client's CPU is counted. It takes the bodies of PUTs, of parts too,
plain or chunked, and says the checksum back that it was told: whether the right bytes arrive is for other tests.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection

BUFFER_BYTES = 1 << 20
_STARTED = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
_COMPLETED = '<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>'


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _take(self) -> None:
        """An object or a part."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                self._skip(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            self._skip(int(self.headers.get("Content-Length", 0)))
        self._answer("")

    def _begin_or_end(self) -> None:
        """The beginning or the end of a multipart upload."""
        self._skip(int(self.headers.get("Content-Length", 0)))
        self._answer(_STARTED if "uploads" in self.path else _COMPLETED)

    do_PUT, do_POST = _take, _begin_or_end  # noqa: N815 - the names that the base class looks for

    def _skip(self, size: int) -> None:
        buffer = memoryview(bytearray(min(size, BUFFER_BYTES)))
        while size:
            size -= self.rfile.readinto(buffer[: min(size, len(buffer))])

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("ETag", '"1"')
        told = self.headers.get("x-amz-checksum-crc32c")
        if told:
            self.send_header("x-amz-checksum-crc32c", told)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Nothing is logged."""


def _serve(answer: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    answer.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def sink() -> Iterator[int]:
    """Its port on loopback, while it runs."""
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield mine.recv()
    finally:
        process.terminate()
        process.join()
