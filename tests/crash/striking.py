"""A log with one topic, and exceptions raised at one bytecode of a call on it, or at two."""

from __future__ import annotations

import dis
import functools
import gc
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tiered
from tiered.cli.main import run
from tiered.errors import ClosedError, LocalIOError, TieredError
from tiered.format.batch import encode_batch
from tiered.model import NewRecord

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
    """Call, and raise at the instruction of this number in any frame of Python. Return whether there is one.

    The collector does not run meanwhile: its callbacks of other objects are not what is struck.
    """
    striker = Striker(Interrupt, at, sources="")
    gc.disable()
    try:
        striker.run(call)
    finally:
        gc.enable()
    return bool(striker.places)


class World:
    """A log with one topic, what it has acknowledged, and what may be in it besides."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self.remote = f"file://{path}-bucket"
        self.acked: dict[int, bytes] = {}
        self.open()

    def open(self) -> None:
        self.log = tiered.open(self.path, remote=self.remote)
        self.topic = self.log.topic("a", create=True, config=self.config)

    def took(self, value: bytes, *written: Any) -> None:
        self.acked.update({offset: value for each in written for offset in range(each.offset, each.end_offset)})

    def verify(self) -> None:
        """Everything acknowledged is there, no offset is missing."""
        found = {record.offset: record.value for record in self.topic.read()}
        assert {offset: found.get(offset) for offset in self.acked} == self.acked
        assert set(found.values()) <= {VALUE, b"after"}
        assert sorted(found) == list(range(len(found)))

    def recover(self) -> bool:
        """Uses the log again; False where the partition is offline."""
        try:
            self.took(b"after", self.topic.append(b"after"))
            self.verify()
        except LocalIOError:
            return False
        except ClosedError:  # a close that is still to be ended
            pass
        return True

    def end(self) -> bool:
        """Closes the log as often as it takes, and opens it again; whether the close was clean."""
        try:
            self.log.close()
            clean = True
        except LocalIOError:
            clean = False
        except TieredError:  # why an appender could not write; all else is closed by then
            clean = True
        self.open()
        self.verify()
        self.log.close()
        assert run(["check", "--log-dir", str(self.path)]) == 0
        self.open()
        return clean


def append(world: World) -> None:
    world.took(VALUE, world.topic.append(VALUE))


def append_with_headers(world: World) -> None:
    world.took(VALUE, world.topic.append(VALUE, headers=[("h", b"1")]))


def append_many(world: World) -> None:
    world.took(VALUE, *world.topic.append_many([VALUE] * 3))


def append_batches(world: World) -> None:
    world.took(VALUE, world.topic.append_batches(encode_batch([NewRecord(VALUE, timestamp=1)] * 2)))


def use_appender(world: World) -> None:
    with world.topic.appender() as appender:
        receipts = [appender.append(VALUE), appender.append(VALUE)]
        appender.flush()
        world.took(VALUE, *(each.result() for each in receipts))


def flush(world: World) -> None:
    append(world)
    world.log.flush()


def sync(world: World) -> None:
    append(world)
    world.log.sync()


def close(world: World) -> None:
    world.log.close()


CALLS: dict[str, tuple[Callable[[World], None], dict[str, Any]]] = {
    "append": (append, {}),
    "headers": (append_with_headers, {}),
    "roll": (append, {"segment.bytes": 510}),
    "index": (append, {"index.interval.bytes": 100}),
    "many": (append_many, {}),
    "batches": (append_batches, {}),
    "appender": (use_appender, {}),
    "flush": (flush, {}),
    "sync": (sync, {}),
    "close": (close, {}),
}


def strike_each(
    world: World, strike: Callable[[Striker], None], dice: random.Random, *, nested: bool, kind: type[Striker] = Striker
) -> None:
    """``strike`` makes one call, in which a striker raises; its places are all, or a sample."""
    for _ in range(3):
        append(world)
    count = kind(Interrupt)
    strike(count)
    world.end()
    places = range(1, count.seen + 1)
    for number, at in enumerate(places if WHOLE else sorted(dice.sample(places, min(SAMPLE, len(places))))):
        striker = kind(KINDS[number % 3], at, *([at + dice.randrange(1, 80)] if nested else []))
        strike(striker)
        try:
            right = number % 2 or world.recover()  # every other time the close is the next to look
            clean = world.end()
            assert right or not clean
        except BaseException:
            print(f"bytecode {striker.at} of {count.seen}: {striker.places}")
            raise
