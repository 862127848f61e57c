"""``tiered snapshot``, and reading as of one: what it names stays, whatever becomes of the log."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import tiered
from tests.support.admin import restore
from tests.support.uploaded import COMPACTED, upload_topics
from tests.unit.cli.conftest import Cli
from tiered.errors import ConfigError, CorruptionError, NotFoundError
from tiered.format.keys import snap_key
from tiered.format.root import encode_pending_snapshot, encode_root
from tiered.read.stream import ReadRange
from tiered.remote.root_view import RootView
from tiered.remote.topics import load_topic
from tiered.restore.plan import RestoreOptions
from tiered.spark.schema import kafka_schema
from tiered.spark.source import TieredDataSource
from tiered.store.base import ABSENT, Put
from tiered.store.driver import drive
from tiered.store.location import StoreLocation


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return upload_topics(tmp_path, COMPACTED)


def objects(tmp_path: Path) -> set[Path]:
    """All segments."""
    return set((tmp_path / "store").rglob("*.log.obj"))


def live(cli: Cli, bucket: str, end: str = "20") -> None:
    """All that takes away: compaction, a trim, the collection of what they left."""
    assert cli("maintain", "t:0", "--only", "compact", "--remote", bucket, "--yes").code == 0
    trim = ("maintain", "t:0", "--only", "retention", "--start-offset", end)
    assert cli(*trim, "--remote", bucket, "--yes").code == 0
    assert cli("maintain", "--only", "collect", "--remote", bucket, "--yes").code in (0, 3)


def test_what_a_snapshot_names_stays_until_it_is_deleted(cli: Cli, bucket: str, tmp_path: Path) -> None:
    before = objects(tmp_path)
    made = cli("snapshot", "create", "release-1", "--remote", bucket, "--json")
    (one,) = made.summary["snapshots"]
    assert (made.code, one["name"], one["start_offset"], one["end_offset"]) == (0, "release-1", 0, 40)
    live(cli, bucket)
    assert before <= objects(tmp_path)
    assert cli("snapshot", "list", "--remote", bucket, "--json").summary["snapshots"] == [one]
    assert cli("snapshot", "delete", "release-1", "--remote", bucket).code == 2  # nobody can answer
    deleted = cli("snapshot", "delete", "release-1", "--remote", bucket, "--yes", "--json")
    assert (deleted.code, deleted.summary["snapshots"]) == (0, [one | {"state": "deleted"}])
    assert cli("maintain", "--only", "collect", "--remote", bucket, "--yes").code == 0
    assert not before & objects(tmp_path)
    assert cli("snapshot", "list", "--remote", bucket).text == "no snapshots\n"


def test_a_name_is_made_once_and_is_a_name(cli: Cli, bucket: str) -> None:
    remote = ("--remote", bucket)
    assert cli("snapshot", "create", "a", "t:0", *remote).code == 0
    again = cli("snapshot", "create", "a", *remote)
    assert (again.code, "cannot create snapshot a: t-0 has a snapshot of this name already" in again.err) == (2, True)
    for name in ("now", "now-1h", "12", "3d", "2026-01-01", "a/b", "..", "", "a" * 101):
        assert cli("snapshot", "create", name, *remote).code == 2, name
    assert cli("snapshot", "create", "b", "u", *remote).code == 10
    assert cli("snapshot", "delete", "b", "--yes", *remote).code == 10
    assert [one["name"] for one in cli("snapshot", "list", *remote, "--json").summary["snapshots"]] == ["a"]


def test_a_create_that_was_cut_short_goes_on_where_it_ended(cli: Cli, tmp_path: Path) -> None:
    """One partition has the snapshot, one has it begun, one lacks it."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, partitions=3)
        for number in range(3):
            topic.append(b"first", partition=number)
        log.sync(timeout=60)
    remote = ("--remote", url)
    assert cli("snapshot", "create", "a", "t:0", *remote).code == 0
    with contextlib.closing(StoreLocation.parse(url).open()) as store:
        entry = drive(store, load_topic("t"))
        assert entry is not None
        root = drive(store, RootView(entry.topic_id, 1, "t").load())
        assert root is not None
        body = encode_pending_snapshot(encode_root(root), "0" * 32, "a")
        store.execute(Put(snap_key(entry.topic_id, 1, "a"), body, ABSENT))
    with tiered.open(tmp_path / "log", remote=url) as log:
        for number in range(3):
            log.topic("t").append(b"second", partition=number)
        log.sync(timeout=60)
    again = cli("snapshot", "create", "a", *remote, "--json")
    assert (again.code, [one["end_offset"] for one in again.summary["snapshots"]]) == (0, [1, 2, 2])
    assert cli("snapshot", "create", "a", *remote).code == 2
    listed = cli("snapshot", "list", *remote, "--json").summary["snapshots"]
    assert [(one["partition"], one["end_offset"], one["state"]) for one in listed] == [
        (0, 1, "kept"), (1, 2, "kept"), (2, 2, "kept")
    ]  # fmt: skip


