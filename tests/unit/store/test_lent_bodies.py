"""Bodies that go from the socket into buffers of the pool: no copy more, one connection, nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tiered.format.buffers import BufferPool
from tiered.store import aio_s3, s3
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import ABSENT, Get, Object, Put
from tiered.store.location import StoreLocation
from tiered.store.s3 import LEND_BYTES, POOL_BYTES, S3Clients, S3Store

SIZE = 4 * LEND_BYTES
BODY = b"".join(number.to_bytes(8, "big") for number in range(SIZE // 8))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    # Stores of other tests may be open.
    monkeypatch.setattr(s3, "CLIENTS", S3Clients())
    monkeypatch.setattr(s3, "BUFFERS", BufferPool(POOL_BYTES, LEND_BYTES))
    with locked_moto() as url:
        make_bucket(url, "lent-bodies")
        store = StoreLocation.parse("s3://lent-bodies/log", endpoint_url=url).raw_store()
        assert isinstance(store, S3Store)
        store.execute(Put("k", BODY, ABSENT))
        yield store
        store.close()


def got(store: S3Store, start: int, end: int | None, *, lend: bool = True) -> Object:
    found = store.execute(Get("k", start, end, lend=lend))
    assert isinstance(found, Object)
    return found


def test_a_buffer_comes_back_when_nobody_looks_into_it(store: S3Store) -> None:
    for start in range(0, SIZE, LEND_BYTES):
        found = got(store, start, start + LEND_BYTES)
        assert found.lent is not None
        assert found.data == b""
        assert found.lent == BODY[start : start + LEND_BYTES]
        del found
    assert s3.BUFFERS.size_bytes == LEND_BYTES
    kept = got(store, 0, LEND_BYTES).lent
    assert got(store, LEND_BYTES, 2 * LEND_BYTES).lent == BODY[LEND_BYTES : 2 * LEND_BYTES]
    assert kept == BODY[:LEND_BYTES]
    assert s3.BUFFERS.size_bytes == 2 * LEND_BYTES


def test_one_connection_serves_all(store: S3Store) -> None:
    for start in range(0, SIZE, LEND_BYTES):
        got(store, start, start + LEND_BYTES)
    assert store._client is not None
    session = store._client.boto._endpoint.http_session
    assert [pool.num_connections for pool in session._manager.pools._container.values()] == [1]


@pytest.mark.parametrize(
    ("start", "end", "lend"),
    [(0, LEND_BYTES, False), (0, LEND_BYTES - 1, True), (0, None, True), (SIZE - LEND_BYTES, SIZE + 1, True)],
    ids=["not asked for", "small", "no range", "beyond the end"],
)
def test_what_is_not_lent(store: S3Store, start: int, end: int | None, lend: bool) -> None:
    found = got(store, start, end, lend=lend)
    assert found.lent is None
    assert found.data == BODY[start:end]


def test_no_buffer_is_kept_when_the_last_store_is_closed(store: S3Store) -> None:
    lent = got(store, 0, LEND_BYTES).lent
    other = S3Store(store.target)
    other.execute(Get("k", 0, 8))
    store.close()
    assert s3.BUFFERS.size_bytes == LEND_BYTES
    other.close()
    assert s3.BUFFERS.size_bytes == 0
    assert lent == BODY[:LEND_BYTES]


async def test_the_same_for_asyncio(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(POOL_BYTES, LEND_BYTES)
    monkeypatch.setattr(aio_s3, "BUFFERS", pool)
    other = AioS3Store(store.target)
    try:
        for start in range(0, SIZE, LEND_BYTES):
            found = await other.execute(Get("k", start, start + LEND_BYTES, lend=True))
            assert isinstance(found, Object)
            assert found.lent == BODY[start : start + LEND_BYTES]
            assert found.lent.readonly
            del found
        assert pool.size_bytes == LEND_BYTES
        whole = await other.execute(Get("k", lend=True))
        assert isinstance(whole, Object)
        assert (whole.lent, whole.data) == (None, BODY)
    finally:
        await other.close()
