"""Fixtures of tests with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.uploader.logs import make_log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a log directory with one topic, ``t``, of one partition."""
    make_log(tmp_path / "log", partitions=1)
    return tmp_path / "log"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of an empty folder."""
    (tmp_path / "store").mkdir()
    return f"file://{tmp_path / 'store'}"
