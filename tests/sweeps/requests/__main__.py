"""``python -m tests.sweeps.requests [cases]``: all of the sweep or some cases (TIERED_SWEEP_SEED repeats a run)."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.sweeps.requests.repairs import RepairCase, play_repair, repair_cases
from tests.sweeps.requests.story import Case, cases, play

if __name__ == "__main__":
    seed = int(os.environ.get("TIERED_SWEEP_SEED") or random.SystemRandom().randrange(2**32))
    print(f"TIERED_SWEEP_SEED={seed}")
    failed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="tiered-sweep-") as name:
        every: list[Case | RepairCase] = [*cases(Path(name)), *repair_cases(Path(name))]
        chosen = random.Random(seed).sample(every, int(sys.argv[1])) if len(sys.argv) > 1 else every
        for case in chosen:
            try:
                if isinstance(case, RepairCase):
                    play_repair(case, Path(name) / "case")
                else:
                    play(case, Path(name) / "case")
            except Exception as error:  # noqa: BLE001 - whatever goes wrong is a line of the report
                failed[f"{type(error).__name__}"] += 1
                print(f"{case}: {type(error).__name__}: {error}"[:700])
    print(f"{len(chosen)} of {len(every)} failed requests: {sum(failed.values())} did not heal {dict(failed) or ''}")
    sys.exit(bool(failed))
