"""Real servers, each started once a session, when the first test asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.servers.commands import S3Server

collect_ignore = [] if "TIERED_TEST_REMOTE" in os.environ else ["test_remote.py"]  # which needs a bucket of the user


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
