"""Thousands of random acts on several partitions, each answer compared with that of a model.

``TIERED_HISTORY_SEED`` repeats one history (``random``: a new one), ``TIERED_HISTORY_STEPS`` makes it longer. A failure
prints the seed, the step and what came before it.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.property.history.story import Story

STEPS = int(os.environ.get("TIERED_HISTORY_STEPS", "2000"))
WANTED = os.environ.get("TIERED_HISTORY_SEED", "")
SEEDS = [WANTED] if WANTED else ["1", "2"]


@pytest.mark.timeout(60 + STEPS)
@pytest.mark.parametrize("wanted", SEEDS)
def test_a_long_history_is_what_its_model_says(tmp_path: Path, wanted: str) -> None:
    seed = random.SystemRandom().getrandbits(32) if wanted == "random" else int(wanted)
    print(f"TIERED_HISTORY_SEED={seed} TIERED_HISTORY_STEPS={STEPS}")
    Story(tmp_path, seed).run(STEPS)
