"""Checks of an append, and the timestamps it assigns. One bad record refuses the whole call.

Encoded batches of producers and coordinators get their offsets under the lock. As in Kafka, a
producer's batch keeps its bytes if the topic keeps its codec and its offsets are 0, 1, 2 and so on. Then only these
header fields change. The CRC changes only with one of the last two::

     0  base_offset    i64   given under the lock        21  attributes     i16   bit 3: timestamp type
    12  leader_epoch   i32   given under the lock        35  max_timestamp  i64
    17  crc            u32   of bytes 21 to the end

Anything else is decoded and encoded again. Format v0 and v1 becomes v2.

Kafka's rule: docs/kafka-semantics.md#append-validation.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import cast

from tiered.config import TopicConfig
from tiered.errors import CorruptionError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from tiered.format import kernels
from tiered.format.batch import (
    HEADER_BYTES,
    BatchHeader,
    BatchProducer,
    decode_records,
    encode_batch,
    least_timestamp,
    read_header,
    verify_batch,
)
from tiered.format.batch_scanner import BatchWalk, corrupt_at, hop
from tiered.format.codecs import Codec, configured, has_linked_blocks
from tiered.format.header import KNOWN_BITS, LOG_APPEND_TIME_BIT, MAX_BATCH_BYTES, TRANSACTIONAL_BIT
from tiered.format.kernel_values import NO_PRODUCER, BatchForm
from tiered.format.kernels import Record, crc32c
from tiered.local.segment.active import BatchFacts
from tiered.model import NO_TIMESTAMP, NewRecord, PackedBatch, TimestampType

NAMED_RECORDS = 3
"""Number of refused records that an error message lists."""

MAX_BATCH_RECORDS = 1 << 20
"""Largest number of records in a producer's batch: all are in memory at once, and a record may have only seven bytes.

