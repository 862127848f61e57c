"""Settings of topics and of a log directory, with Kafka's names. They are checked and immutable.

A topic's settings are spelled as Kafka spells them (``segment.bytes``) or as Python keywords (``segment_bytes``).
``merge.min.bytes``, ``merge.target.bytes``, ``merge.idle.ms`` and ``gc.grace.ms`` are not Kafka's; they apply to the
bucket. ``seal.ms`` (10 minutes) is not Kafka's either. The defaults are those of Kafka 4.1, with these exceptions.
``segment.bytes`` is 64 MiB. ``compression.lz4.level`` is 1 (Kafka's 9 is six times slower). ``retention.ms``,
``local.retention.ms`` and ``local.retention.bytes`` are -1: nothing is deleted by default.
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypedDict, TypeGuard

from tiered.errors import ConfigError
from tiered.model import TimestampType

KIB = 1024
MIB = 1024 * KIB
DAY_MS = 86_400_000
MAX_LONG = 2**63 - 1
MAX_INT = 2**31 - 1

MAX_PARTITIONS = 100_000
"""Most partitions of one topic. A registry entry or a call that names more is refused before it has any effect."""

UNLIMITED = -1
SAME_AS_TOPIC = -2
"""``local.retention.*``: the value of ``retention.*`` (Kafka's -2)."""

OF_SEGMENT = -1
"""Value of ``merge.min.bytes`` for a quarter of ``segment.bytes``, and of ``merge.target.bytes`` for all of it."""

MAX_RESERVE_BYTES = 256 * MIB
"""Largest default of the disk reserve, in bytes. The default is one hundredth of the disk, at most this."""


class S3Keywords(TypedDict, total=False):
    """Settings of S3 in addition to the URL. Keywords, settings and ``TIERED_*`` variables have the same names.

    ``expected_bucket_owner``: account id that every request names. A bucket of another account refuses the request.
    ``sse``: ``AES256`` or ``aws:kms`` for all written objects. None: the bucket's own default.
    """

    endpoint_url: str | None
    region: str | None
    expected_bucket_owner: str | None
    sse: str | None
    sse_kms_key_id: str | None


S3_WORDS = tuple(S3Keywords.__annotations__)

_BYTE_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTE_UNITS[f"{_letter}ib"] = _BYTE_UNITS[_letter] = 1024**_power
    _BYTE_UNITS[f"{_letter}b"] = 1000**_power
_TIME_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS}
_QUANTITY = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: int | str) -> int:
    """Return bytes for ``67108864``, ``"64MiB"``, ``"64m"`` (binary) or ``"64MB"`` (decimal).

    Raises ConfigError for other text, and for a fraction of a byte.
    """
    return _quantity(text, _BYTE_UNITS, "a size", "64MiB")


def parse_duration_ms(text: int | str, option: str = "") -> int:
    """Return milliseconds for ``"7d"``, ``"90s"``, ``"1.5h"`` or ``0``.

    Raises ConfigError for other text and a positive number without a unit. A negative number needs no unit.
    ``option``: name for the error, ``""`` for none.
    """
    bare, place = str(text).strip(), f"{option}: " if option else ""
    # A number without a unit may be meant as seconds. Callers refuse a negative one, or read -1 as no limit.
    if bare.replace(".", "", 1).isdecimal() and float(bare) > 0:
        raise ConfigError(f"{place}{bare} has no unit", hint=f"write {bare}s for seconds")
    try:
        return parse_milliseconds(text)
    except ConfigError as error:
        raise ConfigError(f"{place}{error.message}", hint=error.hint) from error


def parse_milliseconds(text: int | str) -> int:
    """Return milliseconds for a topic's setting: a number of milliseconds, as in Kafka, or text such as ``"7d"``.

    Raises ConfigError for other text, and for a fraction of a millisecond.
    """
    return _quantity(text, {"": 1, **_TIME_UNITS}, "a duration", "7d")


