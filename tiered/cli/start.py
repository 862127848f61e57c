"""Console script of ``tiered``. It imports little, so that Ctrl-C in the first second ends without a traceback."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from tiered.program.run import run_program


def _load() -> Callable[[], object]:
    # After the streams are in order and interrupts are quiet.
    from tiered.cli.main import main  # noqa: PLC0415

    return main


def main() -> NoReturn:
    run_program(_load, extra="cli")
