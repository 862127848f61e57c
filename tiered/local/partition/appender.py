"""Appends to one partition: offsets, checks of the producer state, one write, and the guard of the first record."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, overload

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
from tiered.format import kernels
from tiered.format.batch import read_header
from tiered.format.coordinator_records import is_state_log
from tiered.format.kernel_values import NO_PRODUCER as NOT_NUMBERED
from tiered.local.disk.lock import FORKS, forked_error
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.partition.context import APPEND, PartitionContext
from tiered.local.partition.durability import Durability
from tiered.local.partition.log_segments import LogSegments
from tiered.local.partition.maintenance import Maintenance
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.validation import RecordRules, coordinator_batch, stored_batches
from tiered.local.segment.active import BatchFacts, BatchTuple
from tiered.model import NewRecord, PackedBatch, RecordMetadata, TopicPartition
from tiered.plan.producer import Origin, ProducerBatch, ProducerStamp, read_producer
from tiered.plan.roll import MAX_RELATIVE_OFFSET

if TYPE_CHECKING:
    from tiered.format.columns import RecordColumns
LOGGER = logging.getLogger("tiered.local")

PRODUCER_ID = slice(43, 51)
"""Place of the producer id in a v2 batch. All appended batches are v2."""

NO_PRODUCER = b"\xff" * 8
BEGIN_PATIENCE_S = 5.0
"""Seconds for which the first append to an empty log waits while an uploader claims the partition."""

BEGIN_POLL_S = 0.02
NO_EPOCH = -2
"""Claim epoch below every other. A restore writes -1."""


class Appends:
    """Appends to one partition. Thread-safe.

    An append holds the partition's lock. If a flush is due, the append first releases that lock, then flushes.
    """

    tp: TopicPartition
    context: PartitionContext
    segments: LogSegments
    durability: Durability
    maintenance: Maintenance
    producers: PartitionProducers
    beginning: FirstAppendGuard
    _pid: int

    def _begin_appends(self) -> None:
        """Keep what each append reads. Call it once the components are there."""
        self._now_ms = self.context.clock.now_ms
        self._forks = FORKS.count
        self._reserve = self.context.around.reserve
        self._lock = self.context.lock
        self._topic, self._partition = self.tp
        self._keeps_reserve = not is_state_log(self.tp.topic)

    def _check_fork(self) -> None:
        if FORKS.count != self._forks:
            raise forked_error(self.tp, self._pid)

    def _use_rules(self, config: TopicConfig) -> None:
        """Use the changed settings for all later appends."""
        self._rules = rules = RecordRules(config)
        self._form = rules.form and rules.form._replace(place=self.tp)
        self._given_form = self._form and self._form._replace(given=True)
        self._flush_messages = config.flush_messages

    @overload
    def append(self, records: Sequence[NewRecord]) -> RecordMetadata: ...
    @overload
    def append(self, records: Sequence[object], *, given: Literal[True]) -> RecordMetadata | None: ...
    def append(self, records: Sequence[object], *, given: bool = False) -> RecordMetadata | None:
        """Append the records as one atomic batch at the next offsets. On return the batch is in the page cache.

        ``given``: ``records`` may have any form that ``append_many`` accepts, not only ``NewRecord``. Then the result
        is None, without an append, if the topic is compressed, the log is empty, or a record is refused or not plain
        ``bytes``. The caller then appends NewRecords.

        Returns:
            The place of the batch, with the timestamp of its first record (the log's time with LogAppendTime).

        Raises:
            InvalidRecordError, InvalidTimestampError, RecordTooLargeError: the record at the error's ``index`` is
                refused, and nothing was appended.
            ClosedError, DiskFullError, FencedError, TooManyOpenFilesError: nothing was appended.
            NotDurableError: the records are in the log, but the flush that ``flush.messages`` needs has failed.
            LocalIOError: the disk failed, and the partition goes offline. The records may be in the log, and a crash
                may lose them.
        """
        if FORKS.count != self._forks:
            raise forked_error(self.tp, self._pid)
        now_ms = self._now_ms()
        form = self._given_form if given else self._form
        context, segments = self.context, self.segments
        if form is not None and context.begun:
            with self._lock:
                if context.under_way is not None or context.offline is not None or context.ending:
                    context.check_writable()
                end, crc = segments.end, segments.active.crc32c
                found = kernels.encode_batch(records, form, now_ms, now_ms, end, context.epoch, NOT_NUMBERED, crc)
                rolled = found is not None and self.store(found[0], found[1], found[3], now_ms)
            if found is not None:
                if rolled or segments.end - self.durability.flushed >= self._flush_messages:
                    self.finish_append(rolled)
                return found[4]
        return None if given else self._append_encoded(self._rules.encode(records, now_ms), len(records), now_ms)

    def _append_encoded(self, encoded: tuple[bytearray, int, int, int], count: int, now_ms: int) -> RecordMetadata:
        """Append one batch of ``count`` records. ``encoded``: (batch, first, smallest, largest timestamp)."""
        data, first, least, greatest = encoded
        if not self.context.begun:
            self.beginning.wait()
        with self._lock:
            self.context.check_writable()
            base = self.segments.end
            end = base + count
            self._check_offsets(end)
            crc = kernels.assign_offsets(data, base, self.context.epoch, self.segments.active.crc32c)
            rolled = self.store(data, (len(data), end - 1, count, least, greatest), crc, now_ms)
        self.finish_append(rolled)
        return RecordMetadata(self._topic, self._partition, base, first, end)

    def append_packed(self, batch: PackedBatch) -> RecordMetadata | None:
        """Append a batch that the caller encoded, and return its place.

        Return None, without an append, if the topic's codec, size limit, keys or timestamps forbid these bytes.
        Raises ClosedError, DiskFullError or FencedError: nothing was appended. NotDurableError: only a due flush
        failed. After another LocalIOError the batch may be in the log.
        """
        self._check_fork()
        now_ms = self._now_ms()
        if not self._rules.takes(batch, now_ms):
            return None
        data, count, first, least, greatest, _ = batch
        return self._append_encoded((data, first, least, greatest), count, now_ms)

    def append_as_producer(self, records: Sequence[object], stamp: ProducerStamp) -> RecordMetadata:
        """Append one atomic batch of an open transaction. ``read_committed`` shows it once the transaction committed.

        ``records``: in any form that ``append_many`` accepts. ``stamp``: the producer's id and epoch, and the sequence
        of the first record. Raises OutOfOrderSequenceError, ProducerFencedError or InvalidTxnStateError for a wrong
        sequence, epoch or transaction state, InvalidRecordError for a refused record, ClosedError, DiskFullError or
        FencedError. Then nothing is appended. NotDurableError: only a due flush failed. After another LocalIOError the
        batch may be in the log.
        """
        self._check_fork()
        now_ms = self._now_ms()
        data, first, least, greatest = self._rules.encode(records, now_ms, stamp, given=True)
        facts = BatchFacts(len(data), len(records) - 1, len(records), least, greatest)
        written = self._append_validated([(data, facts)], Origin.CLIENT, now_ms)
        return written._replace(timestamp=first)

    def append_batches(self, data: bytes) -> RecordMetadata:
        """Append the encoded batches in ``data``, all or none. They get the next offsets and the log's leader epoch.

        A v2 batch is encoded again only if the topic's codec differs, or if its records are not numbered in order. One
        that spans more offsets than it has records is refused, such as a batch of a compacted topic. Batches of v0 and
        v1 become v2. A record without timestamp stays without one. The result's ``timestamp`` is the largest one.
        Raises InvalidRecordError for a refused batch, ClosedError, DiskFullError or FencedError: nothing was appended.
        NotDurableError: only a due flush failed. After another LocalIOError the batches may be in the log.

        A producer's batch is appended once. A repetition of one of the producer's five newest batches (after a restart:
        of the newest) appends nothing and returns the existing offsets. Raises OutOfOrderSequenceError,
        ProducerFencedError or InvalidTxnStateError for a wrong sequence, epoch or transaction state.
        """
        self._check_fork()
        now_ms = self._now_ms()
        return self._append_validated(stored_batches(self._rules, data, now_ms), Origin.CLIENT, now_ms)

    def append_columns(self, records: RecordColumns) -> RecordMetadata:
        """Append the rows of ``records``, which the caller checked, as one atomic batch. Return its place.

        Raises RecordTooLargeError, ClosedError, DiskFullError or FencedError: nothing was appended. NotDurableError:
        only a due flush failed. After another LocalIOError the batch may be in the log.
        """
        self._check_fork()
        from tiered.format.columns import encode_columns  # noqa: PLC0415  with numpy

        now_ms = self._now_ms()
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
                f"{self.context.tp}: a batch of {len(records)} rows has {len(data)} bytes, and "
                f"{rules.limit_name} is {rules.max_bytes}",
                hint=f"append fewer rows in one call, or raise {rules.limit_name} of the topic",
            )
        least, greatest = (now_ms, now_ms) if stamped else (int(times.min()), int(times.max()))
        facts = BatchFacts(len(data), len(records) - 1, len(records), least, greatest)
        written = self._append_validated([(data, facts)], Origin.CLIENT, now_ms)
        return written._replace(timestamp=now_ms if stamped else int(times[0]))

    def append_as_coordinator(self, data: bytes) -> RecordMetadata:
        """Append one encoded batch of a coordinator, usually the marker that ends a transaction.

        Sequences are not checked. Raises InvalidRecordError unless ``data`` is one v2 batch of a producer,
        ProducerFencedError if its epoch or the coordinator's is too old, CorruptionError for damage. Raises
        FencedError if another volume owns the partition, ClosedError, DiskFullError. Nothing is appended then. After
        another LocalIOError the batch may be in the log.
        """
        self._check_fork()
        now_ms = self._now_ms()
        return self._append_validated([coordinator_batch(self._rules, data, now_ms)], Origin.COORDINATOR, now_ms)

    def _append_validated(
        self,
        settled: Sequence[tuple[bytes | bytearray, BatchFacts]],
        origin: Origin,
        now_ms: int,
    ) -> RecordMetadata:
        """Append encoded batches, all or none, with new offsets and leader epoch.

        ``settled``: pairs of a batch and its facts. ``last_offset`` of the facts counts from the batch's first record.
        ``origin``: a client or a coordinator. If a client's batches were all appended before, return the place of that
        append, without another one. Raises RecordTooLargeError if they exceed ``segment.bytes`` together.
        """
        buffer = bytearray(b"".join(piece for piece, _ in settled))
        if len(buffer) > self.segments.active.segment_bytes:
            raise RecordTooLargeError(
                f"{self.context.tp}: one append of {len(buffer)} bytes exceeds segment.bytes, "
                f"{self.segments.active.segment_bytes}",
                hint="append fewer batches at once",
            )
        producers = [_producer_of(piece, fact) for piece, fact in settled]
        batches = [batch for batch in producers if batch is not None]
        if not self.context.begun:
            self.beginning.wait()
        with self._lock:
            self.context.check_writable()
            known = self.producers.prepare(batches, origin)
            if known is not None:
                return self._metadata(known.first_offset, known.timestamp, known.last_offset + 1)
            base = end = self.segments.end
            self._check_offsets(base + sum(fact.last_offset + 1 for _, fact in settled))
            crc, rest = self.segments.active.crc32c, memoryview(buffer)
            facts, bases = [], []
            for (piece, fact), batch in zip(settled, producers, strict=True):
                crc = kernels.assign_offsets(rest, end, self.context.epoch, crc)
                rest = rest[len(piece) :]
                facts.append(fact._replace(last_offset=end + fact.last_offset))
                if batch is not None:
                    bases.append(end)
                end += fact.last_offset + 1
            greatest = max(fact.max_timestamp for fact in facts)
            reserved = origin is Origin.COORDINATOR
            whole = BatchFacts(len(buffer), end - 1, end - base, -1, greatest)
            rolled = self.store(buffer, whole, crc, now_ms, facts, producers=(batches, bases), reserved=reserved)
        self.finish_append(rolled)
        return self._metadata(base, greatest, end)

    def _check_offsets(self, end: int) -> None:
        """Raise InvalidRecordError if the log would end above the last offset of Kafka's format."""
        if end > MAX_LONG:
            raise InvalidRecordError(
                f"{self.context.tp} ends at offset {self.segments.end}: the append would exceed the largest "
                f"offset, {MAX_LONG}",
                hint="append to another topic",
            )

    def store(
        self,
        data: bytes | bytearray,
        facts: BatchTuple,
        crc: int,
        now_ms: int,
        batches: Sequence[BatchTuple] = (),
        *,
        producers: tuple[Sequence[ProducerBatch], Sequence[int]] = ((), ()),
        reserved: bool = False,
    ) -> bool:
        """Write encoded batches at the end of the log. Return True if the active segment was sealed first.

        The caller holds the lock and has called ``check_writable``. ``facts``: BatchFacts of all ``data``, ``batches``
        of each batch if several. ``crc``: of the active file with ``data``. ``producers``: checked batches of producers
        and their base offsets. ``reserved``: may use the disk reserve. Raises DiskFullError below that, FencedError if
        the bucket may have these offsets, InvalidRecordError if they exceed one segment.
        """
        context, segments = self.context, self.segments
        size, last, _, _, greatest = facts
        first = not context.begun and segments.empty
        upload = context.upload
        if upload is not None and (upload.fenced or segments.end < upload.end_offset):
            context.check_writable()
            context.check_continues(segments.end)
        token = self.beginning.need() if first else None
        if context.unassigned:  # a cut took the entry of the epoch that goes on
            context.assign_epoch(segments.end)
        active, reason = segments.active, None
        if not reserved and self._keeps_reserve:
            reserve = self._reserve
            reserve.left -= size
            if reserve.left < 0:
                reserve.refill()
        if (
            active.size_bytes + size > active.segment_bytes
            or greatest > active.time_bound
            or now_ms >= active.clock_bound
            or last > active.offset_bound
        ):
            reason = active.roll_reason(size, greatest, last, now_ms)
        if reason is not None:
            self.maintenance.roll_now(reason, now_ms)
            active, crc = segments.active, kernels.crc32c(data)
            if last - active.base_offset > MAX_RELATIVE_OFFSET:
                what = f"offsets {active.base_offset} to {last + 1} are too many for one segment"
                raise InvalidRecordError(f"{self.tp}: {what}", hint="append fewer batches at once")
        context.resume_at = segments.end
        context.under_way = APPEND
        try:
            active.append(data, facts, crc, context.epoch, now_ms, batches=batches)
            if first:
                self.beginning.check_first_append(token)
            segments.end = last + 1
            if self.producers.state is not None:
                self._apply_producers(*producers)
        except (DiskFullError, TooManyOpenFilesError, FencedError):
            if first and active.size_bytes:  # the record must not stay: its offset may be another one's
                context.check_writable(fenced_too=False)  # undoes the append
            context.under_way = None
            raise
        except LocalIOError as error:
            context.go_offline(error)
            raise
        context.under_way = None
        context.begun = True
        if context.watchers:
            context.notify()
        return reason is not None

    def _apply_producers(self, batches: Sequence[ProducerBatch], bases: Sequence[int]) -> None:
        """Apply written batches of producers, at the offsets ``bases``, to the producer state.

        If the transaction index cannot be written, take the partition offline and raise LocalIOError. The last stable
        offset then stays where it was.
        """
        state = self.producers.state
        completed = () if state is None else state.apply(batches, bases)
        aborted = [txn.index_entry for txn in completed if txn.index_entry is not None]
        if aborted:
            try:
                self.segments.active.append_aborted(aborted)
            except TieredError as error:
                self.context.go_offline(error)
                raise self.context.offline_error(error) from error
            self.segments.new_names = True
        self.producers.complete_append(completed)

    def _metadata(self, base: int, timestamp: int, end: int) -> RecordMetadata:
        return RecordMetadata(self.context.tp.topic, self.context.tp.partition, base, timestamp, end)

    def finish_append(self, rolled: bool) -> None:
        """Flush if the append sealed a segment (``rolled``), or if ``flush.messages`` is reached.

        The caller does not hold the partition's lock.
        """
        if rolled:
            try:
                self.durability.flush_to(self.segments.active.base_offset)
            except NotDurableError as error:  # the record is in the log, the next flush is the segment's, too
                LOGGER.warning("sealed_segment_not_flushed partition=%s error=%s", self.context.tp, error)
        if self.segments.end - self.durability.flushed >= self._flush_messages:
            self.durability.flush_to(self.segments.end)


def _producer_of(piece: bytes | bytearray, fact: BatchFacts) -> ProducerBatch | None:
    """Return the producer's fields of an encoded batch, None if its producer id is -1."""
    if piece[PRODUCER_ID] == NO_PRODUCER:
        return None
    return read_producer(read_header(piece), memoryview(piece), timestamp=fact.max_timestamp)


class FirstAppendGuard:
    """Guard of the first record of an empty log. Once a volume has claimed the partition, the bucket sets its offset.

    An uploader may claim a partition while its application knows of no bucket. The bucket may end at offset N, and the
    log would begin at 0. The claim's proof (a token) is on the disk before the claim is sent to the bucket::

        the uploader:     writes the proof      then checks that the log is empty       then claims it as empty
        the application:  writes the record     then checks that there is no new proof  then acknowledges the record

    The second of the two sees what the first one wrote. So a log never acknowledges a record at an offset that the
    bucket has given to another record. The guard reads small files. While a file is unchanged, that costs one ``stat``.

    ``granted``: (token, claim epoch) of the claim that gave this process the first offset of the log. After a newer
    claim, appends are refused until the upload checkpoint has that claim's epoch.
    """

    __slots__ = ("_context", "_was_patient", "granted")

    def __init__(self, context: PartitionContext) -> None:
        self.granted: tuple[str | None, int] = (None, NO_EPOCH)
        self._context = context
        self._was_patient = False

    def wait(self) -> None:
        """Wait while an uploader claims this empty log, at most ``BEGIN_PATIENCE_S``.

        After one timeout, later calls return at once, and :meth:`need` refuses the append. The caller holds no lock.
        """
        if self._context.begun or self._was_patient or not self._context.segments.empty:
            return
        clock = self._context.clock
        deadline = clock.monotonic() + BEGIN_PATIENCE_S
        while self._obstacle(self._context.segments.end):
            if clock.monotonic() >= deadline:
                self._was_patient = True
                return  # the append itself is refused
            clock.sleep(BEGIN_POLL_S)

    def need(self) -> str | None:
        """Return the token of the present claim, None without a claim.

        Pass the token to :meth:`check_first_append` after the write. Raises FencedError while a claim says that the log
        begins at the bucket's end, and that end is unknown here. The caller holds the partition's lock.
        """
        end = self._context.segments.end
        token = self._token()  # before the obstacles: a proof that comes between the two is found afterwards
        why = self._obstacle(end)
        if why:
            raise FencedError(
                f"{self._context.tp}: the first append is refused: {why}, which may be above offset {end}",
                hint="open the log with remote=URL: it then reads from the bucket where to continue",
            )
        return token

    def check_first_append(self, token: str | None) -> None:
        """Raise FencedError if an uploader made a claim during the write of the first record.

        The caller then removes the record. Appends stay refused until the uploader reports the claim. ``token``: the
        result of :meth:`need`. The caller holds the lock.
        """
        if self._token() != token:
            context = self._context
            context.upload = replace(context.upload or PartitionUpload(0), fenced=True)
            raise FencedError(
                f"{context.tp}: an uploader claimed the partition while its first record was written at offset "
                f"{context.segments.active.base_offset}; the record was removed",
                hint="append again in a moment; if that is refused, run "
                f"`tiered repair rejoin {context.tp.topic}:{context.tp.partition}`",
            )

    def _token(self) -> str | None:
        """Return the token of this directory's last claim, None without one. The claim may have failed."""
        return self._context.around.claims.proof(self._context.tp).token

    def _obstacle(self, end: int) -> str:
        """Return the reason why an empty log that ends at ``end`` must not accept a record now; ``""`` if it may."""
        proof = self._context.around.claims.find(self._context.tp)
        token, epoch = self.granted
        if proof is None or (proof.token is not None and proof.token == token):
            return ""
        noted = self._context.around.uploads.read().get(self._context.tp)
        if noted is not None and noted.end_offset <= end and noted.claim_epoch > epoch:
            return ""
        return "an uploader has claimed it, and it continues at the bucket's end"
