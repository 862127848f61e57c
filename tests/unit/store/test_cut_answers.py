"""An answer that is cut on its way, errors included: tried again, never taken for another server's or for "absent"."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tests.support.proxy import Fault, FaultKind, FaultProxy
from tiered.errors import RemoteUnavailableError
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import (
    ABSENT,
    AioStore,
    Get,
    List,
    ListPage,
    Missing,
    Object,
    Put,
    PutResult,
    PutStatus,
    Store,
    StoreRequest,
)
from tiered.store.location import StoreLocation
from tiered.store.s3 import LEND_BYTES, S3Store
from tiered.testing.store_contract import BlockingStore


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with locked_moto() as url, FaultProxy(url) as one:
        make_bucket(url, "cut-answers")
        yield one


LARGE = 2 * LEND_BYTES
CUT = [
    (Get("absent"), Missing),
    (Get("there"), Object),
    (List(""), ListPage),
    (Get("large", 0, LARGE, lend=True), Object),
]
NAMES = ["absent", "there", "list", "lent"]


@pytest.fixture(params=["boto3", "aiobotocore"])
def store(request: pytest.FixtureRequest, proxy: FaultProxy) -> Iterator[Store]:
    target = StoreLocation.parse("s3://cut-answers/log", endpoint_url=proxy.url).s3

    async def make() -> AioStore:
        await asyncio.sleep(0)
        return AioS3Store(target)

    made: Store = S3Store(target) if request.param == "boto3" else BlockingStore(make)
    yield made
    made.close()


@pytest.mark.parametrize(("request_", "whole"), CUT, ids=NAMES)
def test_a_cut_answer_is_an_outage(proxy: FaultProxy, store: Store, request_: StoreRequest, whole: type) -> None:
    store.execute(Put("there", b"data" * 100, ABSENT))
    store.execute(Put("large", bytes(LARGE), ABSENT))
    proxy.add(Fault(FaultKind.TRUNCATE))
    with pytest.raises(RemoteUnavailableError):
        store.execute(request_)
    assert isinstance(store.execute(request_), whole)


@pytest.mark.parametrize("store", ["boto3"], indirect=True)
def test_a_refusal_whose_text_is_cut_is_a_refusal(proxy: FaultProxy, store: Store) -> None:
    """The status line came whole: 412 says that another writer was first."""
    store.execute(Put("once", b"1", ABSENT))
    proxy.add(Fault(FaultKind.TRUNCATE, method="PUT"))
    result = store.execute(Put("once", b"2", ABSENT))
    assert isinstance(result, PutResult)
    assert result.status is PutStatus.LOST
