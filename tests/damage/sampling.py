"""Which of the cases of damage a run takes: a share of them that is the same for a seed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

import pytest

SEED = int(os.environ.get("TIERED_DAMAGE_SEED", "20260731"))
SHARE = 1.0 if os.environ.get("TIERED_DAMAGE") == "all" else 0.15

SEALED, ACTIVE = 1, 3
"""Numbers of the segments that are damaged."""

T = TypeVar("T")

both_kinds = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


def sample(cases: Iterable[T], salt: str) -> list[T]:
    """One of them, or all."""
    cases = list(cases)
    return cases if SHARE == 1 else [random.Random(f"{SEED} {salt}").choice(cases)]
