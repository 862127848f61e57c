"""Arrow in and out of a topic: ``append_arrow`` is single appends of its rows, ``read_batches`` what ``read`` reads."""

from __future__ import annotations

import datetime as dt
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiered
from tiered import aio
from tiered.arrow.decoder import RECORD_BATCH_ROWS
from tiered.errors import (
    ConfigError,
    CorruptionError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    TieredError,
    UnknownTopicError,
)
from tiered.format.batch import read_header
from tiered.model import NewRecord
from tiered.testing.clock import SeededIds

TIME = pa.timestamp("ms", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
T0 = 1_600_000_000_000
names = count()


def rows(topic: tiered.Topic) -> list[tuple[Any, ...]]:
    return [(r.partition, r.offset, r.timestamp, r.key, r.value, r.headers) for r in topic.read()]


def table_of(records: list[NewRecord]) -> pa.Table:
    fields = [("value", pa.binary()), ("key", pa.binary()), ("timestamp", TIME), ("headers", HEADERS)]
    return pa.table({n: pa.array([getattr(r, n) for r in records], kind) for n, kind in fields})


RECORDS = st.builds(
    NewRecord,
    st.none() | st.binary(max_size=30),
    st.none() | st.binary(max_size=30),
    st.integers(T0, T0 + 100_000),
    st.none() | st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=6)), min_size=1, max_size=2),
)


@settings(max_examples=25, deadline=None)
@given(records=st.lists(RECORDS, max_size=30), most=st.sampled_from([150, 1_000_000]), cut=st.integers(0, 30))
def test_the_same_rows_as_single_appends(
    tmp_path_factory: pytest.TempPathFactory, records: list[NewRecord], most: int, cut: int
) -> None:
    """Both in and out, whole and in chunks, also where a batch holds one row only."""
    with tiered.open(tmp_path_factory.mktemp("log"), ids=SeededIds(1)) as log:
        config = {"max.message.bytes": most}
        ours, theirs = (log.topic(name, partitions=3, create=True, config=config) for name in ("ours", "theirs"))
        for record in records:
            partition = None if record.key is not None else 0
            theirs.append(
                record.value, key=record.key, timestamp=record.timestamp, headers=record.headers, partition=partition
            )
        table = table_of(records)
        written = ours.append_arrow(pa.concat_tables([table.slice(0, cut), table.slice(cut)]))
        assert rows(ours) == rows(theirs)
        assert sum(md.end_offset - md.offset for md in written) == len(records)
        for topic in (ours, theirs):
            for partition in range(3):
                for batch in topic.stream(partition).batches(0):
                    assert read_header(bytes(batch.data)).size_bytes <= most
        read = pa.table(ours.read_batches())
        copied = log.topic("copied", partitions=3, create=True)
        copied.append_arrow(read)  # what a read gives, with the partition of each row
        assert rows(copied) == rows(theirs)


def test_other_layouts_and_absent_columns(tmp_path: Path) -> None:
    with tiered.open(tmp_path) as log:
        texts = ["a", None, "a long text that is no inline view"]
        kinds = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))
        for kind in kinds:
            topic = log.topic(f"t{next(names)}", create=True)
            topic.append_arrow(pa.table({"value": pa.array(texts).cast(kind), "timestamp": [T0, None, T0 + 1]}))
            found = list(topic.read())
            assert [r.value for r in found] == [None if t is None else t.encode() for t in texts]
            assert (found[0].timestamp, found[1].timestamp > T0 + 1, found[2].timestamp) == (T0, True, T0 + 1)
        topic = log.topic("t", partitions=2, create=True)
        at = dt.datetime(2020, 9, 13, 12, 26, 40, 1999, dt.UTC)
        batch = pa.record_batch({"value": [b"v"], "timestamp": pa.array([at], pa.timestamp("us", "Europe/Berlin"))})
        topic.append_arrow(batch, partition=1, durability="disk")
        (record,) = topic.read(1)
        assert (record.timestamp, record.key, record.headers) == (T0 + 1, None, ())
        assert topic.positions(1).flushed_offset == 1
        assert topic.append_arrow(batch.slice(0, 0)) == []


def test_rows_without_a_key_stay_together(tmp_path: Path) -> None:
    with tiered.open(tmp_path) as log:
        topic = log.topic("t", partitions=3, create=True)
        for turn in range(3):
            (md,) = topic.append_arrow(pa.table({"value": [b"1", b"2"]}))
            assert (md.partition, md.offset, md.end_offset) == (turn, 0, 2)


