"""``sync`` beside a running uploader: rolls if it is to, then waits until that one has committed what was there."""

from __future__ import annotations

import threading

from tiered.clock import Clock
from tiered.errors import DataLocalError, FencedError
from tiered.model import TopicPartition
from tiered.plan.tiering.facts import PartitionSeen, SegmentSealed
from tiered.tiering.directory import LogDirectory

POLL_SECONDS = 0.2
ASK_SECONDS = 30.0
"""The writer is asked to roll again after this time."""


def follow(
    directory: LogDirectory, *, clock: Clock, timeout_ms: int | None, roll: bool = True
) -> dict[TopicPartition, int] | None:
    """Returns when the checkpoint covers every record that was there at the call: how many that were, by partition.

    Without ``roll`` only every sealed segment. None if the uploader has gone before. Raises FencedError,
    CorruptionError (a partition is out of service), DataLocalError after ``timeout_ms`` (None: never).
    """
    ends: dict[TopicPartition, int] = {}
    for event in directory.scan():
        if isinstance(event, PartitionSeen):
            ends[event.tp] = event.end_offset if roll else max(event.noted_offset, 0)
        elif isinstance(event, SegmentSealed) and not roll:
            ends[event.tp] = max(ends[event.tp], event.segment.end)
    for error in directory.unreadable().values():
        raise error  # what it holds may be on this disk only
    before = _committed(directory, ends)
    begun = clock.monotonic()
    asked = begun - ASK_SECONDS
    never = threading.Event()
    while behind := _behind(directory, ends):
        now = clock.monotonic()
        if roll and now - asked >= ASK_SECONDS:
            directory.seal()
            asked = now
        if timeout_ms is not None and now - begun >= timeout_ms / 1000:
            raise DataLocalError(
                f"not committed by the running uploader yet: {', '.join(behind)}",
                hint="`tiered-uploader status` says what it waits for",
            )
        clock.wait(never, POLL_SECONDS)
        if not directory.uploader():
            return None
    after = _committed(directory, ends)
    return {tp: after[tp] - before[tp] for tp in sorted(ends) if after[tp] > before[tp]}


def _committed(directory: LogDirectory, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    uploads = directory.uploads()
    return {tp: uploads[tp].end_offset if tp in uploads else 0 for tp in ends}


def _behind(directory: LogDirectory, ends: dict[TopicPartition, int]) -> list[str]:
    uploads = directory.uploads()
    fenced = [str(tp) for tp in ends if tp in uploads and uploads[tp].fenced]
    if fenced:
        raise FencedError(
            f"a newer claim owns {', '.join(fenced)}", hint="`tiered repair rejoin` makes this log a fresh volume"
        )
    committed = _committed(directory, ends)
    return [f"{tp} {committed[tp]} of {end}" for tp, end in sorted(ends.items()) if committed[tp] < end]
