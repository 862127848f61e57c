"""An answer that is cut on its way, errors included: tried again, never taken for another server's or for "absent"."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tests.support.proxy import Fault, FaultKind, FaultProxy
from tiered.errors import RemoteUnavailableError
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import ABSENT, Get, List, ListPage, Missing, Object, Put, PutResult, PutStatus, StoreRequest
from tiered.store.location import StoreLocation
from tiered.store.s3 import LEND_BYTES


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


@pytest.mark.parametrize(("request_", "whole"), CUT, ids=NAMES)
def test_a_cut_answer_is_an_outage(proxy: FaultProxy, request_: StoreRequest, whole: type) -> None:
    store = StoreLocation.parse("s3://cut-answers/log", endpoint_url=proxy.url).raw_store()
    try:
        store.execute(Put("there", b"data" * 100, ABSENT))
        store.execute(Put("large", bytes(LARGE), ABSENT))
        proxy.add(Fault(FaultKind.TRUNCATE))
        with pytest.raises(RemoteUnavailableError):
            store.execute(request_)
        assert isinstance(store.execute(request_), whole)
    finally:
        store.close()


@pytest.mark.parametrize(("request_", "whole"), CUT, ids=NAMES)
async def test_the_same_for_asyncio(proxy: FaultProxy, request_: StoreRequest, whole: type) -> None:
    store = AioS3Store(StoreLocation.parse("s3://cut-answers/log", endpoint_url=proxy.url).target)
    try:
        await store.execute(Put("there", b"data" * 100, ABSENT))
        await store.execute(Put("large", bytes(LARGE), ABSENT))
        proxy.add(Fault(FaultKind.TRUNCATE))
        with pytest.raises(RemoteUnavailableError):
            await store.execute(request_)
        assert isinstance(await store.execute(request_), whole)
    finally:
        await store.close()


def test_a_refusal_whose_text_is_cut_is_a_refusal(proxy: FaultProxy) -> None:
    """The status line came whole: 412 says that another writer was first."""
    store = StoreLocation.parse("s3://cut-answers/log", endpoint_url=proxy.url).raw_store()
    try:
        store.execute(Put("once", b"1", ABSENT))
        proxy.add(Fault(FaultKind.TRUNCATE, method="PUT"))
        result = store.execute(Put("once", b"2", ABSENT))
        assert isinstance(result, PutResult)
        assert result.status is PutStatus.LOST
    finally:
        store.close()
