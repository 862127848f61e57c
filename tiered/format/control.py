"""Control records: transaction markers and the notes that Kafka's controllers leave in a log.

::

    key    version i16 = 0 | type i16
    value  version i16 = 0 | coordinator epoch i32        (ABORT and COMMIT)

They occupy offsets but are never shown to readers. Newer versions are read as these fields and more bytes.
"""

from __future__ import annotations

import enum
import struct
from typing import Any

from tiered.errors import CorruptionError
from tiered.format.kafka_struct import Layout, as_json, read_struct
from tiered.format.kernels import Record
from tiered.model import NewRecord

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")

_VOTERS = "[{voterId:i32 voterDirectoryId+1:uuid}]"
CONTROL_RECORDS = {
    2: Layout("LeaderChange", "", f"leaderId:i32 voters:{_VOTERS} grantingVoters:{_VOTERS}", 1),
    3: Layout("SnapshotHeader", "", "lastContainedLogTimestamp:i64"),
    4: Layout("SnapshotFooter", "", ""),
    5: Layout("KRaftVersion", "", "kRaftVersion:i16"),
    6: Layout(
        "KRaftVoters",
        "",
        "voters:[{voterId:i32 voterDirectoryId:uuid endpoints:[{name:str host:str port:u16}] "
        "kRaftVersionFeature:{minSupportedVersion:i16 maxSupportedVersion:i16}}]",
    ),
}
"""Layouts of control record values by the type in their key, without the transaction markers (0 and 1)."""


class ControlType(enum.IntEnum):
    """Kafka's numbers; any other type is ``UNKNOWN`` and is skipped."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def control_type(record: Record) -> ControlType:
    """Return the type of a record of a control batch. Raises ``CorruptionError`` if its key is shorter than 4 bytes."""
    key = record.key
    if key is None or len(key) < _KEY.size:
        raise CorruptionError(f"control record {record.offset} has no type in its key", offset=record.offset)
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptionError(f"control record {record.offset} has key version {version}", offset=record.offset)
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def coordinator_epoch(record: Record) -> int:
    """Return the coordinator epoch of an ABORT or COMMIT marker. Raises ``CorruptionError`` below 6 bytes."""
    value = record.value
    if value is None or len(value) < _MARKER.size:
        raise CorruptionError(f"marker {record.offset} has no coordinator epoch", offset=record.offset)
    version, epoch = _MARKER.unpack_from(value)
    if version < 0:
        raise CorruptionError(f"marker {record.offset} has value version {version}", offset=record.offset)
    return int(epoch)


def marker(kind: ControlType, coordinator_epoch: int, timestamp: int) -> NewRecord:
    """Return the record of an ABORT or COMMIT marker, to be encoded as transactional and control."""
    return NewRecord(value=_MARKER.pack(0, coordinator_epoch), key=_KEY.pack(0, kind), timestamp=timestamp)


def control_message(record: Record) -> tuple[str, dict[str, Any]]:
    """Return Kafka's name of a control record and its fields. Raises ``CorruptionError``."""
    kind = control_type(record)
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return kind.name, {"coordinatorEpoch": coordinator_epoch(record)}
    layout = CONTROL_RECORDS.get(int(kind))
    if layout is None:
        return kind.name, {"type": int.from_bytes((record.key or b"")[2:4], "big", signed=True)}
    reader, version = layout.open(record.value or b"", layout.title)
    if not 0 <= version <= layout.highest:
        raise reader.error(f"version {version} is not in 0..{layout.highest}")
    return layout.title, {"version": version, **as_json(read_struct(reader, layout.value, version))}
