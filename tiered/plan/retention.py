"""Which segments may go, from the disk and from the bucket? Pure; nothing goes unless a setting says so.

Only prefixes die: the pass stops at the first segment that must stay. With a remote tier a segment leaves the disk only
below the committed end that was read back from the bucket; without one ``retention.*`` rule and the log start moves.

For the bucket Kafka's comparisons of its remote tier hold. What is decided is a new log start; ``Catalog.trim`` commits
it, and only then do objects become trash. A segment that is being uploaded is in no root yet: it cannot expire. A
topic whose policy does not say ``delete`` is never trimmed but by its log start, in either tier.

Kafka's rule: docs/kafka-semantics.md#remote-retention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tiered.config import MAX_LONG, SAME_AS_TOPIC, UNLIMITED, TopicConfig
from tiered.model import Row

NOTHING_STORED: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LocalSegmentFacts:
    """One sealed segment on disk. ``max_timestamp`` -1: no timestamps; ``appended_ms``: time of its last append."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    appended_ms: int

    @property
    def age_from_ms(self) -> int:
        """What its age counts from: a timestamp later than the append counts as it (a wrong clock pins nothing)."""
        return self.appended_ms if self.max_timestamp < 0 else min(self.max_timestamp, self.appended_ms)


@dataclass(frozen=True, slots=True)
class LocalRetention:
    """The plan: segments ``bases`` go, oldest first; all below ``delete_below`` is then gone from the disk.

    ``roll_active``: the active segment has expired, too, and is rolled first; it is among ``bases`` unless the log is
    tiered, where it has to be uploaded before.
    """

    delete_below: int
    bases: tuple[int, ...]
    roll_active: bool = False


def plan_local_retention(
    sealed: Sequence[LocalSegmentFacts],
    *,
    active_bytes: int,
    config: TopicConfig,
    now_ms: int,
    log_start_offset: int,
    committed_end: int | None,
    active: LocalSegmentFacts | None = None,
    high_watermark: int | None = None,
) -> LocalRetention:
    """What may leave the disk at ``now_ms``. ``sealed`` ascending; ``committed_end`` None: there is no remote tier.

    Kafka's order and comparisons: log start, size (never below the limit), time (strictly older). An
    ``active`` segment that is not given, or empty, stays; it never goes because of the log start alone. Nothing goes
    that ends above the ``high_watermark`` (None: it is the end).

    Kafka's rule: docs/kafka-semantics.md#retention.
    """
    if committed_end is None:
        retention_ms = config.retention_ms if config.deletes else UNLIMITED
        retention_bytes = config.retention_bytes if config.deletes else UNLIMITED
    else:
        retention_ms = _local(config.local_retention_ms, config.retention_ms)
        retention_bytes = _local(config.local_retention_bytes, config.retention_bytes)
    excess = sum(segment.size_bytes for segment in sealed) + active_bytes - retention_bytes
    safe = [s for s in sealed if high_watermark is None or s.end_offset <= high_watermark]
    bases: list[int] = []
    for segment in safe:
        goes = _goes(
            segment,
            config_ms=retention_ms,
            config_bytes=retention_bytes,
            excess=excess,
            now_ms=now_ms,
            start=log_start_offset,
        )
        if not goes or (committed_end is not None and segment.end_offset > committed_end):
            break
        excess -= segment.size_bytes
        bases.append(segment.base_offset)
    below = sealed[len(bases) - 1].end_offset if bases else (sealed[0].base_offset if sealed else log_start_offset)
    if active is None or active.size_bytes == 0 or (high_watermark is not None and active.end_offset > high_watermark):
        return LocalRetention(below, tuple(bases))
    if committed_end is not None:
        expired = retention_ms >= 0 and now_ms - active.age_from_ms > retention_ms
        return LocalRetention(below, tuple(bases), expired)
    if len(bases) == len(sealed) and _goes(
        active, config_ms=retention_ms, config_bytes=retention_bytes, excess=excess, now_ms=now_ms, start=-1
    ):
        return LocalRetention(active.end_offset, (*bases, active.base_offset), True)
    return LocalRetention(below, tuple(bases))


