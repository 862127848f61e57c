"""Kafka's rules for the roll of the active segment. Pure."""

from __future__ import annotations

import enum

MAX_RELATIVE_OFFSET = 2**31 - 1
"""Largest distance from the base: an index entry stores ``offset - base`` in 31 bits."""


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
