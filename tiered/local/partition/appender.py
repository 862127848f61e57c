"""How batches get into one partition: offsets are given, the producer state is asked, bytes are written."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiered.config import MAX_LONG, TopicConfig
from tiered.errors import (
    DiskFullError,
    FencedError,
    InvalidRecordError,
    LocalIOError,
    NotDurableError,
    RecordTooLargeError,
    TieredError,
    TooManyOpenFilesError,
)
from tiered.format.batch import assign_offsets, read_header
from tiered.format.codecs import Codec
from tiered.format.coordinator_records import is_state_log
from tiered.local.partition.beginning import Beginning
from tiered.local.partition.condition import APPEND
from tiered.local.partition.flusher import Flusher
from tiered.local.partition.incoming import coordinator_batch, settle_batches
from tiered.local.partition.plain import plain_append
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.roller import Roller
from tiered.local.partition.surroundings import Shared
from tiered.local.partition.validation import RecordRules
from tiered.local.segment.active import BatchFacts, BatchTuple
from tiered.model import NewRecord, PackedBatch, RecordMetadata
from tiered.plan.producer import Origin, ProducerBatch, ProducerStamp, read_producer
from tiered.plan.producer_state import Duplicate, PreparedBatches
from tiered.plan.roll import MAX_RELATIVE_OFFSET

if TYPE_CHECKING:
    from tiered.format.column_encoder import RecordColumns

LOGGER = logging.getLogger("tiered.local")

PRODUCER_ID = slice(43, 51)
"""Where a v2 batch has its producer id; those that are appended are all v2."""

NO_PRODUCER = b"\xff" * 8


class Appender:
    """Thread-safe. Takes the partition's lock, and after it, without it, the flush lock if a segment was sealed."""

    def __init__(
        self, shared: Shared, *, flusher: Flusher, roller: Roller, producers: PartitionProducers, beginning: Beginning
    ) -> None:
        self._clock = shared.around.clock
        self._reserve = shared.around.reserve
        self._lock = shared.lock
        self._condition = shared.condition
        self._segments = segments = shared.segments
        self._flusher = flusher
        self._roller = roller
        self._leadership = shared.leadership
        self._producers = producers
        self._beginning = beginning
        self._tp = segments.tp
        self._keeps_reserve = not is_state_log(segments.tp.topic)
        self.plain = plain_append(
            shared,
            flusher=flusher,
            producers=producers,
            beginning=beginning,
            keeps_reserve=self._keeps_reserve,
            break_off=self._break_off,
        )
        self.configure(segments.config)

    def configure(self, config: TopicConfig) -> None:
        """Takes over changed settings."""
        self._rules = rules = RecordRules(config)
        self._flush_messages = config.flush_messages
        self.plain.configure(
            plain=rules.codec is Codec.NONE,
            keyed=config.compacted,
            logs_time=bool(rules.timestamp_type),
            most_bytes=rules.max_bytes,
            before_ms=config.message_timestamp_before_max_ms,
            after_ms=config.message_timestamp_after_max_ms,
            flush_messages=config.flush_messages,
        )

    def append(self, records: Sequence[NewRecord], packed: PackedBatch | None = None) -> RecordMetadata:
        """One atomic batch: of ``records``, or ``packed``, which is what they are encoded."""
        written = self.plain.append(records) if packed is None else None
        if written is not None:
            return written
        now_ms = self._clock.now_ms()
        if packed is None:
            data, first, least, greatest = self._rules.encode(records, now_ms)
            count = len(records)
        else:
            data, count, first, least, greatest, _ = packed
        size = len(data)
        if not self._beginning.begun:
            self._beginning.wait()
        with self._lock:
            self._condition.check_writable()
            base = self._segments.end
            self._check_offsets(base + count)
            assign_offsets(data, base, self._leadership.epoch)
            facts = ((size, base + count - 1, count, least, greatest),)
            rolled = self.store(data, facts, greatest, base + count, now_ms)
        if rolled or base + count - self._flusher.flushed >= self._flush_messages:
            self.settle_append(rolled)
        return RecordMetadata(self._tp.topic, self._tp.partition, base, first, base + count)

    def append_packed(self, batch: PackedBatch) -> RecordMetadata | None:
        """None, and nothing is appended, if the topic's settings ask for more than these bytes."""
        return self.append((), batch) if self._rules.takes(batch, self._clock.now_ms()) else None

    def append_as_producer(self, records: Sequence[NewRecord], stamp: ProducerStamp) -> RecordMetadata:
        """One atomic batch of a transaction."""
        now_ms = self._clock.now_ms()
        data, first, least, greatest = self._rules.encode(records, now_ms, stamp)
        facts = BatchFacts(len(data), len(records) - 1, len(records), least, greatest)
        written = self._append_settled([(data, facts)], Origin.CLIENT, now_ms)
        return written._replace(timestamp=first)

    def append_batches(self, data: bytes) -> RecordMetadata:
        """A producer's batches, all or none; offsets and leader epoch are assigned here."""
        now_ms = self._clock.now_ms()
        return self._append_settled(settle_batches(self._rules, data, now_ms), Origin.CLIENT, now_ms)

    def append_columns(self, records: RecordColumns) -> RecordMetadata:
        """One atomic batch."""
        from tiered.format.column_encoder import encode_columns  # noqa: PLC0415  with numpy

        now_ms = self._clock.now_ms()
        rules, times = self._rules, records.timestamps
        stamped = bool(rules.timestamp_type)
        data = encode_columns(
            records,
            codec=rules.codec,
            level=rules.level,
            timestamp_type=rules.timestamp_type,
            append_time_ms=now_ms if stamped else -1,
        )
        if len(data) > rules.max_bytes:
            raise RecordTooLargeError(
                f"{self._tp}: a batch of {len(records)} rows has {len(data)} bytes,"
                f" {rules.limit_name} is {rules.max_bytes}",
                hint=f"raise {rules.limit_name}, or leave such rows out",
            )
        least, greatest = (now_ms, now_ms) if stamped else (int(times.min()), int(times.max()))
        facts = BatchFacts(len(data), len(records) - 1, len(records), least, greatest)
        written = self._append_settled([(data, facts)], Origin.CLIENT, now_ms)
        return written._replace(timestamp=now_ms if stamped else int(times[0]))

    def append_as_coordinator(self, data: bytes) -> RecordMetadata:
        """One batch of a transaction or group coordinator, as a rule a marker; offset and leader epoch are assigned."""
        now_ms = self._clock.now_ms()
        return self._append_settled([coordinator_batch(self._rules, data, now_ms)], Origin.COORDINATOR, now_ms)

    def _append_settled(
        self,
        settled: Sequence[tuple[bytes | bytearray, BatchFacts]],
        origin: Origin,
        now_ms: int,
    ) -> RecordMetadata:
        """Gives offsets; ``last_offset`` of the facts is relative to each batch."""
        buffer = bytearray(b"".join(piece for piece, _ in settled))
        if len(buffer) > self._segments.active.segment_bytes:
            raise RecordTooLargeError(
                f"{len(buffer)} bytes in one append, segment.bytes is {self._segments.active.segment_bytes}",
                hint="append fewer batches at once",
            )
        producers = [_producer_of(piece, fact) for piece, fact in settled]
        batches = [batch for batch in producers if batch is not None]
        if not self._beginning.begun:
            self._beginning.wait()
        with self._lock:
            self._condition.check_writable()
            answer = self._producers.prepare(batches, origin)
            if isinstance(answer, Duplicate):
                return self._metadata(answer.first_offset, answer.timestamp, answer.last_offset + 1)
            base = end = self._segments.end
            self._check_offsets(base + sum(fact.last_offset + 1 for _, fact in settled))
            position = 0
            facts, bases = [], []
            for (piece, fact), batch in zip(settled, producers, strict=True):
                assign_offsets(memoryview(buffer)[position:], end, self._leadership.epoch)
                facts.append(fact._replace(last_offset=end + fact.last_offset))
                if batch is not None:
                    bases.append(end)
                end += fact.last_offset + 1
                position += len(piece)
            greatest = max(fact.max_timestamp for fact in facts)
            rolled = self.store(
                bytes(buffer),
                facts,
                greatest,
                end,
                now_ms,
                answer=answer,
                bases=bases,
                reserved=origin is Origin.COORDINATOR,
            )
        self.settle_append(rolled)
        return self._metadata(base, greatest, end)

    def _check_offsets(self, end: int) -> None:
        """InvalidRecordError where the log would end above the last offset that Kafka's format can hold."""
        if end > MAX_LONG:
            raise InvalidRecordError(
                f"{self._tp} ends at offset {self._segments.end}: there are no offsets left above {MAX_LONG}",
                hint="append to another topic",
            )

    def store(
        self,
        data: bytes | bytearray,
        facts: Sequence[BatchTuple],
        greatest: int,
        end: int,
        now_ms: int,
        *,
        answer: PreparedBatches | None = None,
        bases: Sequence[int] | None = None,
        reserved: bool = False,
    ) -> bool:
        """Writes, rolling first if it is time; returns whether it rolled. The lock is held, ``check_writable`` passed.

        ``answer`` is what the producer state said, ``bases`` the offsets of its batches (None: those that they had).
        ``reserved``: the end of a transaction, for which the disk reserve is kept, too.
        """
        condition, segments = self._condition, self._segments
        token = None
        first = not self._beginning.begun and segments.empty
        if condition.upload is not None:
            condition.check_continues(segments.end)
        if first:
            token = self._beginning.need()
        if self._leadership.unassigned:  # a cut took the entry of the epoch that goes on
            self._leadership.assign(segments.end)
        active = segments.active
        if not reserved and self._keeps_reserve:
            self._reserve.take(len(data))
        reason = active.roll_reason(len(data), greatest, end - 1, now_ms)
        if reason is not None:
            self._roller.roll_now(reason, now_ms)
            active = segments.active
            if end - 1 - active.base_offset > MAX_RELATIVE_OFFSET:
                raise InvalidRecordError(
                    f"{self._tp}: offsets {active.base_offset} to {end} do not fit into one segment",
                    hint="append fewer batches at once",
                )
        condition.resume_at = segments.end
        condition.under_way = APPEND
        try:
            active.append(data, facts, self._leadership.epoch, now_ms)
            segments.end = end
            if self._producers.state is not None:
                self._settle_producers(answer, bases)
            if first:
                self._beginning.settle(token)
        except BaseException as error:
            self._break_off(error)
            raise
        condition.under_way = None
        if first:
            self._beginning.begun = True
        return reason is not None

    def _break_off(self, error: BaseException) -> None:
        """Takes the partition offline if the disk failed. The lock is held.

        A full disk, or a file that could not be opened, left the log as it was. After an interrupt, which may come
        in here too, ``under_way`` stays set, and whoever has the lock next cuts the append back.
        """
        if isinstance(error, DiskFullError | TooManyOpenFilesError):
            self._condition.under_way = None
        elif isinstance(error, FencedError):  # the record must not stay: its offset may be another one's
            self._condition.settle()
            if self._condition.offline is not None:
                why = self._condition.offline.message
                raise LocalIOError(
                    f"{self._tp}: the record of a refused append could not be taken back: {why}",
                    hint="it may be kept: read the end of the partition before it is appended again",
                ) from error
        elif isinstance(error, LocalIOError):
            self._condition.go_offline(error)

    def _settle_producers(self, answer: PreparedBatches | None, bases: Sequence[int] | None) -> None:
        """The bytes are written. If the transaction index cannot be, what is stable stays where it was."""
        state = self._producers.state
        completed = () if answer is None or state is None else state.apply(answer, bases)
        aborted = [txn.index_entry for txn in completed if txn.index_entry is not None]
        if aborted:
            try:
                self._segments.active.append_aborted(aborted)
            except TieredError as error:
                self._condition.go_offline(error)
                raise self._condition.offline_error(error) from error
            self._segments.new_names = True
        self._producers.settle(completed)

    def _metadata(self, base: int, timestamp: int, end: int) -> RecordMetadata:
        return RecordMetadata(self._tp.topic, self._tp.partition, base, timestamp, end)

    def settle_append(self, rolled: bool) -> None:
        """What an append leaves to do without the lock: a segment that it sealed, and ``flush.messages``."""
        if rolled:
            try:
                self._flusher.flush_to(self._segments.active.base_offset)
            except NotDurableError as error:  # the record is in the log, the next flush is the segment's, too
                LOGGER.warning("sealed_segment_not_flushed partition=%s error=%s", self._tp, error)
        if self._segments.end - self._flusher.flushed >= self._flush_messages:
            self._flusher.flush_to(self._segments.end)


def _producer_of(piece: bytes | bytearray, fact: BatchFacts) -> ProducerBatch | None:
    """Of a settled batch; its header is looked at only if there is a producer."""
    if piece[PRODUCER_ID] == NO_PRODUCER:
        return None
    return read_producer(read_header(piece), memoryview(piece), timestamp=fact.max_timestamp)
