"""Parser of the options of a stream: those of a batch query, without its end, and limits of a trigger.

========================================  =============================================================================
``startingOffsets``                       of a new query: ``latest`` (default), ``earliest``, or
                                          ``{"flights": {"0": 23, "1": -1}}`` (-2 earliest, -1 latest); an offset that
                                          Spark shows in a query's progress is accepted, too. A restarted query
                                          continues at its checkpoint
``maxOffsetsPerTrigger``                  most offsets of one batch, shared in proportion to the sizes of the
                                          partitions; at least one of each that has any
``maxBytesPerTrigger``                    the same in bytes of the log (``512m``), by the catalog
``minOffsetsPerTrigger``                  no batch before so many offsets wait ...
``maxTriggerDelay``                       ... or the last one is so long ago (15m)
========================================  =============================================================================

The others are those of a batch query: ``tiered.spark.options``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiered.config import parse_bytes, parse_duration_ms
from tiered.errors import ConfigError
from tiered.spark.options import BATCH, EARLIEST, LATEST, Dialect, ReadOptions, option_value, record_count

MAX_TRIGGER_DELAY_MS = 15 * 60_000
"""Longest delay of a batch by ``minOffsetsPerTrigger``, as in Kafka's source."""

_OWN = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay")
_ENDLESS = "leave it out: a stream has no end; .trigger(availableNow=True) ends it at what there is when it begins"
_ENDINGS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

STREAM = Dialect(
    names=(*(name for name in BATCH.names if name not in (*_ENDINGS, "asOf", "pin")), *_OWN),
    replaced={
        **{name: line for name, line in BATCH.replaced.items() if name not in {own.lower() for own in _OWN}},
        **{name.lower(): _ENDLESS for name in _ENDINGS},
        "asof": "leave it out: a stream goes on; startingOffsets or startingTimestamp says where it begins",
        "pin": "leave it out: a stream reads each batch soon after it is planned, and holds nothing between two",
        "kafka.max.poll.records": 'option("maxOffsetsPerTrigger", "1000000")',
    },
    start=LATEST,
    start_words=(LATEST, EARLIEST),
    whose="Kafka's source or of a batch query",
)


@dataclass(frozen=True)
class StreamOptions:
    """Options of a stream, and limits of a trigger; None: no limit."""

    read: ReadOptions
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_TRIGGER_DELAY_MS

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Parse options. Raises ConfigError, in one sentence, for an unknown option, bad or conflicting values."""
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
                hint="a trigger would wait for more than it may read: correct one of the two",
            )
        return found


def _size(text: str) -> int:
    size = parse_bytes(text)
    if size < 1:
        raise ConfigError("it is not a size from 1 byte on", hint="for example 512m")
    return size


def _delay(text: str) -> int:
    delay_ms = parse_duration_ms(text)
    if delay_ms < 0:
        raise ConfigError("it is not a duration from 0 on", hint="for example 15m")
    return delay_ms
