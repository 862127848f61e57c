"""Prints the crash matrix: ``python -m tests.crash.matrix [part of an operation's name]``.

TIERED_CRASH_MATRIX=all runs every case, =0.2 a fifth of them; TIERED_CRASH_SEED repeats a run.
"""

from __future__ import annotations

import sys

from tests.crash.matrix.runner import SEED, run_all
from tests.crash.matrix.table import OPERATIONS, print_header, print_row, print_total

SHOWN = 4
"""Failures of one operation that are printed."""

if __name__ == "__main__":
    wanted = " ".join(sys.argv[1:])
    print(f"TIERED_CRASH_SEED={SEED}")
    print_header()
    results = []
    for result in run_all(tuple(op for op in OPERATIONS if wanted in op.name)):
        print_row(result)
        results.append(result)
    print_total(results)
    for result in results:
        for text in result.failed[:SHOWN]:
            print(text[:400])
    sys.exit(any(result.failed for result in results))
