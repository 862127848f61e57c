"""Settings: Kafka's names, defaults, ranges, contradictions."""

from __future__ import annotations

from typing import Any

import pytest

from tiered.config import LogConfig, TopicConfig, parse_bytes, parse_duration_ms
from tiered.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 2**26),
        ("64m", 2**26),
        ("64MB", 64_000_000),
        (7, 7),
        ("-1", -1),
        (" 1.5 KiB ", 1536),
        ("0", 0),
        ("2g", 2**31),
    ],
)
def test_sizes(text: int | str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "ms"),
    [("7d", 604_800_000), ("90s", 90_000), ("1.5h", 5_400_000), (0, 0), ("-1", -1), ("2w", 1_209_600_000)],
)
def test_durations(text: int | str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", [30, "30", " 0.5 "])
def test_a_duration_without_a_unit_is_refused_but_in_a_setting_of_a_topic(text: int | str) -> None:
    bare = str(text).strip()
    with pytest.raises(ConfigError) as raised:
        parse_duration_ms(text)
    assert (raised.value.message, raised.value.hint) == (f"{bare} has no unit", f"write {bare}s for seconds")
    assert TopicConfig.from_properties({"seal.ms": "30", "flush.ms": 30}).to_properties(changed_only=True) == {
        "seal.ms": 30,
        "flush.ms": 30,
    }


@pytest.mark.parametrize("text", ["", "64 parsecs", "0.3", "1e9", "--1", "MiB", "9" * 100, True])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(ConfigError):
        parse_bytes(text)


def test_defaults_are_kafkas_but_for_what_the_log_says_of_itself() -> None:
    properties = TopicConfig().to_properties()
    ours = {
        "segment.bytes": 64 * 1024 * 1024,
        "seal.ms": 600_000,
        "retention.ms": -1,
        "local.retention.ms": -1,
        "local.retention.bytes": -1,
        "merge.idle.ms": 3_600_000,
        "merge.min.bytes": -1,
        "merge.target.bytes": -1,
        "gc.grace.ms": 86_400_000,
    }
    kafkas = {
        "segment.ms": 604_800_000,
        "segment.jitter.ms": 0,
        "segment.index.bytes": 10_485_760,
        "index.interval.bytes": 4096,
        "flush.messages": 2**63 - 1,
        "flush.ms": 2**63 - 1,
        "retention.bytes": -1,
        "max.message.bytes": 1_048_588,
        "cleanup.policy": "delete",
        "delete.retention.ms": 86_400_000,
        "min.compaction.lag.ms": 0,
        "max.compaction.lag.ms": 2**63 - 1,
        "min.cleanable.dirty.ratio": 0.5,
        "file.delete.delay.ms": 60_000,
        "compression.type": "producer",
        "compression.gzip.level": -1,
        "compression.lz4.level": 1,
        "compression.zstd.level": 3,
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": 2**63 - 1,
        "message.timestamp.after.max.ms": 3_600_000,
    }
    assert properties == {**kafkas, **ours}


def test_both_spellings_and_units() -> None:
    config = TopicConfig.from_properties(
        {"segment.bytes": "1MiB", "seal_ms": "5s", "cleanup.policy": ["compact", "delete"]}
    )
    assert (config.segment_bytes, config.seal_ms, config.cleanup_policy) == (
        2**20,
        5000,
        "compact,delete",
    )
    assert config.compacted
    assert config.deletes
    assert TopicConfig.from_properties(config.to_properties()) == config
    assert TopicConfig.from_properties(config.to_properties(changed_only=True)) == config


def test_unknown_names_get_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"did you mean segment\.bytes\?"):
        TopicConfig.from_properties({"segment.byte": 1})
    with pytest.raises(ConfigError, match="known: "):
        TopicConfig.from_properties({"zzz": 1})
    with pytest.raises(ConfigError, match="given twice"):
        TopicConfig.from_properties({"segment.bytes": 100, "segment_bytes": 100})


@pytest.mark.parametrize(
    "properties",
    [
        {"segment.bytes": 13},
        {"segment.bytes": 2**31},
        {"segment.bytes": True},
        {"segment.bytes": 1.5},
        {"segment.index.bytes": 23},
        {"segment.ms": 0},
        {"retention.ms": -2},
        {"local.retention.ms": -3},
        {"seal.ms": -2},
        {"cleanup.policy": "none"},
        {"cleanup.policy": ""},
        {"compression.type": "brotli"},
        {"compression.gzip.level": 0},
        {"message.timestamp.type": "createtime"},
        {"min.cleanable.dirty.ratio": 1.1},
        {"min.cleanable.dirty.ratio": "half"},
        {"retention.ms": None},
        {"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 9},
        {"retention.ms": 1000, "local.retention.ms": 1001},
        {"retention.bytes": 1000, "local.retention.bytes": 1001},
    ],
)
def test_values_out_of_range_or_in_contradiction_are_refused(properties: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        TopicConfig.from_properties(properties)
    assert next(iter(properties)).split(".")[-1] in str(caught.value)


def test_the_reserve_is_a_hundredth_but_never_more_than_256_mib() -> None:
    assert LogConfig().reserve_bytes(10_000_000_000) == 100_000_000
    assert LogConfig().reserve_bytes(10**13) == 256 * 1024 * 1024
    assert LogConfig(disk_reserve_bytes=0).reserve_bytes(10**13) == 0
    with pytest.raises(ConfigError):
        LogConfig(read_buffer_bytes=1)
