"""Reads that follow: a disk, another process's disk and a bucket, with each event at one instant of the read.

``ScriptedClock`` runs the next action of a script whenever a read waits. So each case is one thread, and no case
depends on the machine's speed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.given import move_start
from tiered import aio
from tiered.cli.main import run
from tiered.errors import (
    ClosedError,
    ConfigError,
    LogDestroyedError,
    OffsetOutOfRangeError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.locks import Signal
from tiered.model import NewRecord
from tiered.store.base import Get
from tiered.testing.clock import FakeClock

IDLE_S = 100.0
SMALL = {"segment.bytes": 4096, "index.interval.bytes": 256}


class ScriptedClock(FakeClock):
    """A clock whose waits of reads run the next action of ``script``, then advance. ``waits`` keeps their seconds."""

    def __init__(self, *script: Callable[[], object]) -> None:
        super().__init__()
        self.script = list(script)
        self.waits: list[float] = []

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        if not isinstance(event, Signal) or seconds is None:  # a timer of the log, in a thread of its own
            return event.wait(seconds)
        self.waits.append(seconds)
        if self.script:
            self.script.pop(0)()
        return super().wait(event, seconds)


def values(records: Iterable[tiered.ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def send(topic: tiered.Topic, values: Iterable[bytes]) -> None:
    """Append each value in a batch of its own, so that small segments are sealed on the way."""
    for value in values:
        topic.append(value)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'store'}"


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()


@pytest.fixture
def log(tmp_path: Path, clock: ScriptedClock) -> Iterator[tiered.Log]:
    with tiered.open(tmp_path / "log", clock=clock) as opened:
        yield opened


@pytest.fixture
def tiered_log(tmp_path: Path, url: str) -> Iterator[tiered.Log]:
    with tiered.open(tmp_path / "log", remote=url) as opened:
        yield opened


def test_a_read_of_an_open_log_gets_each_record_once_over_rolls(log: tiered.Log, clock: ScriptedClock) -> None:
    topic = log.topic("t", create=True, config=SMALL)
    sent = [b"%04d" % i * 100 for i in range(60)]
    topic.append_many(sent[:5])
    clock.script = [lambda at=at: send(topic, sent[at : at + 11]) for at in range(5, 60, 11)]  # type: ignore[misc]
    got = list(topic.read(follow=True, idle_timeout=IDLE_S))
    assert values(got) == sent
    assert [record.offset for record in got] == list(range(60))


@pytest.mark.parametrize("idle_timeout", [1000, "1000s"])
def test_a_quiet_log_is_not_polled(log: tiered.Log, clock: ScriptedClock, idle_timeout: float | str) -> None:
    topic = log.topic("t", create=True)
    topic.append(b"a")
    assert values(topic.read(0, follow=True, idle_timeout=idle_timeout)) == [b"a"]
    assert clock.waits == [60.0] * 16 + [40.0]


@pytest.mark.parametrize(("isolation", "seen"), [("read_committed", [b"c"]), ("read_uncommitted", [b"a", b"b", b"c"])])
def test_transactions(log: tiered.Log, clock: ScriptedClock, isolation: str, seen: list[bytes]) -> None:
    topic = log.topic("t", create=True)
    aborted, committed = topic.transaction("x"), topic.transaction("y")
    clock.script = [
        lambda: aborted.append(b"a"),
        lambda: aborted.append(b"b"),
        lambda: committed.append(b"c"),
        committed.commit,
        aborted.abort,
    ]
    assert values(topic.read(follow=True, idle_timeout=IDLE_S, isolation=isolation)) == seen


def test_partitions_that_are_added_are_read_from_their_start(log: tiered.Log, clock: ScriptedClock) -> None:
    topic = log.topic("t", partitions=1, create=True)
    topic.append(b"old")

    def add() -> None:
        topic.add_partitions(2)
        topic.append(b"2", partition=2)

    clock.script = [lambda: topic.append(b"0", partition=0), add, lambda: topic.append(b"1", partition=1)]
    got = [(r.partition, r.value) for r in topic.read(start="latest", follow=True, idle_timeout=IDLE_S)]
    assert got == [(0, b"0"), (2, b"2"), (1, b"1")]


def test_a_read_ends_at_its_end(log: tiered.Log, clock: ScriptedClock) -> None:
    topic = log.topic("t", create=True)
    clock.script = [lambda: topic.append_many([b"%d" % i for i in range(9)])]
    assert values(topic.read(0, end=5, follow=True)) == [b"0", b"1", b"2", b"3", b"4"]


def test_times_begin_a_read_and_leave_older_records_out(log: tiered.Log, clock: ScriptedClock) -> None:
    topic = log.topic("t", create=True)
    topic.append_many([NewRecord(b"old", timestamp=1), NewRecord(b"new", timestamp=60_000)])
    clock.script = [
        lambda: topic.append(b"late", timestamp=2),
        lambda: topic.append(b"newer", timestamp=70_000),
    ]
    since = "1970-01-01T00:00:50Z"
    assert values(topic.read(since=since, follow=True, idle_timeout=IDLE_S)) == [b"new", b"newer"]


def test_arrow_has_the_same_records(log: tiered.Log, clock: ScriptedClock) -> None:
    topic = log.topic("t", create=True)
    topic.append(b"a")
    clock.script = [lambda: topic.append(b"b"), lambda: topic.append_many([b"c", b"d"])]
    found = topic.read_batches(follow=True, idle_timeout=IDLE_S, columns=["value", "offset"])
    assert [row for batch in found for row in zip(*batch.to_pydict().values(), strict=True)] == [
        (b"a", 0),
        (b"b", 1),
        (b"c", 2),
        (b"d", 3),
    ]


def test_a_log_of_another_process(tmp_path: Path, log: tiered.Log) -> None:
    topic = log.topic("t", create=True, config=SMALL)
    sent = [b"%04d" % i * 100 for i in range(40)]
    topic.append(sent[0])
    log.flush()
    clock = ScriptedClock(*(lambda at=at: send(topic, sent[at : at + 13]) for at in range(1, 40, 13)))
    with tiered.open_reader(log_dir=tmp_path / "log", clock=clock) as reader:
        assert values(reader.topic("t").read(follow=True, idle_timeout=IDLE_S)) == sent
    assert clock.waits[:3] == pytest.approx([0.05] * 3)
    assert max(clock.waits) == pytest.approx(1.0)


def test_a_bucket_is_asked_less_and_less(url: str, tiered_log: tiered.Log) -> None:
    topic = tiered_log.topic("t", create=True)

    def upload(value: bytes) -> None:
        topic.append(value)
        tiered_log.sync(timeout=60)

    upload(b"a")
    clock = ScriptedClock(lambda: upload(b"b"), lambda: None, lambda: upload(b"c"))
    with tiered.open_reader(url, clock=clock) as reader:
        before = reader.requests()
        assert values(reader.topic("t").read(0, follow=True, idle_timeout=60)) == [b"a", b"b", b"c"]
        after = reader.requests()
    assert clock.waits[:4] == [0.5, 0.5, 0.5, 0.5]
    assert clock.waits == sorted(clock.waits[:-1]) + clock.waits[-1:]
    assert max(clock.waits) == 10.0
    assert after["get"] - before.get("get", 0) <= len(clock.waits) + 10
    assert after.get("list", 0) == before.get("list", 0)


def test_records_that_move_between_the_tiers_are_read_once(tmp_path: Path, url: str) -> None:
    clock = ScriptedClock()
    sent = [b"%04d" % i * 100 for i in range(90)]
    with tiered.open(tmp_path / "log", remote=url, clock=clock) as log:
        topic = log.topic("t", create=True, config={**SMALL, "local.retention.bytes": 0, "file.delete.delay.ms": 0})

        def move(at: int) -> None:
            send(topic, sent[at : at + 30])
            log.sync(timeout=60)
            log._local.tick()
            clock.advance(600)

        clock.script = [lambda at=at: move(at) for at in range(0, 90, 30)]  # type: ignore[misc]
        assert values(topic.read(follow=True, idle_timeout=5000)) == sent


def test_an_outage_ends_nothing(url: str, tiered_log: tiered.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = tiered_log.topic("t", create=True)
    topic.append(b"a")
    tiered_log.sync(timeout=60)
    with tiered.open_reader(url, clock=(clock := ScriptedClock())) as reader:
        assert reader._bucket is not None
        store, away = reader._bucket.store, [False]
        execute = store.execute

        def failing(request: object) -> object:
            if away[0]:
                raise RemoteUnavailableError("the store does not answer")
            return execute(request)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "execute", failing)

        def upload() -> None:
            topic.append(b"b")
            tiered_log.sync(timeout=60)

        clock.script = [
            lambda: away.__setitem__(0, True),
            upload,
            lambda: None,
            lambda: away.__setitem__(0, False),
        ]
        assert values(reader.topic("t").read(follow=True, idle_timeout=600)) == [b"a", b"b"]


def test_rows_that_arrow_still_buffers_survive_an_outage(url: str, tiered_log: tiered.Log) -> None:
    topic = tiered_log.topic("t", create=True, config=SMALL)
    send(topic, [b"%04d" % number * 100 for number in range(60)])
    tiered_log.sync(timeout=60)
    with tiered.open_reader(url, clock=ScriptedClock()) as reader:
        assert reader._bucket is not None
        store, failures = reader._bucket.store, iter([False, False, True, True, True])
        execute = store.execute

        def failing(request: object) -> object:
            if isinstance(request, Get) and request.key.endswith(".log") and next(failures, False):
                raise RemoteUnavailableError("the store does not answer")
            return execute(request)  # type: ignore[arg-type]

        store.execute = failing  # type: ignore[method-assign,assignment]
        found = reader.topic("t").read_batches(0, follow=True, idle_timeout=IDLE_S, columns=["offset"])
        assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(60))


def test_a_topic_that_is_made_again_ends_the_read(tmp_path: Path, log: tiered.Log) -> None:
    log.topic("t", create=True).append(b"a")

    def again() -> None:
        log.delete_topic("t")
        log.topic("t", create=True).append_many([b"x", b"y"])

    with tiered.open_reader(log_dir=tmp_path / "log", clock=ScriptedClock(again)) as reader:
        read = reader.topic("t").read(follow=True, idle_timeout=IDLE_S)
        assert next(read).value == b"a"
        with pytest.raises(LogDestroyedError, match="deleted and made again"):
            next(read)


@pytest.mark.parametrize("on_trimmed", ["raise", "jump"])
def test_retention_that_overtakes_a_read(log: tiered.Log, clock: ScriptedClock, on_trimmed: str) -> None:
    topic = log.topic("t", create=True, config=SMALL)
    topic.append(b"first")

    def overtake() -> None:
        send(topic, [b"%04d" % i * 100 for i in range(50)])
        move_start(topic.log(0), 40)

    clock.script = [overtake]
    read = topic.read(0, follow=True, idle_timeout=IDLE_S, on_trimmed=on_trimmed)
    assert next(read).value == b"first"
    if on_trimmed == "raise":
        with pytest.raises(OffsetOutOfRangeError):
            next(read)
    else:
        assert [record.offset for record in read] == list(range(40, 51))


@pytest.mark.parametrize("place", ["log", "reader"])
def test_close_ends_a_read_in_another_thread(tmp_path: Path, place: str) -> None:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append(b"a")
        opened = log if place == "log" else tiered.open_reader(log_dir=tmp_path / "log")
        read = opened.topic("t").read(follow=True)
        ended: list[TieredError] = []
        began = threading.Event()

        def run() -> None:
            try:
                for _ in read:
                    began.set()
            except TieredError as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert began.wait(60)
        opened.close()
        thread.join(60)
        assert [type(error) for error in ended] == [ClosedError]


async def test_asyncio_follows_and_is_cancelled(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.topic("t", create=True)
        found: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def run() -> None:
            async for record in topic.read(follow=True):
                await found.put(record.value)

        task = asyncio.create_task(run())
        for value in (b"a", b"b", b"c"):
            await topic.append(value)
            assert await asyncio.wait_for(found.get(), 60) == value
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        read = topic.read(follow=True)
        assert [(await anext(read)).value for _ in range(3)] == [b"a", b"b", b"c"]
        waiting = asyncio.ensure_future(anext(read))
        await asyncio.sleep(0)
    with pytest.raises(ClosedError):
        await asyncio.wait_for(waiting, 60)


def test_arguments(log: tiered.Log) -> None:
    topic = log.topic("t", create=True)
    with pytest.raises(ConfigError, match="until and follow=True exclude each other"):
        topic.read(follow=True, until="-1s")
    with pytest.raises(ConfigError, match="idle_timeout"):
        topic.read(idle_timeout=1)
    with pytest.raises(ConfigError, match="5 parsecs"):
        topic.read(follow=True, idle_timeout="5 parsecs")
    with pytest.raises(ConfigError, match="follow"):
        topic.read(follow=1)  # type: ignore[arg-type]


def test_compaction_under_a_read_skips_only_older_values(log: tiered.Log, clock: ScriptedClock) -> None:
    topic = log.topic("t", create=True, config={**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    local = log._local.logs()[log.directory]

    def put(first: int) -> None:
        for number in range(first, first + 40):
            topic.append(b"%d" % number * 50, key=b"%d" % (number % 4))
        local.cleaner.clean(topic.log(0).tp)

    clock.script = [lambda: put(0), lambda: put(100), lambda: put(200)]
    got = list(topic.read(0, follow=True, idle_timeout=IDLE_S))
    offsets = [record.offset for record in got]
    newest = {record.key: record.value for record in topic.read(0)}
    assert offsets == sorted(set(offsets))
    assert {record.key: record.value for record in got} == newest
    assert len(offsets) < 120


def test_merging_under_a_read_of_the_bucket_repeats_nothing(
    url: str, tiered_log: tiered.Log, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = tiered_log.topic("t", create=True, config={"merge.idle.ms": 0})

    def upload(first: int) -> None:
        for number in range(first, first + 4):
            topic.append(b"%d" % number, timestamp=number)
            tiered_log.sync(timeout=60)

    def merge() -> None:
        assert run(["maintain", "--only", "merge", "--remote", url, "--yes"]) == 0
        assert capsys.readouterr().out.startswith("1 action done")

    upload(0)
    with tiered.open_reader(url, clock=ScriptedClock(lambda: upload(4), merge, lambda: upload(8), merge)) as reader:
        got = list(reader.topic("t").read(0, follow=True, idle_timeout=60))
    assert values(got) == [b"%d" % number for number in range(12)]
