"""Record batches: the unit that is appended, stored, checksummed, uploaded and read.

The header is drawn and read in ``header``; after its 61 bytes stand the records, compressed as one piece unless
the codec is 0. Format v2 is written; v2, v1 and v0 are read.

Positions in errors are relative to the buffer that was passed in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from tiered.errors import CorruptionError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from tiered.format import _kernels, legacy
from tiered.format.codecs import MAX_DECOMPRESSED_BYTES, Codec, codec_of, compress, decompress
from tiered.format.control import ControlType, control_type
from tiered.format.crc import crc32c
from tiered.format.header import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    MAX_BATCH_BYTES,
    PREFIX_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    header_of_message,
    read_header,
)
from tiered.model import NewRecord, Record, TimestampType

__all__ = [
    "HEADER_BYTES",
    "MAX_BATCH_BYTES",
    "PREFIX_BYTES",
    "BatchHeader",
    "ControlType",
    "assign_offsets",
    "control_type",
    "decode_records",
    "encode_batch",
    "least_timestamp",
    "read_header",
    "rebuild_batch",
    "verify_batch",
]

_CRC_START = 21
_CHECKED = struct.Struct(">hiqqqhii")  # attributes to records_count: the part of the header under the CRC
_UNCHECKED = struct.Struct(">qiibI")  # base offset to CRC


def verify_batch(buf: Buffer, header: BatchHeader | None = None) -> BatchHeader:
    """Checks that ``buf`` is exactly one intact batch: lengths, counts and CRC. Returns its header.

    For a compressed v0/v1 wrapper the returned header has the real ``base_offset`` and ``records_count``. Raises
    ``CorruptionError``.
    """
    if header is None:
        header = read_header(buf)
    if header.batch_length + LOG_OVERHEAD_BYTES != len(buf):
        raise CorruptionError(f"batch of {header.size_bytes} bytes in a buffer of {len(buf)}", position=0)
    if header.magic < 2:
        message = legacy.read_message(buf, 0)
        legacy.verify_message(buf, message)
        if not message.attributes & CODEC_MASK:
            return header
        records = list(legacy.decode_message(buf, message, MAX_DECOMPRESSED_BYTES, check_crcs=True))
        return header_of_message(message, min(r.offset for r in records), len(records))
    crc = crc32c(memoryview(buf)[_CRC_START:])
    if crc != header.crc:
        raise CorruptionError(
            f"CRC mismatch at offset {header.base_offset}: stored {header.crc:#010x}, computed {crc:#010x}",
            position=0,
            offset=header.base_offset,
        )
    if header.records_count > header.last_offset_delta + 1:
        raise CorruptionError(
            f"{header.records_count} records in {header.last_offset_delta + 1} offsets",
            position=0,
            offset=header.base_offset,
        )
    return header


def decode_records(buf: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """The records of the one whole batch in ``buf``, in order; also those of a control batch (``is_control``).

    Does not check the CRC: :func:`verify_batch` does. ``max_bytes`` bounds decompression. Records of a
    LogAppendTime batch all report its ``max_timestamp``. Raises ``CorruptionError`` with the position in the
    (decompressed) records, as late as the damaged record is reached.
    """
    header = read_header(buf)
    if header.batch_length + LOG_OVERHEAD_BYTES != len(buf):
        raise CorruptionError(f"batch of {header.size_bytes} bytes in a buffer of {len(buf)}", position=0)
    if header.magic < 2:
        return legacy.decode_message(buf, legacy.read_message(buf, 0), max_bytes)
    attributes = header.attributes
    records = memoryview(buf)[HEADER_BYTES:]
    if attributes & CODEC_MASK:
        if header.records_count == 0:
            return iter(())
        data = decompress(codec_of(attributes), records, max_bytes=max_bytes)
    else:
        data = bytes(records)
    return _kernels.decode_records(
        data,
        header.records_count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if attributes & LOG_APPEND_TIME_BIT else None,
    )


def least_timestamp(header: BatchHeader, batch: Buffer) -> int:
    """The least timestamp of a verified batch's records, -1 if none has one.

    Of records that cannot be decoded, which a leader may have sent and Kafka's followers store, what the header tells.
    """
    if not header.records_count:
        return -1  # compaction emptied it, and left the largest of those that were there
    if header.records_count <= 1 or header.timestamp_type:
        return header.max_timestamp
    try:
        return min((record.timestamp for record in decode_records(batch) if record.timestamp >= 0), default=-1)
    except CorruptionError:
        return min((at for at in (header.base_timestamp, header.max_timestamp) if at >= 0), default=-1)


def encode_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_time_ms: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """One v2 batch of ``records`` at consecutive offsets from ``base_offset``. Timestamps are resolved: >= 0, or -1.

    Keys and values are ``bytes`` or a buffer of single bytes in a row (``bytearray``, ``memoryview``, an array of
    uint8); any other buffer is refused, as an array of integers has no one byte order that all readers know.
    With LogAppendTime the batch reports ``append_time_ms`` for all; the timestamps as given stay in the deltas,
    as a broker leaves them. Raises ``InvalidRecordError`` (with the record's index), ``InvalidTimestampError``,
    ``RecordTooLargeError`` beyond 2^31-1 bytes or, compressed, beyond what is decompressed again,
    ``MAX_DECOMPRESSED_BYTES``; ``ConfigError`` for a level that the codec does not have.
    """
    if not records:
        raise InvalidRecordError("a batch needs at least one record")
    if timestamp_type and append_time_ms < 0:
        raise InvalidTimestampError(f"LogAppendTime needs a time, not {append_time_ms}")
    attributes = 0
    try:
        base_timestamp = records[0][2]
        data, max_timestamp = _kernels.encode_records(records, base_timestamp)
        if timestamp_type:
            attributes |= LOG_APPEND_TIME_BIT
            max_timestamp = append_time_ms
        if codec:
            attributes |= int(codec)
            data = compress(codec, _readable(data), level)
        if transactional:
            attributes |= TRANSACTIONAL_BIT
        if control:
            attributes |= CONTROL_BIT
        count = len(records)
        checked = _CHECKED.pack(
            attributes, count - 1, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count
        )
    except (
        TypeError,
        ValueError,
        AttributeError,
        BufferError,
        struct.error,
        OverflowError,
        InvalidTimestampError,
    ) as e:
        raise _blame(records, e) from e
    return _assemble(base_offset, leader_epoch, checked, data)


def _readable(data: bytes) -> bytes:
    """Records that are to be compressed, if they may be decompressed again."""
    if len(data) > MAX_DECOMPRESSED_BYTES:
        raise RecordTooLargeError(
            f"{len(data)} bytes of records in a compressed batch, readers decompress {MAX_DECOMPRESSED_BYTES} at most",
            hint="append fewer records at once, or use no compression for them",
        )
    return data


def _assemble(base_offset: int, leader_epoch: int, checked: bytes, data: bytes) -> bytes:
    size = HEADER_BYTES + len(data)
    if size > MAX_BATCH_BYTES:
        raise RecordTooLargeError(f"batch of {size} bytes exceeds the format's {MAX_BATCH_BYTES}")
    crc = crc32c(data, crc32c(checked))
    return b"".join((_UNCHECKED.pack(base_offset, size - LOG_OVERHEAD_BYTES, leader_epoch, 2, crc), checked, data))


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _not_bytes(what: str, field: object, index: int) -> InvalidRecordError | None:
    """Why ``field`` cannot be stored as bytes, if it cannot."""
    if field is None:
        return None
    try:
        _kernels.as_bytes(field)
    except (TypeError, ValueError, BufferError):
        try:
            view = memoryview(field)  # type: ignore[arg-type]  # TypeError: no buffer
        except (TypeError, ValueError, BufferError):
            return InvalidRecordError(
                f"{what} is {type(field).__name__}, not bytes", index=index, hint="encode it first"
            )
        return InvalidRecordError(
            f"{what} is {type(field).__name__}, {view.ndim}-dimensional with items of {view.itemsize} bytes"
            f" ({view.format!r}), not bytes",
            index=index,
            hint="pass its bytes, in the byte order that readers expect, such as array.tobytes()",
        )
    return None


def _blame(records: Sequence[Any], cause: Exception) -> InvalidRecordError:
    """Finds the record that could not be encoded and says what is wrong with it."""
    for i, record in enumerate(records):
        if not isinstance(record, tuple) or len(record) != 4:
            return InvalidRecordError(
                f"record {i} is {type(record).__name__}, not (value, key, timestamp, headers)", index=i
            )
        value, key, timestamp, headers = record
        for what, field in (("value", value), ("key", key)):
            if (refusal := _not_bytes(f"record {i}: {what}", field, i)) is not None:
                return refusal
        if not isinstance(timestamp, int) or not -1 <= timestamp < 2**63:
            return InvalidTimestampError(f"record {i}: {timestamp!r} is not a timestamp in milliseconds", index=i)
        for header in headers or ():
            if not isinstance(header, (tuple, list)) or len(header) != 2:
                return InvalidRecordError(f"record {i}: header {header!r} is not a (name, value) pair", index=i)
            if not isinstance(header[0], str):
                return InvalidRecordError(
                    f"record {i}: name of header {header[0]!r} is {type(header[0]).__name__}, not str", index=i
                )
            if not _is_unicode(header[0]):
                return InvalidRecordError(f"record {i}: name of header {header[0]!r} is not valid Unicode", index=i)
            if (refusal := _not_bytes(f"record {i}: value of header {header[0]!r}", header[1], i)) is not None:
                return refusal
    return InvalidRecordError(f"batch cannot be encoded: {cause}")


def rebuild_batch(
    header: BatchHeader,
    records: Sequence[Record],
    *,
    codec: Codec | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """The batch of ``header`` with only ``records`` left, a subset of its own, offsets unchanged: compaction's output.

    Keeps offsets, last offset, epochs, producer fields, type bits. ``delete_horizon_ms`` stamps bit 6 and becomes
    the base of the timestamp deltas, so that decoded timestamps do not change; a horizon that the header already has is
    kept. With no records left it is Kafka's empty batch: 61 bytes, base timestamp -1, no codec, no horizon.
    ``codec`` None keeps the batch's own.
    """
    horizon = header.delete_horizon_ms if delete_horizon_ms is None else delete_horizon_ms
    attributes = header.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    max_timestamp = header.max_timestamp
    data = b""
    base_timestamp = -1
    if records:
        base_timestamp = records[0].timestamp if horizon is None else horizon
        attributes |= 0 if horizon is None else DELETE_HORIZON_BIT
        data = b"".join(
            _kernels.encode_record_at(
                r.offset - header.base_offset, r.timestamp - base_timestamp, r.key, r.value, r.headers
            )
            for r in records
        )
        codec = header.codec if codec is None else codec
        if codec:
            attributes |= int(codec)
            data = compress(codec, _readable(data))
        if not attributes & LOG_APPEND_TIME_BIT:
            max_timestamp = max(r.timestamp for r in records)
    checked = _CHECKED.pack(
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        len(records),
    )
    return _assemble(header.base_offset, header.leader_epoch, checked, data)


def assign_offsets(buf: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Writes base offset and leader epoch into the v2 batch at the start of ``buf``; the CRC does not cover them."""
    struct.pack_into(">q", buf, 0, base_offset)
    struct.pack_into(">i", buf, 12, leader_epoch)
