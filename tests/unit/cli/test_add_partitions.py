"""Partitions that are added to a topic: in the bucket and on the disk, written, uploaded and read as the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered import aio
from tiered.config import MAX_PARTITIONS
from tiered.errors import ConfigError, LocalIOError, RemoteUnavailableError, TieredError
from tiered.format.partitioner import Partitioner
from tiered.model import TopicPartition
from tiered.uploader import Uploader

KEYS = [b"key-%d" % number for number in range(40)]


@pytest.fixture(params=["disk", "both tiers"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "disk" else (tmp_path / "bucket").as_uri()


def by_partition(topic: Any) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {number: [] for number in range(topic.partitions)}
    for record in topic.read():
        found[record.partition].append(record.key)
    return found


def expected(*counts: int) -> dict[int, list[bytes]]:
    """Where Kafka's partitioner puts the keys, appended once for each number of partitions."""
    found: dict[int, list[bytes]] = {number: [] for number in range(max(counts))}
    for count in counts:
        chosen = Partitioner(count)
        for key in KEYS:
            found[chosen.partition_for(key)].append(key)
    return found


def each(topic: tiered.Topic) -> None:
    for key in KEYS:
        topic.append(b"v", key=key)


def many(topic: tiered.Topic) -> None:
    topic.append_many([(b"v", key) for key in KEYS])


def arrow(topic: tiered.Topic) -> None:
    import pyarrow as pa

    topic.append_arrow(pa.table({"key": pa.array(KEYS, pa.binary()), "value": pa.array([b"v"] * 40, pa.binary())}))


@pytest.mark.parametrize("append", [each, many, arrow])
def test_an_open_topic_writes_and_reads_them(
    tmp_path: Path, remote: str | None, append: Callable[[tiered.Topic], None]
) -> None:
    with tiered.open(tmp_path / "log", remote=remote) as log:
        topic = log.topic("t", partitions=2, create=True)
        append(topic)
        assert topic.add_partitions(3) == 5
        assert (topic.partitions, log.topic("t"), log.topics()["t"].partitions) == (5, topic, 5)
        append(topic)
        assert by_partition(topic) == expected(2, 5)
        assert topic.append(b"v", partition=4).partition == 4
        if remote:
            log.sync(timeout=60)
    with tiered.open(tmp_path / "log", remote=remote) as log:
        assert log.topic("t", partitions=5, create=True).end_offsets()[TopicPartition("t", 4)] > 1
    if remote:
        with tiered.open_reader(remote) as reader:
            assert {tp.partition for tp, end in reader.topic("t").end_offsets().items() if end} == {0, 1, 2, 3, 4}


def test_an_open_appender_spreads_over_them(tmp_path: Path, remote: str | None) -> None:
    with tiered.open(tmp_path / "log", remote=remote) as log:
        topic = log.topic("t", partitions=2, create=True)
        with topic.appender(linger_ms=60_000) as appender:
            for key in KEYS:
                appender.append(b"v", key=key)
            topic.add_partitions(1)
            for key in KEYS:  # twice: those after the first go into batches that are open
                appender.append(b"v", key=key)
        assert by_partition(topic) == expected(2, 3)


async def test_asyncio(tmp_path: Path, remote: str | None) -> None:
    async with aio.open(tmp_path / "log", remote=remote) as log:
        topic = await log.topic("t", partitions=1, create=True)
        other = await log.topic("t")
        assert await topic.add_partitions(1) == 2
        assert (topic.partitions, other.partitions) == (2, 2)
        await other.append(b"v", partition=1)
        assert [record.partition async for record in topic.read()] == [1]
        with pytest.raises(ConfigError, match="n=0"):
            await topic.add_partitions(0)


def test_an_uploader_in_the_process_uploads_them(tmp_path: Path) -> None:
    remote = (tmp_path / "bucket").as_uri()
    with tiered.open(tmp_path / "log", remote=remote, uploader=Uploader()) as log:
        topic = log.topic("t", create=True)
        topic.append(b"v")
        log.sync(timeout=60)
        topic.add_partitions(2)
        topic.append(b"w", partition=2)
        log.sync(timeout=60)
        assert topic.positions(2).uploaded_offset == 1


def test_a_reader_that_is_open_sees_them_when_it_asks_again(tmp_path: Path, remote: str | None) -> None:
    with tiered.open(tmp_path / "log", remote=remote) as log:
        topic = log.topic("t", create=True)
        with tiered.open_reader(remote, log_dir=None if remote else tmp_path / "log") as reader:
            assert reader.topic("t").partitions == 1
            topic.add_partitions(1)
            assert reader.topic("t").partitions == 2