def values(bucket: str, **wanted: Any) -> list[bytes | None]:
    """All records."""
    with tiered.open_reader(bucket, **wanted) as reader:
        return [record.value for record in reader.topic("t").read(0)]


def newest(cli: Cli, bucket: str) -> int:
    """The version of the root."""
    (partition,) = cli("maintain", "--dry-run", "--remote", bucket, "--json").summary["partitions"]
    assert isinstance(partition["version"], int)
    return partition["version"]


def test_as_of_a_snapshot_gives_what_was_read_then(cli: Cli, bucket: str) -> None:
    then, version = values(bucket), newest(cli, bucket)
    assert cli("snapshot", "create", "release-1", "--remote", bucket).code == 0
    live(cli, bucket)
    now = values(bucket)
    assert len(now) < len(then) == 40
    for as_of in ("release-1", version, str(version)):
        assert values(bucket, as_of=as_of) == then
        with tiered.open_reader(bucket, as_of=as_of) as reader:
            (taken,) = reader.taken("t").values()
            assert (taken.version, reader.topic("t").end_offsets()) == (version, {tiered.TopicPartition("t", 0): 40})
    assert values(bucket, as_of=newest(cli, bucket)) == now
    seen = cli("cat", "t", "--as-of", "release-1", "--remote", bucket)
    assert seen.out.splitlines() == then
    assert f"version {version} of " in seen.err
    assert cli("snapshot", "delete", "release-1", "--remote", bucket, "--yes").code == 0
    gone = cli("cat", "t", "--as-of", str(version), "--remote", bucket)
    assert (gone.code, f"version {version} was not kept" in gone.err) == (10, True)


def test_as_of_a_time_takes_the_newest_root_that_was_kept_before_it(cli: Cli, bucket: str, tmp_path: Path) -> None:
    assert cli("snapshot", "create", "first", "--remote", bucket).code == 0
    (first,) = cli("snapshot", "list", "--remote", bucket, "--json").summary["snapshots"]
    then = values(bucket)
    with tiered.open(tmp_path / "log", remote=bucket) as log:
        for number in range(40, 60):
            log.topic("t").append(b"%02d" % number + b"x" * 100, key=b"k")
        log.sync(timeout=60)
    later = values(bucket)
    assert cli("snapshot", "create", "second", "--remote", bucket).code == 0
    second = cli("snapshot", "list", "--remote", bucket, "--json").summary["snapshots"][1]
    live(cli, bucket, "50")
    assert len(later) == 60
    for time_ms, expected in (
        (first["time"], then),
        (second["time"] - 1, then),
        (second["time"], later),
        (second["time"] + 10**9, values(bucket)),
    ):
        assert values(bucket, as_of=dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)) == expected
    with tiered.open_reader(bucket, as_of=dt.datetime.fromtimestamp(second["time"] / 1000, dt.UTC)) as reader:
        assert "second" in str(reader.taken("t")) or "history" in str(reader.taken("t"))
    early = cli("cat", "t", "--as-of", "2020-01-01", "--remote", bucket)
    assert (early.code, "no version of 2020-01-01T00:00:00Z" in early.err) == (10, True)


