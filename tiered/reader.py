"""Read-only access to a bucket, a log directory (any Kafka one), or both. No lock is taken.

A bucket and a directory must be of the same log: topic ids are compared before a stream begins.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack
from uuid import UUID

from tiered import arguments
from tiered.arrow.schema import COLUMNS, arrow_table
from tiered.clock import Clock, IdSource
from tiered.config import S3Keywords
from tiered.consumer.consumer import Consumer
from tiered.consumer.steps import ConsumerKeywords, ConsumerSteps, Options
from tiered.display import html_table, names_without
from tiered.errors import ConfigError, TieredError, UnknownTopicError
from tiered.format.kernels import ConsumerRecord
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploader_files import root_bounds_of_topic
from tiered.local.partition.read_log import ReadLog
from tiered.local.partition.read_only_partition import check_same_topic
from tiered.model import TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.read.fetch import Followers
from tiered.read.follow import COUNT_S, PartitionCounter
from tiered.read.stream import ReadRange, ReadRequest, TierStream
from tiered.read.topic import TopicReads, arrow_of, release_steps
from tiered.store.base import Blocking, Steps
from tiered.store.driver import Runner
from tiered.store.metrics import StoreMetrics
from tiered.store.options import RETRY_DEADLINE_SECONDS, StoreOptions
from tiered.times import Time

if TYPE_CHECKING:
    import pyarrow

    from tiered.group.driver import GroupMember
    from tiered.group.member import GroupSettings
    from tiered.read.bucket import BucketReads
    from tiered.remote.snapshots import KeptRoot
    from tiered.remote.topics import TopicEntry

ASK_AGAIN_SECONDS = 1.0
"""Least seconds between two requests for a topic that the bucket did not have at the last one."""


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
    """Open ``remote`` (a URL), ``log_dir`` (a directory on this machine) or both for reading.

    Args:
        as_of: a snapshot's name, a version (a number) or a time (text or a datetime), only without ``log_dir``. The
            reader shows that past state of the bucket. A time means the newest stored root that is not later.
            ``Reader.taken`` returns the chosen version.
        pin: protect each read's version from garbage collection, for reads longer than ``gc.grace.ms``. A pin is one
            small object below ``pin/`` of the partition. It is renewed, deleted after the read, and expires 6 hours
            after its last renewal. Without ``pin`` nothing is written anywhere.
        deadline_seconds: bounds the retries of one request (default 30).
        clock, ids: replacements for tests.
        s3: keywords such as ``endpoint_url``, see :class:`tiered.config.S3Keywords`.

    Raises:
        ConfigError: neither place is given, the URL is wrong, or arguments exclude each other.
        NotFoundError: no such directory, or a ``file://`` folder that is no store. The first read finds a missing
            bucket, or a missing right (RemotePermissionError).
        CorruptionError: the list of topics in ``log_dir`` cannot be read.
    """
    if remote is None and log_dir is None:
        raise ConfigError(
            "open_reader needs a bucket or a log directory, and got neither",
            hint='open_reader("s3://bucket/prefix") or open_reader(log_dir="data")',
        )
    place = arguments.StorePlace.checked(remote, deadline_seconds, s3)
    folder = arguments.path_or_none("log_dir", log_dir)
    clock, ids = arguments.clock_and_ids(clock, ids)
    if arguments.flag("pin", pin) and remote is None:
        raise ConfigError(
            "pin needs a bucket, and this reader has only a log directory", hint="pass a bucket's URL, or leave it out"
        )
    if as_of is not None and (remote is None or log_dir is not None):
        raise ConfigError(
            "as_of does not go with log_dir: only a bucket keeps older versions",
            hint="open the bucket alone, without log_dir",
        )
    options = StoreOptions(
        clock=clock,
        ids=ids,
        metrics=StoreMetrics(),
        deadline_seconds=place.seconds(RETRY_DEADLINE_SECONDS),
        create=False,
    )
    bucket: BucketReads | None = None
    if place.url is not None:
        # A reader of a disk alone does not import the remote tier, numpy and the stores: it starts in half the time.
        from tiered.read.bucket import BucketReads  # noqa: PLC0415

        bucket = BucketReads.open(place, as_of, options, pin=pin, now_ms=clock.now_ms())
    try:
        local = None if folder is None else LogView.open(folder, clock=clock)
    except BaseException:
        if bucket is not None:
            bucket.store.close()
        raise
    return Reader(local, bucket, options, clock=clock, ids=ids)


@dataclass(slots=True)
class FindReport:
    """Counts of a search. ``complete``: True once all chosen partitions were read to their end, False after an error.

    ``bytes_read``: bytes that the reader received from the store during the search.
    """

    topic: str
    partitions: int = 0
    records_scanned: int = 0
    records_found: int = 0
    bytes_read: int = 0
    complete: bool = False


@dataclass(slots=True)
class FindResult:
    """Matching records, for one loop. ``iter(result)`` returns their iterator, for ``next``.

    ``report`` is final when the iterator has ended.
    """

    report: FindReport
    _records: Iterator[ConsumerRecord] = field(repr=False)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self._records


@dataclass(slots=True)
class _TopicState:
    """Last known state of a topic: its id ``on_disk`` and its ``entry`` in the bucket, None where it is not.

    ``known``: lower bounds of its roots from the disk, by partition. ``asked``: monotonic seconds of the last request
    for its entry; None: no request was made.
    """

    on_disk: UUID | None
    entry: TopicEntry | None
    known: dict[int, RootLowerBounds]
    asked: float | None = None


class Reader:
    """Read-only view of one log. Thread-safe: each read is a stream of its own."""

    def __init__(
        self,
        local: LogView | None,
        bucket: BucketReads | None,
        options: StoreOptions,
        *,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._local = local
        self._bucket = bucket
        self.store_options = options
        self.request_counts = options.metrics or StoreMetrics()
        self._clock = clock
        self._followers = Followers()
        self._members: list[GroupMember] = []
        self._runner = Runner(None if bucket is None else bucket.store, clock, ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    __dir__ = names_without("request_counts", "store_options")

    def __repr__(self) -> str:
        return f"<Reader {' + '.join(place for _, place in self._places())}>"

    def _repr_html_(self) -> str:
        return html_table("Reader", ("tier", "place"), self._places())

    def _places(self) -> list[tuple[str, str]]:
        places = [("local", str(self._local.directory))] if self._local is not None else []
        return places + ([("remote", self._bucket.store.url)] if self._bucket is not None else [])

    def topics(self, unreadable: dict[str, TieredError] | None = None) -> dict[str, TopicInfo]:
        """Return the topics of both tiers by name. In a bucket this lists the objects below ``topics/``.

        ``unreadable``: a dictionary that gets the errors of damaged registry entries by name. All other topics are
        returned. Without it such an error is raised: CorruptionError, or ConfigError for the entry of a newer release.
        """
        return self._runner.run(self._topics_steps(unreadable))

    def _topics_steps(self, unreadable: dict[str, TieredError] | None = None) -> Steps[dict[str, TopicInfo]]:
        if unreadable is not None:
            arguments.instance("unreadable", unreadable, dict, "a dictionary, which gets errors by topic, or None")
        found: dict[str, TopicInfo] = {}
        if self._local is not None:
            found.update((yield Blocking(self._local.topics)))
        if self._bucket is not None:
            found.update((yield from self._bucket.topics(unreadable)))
        return dict(sorted(found.items()))

    def topic(self, name: str) -> TopicReads:
        """Return the topic ``name``, to read from.

        Raises:
            UnknownTopicError: neither the bucket nor the disk has it.
            ConfigError: the bucket and the disk have different topics of that name.
            LogDestroyedError: the topic was deleted, or is gone from the bucket although it was there.
            CorruptionError: its entry in the bucket is damaged, or older than one that was there.
        """
        return self._runner.run(self._topic_steps(name))

    def _topic_steps(self, name: str) -> Steps[TopicReads]:
        name = arguments.text("topic", name)
        info: TopicInfo | None = None
        known: dict[int, RootLowerBounds] = {}  # before the bucket is asked, whose answer is then never older
        if self._local is not None:
            info, known = yield Blocking(partial(self._on_disk, self._local, name))
        entry = (yield from self._bucket.entry(name, known)) if self._bucket is not None else None
        if entry is None and info is None:
            unreadable: dict[str, TieredError] = {}
            names = sorted({*(yield from self._topics_steps(unreadable)), *unreadable})
            near = difflib.get_close_matches(name, names, 1)
            raise UnknownTopicError(
                f"there is no topic {name} in {self!r}",
                hint=f"did you mean {near[0]}?" if near else f"topics: {', '.join(names) or 'none'}",
            )
        if entry is not None and info is not None:
            _need_same(name, info.topic_id, entry.topic_id)
        partitions = max(entry.partitions if entry is not None else 0, info.partitions if info is not None else 0)
        seen = _TopicState(info.topic_id if info is not None else None, entry, known)
        return TopicReads(
            name,
            partitions,
            open_stream=partial(self._stream, seen),
            counter=PartitionCounter(partial(self._count_steps, name, seen), COUNT_S),
            followers=self._followers,
            now_ms=self._clock.now_ms,
            runner=self._runner,
        )

    def _count_steps(self, name: str, seen: _TopicState) -> Steps[int]:
        """Return the number of partitions now. Raises LogDestroyedError if the topic was deleted and created again."""
        if self._local is not None:
            info, _ = yield Blocking(partial(self._on_disk, self._local, name))
            if info is not None and seen.on_disk is not None:
                check_same_topic(TopicPartition(name, 0), seen.on_disk, info.topic_id)
        return (yield from self._topic_steps(name)).partitions

    def _on_disk(self, local: LogView, name: str) -> tuple[TopicInfo | None, dict[int, RootLowerBounds]]:
        info = local.topics().get(name)
        return info, {} if self._bucket is None else _known_on_disk(local, name)

    def _stream(self, seen: _TopicState, tp: TopicPartition) -> Steps[TierStream]:
        local: ReadLog | None = None
        if self._local is not None:
            local = yield Blocking(partial(self._local.held, tp))
            if local is not None and seen.on_disk is not None:
                check_same_topic(tp, seen.on_disk, local.topic_id)
        entry, known = seen.entry, seen.known
        if self._local is not None and self._bucket is not None and entry is None:
            entry, known = yield from self._find_in_bucket(self._local, self._bucket, tp.topic, seen)
        remote = None
        if self._bucket is not None and entry is not None:
            remote = self._bucket.partition(tp, entry, known.get(tp.partition, NOTHING_KNOWN))
        if self._local is not None and local is None and seen.on_disk is not None:
            # Records that the disk held and the bucket lacks are missing from a read of both, too.
            check = self._local.check_absent if remote is None else self._local.check_gone
            yield Blocking(partial(check, tp, seen.on_disk))
            local = yield Blocking(partial(self._local.held, tp))  # it may have been created meanwhile
        return TierStream(tp, local=local, remote=remote)

    def _find_in_bucket(
        self, local: LogView, bucket: BucketReads, name: str, seen: _TopicState
    ) -> Steps[tuple[TopicEntry | None, dict[int, RootLowerBounds]]]:
        """Return a topic's registry entry, None without one, and the lower bounds of its roots from the disk.

        The topic was only on the disk. It may have been uploaded meanwhile, and its segments deleted there.
        """
        known = yield Blocking(partial(_known_on_disk, local, name))
        if not known and seen.asked is not None and self._clock.monotonic() - seen.asked < ASK_AGAIN_SECONDS:
            return None, known  # no claim, no upload: nothing has left the disk
        seen.asked = self._clock.monotonic()
        entry = yield from bucket.entry(name, known)
        if entry is not None:
            if seen.on_disk is not None:
                _need_same(name, seen.on_disk, entry.topic_id)
            seen.known, seen.entry = known, entry
        return entry, known

    def taken(self, topic: str, *, partition: int | None = None) -> dict[TopicPartition, KeptRoot]:
        """Return the past version that a reader with ``as_of`` reads, of each partition. ``partition``: of one alone.

        Raises NotFoundError if no stored version matches or its objects were deleted, ConfigError without ``as_of``.
        """
        return self._runner.run(self._taken_steps(topic, arguments.partition_or_none(partition)))

    def _taken_steps(self, topic: str, partition: int | None) -> Steps[dict[TopicPartition, KeptRoot]]:
        reads = yield from self._topic_steps(topic)
        found = {}
        for number in reads.chosen(partition):
            tp = TopicPartition(topic, number)
            taken = (yield from self._bucket.taken(tp)) if self._bucket is not None else None
            if taken is None:
                raise ConfigError(
                    "there is no chosen version: the reader was opened without as_of",
                    hint='open_reader(url, as_of="-1d")',
                )
            found[tp] = taken
        return found

    def find(
        self,
        topic: str,
        *,
        key: bytes,
        since: Time | None = None,
        until: Time | None = None,
        partition: int | None = None,
    ) -> FindResult:
        """Return the records with this key, for one loop, and a report of the search, which runs as you iterate.

        ``since``, ``until``: half-open range of times; None: no bound. ``partition`` None: all. Segments whose
        timestamps lie outside the range are never fetched. All others are, whatever their keys.
        """
        report = FindReport(topic)
        opened: list[TierStream] = []
        steps = self._runner.run(
            self._find_steps(opened, topic, report, key=key, since=since, until=until, partition=partition)
        )
        return FindResult(report, _one_by_one(self._runner.stream(steps, partial(release_steps, opened))))

    def _find_steps(
        self,
        opened: list[TierStream],
        topic: str,
        report: FindReport,
        *,
        key: bytes,
        since: Time | None,
        until: Time | None,
        partition: int | None,
    ) -> Steps[Steps[None]]:
        """Check the arguments of :meth:`find`. Return the steps that emit the records and count them in ``report``."""
        key = bytes(arguments.key(key))
        wanted = ReadRange.from_times(since, until, now_ms=self._clock.now_ms())
        arguments.partition_or_none(partition)
        reads = yield from self._topic_steps(topic)
        return self._search(reads, key, wanted, reads.chosen(partition), report, opened=opened)

    def _search(
        self,
        reads: TopicReads,
        key: bytes,
        wanted: ReadRange,
        chosen: Sequence[int],
        report: FindReport,
        *,
        opened: list[TierStream],
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
            stream = yield from reads._open_steps(partition, opened)
            report.partitions += 1
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
        """Return the records as a ``pyarrow.Table`` with Kafka's columns. Columns not in ``columns`` are not decoded.

        ``since``, ``until``: half-open range of times; None: no bound. ``partition`` None: all. Needs the extra
        ``arrow``. The whole table is in memory: for larger topics use Spark or ``Topic.read_batches``.
        """
        opened: list[TierStream] = []
        names, steps = self._arrow_steps(opened, topic, partition=partition, since=since, until=until, columns=columns)
        pieces = self._runner.stream(steps, partial(release_steps, opened))
        return arrow_table([batch for piece in pieces for batch in piece], names)

    def _arrow_steps(
        self,
        opened: list[TierStream],
        topic: str,
        *,
        partition: int | None,
        since: Time | None,
        until: Time | None,
        columns: list[str] | None,
    ) -> tuple[Sequence[str], Steps[None]]:
        """Check the arguments of :meth:`to_arrow`. Return the columns, and steps that emit lists of record batches."""
        names = arguments.columns_or_none(columns, COLUMNS) or COLUMNS
        wanted = ReadRange.from_times(since, until, now_ms=self._clock.now_ms())
        arguments.partition_or_none(partition)
        return names, self._record_batches(opened, topic, partition, wanted, names)

    def _record_batches(
        self, opened: list[TierStream], topic: str, partition: int | None, wanted: ReadRange, names: Sequence[str]
    ) -> Steps[None]:
        reads = yield from self._topic_steps(topic)
        chosen = ReadRequest(reads.chosen(partition), wanted)
        yield from reads._reading(chosen, arrow_of(chosen, names), opened=opened)

    def requests(self) -> dict[str, int]:
        """Return the number of requests to the store so far, by operation."""
        counts: dict[str, int] = {}
        for figures in self.request_counts.snapshot():
            counts[figures.op] = counts.get(figures.op, 0) + figures.requests
        return counts

    def _received_bytes(self) -> int:
        return sum(figures.received_bytes for figures in self.request_counts.snapshot())

    def consumer(
        self,
        group: str,
        topics: str | Iterable[str] = (),
        *,
        member: str | None = None,
        times: GroupSettings | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> Consumer:
        """Return a consumer that shares the partitions of ``topics`` with all members of ``group``. Use ``with``.

        Positions are stored in the bucket. ``member``: a name for people, by default host and process. ``times``:
        intervals of heartbeats and leases, equal for all members; None: the defaults. ``options``: such as ``start``
        and ``isolation`` (:class:`tiered.consumer.steps.ConsumerKeywords`). Without ``topics`` call ``subscribe``.

        Raises UnknownTopicError, ConfigError for a wrong option and for a reader of a disk or of a past version,
        RemotePermissionError if the role has no right to the group's objects.
        """
        return Consumer(self._consumer_steps(group, topics, member, times, options), self._runner)

    def _consumer_steps(
        self,
        group: str,
        topics: str | Iterable[str],
        member: str | None,
        times: GroupSettings | None,
        options: ConsumerKeywords,
    ) -> ConsumerSteps:
        checked = Options(options, now_ms=self._clock.now_ms())
        self._followers.check_open()
        if self._bucket is None or self._local is not None or self._bucket.is_past:
            raise ConfigError(
                "a shared group reads the newest version of a bucket, but this reader has a log directory or as_of",
                hint="use open_reader(url) without log_dir and as_of, or Log.consumer where the log is open",
            )
        from tiered.group.driver import open_member  # noqa: PLC0415  only a group needs it
        from tiered.remote.positions import refuse_logged  # noqa: PLC0415

        names = [topics] if isinstance(topics, str) else list(topics)
        self._runner.run(refuse_logged(group, names, self._clock.now_ms()))
        start = checked.start, checked.start_ms
        found = open_member(self._bucket, self._runner, group, names, member=member, times=times, start=start)
        self._members.append(found)
        return ConsumerSteps(group, found, found.open_stream, self._followers, checked)

    def close(self) -> None:
        """Release files and connections, leave groups, and delete the pins of unfinished reads. Safe to call again."""
        self._followers.close()
        for member in self._members:
            member.close()
        for pin in list(self._bucket.pins) if self._bucket is not None else ():
            self._runner.run(pin.drop())
        if self._local is not None:
            self._local.close()
        if self._bucket is not None:
            self._bucket.store.close()


def _known_on_disk(local: LogView, topic: str) -> dict[int, RootLowerBounds]:
    return root_bounds_of_topic(topic, local.uploads.read(), local.claims.read())


def _need_same(topic: str, on_disk: UUID, in_bucket: UUID) -> None:
    if on_disk != in_bucket:
        raise ConfigError(
            f"topic {topic} has id {on_disk} on disk, but {in_bucket} in the bucket",
            hint="these are different topics: open one reader for the bucket and one for the disk",
        )


def _one_by_one(pieces: Iterable[Iterable[ConsumerRecord]]) -> Iterator[ConsumerRecord]:
    for piece in pieces:
        yield from piece