Kafka's clients put fewer into a batch (librdkafka: at most a million). Batches that a broker has written are read
record by record, without this limit.
"""

_V2 = 2
_CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 17, 21, 35
Piece = tuple[bytes, BatchHeader]


class RecordRules:
    """Rules of one topic for appended records, derived once from its settings."""

    def __init__(self, config: TopicConfig) -> None:
        self.timestamp_type = config.timestamp_type
        self.max_bytes = min(config.max_message_bytes, config.segment_bytes)
        self.limit_name = "max.message.bytes" if self.max_bytes == config.max_message_bytes else "segment.bytes"
        self.codec, self.level = configured(config)
        self.keeps_codec = config.compression_type == "producer"
        self._keyed = config.compacted
        self._before_ms = config.message_timestamp_before_max_ms
        self._after_ms = config.message_timestamp_after_max_ms
        self.form: BatchForm | None = None  # of a batch that one call encodes; None: the topic wants it compressed
        if self.codec is Codec.NONE:
            attributes = LOG_APPEND_TIME_BIT if self.timestamp_type else 0
            most = min(self.max_bytes, MAX_BATCH_BYTES)
            self.form = BatchForm(self._keyed, most, attributes, False, False, self._before_ms, self._after_ms)

    def encode(
        self,
        records: Sequence[object],
        now_ms: int,
        producer: tuple[int, int, int] = NO_PRODUCER,
        *,
        given: bool = False,
    ) -> tuple[bytearray, int, int, int]:
        """Encode ``records`` as one batch. Return (batch, first timestamp, smallest timestamp, largest timestamp).

        The batch has base offset 0 and no leader epoch. ``now_ms``: wall clock, for records without timestamp and for
        LogAppendTime. ``producer``: id, epoch and base sequence for a batch of a transaction. ``given``: ``records``
        may have any form that ``append_many`` accepts, checked by the caller.
        Raises InvalidRecordError for a malformed record, or one without a key in a compacted topic. Raises also
        InvalidTimestampError and RecordTooLargeError.
        """
        transactional = producer[0] >= 0
        if self.form is not None:
            form = self.form._replace(mutable=True, given=given)
            if transactional:
                form = form._replace(attributes=form.attributes | TRANSACTIONAL_BIT)
            found = kernels.encode_batch(records, form, now_ms, now_ms, 0, -1, producer)
            if found is not None:
                data, facts, first = found[:3]
                return cast("bytearray", data), first, facts[3], facts[4]
        plain = [as_record(record) for record in records] if given else cast("Sequence[NewRecord]", records)
        settled, least, greatest = self.checked_times(plain, now_ms)
        encoded = encode_batch(
            settled,
            codec=self.codec,
            level=self.level,
            timestamp_type=self.timestamp_type,
            append_time_ms=now_ms if self.timestamp_type else -1,
            producer=BatchProducer(*producer, transactional=transactional),
        )
        self.check_size(len(encoded), settled)
        return bytearray(encoded), now_ms if self.timestamp_type else settled[0][2], least, greatest

    def takes(self, batch: PackedBatch, now_ms: int) -> bool:
        """Return True if the topic's codec, keys, size limit and timestamps allow the unchanged ``batch``."""
        return (
            self.codec is Codec.NONE
            and not self.timestamp_type
            and (batch.keyed or not self._keyed)
            and len(batch.data) <= self.max_bytes
            and self._are_in_time(batch.min_timestamp, batch.max_timestamp, now_ms)
        )

    def checked_times(self, records: Sequence[NewRecord], now_ms: int) -> tuple[Sequence[NewRecord], int, int]:
        """Check keys and timestamps. Return (records with timestamps, smallest timestamp, largest timestamp).

        A missing timestamp (-1) becomes ``now_ms``. With LogAppendTime both returned timestamps are ``now_ms``. Raises
        InvalidTimestampError for wrong timestamps, otherwise InvalidRecordError for missing keys. The error's ``index``
        is that of the first refused record. A malformed record raises InvalidRecordError without its index.
        """
        try:
            keyless = [i for i, record in enumerate(records) if record[1] is None] if self._keyed else []
            if len(records) == 1:
                least = greatest = records[0][2]
            else:
                stamps = [record[2] for record in records]
                least, greatest = min(stamps, default=0), max(stamps, default=0)
            if least < 0:
                records, least, greatest = self._stamp(records, least, greatest, now_ms)
        except (TypeError, IndexError, ValueError, AttributeError):
            raise InvalidRecordError(
                "a record is not (value, key, timestamp, headers) with a timestamp in whole milliseconds",
                hint="pass `NewRecord(value, key, timestamp)` with an int, or with no timestamp for now",
            ) from None
        if self.timestamp_type:
            least = greatest = now_ms
        elif not self._are_in_time(least, greatest, now_ms):
            late = [i for i, r in enumerate(records) if not self._in_time(r[2], now_ms)]
            raise self._bad_times(late, records[late[0]][2], now_ms)
        if keyless:
            raise _keyless(keyless)
        return records, least, greatest

    def _stamp(
        self, records: Sequence[NewRecord], least: int, greatest: int, now_ms: int
    ) -> tuple[Sequence[NewRecord], int, int]:
        """Return the records with ``now_ms`` where they have no timestamp, and their smallest and largest timestamp.

        ``least``, ``greatest``: before this change. Raises InvalidTimestampError if ``least`` is below -1.
        """
        if least < NO_TIMESTAMP:
            raise self._bad_time([record[2] for record in records].index(least), least, now_ms)
        if greatest == NO_TIMESTAMP:
            stamped = [(value, key, now_ms, headers) for value, key, _, headers in records]
            return cast("list[NewRecord]", stamped), now_ms, now_ms  # a NamedTuple for each would double the time
        mixed = [(v, key, now_ms if at == NO_TIMESTAMP else at, headers) for v, key, at, headers in records]
        stamps = [record[2] for record in mixed]
        return cast("list[NewRecord]", mixed), min(stamps), max(stamps)

    def check_size(self, size_bytes: int, records: Sequence[NewRecord]) -> None:
        """Raise RecordTooLargeError if a batch of ``size_bytes`` is too large.

        The error has the index of the largest record.
        """
        if size_bytes > self.max_bytes:
            sizes = [len(r[0] or b"") + len(r[1] or b"") for r in records]
            largest = max(range(len(sizes)), key=sizes.__getitem__, default=0)
            smaller = "append fewer records in one call" if len(records) > 1 else "make the record smaller"
            raise RecordTooLargeError(
                f"a batch of {len(records):,} record{'s' if len(records) != 1 else ''} has {size_bytes} bytes,"
                f" and {self.limit_name} is {self.max_bytes}",
                index=largest,
                hint=f"{smaller}, or raise {self.limit_name}",
            )

    def check_records(
        self, records: Sequence[Record], now_ms: int, first_index: int, *, refuse_missing_time: bool = False
    ) -> tuple[int, int]:
        """Check keys and timestamps of decoded records. Return (smallest, largest timestamp); both -1 without any.

        ``first_index``: index of the first record in the call, for messages. ``refuse_missing_time``: refuse also a
        timestamp of -1. Raises InvalidTimestampError for timestamps, otherwise InvalidRecordError for missing keys. The
        error has the indexes of all records with that fault.
        """
        late: list[int] = []
        keyless: list[int] = []
        least, greatest = -1, -1
        for i, record in enumerate(records, start=first_index):
            stamp = record.timestamp
            if self._keyed and record.key is None:
                keyless.append(i)
            if not self.timestamp_type and (
                refuse_missing_time if stamp == NO_TIMESTAMP else not self._in_time(stamp, now_ms)
            ):
                late.append(i)
            if 0 <= stamp < least or (least < 0 <= stamp):
                least = stamp
            greatest = max(greatest, stamp)
        if late:
            raise self._bad_times(late, records[late[0] - first_index].timestamp, now_ms)
        if keyless:
            raise _keyless(keyless)
        return least, greatest

    def _are_in_time(self, least: int, greatest: int, now_ms: int) -> bool:
        """Return True if the topic accepts records with timestamps in this range, or does not check timestamps."""
        return bool(self.timestamp_type) or (now_ms - least <= self._before_ms and greatest - now_ms <= self._after_ms)

    def _in_time(self, timestamp: int, now_ms: int) -> bool:
        return timestamp >= 0 and -self._after_ms <= now_ms - timestamp <= self._before_ms

    def _bad_time(self, index: int, timestamp: int, now_ms: int) -> InvalidTimestampError:
        return self._bad_times([index], timestamp, now_ms)

    def _bad_times(self, indexes: Sequence[int], timestamp: int, now_ms: int) -> InvalidTimestampError:
        return InvalidTimestampError(
            f"{_named(indexes)} timestamp {timestamp}, outside the range around the log's clock, {now_ms}",
            index=indexes[0],
            indexes=tuple(indexes),
            hint="correct the timestamp, or raise message.timestamp.before.max.ms or message.timestamp.after.max.ms",
        )


