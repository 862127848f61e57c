"""The store contract on real servers, over both SDKs. Each flag names one way in which a server differs from S3."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import ClassVar

import pytest

from tests.integration.servers.commands import BUCKET, S3Server
from tests.integration.servers.conftest import use
from tests.support.moto import make_bucket
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import ABSENT, AioStore, Get, Put, Store
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import S3Target
from tiered.testing.store_contract import BlockingStore, StoreContract, expect_equal, expect_object, landed, listed

NUMBERS = itertools.count()


class OnServer(StoreContract):
    keeps_versions = True
    server: ClassVar[str]

    @pytest.fixture(autouse=True)
    def running(self, servers: Callable[[str], S3Server], monkeypatch: pytest.MonkeyPatch) -> None:
        one = servers(self.server)
        use(one, monkeypatch)
        self.endpoint_url, self.credentials = one.url, one.credentials

    def target(self, bucket: str = BUCKET) -> S3Target:
        return S3Target(bucket, f"contract/{next(NUMBERS)}", endpoint_url=self.endpoint_url)

    def versioned_target(self) -> S3Target:
        bucket = f"versions-{next(NUMBERS)}"
        make_bucket(self.endpoint_url, bucket, versioned=True, credentials=self.credentials)
        return self.target(bucket)


class OverBoto3(OnServer):
    def make_store(self) -> Store:
        return S3Store(self.target())

    def make_versioned_store(self) -> Store:
        return S3Store(self.versioned_target())

    def same_place(self, store: Store) -> Store:
        assert isinstance(store, S3Store)
        return S3Store(store.target)


class OverAiobotocore(OnServer):
    def make_store(self) -> Store:
        return self._blocking(self.target())

    def make_versioned_store(self) -> Store:
        return self._blocking(self.versioned_target())

    def _blocking(self, target: S3Target) -> Store:
        async def make() -> AioStore:
            await asyncio.sleep(0)
            return AioS3Store(target)

        return BlockingStore(make)


class Minio(OnServer):
    server = "minio"
    lists_keys_below_keys = False
    race_writers = 16
    race_rounds = 10


class SeaweedFS(OnServer):
    server = "seaweedfs"
    lists_in_order = False
    lists_keys_below_keys = False
    tells_absent = False
    race_writers = 3  # losers of a race wait about a second each

    def test_strange_keys(self) -> None:
        """A backslash becomes a slash here; our keys hold none."""
        store = self.store()
        keys = ["a b/c+d/e%20f", "ü/日本/€.log", "q?x=1&y=2#z", ".hidden/~tilde", "=+,;:@!$'()*[]{}|^`\"<>~"]
        for key in (*keys, "back\\slash"):
            landed(store.execute(Put(key, key.encode(), ABSENT)))
        expect_equal(sorted(listed(store)), sorted([*keys, "back/slash"]))
        expect_equal([expect_object(store.execute(Get(key))).data for key in keys], [key.encode() for key in keys])


class LocalStack(OnServer):
    server = "localstack"

    def test_list_pages_prefixes_and_order(self) -> None:
        """Pages miss keys that URLs quote (it compares the quoted key with the last one); our keys need no quoting."""
        store = self.store()
        keys = sorted(["b/1", "b/10", "b/2", "b-1", "b", "c", "a/x/y", "B/1"])
        for key in keys:
            landed(store.execute(Put(key, key.encode(), ABSENT)))
        expect_equal(listed(store, limit=2), keys)
        expect_equal(listed(store, "b/"), ["b/1", "b/10", "b/2"])
        landed(store.execute(Put("ü", b"", ABSENT)))
        expect_equal((listed(store), listed(store, limit=2)), ([*keys, "ü"], keys))


class TestMinioOverBoto3(Minio, OverBoto3):
    pass


class TestMinioOverAiobotocore(Minio, OverAiobotocore):
    pass


class TestSeaweedFSOverBoto3(SeaweedFS, OverBoto3):
    pass


class TestSeaweedFSOverAiobotocore(SeaweedFS, OverAiobotocore):
    pass


class TestLocalStackOverBoto3(LocalStack, OverBoto3):
    pass


class TestLocalStackOverAiobotocore(LocalStack, OverAiobotocore):
    pass


del StoreContract  # a base, not a suite of its own
