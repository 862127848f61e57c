"""A bucket in a folder, and whose policy answers for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import clean_environment, cli
from tests.unit.plan.iam_policy.policed import BUCKET_ARN, KMS_ARN, PREFIX, Guard, PolicedStore
from tiered.plan.iam_policy import policy
from tiered.store.base import Store
from tiered.store.location import StoreLocation

__all__ = ["clean_environment", "cli"]

Become = Callable[..., Guard]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The bucket."""
    return f"file://{tmp_path / 'bucket'}"


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """From the call on every store that is opened is that of a role, under its policy without the pins of readers."""
    guards: list[Guard] = []
    raw_store = StoreLocation.raw_store

    def policed(location: StoreLocation, **options: Any) -> Store:
        return PolicedStore(raw_store(location, **options), guards[-1])

    def begin(role: str, *, leave_out: tuple[str, ...] = ("Pin", "PinKey")) -> Guard:
        guards.append(Guard(policy(role, BUCKET_ARN, PREFIX, kms_key_arn=KMS_ARN, leave_out=leave_out)))
        return guards[-1]

    monkeypatch.setattr(StoreLocation, "raw_store", policed)
    return begin
