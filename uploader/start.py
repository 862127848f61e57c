"""Console script of the uploader. It imports little, so that Ctrl-C in the first second ends without a traceback."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import NoReturn

from tiered.program.run import run_program

_M_ARENA_MAX = -8
"""Parameter of glibc's ``mallopt``, from ``malloc.h``."""


def share_memory() -> None:
    """Set the C library to one memory arena for all threads. With several, each would keep memory that was freed."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _load() -> Callable[[], object]:
    # After the streams are in order and interrupts are quiet.
    share_memory()
    from uploader.cli import main  # noqa: PLC0415

    return main


def main() -> NoReturn:
    run_program(_load, extra="uploader")
