"""Control records: transaction markers, and the notes of Kafka's controllers, of which only the type is read.

::

    key    version i16 = 0 | type i16
    value  version i16 = 0 | coordinator epoch i32        (ABORT and COMMIT)

They occupy offsets but are never shown to readers. Newer versions are read as these fields and more bytes.
"""

from __future__ import annotations

import enum
import struct

from tiered.errors import CorruptionError
from tiered.format.kernels import Record
from tiered.model import NewRecord

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")


class ControlType(enum.IntEnum):
    """Types of control records, with Kafka's numbers. Any other type is ``UNKNOWN`` and is skipped."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def control_type(record: Record) -> ControlType:
    """Return the type of a record of a control batch.

    Raises ``CorruptionError`` if its key is null, shorter than 4 bytes, or of a negative version.
    """
    key = record.key
    if key is None or len(key) < _KEY.size:
        raise CorruptionError(f"control record {record.offset} has no type in its key", offset=record.offset)
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptionError(
            f"control record {record.offset} has key version {version}; no version is negative", offset=record.offset
        )
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def coordinator_epoch(record: Record) -> int:
    """Return the coordinator epoch in the value of an ABORT or COMMIT marker.

    Raises ``CorruptionError`` if the value is null, shorter than 6 bytes, or of a negative version.
    """
    value = record.value
    if value is None or len(value) < _MARKER.size:
        raise CorruptionError(f"marker {record.offset} has no coordinator epoch", offset=record.offset)
    version, epoch = _MARKER.unpack_from(value)
    if version < 0:
        raise CorruptionError(f"marker {record.offset} has value version {version}", offset=record.offset)
    return int(epoch)


def marker(kind: ControlType, coordinator_epoch: int, timestamp: int) -> NewRecord:
    """Return the record of an ABORT or COMMIT marker. Its batch needs both bits: transactional and control."""
    return NewRecord(value=_MARKER.pack(0, coordinator_epoch), key=_KEY.pack(0, kind), timestamp=timestamp)
