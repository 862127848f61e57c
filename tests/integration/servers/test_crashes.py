"""A server that is killed under load keeps what it acknowledged, and the conditions still hold afterwards."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.servers.commands import BUCKET, S3Server
from tests.integration.servers.conftest import use
from tiered.errors import RemoteUnavailableError
from tiered.store.base import ABSENT, Get, Object, Put, PutResult, PutStatus, Store
from tiered.store.location import StoreLocation

WRITERS = 4
ENOUGH = 100


@pytest.mark.parametrize("name", ["minio", "seaweedfs"])
def test_acknowledged_objects_survive_a_kill(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = S3Server.start(name, tmp_path)
    use(server, monkeypatch)
    store = StoreLocation.parse(f"s3://{BUCKET}/crash", endpoint_url=server.url).raw_store()
    try:
        acknowledged = _write_until_killed(server, store)
        server.start_again()
        for key, etag in acknowledged.items():
            found = store.execute(Get(key))
            assert isinstance(found, Object)
            assert (found.data, found.etag) == (_body(key), etag)
            assert _status(store, key) is PutStatus.LOST
    finally:
        store.close()
        server.stop()


def _body(key: str) -> bytes:
    return key.encode() * 50


def _status(store: Store, key: str) -> PutStatus:
    result = store.execute(Put(key, _body(key), ABSENT))
    assert isinstance(result, PutResult)
    return result.status


def _write_until_killed(server: S3Server, store: Store) -> dict[str, str]:
    """Puts from several threads; the kill comes in the middle. ETags of what was acknowledged, by key."""
    acknowledged: dict[str, str] = {}
    enough = threading.Event()

    def write(writer: int) -> None:
        for number in itertools.count():
            key = f"{writer}/{number}"
            try:
                result = store.execute(Put(key, _body(key), ABSENT))
            except RemoteUnavailableError:
                return
            assert isinstance(result, PutResult)
            if result.status is not PutStatus.LANDED:
                return
            acknowledged[key] = result.etag
            if len(acknowledged) >= ENOUGH:
                enough.set()

    with ThreadPoolExecutor(WRITERS) as pool:
        futures = [pool.submit(write, writer) for writer in range(WRITERS)]
        enough.wait(60)
        server.kill()
        for future in futures:
            future.result()
    assert len(acknowledged) >= ENOUGH
    return acknowledged
