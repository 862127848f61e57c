"""Raises an exception at one bytecode of the product, or at two."""

from __future__ import annotations

import dis
import functools
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
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


@functools.cache
def block_ends(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that call ``__exit__`` at the end of a ``with`` block."""
    found: set[int] = set()
    steps = list(dis.get_instructions(code))
    for number in range(len(steps) - 4):
        first = steps[number : number + 3]
        calls = [each for each in steps[number + 3 : number + 5] if each.opname in {"PRECALL", "CALL"}]
        if calls and all(each.opname == "LOAD_CONST" and each.argval is None for each in first):
            found.update(each.offset for each in (*first, *calls))
    return frozenset(found)


class Striker:
    """A trace function that raises at the bytecodes below ``sources`` with these numbers, counted from 1.

    The end of a ``with`` block is spared: the interpreter runs no handler between its instructions and the release of a
    lock.
    """

    def __init__(self, kind: type[BaseException], *at: int, sources: str = SOURCES) -> None:
        self.kind, self.at, self.sources = kind, at, sources
        self.seen = 0
        self.places: list[str] = []

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.sources):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and frame.f_lasti not in block_ends(frame.f_code):
            self.seen += 1
            if self.seen in self.at:
                self.places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                raise self.kind
        return self.step

    def run(self, call: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except (self.kind, TieredError):  # an appender's receipt wraps what it met
            pass
        finally:
            sys.settrace(before)


def strike(call: Callable[[], object], at: int) -> bool:
    """Call, and raise at the instruction of this number in any frame of Python. Return whether there is one."""
    striker = Striker(Interrupt, at, sources="")
    striker.run(call)
    return bool(striker.places)
