"""Wrong inputs x entry points: each is refused with an error of ours that has a hint, before anything was done."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiered
from tiered import aio
from tiered.config import MAX_PARTITIONS, LogConfig, TopicConfig
from tiered.errors import TieredError
from tiered.model import NewRecord

NAN, INF = float("nan"), float("inf")
NAIVE = dt.datetime(2024, 1, 1)

NO_INT: list[Any] = [1.5, "1", True, np.bool_(True), b"1", [1], NAN]
NO_TEXT: list[Any] = [None, 5, b"t", ["t"], 1.5, True, ""]
NO_FLAG: list[Any] = ["yes", 1, 0, None, np.bool_(True)]
NO_SECONDS: list[Any] = ["5", NAN, INF, True, [5], b"5"]
NO_TIME: list[Any] = [1.5, True, b"now", [1], "gestern", "", -1, 10**18, NAIVE, 1_357_016_400, np.int64(1_357_016_400)]
NO_OFFSET: list[Any] = [1.5, True, -1, b"1", "last", "", [1], "-1", "²"]
NO_BYTES: list[Any] = ["text", 5, 1.5, ["x"], {"a": 1}, object()]
NO_WORD: list[Any] = ["disc", 5, None, [], b"disk", True]
NO_HEADERS: list[Any] = ["x", {"a": b"b"}, [("a",)], [(b"a", b"b")], [("a", "b")], [("a", 5)], 7, ["ab"]]
NO_ID: list[Any] = ["x" * 32_768, "é" * 16_384, "\ud800"]
NO_COUNT: list[Any] = [1.5, "3", True, 0, -1, 3.0, MAX_PARTITIONS + 1, 1_000_000_000, b"3", [3]]
NO_PATH: list[Any] = ["", None, 5, b"log", [], [""], [5], "a\0b", {"a": 1}, True]
NO_SETTINGS: list[Any] = [
    ["x"],
    "segment.bytes=1000",
    5,
    {"segment.byte": 1},
    {"segment.bytes": 1.5},
    {5: 5},
    {"seal.ms": None},
]
NO_RECORDS: list[Any] = [None, 5, "text", b"bytes", {"a": 1}, ["x"], [5], [(b"a", b"b", b"c")], [None], [("v", b"k")]]


def each(call: Callable[[Any], Any], values: list[Any]) -> list[tuple[Callable[[Any], Any], Any]]:
    return [(call, bad) for bad in values]


TOPIC: list[tuple[Callable[[Any, Any], Any], list[Any]]] = [
    (lambda t, x: t.append(x), NO_BYTES),
    (lambda t, x: t.append(b"v", key=x), NO_BYTES),
    (lambda t, x: t.append(b"v", partition=x), [*NO_INT, -1, 2, 10**30]),
    (lambda t, x: t.append(b"v", timestamp=x), NO_TIME),
    (lambda t, x: t.append(b"v", headers=x), NO_HEADERS),
    (lambda t, x: t.append(b"v", durability=x), [*NO_WORD, "remote"]),
    (lambda t, x: t.append_many(x), NO_RECORDS),
    (lambda t, x: t.append_many([(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (x, b"4")]), NO_BYTES),
    (lambda t, x: t.append_many([(b"a", b"1"), (b"b", b"2"), (b"c", x)]), NO_BYTES),
    (lambda t, x: t.append_many([NewRecord(b"a", b"1"), NewRecord(b"b", b"2"), NewRecord(b"c", timestamp=x)]), NO_INT),
    (lambda t, x: t.append_many([NewRecord(b"a", b"1"), NewRecord(b"b", b"2", headers=x)]), NO_HEADERS),
    (lambda t, x: t.append_many([b"v"], partition=x), [*NO_INT, -1, 2]),
    (lambda t, x: t.append_many([b"v"], durability=x), NO_WORD),
    (lambda t, x: t.append_batches(x), [*NO_BYTES, None, b"no batch"]),
    (lambda t, x: t.append_batches(b"", partition=x), [None, *NO_INT, -1, 2]),
    (lambda t, x: t.positions(x), [None, *NO_INT, -1, 2]),
    (lambda t, x: t.transaction(x), [*NO_TEXT, *NO_ID]),
    (lambda t, x: t.transaction("id", timeout=x), [None, *NO_SECONDS]),
    (lambda t, x: t.transaction("id", durability=x), [*NO_WORD, "memory"]),
]
READS: list[tuple[Callable[[Any, Any], Any], list[Any]]] = [
    (lambda t, x: t.read(x), [*NO_INT, -1, 2, 10**30]),
    (lambda t, x: t.read(0, start=x), NO_OFFSET),
    (lambda t, x: t.read(0, end=x), NO_OFFSET),
    (lambda t, x: t.read(since=x), NO_TIME),
    (lambda t, x: t.read(until=x), NO_TIME),
    (lambda t, x: t.read(isolation=x), NO_WORD),
    (lambda t, x: t.read(on_trimmed=x), NO_WORD),
    (lambda t, x: t.read(start=x), [0, np.int64(3)]),
    (lambda t, x: t.offsets_for_times(x), [None, *NO_TIME]),
]
LOG: list[tuple[Callable[[Any, Any], Any], list[Any]]] = [
    (lambda log, x: log.topic(x), [*NO_TEXT, "no such topic", "../t"]),
    (lambda log, x: log.topic(x, create=True), [*NO_TEXT, "a/b", ".", "x" * 250, "__transaction_state"]),
    (lambda log, x: log.topic("new", create=x), NO_FLAG),
    (lambda log, x: log.topic("new", create=True, partitions=x), NO_COUNT),
    (lambda log, x: log.topic("new", create=True, config=x), NO_SETTINGS),
    (lambda log, x: log.topic("t", partitions=x), NO_COUNT),
    (lambda log, x: log.topic("t", config=x), NO_SETTINGS),
    (lambda log, x: log.delete_topic(x), [*NO_TEXT, "none"]),
    (lambda log, x: log.transaction(x), [*NO_TEXT, *NO_ID]),
    (lambda log, x: log.transaction("id", timeout=x), [None, *NO_SECONDS]),
    (lambda log, x: log.transaction("id", durability=x), [*NO_WORD, "memory"]),
    (lambda log, x: log.sync(x), [None, *NO_SECONDS]),
]
OPENS: list[tuple[Callable[[Any, Any], Any], list[Any]]] = [
    (lambda m, x: m.open(x), NO_PATH),
    (lambda m, x: m.open("new", x), [5, b"s3://b", "", ["s3://b"], "ftp://x", True]),
    (lambda m, x: m.open("new", create=x), NO_FLAG),
    (lambda m, x: m.open("new", "never-made", uploader=x), ["thread", 5, True, tiered.uploader.Uploader]),
    (lambda m, x: m.open("new", endpoint_url=x), ["http://x"]),
    (lambda m, x: m.open("new", region=x), ["eu-central-1"]),
    (lambda m, x: m.open(x), ["a-file", "a-file/log", "x" * 5_000]),
    (lambda m, x: m.open("new", x), ["a-file"]),
    (lambda m, x: m.open("new", "s3://bucket", endpoint_url=x), [5, b"http://x", "", "x", "http://"]),
    (lambda m, x: m.open("new", "s3://bucket", region=x), [5, b"eu", "", ["eu"]]),
    (lambda m, x: m.open("new", "never-made", deadline_seconds=x), NO_SECONDS),
    (lambda m, x: m.open("new", config=x), [{"seal.ms": 5}, {}, 0, "x", 5, TopicConfig()]),
    (lambda m, x: m.open("new", clock=x), ["now", 5, LogConfig()]),
    (lambda m, x: m.open("new", ids=x), ["ids", 5]),
    (lambda m, x: m.open_reader(x), [None, 5, b"s3://b", "", ["s3://b"], True]),
    (lambda m, x: m.open_reader(log_dir=x), [*NO_PATH, "new", "a-file"]),
    (lambda m, x: m.open_reader(x), ["a-file"]),
    (lambda m, x: m.open_reader(log_dir="log", region=x), ["eu-central-1"]),
    (lambda m, x: m.open_reader("s3://bucket", endpoint_url=x), [5, "", "x"]),
    (lambda m, x: m.open_reader("s3://bucket", region=x), [5, ""]),
    (lambda m, x: m.open_reader("memory://none", deadline_seconds=x), NO_SECONDS),
]
READER: list[tuple[Callable[[Any, Any], Any], list[Any]]] = [
    (lambda r, x: r.topics(x), [5, "t", [], True]),
    (lambda r, x: r.topic(x), [*NO_TEXT, "none"]),
    (lambda r, x: r.find("t", key=x), [None, *NO_BYTES]),
    (lambda r, x: r.find("t", key=b"k", partition=x), [*NO_INT, -1, 2]),
    (lambda r, x: r.find("t", key=b"k", since=x), NO_TIME),
    (lambda r, x: r.find(x, key=b"k"), NO_TEXT),
    (lambda r, x: r.to_arrow(x), NO_TEXT),
    (lambda r, x: r.to_arrow("t", partition=x), [*NO_INT, -1, 2]),
    (lambda r, x: r.to_arrow("t", until=x), NO_TIME),
    (lambda r, x: r.to_arrow("t", columns=x), ["value", 5, ["nothing"], [5], b"key", {"key": 1}]),
]
TXN: list[tuple[Callable[[Any, Any], Any], list[Any]]] = [
    (lambda txn, x: txn.append(x), NO_BYTES),
    (lambda txn, x: txn.append(b"v", key=x), NO_BYTES),
    (lambda txn, x: txn.append(b"v", partition=x), [*NO_INT, -1, 2]),
    (lambda txn, x: txn.append(b"v", timestamp=x), NO_TIME),
    (lambda txn, x: txn.append(b"v", headers=x), NO_HEADERS),
    (lambda txn, x: txn.append(b"v", topic=x), [5, b"t", "", "none", ["t"]]),
    (lambda txn, x: txn.append_many(x), NO_RECORDS),
    (lambda txn, x: txn.append_many([b"v"], topic=x), [5, "", "none"]),
    (lambda txn, x: txn.append_many([b"v"], partition=x), [*NO_INT, -1, 2]),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of a test: a relative path that was not refused would be made in it."""
    monkeypatch.chdir(tmp_path)
    with tiered.open("log") as log:
        log.topic("t", partitions=2, create=True).append(b"v", key=b"k")
    Path("a-file").touch()
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    """What is on the disk; a running log's own housekeeping and the note of a lock are no effect of a call."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name not in (".lock", "tiered-tasks.json"))
    found = {str(path.relative_to(root)): path.read_bytes() for path in files}
    return found | {f"{path.relative_to(root)}/": b"" for path in root.rglob("*") if path.is_dir()}


def refused(call: Callable[[], Any]) -> TieredError:
    with pytest.raises(TieredError) as caught:
        call()
    error = caught.value
    assert error.next_step, f"{type(error).__name__} without a hint: {error}"
    assert "\n" not in str(error)
    return error


def check(table: list[tuple[Callable[[Any, Any], Any], list[Any]]], target: Any, root: Path) -> int:
    count, wrong = 0, []
    before = contents(root)
    for call, values in table:
        for bad in values:
            try:
                refused(functools.partial(call, target, bad))
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - all of them are told at the end
                wrong.append(f"argument {bad!r} at line {call.__code__.co_firstlineno}: {error!r}")
            count += 1
    assert not wrong, "\n".join(wrong)
    assert contents(root) == before, "a refused call left something on the disk"
    return count


def test_open_and_open_reader(place: Path) -> None:
    assert check(OPENS, tiered, place) > 60


def test_a_log(place: Path) -> None:
    with tiered.open("log") as log:
        assert check([*LOG, (lambda log, x: log.transaction("id", topic=x), ["t", 5, b"t"])], log, place) > 80


def test_a_topic(place: Path) -> None:
    with tiered.open("log") as log:
        assert check([*TOPIC, *READS], log.topic("t"), place) > 150


def test_a_transaction(place: Path) -> None:
    with tiered.open("log") as log:
        txn = log.topic("t").transaction("id")
        txn.append(b"good", partition=0)
        txn.append(b"good", partition=1)
        assert check(TXN, txn, place) > 50
        txn.commit()  # what was refused left the transaction as it was


def test_a_reader(place: Path) -> None:
    with tiered.open_reader(log_dir="log") as reader:
        assert check(READER, reader, place) > 60
        assert check(READS, reader.topic("t"), place) > 40


class Awaited:
    """An object of ``tiered.aio`` whose calls are run to their end: the same tables are used for both faces."""

    def __init__(self, target: Any, runner: asyncio.Runner) -> None:
        self._target = target
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._runner.run(self._finished(getattr(self._target, name)(*args, **kwargs)))

        return call

    @staticmethod
    async def _finished(outcome: Any) -> Any:
        if hasattr(outcome, "__anext__"):
            return [each async for each in outcome]
        if isinstance(outcome, Awaitable):
            return await outcome
        return outcome


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


def test_the_asyncio_face(place: Path, runner: asyncio.Runner) -> None:
    assert check(OPENS, Awaited(aio, runner), place) > 60
    log = Awaited(aio, runner).open("log")
    assert check(LOG, Awaited(log, runner), place) > 80
    topic = runner.run(log.topic("t"))
    assert check([*TOPIC, *READS], Awaited(topic, runner), place) > 150
    runner.run(log.close())
    reader = Awaited(aio, runner).open_reader(log_dir="log")
    assert check(READER, Awaited(reader, runner), place) > 60
    runner.run(reader.close())


def test_integers_of_numpy_are_integers(place: Path) -> None:
    with tiered.open("log") as log:
        topic = log.topic("n", partitions=np.int64(3), create=True, config={"segment.bytes": np.int64(5000)})
        md = topic.append(b"v", partition=np.int64(2), timestamp=np.int64(1_700_000_000_000))
        assert (md.partition, md.offset, md.timestamp) == (2, 0, 1_700_000_000_000)
        topic.append_many([NewRecord(b"w", timestamp=np.int64(1_700_000_000_001))], partition=np.uint8(2))
        assert [r.value for r in topic.read(np.int32(2), start=np.int64(1))] == [b"w"]
        assert [r.value for r in topic.read(np.int32(2), since=np.int64(1_700_000_000_001))] == [b"w"]
        assert topic.config.segment_bytes == 5000
    with tiered.open("log") as log:  # the files hold plain numbers
        assert log.topics()["n"].partitions == 3


@pytest.mark.parametrize("partitions", [1_000_000_000, 3.0, "3", True, -1, None])
def test_a_number_of_partitions_on_disk_is_not_taken_on_trust(place: Path, partitions: object) -> None:
    import json

    path = Path("log/tiered-topics.json")
    value = json.loads(path.read_text())
    value["topics"]["t"]["partitions"] = partitions
    path.write_text(json.dumps(value))
    for call in (lambda: tiered.open("log"), lambda: tiered.open_reader(log_dir="log")):
        error = refused(call)
        assert error.exit_code == 13
        assert "tiered-topics.json" in error.message
        assert repr(partitions) in error.message


def test_a_directory_of_an_absurd_partition_is_refused(place: Path) -> None:
    """Its number would be the number of partitions that everything loops over."""
    Path(f"log/t-{MAX_PARTITIONS}").mkdir()
    Path(f"log/t-{MAX_PARTITIONS}/{0:020d}.log").touch()  # without a segment it is no partition
    assert f"t-{MAX_PARTITIONS}" in refused(lambda: tiered.open("log")).message
    with tiered.open_reader(log_dir="log") as reader:  # a reader passes over it, as over any other stray directory
        assert reader.topic("t").partitions == 2