def as_record(given: object) -> NewRecord:
    """Convert an argument of ``append_many``, which the caller has checked, to a ``NewRecord``."""
    if isinstance(given, NewRecord):
        return given
    return NewRecord(*given) if isinstance(given, tuple) else NewRecord(cast("bytes", given))


def _named(indexes: Sequence[int]) -> str:
    """Return the subject of a message: ``record 3 has``, or the first few of many."""
    if len(indexes) == 1:
        return f"record {indexes[0]} has"
    more = f" and {len(indexes) - NAMED_RECORDS} more" if len(indexes) > NAMED_RECORDS else ""
    return f"records {', '.join(map(str, indexes[:NAMED_RECORDS]))}{more} are refused; the first has"


def _keyless(indexes: Sequence[int]) -> InvalidRecordError:
    return InvalidRecordError(
        f"{_named(indexes)} no key, and the topic is compacted",
        index=indexes[0],
        indexes=tuple(indexes),
        hint="give every record a key",
    )


def stored_batches(rules: RecordRules, data: bytes, now_ms: int) -> list[tuple[bytes, BatchFacts]]:
    """Return a producer's batches as they will be stored, except for their offsets and leader epoch.

    ``data``: encoded batches. ``last_offset`` of the facts counts from the batch's first record. Raises
    InvalidRecordError, InvalidTimestampError or RecordTooLargeError. The error's ``index`` counts the records of
    ``data``. For a batch that is incomplete or has a wrong CRC it counts batches.
    """
    settled: list[tuple[bytes, BatchFacts]] = []
    index = 0
    for legacy, group in itertools.groupby(split(data), key=lambda piece: piece[1].magic < 2):
        if legacy:
            settled.append(_upgraded(rules, list(group), now_ms, index))
            index += settled[-1][1].records
        else:
            for piece, header in group:
                settled.append(_settled(rules, piece, header, now_ms, index))
                index += header.last_offset_delta + 1
    return settled


