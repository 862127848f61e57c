"""Options of a stream, without a session."""

from __future__ import annotations

import pytest

from tiered.errors import ConfigError
from tiered.model import TopicPartition
from tiered.spark.options import (
    EARLIEST,
    LATEST,
    MAX_TRIGGER_DELAY_MS,
    STREAM,
    Bound,
    ReadOptions,
    StreamOptions,
    replacement,
)

BASE = {"path": "s3://acme/prod", "subscribe": "flights"}
P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


def parse(**more: str) -> StreamOptions:
    return StreamOptions.parse({**BASE, **{key.replace("__", "."): value for key, value in more.items()}})


def test_a_stream_begins_at_the_latest_offset_and_has_no_limits() -> None:
    read = ReadOptions("s3://acme/prod", None, subscribe=("flights",), start=Bound(LATEST))
    assert parse() == StreamOptions(read, None, None, None, MAX_TRIGGER_DELAY_MS)


def test_every_option_is_read_whatever_its_case() -> None:
    found = parse(
        MAXOFFSETSPERTRIGGER="100",
        minoffsetspertrigger="10",
        maxBytesPerTrigger="512m",
        maxTriggerDelay="90s",
        startingOffsets='{"flights": {"0": -1, "1": -2}}',
        isolation__level="read_committed",
        minPartitions="3",
    )
    assert (found.max_offsets, found.min_offsets, found.max_bytes, found.max_delay_ms) == (100, 10, 512 << 20, 90_000)
    assert found.read.start == Bound(LATEST, offsets={P0: LATEST, P1: EARLIEST})
    assert (found.read.read_committed, found.read.min_partitions) == (True, 3)
    assert parse(startingOffsets="earliest").read.start == Bound(EARLIEST)
    assert parse(startingOffsets="latest").read.start == Bound(LATEST)
    assert parse(startingTimestamp="5").read.start == Bound(LATEST, timestamp=5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger=0: it is not a number of records from 1 on"),
        ({"maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger=0: it is not a size from 1 byte on"),
        ({"maxTriggerDelay": "-1"}, "option maxTriggerDelay=-1: it is not a duration from 0 on"),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay=soon"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger=5 is above"),
        (
            {"startingOffsets": '{"flights": {"0": -3}}'},
            "flights-0: -3 is not an offset (0 or more, or -1 (latest) or -2 (earliest))",
        ),
        ({"maxOffsetPerTrigger": "4"}, "did you mean maxOffsetsPerTrigger?"),
        ({"subscribePattern": ".*"}, "options subscribe and subscribePattern exclude each other"),
    ],
)
def test_a_wrong_option_is_one_sentence(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        StreamOptions.parse({**BASE, **changed})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("kafka.bootstrap.servers", '.load("s3://bucket/prefix") names the log'),
        ("kafka.group.id", "there is no consumer group"),
        ("kafka.max.poll.records", 'option("maxOffsetsPerTrigger"'),
        ("endingOffsets", ".trigger(availableNow=True)"),
        ("endingTimestamp", ".trigger(availableNow=True)"),
        ("endingOffsetsByTimestamp", ".trigger(availableNow=True)"),
        ("asOf", "startingTimestamp says where it begins"),
        ("pin", "holds nothing between two"),
        ("topic", 'option("subscribe", "flights")'),
    ],
)
def test_each_option_without_a_meaning_names_what_replaces_it(name: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        StreamOptions.parse({**BASE, name: "s3cret"})
    assert str(error.value).startswith(f"option {name.lower()} of Kafka's source or of a batch query is refused (")
    assert line in str(error.value)
    assert "s3cret" not in str(error.value)


def test_what_is_honoured_is_not_refused_as_kafkas() -> None:
    assert [name for name in STREAM.names if replacement(name.lower(), STREAM)] == []
