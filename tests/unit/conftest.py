"""Fixtures of several rooms."""

from __future__ import annotations

from tests.support.both_catalogs import both_catalogs

__all__ = ["both_catalogs"]