CASES: list[tuple[Any, type[TieredError], str, int | None]] = [
    ([b"v"], ConfigError, "data is list, not Arrow data", None),
    (pa.array([b"v"]), ConfigError, "data is BinaryArray, Cannot import schema", None),
    (
        pa.table({"value": [b"v"], "partition": pa.array([2**63], pa.uint64())}),
        ConfigError,
        "rows 0 to 1: Integer value 9223372036854775808 not in range",
        None,
    ),
    (  # its milliseconds, in 64 bits, would be 0: a time that every log takes
        pa.table({"value": [b"v"], "timestamp": pa.array([2**62]).cast(pa.timestamp("s", "UTC"))}),
        ConfigError,
        "rows 0 to 1: .* would result in out of bounds timestamp: 4611686018427387904",
        None,
    ),
    (pa.table({"key": [b"k"]}), ConfigError, "the table has no column `value`", None),
    (pa.table({"value": [1]}), ConfigError, "column value is int64, not binary or text", None),
    (
        pa.table({"value": [b"v"], "header": [1]}),
        ConfigError,
        r"column header is not a field of a record \(did you mean headers",
        None,
    ),
    (pa.table([[b"v"], [b"v"]], ["value", "value"]), ConfigError, "column value appears twice", None),
    (
        pa.table({"value": [b"v"], "timestamp": pa.array([T0], pa.timestamp("ms"))}),
        ConfigError,
        r"timestamp is timestamp\[ms\], not a timestamp with a time zone",
        None,
    ),
    (pa.table({"value": [b"v"], "headers": [["x"]]}), ConfigError, "not list<struct<key: string", None),
    (pa.table({"value": [b"v"] * 3, "timestamp": [T0, T0, -5]}), InvalidTimestampError, "row 2 has timestamp -5", 2),
    (pa.table({"value": [b"v"] * 2, "timestamp": [T0, 1]}), InvalidTimestampError, "row 1 has timestamp 1, outside", 1),
    (pa.table({"value": [b"v"] * 2, "key": [b"k", None]}), InvalidRecordError, "row 1 has no key, and the topic is", 1),
    (pa.table({"value": [b"v", b"x" * 300], "key": [b"k"] * 2}), RecordTooLargeError, "row 1 is a batch of 3", 1),
    (
        pa.table({"value": [b"v"], "key": [b"k"], "headers": pa.array([[{"key": None, "value": b""}]], HEADERS)}),
        InvalidRecordError,
        "rows 0 to 1: a header has no name",
        0,
    ),
    (
        pa.table({"value": [b"v"] * 2, "key": [b"k"] * 2, "partition": [0, 2]}),
        UnknownTopicError,
        "row 1: the topic has no p",
        None,
    ),
]


@pytest.mark.parametrize(("data", "error", "words", "index"), CASES)
def test_one_bad_row_refuses_the_call(
    tmp_path: Path, data: object, error: type[TieredError], words: str, index: int | None
) -> None:
    config = {"cleanup.policy": "compact", "message.timestamp.before.max.ms": 400_000_000_000, "max.message.bytes": 300}
    with tiered.open(tmp_path) as log:
        topic = log.topic("t", partitions=2, create=True, config=config)
        with pytest.raises(error, match=words) as caught:
            topic.append_arrow(data)
        assert getattr(caught.value, "index", None) == index
        assert [topic.positions(p).end_offset for p in range(2)] == [0, 0]


def test_a_bad_row_behind_many_good_ones_refuses_all(tmp_path: Path) -> None:
    with tiered.open(tmp_path) as log:
        topic = log.topic("t", create=True)
        with pytest.raises(InvalidTimestampError, match="row 70000 ") as caught:
            topic.append_arrow(pa.table({"value": [b"v"] * 70_001, "timestamp": [*[T0] * 70_000, -1]}))
        assert (caught.value.index, topic.positions(0).end_offset) == (70_000, 0)


# -- out ---------------------------------------------------------------------------------------------------------------


