"""Buckets whose copies of roots are lost, but for those before removals."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tiered.format.root import Root
from tiered.remote.settle import Deadline
from tiered.store.base import Steps


def lose_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make claims, intervals and commits of sinks leave no copy below ``hist/``."""
    monkeypatch.setattr("tiered.remote.catalog.copy_root", _none)
    monkeypatch.setattr("tiered.remote.stage.copy_roots", _no_copies)


def _none(_: Root) -> Steps[None]:
    yield from ()


def _no_copies(_: Sequence[Root], __: Deadline) -> Steps[None]:
    yield from ()
