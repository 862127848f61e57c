"""Writes the transaction index of a recovered segment anew, from its markers.

Which transactions were open where the segment begins is told by the newest snapshot at or below it, and by the batches
between the two. A segment that has neither transactions nor an index of them is never read for this.

Kafka's rule: docs/kafka-semantics.md#segment-recovery.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from tiered.errors import CorruptionError, NotFoundError
from tiered.format.batch import decode_records
from tiered.format.control import ControlType, control_type
from tiered.format.header import BatchHeader
from tiered.format.keys import log_name, snapshot_name, txn_index_name
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.txn_index import encode_txns
from tiered.format.walk import NO_LIMIT, Offsets
from tiered.local.disk.files import Files
from tiered.local.disk.snapshots import snapshot_offsets
from tiered.local.segment.scan import LogFile
from tiered.model import AbortedTxn

LOGGER = logging.getLogger("tiered.local")

NO_TXN = -1


class OpenTransactions:
    """First offset of the open transaction of each producer, as batches pass by."""

    def __init__(self, first_offsets: dict[int, int]) -> None:
        self._first = first_offsets

    def see(self, header: BatchHeader, batch: memoryview) -> AbortedTxn | None:
        """One batch; the index entry if it is the marker of an abort."""
        if not header.is_transactional:
            return None
        if not header.is_control:
            self._first.setdefault(header.producer_id, header.base_offset)
            return None
        kinds = {control_type(record) for record in decode_records(batch)}
        if not kinds & {ControlType.ABORT, ControlType.COMMIT}:
            return None
        first = self._first.pop(header.producer_id, None)
        if first is None or ControlType.ABORT not in kinds:
            return None
        stable = min(self._first.values(), default=header.last_offset + 1)
        return AbortedTxn(header.producer_id, first, header.last_offset, stable)


def rebuild_txn_index(files: Files, directory: Path, bases: Sequence[int], base_offset: int) -> bool:
    """Replaces the ``.txnindex`` of ``base_offset`` if it is not what the log says; returns whether it did.

    ``bases``: of all segments, ascending. Where the log is damaged nothing is changed.
    """
    path = directory / txn_index_name(base_offset)
    try:
        start, first_offsets = _known_before(files, directory, base_offset)
        state = OpenTransactions(first_offsets)
        earlier = [base for base in bases if base < base_offset]
        skip = max((i for i, base in enumerate(earlier) if base <= start), default=0)
        following = dict(itertools.pairwise(bases))
        for base in earlier[skip:]:
            for header, batch in _batches(files, directory, base, following[base]):
                if header.base_offset >= start:
                    state.see(header, batch)
        batches = _batches(files, directory, base_offset, following.get(base_offset, NO_LIMIT))
        entries = [state.see(header, batch) for header, batch in batches]
    except CorruptionError as error:
        LOGGER.warning("txn_index_not_rebuilt path=%s error=%s", path, error)
        return False
    data = encode_txns(entry for entry in entries if entry is not None)
    try:
        before = files.read(path)
    except NotFoundError:
        before = b""
    if before == data:
        return False
    files.replace(path, data)
    LOGGER.warning("txn_index_rebuilt path=%s entries=%d", path, sum(entry is not None for entry in entries))
    return True


def has_entries(files: Files, directory: Path, base_offset: int) -> bool:
    """Whether anything stands in the ``.txnindex``; an entry without its marker hides what is committed later."""
    state = files.state(directory / txn_index_name(base_offset))
    return state is not None and state.size > 0


def _known_before(files: Files, directory: Path, offset: int) -> tuple[int, dict[int, int]]:
    """The newest readable snapshot at or below ``offset``: its offset, and the transactions open there."""
    for known in reversed(snapshot_offsets(files, directory)):
        if known > offset:
            continue
        try:
            entries = decode_snapshot(files.read(directory / snapshot_name(known)))
        except (CorruptionError, NotFoundError) as error:
            LOGGER.warning("snapshot_passed_over offset=%d directory=%s error=%s", known, directory, error)
            continue
        return known, {e.producer_id: e.txn_first_offset for e in entries if e.txn_first_offset != NO_TXN}
    return 0, {}


def _batches(
    files: Files, directory: Path, base_offset: int, next_offset: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """All of a segment, or CorruptionError: an index of what is left of one would show aborted records as committed."""
    with LogFile(files, directory / log_name(base_offset)) as log:
        for span, view in log.segment(0, log.size(), Offsets(base_offset, next_offset)):
            yield log.verify(span, view), view
