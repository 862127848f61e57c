"""The facade: append, read over both tiers, sync, adopt, and what it refuses."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiered
from tiered import aio
from tiered.errors import (
    ClosedError,
    ConfigError,
    DataLocalError,
    FencedError,
    ForkedLogError,
    InvalidRecordError,
    InvalidTimestampError,
    LockedError,
    LogDestroyedError,
    NotFoundError,
    OffsetOutOfRangeError,
    TieredError,
    UnknownTopicError,
)
from tiered.format.batch import encode_batch
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord, TopicPartition
from tiered.times import SECONDS_END, SECONDS_FROM
from uploader import Uploader

SMALL = {"segment.bytes": 4096, "index.interval.bytes": 256}


def store_url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'store'}"


def values(records: object) -> list[bytes | None]:
    return [record.value for record in records]  # type: ignore[attr-defined]  # an iterator of records


def test_append_tells_the_offset_and_read_gives_it_back(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("orders", partitions=2, create=True)
        first = topic.append(b"a", key=b"k", headers=[("h", b"x"), ("n", None)], timestamp=1000)
        second = topic.append(None, key=b"k", timestamp=1001)
        assert (first.partition, first.offset, first.end_offset) == (second.partition, 0, 1)
        assert second.offset == 1
        got = list(topic.read(first.partition))
        assert [(r.offset, r.timestamp, r.key, r.value, r.headers, r.tier) for r in got] == [
            (0, 1000, b"k", b"a", [("h", b"x"), ("n", None)], "local"),
            (1, 1001, b"k", None, (), "local"),
        ]
        assert list(topic.read(1 - first.partition)) == []
        assert got[0].datetime == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)


def test_sync_then_lose_the_disk_then_read_from_the_store(tmp_path: Path) -> None:
    url = store_url(tmp_path)
    sent = [b"%06d" % i * 20 for i in range(600)]
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, config=SMALL)
        for at in range(0, 600, 20):
            topic.append_many([NewRecord(v, b"k", 1_000 + at) for v in sent[at : at + 20]])
        log.sync(timeout=30)
        positions = topic.positions(0)
        assert (positions.uploaded_offset, positions.flushed_offset, positions.end_offset) == (600, 600, 600)
        tiers = {r.tier for r in topic.read()}
        assert tiers == {"local"}
    with tiered.open_reader(url) as reader:
        assert {n: i.partitions for n, i in reader.topics().items()} == {"t": 1}
        got = list(reader.topic("t").read())
        assert values(got) == sent
        assert [r.offset for r in got] == list(range(600))
        assert {r.tier for r in got} == {"remote"}
        assert "list" not in {op.lower() for op, n in reader.requests().items() if n} - {"list"}


def test_a_fresh_directory_goes_on_where_the_bucket_ended_under_a_new_leader_epoch(tmp_path: Path) -> None:
    url = store_url(tmp_path)
    with tiered.open(tmp_path / "first", remote=url) as log:
        log.topic("t", create=True, config=SMALL).append_many([b"%d" % i for i in range(10)])
        log.sync(timeout=30)
    with tiered.open(tmp_path / "second", remote=url) as log:
        topic = log.topic("t")
        assert topic.config.segment_bytes == 4096
        assert topic.append(b"10").offset == 10
        log.sync(timeout=30)
        got = list(topic.read())
        assert values(got) == [b"%d" % i for i in range(11)]
        assert [r.tier for r in got] == ["remote"] * 10 + ["local"]
        assert got[-1].leader_epoch == got[0].leader_epoch + 1
    with tiered.open(tmp_path / "first", remote=url) as log:
        # the first volume lost the log: it may not commit under the second one's offsets
        topic = log.topic("t")
        topic.append(b"late")
        with pytest.raises(FencedError, match="t-0"):
            log.sync(timeout=30)
        with pytest.raises(FencedError):
            topic.append(b"later")
    with tiered.open_reader(url) as reader:
        assert values(reader.topic("t").read()) == [b"%d" % i for i in range(11)]


def test_times_and_offsets_are_half_open_and_exclude_each_other(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=store_url(tmp_path)) as log:
        topic = log.topic("t", create=True, config=SMALL)
        for i in range(100):
            topic.append(b"%d" % i * 50, timestamp=1_700_000_000_000 + i * 1000)
            if i == 59:
                log.sync(timeout=30)
        assert [r.offset for r in topic.read(start=10, end=13)] == [10, 11, 12]
        since = 1_700_000_000_000 + 20_000
        assert [r.offset for r in topic.read(since=since, until=since + 3000)] == [20, 21, 22]
        assert [r.offset for r in topic.read(since="2023-11-14T22:14:50Z")] == list(range(90, 100))
        assert list(topic.read(until=1_699_999_999_999)) == []
        assert [r.offset for r in topic.read(start="latest")] == []
        with pytest.raises(ConfigError, match="exclude each other"):
            list(topic.read(start=1, since=since))
        with pytest.raises(InvalidTimestampError, match="time zone"):
            list(topic.read(since=dt.datetime(2023, 1, 1)))
        with pytest.raises(OffsetOutOfRangeError) as caught:
            list(topic.read(start=101))
        assert (caught.value.requested, caught.value.earliest, caught.value.latest) == (101, 0, 100)
        assert topic.offsets_for_times(since)[TopicPartition("t", 0)] == (20, since)


def test_a_record_without_a_time_is_in_no_range_of_times_wherever_it_lies(tmp_path: Path) -> None:
    url, at = store_url(tmp_path), 1_700_000_000_000
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True)
        topic.append_batches(encode_batch([NewRecord(b"none", b"k", timestamp=-1)]))
        topic.append_batches(encode_batch([NewRecord(b"none", b"k", timestamp=-1), NewRecord(b"dated", b"k", at)]))
        log.sync(timeout=30)
    places: list[dict[str, object]] = [{"log_dir": tmp_path / "log"}, {"remote": url}]
    for place in (*places, {**places[0], **places[1]}):
        with tiered.open_reader(**place) as reader:  # type: ignore[arg-type]  # keywords of each case
            for options, expected in (
                ({}, [b"none", b"none", b"dated"]),
                ({"until": at}, []),
                ({"until": at + 1}, [b"dated"]),
                ({"since": 0, "until": at + 1}, [b"dated"]),
                ({"since": 0}, [b"dated"]),
            ):
                assert values(reader.topic("t").read(**options)) == expected, (place, options)
                assert reader.to_arrow("t", **options)["value"].to_pylist() == expected, (place, options)
                assert values(reader.find("t", key=b"k", **options)) == expected, (place, options)


def test_find_by_key_prunes_by_time_and_says_whether_it_is_complete(tmp_path: Path) -> None:
    url = store_url(tmp_path)
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", partitions=3, create=True, config=SMALL)
        for i in range(600):
            topic.append(b"%d" % i * 20, key=b"k%d" % (i % 7), timestamp=1_700_000_000_000 + i * 1000)
        log.sync(timeout=30)
    with tiered.open_reader(url) as reader:
        found = reader.find("t", key=b"k3", since=1_700_000_100_000, until=1_700_000_200_000)
        assert not found.report.complete
        assert sorted(r.timestamp for r in found) == [
            1_700_000_000_000 + i * 1000 for i in range(100, 200) if i % 7 == 3
        ]
        assert found.report.complete
        assert 0 < found.report.records_scanned < 600
        assert list(reader.find("t", key=b"nobody")) == []


def test_append_many_reports_the_place_of_a_bad_record(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", partitions=2, create=True)
        with pytest.raises(InvalidRecordError) as caught:
            topic.append_many([(b"v", b"k"), (b"v", b"k"), ("text", b"k")])  # type: ignore[list-item]  # the bad input
        assert caught.value.index == 2
        assert list(topic.read()) == []
        with pytest.raises(InvalidRecordError, match="record 1 is a int"):
            topic.append_many([b"v", 7])  # type: ignore[list-item]  # the bad input
        written = topic.append_many([(b"a", b"1"), (b"b", b"2"), (b"c", None), b"d"])
        assert sum(md.end_offset - md.offset for md in written) == 4


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_durability_waits_for_its_position(tmp_path: Path, durability: str) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        topic.append(b"v", durability=durability)
        positions = topic.positions(0)
        assert positions.end_offset == 1
        assert positions.flushed_offset == (1 if durability == "disk" else 0)
        with pytest.raises(ConfigError, match="durability='paper'"):
            topic.append(b"v", durability="paper")


def test_a_topic_that_has_more_partitions_than_its_program_named_is_opened(tmp_path: Path) -> None:
    async def on_the_loop() -> int:
        async with aio.open(tmp_path / "log") as log:
            with pytest.raises(ConfigError, match="5 partitions, not 6"):
                await log.topic("orders", partitions=6, create=True)
            return (await log.topic("orders", partitions=3, create=True)).partitions

    with tiered.open(tmp_path / "log") as log:
        log.topic("orders", partitions=3, create=True).add_partitions(2)
    with tiered.open(tmp_path / "log") as log:
        assert log.topic("orders", partitions=3, create=True).partitions == 5
        with pytest.raises(ConfigError, match="5 partitions, not 6") as raised:
            log.topic("orders", partitions=6, create=True)
        assert raised.value.hint is not None
        assert "tiered topic set orders --partitions 6" in raised.value.hint
    assert asyncio.run(on_the_loop()) == 5


def test_an_append_to_a_partition_that_is_added_at_this_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("orders", partitions=1, create=True)

        class Watched(list[WriteLog | TieredError]):
            def __iter__(self) -> Iterator[WriteLog | TieredError]:
                with pytest.raises(UnknownTopicError, match="no partition 1"):
                    topic.append(b"early", partition=1)
                with pytest.raises(UnknownTopicError, match="no partition 1"):
                    topic.append_many([b"early"], partition=1)
                return super().__iter__()

        spread = tiered.Topic._spread
        monkeypatch.setattr(tiered.Topic, "_spread", lambda self, logs: spread(self, Watched(logs)))
        assert topic.add_partitions(1) == 2
        assert topic.append(b"v", partition=1).offset == 0


SECONDS = 1_357_016_400


@pytest.mark.parametrize("way", ["append", "append_many", "tuple", "arrow", "appender", "transaction", "transactions"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_seconds_are_no_time_of_a_record(tmp_path: Path, way: str, partitions: int) -> None:
    import pyarrow

    good, bad = NewRecord(b"v", b"k", SECONDS * 1000), NewRecord(b"v", b"k2", SECONDS)
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", partitions=partitions, create=True)
        with topic.transaction("id") as transaction, topic.appender() as appender:
            calls: dict[str, Callable[[], object]] = {
                "append": lambda: topic.append(b"v", timestamp=SECONDS),
                "append_many": lambda: topic.append_many([good, bad]),
                "tuple": lambda: topic.append_many((each for each in (good, bad)), partition=0),
                "arrow": lambda: topic.append_arrow(
                    pyarrow.table({"value": [b"v"] * 3, "timestamp": [None, SECONDS * 1000, SECONDS]})
                ),
                "appender": lambda: appender.append(b"v", timestamp=SECONDS).result(),
                "transaction": lambda: transaction.append(b"v", timestamp=SECONDS),
                "transactions": lambda: transaction.append_many([good, bad]),
            }
            with pytest.raises(InvalidTimestampError, match=f"the time {SECONDS} can only be seconds") as raised:
                calls[way]()
            assert raised.value.hint == f"times are milliseconds: write {SECONDS}000"
            assert raised.value.index == {"arrow": 2, "append_many": 1, "tuple": 1, "transactions": 1}.get(way, 0)
        taken = [NewRecord(b"old", timestamp=0), NewRecord(b"early", timestamp=SECONDS_FROM - 1), NewRecord(b"now")]
        topic.append_many([*taken, NewRecord(b"later", timestamp=SECONDS_END)], partition=0)
        assert [record.value for record in topic.read()] == [b"old", b"early", b"now", b"later"]


def test_wrong_calls_get_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        tiered.open(tmp_path / "absent", create=False)
    with pytest.raises(ConfigError, match="needs a bucket or a log directory"):
        tiered.open_reader()
    with tiered.open(tmp_path / "log") as log:
        with pytest.raises(UnknownTopicError, match="no topic nope"):
            log.topic("nope")
        log.topic("orders", partitions=3, create=True)
        with pytest.raises(UnknownTopicError, match="did you mean orders"):
            log.topic("order")
        with pytest.raises(ConfigError, match="3 partitions, not 4"):
            log.topic("orders", partitions=4)
        with pytest.raises(ConfigError, match=r"other settings: segment\.bytes"):
            log.topic("orders", config={"segment.bytes": 999_999})
        with pytest.raises(ConfigError, match=r"segment\.bytes"):
            log.topic("other", create=True, config={"segment.bites": 1})
        with pytest.raises(ConfigError):
            log.topic("bad/name", create=True)
        with pytest.raises(ConfigError, match="no remote"):
            log.sync()
        with pytest.raises(UnknownTopicError, match="no partition 3"):
            log.topic("orders").append(b"v", partition=3)
        with pytest.raises(ConfigError, match="offsets differ by partition"):
            log.topic("orders").read(start=0)
        with pytest.raises(LockedError, match=str(os.getpid())):
            tiered.open(tmp_path / "log")
    with pytest.raises(ClosedError):
        log.topic("orders").append(b"v")
    log.close()


def test_a_forked_child_gets_an_error(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        pid = os.fork()
        if pid == 0:
            try:
                topic.append(b"child")
            except ForkedLogError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert topic.append(b"parent").offset == 0


@pytest.mark.parametrize("uploader", [None, Uploader])
def test_remote_durability_waits_for_the_seal_whoever_uploads(
    tmp_path: Path, uploader: Callable[[], Uploader] | None
) -> None:
    component = None if uploader is None else uploader()
    with tiered.open(tmp_path / "log", remote=store_url(tmp_path), uploader=component) as log:
        topic = log.topic("fast", create=True, config={"seal.ms": 1})
        md = topic.append(b"v", durability="remote")
        assert topic.positions(0).uploaded_offset == md.end_offset
        slow = log.topic("slow", create=True)
        slow.append(b"v")
        with pytest.raises(DataLocalError, match="slow-0 at offset 0 of 1"):
            log._wait_uploaded({TopicPartition("slow", 0): 1}, 0.0)  # nothing is sealed, and waiting seals nothing


@pytest.mark.parametrize("looks", [False, True])
def test_a_topic_that_was_made_again_is_not_read_in_place_of_the_one_that_a_reader_holds(
    tmp_path: Path, looks: bool
) -> None:
    """Its records have the same offsets: who goes on behind those of the old one would pass the new ones by."""
    with tiered.open(tmp_path / "log") as log, tiered.open_reader(log_dir=tmp_path / "log") as reader:
        log.topic("t", create=True).append_many([b"old"] * 3)
        held = reader.topic("t")
        assert [record.value for record in held.read(0)] == [b"old"] * 3
        stream = held.stream(0)
        log.delete_topic("t")
        with pytest.raises(LogDestroyedError, match="it was deleted"):
            list(held.read(0))
        log.topic("t", create=True).append_many([b"new"] * 5)
        if looks:
            assert reader.topics()["t"].partitions == 1
        for read in (held.read, held.read_batches):
            for start in (0, 3):
                with pytest.raises(LogDestroyedError, match="made again"):
                    list(read(0, start=start))
        with pytest.raises(LogDestroyedError, match="made again"):
            held.end_offsets()
        with pytest.raises(LogDestroyedError, match="made again"):
            list(stream.batches(3))
        assert [record.value for record in reader.topic("t").read(0)] == [b"new"] * 5