def _quantity(text: int | str, units: Mapping[str, int], what: str, example: str) -> int:
    if isinstance(text, bool):
        raise ConfigError(f"{text!r} is not {what}", hint=f"for example {example}")
    if isinstance(text, int):
        return text
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} is not {what}", hint=f"for example {example}")
    match = _QUANTITY.fullmatch(text) if len(text) <= 64 else None
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in units:
        raise ConfigError(
            f"{text!r} is not {what}", hint=f"a number and one of {', '.join(u for u in units if u)}; {example}"
        )
    number = match.group(1)
    if "." not in number:
        return int(number) * units[unit]
    whole = float(number) * units[unit]
    if whole != int(whole):
        raise ConfigError(
            f"{text!r} is not a whole number of {'bytes' if units is _BYTE_UNITS else 'milliseconds'}",
            hint=f"for example {example}",
        )
    return int(whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Settings of one topic. Sizes are bytes, times are milliseconds. A retention or ``seal_ms`` of -1: no limit.

    A ``local_retention_bytes`` or ``local_retention_ms`` of -2: the value of ``retention_bytes`` or ``retention_ms``.
    A ``merge_min_bytes`` of -1: a quarter of ``segment_bytes``. A ``merge_target_bytes`` of -1: all of it.
    Raises ConfigError for a value out of its range and for two values that contradict each other.
    """

    cleanup_policy: str = "delete"
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 1
    compression_zstd_level: int = 3
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    gc_grace_ms: int = DAY_MS
    index_interval_bytes: int = 4096
    local_retention_bytes: int = UNLIMITED
    local_retention_ms: int = UNLIMITED
    max_compaction_lag_ms: int = MAX_LONG
    max_message_bytes: int = MIB + 12
    merge_idle_ms: int = 3_600_000
    merge_min_bytes: int = OF_SEGMENT
    merge_target_bytes: int = OF_SEGMENT
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    retention_bytes: int = UNLIMITED
    retention_ms: int = UNLIMITED
    seal_ms: int = 600_000
    segment_bytes: int = 64 * MIB
    segment_index_bytes: int = 10 * MIB
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * DAY_MS

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(_dotted(field.name), getattr(self, field.name), _RANGES.get(field.name))
        object.__setattr__(self, "cleanup_policy", _policy(self.cleanup_policy))
        _choice(
            "compression.type", self.compression_type, ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
        )
        _choice("message.timestamp.type", self.message_timestamp_type, ("CreateTime", "LogAppendTime"))
        self._check_contradictions()

    def _check_contradictions(self) -> None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError("min.compaction.lag.ms is greater than max.compaction.lag.ms", hint=_SETTING_HINT)
        for name in ("retention_ms", "retention_bytes"):
            whole, local = getattr(self, name), getattr(self, f"local_{name}")
            if whole != UNLIMITED and local > whole:
                dotted = _dotted(name)
                raise ConfigError(
                    f"local.{dotted}={local} is greater than {dotted}={whole}, the limit for both tiers together",
                    hint=f"lower local.{dotted}, or set it to -2 to use {dotted}",
                )

    @property
    def compacted(self) -> bool:
        """Return True if ``cleanup.policy`` contains ``compact``."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Return True if ``cleanup.policy`` contains ``delete``."""
        return "delete" in self.cleanup_policy

    @property
    def merged_below_bytes(self) -> int:
        """Return the size in bytes below which a segment in the bucket is merged with its neighbours."""
        return self.segment_bytes // 4 if self.merge_min_bytes == OF_SEGMENT else self.merge_min_bytes

    @property
    def merged_up_to_bytes(self) -> int:
        """Return the largest size in bytes of a merged segment."""
        return self.segment_bytes if self.merge_target_bytes == OF_SEGMENT else self.merge_target_bytes

    @property
    def timestamp_type(self) -> TimestampType:
        """Return ``message.timestamp.type`` as a TimestampType."""
        return (
            TimestampType.LOG_APPEND_TIME
            if self.message_timestamp_type == "LogAppendTime"
            else TimestampType.CREATE_TIME
        )

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return the names of all settings, with dots."""
        return tuple(_dotted(field.name) for field in dataclasses.fields(cls))

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> TopicConfig:
        """Return settings from dotted or snake_case names. Sizes and durations may be text (``"64MiB"``, ``"7d"``).

        Raises ConfigError for an unknown name (with "did you mean"), a name that is given twice and a wrong value.
        """
        return cls().replace(properties)

    def replace(self, properties: Mapping[str, Any]) -> TopicConfig:
        """Return a copy with the settings ``properties`` changed, by dotted or snake_case names.

        Raises ConfigError for an unknown name, a name that is given twice and a wrong value.
        """
        types = {field.name: type(field.default) for field in dataclasses.fields(self)}
        changed: dict[str, Any] = {}
        for key, value in properties.items():
            name = str(key).replace(".", "_").replace("-", "_")
            if name not in types:
                raise unknown_key(str(key), self.keys(), "topic setting")
            if name in changed:
                raise ConfigError(f"{_dotted(name)} is given twice", hint="keep one of them")
            changed[name] = _convert(_dotted(name), value, types[name])
        return dataclasses.replace(self, **changed)

    def named(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of the settings ``names``, by dotted name. ``names`` may also be in snake_case.

        Raises KeyError for an unknown name.
        """
        properties = self.to_properties()
        return {name: properties[name] for name in (_dotted(str(each).replace("-", "_")) for each in names)}

    def to_text(self, *, changed_only: bool = False) -> dict[str, str]:
        """Return all values by dotted name, as text for the topic registry.

        ``changed_only``: without those that equal the default.
        """
        return {key: str(value) for key, value in self.to_properties(changed_only=changed_only).items()}

    def to_properties(self, *, changed_only: bool = False) -> dict[str, Any]:
        """Return all values by dotted name. ``changed_only``: without those that equal the default."""
        return {
            _dotted(field.name): getattr(self, field.name)
            for field in dataclasses.fields(self)
            if not changed_only or getattr(self, field.name) != field.default
        }


MEMORY_BYTES = 384 * MIB
"""Default limit, in bytes, of the memory that uploads, commits and maintenance of one process use together.

Uploads hold bodies, parts and index bundles, commits roots and pages. Maintenance holds read-ahead of a rewrite and the
key map of a compaction. Work that does not fit waits until other work ends.
"""

MIN_MEMORY_BYTES = 64 * MIB
"""Least bytes of memory that one action of maintenance needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Limits of one process for requests to the store and for memory.

    ``requests_per_second`` and ``bytes_per_second`` (sum of both directions): None for no limit. ``memory``: bytes that
    uploads, commits and maintenance may use together.
    """

    requests_per_second: int | None = None
    bytes_per_second: int | None = None
    memory: int = MEMORY_BYTES

    def __post_init__(self) -> None:
        for name, least in (("requests_per_second", 1), ("bytes_per_second", 1), ("memory", MIN_MEMORY_BYTES)):
            value = getattr(self, name)
            if value is None and name != "memory":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"{name} must be a whole number of at least {least}, not {value!r}",
                    hint="one maintenance action uses that much memory"
                    if name == "memory"
                    else "leave it out for no limit",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of a whole log directory while one process has it open.

    ``remote``: True if the directory is tiered; then no record is deleted from the disk before it is in the bucket. A
    directory that was ever uploaded stays tiered. ``disk_reserve_bytes``: free space at which appends are refused;
    None: one hundredth of the disk, at most 256 MiB. ``disk_check_bytes``: bytes appended between two checks of the
    free space. ``read_buffer_bytes``: bytes of a segment that one read requests. ``cleaner_enabled``: False: topics are
    not compacted in the background. ``cluster_id`` and ``node_id`` are written into ``meta.properties`` of a new
    directory.
    ``checkpoint_interval_ms``, ``retention_check_interval_ms``, ``producer_expiration_check_interval_ms``,
    ``uploads_check_interval_ms``, ``cleaner_backoff_ms``: periods of the background tasks. ``cleaner_threads``
    (Kafka's ``log.cleaner.threads``) compact concurrently. They share ``cleaner_dedupe_buffer_bytes`` of memory and
    ``cleaner_max_bytes_per_second`` of reads and writes (None: no limit). ``initial_task_delay_ms``: delay of the first
    run of each background task, unless its period is shorter. ``close_timeout_ms``: longest wait of ``close`` for a
    round of compaction, a write or an fsync. ``max_open_files``: highest number of descriptors for active segments.
    None: the process's limit minus a reserve. ``limits``: one :class:`StoreLimits` for ``sync``, all reads and the
    uploader that is passed to ``open``. None: no limit, and the uploader uses its own settings.
    """

    remote: bool = False
    disk_reserve_bytes: int | None = None
    disk_check_bytes: int = 4 * MIB
    checkpoint_interval_ms: int = 60_000
    initial_task_delay_ms: int = 30_000
    retention_check_interval_ms: int = 300_000
    producer_expiration_check_interval_ms: int = 600_000
    uploads_check_interval_ms: int = 1000
    read_buffer_bytes: int = 256 * KIB
    close_timeout_ms: int = 30_000
    cleaner_enabled: bool = True
    cleaner_threads: int = 1
    cleaner_backoff_ms: int = 15_000
    cleaner_dedupe_buffer_bytes: int = 128 * MIB
    cleaner_max_bytes_per_second: int | None = None
    max_open_files: int | None = None
    limits: StoreLimits | None = None
    cluster_id: str = ""
    node_id: int = 0

    def __post_init__(self) -> None:
        for name, least in _LOG_LEAST.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ConfigError(
                    f"{name} must be a whole number of at least {least}, not {value!r}",
                    hint="correct it, or leave it out",
                )

        if self.limits is not None and not isinstance(self.limits, StoreLimits):
            raise ConfigError(
                f"limits must be a tiered.config.StoreLimits or None, not {self.limits!r}",
                hint="for example limits=StoreLimits(requests_per_second=500)",
            )

    def reserve_bytes(self, total_bytes: int) -> int:
        """Return the number of bytes that must stay free on a disk of ``total_bytes``."""
        if self.disk_reserve_bytes is not None:
            return self.disk_reserve_bytes
        return min(total_bytes // 100, MAX_RESERVE_BYTES)


_LOG_LEAST = {
    "disk_reserve_bytes": 0,
    "disk_check_bytes": 1,
    "checkpoint_interval_ms": 1,
    "initial_task_delay_ms": 0,
    "retention_check_interval_ms": 1,
    "producer_expiration_check_interval_ms": 1,
    "uploads_check_interval_ms": 1,
    "read_buffer_bytes": 4096,
    "close_timeout_ms": 0,
    "cleaner_threads": 1,
    "cleaner_backoff_ms": 1,
    "cleaner_dedupe_buffer_bytes": 1024,
    "cleaner_max_bytes_per_second": 1,
    "max_open_files": 8,
    "node_id": -1,
}

_RANGES: dict[str, tuple[float, float]] = {
    "compression_gzip_level": (-1, 9),
    "compression_lz4_level": (1, 17),
    "compression_zstd_level": (-131072, 22),
    "delete_retention_ms": (0, MAX_LONG),
    "file_delete_delay_ms": (0, MAX_LONG),
    "flush_messages": (1, MAX_LONG),
    "flush_ms": (0, MAX_LONG),
    "gc_grace_ms": (0, MAX_LONG),
    "index_interval_bytes": (0, MAX_INT),
    "local_retention_bytes": (SAME_AS_TOPIC, MAX_LONG),
    "local_retention_ms": (SAME_AS_TOPIC, MAX_LONG),
    "max_compaction_lag_ms": (1, MAX_LONG),
    "max_message_bytes": (0, MAX_INT),
    "message_timestamp_after_max_ms": (0, MAX_LONG),
    "message_timestamp_before_max_ms": (0, MAX_LONG),
    "merge_idle_ms": (0, MAX_LONG),
    "merge_min_bytes": (OF_SEGMENT, MAX_INT),
    "merge_target_bytes": (OF_SEGMENT, MAX_INT),
    "min_cleanable_dirty_ratio": (0, 1),
    "min_compaction_lag_ms": (0, MAX_LONG),
    "retention_bytes": (UNLIMITED, MAX_LONG),
    "retention_ms": (UNLIMITED, MAX_LONG),
    "seal_ms": (UNLIMITED, MAX_LONG),
    "segment_bytes": (14, MAX_INT),  # positions in the offset index are int32
    "segment_index_bytes": (24, MAX_INT),  # two time index entries: one is kept for the end of the segment
    "segment_jitter_ms": (0, MAX_LONG),
    "segment_ms": (1, MAX_LONG),
}


def unknown_key(key: str, known: Iterable[str], what: str) -> ConfigError:
    """Return the error for the unknown name ``key``. Its hint suggests the most similar name in ``known``.

    ``what``: kind of name in words, such as "topic setting".
    """
    names = list(known)
    # A broker's setting, such as log.retention.hours, is the default of a topic's retention.ms.
    sought = key.replace("_", ".").removeprefix("log.")
    close = difflib.get_close_matches(sought, names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"
    return ConfigError(f"unknown {what} {key!r}", hint=hint)


_SETTING_HINT = "correct the setting, or leave it out for its default"


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def _check(key: str, value: object, limits: tuple[float, float] | None) -> None:
    if limits is None:
        return
    allowed = int | float if key == "min.cleanable.dirty.ratio" else int
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise ConfigError(f"{key} must be a number, not {value!r}", hint=_SETTING_HINT)
    low, high = limits
    if not low <= value <= high:
        raise ConfigError(f"{key} must be between {low} and {high}, not {value}", hint=_SETTING_HINT)
    if key == "compression.gzip.level" and value == 0:
        raise ConfigError("compression.gzip.level must be -1 or between 1 and 9, not 0", hint=_SETTING_HINT)


def _is_integer(value: object) -> TypeGuard[SupportsIndex]:
    """Return whether :func:`operator.index` accepts ``value`` (numpy's integers too). ``bool`` is refused."""
    return hasattr(type(value), "__index__") and type(value).__name__ not in ("bool", "bool_")


def _choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{key} must be one of {', '.join(choices)}, not {value!r}", hint=_SETTING_HINT)


def _policy(value: object) -> str:
    words = {word.strip() for word in value.split(",")} if isinstance(value, str) else set()
    if not words or words - {"compact", "delete"}:
        raise ConfigError(
            f"cleanup.policy must be delete, compact or compact,delete, not {value!r}", hint=_SETTING_HINT
        )
    return ",".join(sorted(words))


def _convert(key: str, value: object, kind: type) -> object:
    """Return ``value`` as the type ``kind`` of the setting ``key``. Numbers may be text, such as ``"64MiB"``."""
    if kind is str:
        if key == "cleanup.policy" and isinstance(value, list | tuple):
            return ",".join(str(word) for word in value)
        if not isinstance(value, str):
            raise ConfigError(f"{key} must be text, not {value!r}", hint=_SETTING_HINT)
        return value
    if not isinstance(value, str):
        return operator.index(value) if kind is int and _is_integer(value) else value
    try:
        if kind is float:
            return float(value)
        if key.endswith(".ms"):
            return parse_milliseconds(value)
        return parse_bytes(value) if key.endswith(".bytes") else int(value)
    except ValueError:
        raise ConfigError(f"{key} must be a number, not {value!r}", hint=_SETTING_HINT) from None
    except ConfigError as error:
        raise ConfigError(f"{key}: {error.message}", hint=error.hint) from None
