"""The transaction index (``.txnindex``): aborted transactions whose marker is in the segment.

One entry of 34 bytes, big-endian::

     0  version             i16   0
     2  producer id         i64
    10  first offset        i64   of the transaction's data
    18  last offset         i64   of the ABORT marker
    26  last stable offset  i64   right after the marker was written

Last offsets rise strictly. The file does not exist before the first abort; it is never preallocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from tiered.errors import CorruptionError
from tiered.model import AbortedTxn

TXN_ENTRY_BYTES = 34
_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")


def encode_entry(txn: AbortedTxn) -> bytes:
    return _ENTRY.pack(_VERSION, *txn)


def encode_txns(txns: Iterable[AbortedTxn]) -> bytes:
    """Return the bytes of the file with ``txns`` in order; empty for none."""
    return b"".join(map(encode_entry, txns))


def decode_txns(data: bytes | bytearray | memoryview, base_offset: int = 0) -> list[AbortedTxn]:
    """Return the entries in ``data``. As in Kafka, a partial one at the end (a torn write) is left out.

    Raises ``CorruptionError`` for an unknown version, a marker below ``base_offset`` and last offsets that do not rise.
    """
    txns: list[AbortedTxn] = []
    last = base_offset - 1
    for position in range(0, len(data) - TXN_ENTRY_BYTES + 1, TXN_ENTRY_BYTES):
        version, *fields = _ENTRY.unpack_from(data, position)
        if version != _VERSION:
            raise CorruptionError(f"transaction index entry has version {version}", position=position)
        txn = AbortedTxn(*fields)
        if txn.last_offset <= last:
            raise CorruptionError(
                f"transaction index entry ends at {txn.last_offset}, which is not above {last}",
                position=position,
                offset=txn.last_offset,
            )
        last = txn.last_offset
        txns.append(txn)
    return txns


def truncate(txns: Sequence[AbortedTxn], offset: int) -> list[AbortedTxn]:
    """Return the entries whose marker is below ``offset``."""
    return [t for t in txns if t.last_offset < offset]