def test_a_version_before_a_trim_is_read_until_it_is_collected(cli: Cli, bucket: str) -> None:
    then, version = values(bucket), newest(cli, bucket)
    assert cli("maintain", "t:0", "--only", "compact", "--remote", bucket, "--yes").code == 0
    claimed = version + 1  # the maintainer's claim came first: the same rows
    assert values(bucket, as_of=claimed) == then != values(bucket)
    with tiered.open_reader(bucket, as_of=claimed) as reader:
        assert str(next(iter(reader.taken("t").values()))).endswith("(history)")
        assert cli("maintain", "--only", "collect", "--remote", bucket, "--yes").code == 0
        with pytest.raises(NotFoundError, match="garbage collection deleted"):
            list(reader.topic("t").read(0))
    with pytest.raises(NotFoundError, match="garbage collection deleted"):
        values(bucket, as_of=claimed)


@pytest.mark.parametrize(
    ("as_of", "code", "text"),
    [
        ("other", 10, "has no snapshot other"),
        ("1", 10, "version 1 was not kept"),
        ("99999", 10, "version 99999 was not kept"),
        ("1700000000000", 2, "is no version of a catalog"),
        ("0", 2, "is no version of a catalog"),
        ("2026-13-01", 2, "is not a time"),
        ("a/b", 2, "is not allowed"),
    ],
)
def test_what_cannot_be_meant_is_said(cli: Cli, bucket: str, as_of: str, code: int, text: str) -> None:
    assert cli("snapshot", "create", "release", "--remote", bucket).code == 0
    seen = cli("cat", "t", "--as-of", as_of, "--remote", bucket)
    assert (seen.code, text in seen.err) == (code, True), seen.err


def test_a_disk_has_no_past(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="as_of does not go with log_dir: only a bucket keeps older versions"):
        tiered.open_reader(bucket, log_dir=tmp_path / "log", as_of=3)
    with pytest.raises(ConfigError, match="without as_of"), tiered.open_reader(bucket) as reader:
        reader.taken("t")


def test_as_of_for_asyncio(cli: Cli, bucket: str) -> None:
    then = values(bucket)
    assert cli("snapshot", "create", "release-1", "--remote", bucket).code == 0
    live(cli, bucket)

    async def read() -> tuple[list[bytes | None], list[str]]:
        async with tiered.aio.open_reader(bucket, as_of="release-1") as reader:
            topic = await reader.topic("t")
            sources = [taken.source for taken in (await reader.taken("t")).values()]
            return [record.value async for record in topic.read(0)], sources

    assert asyncio.run(read()) == (then, ["snapshot release-1"])


def test_spark_reads_as_of_a_snapshot_and_never_anything_newer(cli: Cli, bucket: str) -> None:
    then = values(bucket)
    assert cli("snapshot", "create", "release-1", "--remote", bucket).code == 0
    live(cli, bucket)
    options = {"path": bucket, "subscribe": "t", "asof": "release-1"}
    schema = StructType([field for field in kafka_schema(include_headers=False).fields if field.name == "value"])
    reader = TieredDataSource(options).reader(schema)
    slices = reader.partitions()

    def read() -> list[bytes]:
        return [row["value"] for part in slices for batch in reader.read(part) for row in batch.to_pylist()]

    assert read() == then
    assert cli("snapshot", "delete", "release-1", "--remote", bucket, "--yes").code == 0
    assert read() == then  # not collected yet
    assert cli("maintain", "--only", "collect", "--remote", bucket, "--yes").code == 0
    with pytest.raises(NotFoundError, match="was not kept"):
        read()
    with pytest.raises(ConfigError, match="exclude each other"):
        TieredDataSource({**options, "local_dir": "data"}).reader(schema)


# -- pins of readers ---------------------------------------------------------------------------------------------------


def pins(tmp_path: Path) -> list[Path]:
    """Those that are in the bucket."""
    return list((tmp_path / "store").rglob("pin/*.obj"))


