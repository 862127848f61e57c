"""A broker that has written one topic, and the bucket beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sidecar.broker import Broker, finished_log
from tiered.engine import failure
from tiered.model import TopicPartition


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run look at a fatal failure again at once: by the real clock its end would take a second and a half."""
    monkeypatch.setattr(failure, "_FATAL_BASE_MS", 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_log(tmp_path_factory.mktemp("finished") / "log")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of another leader: other records, and it rolled at the same offsets."""
    return finished_log(tmp_path_factory.mktemp("other") / "log", filler=b"o")


@pytest.fixture
def broker(finished: Path, tmp_path: Path) -> Broker:
    return Broker(finished, tmp_path / "kafka", TopicPartition("t", 0))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'bucket'}"
