"""What ``read_committed`` needs of the local tier: aborted transactions, and the last stable offset.

Aborted transactions come from the ``.txnindex`` files, each held against its own log. The last stable
offset is the first offset of the oldest open transaction: the newest producer snapshot at or below the end names those
that were open there, the batches after it tell the rest. A log without transactions costs one listing
and a walk over headers.

Kafka's rules: docs/kafka-semantics.md#read-committed and #last-stable-offset.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tiered.errors import CorruptionError, NotFoundError
from tiered.format.batch import decode_records, read_header
from tiered.format.control import ControlType, control_type
from tiered.format.keys import SNAPSHOT_SUFFIX, parse_local_name, snapshot_name
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.txn_index import collect
from tiered.local.disk.files import Files
from tiered.local.segment.reading import Extent, View, read_batches
from tiered.model import AbortedTxn
from tiered.plan.open_txns import OpenTxn
from tiered.plan.side_files import open_firsts

_logger = logging.getLogger("tiered.local")
_NO_TXN = -1


def aborted_txns(files: Files, directory: Path, view: View, start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """Aborted transactions that touch ``start_offset`` to ``end_offset`` (exclusive), by first offset.

    From the segment of ``start_offset`` on, as Kafka collects them, until an entry or a snapshot says that nothing
    before ``end_offset`` was open any more. Raises CorruptionError for an index that is lost, or cannot be read, and
    cannot be told from the log: to guess would show aborted records.
    """
    found: set[AbortedTxn] = set()
    for extent in view.extents:
        if extent.end_offset <= start_offset:
            continue
        try:
            more, complete = collect(extent.segment.aborted_txns(), start_offset, end_offset)
        except NotFoundError:
            continue  # retention took the segment since the view was taken
        found.update(more)
        if complete or (extent.end_offset >= end_offset and _all_decided(files, directory, extent, end_offset)):
            break
    return sorted(found, key=lambda txn: txn.first_offset)


def _all_decided(files: Files, directory: Path, extent: Extent, offset: int) -> bool:
    """Whether the snapshot behind a segment says that no transaction from before ``offset`` was open there."""
    try:
        entries = decode_snapshot(files.read(directory / snapshot_name(extent.end_offset)))
    except (CorruptionError, NotFoundError):
        return False
    return min(open_firsts(entries).values(), default=offset) >= offset


def last_stable_offset(files: Files, directory: Path, view: View, log_start: int) -> int:
    """First offset of the oldest open transaction, else the end of the view; not below the start of the log.

    It may lie below the view: of a tiered log the disk holds only the end, and the bucket the transaction's beginning.
    """
    found = open_txns(files, directory, view)
    return max(min((txn.first_offset for txn in found), default=view.end_offset), log_start)


def open_txns(files: Files, directory: Path, view: View) -> list[OpenTxn]:
    """Transactions without marker, by first offset.

    One whose ABORT marker is in the newest segment and not yet in its index counts as open: a writer puts the marker
    first, and may have been killed in between. A reader that went beyond would take its records for committed.
    """
    start, found = _newest_snapshot(files, directory, view)
    tail = view.extents[-1].base_offset if view.extents else view.end_offset
    noted: set[tuple[int, int]] | None = None
    for batch in read_batches(files, view, start, view.end_offset):
        header = read_header(batch)
        if not header.is_transactional:
            continue
        if header.is_control:
            kinds = {control_type(record) for record in decode_records(batch)}
            if ControlType.ABORT in kinds and header.base_offset >= tail and header.producer_id in found:
                if noted is None or (header.producer_id, header.base_offset) not in noted:
                    aborted = view.extents[-1].segment.aborted_txns()
                    noted = {(txn.producer_id, txn.last_offset) for txn in aborted}
                if (header.producer_id, header.base_offset) not in noted:
                    continue
            if not kinds.isdisjoint((ControlType.ABORT, ControlType.COMMIT)):
                found.pop(header.producer_id, None)
        else:
            known = found.get(header.producer_id)
            first = header.base_offset if known is None else known.first_offset
            coordinator_epoch = -1 if known is None else known.coordinator_epoch
            found[header.producer_id] = OpenTxn(
                header.producer_id, header.producer_epoch, first, header.max_timestamp, coordinator_epoch
            )
    return sorted(found.values(), key=lambda txn: txn.first_offset)


def _newest_snapshot(files: Files, directory: Path, view: View) -> tuple[int, dict[int, OpenTxn]]:
    """Where to begin, and the transactions open there. A damaged snapshot is passed over for the next older one."""
    for offset, path in reversed(_files_of(files, directory, SNAPSHOT_SUFFIX)):
        if not view.start_offset <= offset <= view.end_offset:
            continue
        try:
            entries = decode_snapshot(files.read(path))
        except (CorruptionError, NotFoundError) as error:
            _logger.warning("%s is passed over: %s", path, error)
            continue
        return offset, {
            e.producer_id: OpenTxn(
                e.producer_id, e.producer_epoch, e.txn_first_offset, e.timestamp, e.coordinator_epoch
            )
            for e in entries
            if e.txn_first_offset != _NO_TXN
        }
    return view.start_offset, {}


def _files_of(files: Files, directory: Path, suffix: str) -> list[tuple[int, Path]]:
    parsed = ((name, parse_local_name(name)) for name in files.names(directory))
    return sorted(
        (file.base, directory / name) for name, file in parsed if file and file.suffix == suffix and not file.work
    )