def split(data: bytes) -> list[Piece]:
    """Return (bytes, header) of each batch in ``data``.

    Raises InvalidRecordError unless ``data`` has one or more whole, intact batches.
    """
    batches: list[Piece] = []
    try:
        for position, header in hop(lambda at: read_header(data, at, limit=len(data) - at), 0, len(data)):
            piece = bytes(data[position : position + header.size_bytes])
            batches.append((piece, verify_batch(piece)))
    except CorruptionError as error:
        position = sum(len(piece) for piece, _ in batches)
        raise InvalidRecordError(
            f"batch {len(batches)} at byte {position} cannot be appended: {error.message}",
            index=len(batches),
            hint="append_batches takes whole v2 batches, one after the other; append takes records",
        ) from error
    if not batches:
        raise InvalidRecordError("there is no batch to append", hint="append_batches takes whole v2 batches")
    return batches


def _settled(
    rules: RecordRules, buffer: bytes, header: BatchHeader, now_ms: int, first_index: int
) -> tuple[bytes, BatchFacts]:
    _check_batch(rules, buffer, header, first_index)
    create_time = bytearray(buffer)  # with the timestamps as sent, also where the log's time hides them
    attributes = header.attributes & ~LOG_APPEND_TIME_BIT
    struct.pack_into(">h", create_time, _ATTRIBUTES_AT, attributes)
    records = _records(create_time, header, first_index)
    count = len(records)
    if not records or count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"the batch of record {first_index} cannot be appended: it has {count} records, but spans "
            f"{header.last_offset_delta + 1} offsets",
            index=first_index,
            hint="send batches in which each offset has a record",
        )
    stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    if stamped:  # Kafka looks at the one time that such a batch has; stored are the times of its records
        reported = [records[0]._replace(timestamp=header.max_timestamp)]
        rules.check_records(reported, now_ms, first_index, refuse_missing_time=True)
    least, greatest = rules.check_records(records, now_ms, first_index, refuse_missing_time=stamped)
    if rules.timestamp_type:
        attributes |= LOG_APPEND_TIME_BIT
        least = greatest = now_ms
    in_order = all(r.offset == header.base_offset + i for i, r in enumerate(records))
    if in_order and (rules.keeps_codec or header.codec == rules.codec):
        data = _patched(buffer, header, attributes, greatest)
    else:
        data = _encoded(rules, records, now_ms, header.codec, header)
        rules.check_size(len(data), [NewRecord(r.value, r.key) for r in records])
    return data, BatchFacts(len(data), count - 1, count, least, greatest)


def _records(buffer: bytes | bytearray, header: BatchHeader, index: int) -> list[Record]:
    """Return the records of a producer's batch. Raises InvalidRecordError if Kafka's consumers could not read it."""
    try:
        if header.codec is Codec.LZ4 and header.magic == _V2 and has_linked_blocks(memoryview(buffer)[HEADER_BYTES:]):
            raise CorruptionError("lz4 data has linked blocks, which Kafka's consumers do not read")
        return list(decode_records(buffer))
    except CorruptionError as error:
        raise InvalidRecordError(
            f"the batch of record {index} cannot be appended: {error.message}", index=index, hint=error.hint
        ) from error