def test_record_batches_come_one_by_one(tmp_path: Path) -> None:
    """Nothing is read ahead of what was asked for but the rest of a piece; none is larger than it should be."""
    with tiered.open(tmp_path / "log", remote=f"file://{tmp_path / 'bucket'}") as log:
        topic = log.topic("t", partitions=2, create=True, config={"segment.bytes": 2_000_000})
        for at in range(0, 200_000, 10_000):
            topic.append_many(
                [NewRecord(b"%06d" % i, b"k", T0 + i) for i in range(at, at + 10_000)], partition=at // 10_000 % 2
            )
        log.sync(60)
        topic.append(b"local", partition=1, timestamp=T0)
        found = topic.read_batches(columns=["partition", "offset", "value"])
        assert found.schema.names == ["partition", "offset", "value"]
        batches = iter(found)
        first = next(batches)
        before = log.request_counts.snapshot()
        assert first.num_rows <= 2 * RECORD_BATCH_ROWS
        assert log.request_counts.snapshot() == before
        rest = list(batches)
        assert len(rest) > 1
        whole = pa.Table.from_batches([first, *rest])
        records = list(topic.read())
        assert whole.column("value").to_pylist() == [r.value for r in records]
        assert whole.column("offset").to_pylist() == [r.offset for r in records]
        assert pa.table(found).num_rows == 0  # it can be gone through once
        part = pa.table(topic.read_batches(0, start=5, end=8, columns=["offset"]))
        assert part.to_pydict() == {"offset": [5, 6, 7]}
        timed = pa.table(topic.read_batches(since=T0 + 7, until=T0 + 9, columns=["value"]))
        assert timed.to_pydict() == {"value": [b"000007", b"000008"]}
    with tiered.open_reader(f"file://{tmp_path / 'bucket'}") as reader:
        assert pa.table(reader.topic("t").read_batches(columns=["value"])).equals(
            reader.to_arrow("t", columns=["value"])
        )


def test_a_read_is_a_stream_of_arrows_c_interface(tmp_path: Path) -> None:
    with tiered.open(tmp_path) as log:
        topic = log.topic("t", create=True)
        topic.append(b"v", key=b"k", timestamp=T0, headers=[("a", b"b")])
        stream = pa.RecordBatchReader.from_stream(topic.read_batches())
        assert stream.schema.names == [
            "key",
            "value",
            "topic",
            "partition",
            "offset",
            "timestamp",
            "timestampType",
            "headers",
        ]
        (row,) = stream.read_all().to_pylist()
        assert (row["value"], row["offset"], row["headers"]) == (b"v", 0, [{"key": "a", "value": b"b"}])
        narrow = topic.read_batches(columns=["offset"])
        wider = pa.RecordBatchReader.from_stream(narrow, schema=pa.schema([("offset", pa.int64())]))
        assert wider.read_all().to_pydict() == {"offset": [0]}
        with pytest.raises(ConfigError, match="columns='nope'"):
            topic.read_batches(columns=["nope"])


def test_damage_ends_the_stream(tmp_path: Path) -> None:
    with tiered.open(tmp_path) as log:
        topic = log.topic("t", create=True)
        topic.append_many([b"v" * 100] * 3)
        path = tmp_path / "t-0" / f"{0:020}.log"
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        with path.open("r+b") as file:
            file.write(data)
        for whole in (lambda: list(topic.read_batches()), lambda: pa.table(topic.read_batches())):
            with pytest.raises((CorruptionError, pa.ArrowInvalid), match="CRC"):
                whole()


def test_read_committed_leaves_out_what_read_does(tmp_path: Path) -> None:
    with tiered.open(tmp_path) as log:
        topic = log.topic("t", create=True)
        topic.append(b"1")
        aborted = topic.transaction("a")
        aborted.append(b"2")
        aborted.abort()
        topic.append(b"3")
        held = topic.transaction("b")
        held.append(b"4")
        for isolation, values in (("read_committed", [b"1", b"3"]), ("read_uncommitted", [b"1", b"2", b"3", b"4"])):
            read = pa.table(topic.read_batches(isolation=isolation, columns=["value"]))
            assert read.column("value").to_pylist() == [r.value for r in topic.read(isolation=isolation)] == values
        held.abort()


async def test_the_same_for_asyncio(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.topic("t", partitions=2, create=True)
        written = await topic.append_arrow(pa.table({"value": [b"1", b"2"], "key": ["a", "b"]}), durability="disk")
        assert sum(md.end_offset - md.offset for md in written) == 2
        found = [b async for b in topic.read_batches(columns=["value"])]
        assert pa.Table.from_batches(found).column("value").to_pylist() == [r.value async for r in topic.read()]
        with pytest.raises(ConfigError, match="columns='nope'"):
            await anext(topic.read_batches(columns=["nope"]))  # type: ignore[arg-type]  # an async generator
        with pytest.raises(ConfigError, match="no column `value`"):
            await topic.append_arrow(pa.table({"key": ["a"]}))
