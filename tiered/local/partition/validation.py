"""Checks of an append, and the timestamps it assigns. One bad record refuses the whole call.

Kafka's rule: docs/kafka-semantics.md#append-validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tiered.config import TopicConfig
from tiered.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from tiered.format import kernels
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.codecs import Codec, configured
from tiered.format.header import LOG_APPEND_TIME_BIT, MAX_BATCH_BYTES, TRANSACTIONAL_BIT
from tiered.format.kernels import Record
from tiered.format.pure_kernels import NO_PRODUCER, BatchForm
from tiered.model import NO_TIMESTAMP, NewRecord, PackedBatch

NAMED_RECORDS = 3
"""A message names as many of the records that are refused."""


class RecordRules:
    """The rules of one topic, worked out once from its settings."""

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
        """Return (batch, first, least, greatest timestamp). The batch has base offset 0 and no leader epoch.

        ``producer``: id, epoch and base sequence of a transaction's batch. ``given``: records as ``append_many`` takes
        them, each checked. Raises as :meth:`checked_times`, ``encode_batch`` and :meth:`check_size` do.
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
        """Return True if :meth:`encode` would make the same bytes of its records, and refuse none."""
        return (
            self.codec is Codec.NONE
            and not self.timestamp_type
            and (batch.keyed or not self._keyed)
            and len(batch.data) <= self.max_bytes
            and self._are_in_time(batch.min_timestamp, batch.max_timestamp, now_ms)
        )

    def checked_times(self, records: Sequence[NewRecord], now_ms: int) -> tuple[Sequence[NewRecord], int, int]:
        """Return (records with timestamps, smallest, largest timestamp).

        Raises InvalidTimestampError if a time is refused, otherwise InvalidRecordError, with the record's index.
        A missing timestamp (-1) becomes ``now_ms``; with LogAppendTime every record reports ``now_ms``.
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
                "a record is not (value, key, timestamp, headers) with a timestamp in whole milliseconds"
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
        """Return the records with ``now_ms`` where they have no timestamp, and their smallest and largest timestamp."""
        if least < NO_TIMESTAMP:
            raise self._bad_time([record[2] for record in records].index(least), least, now_ms)
        if greatest == NO_TIMESTAMP:
            stamped = [(value, key, now_ms, headers) for value, key, _, headers in records]
            return cast("list[NewRecord]", stamped), now_ms, now_ms  # a NamedTuple for each would double the time
        mixed = [(v, key, now_ms if at == NO_TIMESTAMP else at, headers) for v, key, at, headers in records]
        stamps = [record[2] for record in mixed]
        return cast("list[NewRecord]", mixed), min(stamps), max(stamps)

    def check_size(self, size_bytes: int, records: Sequence[NewRecord]) -> None:
        """Raise RecordTooLargeError, with the index of the largest record, for a batch that no segment may hold."""
        if size_bytes > self.max_bytes:
            sizes = [len(r[0] or b"") + len(r[1] or b"") for r in records]
            largest = max(range(len(sizes)), key=sizes.__getitem__, default=0)
            smaller = "append fewer records in one call" if len(records) > 1 else "make the record smaller"
            raise RecordTooLargeError(
                f"a batch of {len(records):,} record{'s' if len(records) != 1 else ''} has {size_bytes} bytes,"
                f" {self.limit_name} is {self.max_bytes}",
                index=largest,
                hint=f"{smaller}, or raise {self.limit_name}",
            )

    def check_records(
        self, records: Sequence[Record], now_ms: int, first_index: int, *, refuse_missing_time: bool = False
    ) -> tuple[int, int]:
        """Check decoded records. Return (smallest, largest timestamp), -1 if no record has one.

        ``first_index``: index of the first record in the call, for messages. Raises InvalidTimestampError if any
        timestamp is refused, otherwise InvalidRecordError if any record is, with the indexes of all such records.
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
            f"{_named(indexes)} timestamp {timestamp}, the log's clock says {now_ms}",
            index=indexes[0],
            indexes=tuple(indexes),
            hint="see message.timestamp.before.max.ms and message.timestamp.after.max.ms",
        )


def as_record(given: object) -> NewRecord:
    """Return an argument of ``append_many``, which was checked already, as a ``NewRecord``."""
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
