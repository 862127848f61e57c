"""Options of the source, batch and stream, without a session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tiered.errors import ConfigError
from tiered.model import TopicPartition
from tiered.spark.options import (
    BATCH,
    EARLIEST,
    LATEST,
    MAX_TRIGGER_DELAY_MS,
    STREAM,
    Bound,
    ReadOptions,
    StreamOptions,
    replacement,
)

Parse = Callable[[dict[str, str]], object]

BASE = {"path": "s3://acme/prod", "subscribe": "flights"}
P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


def test_defaults_are_those_of_a_batch_query_on_kafka() -> None:
    options = ReadOptions.parse(BASE)
    assert options == ReadOptions("s3://acme/prod", None, subscribe=("flights",))
    assert (options.start, options.end) == (Bound(EARLIEST), Bound(LATEST))
    assert (options.slice_bytes, options.min_partitions, options.fail_on_data_loss) == (128 << 20, 1, True)


def test_every_option_is_read_whatever_its_case() -> None:
    given = {
        "path": "s3://acme/prod",
        "endpoint_url": "http://127.0.0.1:9000",
        "region": "eu-west-1",
        "assign": '{"flights": [1, 0]}',
        "startingOffsets": '{"flights": {"0": 23, "1": -2}}',
        "endingOffsets": '{"flights": {"0": 50, "1": -1}}',
        "startingOffsetsByTimestampStrategy": "LATEST",
        "minPartitions": "7",
        "maxRecordsPerPartition": "1000",
        "slice_bytes": "64m",
        "includeHeaders": "True",
        "isolation.level": "read_committed",
        "failOnDataLoss": "false",
        "local_dir": "/data",
    }
    options = ReadOptions.parse({key.lower(): value for key, value in given.items()})
    assert options == ReadOptions(
        path="s3://acme/prod",
        local_dir="/data",
        endpoint_url="http://127.0.0.1:9000",
        region="eu-west-1",
        assign=(P0, P1),
        start=Bound(EARLIEST, offsets={P0: 23, P1: EARLIEST}),
        end=Bound(LATEST, offsets={P0: 50, P1: LATEST}),
        missing_start="latest",
        min_partitions=7,
        max_records=1000,
        slice_bytes=64 << 20,
        include_headers=True,
        read_committed=True,
        fail_on_data_loss=False,
    )
    assert ReadOptions.parse({"local_dir": "/data", "subscribePattern": "f.*"}).pattern == "f.*"
    assert ReadOptions.parse({**BASE, "subscribe": " b, a ,b"}).subscribe == ("a", "b")
    assert len(BATCH.names) == len(set(BATCH.names))


def test_times_win_over_offsets() -> None:
    both = {
        **BASE,
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"flights": {"0": 7}}',
        "startingOffsets": "earliest",
        "endingOffsetsByTimestamp": '{"flights": {"0": 9}}',
        "endingOffsets": '{"flights": {"0": 3}}',
    }
    options = ReadOptions.parse(both)
    assert options.start == Bound(EARLIEST, timestamp=5)
    assert options.end == Bound(LATEST, timestamps={P0: 9})
    assert options.end.named() == {P0: 9}


def stream(**more: str) -> StreamOptions:
    return StreamOptions.parse({**BASE, **{key.replace("__", "."): value for key, value in more.items()}})


def test_a_stream_begins_at_the_latest_offset_and_has_no_limits() -> None:
    read = ReadOptions("s3://acme/prod", None, subscribe=("flights",), start=Bound(LATEST))
    assert stream() == StreamOptions(read, None, None, None, MAX_TRIGGER_DELAY_MS)


def test_every_option_of_a_stream_is_read_whatever_its_case() -> None:
    found = stream(
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
    assert stream(startingOffsets="earliest").read.start == Bound(EARLIEST)
    assert stream(startingOffsets="latest").read.start == Bound(LATEST)
    assert stream(startingTimestamp="5").read.start == Bound(LATEST, timestamp=5)


WRONG: list[tuple[dict[str, str], str]] = [
    ({"path": ""}, "option path is missing"),
    ({"assign": '{"flights": [0]}'}, "options subscribe and assign exclude each other"),
    ({"startingOffset": "earliest"}, "unknown option startingoffset (did you mean startingOffsets?)"),
    ({"aws_secret_access_key": "x"}, "option aws_secret_access_key is refused"),
    ({"startingOffsets": "latest"}, "a batch query cannot start at the latest offset"),
    ({"endingOffsets": "earliest"}, "a batch query cannot end at the earliest offset"),
    ({"startingOffsets": '{"flights": {"0": -1}}'}, "flights-0: a batch query cannot start at the latest"),
    ({"endingOffsets": '{"flights": {"0": -2}}'}, "flights-0: a batch query cannot end at the earliest"),
    ({"startingOffsets": '{"flights": {"0": -3}}'}, "flights-0: -3 is not an offset"),
    ({"startingOffsets": '{"flights": {"0": "5"}}'}, "'5' is not a number"),
    ({"startingOffsets": '{"flights": 5}'}, "the value of flights is not an object of partitions"),
    ({"startingOffsets": "[1]"}, "it is not a JSON object of topics"),
    ({"startingOffsets": "first"}, """for example earliest, group:NAME or {"flights": {"0": 23"""),
    ({"endingOffsets": "last"}, """for example latest or {"flights": {"0": 23"""),
    ({"startingOffsets": "{"}, "option startingOffsets={: it is not JSON"),
    ({"startingTimestamp": "yesterday"}, "it is not a time in milliseconds since 1970"),
    ({"startingOffsetsByTimestampStrategy": "skip"}, "it is not one of error, latest"),
    ({"minPartitions": "0"}, "it is not a number of tasks"),
    ({"minPartitions": "9" * 5000}, "it is not a number of tasks"),
    ({"startingTimestamp": "9" * 5000}, "it is not a time in milliseconds since 1970"),
    ({"maxRecordsPerPartition": "0"}, "option maxRecordsPerPartition=0: it is not a number of records from 1 on"),
    ({"maxRecordsPerPartition": "9" * 20}, "it is not a number of records from 1 on"),
    ({"slice_bytes": "1k"}, "it is below the minimum of 65536 bytes"),
    ({"slice_bytes": "many"}, "option slice_bytes=many"),
    ({"includeHeaders": "yes"}, "it is not one of true, false"),
    ({"isolation.level": "serializable"}, "it is not one of read_uncommitted, read_committed"),
    ({"subscribe": " , "}, "no topic was named"),
    ({"subscribe": "a/b"}, "topic name 'a/b' is not allowed"),
]
WRONG_OF_A_STREAM: list[tuple[dict[str, str], str]] = [
    ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger=0: it is not a number of records from 1 on"),
    ({"maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger=0: it is not a size of at least 1 byte"),
    ({"maxTriggerDelay": "-1"}, "option maxTriggerDelay=-1: it is not a duration of 0 or more"),
    ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay=soon"),
    ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger=5 is above"),
    (
        {"startingOffsets": '{"flights": {"0": -3}}'},
        "flights-0: -3 is not an offset (use 0 or more, or -1 (latest) or -2 (earliest))",
    ),
    ({"maxOffsetPerTrigger": "4"}, "did you mean maxOffsetsPerTrigger?"),
]


@pytest.mark.parametrize(
    ("parse", "changed", "message"),
    [*((ReadOptions.parse, *row) for row in WRONG), *((StreamOptions.parse, *row) for row in WRONG_OF_A_STREAM)],
)
def test_a_wrong_option_is_one_sentence(parse: Parse, changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse({**BASE, **changed})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no topic was chosen"),
        ({"subscribePattern": "("}, "it is not a regular expression"),
        ({"assign": '{"flights": 1}'}, "the value of flights is not a list of partitions"),
        ({"assign": '{"flights": [true]}'}, "the value of flights is not a list of partitions"),
    ],
)
def test_a_wrong_subscription(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReadOptions.parse({"path": "s3://acme/prod", **options})


LOGIN = "there is no broker to log in to"


REPLACED = [
    ("kafka.bootstrap.servers", '.load("s3://bucket/prefix") names the log'),
    ("bootstrap.servers", '.load("s3://bucket/prefix") names the log'),
    ("kafka.group.id", "there is no consumer group"),
    ("groupIdPrefix", "there is no consumer group"),
    ("kafkaConsumer.pollTimeoutMs", "nothing is polled"),
    ("fetchOffset.numRetries", "retried automatically"),
    ("fetchOffset.retryIntervalMs", "retried automatically"),
    ("kafka.security.protocol", LOGIN),
    ("kafka.sasl.mechanism", LOGIN),
    ("kafka.sasl.jaas.config", LOGIN),
    ("kafka.ssl.truststore.password", LOGIN),
    ("kafka.isolation.level", 'option("isolation.level", "read_committed")'),
    ("kafka.auto.offset.reset", 'option("startingOffsets", "earliest")'),
    ("kafka.enable.auto.commit", "there is no consumer group"),
    ("kafka.max.poll.records", 'option("maxRecordsPerPartition"'),
    ("kafka.max.partition.fetch.bytes", 'option("slice_bytes"'),
    ("kafka.value.deserializer", "cast(value as string)"),
    ("kafka.request.timeout.ms", "there is no broker"),
    ("minOffsetsPerTrigger", "a batch query is bounded by endingOffsets"),
    ("maxOffsetsPerTrigger", "a batch query is bounded by endingOffsets"),
    ("maxTriggerDelay", "a batch query is bounded by endingOffsets"),
    ("topic", 'option("subscribe", "flights")'),
]
REPLACED_IN_A_STREAM = [
    ("kafka.max.poll.records", 'option("maxOffsetsPerTrigger"'),
    ("endingOffsets", ".trigger(availableNow=True)"),
    ("endingTimestamp", ".trigger(availableNow=True)"),
    ("endingOffsetsByTimestamp", ".trigger(availableNow=True)"),
    ("asOf", "startingTimestamp says where it begins"),
]


@pytest.mark.parametrize(
    ("parse", "whose", "name", "line"),
    [
        *((ReadOptions.parse, "Kafka's source", *row) for row in REPLACED),
        *((StreamOptions.parse, "Kafka's source or of a batch query", *row) for row in REPLACED_IN_A_STREAM),
    ],
)
def test_each_option_without_a_meaning_names_what_replaces_it(parse: Parse, whose: str, name: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse({**BASE, name.lower(): "s3cret"})
    told = str(error.value)
    assert told.startswith(f"option {name.lower()} of {whose} is refused (")
    assert line in told
    assert "s3cret" not in told
    assert "\n" not in told


def test_what_is_honoured_is_not_refused_as_kafkas() -> None:
    assert [name for name in BATCH.names if replacement(name.lower())] == []
    assert [name for name in STREAM.names if replacement(name.lower(), STREAM)] == []
