"""The header of a record batch, and the walk over batches by it.

Format v2 is written; v2, v1 and v0 are read. All integers are big-endian::

     0  base_offset        i64   not under the CRC: assigned in place by the log
     8  batch_length       i32   total size - 12
    12  leader_epoch       i32   not under the CRC
    16  magic              i8    2
    17  crc                u32   CRC-32C of byte 21 to the end
    21  attributes         i16   0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
    23  last_offset_delta  i32   last offset = base + this, also after compaction dropped the last records
    27  base_timestamp     i64   of the first record, or the delete horizon (bit 6)
    35  max_timestamp      i64   of all records, or the log's time (bit 3)
    43  producer_id        i64   -1 none
    51  producer_epoch     i16   -1 none
    53  base_sequence      i32   -1 none
    57  records_count      i32   0 for a batch that compaction emptied
    61  records, compressed as one piece unless the codec is 0

Positions in errors are relative to the buffer that was passed in.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format import legacy
from tiered.format.codecs import Codec, codec_of
from tiered.model import TimestampType

HEADER_BYTES = 61
PREFIX_BYTES = 17
"""Bytes of offset, length, epoch and magic, which give the format and the size of any batch."""

LOG_OVERHEAD_BYTES = 12
MAX_BATCH_BYTES = 2**31 - 1
_MIN_BATCH_LENGTH = 14
_MIN_V2_LENGTH = HEADER_BYTES - LOG_OVERHEAD_BYTES
_MAX_OFFSET = 2**63 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
KNOWN_BITS = 0x7F
"""Attribute bits that Kafka keeps when it rewrites the attributes of a batch."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qiib")

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """Header of a batch: the fields of a v2 header in their order. For v0 and v1 they are derived from the message.

    A compressed v0/v1 wrapper does not say how many records it holds: ``records_count`` is -1 and ``base_offset`` is
    its *last* offset, unless :func:`verify_batch` decoded it.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Codec of the records. Raises ``CodecUnavailableError`` for the unassigned numbers 5 to 7."""
        return codec_of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which tombstones and markers of this batch may be removed. None: no compaction has set it yet."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record. It wraps from 2^31-1 to 0, and is -1 without a producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % 2**31


def read_header(buf: Buffer, position: int = 0, *, limit: int | None = None) -> BatchHeader:
    """Return the header of the batch at ``position``. ``buf`` needs its 61 bytes, or 26 of a v0 or v1 message.

    ``limit``: largest accepted size of the batch in bytes, for example the rest of the file; None: any. Raises
    ``CorruptionError`` for a short buffer, an impossible length, count or offset, and an unknown magic.
    """
    try:
        fields = _HEADER.unpack_from(buf, position)
    except struct.error:
        return _read_odd_header(buf, position, limit)
    base, length, delta = fields[0], fields[1], fields[6]
    possible = length >= _MIN_V2_LENGTH and base >= 0 <= delta and fields[12] >= 0 and base + delta < _MAX_OFFSET
    if fields[3] == 2 and possible and (limit is None or length + LOG_OVERHEAD_BYTES <= limit):
        return tuple.__new__(BatchHeader, fields)
    return _read_odd_header(buf, position, limit)


def _read_odd_header(buf: Buffer, position: int, limit: int | None) -> BatchHeader:
    """Return the header of a v0 or v1 message. Raises CorruptionError for any other bytes, and above ``limit``."""
    left = len(buf) - position
    if position < 0 or left < PREFIX_BYTES:
        raise CorruptionError(f"the batch header is cut off: {max(left, 0)} bytes are left", position=position)
    base_offset, length, _, magic = _PREFIX.unpack_from(buf, position)
    if limit is not None and length + LOG_OVERHEAD_BYTES > limit:
        raise CorruptionError(
            f"batch of {length + LOG_OVERHEAD_BYTES} bytes exceeds the {limit} bytes allowed here", position=position
        )
    if length >= _MIN_BATCH_LENGTH and magic in (0, 1) and 0 <= base_offset < _MAX_OFFSET:
        return header_of_message(legacy.read_message(buf, position))
    if length >= _MIN_V2_LENGTH and magic == 2 and left < HEADER_BYTES:
        raise CorruptionError(f"the batch header is cut off: {left} bytes are left", position=position)
    what = f"offset {base_offset}, length {length}, magic {magic}"
    if left >= HEADER_BYTES:
        header = BatchHeader._make(_HEADER.unpack_from(buf, position))
        what += f", last offset delta {header.last_offset_delta}, {header.records_count} records"
    raise CorruptionError(f"impossible batch header: {what}", position=position)


def header_of_message(m: legacy.Message, base_offset: int | None = None, count: int | None = None) -> BatchHeader:
    """Return a v0 or v1 message's fields as those of a batch header.

    ``base_offset``, ``count``: those of a wrapper whose inner messages were decoded; None: take them from the message.
    """
    base = m.offset if base_offset is None else base_offset
    if count is None:
        count = -1 if m.attributes & CODEC_MASK else 1
    return BatchHeader(
        base_offset=base,
        batch_length=m.size,
        leader_epoch=-1,
        magic=m.magic,
        crc=m.crc,
        attributes=m.attributes,
        last_offset_delta=m.offset - base,
        base_timestamp=m.timestamp,
        max_timestamp=m.timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=count,
    )
