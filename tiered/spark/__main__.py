"""``python -m tiered.spark VERB``, and the file that ``spark-submit`` is given: one verb, from its command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)


def _load() -> Callable[[], object]:
    # After the streams are in order and interrupts are quiet.
    from tiered.program.command_line import run_command  # noqa: PLC0415
    from tiered.spark.commands import PROGRAM, jobs  # noqa: PLC0415

    return lambda: sys.exit(run_command(jobs, PROGRAM, sys.argv[1:]))


if __name__ == "__main__":
    # A file that is run by its path puts its folder first: its modules would hide others of the same names.
    sys.path[:] = [place for place in sys.path if place != HERE]
    from tiered.program.run import run_program

    run_program(_load, extra="spark")
