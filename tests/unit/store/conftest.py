"""A scripted S3 endpoint and both clients of it, made once: a client costs a tenth of a second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.moto import CREDENTIALS
from tests.unit.store.scripted import Script, scripted_server
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import AioStore, Store
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import S3Target
from tiered.testing.store_contract import BlockingStore


@pytest.fixture(scope="session")
def script() -> Iterator[Script]:
    with scripted_server() as running:
        yield running


@pytest.fixture(scope="session", params=["boto3", "aiobotocore"])
def client(request: pytest.FixtureRequest, script: Script) -> Iterator[Store]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        target = S3Target("logs", "prod", endpoint_url=script.url, read_timeout_seconds=5)

        async def make() -> AioStore:
            await asyncio.sleep(0)
            return AioS3Store(target)

        store: Store = S3Store(target) if request.param == "boto3" else BlockingStore(make)
        yield store
        store.close()
