"""Thousands of random acts on several partitions, each answer compared with that of a model.

``TIERED_HISTORY_SEED`` repeats one history, ``TIERED_HISTORY_STEPS`` makes it longer.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.property.history.story import Story

STEPS = 2000


def test_a_long_history_is_what_its_model_says(tmp_path: Path) -> None:
    seed = int(os.environ.get("TIERED_HISTORY_SEED", random.SystemRandom().getrandbits(32)))
    steps = int(os.environ.get("TIERED_HISTORY_STEPS", STEPS))
    print(f"TIERED_HISTORY_SEED={seed} TIERED_HISTORY_STEPS={steps}")
    Story(tmp_path, seed).run(steps)
