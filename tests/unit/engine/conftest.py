"""Engines of a test are closed at its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.engine.desk import OPENED


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()