def _goes(
    segment: LocalSegmentFacts, *, config_ms: int, config_bytes: int, excess: int, now_ms: int, start: int
) -> bool:
    """By the log start offset, by ``retention.bytes``, or by ``retention.ms``."""
    return (
        segment.end_offset <= start
        or (config_bytes >= 0 and excess >= segment.size_bytes)
        or (config_ms >= 0 and now_ms - segment.age_from_ms > config_ms)
    )


def _local(local: int, whole: int) -> int:
    return whole if local == SAME_AS_TOPIC else local


@dataclass(frozen=True, slots=True)
class RemoteExpiry:
    """Trim to ``start_offset``: ``segments`` rows go, ``size_bytes`` of data, for ``reasons``, oldest first.

    ``pinned``: the row that stays because of its time alone, although that time is wrong for sure, or a row behind it
    has expired: ask when it was stored, and plan again.
    """

    start_offset: int
    segments: int = 0
    size_bytes: int = 0
    reasons: tuple[str, ...] = ()
    pinned: Row | None = None


def plan_remote_expiry(
    rows: Iterable[Row],
    *,
    config: TopicConfig,
    now_ms: int,
    start_offset: int,
    size_bytes: int | None = None,
    stored_ms: Mapping[int, int] = NOTHING_STORED,
    next_offset: int = -1,
) -> RemoteExpiry:
    """What of ``rows`` (ascending, those of the root) goes at ``now_ms``; only a prefix does.

    A row below the log start goes; one whose newest record is ``retention.ms`` old (not strictly older, unlike on
    disk); and the oldest while all of it stays at or above ``retention.bytes``.

    ``size_bytes``: of these rows and all behind them, where ``rows`` are only the first of them. ``stored_ms`` by
    base: when a row's object came into the bucket; a newer timestamp than that counts as it (a wrong clock pins
    nothing). The row that ends at ``next_offset`` goes by the log start alone: its bundle tells who wrote what, as
    that of Kafka's active segment does, and a volume that resumes without it takes a producer's retry twice.
    """
    kept = list(rows)
    whole = sum(row.size for row in kept) if size_bytes is None else size_bytes
    retention_ms = config.retention_ms if config.deletes else UNLIMITED
    retention_bytes = config.retention_bytes if config.deletes else UNLIMITED
    excess = whole - retention_bytes
    expired = now_ms - retention_ms
    start, gone, size = start_offset, 0, 0
    reasons: list[str] = []
    pinned: Row | None = None
    for at, row in enumerate(kept):
        if row.next <= start_offset:
            reason = "log start offset"
        # mutant newest-segment-is-kept
        elif row.next == next_offset:
            break
        # mutant retention-compares-time
        elif retention_ms >= 0 and _newest_ms(row, stored_ms) <= expired:
            reason = "retention.ms"
        elif retention_bytes >= 0 and excess > 0 and excess >= row.size:
            reason = "retention.bytes"
        else:
            if retention_ms >= 0 and row.base not in stored_ms:
                behind = any(other.size and other.max_ts <= expired for other in kept[at + 1 :])
                pinned = row if behind or row.max_ts > now_ms or row.max_ts < 0 else None
            break
        excess -= row.size
        start, gone, size = max(start, row.next), gone + 1, size + row.size
        if reason not in reasons:
            reasons.append(reason)
    return RemoteExpiry(start, gone, size, tuple(reasons), pinned)


def _newest_ms(row: Row, stored_ms: Mapping[int, int]) -> int:
    """What the age of a row counts from: without a timestamp, and without a record at all, what is known of it."""
    if row.max_ts < 0:
        return stored_ms.get(row.base, MAX_LONG if row.size else -1)
    return min(row.max_ts, stored_ms.get(row.base, row.max_ts))
