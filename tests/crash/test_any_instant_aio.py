"""An exception at any instruction of a call through ``tiered.aio``: as ``test_any_instant`` says of the sync face.

It strikes in the thread of the event loop (a signal handler, memory) or in the threads that work for it (memory). The
pool of threads is spared: a job that waits in it has no caller's frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.crash.striking import KINDS, SAMPLE, SEED, VALUE, WHOLE, Interrupt, Striker
from tiered import aio
from tiered.cli.main import run
from tiered.errors import ClosedError, LocalIOError, TieredError

pytestmark = [
    pytest.mark.no_cover,  # as in test_any_instant
    pytest.mark.timeout(0 if WHOLE else 300, method="thread"),
]


class World:
    """A log with one topic on an event loop, and what it has acknowledged."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self.acked: dict[int, bytes] = {}
        self.loop = asyncio.Runner()
        self.run(self.open())

    def run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(steps)

    async def open(self) -> None:
        self.log = await aio.open(self.path, remote=f"file://{self.path}-bucket")
        self.topic = await self.log.topic("a", create=True, config=self.config)

    def took(self, value: bytes, *written: Any) -> None:
        self.acked.update({offset: value for each in written for offset in range(each.offset, each.end_offset)})

    async def verify(self) -> None:
        """Everything acknowledged is there, no offset is missing."""
        found = {record.offset: record.value async for record in self.topic.read()}
        assert {offset: found.get(offset) for offset in self.acked} == self.acked
        assert set(found.values()) <= {VALUE, b"after"}
        assert sorted(found) == list(range(len(found)))

    async def recover(self) -> bool:
        """Uses the log again; False where the partition is offline."""
        try:
            self.took(b"after", await self.topic.append(b"after"))
            await self.verify()
        except LocalIOError:
            return False
        except ClosedError:  # a close that is still to be ended
            pass
        return True

    async def end(self) -> bool:
        """Closes the log and opens it again; whether the close was clean."""
        try:
            await self.log.close()
            clean = True
        except LocalIOError:
            clean = False
        except TieredError:  # why an appender could not write; all else is closed by then
            clean = True
        await self.open()
        await self.verify()
        await self.log.close()
        return clean


async def append(world: World) -> None:
    world.took(VALUE, await world.topic.append(VALUE))


async def append_many(world: World) -> None:
    world.took(VALUE, *await world.topic.append_many([VALUE] * 3))


async def use_appender(world: World) -> None:
    async with world.topic.appender() as appender:
        receipts = [await appender.append(VALUE), await appender.append(VALUE)]
        await appender.flush()
        world.took(VALUE, *[await each for each in receipts])


async def flush(world: World) -> None:
    await append(world)
    await world.log.flush()


async def sync(world: World) -> None:
    await append(world)
    await world.log.sync()


async def close(world: World) -> None:
    await world.log.close()


CALLS: dict[str, tuple[Callable[[World], Coroutine[Any, Any, None]], dict[str, Any]]] = {
    "append": (append, {}),
    "roll": (append, {"segment.bytes": 510}),
    "many": (append_many, {}),
    "appender": (use_appender, {}),
    "flush": (flush, {}),
    "sync": (sync, {}),
    "close": (close, {}),
}


class ThreadStriker(Striker):
    """Strikes in the loop's thread, or in those that work for it."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return None if frame.f_code.co_filename.endswith("store/threads.py") else super().__call__(frame, event, arg)


class Strikers:
    """Traces new threads; what strikes in them changes from call to call."""

    def __init__(self) -> None:
        self.at_work: Striker | None = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return None if self.at_work is None else self.at_work(frame, event, arg)

    def run(self, striker: Striker, call: Callable[[], None]) -> None:
        self.at_work = striker
        try:
            call()
        except (striker.kind, TieredError):
            pass
        finally:
            self.at_work = None


@pytest.fixture
def strikers() -> Iterator[Strikers]:
    strikers = Strikers()
    threading.settrace(strikers)
    yield strikers
    threading.settrace(None)  # type: ignore[arg-type]  # as its documentation says


# What strikes a thread of the log's own is reported as any thread's end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.crash
@pytest.mark.parametrize("nested", [False, True], ids=["single", "nested"])
@pytest.mark.parametrize("where", ["loop", "threads"])
@pytest.mark.parametrize("name", CALLS)
def test_an_exception_at_any_bytecode_leaves_the_log_right_or_offline(
    tmp_path: Path, strikers: Strikers, name: str, where: str, nested: bool
) -> None:
    print(f"TIERED_CRASH_SEED={SEED}")
    dice = random.Random(f"{SEED} {name} {where} {nested}")
    call, config = CALLS[name]
    world = World(tmp_path / "log", config)

    def strike(striker: Striker) -> None:
        if where == "loop":
            striker.run(lambda: world.run(call(world)))
        else:
            strikers.run(striker, lambda: world.run(call(world)))

    def end() -> bool:
        clean = world.run(world.end())
        assert run(["check", "--log-dir", str(world.path)]) == 0
        world.run(world.open())
        return clean

    for _ in range(3):
        world.run(append(world))
    count = ThreadStriker(Interrupt)
    strike(count)
    end()
    places = range(1, count.seen + 1)
    for number, at in enumerate(places if WHOLE else sorted(dice.sample(places, min(SAMPLE, len(places))))):
        striker = ThreadStriker(KINDS[number % 3], at, *([at + dice.randrange(1, 80)] if nested else []))
        strike(striker)
        try:
            right = number % 2 or world.run(world.recover())  # every other time the close is the next to look
            clean = end()
            assert right or not clean
        except BaseException:
            print(f"bytecode {striker.at} of {count.seen}: {striker.places}")
            raise
    with contextlib.suppress(LocalIOError):
        world.run(world.log.close())
    world.loop.close()


@pytest.mark.parametrize("at", range(1000, 8000, 1000))
def test_a_close_that_was_interrupted_is_ended_by_the_next(tmp_path: Path, strikers: Strikers, at: int) -> None:
    world = World(tmp_path / "log", {})
    world.run(append(world))
    with pytest.raises(MemoryError):
        strikers_close(world, strikers, at)
    world.run(world.end())
    world.loop.close()


def strikers_close(world: World, strikers: Strikers, at: int) -> None:
    strikers.at_work = ThreadStriker(MemoryError, at)
    try:
        world.run(world.log.close())
    finally:
        strikers.at_work = None
