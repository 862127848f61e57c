"""Removes the logs that the tests of a module copied."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.damage.scene import remove_templates


@pytest.fixture(scope="module", autouse=True)
def templates() -> Iterator[None]:
    """Made by whoever asks first."""
    yield
    remove_templates()