def test_a_log_of_several_directories_spreads_them(tmp_path: Path, remote: str | None) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with tiered.open(paths, remote=remote) as log:
        topic = log.topic("t", partitions=2, create=True)
        topic.add_partitions(2)
        for number in range(4):
            topic.append(b"v", partition=number)
        if remote:
            log.sync(timeout=60)
    assert [len(list(path.glob("t-*"))) for path in paths] == [2, 2]
    with tiered.open(paths, remote=remote) as log:
        assert set(log.topic("t").end_offsets().values()) == {1}


@pytest.mark.parametrize("bad", [0, -1, 1.5, "1", None, True, MAX_PARTITIONS])
def test_a_wrong_number_is_refused(tmp_path: Path, bad: Any) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        with pytest.raises(ConfigError) as refused:
            topic.add_partitions(bad)
        assert refused.value.hint
        assert (topic.partitions, log.topics()["t"].partitions) == (1, 1)


def test_the_command_adds_them_in_both_tiers(tmp_path: Path, remote: str | None, cli: Cli) -> None:
    tiers = ["--log-dir", tmp_path / "log", *(("--remote", remote) if remote else ())]
    assert cli("topic", "create", "t", *tiers).code == 0
    changed = cli("topic", "set", "t", *tiers, "--partitions", 3, "retention.ms=1d", "--json")
    assert (changed.code, changed.summary["partitions"], changed.summary["config"]["retention.ms"]) == (
        0,
        3,
        "86400000",
    )
    assert cli("topic", "set", "t", *tiers, "--partitions", 3).code == 0  # as it is
    fewer = cli("topic", "set", "t", *tiers, "--partitions", 2)
    assert (fewer.code, fewer.err.splitlines()[0]) == (
        2,
        "error: topic t has 3 partitions: they cannot become 2",
    )
    assert cli("append", "t:2", *tiers, stdin=b"v\n").code == 0
    assert cli("cat", "t:2", *tiers).text == "v\n"
    assert cli("check", *tiers).code == 0


def test_the_command_adds_them_in_the_bucket_alone_and_the_disk_says_what_it_lacks(
    tmp_path: Path, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    remote = (tmp_path / "bucket").as_uri()
    assert cli("topic", "create", "t", "--log-dir", tmp_path / "log", "--remote", remote).code == 0
    assert cli("topic", "set", "t", "--remote", remote, "--partitions", 2).code == 0
    with caplog.at_level(logging.WARNING, "tiered"), tiered.open(tmp_path / "log", remote=remote) as log:
        assert log.topic("t").partitions == 1
        assert "`tiered topic set t --partitions 2` with both adds the others here" in caplog.text
        assert log.topic("t").add_partitions(1) == 2
    assert cli("check", "--log-dir", tmp_path / "log", "--remote", remote).code == 0


def test_the_command_refuses_a_directory_with_a_writer_before_the_bucket_is_changed(tmp_path: Path, cli: Cli) -> None:
    remote = (tmp_path / "bucket").as_uri()
    tiers = ("--log-dir", tmp_path / "log", "--remote", remote)
    with tiered.open(tmp_path / "log", remote=remote) as log:
        log.topic("t", create=True)
        assert cli("topic", "set", "t", *tiers, "--partitions", 2).code == 11
    assert cli("topic", "show", "t", "--remote", remote, "--json").summary["partitions"][1:] == []


def test_a_call_that_failed_may_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = (tmp_path / "bucket").as_uri()
    failures: list[TieredError] = [
        RemoteUnavailableError("before the bucket"),
        LocalIOError("before the disk"),
        RemoteUnavailableError("before the claims"),
    ]
    with tiered.open(tmp_path / "log", remote=remote) as log:
        topic = log.topic("t", create=True)
        assert log._tiering is not None
        for place, name in ((log._tiering, "register"), (log._local, "alter_topic"), (log._tiering, "adopt")):
            error = failures.pop(0)

            def fail(*_: object, error: TieredError = error, **__: object) -> None:
                raise error

            with monkeypatch.context() as broken:
                broken.setattr(place, name, fail)
                with pytest.raises(type(error), match=error.message):
                    topic.add_partitions(1)
            assert topic.partitions == 1
        assert topic.add_partitions(1) == 2
        assert topic.append(b"v", partition=1).offset == 0
        log.sync(timeout=60)
        assert topic.positions(1).uploaded_offset == 1
