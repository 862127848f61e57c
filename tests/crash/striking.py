"""Raises an exception at one bytecode of the product, or at two."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import tiered
from tiered.errors import TieredError

WHOLE = os.environ.get("TIERED_INSTANTS") == "all"
SEED = int(os.environ.get("TIERED_CRASH_SEED", str(random.SystemRandom().randrange(2**32))))
SAMPLE = 6
SOURCES = str(Path(tiered.__file__).parent)
VALUE = b"v" * 100


class Interrupt(BaseException):
    """Comes out of a signal handler. KeyboardInterrupt itself would end the whole run of tests."""


KINDS = (Interrupt, MemoryError, RecursionError)


class Striker:
    """A trace function that raises at the bytecodes of the product with these numbers, counted from 1."""

    def __init__(self, kind: type[BaseException], *at: int) -> None:
        self.kind, self.at = kind, at
        self.seen = 0
        self.places: list[str] = []

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self.seen += 1
            if self.seen in self.at:
                self.places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                raise self.kind
        return self.step

    def run(self, call: Callable[[], None]) -> None:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except (self.kind, TieredError):  # an appender's receipt wraps what it met
            pass
        finally:
            sys.settrace(before)
