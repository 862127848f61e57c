"""Follows the producers of a partition over its files: from the newest good snapshot to the end of a segment."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tiered.errors import CorruptionError, NotFoundError
from tiered.format.batch import decode_records
from tiered.format.control import ControlType, control_type
from tiered.format.keys import log_name, snapshot_name
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.walk import NO_LIMIT, Offsets, hop
from tiered.local.disk.files import Files
from tiered.local.disk.names import PLAIN_NAME, snapshot_offsets
from tiered.local.segment.scan import LogFile
from tiered.plan.producer import read_producer
from tiered.plan.producer_state import Snapshot
from tiered.plan.side_files import Followed, Follower

LOGGER = logging.getLogger("tiered.local")


def abort_markers(log: LogFile, end: int) -> Iterator[tuple[int, int]]:
    """Producer id and offset of each ABORT marker below the position ``end``: a hop from header to header.

    Only markers are read. Raises CorruptionError where lengths lead no further.
    """
    for position, header in hop(lambda at: log.header_at(at, end), 0, end):
        if header.is_control:
            batch = log.read_at(position, header.size_bytes)
            if any(control_type(record) is ControlType.ABORT for record in decode_records(batch)):
                yield header.producer_id, header.base_offset


def replay(  # noqa: PLR0917 - where the segment is, and what is around it
    files: Files, directory: Path, log: Path, base_offset: int, bases: Sequence[int], size_bytes: int = -1
) -> Followed:
    """What the batches of the segment at ``base_offset``, now the file ``log``, tell of transactions and producers.

    ``bases``: of the segments of the log. ``size_bytes``: so much of one that grows. Nothing is known of what came
    before the first of them, unless that is offset 0, or a snapshot or ``tiered-plain`` tells. Raises CorruptionError
    where a batch is damaged.
    """
    earlier = sorted(base for base in bases if base < base_offset)
    first = earlier[0] if earlier else base_offset
    known = _newest_snapshot(files, directory, first, base_offset)
    plain = known is None and files.state(directory / PLAIN_NAME) is not None
    start = known.offset if known is not None else base_offset if plain else first
    follower = Follower(known, whole=known is not None or plain or first == 0)
    for base, following in itertools.pairwise((*earlier, base_offset)):
        if following > start:
            _follow(files, directory / log_name(base), Offsets(base, following), follower, start)
    follower.end_segment()
    _follow(files, log, Offsets(base_offset, NO_LIMIT), follower, start, size_bytes)
    return follower.end_segment()


def _follow(  # noqa: PLR0917 - as replay
    files: Files, path: Path, offsets: Offsets, follower: Follower, start: int, size_bytes: int = -1
) -> None:
    with LogFile(files, path) as log:
        for span, view in log.segment(0, log.size() if size_bytes < 0 else size_bytes, offsets):
            if span.last_offset >= start:
                header = log.verify(span, view)
                follower.see(read_producer(header, view))


def _newest_snapshot(files: Files, directory: Path, least: int, greatest: int) -> Snapshot | None:
    for offset in _between(snapshot_offsets(files, directory), least, greatest):
        try:
            return Snapshot(offset, tuple(decode_snapshot(files.read(directory / snapshot_name(offset)))))
        except (CorruptionError, NotFoundError) as error:
            LOGGER.warning("snapshot_passed_over offset=%d directory=%s error=%s", offset, directory, error)
    return None


def _between(offsets: Iterable[int], least: int, greatest: int) -> list[int]:
    return sorted((offset for offset in offsets if least <= offset <= greatest), reverse=True)
