"""What an append refuses, and the timestamps it settles (reference 6.2). One bad record refuses the whole call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tiered.config import TopicConfig
from tiered.errors import CorruptionError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from tiered.format.batch import BatchHeader, decode_records, encode_batch, read_header, verify_batch
from tiered.format.codecs import Codec
from tiered.local.active import BatchFacts
from tiered.model import NO_TIMESTAMP, NewRecord, TimestampType

CODECS = {
    "producer": Codec.NONE,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class RecordRules:
    """The rules of one topic, worked out once from its settings."""

    def __init__(self, config: TopicConfig) -> None:
        self.timestamp_type = config.timestamp_type
        self.max_bytes = min(config.max_message_bytes, config.segment_bytes)
        self.limit_name = "max.message.bytes" if self.max_bytes == config.max_message_bytes else "segment.bytes"
        self.codec = CODECS[config.compression_type]
        self.level = {
            Codec.GZIP: config.compression_gzip_level,
            Codec.LZ4: config.compression_lz4_level,
            Codec.ZSTD: config.compression_zstd_level,
        }.get(self.codec)
        self._keeps_codec = config.compression_type == "producer"
        self._keyed = config.compacted
        self._before_ms = config.message_timestamp_before_max_ms
        self._after_ms = config.message_timestamp_after_max_ms

    def settle(self, records: Sequence[NewRecord], now_ms: int) -> tuple[Sequence[NewRecord], int, int]:
        """(records with timestamps, smallest, largest timestamp). Raises InvalidRecordError with the record's index.

        A missing timestamp (-1) becomes ``now_ms``; with LogAppendTime every record reports ``now_ms``.
        """
        if self._keyed:
            for i, record in enumerate(records):
                if record[1] is None:
                    raise InvalidRecordError(f"record {i} has no key, and the topic is compacted", index=i)
        try:
            if len(records) == 1:
                least = greatest = records[0][2]
            else:
                stamps = [record[2] for record in records]
                least, greatest = min(stamps, default=0), max(stamps, default=0)
            if least < 0:
                records, least, greatest = self._stamp(records, least, greatest, now_ms)
        except (TypeError, IndexError, ValueError, AttributeError):
            raise InvalidRecordError(
                "a record is not (value, key, timestamp, headers) with a timestamp in whole milliseconds"
            ) from None
        if self.timestamp_type:
            return records, now_ms, now_ms
        if now_ms - least > self._before_ms or greatest - now_ms > self._after_ms:
            i = next(i for i, r in enumerate(records) if not -self._after_ms <= now_ms - r[2] <= self._before_ms)
            raise self._bad_time(i, records[i][2], now_ms)
        return records, least, greatest

    def _stamp(
        self, records: Sequence[NewRecord], least: int, greatest: int, now_ms: int
    ) -> tuple[Sequence[NewRecord], int, int]:
        """Records with the log's time where they have none; smallest and largest timestamp then."""
        if least < NO_TIMESTAMP:
            raise self._bad_time([record[2] for record in records].index(least), least, now_ms)
        if greatest == NO_TIMESTAMP:
            stamped = [(value, key, now_ms, headers) for value, key, _, headers in records]
            return cast("list[NewRecord]", stamped), now_ms, now_ms  # a NamedTuple for each would double the time
        settled = [r._replace(timestamp=now_ms) if r.timestamp == NO_TIMESTAMP else r for r in records]
        stamps = [record.timestamp for record in settled]
        return settled, min(stamps), max(stamps)

    def check_size(self, size_bytes: int, records: Sequence[NewRecord]) -> None:
        """Raises RecordTooLargeError, with the index of the largest record, for a batch that no segment may hold."""
        if size_bytes > self.max_bytes:
            sizes = [len(r[0] or b"") + len(r[1] or b"") for r in records]
            largest = max(range(len(sizes)), key=sizes.__getitem__, default=0)
            raise RecordTooLargeError(
                f"{len(records)} records make a batch of {size_bytes} bytes, {self.limit_name} is {self.max_bytes}",
                index=largest,
                hint=f"append fewer records in one call, or raise {self.limit_name}",
            )

    def settle_batch(
        self, buffer: bytes, header: BatchHeader, now_ms: int, first_index: int
    ) -> tuple[bytes, BatchFacts]:
        """One encoded batch as it will be stored, offsets still to be assigned; its records are looked at.

        ``last_offset`` of the facts is relative to the batch. The bytes are kept as sent unless the topic's codec or
        timestamp type asks for a new batch.
        """
        if header.magic != 2:
            raise InvalidRecordError(
                f"a batch of format v{header.magic} cannot be appended, only v2", index=first_index
            )
        if header.is_control:
            raise InvalidRecordError("control batches are not appended from outside", index=first_index)
        records = list(decode_records(buffer))
        if not records or len(records) != header.last_offset_delta + 1:
            raise InvalidRecordError(
                f"a batch of {len(records)} records spans {header.last_offset_delta + 1} offsets", index=first_index
            )
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME and self.timestamp_type:
            raise InvalidTimestampError("the batch is already stamped LogAppendTime", index=first_index)
        try:
            fresh = [NewRecord(r.value, r.key, r.timestamp, r.headers) for r in records]
            settled, least, greatest = self.settle(fresh, now_ms)
        except InvalidRecordError as error:
            error.index += first_index
            raise
        same_codec = self._keeps_codec or header.codec == self.codec
        if (
            same_codec
            and settled is fresh
            and header.timestamp_type == self.timestamp_type
            and greatest == header.max_timestamp
        ):
            data = buffer
        else:
            data = encode_batch(
                settled,
                codec=header.codec if self._keeps_codec else self.codec,
                level=None if self._keeps_codec else self.level,
                timestamp_type=self.timestamp_type,
                append_time_ms=now_ms if self.timestamp_type else -1,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                transactional=header.is_transactional,
            )
        self.check_size(len(data), settled)
        return data, BatchFacts(len(data), header.last_offset_delta, len(records), least, greatest)

    def split(self, data: bytes) -> list[tuple[bytes, BatchHeader]]:
        """The whole, intact batches in ``data``. Raises InvalidRecordError for anything else, and for nothing."""
        batches: list[tuple[bytes, BatchHeader]] = []
        position = 0
        try:
            while position < len(data):
                size = read_header(data, position, limit=len(data) - position).size_bytes
                piece = bytes(data[position : position + size])
                batches.append((piece, verify_batch(piece)))
                position += size
        except CorruptionError as error:
            raise InvalidRecordError(
                f"batch {len(batches)} at byte {position} cannot be appended: {error.message}", index=len(batches)
            ) from error
        if not batches:
            raise InvalidRecordError("there is no batch to append")
        return batches

    def _bad_time(self, index: int, timestamp: int, now_ms: int) -> InvalidTimestampError:
        return InvalidTimestampError(
            f"record {index} has timestamp {timestamp}, the log's clock says {now_ms}",
            index=index,
            hint="see message.timestamp.before.max.ms and message.timestamp.after.max.ms",
        )
