"""The writing side of one partition: assign offsets, append, roll, fsync, let sealed segments go.

Two locks, taken in this order: ``_flush_lock`` (one fsync at a time; whoever waits for it usually finds its records
already safe) and ``_lock`` (everything else; never held across an fsync of records).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from tiered.errors import (
    ConfigError,
    DiskFullError,
    InvalidRecordError,
    LocalIOError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TieredError,
)
from tiered.format.batch import assign_offsets, encode_batch, read_header
from tiered.format.coordinator_records import TRANSACTION_STATE_TOPIC
from tiered.local.partition.exchange import PartitionExchanger
from tiered.local.partition.incoming import GivenBatches, coordinator_batch, given_batches, settle_batches
from tiered.local.segment.active import BatchFacts, BatchTuple
from tiered.local.segment.seal import SEAL_SUFFIX, write_note
from tiered.model import NewRecord, RecordMetadata
from tiered.plan.producer import Origin, ProducerBatch, ProducerStamp, read_producer
from tiered.plan.producer_state import Duplicate, Prepared
from tiered.plan.roll import MAX_RELATIVE_OFFSET, RollReason
from tiered.plan.verification import NO_GUARD

LOGGER = logging.getLogger("tiered.local")

PRODUCER_ID = slice(43, 51)
"""Where a v2 batch has its producer id; those that are appended are all v2."""

NO_PRODUCER = b"\xff" * 8


class PartitionWriter(PartitionExchanger):
    """Thread-safe."""

    # -- append ----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[NewRecord]) -> RecordMetadata:
        """One atomic batch."""
        now_ms = self._around.clock.now_ms()
        rules = self._rules
        settled, least, greatest = rules.settle(records, now_ms)
        count = len(settled)
        self._await_beginning()
        with self._lock:
            base = self._end
            data = encode_batch(
                settled,
                base_offset=base,
                leader_epoch=self._epoch,
                codec=rules.codec,
                level=rules.level,
                timestamp_type=rules.timestamp_type,
                append_time_ms=now_ms if rules.timestamp_type else -1,
            )
            size = len(data)
            if size > rules.max_bytes:
                rules.check_size(size, settled)
            facts = ((size, base + count - 1, count, least, greatest),)
            rolled = self._store(data, facts, greatest, base + count, now_ms)
        self._settle_append(rolled)
        timestamp = now_ms if rules.timestamp_type else settled[0][2]
        return RecordMetadata(self.tp.topic, self.tp.partition, base, timestamp, base + count)

    def append_as_producer(self, records: Sequence[NewRecord], stamp: ProducerStamp) -> RecordMetadata:
        """One atomic batch of a transaction."""
        now_ms = self._around.clock.now_ms()
        rules = self._rules
        settled, least, greatest = rules.settle(records, now_ms)
        data = encode_batch(
            settled,
            codec=rules.codec,
            level=rules.level,
            timestamp_type=rules.timestamp_type,
            append_time_ms=now_ms if rules.timestamp_type else -1,
            producer_id=stamp.producer_id,
            producer_epoch=stamp.producer_epoch,
            base_sequence=stamp.base_sequence,
            transactional=True,
        )
        rules.check_size(len(data), settled)
        facts = BatchFacts(len(data), len(settled) - 1, len(settled), least, greatest)
        guard = self.start_verification(stamp.producer_id, stamp.base_sequence, stamp.producer_epoch)
        written = self._append_settled([(data, facts)], Origin.CLIENT, now_ms, guard)
        return written._replace(timestamp=now_ms if rules.timestamp_type else settled[0][2])

    def append_batches(self, data: bytes, guard: int = NO_GUARD) -> RecordMetadata:
        """A producer's batches, all or none; offsets and leader epoch are assigned here."""
        now_ms = self._around.clock.now_ms()
        return self._append_settled(settle_batches(self._rules, data, now_ms), Origin.CLIENT, now_ms, guard)

    def start_verification(self, producer_id: int, sequence: int, epoch: int) -> int:
        """A guard for the first batch of a transaction; NO_GUARD if none is needed."""
        with self._lock:
            self._check_writable()
            return self._producers.start_verification(
                producer_id,
                sequence,
                epoch,
                log_start=self.log_start,
                end=self._end,
                now_ms=self._around.clock.now_ms(),
            )

    def append_as_coordinator(self, data: bytes) -> RecordMetadata:
        """One batch of a transaction or group coordinator, as a rule a marker; offset and leader epoch are assigned."""
        now_ms = self._around.clock.now_ms()
        return self._append_settled([coordinator_batch(self._rules, data, now_ms)], Origin.COORDINATOR, now_ms)

    def _append_settled(
        self, settled: Sequence[tuple[bytes, BatchFacts]], origin: Origin, now_ms: int, guard: int = NO_GUARD
    ) -> RecordMetadata:
        """Gives offsets; ``last_offset`` of the facts is relative to each batch."""
        buffer = bytearray(b"".join(piece for piece, _ in settled))
        if len(buffer) > self._active.segment_bytes:
            raise RecordTooLargeError(
                f"{len(buffer)} bytes in one append, segment.bytes is {self._active.segment_bytes}",
                hint="append fewer batches at once",
            )
        producers = [_producer_of(piece, fact) for piece, fact in settled]
        batches = [batch for batch in producers if batch is not None]
        self._await_beginning()
        with self._lock:
            self._check_writable()
            answer = self._ask(batches, origin, guard)
            if isinstance(answer, Duplicate):
                return self._metadata(answer.first_offset, answer.timestamp, answer.last_offset + 1)
            base = end = self._end
            position = 0
            facts, bases = [], []
            for (piece, fact), batch in zip(settled, producers, strict=True):
                assign_offsets(memoryview(buffer)[position:], end, self._epoch)
                facts.append(fact._replace(last_offset=end + fact.last_offset))
                if batch is not None:
                    bases.append(end)
                end += fact.last_offset + 1
                position += len(piece)
            greatest = max(fact.max_timestamp for fact in facts)
            rolled = self._store(
                bytes(buffer),
                facts,
                greatest,
                end,
                now_ms,
                answer=answer,
                bases=bases,
                reserved=origin is Origin.COORDINATOR,
            )
        self._settle_append(rolled)
        return self._metadata(base, greatest, end)

    def append_as_follower(self, data: bytes) -> RecordMetadata | None:
        """Batches as the leader stored them: offsets, epochs and bytes are kept. None if no whole batch is there."""
        now_ms = self._around.clock.now_ms()
        given = given_batches(data)
        if given is None:
            return None
        first, last = given.headers[0].base_offset, given.headers[-1]
        if len(given.data) > self._active.segment_bytes:
            raise RecordTooLargeError(
                f"{len(given.data)} bytes in one append, segment.bytes is {self._active.segment_bytes}"
            )
        batches = _producers_in(given)
        with self._lock:
            self._check_writable()
            end = self._end
            if first < end:
                raise OffsetOutOfRangeError(
                    f"{self.tp} ends at offset {end}: batches {first} to {last.last_offset} cannot follow",
                    requested=first,
                    earliest=self.log_start,
                    latest=end,
                    hint="ask the leader from the end on, or truncate first",
                )
            answer = self._ask(batches, Origin.REPLICATION)
            if first > end or not given.contiguous:
                self._mark_sparse()
            with self._epochs_or_none():
                for header in given.headers:
                    if header.magic >= 2 and header.leader_epoch >= 0:
                        self.epochs.assign(header.leader_epoch, header.base_offset)
                self._epoch = max(self._epoch, self.epochs.latest)
                self._epoch_unassigned = self.epochs.latest < self._epoch  # that leader's epoch was an older one
                greatest = max(fact.max_timestamp for fact in given.facts)
                base = last.last_offset - MAX_RELATIVE_OFFSET if given.first_offset is None else given.first_offset
                rolled = self._store(
                    given.data,
                    given.facts,
                    greatest,
                    last.next_offset,
                    now_ms,
                    base=base,
                    epoch=last.leader_epoch,
                    answer=answer if isinstance(answer, Prepared) else None,
                )
        self._settle_append(rolled)
        return RecordMetadata(self.tp.topic, self.tp.partition, first, greatest, last.next_offset)

    @contextlib.contextmanager
    def _epochs_or_none(self) -> Iterator[None]:
        """Leader epochs that are assigned in here are taken back if their records are not written."""
        known, epoch = self.epochs.entries, self._epoch
        try:
            yield
        except TieredError as error:
            self._epoch = epoch
            try:
                self.epochs.restore(known)
            except TieredError:
                self._go_offline(error)
            raise

    def _store(
        self,
        data: bytes,
        facts: Sequence[BatchTuple],
        greatest: int,
        end: int,
        now_ms: int,
        *,
        base: int | None = None,
        epoch: int | None = None,
        answer: Prepared | None = None,
        bases: Sequence[int] | None = None,
        reserved: bool = False,
    ) -> bool:
        """Writes, rolling first if it is time; returns whether it rolled. The lock is held.

        ``base`` and ``epoch`` are a follower's: where a new segment would begin, and the epoch of the last batch.
        ``answer`` is what the producer state said, ``bases`` the offsets of its batches (None: those that they had).
        ``reserved``: the end of a transaction, for which the disk reserve is kept, too.
        """
        self._check_writable()
        token, follows = None, epoch is not None
        if epoch is None:  # offsets are given here: a follower's are its leader's, who has given them before
            self._check_continues()
            if not self._begun:
                token = self._need_beginning()
            epoch = self._epoch
            if self._epoch_unassigned:  # a cut, or an older leader, took the entry of the epoch that goes on
                with self._epochs_or_none():
                    self.epochs.assign(epoch, self._end)
                self._epoch_unassigned = False
        active = self._active
        if not reserved and self.tp.topic != TRANSACTION_STATE_TOPIC:
            self._around.reserve.take(len(data))
        reason = active.roll_reason(len(data), greatest, end - 1, now_ms)
        if reason is not None:
            try:
                self._roll(reason, now_ms, base)
            except TieredError:
                raise
            except BaseException:
                self._go_offline(LocalIOError(f"{self.tp}: an append was interrupted while it began a segment"))
                raise
            active = self._active
            if end - 1 - active.base_offset > MAX_RELATIVE_OFFSET:
                raise InvalidRecordError(
                    f"{self.tp}: offsets {active.base_offset} to {end} do not fit into one segment",
                    hint="append fewer batches at once",
                )
        try:
            active.append(data, facts, epoch, now_ms)
            self._end = end
            if self._producers.state is not None:
                self._settle_producers(answer, bases)
        except DiskFullError:
            raise
        except TieredError as error:
            self._go_offline(error)
            raise
        except BaseException:  # an interrupt: the file and what is known of it may differ, only a new open can tell
            self._go_offline(LocalIOError(f"{self.tp}: an append was interrupted while it wrote"))
            raise
        if not self._begun:
            self._settle_beginning(token, follows=follows)
        return reason is not None

    def _ask(
        self, batches: Sequence[ProducerBatch], origin: Origin, guard: int = NO_GUARD
    ) -> Prepared | Duplicate | None:
        """Whether these batches of producers may be appended now; None without any. The lock is held."""
        if not batches:
            return None
        return self._producers.prepare(batches, origin, log_start=self.log_start, end=self._end, guard=guard)

    def _settle_producers(self, answer: Prepared | None, bases: Sequence[int] | None) -> None:
        """The bytes are written. If the transaction index cannot be, what is stable stays where it was."""
        state = self._producers.state
        completed = () if answer is None or state is None else state.apply(answer, bases)
        aborted = [txn.index_entry for txn in completed if txn.index_entry is not None]
        if aborted:
            try:
                self._active.append_aborted(aborted)
            except TieredError as error:
                self._go_offline(error)
                raise self._offline_error(error) from error
            self._new_names = True
        self._producers.settle(completed, self._end, self.high_watermark)

    def _metadata(self, base: int, timestamp: int, end: int) -> RecordMetadata:
        return RecordMetadata(self.tp.topic, self.tp.partition, base, timestamp, end)

    def _settle_append(self, rolled: bool) -> None:
        """What an append leaves to do without the lock: a segment that it sealed, and ``flush.messages``."""
        if rolled:
            self.flush_to(self._active.base_offset)
        if self._end - self._flushed >= self._flush_messages:
            self.flush_to(self._end)

    # -- epochs, timers, end ----------------------------------------------------------------------------------------

    def new_leader_epoch(self, epoch: int) -> None:
        """Records appended from here on carry ``epoch``, which must be greater than all before; who leads, leads alone.

        The high watermark is the end again, until it is told.
        """
        with self._lock:
            self._check_writable(fenced_too=False)
            latest = max(self.epochs.latest, self._epoch)
            if epoch <= latest:
                raise ConfigError(f"{self.tp}: leader epoch {epoch} is not above {latest}")
            with self._epochs_or_none():
                self.epochs.assign(epoch, self._end)
            self._epoch = epoch
            self._epoch_unassigned = False
            self._tell_watermark(None)

    def tick(self, now_ms: int) -> None:
        """Timers: ``seal.ms``, ``flush.ms``, retention, and files whose delay is over."""
        if self._offline is not None or self._closed:
            return
        fenced = self.upload is not None and self.upload.fenced
        if not fenced and self._active.idle_reason(now_ms) is not None:
            self.roll(RollReason.WALL_CLOCK)
        if now_ms - self._last_flush_ms >= self.config.flush_ms:
            self._last_flush_ms = now_ms
            self.flush()
        if not fenced and now_ms - self._last_retention_ms >= self._around.config.retention_check_interval_ms:
            self._last_retention_ms = now_ms
            self.expire_producers(now_ms)
            self.apply_retention(now_ms)
        self._empty_trash(now_ms)

    def close(self, timeout_seconds: float) -> bool:
        """Durable and trimmed; returns whether all of it is. LocalIOError if a thread does not let go in time."""
        if not self._flush_lock.acquire(timeout=timeout_seconds):
            raise LocalIOError(f"{self.tp}: an fsync has not returned for {timeout_seconds} s")
        self._flush_lock.release()
        if not self._lock.acquire(timeout=timeout_seconds):
            raise LocalIOError(f"{self.tp}: a write has not returned for {timeout_seconds} s")
        self._ending = True  # no append gets in between this and the seal
        self._lock.release()
        if self._closed:
            return True
        clean = self._offline is None
        try:
            if clean and self._as_opened():
                with self._lock:
                    self._producers.take(self._end)
            elif clean:
                with self._lock:
                    self._active.seal()
                    self._active.note_producers(self._producers.take(self._end))
                self._flushed = min(self._flushed, self._active.base_offset)  # the trimmed indexes are synced, too
                self.flush_to(max(self._end, self._flushed + 1))
                if self._active.stats is not None and self._active.size_bytes:
                    self._active.stats.first_append_ms = self._active.first_append_ms
                    write_note(self._files, self._active.path.with_suffix(SEAL_SUFFIX), self._active.noted())
        except TieredError as error:
            LOGGER.warning("close_failed partition=%s error=%s", self.tp, error)
            clean = False
        finally:
            with self._lock:
                self._closed = True
                for segment in (*self._closing, self._active):
                    segment.close()
        return clean


def _producer_of(piece: bytes, fact: BatchFacts) -> ProducerBatch | None:
    """Of a settled batch; its header is looked at only if there is a producer."""
    if piece[PRODUCER_ID] == NO_PRODUCER:
        return None
    return read_producer(read_header(piece), piece, timestamp=fact.max_timestamp)


def _producers_in(given: GivenBatches) -> list[ProducerBatch]:
    """Of a leader's batches those that have a producer."""
    found = []
    position = 0
    for header, fact in zip(given.headers, given.facts, strict=True):
        batch = read_producer(header, memoryview(given.data)[position : position + fact.size])
        if batch is not None:
            found.append(batch)
        position += fact.size
    return found
