"""Which segments of the bucket has retention outlived? Kafka's comparisons for the remote tier. Pure.

What is decided here is a new log start; ``Catalog.trim`` commits it, and only then do objects become trash. A segment
that is being uploaded is in no root yet: it cannot expire before it is committed.

Kafka's rule: docs/kafka-semantics.md#remote-retention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiered.config import TopicConfig
from tiered.model import Row


@dataclass(frozen=True, slots=True)
class RemoteExpiry:
    """Trim to ``start_offset``: ``segments`` rows go, ``size_bytes`` of data, for ``reasons``, oldest first."""

    start_offset: int
    segments: int = 0
    size_bytes: int = 0
    reasons: tuple[str, ...] = ()


def plan_remote_expiry(
    rows: Iterable[Row], *, config: TopicConfig, now_ms: int, start_offset: int, local_only_bytes: int = 0
) -> RemoteExpiry:
    """What of ``rows`` (ascending, those of the root) goes at ``now_ms``; only a prefix does.

    A row below the log start goes; one whose newest record is ``retention.ms`` old (not strictly older, unlike on
    disk); and the oldest while all of it, ``local_only_bytes`` on disk included, stays at or above ``retention.bytes``.
    """
    kept = list(rows)
    excess = sum(row.size for row in kept) + local_only_bytes - config.retention_bytes
    start, gone, size = start_offset, 0, 0
    reasons: list[str] = []
    for row in kept:
        if row.next <= start_offset:
            reason = "log start offset"
        elif config.retention_ms >= 0 and row.max_ts <= now_ms - config.retention_ms:
            reason = "retention.ms"
        elif config.retention_bytes >= 0 and excess > 0 and excess >= row.size:
            reason = "retention.bytes"
        else:
            break
        excess -= row.size
        start, gone, size = max(start, row.next), gone + 1, size + row.size
        if reason not in reasons:
            reasons.append(reason)
    return RemoteExpiry(start, gone, size, tuple(reasons))
