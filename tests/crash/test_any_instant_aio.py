"""An exception at any instruction of a call through ``tiered.aio``: as ``test_any_instant`` says of the sync face.

It strikes in the thread of the event loop (a signal handler, memory) or in the threads that work for it (memory). The
pool of threads is spared: a job that waits in it has no caller's frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.crash.striking import CALLS, SEED, WHOLE, Striker, World, append, strike_each
from tiered import aio
from tiered.errors import LocalIOError, TieredError

pytestmark = [
    pytest.mark.no_cover,  # as in test_any_instant
    pytest.mark.timeout(0 if WHOLE else 300, method="thread"),
]


class Blocking:
    """An object of ``tiered.aio`` whose calls run to their end on an event loop, as those of the sync face do."""

    def __init__(self, loop: asyncio.Runner, inner: Any, opening: Any = None) -> None:
        self._loop, self._inner, self._opening = loop, inner, opening

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **fields: self._ended(getattr(self._inner, name)(*args, **fields))

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *error: object) -> None:
        self._ended(self._opening.__aexit__(*error))

    def result(self) -> Any:
        """What an appender's receipt gives."""
        return self._ended(self._inner)

    def _ended(self, made: Any) -> Any:
        async def end() -> Any:
            if hasattr(made, "__aiter__"):
                return [each async for each in made]
            return await (made.__aenter__() if hasattr(made, "__aenter__") else made)

        found = self._loop.run(end())
        return Blocking(self._loop, found, made) if type(found).__module__.startswith("tiered.aio") else found


class AioWorld(World):
    """The world of the sync face, on an event loop."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.loop = asyncio.Runner()
        super().__init__(path, config)

    def open(self) -> None:
        self.log = Blocking(self.loop, aio.open(self.path, remote=self.remote)).result()
        self.topic = self.log.topic("a", create=True, config=self.config)


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

    def run(self, striker: Striker, call: Callable[[], object]) -> None:
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
@pytest.mark.parametrize("name", ["append", "roll", "many", "appender", "flush", "sync", "close"])
def test_an_exception_at_any_bytecode_leaves_the_log_right_or_offline(
    tmp_path: Path, strikers: Strikers, name: str, where: str, nested: bool
) -> None:
    print(f"TIERED_CRASH_SEED={SEED}")
    call, config = CALLS[name]
    world = AioWorld(tmp_path / "log", config)

    def strike(striker: Striker) -> None:
        if where == "loop":
            striker.run(lambda: call(world))
        else:
            strikers.run(striker, lambda: call(world))

    strike_each(world, strike, random.Random(f"{SEED} {name} {where} {nested}"), nested=nested, kind=ThreadStriker)
    with contextlib.suppress(LocalIOError):
        world.log.close()
    world.loop.close()


@pytest.mark.parametrize("at", range(1000, 8000, 1000))
def test_a_close_that_was_interrupted_is_ended_by_the_next(tmp_path: Path, strikers: Strikers, at: int) -> None:
    world = AioWorld(tmp_path / "log", {})
    append(world)
    with pytest.raises(MemoryError):
        strikers_close(world, strikers, at)
    world.end()
    world.loop.close()


def strikers_close(world: World, strikers: Strikers, at: int) -> None:
    strikers.at_work = ThreadStriker(MemoryError, at)
    try:
        world.log.close()
    finally:
        strikers.at_work = None
