"""A store without multi-delete, or one that wants ``Content-MD5`` for it: every deletion still works, key by key."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tests.support.proxy import Fault, FaultKind, FaultProxy
from tiered.errors import ConfigError, RemotePermissionError
from tiered.store.base import ABSENT, AioStore, Delete, Deleted, List, ListPage, Outcome, Put, Store, StoreRequest
from tiered.store.capabilities import probe
from tiered.store.driver import drive
from tiered.store.layers import LayeredStore
from tiered.store.location import StoreLocation
from tiered.store.memory import MemoryStore
from tiered.store.retry import Retries
from tiered.testing.clock import FakeClock
from tiered.testing.store_contract import BlockingStore

PREFIXES = itertools.count()
KEYS = tuple(f"a/{n}" for n in range(5))


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        with locked_moto() as url, FaultProxy(url) as running:
            make_bucket(url, "singles")
            yield running


@pytest.fixture(params=["boto3", "aiobotocore"])
def store(request: pytest.FixtureRequest, proxy: FaultProxy) -> Iterator[Store]:
    location = StoreLocation.parse(f"s3://singles/{next(PREFIXES)}", endpoint_url=proxy.url, region="us-east-1")

    async def make() -> AioStore:
        await asyncio.sleep(0)
        return location.open_aio()

    proxy.clear()
    opened = location.open() if request.param == "boto3" else BlockingStore(make)
    yield opened
    proxy.clear()
    opened.close()


def keys_of(store: Store, prefix: str = "") -> list[str]:
    page = store.execute(List(prefix))
    assert isinstance(page, ListPage)
    return [entry.key for entry in page.entries]


def fill(store: Store) -> None:
    for key in KEYS:
        store.execute(Put(key, b"v", ABSENT))


def posts(proxy: FaultProxy) -> int:
    return sum(seen.method == "POST" for seen in proxy.seen)


REFUSALS = [
    (400, "MissingContentMD5"),
    (400, "InvalidRequest"),
    (404, "NoSuchKey"),
    (405, "MethodNotAllowed"),
    (411, "MissingContentLength"),
    (501, "NotImplemented"),
]


@pytest.mark.parametrize(("status", "code"), REFUSALS)
def test_keys_are_deleted_one_by_one(store: Store, proxy: FaultProxy, status: int, code: str) -> None:
    fill(store)
    proxy.add(Fault(FaultKind.ERROR, method="POST", query="delete", status=status, code=code, times=-1))
    assert store.execute(Delete(KEYS[:3])) == Deleted(one_by_one=True)
    assert keys_of(store) == list(KEYS[3:])
    assert store.execute(Delete(KEYS)) == Deleted(one_by_one=True)
    assert keys_of(store) == []
    assert posts(proxy) == 1  # it is remembered


def test_a_key_that_is_refused_keeps_no_other(store: Store, proxy: FaultProxy) -> None:
    fill(store)
    proxy.add(Fault(FaultKind.ERROR, method="POST", query="delete", status=501, code="NotImplemented", times=-1))
    denied = Fault(FaultKind.ERROR, method="DELETE", path="*a/1", status=403, code="AccessDenied", times=-1)
    proxy.add(denied)
    deleted = store.execute(Delete(KEYS))
    assert isinstance(deleted, Deleted)
    assert [(key, "AccessDenied" in why) for key, why in deleted.failed] == [("a/1", True)]
    assert keys_of(store) == ["a/1"]


def test_credentials_that_have_expired_end_all_of_it(store: Store, proxy: FaultProxy) -> None:
    fill(store)
    proxy.add(Fault(FaultKind.ERROR, method="POST", query="delete", status=501, code="NotImplemented", times=-1))
    proxy.add(Fault(FaultKind.ERROR, method="DELETE", status=400, code="ExpiredToken", times=-1))
    with pytest.raises(RemotePermissionError, match="ExpiredToken"):
        store.execute(Delete(KEYS))


def test_the_probe_finds_it_and_leaves_nothing(store: Store, proxy: FaultProxy) -> None:
    assert drive(store, probe()).multi_delete
    proxy.add(Fault(FaultKind.ERROR, method="POST", query="delete", status=400, code="MissingContentMD5", times=-1))
    assert not drive(store, probe()).multi_delete
    assert keys_of(store, "probe/") == []


def test_a_refusal_of_every_deletion_is_raised_and_not_remembered() -> None:
    class Refusing(MemoryStore):
        refuses = True

        def execute(self, request: StoreRequest) -> Outcome:
            if isinstance(request, Delete) and self.refuses:
                raise ConfigError("the bucket is in another region")
            return super().execute(request)

    inner = Refusing()
    store = LayeredStore(inner, Retries(clock=FakeClock()))
    with pytest.raises(ConfigError, match="another region"):
        store.execute(Delete(KEYS))
    inner.refuses = False
    assert store.execute(Delete(KEYS)) == Deleted()
