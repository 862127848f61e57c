"""Reads of a topic over both tiers on the calling thread, for readers and for the log's writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tiered import arguments
from tiered.arrow.schema import COLUMNS, RecordBatches, arrow_schema
from tiered.display import html_table, names_without
from tiered.errors import ConfigError, UnknownTopicError
from tiered.format.batch_scanner import BatchRun
from tiered.format.kernels import ConsumerRecord
from tiered.model import Positions, TopicPartition
from tiered.plan.read import LocalSpan, RemoteSpan, Tier
from tiered.plan.visibility import Hidden
from tiered.read.fetch import Emitter, Followers
from tiered.read.follow import Following, PartitionCounter
from tiered.read.stream import (
    ISOLATION_LEVELS,
    ON_TRIMMED,
    Cursor,
    Part,
    ReadRange,
    ReadRequest,
    TierBatch,
    TierStream,
)
from tiered.store.base import Emit, Steps
from tiered.store.driver import Runner
from tiered.times import Time, parse_time

if TYPE_CHECKING:
    import pyarrow

    from tiered.arrow import ArrowDecoder
    from tiered.local.partition.read_log import ReadLog
    from tiered.remote.reader import RemotePartition


class PartitionStream:
    """Both tiers of one partition (``read.stream``), read on the calling thread. Not thread-safe: one per reader."""

    def __init__(self, steps: TierStream, runner: Runner) -> None:
        self.tp = steps.tp
        self.steps = steps
        self._runner = runner

    def __repr__(self) -> str:
        return f"<PartitionStream {self.tp}>"

    @classmethod
    def open(
        cls,
        tp: TopicPartition,
        *,
        local: ReadLog | None,
        remote: RemotePartition | None,
        runner: Runner | None = None,
    ) -> PartitionStream:
        """Return a stream over these tiers. With a remote tier, pass a ``runner`` that has its store."""
        return cls(TierStream(tp, local=local, remote=remote), runner or Runner())

    def refresh(self) -> None:
        self._runner.run(self.steps.refresh())

    def spans(self) -> tuple[LocalSpan | None, RemoteSpan | None]:
        return self._runner.run(self.steps.spans())

    def earliest(self) -> int:
        return self._runner.run(self.steps.earliest())

    def latest(self) -> int:
        return self._runner.run(self.steps.latest())

    def positions(self) -> Positions:
        return self._runner.run(self.steps.positions())

    def last_stable_offset(self) -> int:
        return self._runner.run(self.steps.last_stable_offset())

    def offset(self, wanted: int | str) -> int:
        return self._runner.run(self.steps.offset(wanted))

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        return self._runner.run(self.steps.offset_for_time(timestamp))

    def batches(self, start: int, end: int | None = None, *, on_trimmed: str = "raise") -> Iterator[TierBatch]:
        """Yield the encoded batches that hold offsets ``start`` to ``end`` (exclusive; None: the latest), in order.

        ``on_trimmed="jump"`` continues at the earliest offset if retention deleted the wanted one; "raise" raises
        OffsetOutOfRangeError. Also raises OffsetGapError, CorruptionError and the store's errors.
        """
        steps = self.steps.batch_runs(start, end, on_trimmed=on_trimmed)
        return chain.from_iterable(self._runner.stream(steps, self.steps.release))

    def records(
        self, wanted: ReadRange, *, isolation: str = "read_uncommitted", on_trimmed: str = "raise"
    ) -> Iterator[ConsumerRecord]:
        """Yield the decoded records of ``wanted`` one by one, without control records.

        ``isolation="read_committed"`` leaves out aborted records, and ends before the first open transaction.
        ``on_trimmed="jump"`` continues at the earliest offset if retention deleted the wanted one.
        """
        steps = self.steps.records(wanted, isolation=isolation, on_trimmed=on_trimmed)
        return chain.from_iterable(self._runner.stream(steps, self.steps.release))


def records_of(wanted: ReadRequest) -> Emitter:
    """Return the function that emits the wanted records of one range of offsets, as iterators of records.

    The range is the :class:`Part` that is passed to the function.
    """
    return Emitter(partial(_part_records, wanted), buffers=False)


def arrow_of(wanted: ReadRequest, columns: Sequence[str]) -> Emitter:
    """Return the function that emits the wanted records of one range of offsets, as lists of Arrow record batches.

    ``columns``: names of their columns. The range is the :class:`Part` that is passed to the function.
    """
    return Emitter(partial(_part_arrow, wanted, columns), buffers=True)


def _part_records(wanted: ReadRequest, stream: TierStream, part: Part, cursor: Cursor | None) -> Steps[None]:
    return stream.part_records(part, wanted.span, on_trimmed=wanted.on_trimmed, cursor=cursor)


def _part_arrow(
    wanted: ReadRequest, columns: Sequence[str], stream: TierStream, part: Part, cursor: Cursor | None
) -> Steps[None]:
    from tiered.arrow.decoder import ArrowDecoder, RecordBounds  # noqa: PLC0415  with numpy

    (start, end, hidden), span = part, wanted.span
    decoder = ArrowDecoder(stream.tp, columns=columns, bounds=RecordBounds(start, end, span.least_ms, span.until_ms))
    shape, run_shape = partial(_decoded, decoder, hidden), partial(_run_decoded, decoder, hidden)
    yield from stream.batches(start, end, on_trimmed=wanted.on_trimmed, shape=shape, run_shape=run_shape, cursor=cursor)
    yield Emit(list(decoder.finish()))


def release_steps(opened: Sequence[TierStream]) -> Steps[None]:
    """Release the streams in ``opened`` after a read that ended or was stopped early. Never raises."""
    for stream in opened:
        yield from stream.release()


class TopicReads:
    """Read methods of a topic, the same with and without its writer. Thread-safe: each read has its own stream."""

    def __init__(
        self,
        name: str,
        partitions: int,
        *,
        open_stream: Callable[[TopicPartition], Steps[TierStream]],
        counter: PartitionCounter,
        followers: Followers,
        now_ms: Callable[[], int],
        runner: Runner,
    ) -> None:
        self.name = name
        self._counter = counter
        self._followers = followers
        self._partitions = partitions
        self._open_stream = open_stream
        self._now_ms = now_ms
        self._runner = runner

    __dir__ = names_without("check_partition", "chosen", "stream")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} partitions={self.partitions}>"

    def _repr_html_(self) -> str:
        return html_table(f"{type(self).__name__} {self.name}, {self.partitions} partitions", (), ())

    @property
    def partitions(self) -> int:
        """Return the number of partitions."""
        return self._partitions

    def stream(self, partition: int) -> PartitionStream:
        """Return a refreshed stream over both tiers of one partition. Raises UnknownTopicError if there is none."""
        return PartitionStream(self._runner.run(self._open_steps(partition)), self._runner)

    def _open_steps(self, partition: int, opened: list[TierStream] | None = None) -> Steps[TierStream]:
        """Open a refreshed stream, as steps. Adds it to ``opened`` before its first request."""
        partition = self.check_partition(partition)
        stream = yield from self._open_stream(TopicPartition(self.name, partition))
        if opened is not None:
            opened.append(stream)
        yield from stream.refresh()
        return stream

    def read(
        self,
        partition: int | None = None,
        *,
        start: int | str | None = None,
        end: int | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        isolation: str = "read_uncommitted",
        on_trimmed: str = "raise",
        follow: bool = False,
        idle_timeout: float | str | None = None,
    ) -> Iterator[ConsumerRecord]:
        """Return an iterator of records, first from the bucket, then from disk, up to the latest offset at its start.

        ``start`` and ``end`` are offsets (int, "earliest", "latest"), ``since`` and ``until`` times; both ranges are
        half-open. An offset and a time on the same side raise ConfigError. A record without a timestamp (Kafka's -1) is
        in no range of times. ``partition=None`` reads one partition after the other; with several, numbers as offsets
        raise ConfigError.
        ``isolation="read_committed"`` hides records of open and aborted transactions. ``on_trimmed="jump"`` continues
        at the earliest offset if retention deleted the wanted one.

        ``follow=True`` continues with each new record, also of partitions that are added. The read survives outages of
        the store. It ends at ``end``, or after ``idle_timeout`` (seconds, or text such as "5s") without a record.
        Closing the log or reader, from any thread, ends it with ClosedError.

        Raises ConfigError, InvalidTimestampError, OffsetOutOfRangeError, OffsetGapError, CorruptionError,
        RemoteUnavailableError, and UnknownTopicError for a partition that does not exist or that the opened directory
        does not have.
        """
        span = self._range(partition, start=start, end=end, since=since, until=until)
        wanted = self._wanted(partition, span, isolation, on_trimmed, follow=follow, idle_timeout=idle_timeout)
        opened: list[TierStream] = []
        steps = self._reading(wanted, records_of(wanted), opened=opened)
        return chain.from_iterable(self._runner.stream(steps, partial(release_steps, opened)))

    def _follow_from(
        self, starts: Mapping[int, int], *, isolation: str, whole_topic: bool, before_wait: Callable[[], None]
    ) -> Iterator[ConsumerRecord]:
        """Read with ``follow=True`` from the offsets ``starts``, by partition. Skip records that retention deleted.

        ``whole_topic``: follow partitions that are added, too. ``before_wait`` is called before each wait.
        """
        wanted = ReadRequest(list(starts), ReadRange(), isolation, on_trimmed="jump")
        opened: list[TierStream] = []
        counter = self._counter if whole_topic else None
        following = Following(
            self.name, wanted, counter, self._open_steps, records_of(wanted), self._followers, starts, before_wait
        )
        return chain.from_iterable(self._runner.stream(following.steps(opened), partial(release_steps, opened)))

    def _range(
        self,
        partition: int | None,
        *,
        start: int | str | None,
        end: int | str | None,
        since: Time | None,
        until: Time | None,
    ) -> ReadRange:
        """Check the arguments of :meth:`read` that give the range, and return the range."""
        span = ReadRange.from_times(since, until, now_ms=self._now_ms(), start=start, end=end)
        if partition is None and self.partitions > 1 and (isinstance(span.start, int) or isinstance(span.end, int)):
            raise ConfigError(
                f"{self.name}: start and end need a partition, because offsets differ by partition",
                hint="pass one partition: read(partition=0, start=...)",
            )
        return span

    def _wanted(
        self,
        partition: int | None,
        span: ReadRange,
        isolation: str,
        on_trimmed: str,
        *,
        follow: bool,
        idle_timeout: float | str | None,
    ) -> ReadRequest:
        """Check the arguments of :meth:`read` other than the range ``span``. Return all of them."""
        arguments.one_of("isolation", isolation, ISOLATION_LEVELS)
        arguments.one_of("on_trimmed", on_trimmed, ON_TRIMMED)
        idle_s = None if idle_timeout is None else arguments.duration_s("idle_timeout", idle_timeout)
        if not arguments.flag("follow", follow) and idle_s is not None:
            raise ConfigError(
                "idle_timeout is only for a read with follow=True", hint="leave idle_timeout out, or pass follow=True"
            )
        if follow and span.until_ms is not None:
            raise ConfigError(
                "until and follow=True exclude each other", hint="pass end=OFFSET or idle_timeout=SECONDS"
            )
        return ReadRequest(self.chosen(partition), span, isolation, on_trimmed, follow, partition is None, idle_s)

    def _reading(self, wanted: ReadRequest, emit: Emitter, *, opened: list[TierStream]) -> Steps[None]:
        """Emit the wanted records by ``emit``. Adds each stream to ``opened``; the caller releases the streams."""
        if wanted.follow:
            counter = self._counter if wanted.all_partitions else None
            following = Following(self.name, wanted, counter, self._open_steps, emit, self._followers)
            yield from following.steps(opened)
            return
        for partition in wanted.partitions:
            stream = yield from self._open_steps(partition, opened)
            for part in (yield from stream.shown(wanted.span, wanted.isolation)):
                yield from emit.steps(stream, part, None)
            yield from stream.release()

    def read_batches(
        self,
        partition: int | None = None,
        *,
        start: int | str | None = None,
        end: int | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        isolation: str = "read_uncommitted",
        on_trimmed: str = "raise",
        columns: list[str] | None = None,
        follow: bool = False,
        idle_timeout: float | str | None = None,
    ) -> RecordBatches:
        """Return records as Arrow record batches of about 1 MiB, with all columns or ``columns``.

        ``start``, ``end``: offsets; ``since``, ``until``: times; both ranges are half-open. ``partition`` None: all.
        ``isolation="read_committed"`` hides records of open and aborted transactions. ``on_trimmed="jump"`` continues
        at the earliest offset if retention deleted the wanted one. ``follow=True`` continues with new records, until
        ``idle_timeout`` (seconds, or text such as "5s") passes without one. Memory stays bounded.

        Needs the extra ``arrow``. ``polars.from_arrow``, ``duckdb.from_arrow`` and
        ``pyarrow.RecordBatchReader.from_stream`` take the result without a copy.

        Raises ConfigError, InvalidTimestampError, UnknownTopicError for a partition that does not exist. Iteration
        raises OffsetOutOfRangeError, OffsetGapError, CorruptionError, RemoteUnavailableError, and ClosedError if the
        log or reader is closed while it follows.
        """
        span = self._range(partition, start=start, end=end, since=since, until=until)
        wanted = self._wanted(partition, span, isolation, on_trimmed, follow=follow, idle_timeout=idle_timeout)
        names = arguments.columns_or_none(columns, COLUMNS) or COLUMNS
        opened: list[TierStream] = []
        steps = self._reading(wanted, arrow_of(wanted, names), opened=opened)
        pieces = self._runner.stream(steps, partial(release_steps, opened))
        return RecordBatches(arrow_schema(names), (each for piece in pieces for each in piece))

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Return the earliest offset of each partition, over both tiers."""
        return {TopicPartition(self.name, p): self.stream(p).earliest() for p in range(self.partitions)}

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the latest offset (exclusive end) of each partition, over both tiers."""
        return {TopicPartition(self.name, p): self.stream(p).latest() for p in range(self.partitions)}

    def offsets_for_times(self, time: Time) -> dict[TopicPartition, tuple[int, int] | None]:
        """Return each partition's first (offset, timestamp) at or after ``time``, None if there is none."""
        at = self._timestamp(time)
        return {TopicPartition(self.name, p): self.stream(p).offset_for_time(at) for p in range(self.partitions)}

    def _timestamp(self, time: Time) -> int:
        return parse_time(time, now_ms=self._now_ms())

    def positions(self, partition: int) -> Positions:
        """Return the partition's positions over both tiers, refreshed. Without a disk all records count as uploaded."""
        return self.stream(partition).positions()

    def chosen(self, partition: int | None) -> Sequence[int]:
        """Return the numbers of the partitions to read: ``partition``, or all if it is None.

        Raises ConfigError if ``partition`` is no whole number, UnknownTopicError if the topic lacks it.
        """
        return range(self.partitions) if partition is None else (self.check_partition(partition),)

    def check_partition(self, partition: int) -> int:
        """Return ``partition`` if the topic has it. Raises ConfigError for another type, UnknownTopicError if it does
        not exist.
        """
        partition = arguments.whole("partition", partition)
        if not 0 <= partition < self.partitions:
            raise UnknownTopicError(
                f"topic {self.name} has no partition {partition}", hint=f"its partitions are 0 to {self.partitions - 1}"
            )
        return partition


def _run_decoded(
    decoder: ArrowDecoder, hidden: Hidden | None, tier: Tier, run: BatchRun
) -> Iterator[pyarrow.RecordBatch] | None:
    """Return the Arrow batches of a run of log batches. None: the caller must check and decode each batch alone."""
    return None if hidden is not None and hidden.hides_any else decoder.add_run(run.data)


def _decoded(decoder: ArrowDecoder, hidden: Hidden | None, batch: TierBatch) -> list[pyarrow.RecordBatch] | None:
    if hidden is not None and hidden.hides(batch.header):
        return None
    return list(decoder.add(batch.header, batch.data)) or None
