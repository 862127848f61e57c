"""The fault proxy does to a request exactly what it was told, and tells what it did."""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.proxy import Fault, FaultKind, FaultProxy

BIG = b"x" * 300_000


class _Echo(http.server.BaseHTTPRequestHandler):
    """Remembers every request; answers GET with a fixed body, others with what was sent."""

    protocol_version = "HTTP/1.1"
    requests: list[tuple[str, str, str, bytes]]

    def _answer(self) -> None:
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        body = self._chunks() if chunked else self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append((self.command, self.path, self.headers["Host"], body))
        answer = BIG if self.command in ("GET", "HEAD") else body
        self.send_response(204 if self.command == "DELETE" else 200)
        if self.command != "DELETE":
            self.send_header("Content-Length", str(len(answer)))
        self.send_header("ETag", '"tag"')
        self.end_headers()
        if self.command not in ("HEAD", "DELETE"):
            self.wfile.write(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def _chunks(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Quiet."""


@pytest.fixture
def upstream() -> Iterator[tuple[str, list[tuple[str, str, str, bytes]]]]:
    """URL of a server, and the requests that reached it."""
    requests: list[tuple[str, str, str, bytes]] = []
    handler = type("Handler", (_Echo,), {"requests": requests})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
        server.shutdown()
        thread.join()


def ask(
    proxy: FaultProxy, method: str, path: str = "/b/root", body: bytes = b"", **headers: str
) -> tuple[int, bytes, str | None]:
    """One request over a connection of its own."""
    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, body=body or None, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("ETag")
    finally:
        connection.close()


def test_without_faults_everything_passes_unchanged(upstream: tuple[str, list[tuple[str, str, str, bytes]]]) -> None:
    url, reached = upstream
    with FaultProxy(url) as proxy:
        assert ask(proxy, "PUT", "/b/a%20b?x=1&y", b"data", Host="signed.example") == (200, b"data", '"tag"')
        assert ask(proxy, "GET") == (200, BIG, '"tag"')
        assert ask(proxy, "HEAD") == (200, b"", '"tag"')
        assert ask(proxy, "DELETE") == (204, b"", '"tag"')
        assert [(one.method, one.fault, one.status) for one in proxy.seen] == [
            ("PUT", None, 200),
            ("GET", None, 200),
            ("HEAD", None, 200),
            ("DELETE", None, 204),
        ]
    assert reached[0] == ("PUT", "/b/a%20b?x=1&y", "signed.example", b"data")


def test_one_connection_carries_many_requests(upstream: tuple[str, list[tuple[str, str, str, bytes]]]) -> None:
    with FaultProxy(upstream[0]) as proxy:
        connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=10)
        for number in range(3):
            connection.request("PUT", "/b/k", body=str(number))
            assert connection.getresponse().read() == str(number).encode()
        connection.close()


def test_chunked_bodies_keep_their_framing(upstream: tuple[str, list[tuple[str, str, str, bytes]]]) -> None:
    with FaultProxy(upstream[0]) as proxy:
        connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=10)
        connection.request("PUT", "/b/k", body=iter([b"one", b"two"]), encode_chunked=True)
        assert connection.getresponse().read() == b"onetwo"
        connection.close()


def test_expect_continue_is_answered_before_the_body(
    upstream: tuple[str, list[tuple[str, str, str, bytes]]],
) -> None:
    """Clients wait for it a second, then send anyway: the tests would only be slow."""
    with FaultProxy(upstream[0]) as proxy, socket.create_connection(proxy.address, timeout=10) as client:
        client.sendall(b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sendall(b"data")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_every_second_request_can_be_hit(upstream: tuple[str, list[tuple[str, str, str, bytes]]]) -> None:
    with FaultProxy(upstream[0]) as proxy:
        proxy.add(Fault(FaultKind.ERROR, skip=1, every=2, times=2))
        assert [ask(proxy, "GET")[0] for _ in range(6)] == [200, 503, 200, 503, 200, 200]


def test_error_is_answered_without_the_server(upstream: tuple[str, list[tuple[str, str, str, bytes]]]) -> None:
    url, reached = upstream
    with FaultProxy(url) as proxy:
        proxy.add(Fault(FaultKind.ERROR, method="PUT", status=409, code="ConditionalRequestConflict"))
        status, body, _ = ask(proxy, "PUT", body=b"data")
        assert (status, b"<Code>ConditionalRequestConflict</Code>" in body, reached) == (409, True, [])
        assert ask(proxy, "PUT", body=b"data")[0] == 200


@pytest.mark.parametrize("kind", [FaultKind.RESET_BEFORE, FaultKind.LOST_RESPONSE, FaultKind.HANG])
def test_resets_are_resets_and_apply_or_not(
    upstream: tuple[str, list[tuple[str, str, str, bytes]]], kind: FaultKind
) -> None:
    url, reached = upstream
    with FaultProxy(url) as proxy:
        proxy.add(Fault(kind))
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            ask(proxy, "PUT", body=BIG)
        assert [one[0] for one in reached] == (["PUT"] if kind.applied else [])
        assert proxy.faults_met() == [kind]
        assert ask(proxy, "PUT", body=b"again") == (200, b"again", '"tag"')


def test_truncated_bodies_are_shorter_than_promised(upstream: tuple[str, list[tuple[str, str, str, bytes]]]) -> None:
    with FaultProxy(upstream[0]) as proxy:
        proxy.add(Fault(FaultKind.TRUNCATE, method="GET"))
        with pytest.raises(http.client.IncompleteRead) as caught:
            ask(proxy, "GET")
        assert len(caught.value.partial) == len(BIG) // 2


def test_latency_only_delays(upstream: tuple[str, list[tuple[str, str, str, bytes]]]) -> None:
    with FaultProxy(upstream[0]) as proxy:
        proxy.add(Fault(FaultKind.LATENCY, seconds=0.01))
        assert ask(proxy, "GET") == (200, BIG, '"tag"')
        assert proxy.faults_met() == [FaultKind.LATENCY]


def test_closing_ends_a_hang_and_idle_connections(upstream: tuple[str, list[tuple[str, str, str, bytes]]]) -> None:
    with FaultProxy(upstream[0]) as proxy:
        proxy.add(Fault(FaultKind.HANG, seconds=3600))
        idle = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=10)
        idle.request("PUT", "/b/k", body=b"1")
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        idle.getresponse()
    idle.close()


def test_faults_are_chosen_by_method_path_query_and_count(
    upstream: tuple[str, list[tuple[str, str, str, bytes]]],
) -> None:
    with FaultProxy(upstream[0]) as proxy:
        proxy.add(Fault(FaultKind.ERROR, method="PUT", path="*/s/*.log", query="partNumber=2", skip=1, times=2))
        targets = ["/b/ab/s/1.log", "/b/ab/s/1.log?partNumber=2", "/b/ab/s/1.idx?partNumber=2"]
        rounds = [[ask(proxy, "PUT", target, b"d")[0] for target in targets] for _ in range(4)]
        assert rounds == [[200, 200, 200], [200, 503, 200], [200, 503, 200], [200, 200, 200]]
        proxy.add(Fault(FaultKind.ERROR, times=-1))
        assert {ask(proxy, "GET")[0] for _ in range(3)} == {503}
        proxy.clear()
        assert (ask(proxy, "GET")[0], len(proxy.seen)) == (200, 1)


def test_an_upstream_that_is_gone_is_a_502() -> None:
    with FaultProxy("http://127.0.0.1:9") as proxy:
        assert ask(proxy, "GET")[0] == 502


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1"])
def test_only_plain_http_with_a_port_is_proxied(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        FaultProxy(url)


@pytest.mark.parametrize(("kind", "reached_before"), [(FaultKind.HOLD, 0), (FaultKind.HOLD_ANSWER, 1)])
def test_a_held_request_goes_on_when_it_is_released(
    upstream: tuple[str, list[tuple[str, str, str, bytes]]], kind: FaultKind, reached_before: int
) -> None:
    url, reached = upstream
    answers: list[tuple[int, bytes, str | None]] = []
    with FaultProxy(url) as proxy:
        proxy.add(Fault(kind, method="PUT"))
        client = threading.Thread(target=lambda: answers.append(ask(proxy, "PUT", body=b"data")))
        client.start()
        assert proxy.held().method == "PUT"
        assert (len(reached), answers) == (reached_before, [])
        proxy.release()
        assert len(reached) == 1
        client.join()
        assert answers == [(200, b"data", '"tag"')]
        assert proxy.faults_met() == [kind]


def test_a_slow_body_comes_whole(upstream: tuple[str, list[tuple[str, str, str, bytes]]]) -> None:
    url, _ = upstream
    with FaultProxy(url) as proxy:
        proxy.add(Fault(FaultKind.SLOW, seconds=0.01))
        assert ask(proxy, "GET")[1] == BIG


def test_a_caller_decides_what_no_planned_fault_takes(
    upstream: tuple[str, list[tuple[str, str, str, bytes]]],
) -> None:
    url, reached = upstream
    with FaultProxy(url, choose=lambda method, _: Fault(FaultKind.ERROR) if method == "GET" else None) as proxy:
        proxy.add(Fault(FaultKind.ERROR, status=500))
        assert [ask(proxy, method)[0] for method in ("PUT", "PUT", "GET", "GET")] == [500, 200, 503, 503]
        proxy.choose_by(None)
        assert ask(proxy, "GET")[0] == 200
    assert len(reached) == 2


def test_a_client_that_dies_in_a_body_has_asked_nothing(
    upstream: tuple[str, list[tuple[str, str, str, bytes]]],
) -> None:
    url, reached = upstream
    with FaultProxy(url) as proxy:
        with socket.create_connection(proxy.address) as client:
            client.sendall(b"PUT /b/root HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf")
        assert ask(proxy, "GET")[1] == BIG
    assert [method for method, *_ in reached] == ["GET"]
