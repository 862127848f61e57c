"""Document of ``/status`` for ``tiered status``, and output of ``pause`` and ``sync``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tiered.engine.status import PartitionView
from tiered.engine.wait import shown
from tiered.errors import TieredError
from tiered.model import TopicPartition
from tiered.plan.pauses import Pause
from tiered.program.output import human_bytes, human_duration
from tiered.store.limit import Limits


def report(
    views: Sequence[PartitionView],
    *,
    now_ms: int,
    remote: str,
    lag_limit_ms: int,
    unreadable: Mapping[TopicPartition, TieredError] | None = None,
    unread: TieredError | None = None,
    pauses: Mapping[str, Pause] | None = None,
) -> dict[str, Any]:
    """Return the document of ``/status``. ``unreadable``: partitions out of service.

    ``unread``: why the log directory could not be read at the last scan. All other values are then of the scan before.
    """
    return {
        "message_type": "status",
        "now_ms": now_ms,
        "remote": remote,
        "lag_bytes": sum(view.lag_bytes for view in views),
        "lag_seconds": max((view.lag_ms for view in views), default=0) / 1000,
        "lag_limit_seconds": lag_limit_ms / 1000,
        "fenced": sum(view.phase == "fenced" for view in views),
        "paused": pauses_as_json(pauses or {}),
        "partitions": [view.as_json() for view in views],
        "out_of_service": [
            {"topic": tp.topic, "partition": tp.partition, "reason": error.message, "unblocks": error.hint}
            for tp, error in sorted((unreadable or {}).items())
        ],
        "unread": None if unread is None else {"reason": unread.message, "unblocks": unread.hint},
    }


def pauses_as_json(pauses: Mapping[str, Pause]) -> list[dict[str, Any]]:
    """Return pauses by topic. None stands for all topics."""
    return [
        {"topic": name or None, "since_ms": each.since_ms, "reason": each.reason}
        for name, each in sorted(pauses.items())
    ]


def paused_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each topic whose uploads are paused."""
    for each in document.get("paused", ()):
        name, why = each["topic"] or "all topics", f": {each['reason']}" if each["reason"] else ""
        since = _age((document["now_ms"] - each["since_ms"]) / 1000)
        command = f"tiered-uploader resume {each['topic'] or ''}".strip()
        yield f"uploads of {name} have been paused for {since}{why}; unblocked by `{command}`"


def store(limits: Limits) -> dict[str, Any]:
    """Return the object ``store`` of the document: limits of requests, and refusals of too many."""
    return {
        "requests_per_second": limits.requests_per_second,
        "bytes_per_second": limits.bytes_per_second,
        "memory": {
            "limit_bytes": limits.memory.count,
            "held_bytes": limits.memory.taken,
            "waiting": limits.memory.waiting,
        },
        "slow_downs": limits.slow_downs,
    }


def progress_text(views: Sequence[PartitionView]) -> str:
    """Return one sentence for a user who waits for uploads."""
    behind = [view for view in views if view.uploaded_offset < view.end_offset]
    if not behind:
        return "everything that was seen is committed; the end is near"
    names = [f"{view.tp} {max(view.uploaded_offset, 0)} of {view.end_offset}" for view in behind]
    return f"{human_bytes(sum(view.lag_bytes for view in behind))} to commit: {shown(names)}"


def _age(seconds: float) -> str:
    """Return ``3m08s``, and ``0s`` for a time ahead of this clock."""
    return human_duration(max(0, int(seconds * 1000)))
