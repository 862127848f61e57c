"""Reading without writing: over a bucket alone, a log directory alone (any Kafka one), or both. No lock is taken.

The local tier, where given, must be of the same log as the bucket: topic ids are compared before a stream begins.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack
from uuid import UUID

from tiered import arguments
from tiered.clock import Clock, IdSource
from tiered.config import LogConfig, S3Keywords, TopicConfig
from tiered.errors import ConfigError, UnknownTopicError
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploads import known_topic
from tiered.local.partition.partition import PartitionLog
from tiered.model import ConsumerRecord, TopicPartition
from tiered.plan.known import NOTHING_KNOWN, Known
from tiered.read.arrow import COLUMNS, ArrowDecoder, arrow_table
from tiered.read.stream import ReadRange, TierBatch, TierStream
from tiered.remote.past import AsOf, Past, Taken
from tiered.remote.pins import Pin
from tiered.remote.reader import RemotePartition
from tiered.remote.root_view import RootView
from tiered.remote.topics import TopicEntry, check_entry, check_successor, list_topics, load_topic_to_read, need_open
from tiered.store.base import Blocking, Emit, Steps, Store
from tiered.store.location import StoreLocation
from tiered.store.metrics import StoreMetrics
from tiered.store.retry import RETRY_DEADLINE_SECONDS
from tiered.store.runner import Runner
from tiered.times import Time
from tiered.topic import TopicReads

if TYPE_CHECKING:
    import pyarrow


def open_reader(
    remote: str | None = None,
    *,
    log_dir: str | Path | None = None,
    as_of: Time | None = None,
    pin: bool = False,
    deadline_seconds: float | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    **s3: Unpack[S3Keywords],
) -> Reader:
    """Opens ``remote`` (a URL), ``log_dir`` (a directory on this machine) or both for reading.

    ``as_of``: what the bucket was, by a snapshot's name, a version (a number) or a time (text or a datetime), which
    takes the newest root that was kept at or before it; ``Reader.taken`` tells which. Only without ``log_dir``.
    ``pin``: each read holds the version that it began with, so that no collection takes away what it has yet to read:
    for reads that may last longer than ``gc.grace.ms``. It makes (and renews, and deletes) one small object below
    ``pin/`` of each partition, which counts for 6 hours after its last renewal: of a reader that crashed nothing stays
    for ever. Without it nothing is written anywhere. ``s3``: :class:`tiered.config.S3Keywords` (``endpoint_url=`` and
    others). ``deadline_seconds`` bounds the retries of one request (default 30). Raises ConfigError (neither is given,
    a bad URL), NotFoundError (no such directory, or a ``file://`` folder that is no store; a bucket that does not exist
    is found by the first read), RemotePermissionError.
    """
    if remote is None and log_dir is None:
        raise ConfigError(
            "nothing to read from", hint='open_reader("s3://bucket/prefix") or open_reader(log_dir="data")'
        )
    place = arguments.StorePlace.of(remote, deadline_seconds, s3)
    folder = None if log_dir is None else arguments.path("log_dir", log_dir)
    clock, ids = arguments.clock_and_ids(clock, ids)
    if arguments.flag("pin", pin) and remote is None:
        raise ConfigError("pin is of a bucket: a disk has no collection", hint="name the bucket, or leave pin out")
    if as_of is not None and (remote is None or log_dir is not None):
        raise ConfigError("as_of is of a bucket alone: a disk has no past", hint="leave log_dir out, name the bucket")
    wanted = None if as_of is None else AsOf.of(as_of, now_ms=clock.now_ms())
    metrics = StoreMetrics()
    location = None
    if place.url is not None:
        location = StoreLocation.parse(place.url, **place.s3)
        location.require_folder()
    local = None
    if folder is not None:
        local = LocalLog.open(folder, clock=clock, ids=ids, config=LogConfig(), read_only=True)
    store = None
    if location is not None:
        seconds = place.seconds(RETRY_DEADLINE_SECONDS)
        store = location.open(deadline_seconds=seconds, metrics=metrics, clock=clock, ids=ids, create=False)
    return Reader(local, store, metrics, clock=clock, ids=ids, as_of=wanted, pin=pin)


@dataclass(slots=True)
class FindReport:
    """What a search looked at. ``complete`` only after the last record was taken and nothing was left out."""

    topic: str
    partitions: int = 0
    records_scanned: int = 0
    records_found: int = 0
    bytes_read: int = 0
    segments_pruned: int = 0
    complete: bool = False


@dataclass(slots=True)
class Found:
    """Records that match, as an iterator; ``report`` is final when the iterator has ended."""

    report: FindReport
    _records: Iterator[ConsumerRecord] = field(repr=False)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self._records


class Reader:
    """Read-only view of one log. Thread-safe: each read is a stream of its own."""

    def __init__(
        self,
        local: LocalLog | None,
        store: Store | None,
        metrics: StoreMetrics,
        *,
        clock: Clock,
        ids: IdSource,
        as_of: AsOf | None = None,
        pin: bool = False,
    ) -> None:
        self._as_of = as_of
        self._pinning = pin
        self._pins: set[Pin] = set()  # in the bucket now
        self._pasts: dict[tuple[UUID, int], Past] = {}
        self._local = local
        self._store = store
        self.request_counts = metrics
        self._clock = clock
        self._ids = ids
        self._runner = Runner(store, clock, ids)
        self._entries: dict[str, TopicEntry] = {}  # as last seen
        self._busy = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        places = [str(self._local.directory)] if self._local is not None else []
        places += [self._store.url] if self._store is not None else []
        return f"<Reader {' + '.join(places)}>"

    def topics(self) -> dict[str, TopicInfo]:
        """Topics of both tiers by name. Over a bucket this lists ``topics/``, the only listing a reader causes."""
        return self._runner.run(self._topics_steps())

    def _topics_steps(self) -> Steps[dict[str, TopicInfo]]:
        """As :meth:`topics`, for whoever runs steps."""
        found: dict[str, TopicInfo] = {}
        if self._local is not None:
            found.update((yield Blocking(self._local.topics)))
        if self._store is not None:
            for entry in (yield from list_topics()):
                config = TopicConfig.from_properties(entry.config)
                found[entry.name] = TopicInfo(entry.name, entry.topic_id, entry.partitions, config)
        return dict(sorted(found.items()))

    def topic(self, name: str) -> TopicReads:
        """The topic ``name``. Raises UnknownTopicError, ConfigError (the tiers hold different topics of that name).

        LogDestroyedError and CorruptionError: the bucket holds less of it than the disk, or this reader, has seen.
        """
        return self._runner.run(self._topic_steps(name))

    def _topic_steps(self, name: str) -> Steps[TopicReads]:
        """As :meth:`topic`, for whoever runs steps."""
        name = arguments.text("topic", name)
        info: TopicInfo | None = None
        known: dict[int, Known] = {}  # before the bucket is asked: what is read after it is never below it
        if self._local is not None:
            info, known = yield Blocking(partial(self._on_disk, self._local, name))
        entry = (yield from self._entry(name, known)) if self._store is not None else None
        if entry is None and info is None:
            names = list((yield from self._topics_steps()))
            near = difflib.get_close_matches(name, names, 1)
            raise UnknownTopicError(
                f"there is no topic {name} in {self!r}",
                hint=f"did you mean {near[0]}?" if near else f"topics: {', '.join(names) or 'none'}",
            )
        if entry is not None and info is not None and entry.topic_id != info.topic_id:
            raise ConfigError(
                f"topic {name} is {info.topic_id} on disk and {entry.topic_id} in the bucket",
                hint="they are different topics: read them one at a time",
            )
        partitions = max(entry.partitions if entry is not None else 0, info.partitions if info is not None else 0)
        return TopicReads(
            name,
            partitions,
            open_stream=lambda tp: self._stream(tp, entry, known.get(tp.partition, NOTHING_KNOWN)),
            now_ms=self._clock.now_ms,
            runner=self._runner,
        )

    def _on_disk(self, local: LocalLog, name: str) -> tuple[TopicInfo | None, dict[int, Known]]:
        """The topic as the disk has it, and what the disk has seen of its roots, by partition."""
        info = local.topics().get(name)
        if self._store is None:
            return info, {}
        return info, known_topic(name, local.uploads.read(), local.claims.read())

    def _entry(self, name: str, known: Mapping[int, Known]) -> Steps[TopicEntry | None]:
        """The registry entry, held against what the disk, and this reader, have seen of it."""
        if self._store is None:
            return None
        entry = yield from load_topic_to_read(name)
        with self._busy:
            check_entry(name, entry, known, where=self._store.url)
            check_successor(name, self._entries.get(name), entry, where=self._store.url)
            if entry is not None:
                need_open(entry)
                self._entries[name] = entry
        return entry

    def _stream(self, tp: TopicPartition, entry: TopicEntry | None, known: Known) -> Steps[TierStream]:
        local: PartitionLog | None = None
        if self._local is not None:
            local = yield Blocking(partial(_partition, self._local, tp))
        remote = None
        # Of a partition that the entry does not name (yet) nothing says that its root was made.
        if self._store is not None and entry is not None:
            made = entry.roots and tp.partition < entry.partitions
            known = replace(known, made=made)
            past = self._past(tp, entry.topic_id, known)
            pin = Pin(tp.topic, entry.topic_id, tp.partition, self._pins) if self._pinning else None
            remote = RemotePartition(tp.topic, entry.topic_id, tp.partition, known=known, past=past, pin=pin)
        return TierStream(tp, local=local, remote=remote)

    def _past(self, tp: TopicPartition, topic_id: UUID, known: Known) -> Past | None:
        """The one of this partition: each of its streams reads the same version."""
        if self._as_of is None:
            return None
        with self._busy:
            made = Past(RootView(topic_id, tp.partition, tp.topic, known), self._as_of)
            return self._pasts.setdefault((topic_id, tp.partition), made)

    def taken(self, topic: str, *, partition: int | None = None) -> dict[TopicPartition, Taken]:
        """Which version of each partition, or one, a reader ``as_of`` something reads.

        Raises NotFoundError (nothing that was kept is meant, or it was collected), ConfigError without ``as_of``.
        """
        return self._runner.run(self._taken_steps(topic, arguments.partition_or_none(partition)))

    def _taken_steps(self, topic: str, partition: int | None) -> Steps[dict[TopicPartition, Taken]]:
        """As :meth:`taken`, for whoever runs steps."""
        reads = yield from self._topic_steps(topic)
        entry = self._entries.get(topic)
        found = {}
        for number in reads.chosen(partition):
            tp = TopicPartition(topic, number)
            past = self._past(tp, entry.topic_id, NOTHING_KNOWN) if entry is not None else None
            if past is None:
                raise ConfigError("the reader was opened without as_of", hint='open_reader(url, as_of="-1d")')
            found[tp] = yield from past.take()
        return found

    def beginning_offsets(self, topic: str) -> dict[TopicPartition, int]:
        """Earliest offset of each partition, over both tiers."""
        return self.topic(topic).beginning_offsets()

    def end_offsets(self, topic: str) -> dict[TopicPartition, int]:
        """Latest offset (exclusive end) of each partition, over both tiers."""
        return self.topic(topic).end_offsets()

    def offsets_for_times(self, topic: str, time: Time) -> dict[TopicPartition, tuple[int, int] | None]:
        """Per partition the first (offset, timestamp) at or after ``time``."""
        return self.topic(topic).offsets_for_times(time)

    def find(
        self,
        topic: str,
        *,
        key: bytes,
        since: Time | None = None,
        until: Time | None = None,
        partition: int | None = None,
    ) -> Found:
        """Records with this key between two times, from every partition (or one), with a report of what was searched.

        Segments whose timestamps lie outside the times are never fetched; all others are, whatever their key.
        """
        report = FindReport(topic)
        steps = self._runner.run(
            self._find_steps(topic, report, key=key, since=since, until=until, partition=partition)
        )
        return Found(report, _one_by_one(self._runner.stream(steps)))

    def _find_steps(
        self,
        topic: str,
        report: FindReport,
        *,
        key: bytes,
        since: Time | None,
        until: Time | None,
        partition: int | None,
    ) -> Steps[Steps[None]]:
        """Checks what :meth:`find` was given; gives the steps that emit the records."""
        key = bytes(arguments.key(key))
        wanted = ReadRange.of_times(since, until, now_ms=self._clock.now_ms())
        arguments.partition_or_none(partition)
        reads = yield from self._topic_steps(topic)
        return self._search(reads, key, wanted, reads.chosen(partition), report)

    def _search(
        self, reads: TopicReads, key: bytes, wanted: ReadRange, chosen: Sequence[int], report: FindReport
    ) -> Steps[None]:
        before = self._received_bytes()

        def matching(records: Iterable[ConsumerRecord]) -> Iterator[ConsumerRecord]:
            for record in records:
                report.records_scanned += 1
                if record.key == key:
                    report.records_found += 1
                    report.bytes_read = self._received_bytes() - before
                    yield record

        for partition in chosen:
            stream = yield from reads._open_steps(partition)
            report.partitions += 1
            report.segments_pruned += yield from stream.pruned_segments(wanted)
            yield from stream.records(wanted, through=matching)
            yield from stream.release()
        report.bytes_read = self._received_bytes() - before
        report.complete = True

    def to_arrow(
        self,
        topic: str,
        *,
        partition: int | None = None,
        since: Time | None = None,
        until: Time | None = None,
        columns: list[str] | None = None,
    ) -> pyarrow.Table:
        """All records as a ``pyarrow.Table`` with Kafka's columns; ``columns`` that are not named are not decoded.

        Needs the extra ``arrow``. The table is in memory whole: for more, use Spark or ``read``.
        """
        names, steps = self._arrow_steps(topic, partition=partition, since=since, until=until, columns=columns)
        return arrow_table([batch for piece in self._runner.stream(steps) for batch in piece], names)

    def _arrow_steps(
        self,
        topic: str,
        *,
        partition: int | None,
        since: Time | None,
        until: Time | None,
        columns: list[str] | None,
    ) -> tuple[Sequence[str], Steps[None]]:
        """Checks what :meth:`to_arrow` was given; gives the columns, and steps that emit lists of record batches."""
        names = arguments.columns_or_none(columns, COLUMNS) or COLUMNS
        wanted = ReadRange.of_times(since, until, now_ms=self._clock.now_ms())
        arguments.partition_or_none(partition)
        return names, self._record_batches(topic, partition, wanted, names)

    def _record_batches(
        self, topic: str, partition: int | None, wanted: ReadRange, names: Sequence[str]
    ) -> Steps[None]:
        reads = yield from self._topic_steps(topic)
        for number in reads.chosen(partition):
            stream = yield from reads._open_steps(number)
            for start, end in (yield from stream.windows(wanted)):
                decoder = ArrowDecoder(
                    stream.tp, columns=names, start=start, end=end, since_ms=wanted.since_ms, until_ms=wanted.until_ms
                )
                yield from stream.batches(start, end, shape=partial(_decoded, decoder))
                yield Emit(list(decoder.finish()))
            yield from stream.release()

    def requests(self) -> dict[str, int]:
        """Requests made to the store so far, by operation."""
        counts: dict[str, int] = {}
        for figures in self.request_counts.snapshot():
            counts[figures.op] = counts.get(figures.op, 0) + figures.requests
        return counts

    def _received_bytes(self) -> int:
        return sum(figures.received_bytes for figures in self.request_counts.snapshot())

    def close(self) -> None:
        """Releases files and connections, and deletes the pins of reads that did not end. Safe to call again."""
        for pin in list(self._pins):
            self._runner.run(pin.drop())
        if self._local is not None:
            self._local.close()
        if self._store is not None:
            self._store.close()


def _partition(local: LocalLog, tp: TopicPartition) -> PartitionLog | None:
    return local.partition(tp) if tp in set(local.partitions()) else None


def _decoded(decoder: ArrowDecoder, batch: TierBatch) -> list[pyarrow.RecordBatch] | None:
    return list(decoder.add(batch.header, batch.data)) or None


def _one_by_one(pieces: Iterable[Iterable[ConsumerRecord]]) -> Iterator[ConsumerRecord]:
    for piece in pieces:
        yield from piece
