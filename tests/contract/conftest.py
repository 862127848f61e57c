"""One locked moto server for the session; every store gets a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.moto import CREDENTIALS, locked_moto, make_bucket

BUCKET = "contract"
VERSIONED_BUCKET = "contract-versions"


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    with locked_moto() as url:
        make_bucket(url, BUCKET)
        make_bucket(url, VERSIONED_BUCKET, versioned=True)
        yield url


@pytest.fixture(autouse=True)
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
