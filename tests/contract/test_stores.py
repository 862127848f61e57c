"""The store contract, run by every backend that needs no server of its own."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from tests.contract.conftest import BUCKET, VERSIONED_BUCKET
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import AioStore, Store
from tiered.store.directory import DirectoryStore
from tiered.store.limit import Limits
from tiered.store.location import StoreLocation, ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.options import StoreOptions
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import S3Target
from tiered.testing.faults import FaultStore
from tiered.testing.store_contract import BlockingStore, StoreContract

NUMBERS = itertools.count()


class TestMemoryStore(StoreContract):
    keeps_versions = True

    def make_versioned_store(self) -> Store:
        return MemoryStore(prefix="some/prefix", versioned=True)

    def make_store(self) -> Store:
        return MemoryStore(f"contract-{next(NUMBERS)}", prefix="some/prefix")

    def same_place(self, store: Store) -> Store:
        return MemoryStore(store.url.split("/")[2], prefix="some/prefix")


class TestDirectoryStore(StoreContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def make_store(self) -> Store:
        return DirectoryStore(self.path / "store")

    def same_place(self, store: Store) -> Store:
        return DirectoryStore(self.path / "store")


class TestThreadedAioStore(StoreContract):
    def make_store(self) -> Store:
        async def make() -> AioStore:
            await asyncio.sleep(0)
            return ThreadedAioStore(MemoryStore())

        return BlockingStore(make)


class TestOpenedStore(StoreContract):
    """With retries and metrics around it, and a fault store that has no faults."""

    def make_store(self) -> Store:
        return FaultStore(
            StoreLocation.parse(f"memory://contract-{next(NUMBERS)}").open(
                StoreOptions(limits=Limits(requests_per_second=1e9))
            )
        )


class MotoDeviations(StoreContract):
    keeps_versions = True
    verifies_checksum = False
    completes_once = False
    tells_unknown_uploads = False
    race_rounds = 2

    @pytest.fixture(autouse=True)
    def server(self, moto_url: str) -> None:
        self.endpoint_url = moto_url

    def target(self, bucket: str = BUCKET) -> S3Target:
        return S3Target(bucket, f"run/{next(NUMBERS)}", endpoint_url=self.endpoint_url)


class TestS3Store(MotoDeviations):
    def make_store(self) -> Store:
        return S3Store(self.target())

    def make_versioned_store(self) -> Store:
        return S3Store(self.target(VERSIONED_BUCKET))


class TestAioS3Store(MotoDeviations):
    def make_store(self) -> Store:
        return self._blocking(self.target())

    def make_versioned_store(self) -> Store:
        return self._blocking(self.target(VERSIONED_BUCKET))

    def _blocking(self, target: S3Target) -> Store:
        async def make() -> AioStore:
            await asyncio.sleep(0)
            return AioS3Store(target)

        return BlockingStore(make)


del MotoDeviations, StoreContract  # bases, not suites of their own
