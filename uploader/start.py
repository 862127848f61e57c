"""The console script. It imports little, so that an interrupt in the first second ends quietly."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from tiered.program.run import run_program


def _load() -> Callable[[], object]:
    # After the streams are in order and interrupts are quiet.
    from uploader.cli import main  # noqa: PLC0415

    return main


def main() -> NoReturn:
    run_program(_load, extra="uploader")
