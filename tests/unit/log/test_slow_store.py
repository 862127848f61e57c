"""A store that does not answer holds up the call that asks it, and no other: not ``close``, not another topic."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiered
from tiered import aio
from tiered.errors import ClosedError, ConfigError, TieredError
from tiered.store.base import Outcome, StoreRequest
from tiered.store.memory import MemoryStore

SECONDS = 60


class Gate:
    """Holds up every request to a key that has ``word`` in it until it is opened."""

    def __init__(self) -> None:
        self.word, self.only_first = "", False
        self.entered, self.open = threading.Event(), threading.Event()

    def pass_by(self, request: StoreRequest) -> None:
        if self.word and self.word in getattr(request, "key", ""):
            if self.only_first and self.entered.is_set():
                return
            self.entered.set()
            assert self.open.wait(SECONDS)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found, execute = Gate(), MemoryStore.execute

    def gated(self: MemoryStore, request: StoreRequest) -> Outcome:
        found.pass_by(request)
        return execute(self, request)

    monkeypatch.setattr(MemoryStore, "execute", gated)
    yield found
    found.open.set()


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """What ``work`` returns or raises, once the thread has ended."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(work())
        except TieredError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


HELD_UP = [pytest.param("topics/slow", id="looked for"), pytest.param("root", id="claimed")]


@pytest.mark.parametrize("word", HELD_UP)
def test_a_topic_that_waits_for_the_bucket_holds_up_no_other_call(tmp_path: Path, gate: Gate, word: str) -> None:
    log = tiered.open(tmp_path / "log", f"memory://slow-{tmp_path.name}")
    there = log.topic("there", create=True)
    gate.word = word
    thread, ended = in_thread(lambda: log.topic("slow", create=True))
    assert gate.entered.wait(SECONDS)
    assert log.topic("there") is there
    with pytest.raises(ConfigError, match="is tiered"):
        log.delete_topic("there")
    assert there.append(b"v").offset == 0
    log.close()
    gate.open.set()
    thread.join(SECONDS)
    assert isinstance(ended[0], ClosedError)


@pytest.mark.parametrize("word", HELD_UP)
def test_another_new_topic_does_not_wait_for_one_that_waits(tmp_path: Path, gate: Gate, word: str) -> None:
    log = tiered.open(tmp_path / "log", f"memory://new-{tmp_path.name}")
    gate.word = word
    gate.only_first = True
    thread, ended = in_thread(lambda: log.topic("slow", create=True))
    assert gate.entered.wait(SECONDS)
    other, opened = in_thread(lambda: log.topic("other", create=True).append(b"v").offset)
    other.join(SECONDS)
    assert opened == [0]
    synced, found = in_thread(lambda: log.sync(timeout=SECONDS))
    synced.join(SECONDS)
    assert found == [None]
    assert log.positions()[tiered.TopicPartition("other", 0)].uploaded_offset == 1
    gate.open.set()
    thread.join(SECONDS)
    assert ended == [log.topic("slow")]
    assert log.topic("slow").append(b"v").offset == 0
    log.sync(timeout=SECONDS)
    log.close()


async def test_another_new_topic_does_not_wait_for_asyncio_either(tmp_path: Path, gate: Gate) -> None:
    async with aio.open(tmp_path / "log", f"memory://aio-new-{tmp_path.name}") as log:
        gate.word, gate.only_first = "root", True
        slow = asyncio.create_task(log.topic("slow", create=True))
        assert await asyncio.to_thread(gate.entered.wait, SECONDS)
        other = await asyncio.wait_for(log.topic("other", create=True), SECONDS)
        assert (await other.append(b"v")).offset == 0
        gate.open.set()
        assert (await (await slow).append(b"v")).offset == 0
        await log.sync()


def test_two_threads_that_open_a_topic_get_the_same_one(tmp_path: Path, gate: Gate) -> None:
    with tiered.open(tmp_path / "log", f"memory://same-{tmp_path.name}") as log:
        gate.word = "topics/t"
        first, found = in_thread(lambda: log.topic("t", create=True))
        assert gate.entered.wait(SECONDS)
        second, also = in_thread(lambda: log.topic("t", create=True))
        gate.open.set()
        first.join(SECONDS)
        second.join(SECONDS)
        assert found == also == [log.topic("t")]
        assert log.topic("t").append(b"v").offset == 0
        log.sync()


async def test_asyncio_closes_and_appends_while_topics_wait_for_the_bucket(tmp_path: Path, gate: Gate) -> None:
    log = await aio.open(tmp_path / "log", f"memory://aio-{tmp_path.name}")
    there = await log.topic("there", create=True)
    gate.word = "topics/slow"
    slow = [asyncio.create_task(log.topic(f"slow{n}", create=True)) for n in range(20)]
    assert await asyncio.to_thread(gate.entered.wait, SECONDS)
    assert (await there.append(b"v")).offset == 0
    await log.close()
    gate.open.set()
    assert {type(each) for each in await asyncio.gather(*slow, return_exceptions=True)} == {ClosedError}
