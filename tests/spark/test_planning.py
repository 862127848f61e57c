"""Planning without a Spark session: pages give the same pieces as rows in the root do; what lies in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.support.both_catalogs import PAGE_ROWS, Pages, pages, use_pages
from tests.support.uploaded import upload_topics
from tiered.config import TopicConfig
from tiered.errors import ConfigError, CorruptionError, UnknownTopicError
from tiered.format.keys import FLAG_ABORTED_TXNS
from tiered.group.admin import reset_group
from tiered.model import NewRecord, Position, TopicPartition
from tiered.spark.options import ReadOptions, StreamOptions
from tiered.spark.ranges import resolve_pieces
from tiered.spark.schema import kafka_schema
from tiered.spark.slices import PartitionSlice, cut_slices
from tiered.spark.stream import TieredStreamReader
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.testing.clock import START_MS

__all__ = ["pages"]

TOPIC = "flights"
SETTINGS = TopicConfig.from_properties({"segment.bytes": 4096, "index.interval.bytes": 200})


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    """A bucket of many small segments, some with aborted transactions."""
    url = f"file://{tmp_path / 'bucket'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic(TOPIC, create=True, config=SETTINGS)
        for at in range(0, 300, 10):
            topic.append_many([NewRecord(b"v" * 100, None, START_MS + at + each) for each in range(10)])
            if at % 60 == 0:
                with topic.transaction("billing") as txn:
                    txn.append(b"never", timestamp=START_MS + at)
                    txn.abort()
        log.sync(timeout=60)
    return url


OPTIONS = [
    {},
    {"isolation.level": "read_committed"},
    {"startingOffsets": '{"flights": {"0": 17}}', "endingOffsets": '{"flights": {"0": 203}}'},
    {"startingTimestamp": str(START_MS + 120)},
]


def planned(url: str, more: dict[str, str]) -> list[PartitionSlice]:
    store = open_store(url)
    return resolve_pieces(ReadOptions.parse({"path": url, "subscribe": TOPIC, **more}), store)


@pytest.mark.parametrize("more", OPTIONS, ids=["all", "committed", "offsets", "times"])
def test_the_pieces_are_those_of_a_catalog_without_pages(
    bucket: str, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = planned(bucket, more)
    assert len(expected[0].rows) > PAGE_ROWS
    with monkeypatch.context() as patch:
        seen = use_pages(patch.setattr)
        found = planned(bucket, more)
    assert found == expected
    assert cut_slices(found, slice_bytes=4096) == cut_slices(expected, slice_bytes=4096)
    assert seen.rows > 3 * PAGE_ROWS
    assert seen.read >= len(expected[0].rows) // PAGE_ROWS


def test_aborted_transactions_are_looked_for_where_pages_say_there_are_some(bucket: str, pages: Pages) -> None:
    (piece,) = planned(bucket, {"isolation.level": "read_committed"})
    assert len(piece.aborted) == 5
    assert {row.flags & FLAG_ABORTED_TXNS for row in piece.rows} == {0, FLAG_ABORTED_TXNS}


def test_a_partition_that_does_not_lie_in_the_directory_is_said_to_be_missing(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    with tiered.open([tmp_path / "x", tmp_path / "y"], url) as log:
        topic = log.topic(TOPIC, partitions=2, create=True)
        for partition in (0, 1):
            topic.append_many([b"sent"] * 5, partition=partition)
        log.sync(timeout=30)
        topic.append(b"only here", partition=0, durability="disk")
    held = next(tmp_path.glob(f"?/{TOPIC}-0"))
    alone = {"local_dir": str(held.parent)}
    both = {"path": url, **alone}
    store = open_store(url)

    def ends(options: dict[str, str]) -> list[tuple[int, int, int]]:
        pieces = resolve_pieces(ReadOptions.parse(options), store if "path" in options else None)
        return [(piece.tp.partition, piece.start, piece.end) for piece in pieces]

    assert ends({**alone, "assign": f'{{"{TOPIC}": [0]}}'}) == [(0, 0, 6)]
    with pytest.raises(UnknownTopicError, match=f"holds no partition {TOPIC}-1"):
        ends({**alone, "subscribe": TOPIC})
    assert ends({**both, "subscribe": TOPIC}) == [(0, 0, 6), (1, 0, 5)]
    held.rename(tmp_path / "kept")
    for options in (alone, both):
        with pytest.raises(CorruptionError, match="it held records up to offset 6"):
            ends({**options, "assign": f'{{"{TOPIC}": [0]}}'})
    assert ends({"path": url, "subscribe": TOPIC}) == [(0, 0, 5), (1, 0, 5)]


def begun(url: str, start: str, **more: str) -> dict[int, int]:
    """First offset of each partition: that of a batch query, which a stream without a checkpoint has, too."""
    given = {"path": url, "subscribe": "t", "startingOffsets": start, **more}
    stream = TieredStreamReader(StreamOptions.parse(given), kafka_schema(include_headers=False))
    offsets = {int(number): offset for number, offset in stream.initialOffset()["t"].items()}
    stream.stop()
    pieces = resolve_pieces(ReadOptions.parse(given), open_store(url))
    firsts = {
        tp.partition: min(piece.start for piece in pieces if piece.tp == tp) for tp in {each.tp for each in pieces}
    }
    assert firsts == offsets
    return offsets


def test_a_query_begins_at_the_positions_of_a_group(tmp_path: Path) -> None:
    """A partition without a position is read from its start."""
    url = upload_topics(tmp_path, {"segment.bytes": 1000}, partitions=2)
    with tiered.open(tmp_path / "log", remote=url) as log:
        log.sync()
        log._local.transactions.positions.commit("of log", {TopicPartition("t", 1): Position(7)})
        log.sync()
    with tiered.open_reader(url) as reader:
        ids = {TopicPartition("t", 0): (reader.topics()["t"].topic_id, 5)}
    drive(open_store(url), reset_group("of bucket", ids))
    assert begun(url, "group:of log") == {0: 0, 1: 7}
    assert begun(url, " group:of bucket ") == {0: 5, 1: 0}
    assert begun(url, "group:of log", local_dir=str(tmp_path / "log")) == {0: 0, 1: 7}
    for name, why in (("nothing", "has no position in t"), ("", "group name")):
        with pytest.raises(ConfigError, match=why):
            begun(url, f"group:{name}")
    with pytest.raises(ConfigError, match="endingOffsets"):
        ReadOptions.parse({"path": url, "subscribe": "t", "endingOffsets": "group:of log"})
