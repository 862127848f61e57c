"""Entry of ``python -m tiered.spark VERB``, and the file for ``spark-submit``. Runs one verb of the command line."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
PARENT_FD = "TIERED_SPARK_PARENT_FD"
"""Variable with the descriptor of a pipe whose writer is ``tiered spark``."""


def _load() -> Callable[[], object]:
    # Imported late, after ``run_program`` has set up streams and signals.
    from tiered.program.command_line import run_command  # noqa: PLC0415
    from tiered.spark.commands import PROGRAM, jobs  # noqa: PLC0415

    return lambda: sys.exit(run_command(jobs, PROGRAM, sys.argv[1:]))


def _end_with_parent(number: int) -> None:
    """End this process when ``tiered spark`` has ended. The JVM then ends too, because its standard input ends.

    ``number``: descriptor of a pipe that only ``tiered spark`` can write to.
    """
    os.read(number, 1)
    os._exit(137)


if __name__ == "__main__":
    # Running a file by its path puts its folder first in sys.path, whose modules would hide others of the same names.
    sys.path[:] = [place for place in sys.path if place != HERE]
    if PARENT_FD in os.environ:
        threading.Thread(target=_end_with_parent, args=[int(os.environ.pop(PARENT_FD))], daemon=True).start()
    from tiered.program.run import run_program

    run_program(_load, extra="spark")