def _check_batch(rules: RecordRules, buffer: bytes, header: BatchHeader, index: int) -> None:
    if len(buffer) > rules.max_bytes:
        raise RecordTooLargeError(
            f"a batch of {len(buffer)} bytes is larger than {rules.limit_name} of the topic, {rules.max_bytes}",
            index=index,
            hint=f"send smaller batches, or raise {rules.limit_name}",
        )
    if header.records_count > MAX_BATCH_RECORDS:
        raise RecordTooLargeError(
            f"a batch has {header.records_count} records, and the limit is {MAX_BATCH_RECORDS}",
            index=index,
            hint="send smaller batches: lower batch.size or batch.num.messages of the producer",
        )
    if header.is_control:
        hint = "leave control batches out: a commit or an abort of a transaction writes them"
        raise InvalidRecordError("a client cannot append control batches", index=index, hint=hint)
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecordError(
            f"a batch of producer {header.producer_id} cannot be appended: it has no sequence",
            index=index,
            hint="send it with a base sequence, or without a producer id",
        )
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME and rules.timestamp_type:
        raise InvalidTimestampError(
            "a batch with the timestamp type LogAppendTime cannot be appended: this topic sets the time itself",
            index=index,
            hint="send the batch with the timestamp type CreateTime",
        )


def _patched(buffer: bytes, header: BatchHeader, attributes: int, max_timestamp: int) -> bytes:
    if (attributes, max_timestamp) == (header.attributes, header.max_timestamp):
        return buffer
    patched = bytearray(buffer)
    struct.pack_into(">h", patched, _ATTRIBUTES_AT, attributes & KNOWN_BITS)
    struct.pack_into(">q", patched, _MAX_TIMESTAMP_AT, max_timestamp)
    struct.pack_into(">I", patched, _CRC_AT, crc32c(memoryview(patched)[_ATTRIBUTES_AT:]))
    return bytes(patched)


def _encoded(rules: RecordRules, records: Sequence[Record], now_ms: int, codec: Codec, header: BatchHeader) -> bytes:
    return encode_batch(
        [NewRecord(r.value, r.key, r.timestamp, r.headers) for r in records],
        codec=codec if rules.keeps_codec else rules.codec,
        level=None if rules.keeps_codec else rules.level,
        timestamp_type=rules.timestamp_type,
        append_time_ms=now_ms if rules.timestamp_type else -1,
        producer=BatchProducer(
            header.producer_id, header.producer_epoch, header.base_sequence, transactional=header.is_transactional
        ),
    )


def _upgraded(rules: RecordRules, pieces: list[Piece], now_ms: int, first_index: int) -> tuple[bytes, BatchFacts]:
    """Return messages of format v0 or v1 as one v2 batch, with its facts."""
    records = [record for piece, header in pieces for record in _records(piece, header, first_index)]
    least, greatest = rules.check_records(records, now_ms, first_index)
    if rules.timestamp_type:
        least = greatest = now_ms
    codec = next((header.codec for _, header in reversed(pieces) if header.codec), Codec.NONE)
    header = pieces[0][1]._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1, attributes=0)
    data = _encoded(rules, records, now_ms, codec, header)
    rules.check_size(len(data), [NewRecord(r.value, r.key) for r in records])
    return data, BatchFacts(len(data), len(records) - 1, len(records), least, greatest)


def coordinator_batch(rules: RecordRules, data: bytes, now_ms: int) -> tuple[bytes, BatchFacts]:
    """Return the single batch of a transaction coordinator as it will be stored, except for offset and leader epoch.

    ``last_offset`` of the facts counts from the batch's first record. With LogAppendTime the batch gets the time
    ``now_ms``. Raises InvalidRecordError unless ``data`` is one batch with a producer id, CorruptionError for damage.
    """
    pieces = [bytes(piece) for _, piece in BatchWalk(corrupt_at).whole(memoryview(data))]
    header = verify_batch(pieces[0]) if len(pieces) == 1 else None
    if header is None or header.producer_id < 0:
        raise InvalidRecordError(
            f"an append of a coordinator has {len(pieces)} batches: it must be one batch with a producer id"
        )
    batch, least, greatest = pieces[0], least_timestamp(header, pieces[0]), header.max_timestamp
    if rules.timestamp_type:
        batch = _patched(batch, header, header.attributes | LOG_APPEND_TIME_BIT, now_ms)
        least = greatest = now_ms
    return batch, BatchFacts(len(batch), header.last_offset_delta, header.records_count, least, greatest)
