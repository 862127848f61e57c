"""The clients of one process: shared by stores of the same settings and credentials, and by no others."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import botocore.loaders
import pytest

from tests.support.homes import no_home
from tiered.errors import RemoteUnavailableError
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import Get
from tiered.store.s3 import S3Clients
from tiered.store.s3_requests import S3Target

TARGET = S3Target("bucket", endpoint_url="http://127.0.0.1:9", region="us-east-1")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path / "credentials"


def access_key(client: Any) -> str:
    key: str = client.boto._request_signer._credentials.access_key
    return key


def test_the_model_is_read_once_and_credentials_are_found_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders: list[object] = []
    make = botocore.loaders.create_loader

    def counted(*args: Any, **kwargs: Any) -> Any:
        loaders.append(make(*args, **kwargs))
        return loaders[-1]

    monkeypatch.setattr(botocore.loaders, "create_loader", counted)
    clients = S3Clients()
    first = clients.lease(TARGET)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
    second = clients.lease(TARGET)
    assert len(loaders) == 1
    assert [access_key(each) for each in (first, second)] == ["first", "second"]


def test_stores_of_one_endpoint_share_a_client_also_one_after_the_other() -> None:
    clients = S3Clients()
    first = clients.lease(TARGET)
    assert clients.lease(dataclasses.replace(TARGET, bucket="other", prefix="p")) is first
    assert (first.stores, clients.in_use) == (2, 1)
    clients.release(first)
    clients.release(first)
    assert (first.stores, clients.in_use) == (0, 0)
    assert clients.lease(TARGET) is first


@pytest.mark.parametrize(
    "other",
    [{"endpoint_url": "http://127.0.0.1:10"}, {"region": "eu-west-1"}, {"read_timeout_seconds": 3.0}],
)
def test_other_settings_have_a_client_of_their_own(other: dict[str, Any]) -> None:
    clients = S3Clients()
    assert clients.lease(TARGET) is not clients.lease(dataclasses.replace(TARGET, **other))


def test_a_process_of_a_uid_without_home_has_clients_with_the_credentials_of_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_home(monkeypatch)
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE")
    monkeypatch.delenv("AWS_CONFIG_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    clients = S3Clients()
    first = clients.lease(TARGET)
    assert access_key(first) == "first"
    assert clients.lease(TARGET) is first

    async def answer() -> str:
        store = AioS3Store(TARGET)
        with pytest.raises(RemoteUnavailableError) as refused:
            await store.execute(Get("p"))
        await store.close()
        return refused.value.hint

    assert "the store did not answer" in asyncio.run(answer())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "endpoint_url", [None, "http://127.0.0.1:9", "https://vpce-1.s3.eu-central-1.vpce.amazonaws.com"]
)
@pytest.mark.parametrize(
    ("profile", "given", "signed"),
    [("", None, "us-east-1"), ("eu-central-1", None, "eu-central-1"), ("eu-central-1", "eu-west-1", "eu-west-1")],
)
def test_the_region_is_that_of_the_profile_at_any_endpoint(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    endpoint_url: str | None,
    profile: str,
    given: str | None,
    signed: str,
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(f"[default]\nregion = {profile}\n" if profile else "")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    target = S3Target("bucket", endpoint_url=endpoint_url, region=given)
    assert S3Clients().lease(target).boto._request_signer._region_name == signed

    async def of_the_loop() -> str:
        store = AioS3Store(target)
        region: str = (await store._connected()).boto._request_signer._region_name
        await store.close()
        return region

    assert asyncio.run(of_the_loop()) == signed


def test_connections_are_closed_with_the_last_store_and_only_some_clients_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients, closed = S3Clients(idle=2), []
    targets = [dataclasses.replace(TARGET, read_timeout_seconds=1.0 + at) for at in range(4)]
    held = [clients.lease(target) for target in targets]
    for at, client in enumerate(held):
        monkeypatch.setattr(client.boto, "close", lambda at=at: closed.append(at))
    clients.lease(targets[0])
    for client in held:
        clients.release(client)
    assert closed == [1, 2, 3]
    assert clients.in_use == 1
    again = [clients.lease(target) for target in targets]
    assert [old is new for old, new in zip(held, again, strict=True)] == [True, False, True, True]


def test_no_secret_stands_in_what_is_kept() -> None:
    clients = S3Clients()
    clients.lease(TARGET)
    assert "secret" not in repr(clients._held)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "secret"
