"""Tests that make their own catalogs: they run once."""

from __future__ import annotations

import pytest


@pytest.fixture
def catalogs() -> None:
    """Take the place of the fixture that runs each test over both kinds of catalogs."""
