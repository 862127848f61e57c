"""The console script. It imports little, so that an interrupt in the first second ends quietly."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import NoReturn

from tiered.program.run import run_program

_M_ARENA_MAX = -8
"""Parameter of glibc's ``mallopt``, from ``malloc.h``."""


def share_memory() -> None:
    """Let all threads of this process allocate from one arena: otherwise each keeps what it has freed."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _load() -> Callable[[], object]:
    # After the streams are in order and interrupts are quiet.
    share_memory()
    from uploader.cli import main  # noqa: PLC0415

    return main


def main() -> NoReturn:
    run_program(_load, extra="uploader")
