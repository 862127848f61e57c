r"""Parser of the options of the Spark source, batch and stream. Names and rules are those of Spark's Kafka source.

========================================  =============================================================================
``path``                                  URL of the remote tier (also as ``load(path)``); may be left out with
                                          ``local_dir``
``endpoint_url``, ``region``              of an S3 server that is not AWS
``expected_bucket_owner``                 account id that must own the bucket
``subscribe``                             topics, comma-separated        \
``subscribePattern``                      a regular expression            > exactly one of the three
``assign``                                ``{"flights": [0, 2]}``        /
``startingOffsets``                       ``earliest`` (default), or ``{"flights": {"0": 23, "1": -2}}`` (-2 earliest),
                                          or ``group:NAME``: the positions of a group
``endingOffsets``                         ``latest`` (default), or the same JSON (-1 latest); exclusive
``startingTimestamp``                     ms; wins over ``startingOffsetsByTimestamp`` (``{"flights": {"0": ms}}``),
                                          which wins over ``startingOffsets``; ``endingTimestamp`` likewise
``startingOffsetsByTimestampStrategy``    ``error`` (default) or ``latest``: if no record is that late
``minPartitions``, ``slice_bytes``        at least so many tasks; bytes of one task (128 MiB)
``maxRecordsPerPartition``                most offsets of one task; as in Kafka, gaps of compaction count
``includeHeaders``                        adds the column ``headers``
``isolation.level``                       ``read_uncommitted`` (default) or ``read_committed``
``failOnDataLoss``                        true (default): missing offsets are an error, when the query is planned
                                          and while it runs; false: they are skipped, and counted in a warning
``asOf``                                  an older state: a snapshot's name, a version or a time; no ``local_dir``
``local_dir``                             log directory that driver and executors can both read, for the newest
                                          records; older ones are read from the bucket
========================================  =============================================================================

A stream has these, without its end and ``asOf``. Its ``startingOffsets`` counts for a new query alone: a
restarted one continues at its checkpoint. The default is ``latest``. An offset that Spark shows in a query's progress
is accepted, too. A stream also has limits of a trigger:

========================================  =============================================================================
``maxOffsetsPerTrigger``                  most offsets of one batch, shared in proportion to the sizes of the
                                          partitions; at least one of each that has any
``maxBytesPerTrigger``                    the same in bytes of the log (``512m``), by the catalog
``minOffsetsPerTrigger``                  no batch before so many offsets wait ...
``maxTriggerDelay``                       ... or the last one is so long ago (15m)
========================================  =============================================================================

Users copy their options from a query on a broker. Options of Kafka's source without a meaning here are refused, with
their replacement, so that no option is silently ignored.

Credentials are not options, because options are part of the query plan. They come from the environment of driver and
workers.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tiered.arguments import at_home
from tiered.clock import SystemClock
from tiered.config import parse_bytes, parse_duration_ms
from tiered.errors import ConfigError
from tiered.format.json_schema import INT64_MAX
from tiered.format.keys import check_group_name, check_topic_name
from tiered.model import TopicPartition
from tiered.remote.snapshots import AsOf
from tiered.spark.stream_offsets import PerPartition, StreamOffset, per_partition

EARLIEST = -2
LATEST = -1
GROUP_WORD = "group:"
SLICE_BYTES = 128 * 1024 * 1024
MIN_SLICE_BYTES = 64 * 1024
MAX_SLICES = 100_000
"""Most tasks of one query: the driver holds and sends a description of each."""

NAMES = (
    "path",
    "endpoint_url",
    "region",
    "expected_bucket_owner",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "slice_bytes",
    "includeHeaders",
    "isolation.level",
    "failOnDataLoss",
    "asOf",
    "local_dir",
)
_SECRETS = re.compile(r"secret|password|access.?key|session.?token", re.IGNORECASE)

_MAX_DIGITS = len(str(INT64_MAX))

T = TypeVar("T")

_LOGIN = (
    "leave it out: there is no broker to log in to; driver and executors take the bucket's credentials from their "
    "environment, profile or instance role"
)

_GROUP = "leave it out: there is no consumer group to join; startingOffsets=group:NAME begins at the positions of one"
_POLLING = "leave it out: nothing is polled, and requests to the bucket are retried automatically"
_STREAM = (
    "leave it out: it belongs to a stream (readStream); a batch query is bounded by endingOffsets or endingTimestamp"
)
_BYTES = 'option("slice_bytes", "128m"): bytes of one task; read-ahead is bounded automatically'
_COLUMNS = "leave it out: key and value are binary; select cast(key as string), cast(value as string)"
_REPLACED = {
    "kafka.bootstrap.servers": 'leave it out: there is no broker; .load("s3://bucket/prefix") names the log',
    "kafka.group.id": _GROUP,
    "groupidprefix": _GROUP,
    "kafka.client.id": _GROUP,
    "kafka.client.rack": "leave it out: there is no broker to be near to",
    "kafka.isolation.level": 'option("isolation.level", "read_committed")',
    "kafka.auto.offset.reset": 'option("startingOffsets", "earliest"), and failOnDataLoss=false where offsets are gone',
    "kafka.enable.auto.commit": _GROUP,
    "kafka.auto.commit.interval.ms": _GROUP,
    "kafka.max.poll.records": 'option("maxRecordsPerPartition", "1000000")',
    "kafka.max.partition.fetch.bytes": _BYTES,
    "kafka.fetch.max.bytes": _BYTES,
    "kafka.fetch.min.bytes": _BYTES,
    "kafka.receive.buffer.bytes": _BYTES,
    "kafka.check.crcs": "leave it out: the CRC of every batch is checked",
    "kafka.key.deserializer": _COLUMNS,
    "kafka.value.deserializer": _COLUMNS,
    "kafka.partition.assignment.strategy": 'option("minPartitions", "8") cuts the work; option("assign", ...) chooses',
    "minoffsetspertrigger": _STREAM,
    "maxoffsetspertrigger": _STREAM,
    "maxbytespertrigger": _STREAM,
    "maxtriggerdelay": _STREAM,
    "topic": 'option("subscribe", "flights"): topic is an option of writes',
}

_FAMILIES = (
    ("kafka.security.", _LOGIN),
    ("kafka.sasl.", _LOGIN),
    ("kafka.ssl.", _LOGIN),
    ("kafkaconsumer.", _POLLING),
    ("fetchoffset.", _POLLING),
    ("kafka.", "leave it out: it is a setting of a client of brokers, and there is no broker"),
)


@dataclass(frozen=True)
class Dialect:
    """Option names of one kind of query (batch or stream), hints for refused options, and the default start.

    ``replaced``: the hint for each refused option, by its name in lower case. ``start_words``: which of EARLIEST and
    LATEST may be the start. ``whose``: words for an error message, which name the owner of the refused options.
    """

    names: tuple[str, ...]
    replaced: Mapping[str, str]
    start: int
    start_words: tuple[int, ...]
    whose: str = "Kafka's source"


BATCH = Dialect(NAMES, _REPLACED, EARLIEST, (EARLIEST,))

_BARE = ("bootstrap.servers", "group.id", "security.protocol", "sasl.", "ssl.", "auto.offset.reset", "max.poll.records")


@dataclass(frozen=True)
class Bound:
    """Start or end of the range to read: an offset (-2 earliest, -1 latest) or a time in ms.

    The value is for all partitions or for each.

    At most one of ``timestamp``, ``timestamps``, ``offsets`` is set; without any, ``default`` counts. ``topic_ids``:
    ids of the topics, if the offsets are those of a stream. ``group``: begin at the positions of this group.
    """

    default: int
    timestamp: int | None = None
    timestamps: PerPartition | None = None
    offsets: PerPartition | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    group: str = ""

    def named(self) -> PerPartition | None:
        """Return the values by partition if the option lists partitions, otherwise None."""
        return self.timestamps if self.timestamps is not None else self.offsets


@dataclass(frozen=True)
class ReadOptions:
    """Options of a query, checked without reading the log.

    ``missing_start``: ``error`` or ``latest``, for a start time after the last record. ``max_records``: most offsets
    of one task, None without a limit. ``min_partitions``: least number of tasks. ``slice_bytes``: bytes of one task.
    """

    path: str | None
    local_dir: str | None
    endpoint_url: str | None = None
    region: str | None = None
    expected_bucket_owner: str | None = None
    subscribe: tuple[str, ...] = ()
    pattern: str | None = None
    assign: tuple[TopicPartition, ...] = ()
    start: Bound = field(default_factory=lambda: Bound(EARLIEST))
    end: Bound = field(default_factory=lambda: Bound(LATEST))
    missing_start: str = "error"
    min_partitions: int = 1
    max_records: int | None = None
    slice_bytes: int = SLICE_BYTES
    include_headers: bool = False
    read_committed: bool = False
    fail_on_data_loss: bool = True
    as_of: AsOf | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], dialect: Dialect = BATCH) -> ReadOptions:
        """Parse options of the kind of query that ``dialect`` describes.

        Raises ConfigError for an unknown or missing option, bad or conflicting values.
        """
        given = {key.lower(): str(value) for key, value in options.items()}
        check_names(given, dialect.names, lambda name: replacement(name, dialect), dialect.whose)
        path, local_dir = given.get("path"), given.get("local_dir")
        if not path and not local_dir:
            raise ConfigError(
                "option path is missing: Spark does not pass the path of a catalog table to a Python source",
                hint='load("s3://bucket/prefix"), option local_dir, or in SQL CREATE TEMPORARY VIEW name USING tiered '
                "OPTIONS (path 's3://bucket/prefix', subscribe 'topic')",
            )
        _check_subscription(given)
        if "asof" in given and local_dir:
            raise ConfigError(
                "options asOf and local_dir exclude each other",
                hint="leave one of them out: past versions exist only in a bucket",
            )
        return cls(
            path=path,
            local_dir=str(at_home("option local_dir", Path(local_dir))) if local_dir else local_dir,
            endpoint_url=given.get("endpoint_url"),
            region=given.get("region"),
            expected_bucket_owner=given.get("expected_bucket_owner"),
            subscribe=option_value(given, "subscribe", _topics, ()),
            pattern=option_value(given, "subscribePattern", _pattern, None),
            assign=option_value(given, "assign", _assigned, ()),
            start=_bound(given, "starting", dialect.start, dialect.start_words),
            end=_bound(given, "ending", LATEST, (LATEST,)),
            missing_start=option_value(
                given, "startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error"
            ),
            min_partitions=option_value(given, "minPartitions", _count, 1),
            max_records=option_value(given, "maxRecordsPerPartition", record_count, None),
            slice_bytes=option_value(given, "slice_bytes", _slice_bytes, SLICE_BYTES),
            include_headers=include_headers(given),
            read_committed=option_value(given, "isolation.level", _isolation, False),
            fail_on_data_loss=option_value(given, "failOnDataLoss", _flag, True),
            as_of=option_value(given, "asOf", _as_of, None),
        )


def include_headers(options: Mapping[str, str]) -> bool:
    """Return the value of the option ``includeHeaders``. Raises ConfigError unless it is true or false.

    Other options are not checked.
    """
    return option_value({key.lower(): str(value) for key, value in options.items()}, "includeHeaders", _flag, False)


def check_names(given: Mapping[str, str], names: Sequence[str], instead: Callable[[str], str], whose: str) -> None:
    """Raise ConfigError for an option in ``given`` (by name in lower case) that is not in ``names``.

    ``instead`` returns a hint for a known option that has no meaning here, or ``""``. ``whose``: the owner of such
    options in the error message, for example "Kafka's source".
    """
    known = {name.lower(): name for name in names}
    for key in given:
        if key in known:
            continue
        line = instead(key)
        if line:
            raise ConfigError(f"option {key} of {whose} is refused", hint=line)
        if _SECRETS.search(key):
            raise ConfigError(
                f"option {key} is refused: options are part of the query plan and its logs",
                hint="give credentials to driver and executors by environment, profile or instance role",
            )
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        raise ConfigError(
            f"unknown option {key}", hint=f"did you mean {known[near[0]]}?" if near else f"options: {', '.join(names)}"
        )


def _check_subscription(given: Mapping[str, str]) -> None:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(chosen) != 1:
        raise ConfigError(
            f"options {' and '.join(chosen)} exclude each other" if chosen else "no topic was chosen",
            hint="give exactly one of subscribe, subscribePattern, assign",
        )


def option_value(given: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    """Return the parsed option ``name``, or ``default`` without it. ``given``: options by name in lower case.

    Raises ConfigError with the option's name if ``parse`` raises ConfigError.
    """
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"option {name}={_shown(text)}: {error.message}", hint=error.hint) from None


def _bound(given: Mapping[str, str], side: str, default: int, words: tuple[int, ...]) -> Bound:
    timestamp = option_value(given, f"{side}Timestamp", _milliseconds, None)
    if timestamp is not None:
        return Bound(default, timestamp=timestamp)
    timestamps = option_value(given, f"{side}OffsetsByTimestamp", _numbers, None)
    if timestamps is not None:
        return Bound(default, timestamps=timestamps)
    return option_value(given, f"{side}Offsets", lambda text: _offsets(text, words), Bound(default))


def _offsets(text: str, words: tuple[int, ...]) -> Bound:
    """Return the start or end of the range from the text of ``startingOffsets`` or ``endingOffsets``.

    ``words``: those of EARLIEST and LATEST that this option accepts. Raises ConfigError for
    other words, negative offsets, and text that is not JSON.
    """
    word = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if word is not None:
        if word not in words:
            raise _wrong_end(words[0])
        return Bound(word)
    if text.strip().startswith(GROUP_WORD) and EARLIEST in words:
        return Bound(EARLIEST, group=check_group_name(text.strip().removeprefix(GROUP_WORD)))
    choices = [
        *(["earliest", f"{GROUP_WORD}NAME"] if EARLIEST in words else []),
        *(["latest"] if LATEST in words else []),
    ]
    example = f"""{", ".join(choices)} or {{"flights": {{"0": 23, "1": 5}}}}"""
    given = StreamOffset.from_json(_json(text, example))
    for tp, offset in given.offsets.items():
        if offset in (EARLIEST, LATEST) and offset not in words:
            raise ConfigError(f"{tp}: {_wrong_end(words[0]).message}", hint=_wrong_end(words[0]).hint)
        if offset < 0 and offset not in words:
            names = {EARLIEST: "-2 (earliest)", LATEST: "-1 (latest)"}
            allowed = " or ".join(names[word] for word in words)
            raise ConfigError(f"{tp}: {offset} is not an offset", hint=f"use 0 or more, or {allowed}")
    return Bound(words[0], offsets=given.offsets, topic_ids=given.topic_ids)


def _wrong_end(default: int) -> ConfigError:
    if default == EARLIEST:
        return ConfigError("a batch query cannot start at the latest offset", hint="use earliest, offsets or a time")
    return ConfigError("a batch query cannot end at the earliest offset", hint="use latest, offsets or a time")


def _json(text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"it is not JSON ({error})", hint=f"for example {example}") from None
    if not isinstance(value, dict) or not value:
        raise ConfigError("it is not a JSON object of topics", hint=f"for example {example}")
    return value


def _numbers(text: str) -> PerPartition:
    return per_partition(_json(text, '{"flights": {"0": 23, "1": 5}}'))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = '{"flights": [0, 2]}'
    found: set[TopicPartition] = set()
    for topic, partitions in _json(text, example).items():
        check_topic_name(topic)
        whole = isinstance(partitions, list) and all(type(p) is int and p >= 0 for p in partitions)
        if not whole:
            raise ConfigError(f"the value of {topic} is not a list of partitions", hint=f"for example {example}")
        found.update(TopicPartition(topic, partition) for partition in partitions)
    return tuple(sorted(found))


def _topics(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("no topic was named", hint="for example flights,weather")
    return tuple(sorted({check_topic_name(name) for name in names}))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"it is not a regular expression ({error})", hint="for example flights-.*") from None
    return text


def _as_of(text: str) -> AsOf:
    return AsOf.parse(text, now_ms=SystemClock().now_ms())


def _milliseconds(text: str) -> int:
    return _number(text, 0, INT64_MAX, "a time in milliseconds since 1970", hint="for example 1700000000000")


def _count(text: str) -> int:
    return _number(text, 1, MAX_SLICES, f"a number of tasks from 1 to {MAX_SLICES}")


def record_count(text: str) -> int:
    """Return ``text`` as a number of records. Raises ConfigError unless it is a whole number of at least 1."""
    return _number(text, 1, INT64_MAX, "a number of records from 1 on", hint="for example 1000000")


def _number(text: str, low: int, high: int, what: str, hint: str = "") -> int:
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > _MAX_DIGITS or not low <= int(digits) <= high:
        raise ConfigError(f"it is not {what}", hint=hint)
    return int(digits)


def _slice_bytes(text: str) -> int:
    size = parse_bytes(text)
    if size < MIN_SLICE_BYTES:
        raise ConfigError(
            f"it is below the minimum of {MIN_SLICE_BYTES} bytes", hint="use 64m to 256m: each task costs about 70 ms"
        )
    return size


def _flag(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


def _isolation(text: str) -> bool:
    return _one_of("read_uncommitted", "read_committed")(text) == "read_committed"


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip().lower() not in words:
            raise ConfigError(f"it is not one of {', '.join(words)}")
        return text.strip().lower()

    return parse


def _shown(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def replacement(name: str, dialect: Dialect = BATCH) -> str:
    """Return a hint that says what to use instead of the option ``name`` (in lower case), which ``dialect`` refuses.

    ``""`` for a name that is neither an option of Kafka nor of this library.
    """
    if name.startswith(_BARE):  # as a Kafka client's properties have it, without Spark's prefix
        name = f"kafka.{name}"
    if name in dialect.replaced:
        return dialect.replaced[name]
    return next((line for prefix, line in _FAMILIES if name.startswith(prefix)), "")


MAX_TRIGGER_DELAY_MS = 15 * 60_000
"""Longest delay of a batch by ``minOffsetsPerTrigger``, as in Kafka's source."""

