"""The clients of one process: credentials of their own, one reading of what the SDK knows of S3."""

from __future__ import annotations

from typing import Any

import botocore.loaders
import pytest

from tiered.store import s3
from tiered.store.base import Get
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import S3Target


def connected(key: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = S3Store(S3Target("bucket", endpoint_url="http://127.0.0.1:9", region="us-east-1"))
    try:
        return store._connected(Get("key"))
    finally:
        store.close()


def test_the_model_is_read_once_and_credentials_are_found_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders: list[object] = []
    make = botocore.loaders.create_loader

    def counted(*args: Any, **kwargs: Any) -> Any:
        loaders.append(make(*args, **kwargs))
        return loaders[-1]

    monkeypatch.setattr(s3, "_loader", None)
    monkeypatch.setattr(botocore.loaders, "create_loader", counted)
    first, second = connected("first", monkeypatch), connected("second", monkeypatch)
    assert len(loaders) == 1
    assert [each._request_signer._credentials.access_key for each in (first, second)] == ["first", "second"]
