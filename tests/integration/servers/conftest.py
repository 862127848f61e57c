"""Real servers, each started once a session, when the first test asks for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.servers.commands import BUCKET, S3_SERVERS, S3Server
from tiered.store.base import Store
from tiered.store.location import open_store
from tiered.store.options import RETRY_DEADLINE_SECONDS, StoreOptions

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder needs a server."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.servers)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], S3Server]]:
    """Running servers by name."""
    started: dict[str, S3Server] = {}

    def server(name: str) -> S3Server:
        if name not in started:
            started[name] = S3Server.start(name, tmp_path_factory.mktemp(name))
        return started[name]

    yield server
    for one in started.values():
        one.stop()


@pytest.fixture(params=S3_SERVERS)
def server(
    request: pytest.FixtureRequest, servers: Callable[[str], S3Server], monkeypatch: pytest.MonkeyPatch
) -> S3Server:
    """Each S3 server in turn, its credentials in the environment."""
    one = servers(request.param)
    use(one, monkeypatch)
    return one


@pytest.fixture
def minio(servers: Callable[[str], S3Server], monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """MinIO, its credentials in the environment."""
    one = servers("minio")
    use(one, monkeypatch)
    return one


def use(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the credentials of ``server`` where SDKs look."""
    monkeypatch.delenv("TIERED_ENDPOINT_URL", raising=False)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in server.credentials.items():
        monkeypatch.setenv(name, value)


class OpenPrefix(Protocol):
    """Opens a store on an endpoint, below the test's own prefix."""

    def __call__(self, endpoint_url: str, *, deadline_seconds: float = RETRY_DEADLINE_SECONDS) -> Store:
        """The store; closed after the test."""


@pytest.fixture
def open_prefix() -> Iterator[OpenPrefix]:
    """Opens stores on an endpoint, all below one prefix that no other test uses; closes them."""
    prefix = f"test-{next(_numbers)}"
    stores: list[Store] = []

    def open_one(endpoint_url: str, *, deadline_seconds: float = RETRY_DEADLINE_SECONDS) -> Store:
        store = open_store(
            f"s3://{BUCKET}/{prefix}", StoreOptions(deadline_seconds=deadline_seconds), endpoint_url=endpoint_url
        )
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()
