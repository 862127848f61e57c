"""Kafka's ListOffsets on one partition: special timestamps, and the leader epoch of what was found.

Kafka's rule: docs/kafka-semantics.md#offset-by-timestamp.
"""

from __future__ import annotations

from typing import NamedTuple

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""What a timestamp below 0 asks for."""

NO_EPOCH = -1


class ListedOffset(NamedTuple):
    """``timestamp`` -1 where an end of the log was asked for; ``leader_epoch`` -1 if it is not known."""

    offset: int
    timestamp: int
    leader_epoch: int