_OWN = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay")
_ENDLESS = "leave it out: a stream has no end; .trigger(availableNow=True) ends it at what there is when it begins"
_ENDINGS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

STREAM = Dialect(
    names=(*(name for name in BATCH.names if name not in (*_ENDINGS, "asOf")), *_OWN),
    replaced={
        **{name: line for name, line in BATCH.replaced.items() if name not in {own.lower() for own in _OWN}},
        **{name.lower(): _ENDLESS for name in _ENDINGS},
        "asof": "leave it out: a stream goes on; startingOffsets or startingTimestamp says where it begins",
        "kafka.max.poll.records": 'option("maxOffsetsPerTrigger", "1000000")',
    },
    start=LATEST,
    start_words=(LATEST, EARLIEST),
    whose="Kafka's source or of a batch query",
)


@dataclass(frozen=True)
class StreamOptions:
    """Options of a stream, and limits of one micro-batch (None: no limit).

    No batch begins before ``min_offsets`` offsets wait, or the last batch is ``max_delay_ms`` ago.
    """

    read: ReadOptions
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_TRIGGER_DELAY_MS

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Parse options. Raises ConfigError for an unknown or missing option, bad or conflicting values."""
        given = {key.lower(): str(value) for key, value in options.items()}
        found = cls(
            read=ReadOptions.parse(options, STREAM),
            max_offsets=option_value(given, "maxOffsetsPerTrigger", record_count, None),
            max_bytes=option_value(given, "maxBytesPerTrigger", _size, None),
            min_offsets=option_value(given, "minOffsetsPerTrigger", record_count, None),
            max_delay_ms=option_value(given, "maxTriggerDelay", _delay, MAX_TRIGGER_DELAY_MS),
        )
        if found.max_offsets is not None and found.min_offsets is not None and found.min_offsets > found.max_offsets:
            raise ConfigError(
                f"option minOffsetsPerTrigger={found.min_offsets} is above maxOffsetsPerTrigger={found.max_offsets}",
                hint="lower minOffsetsPerTrigger, or raise maxOffsetsPerTrigger",
            )
        return found


def _size(text: str) -> int:
    size = parse_bytes(text)
    if size < 1:
        raise ConfigError("it is not a size of at least 1 byte", hint="for example 512m")
    return size


def _delay(text: str) -> int:
    delay_ms = parse_duration_ms(text)
    if delay_ms < 0:
        raise ConfigError("it is not a duration of 0 or more", hint="for example 15m")
    return delay_ms
