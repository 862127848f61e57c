"""Conditional writes under real concurrency: exactly one writer wins, and the object is the winner's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.servers.commands import S3Server
from tests.integration.servers.conftest import OpenPrefix
from tiered.model import BytesSource
from tiered.store.base import (
    ABSENT,
    CompleteUpload,
    Get,
    Match,
    Object,
    PartStored,
    Put,
    PutResult,
    PutStatus,
    StartUpload,
    Store,
    StoreRequest,
    UploadPart,
    UploadStarted,
)

WRITERS = {"moto": 8, "minio": 16, "seaweedfs": 3, "localstack": 8}
"""SeaweedFS lets losers wait about a second each."""
ROUNDS = {"moto": 6, "minio": 20, "seaweedfs": 3, "localstack": 6}
LOSES = {PutStatus.LOST, PutStatus.CONFLICT}


def race(store: Store, requests: Sequence[StoreRequest]) -> list[PutResult]:
    """All requests at once, from as many threads."""
    barrier = threading.Barrier(len(requests))

    def one(request: StoreRequest) -> PutResult:
        barrier.wait()
        result = store.execute(request)
        assert isinstance(result, PutResult)
        return result

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(one, requests))


def winner(results: Sequence[PutResult]) -> int:
    """Index of the only request that landed; all others know that they did not."""
    landed = [index for index, result in enumerate(results) if result.status is PutStatus.LANDED]
    assert len(landed) == 1, results
    assert {result.status for index, result in enumerate(results) if index != landed[0]} <= LOSES, results
    return landed[0]


def body_of(store: Store, key: str) -> bytes:
    found = store.execute(Get(key))
    assert isinstance(found, Object)
    return found.data


@pytest.mark.parametrize("size_bytes", [64, 200_000])
def test_one_of_many_creates(server: S3Server, open_prefix: OpenPrefix, size_bytes: int) -> None:
    store = open_prefix(server.url)
    for number in range(ROUNDS[server.name]):
        bodies = [bytes([writer]) * size_bytes for writer in range(WRITERS[server.name])]
        won = winner(race(store, [Put(f"race/{number}", body, ABSENT) for body in bodies]))
        assert body_of(store, f"race/{number}") == bodies[won]


def test_one_of_many_replaces_the_same_version(server: S3Server, open_prefix: OpenPrefix) -> None:
    store = open_prefix(server.url)
    last = store.execute(Put("root", b"start", ABSENT))
    for number in range(ROUNDS[server.name]):
        assert isinstance(last, PutResult)
        bodies = [f"{number}-{writer}".encode() for writer in range(WRITERS[server.name])]
        results = race(store, [Put("root", body, Match(last.etag)) for body in bodies])
        won = winner(results)
        last = results[won]
        assert body_of(store, "root") == bodies[won]


def complete(store: Store, key: str, body: bytes) -> CompleteUpload:
    """A multipart upload of one part, ready to be completed."""
    started = store.execute(StartUpload(key))
    assert isinstance(started, UploadStarted)
    part = store.execute(UploadPart(key, started.upload_id, 1, BytesSource(body), 0, len(body)))
    assert isinstance(part, PartStored)
    return CompleteUpload(key, started.upload_id, (part,))


def test_one_of_many_completes_an_upload(minio: S3Server, open_prefix: OpenPrefix) -> None:
    """MinIO only: SeaweedFS is known to let several win, the in-memory servers are covered by the contract."""
    store = open_prefix(minio.url)
    for number in range(10):
        bodies = [bytes([writer]) * 1000 for writer in range(8)]
        uploads = [complete(store, f"mpu/{number}", body) for body in bodies]
        won = winner(race(store, uploads))
        assert body_of(store, f"mpu/{number}") == bodies[won]
