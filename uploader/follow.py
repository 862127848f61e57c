"""``sync --wait`` beside a running uploader: rolls, then waits until that one has committed everything."""

from __future__ import annotations

import threading

from tiered.clock import Clock
from tiered.errors import DataLocalError, FencedError
from tiered.model import TopicPartition
from uploader.directory import LogDirectory
from uploader.events import PartitionSeen

POLL_SECONDS = 0.2
ASK_SECONDS = 30.0
"""The writer is asked to roll again after this time."""


def follow(directory: LogDirectory, *, clock: Clock, timeout_ms: int | None) -> None:
    """Returns when the checkpoint covers every record that was there at the call.

    Raises FencedError, and DataLocalError after ``timeout_ms`` (None: never).
    """
    ends = {event.tp: event.end_offset for event in directory.scan() if isinstance(event, PartitionSeen)}
    begun = clock.monotonic()
    asked = begun - ASK_SECONDS
    never = threading.Event()
    while behind := _behind(directory, ends):
        now = clock.monotonic()
        if now - asked >= ASK_SECONDS:
            directory.seal()
            asked = now
        if timeout_ms is not None and now - begun >= timeout_ms / 1000:
            raise DataLocalError(
                f"not committed by the running uploader yet: {', '.join(behind)}",
                hint="tiered-uploader status says what it waits for",
            )
        clock.wait(never, POLL_SECONDS)


def _behind(directory: LogDirectory, ends: dict[TopicPartition, int]) -> list[str]:
    uploads = directory.uploads()
    fenced = [str(tp) for tp in ends if tp in uploads and uploads[tp].fenced]
    if fenced:
        raise FencedError(
            f"a newer claim owns {', '.join(fenced)}", hint="`tiered repair rejoin` makes this log a fresh volume"
        )
    committed = {tp: uploads[tp].end_offset if tp in uploads else 0 for tp in ends}
    return [f"{tp} {committed[tp]} of {end}" for tp, end in sorted(ends.items()) if committed[tp] < end]
