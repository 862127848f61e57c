"""All records of a partition."""

from __future__ import annotations

from tiered.format.batch import decode_records, read_header
from tiered.format.kernels import Record
from tiered.local.partition.read_log import ReadLog


def records_of(log: ReadLog, start: int) -> list[Record]:
    """Data records from ``start`` on; control records are not seen by consumers."""
    found: list[Record] = []
    for batch in log.read_batches(start):
        if not read_header(batch).is_control:
            found += [record for record in decode_records(batch) if record.offset >= start]
    return found
