"""Every test here runs twice: over a catalog with all rows in its root, and over one with pages."""

from __future__ import annotations

import pytest

from tests.support.both_catalogs import both_catalogs

__all__ = ["both_catalogs", "catalogs"]


@pytest.fixture(autouse=True)
def catalogs(both_catalogs: None) -> None:
    """For every test."""
