"""The offsets that a consumer asks a partition for: by time, at an end of the log, and at the end of a leader epoch.

Kafka's rules: docs/kafka-semantics.md#offset-by-timestamp.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.format.header import read_header
from tiered.local.partition.read_log import ReadLog

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""The ends of the log that a timestamp below 0 asks for."""

NO_EPOCH = -1


class ListedOffset(NamedTuple):
    """``timestamp`` -1 where an end of the log was asked for; ``leader_epoch`` -1 if it is not known."""

    offset: int
    timestamp: int
    leader_epoch: int


def list_offset(log: ReadLog, timestamp: int) -> ListedOffset | None:
    """Return the first record at or after ``timestamp`` ms, or the end that a negative one asks for.

    Those are ``LATEST`` (-1), ``EARLIEST`` (-2), ``MAX_TIMESTAMP`` (-3: its first record), ``EARLIEST_LOCAL`` (-4)
    and ``LATEST_TIERED`` (-5: offset -1 if the bucket holds nothing). None: there is no such record, or no bucket.
    """
    positions, epochs = log.positions(), log.epochs
    if timestamp == LATEST:
        return ListedOffset(positions.end_offset, -1, epochs.latest)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = positions.start_offset if timestamp == EARLIEST else positions.local_start_offset
        return ListedOffset(start, -1, epochs.epoch_at(start))
    if timestamp == LATEST_TIERED:
        if log.upload is None:
            return None
        last = positions.uploaded_offset - 1
        return ListedOffset(last, -1, epochs.epoch_at(last))
    found = log.largest_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_time(timestamp)
    if found is None:
        return None
    batch = next(log.read_batches(found[0], max_bytes=0), None)
    return ListedOffset(*found, NO_EPOCH if batch is None else read_header(batch).leader_epoch)


def offset_for_leader_epoch(log: ReadLog, epoch: int) -> tuple[int, int]:
    """Return (epoch, its exclusive end) of the greatest epoch at or below ``epoch``; (-1, -1) if that is not known."""
    return log.epochs.end_offset_for(epoch, log.end_offset)