def test_a_read_that_is_left_early_ends_its_pin(bucket: str, tmp_path: Path) -> None:
    with tiered.open_reader(bucket, pin=True) as reader:
        topic = reader.topic("t")
        stream = topic.stream(0)
        ways: list[Callable[[], Iterable[object]]] = [
            lambda: topic.read(0),
            lambda: topic.read_batches(0),
            lambda: reader.find("t", key=b"1"),
            lambda: stream.records(ReadRange()),
            lambda: stream.batches(0),
        ]
        for way in ways:
            for _ in way():
                assert len(pins(tmp_path)) == 1
                break
            assert pins(tmp_path) == []
        kept = topic.read(0)
        next(kept)
    assert pins(tmp_path) == []
    del kept


def test_an_asyncio_read_that_is_left_early_ends_its_pin(bucket: str, tmp_path: Path) -> None:
    async def reading() -> None:
        async with tiered.aio.open_reader(bucket, pin=True) as reader:
            topic = await reader.topic("t")
            for records in (topic.read(0), topic.read_batches(0), await reader.find("t", key=b"1")):
                async with aclosing(aiter(records)) as each:
                    await anext(each)
                    assert len(pins(tmp_path)) == 1
                assert pins(tmp_path) == []

    asyncio.run(reading())


@pytest.mark.parametrize("pinned", [True, False])
def test_a_restore_with_a_pin_goes_on_through_trim_and_collection(
    cli: Cli, bucket: str, tmp_path: Path, pinned: bool
) -> None:
    """Without one it is told that an object is gone, and nothing is left of it."""
    then, store = values(bucket), StoreLocation.parse(bucket).open()

    def meanwhile(size_bytes: int, *_: object) -> None:
        if size_bytes and not steps:
            steps.append(size_bytes)
            assert len(pins(tmp_path)) == pinned
            live(cli, bucket)

    steps: list[int] = []
    options = RestoreOptions(pin=pinned)
    if not pinned:
        with pytest.raises(CorruptionError, match=r"gone|missing|not there"):
            restore(store, tmp_path / "new", options, progress=meanwhile)
        assert not (tmp_path / "new").exists()
        return
    restore(store, tmp_path / "new", options, progress=meanwhile)
    with tiered.open_reader(log_dir=tmp_path / "new") as reader:
        assert [record.value for record in reader.topic("t").read(0)] == then
    assert pins(tmp_path) == []


def test_cat_with_a_pin(cli: Cli, bucket: str, tmp_path: Path) -> None:
    seen = cli("cat", "t", "--pin", "--remote", bucket, "-n", "3", "--json")
    assert (seen.code, seen.summary["records"], pins(tmp_path)) == (0, 3, [])
    refused = cli("cat", "t", "--pin", "--log-dir", tmp_path / "log")
    assert (refused.code, "pin needs a bucket" in refused.err) == (2, True)
    with pytest.raises(ConfigError, match="pin"):
        tiered.open_reader(bucket, pin="yes")  # type: ignore[arg-type]


def test_restore_as_of_a_snapshot_and_under_another_name(cli: Cli, bucket: str, tmp_path: Path) -> None:
    then = values(bucket)
    assert cli("snapshot", "create", "release-1", "--remote", bucket).code == 0
    live(cli, bucket)
    target = str(tmp_path / "copy")
    wanted = ("restore", "t", "--as-of", "release-1", "--name", "t-old", "--remote", bucket, "--log-dir", target)
    made = cli(*wanted, "--json")
    (part,) = made.summary["partitions"]
    assert (made.code, part["topic"], part["end_offset"], part["aborted_transactions"]) == (0, "t-old", 40, 0)
    assert "(snapshot release-1)" in made.err
    assert cli("cat", "t-old", "--log-dir", target).out.splitlines() == then
    until = ("restore", "t:0", "--as-of", "release-1", "--to", "7", "--remote", bucket, "--log-dir", target + "2")
    assert cli(*until).text.splitlines()[1].split()[:4] == ["t-0", "0", "7", "2"]
    assert cli("cat", "t", "--log-dir", target + "2").out.splitlines() == then[:7]
    assert cli("restore", "t", "--as-of", "other", "--remote", bucket, "--log-dir", target + "3").code == 10
