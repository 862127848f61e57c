"""State for ``read_committed`` on a disk (``plan.visibility`` decides): aborted transactions, the last stable offset.

Aborted transactions come from the ``.txnindex`` files, each compared with its own log. The last stable offset is the
first offset of the oldest open transaction: the newest producer snapshot at or below the end names those that were open
there, the batches after it add the rest. A log without transactions costs one listing and a walk over headers.

Kafka's rules: docs/kafka-semantics.md#read-committed and #last-stable-offset.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tiered.errors import CorruptionError, NotFoundError
from tiered.format.batch_scanner import cut
from tiered.format.header import read_header
from tiered.format.local_names import SNAPSHOT_SUFFIX, parse_local_name, snapshot_name
from tiered.format.producer_snapshot import decode_snapshot
from tiered.local.disk.files import Files
from tiered.local.segment.read_view import Extent, View
from tiered.local.segment.reading import read_runs
from tiered.model import AbortedTxn
from tiered.plan.producer import read_producer
from tiered.plan.producer_state import ProducerSnapshot, ProducerState
from tiered.plan.visibility import OpenTxn, aborted_within, open_firsts, stable_offset

_logger = logging.getLogger("tiered.local")


def aborted_txns(files: Files, directory: Path, view: View, start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """Return aborted transactions that touch ``start_offset`` to ``end_offset`` (exclusive), by first offset.

    They are collected from the segment of ``start_offset`` on, as in Kafka, until an entry or a snapshot proves that no
    transaction from before ``end_offset`` is open. Raises CorruptionError for an index that is lost or unreadable, and
    that the log cannot replace: a guess would show aborted records.
    """
    found: set[AbortedTxn] = set()
    for extent in view.extents_from(start_offset):
        if extent.end_offset <= start_offset:
            continue
        try:
            more, complete = aborted_within(extent.segment.aborted_txns(), start_offset, end_offset)
        except NotFoundError:
            continue  # retention took the segment since the view was taken
        found.update(more)
        if complete or (extent.end_offset >= end_offset and _all_decided(files, directory, extent, end_offset)):
            break
    return sorted(found, key=lambda txn: txn.first_offset)


def _all_decided(files: Files, directory: Path, extent: Extent, offset: int) -> bool:
    """Return True if the snapshot after a segment has no open transaction from before ``offset``."""
    try:
        entries = decode_snapshot(files.read(directory / snapshot_name(extent.end_offset)))
    except (CorruptionError, NotFoundError):
        return False
    return min(open_firsts(entries).values(), default=offset) >= offset


def last_stable_offset(files: Files, directory: Path, view: View, log_start: int) -> int:
    """Return first offset of the oldest open transaction, or the view's end; not below the log start.

    It may be below the view: the disk of a tiered log holds only the end, and the bucket the transaction's beginning.
    """
    firsts = (txn.first_offset for txn in open_txns(files, directory, view))
    return stable_offset(firsts, log_start, view.end_offset)


def open_txns(files: Files, directory: Path, view: View) -> list[OpenTxn]:
    """Return the open transactions, by first offset.

    A transaction whose ABORT marker is in the newest segment but not in its index counts as open. A writer writes the
    marker first, and a reader that went beyond it would show the aborted records.
    """
    producers = ProducerState()
    known = _newest_snapshot(files, directory, view)
    producers.load(known, log_start=0, now_ms=0)  # at time 0 no producer has expired
    tail = view.tail
    noted: set[tuple[int, int]] | None = None
    runs = read_runs(files, view, known.offset, view.end_offset)
    for data in (each for run in runs for each in cut(run.data)):
        batch = read_producer(read_header(data), data)
        if batch is None:
            continue
        marker = batch.marker
        is_open = any(producer == batch.producer_id for _, producer in producers.open_txns())
        if (
            marker is not None
            and marker.abort
            and is_open
            and tail is not None
            and batch.base_offset >= tail.base_offset
        ):
            if noted is None:
                aborted = tail.segment.aborted_txns()
                noted = {(txn.producer_id, txn.last_offset) for txn in aborted}
            if (batch.producer_id, batch.base_offset) not in noted:
                continue
        producers.replay(batch)
    return producers.describe_open_txns()


def _newest_snapshot(files: Files, directory: Path, view: View) -> ProducerSnapshot:
    """Return the newest good producer snapshot inside the view; an empty one at its start without any."""
    parsed = ((name, parse_local_name(name)) for name in files.names(directory))
    found = ((file.base, name) for name, file in parsed if file and file.suffix == SNAPSHOT_SUFFIX and not file.work)
    for offset, name in sorted(found, reverse=True):
        if not view.start_offset <= offset <= view.end_offset:
            continue
        try:
            return ProducerSnapshot(offset, tuple(decode_snapshot(files.read(directory / name))))
        except (CorruptionError, NotFoundError) as error:
            _logger.warning("%s is passed over: %s", directory / name, error)
    return ProducerSnapshot(view.start_offset)
