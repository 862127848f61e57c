"""Producer state at an offset (``.snapshot``; the number in the name is the *exclusive* end of the state).

Big-endian::

     0  version  i16   1
     2  crc      u32   CRC-32C of byte 6 to the end
     6  count    i32
    10  count x 46 bytes:
         0  producer id               i64
         8  producer epoch            i16
        10  last sequence             i32   -1 without batch metadata
        14  last offset               i64   negative: no batch metadata
        22  offset delta              i32   of the newest batch: last minus first offset
        26  timestamp                 i64
        34  coordinator epoch         i32   -1 none
        38  current txn first offset  i64   -1 none

Only the newest batch of a producer is stored: after a load, duplicates are detected for one batch, not five.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format.kernels import crc32c

PRODUCER_ENTRY_BYTES = 46
SNAPSHOT_HEADER_BYTES = 10
_VERSION = 1
_CRC_END = 6
_HEADER = struct.Struct(">hIi")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class ProducerEntry(NamedTuple):
    """State of one producer; the fields of the file in their order.

    ``last_sequence`` to ``timestamp``: of the newest batch. ``offset_delta``: its last minus its first offset.
    ``last_offset`` below 0: no batch. ``txn_first_offset``: start of the open transaction, -1 without one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int = -1
    txn_first_offset: int = -1


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the bytes of a snapshot file with ``entries`` in order; 10 bytes for none."""
    packed = [
        _ENTRY.pack(*e) if e.last_offset >= 0 else _ENTRY.pack(*e._replace(last_sequence=-1, offset_delta=0))
        for e in entries
    ]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return struct.pack(">hI", _VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes | bytearray | memoryview) -> list[ProducerEntry]:
    """Return the producers in the snapshot file ``data``.

    Raises ``CorruptionError`` for a wrong CRC, version, count or length. Callers delete a corrupt snapshot and use the
    next older one.
    """
    if len(data) < SNAPSHOT_HEADER_BYTES:
        raise CorruptionError(f"producer snapshot of {len(data)} bytes is too short", position=0)
    version, stored, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise CorruptionError(f"producer snapshot has version {version}, not {_VERSION}", position=0)
    computed = crc32c(memoryview(data)[_CRC_END:])
    if computed != stored:
        raise CorruptionError(f"producer snapshot CRC: stored {stored:#010x}, computed {computed:#010x}", position=2)
    if count < 0 or SNAPSHOT_HEADER_BYTES + count * PRODUCER_ENTRY_BYTES != len(data):
        raise CorruptionError(f"producer snapshot of {len(data)} bytes claims {count} producers", position=_CRC_END)
    return [ProducerEntry._make(e) for e in _ENTRY.iter_unpack(memoryview(data)[SNAPSHOT_HEADER_BYTES:])]
