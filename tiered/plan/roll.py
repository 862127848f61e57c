"""Rules for the roll of the active segment: Kafka's rules, and one of ours for an idle segment. Pure."""

from __future__ import annotations

import enum

MAX_RELATIVE_OFFSET = 2**31 - 1
"""Largest distance from the base: an index entry stores ``offset - base`` in 31 bits."""

NO_TIME_BOUND_MS = -2
"""Bound below every timestamp, including -1 (none): the rules are checked at each append."""

FAR_AWAY_MS = 2**63 - 1


class RollReason(enum.Enum):
    """Reasons for rolling a segment. Logs and metrics contain the values."""

    SIZE = "size"
    RECORD_TIME = "segment.ms"
    WALL_CLOCK = "seal.ms"
    OFFSET_INDEX_FULL = "offset index full"
    TIME_INDEX_FULL = "time index full"
    OFFSET_OVERFLOW = "relative offset overflow"
    REQUESTED = "requested"
    RETENTION = "retention"


def roll_before_append(  # noqa: PLR0917 - called for every append: keywords cost as much as the rules
    size_bytes: int,
    incoming_bytes: int,
    segment_bytes: int,
    waited_ms: int,
    segment_ms: int,
    relative_last_offset: int,
    offset_index_full: bool,
    time_index_full: bool,
) -> RollReason | None:
    """Return Kafka's reason to roll before an append of ``incoming_bytes``. None: append to the active segment.

    ``size_bytes``: size of the active segment, which may reach exactly ``segment_bytes``. ``waited_ms``: its age in ms
    of record time. ``segment_ms``: the topic's ``segment.ms`` less the jitter. ``relative_last_offset``: last offset of
    the append less the segment's base.

    Kafka's rule: docs/kafka-semantics.md#roll.
    """
    if size_bytes > segment_bytes - incoming_bytes:
        return RollReason.SIZE
    if size_bytes > 0 and waited_ms > segment_ms:
        return RollReason.RECORD_TIME
    if offset_index_full:
        return RollReason.OFFSET_INDEX_FULL
    if time_index_full:
        return RollReason.TIME_INDEX_FULL
    if not 0 <= relative_last_offset <= MAX_RELATIVE_OFFSET:
        return RollReason.OFFSET_OVERFLOW
    return None


def waited_ms(max_timestamp: int, first_timestamp: int, now_ms: int, created_ms: int) -> int:
    """Return the age of the active segment at an append with ``max_timestamp``, in ms of record time.

    ``first_timestamp``: that of the segment, -1 while it has none. Then the age is the time since ``created_ms``.
    """
    if first_timestamp >= 0:
        return max_timestamp - first_timestamp
    return now_ms - created_ms


def idle_roll(size_bytes: int, first_append_ms: int, seal_ms: int, now_ms: int) -> RollReason | None:
    """Return the reason to seal a segment whose first append is at least ``seal_ms`` ago. None: do not seal.

    An empty segment is not sealed. ``seal_ms`` -1 disables the rule. If the clock was set back, the caller passes the
    new time as ``first_append_ms``.
    """
    if size_bytes > 0 and seal_ms >= 0 and first_append_ms >= 0 and now_ms - first_append_ms >= seal_ms:
        return RollReason.WALL_CLOCK
    return None


def record_time_bound(first_timestamp: int, segment_ms: int) -> int:
    """Return the largest timestamp that can be appended before :func:`roll_before_append` rolls by time.

    ``NO_TIME_BOUND_MS``: unknown, because the segment has no timestamp.
    """
    return first_timestamp + segment_ms if first_timestamp >= 0 else NO_TIME_BOUND_MS


def wall_clock_bound(first_append_ms: int, seal_ms: int) -> int:
    """Return the wall-clock time from which on :func:`idle_roll` rolls; ``FAR_AWAY_MS`` if it never does."""
    return first_append_ms + seal_ms if first_append_ms >= 0 and seal_ms >= 0 else FAR_AWAY_MS


def effective_segment_ms(segment_ms: int, max_compaction_lag_ms: int, compacted: bool, jitter_ms: int) -> int:
    """Return ``segment_ms``, for a compacted topic at most ``max_compaction_lag_ms``, less ``jitter_ms``."""
    limit = min(segment_ms, max_compaction_lag_ms) if compacted else segment_ms
    return limit - jitter_ms


def jitter_ms(segment_jitter_ms: int, segment_ms: int, uniform: float) -> int:
    """Return the random jitter of a new segment's ``segment.ms``. ``uniform``: a random number in [0, 1)."""
    return int(uniform * min(segment_jitter_ms, segment_ms))
