"""A log that this process writes: open, append, flush, sync, read over both tiers, close.

::

    Log ── local.directories.LocalTier (the disk) ── Topic.append
     └──── tiering (the bucket)             ── sync(): roll, upload, commit, read back

Each log directory has one writer: opening takes its lock. A forked child gets an error. ``close`` uploads nothing:
data that was not uploaded stays on this disk, and the next open continues with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from tiered import arguments
from tiered.appending.thread import AppenderThread
from tiered.clock import Clock, IdSource
from tiered.config import LogConfig, S3Keywords, TopicConfig
from tiered.consumer.assignment import CallersPositions, LogAssignment
from tiered.consumer.consumer import Consumer
from tiered.consumer.steps import ConsumerKeywords, ConsumerSteps, Options
from tiered.display import names_without
from tiered.engine.tiering import SpreadTiering, Tiering
from tiered.engine.wait import UploaderComponent, Uploaders, wait_uploaded
from tiered.errors import (
    ClosedError,
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    FencedError,
    LocalIOError,
    NotFoundError,
    ReentrantCallError,
    RemoteUnavailableError,
    TieredError,
    UnknownTopicError,
)
from tiered.format.coordinator_records import is_state_log
from tiered.format.kernels import KERNELS_IN_USE, PlainLock
from tiered.format.locks import SafeEvent
from tiered.local.directory.figures import group_metrics
from tiered.local.directory.multi_directory_log import LocalTier, check_paths
from tiered.local.directory.tasks import ThreadWorkers
from tiered.local.disk.topics import TopicInfo
from tiered.local.partition.write_log import WriteLog
from tiered.metrics import Metric
from tiered.model import Positions, TopicPartition
from tiered.read.fetch import Followers
from tiered.read.stream import TierStream
from tiered.remote.fetch import INDEX_CACHE_BYTES, ByteCache
from tiered.remote.positions import refuse_shared
from tiered.remote.reader import RemotePartition, SharedCaches
from tiered.remote.root_view import RootCache
from tiered.remote.topics import TopicEntry
from tiered.store.base import Blocking, Steps, Store
from tiered.store.driver import Runner
from tiered.store.limit import Limits
from tiered.store.location import StoreLocation
from tiered.store.metrics import StoreMetrics, request_metrics
from tiered.store.options import RETRY_DEADLINE_SECONDS, StoreOptions
from tiered.topic import DEFAULT_REMOTE_TIMEOUT_S, Topic
from tiered.transaction import DEFAULT_TIMEOUT_S, Transaction, checked_timeout_ms

TICK_S = 1.0
"""Seconds between two ticks: timers, the uploader's checkpoint and retention."""
SYNC_RETRY_S = 1.0
"""Seconds after which a sync with a timeout sends a request to an unreachable store again."""
LOCK_PATIENCE_S = 5.0
"""Seconds that ``open`` waits for an uploader which briefly holds the lock to seal segments."""
CLOSE_TIMEOUT_S = 30.0
"""Seconds that ``close`` waits for an in-process uploader."""

_logger = logging.getLogger("tiered")


def open(  # noqa: A001  (the word that users expect: tiered.open)
    path: str | Path | Sequence[str | Path],
    remote: str | None = None,
    *,
    create: bool = True,
    uploader: UploaderComponent | None = None,
    deadline_seconds: float | None = None,
    config: LogConfig | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    **s3: Unpack[S3Keywords],
) -> Log:
    """Open the log directory ``path`` for writing. With ``remote``, its records are also stored in that bucket.

    ``path``: a directory, or several for one log. Each is a volume in the bucket, with its own uploader. ``remote``:
    ``s3://bucket/prefix``, ``file:///dir`` or ``memory://name``. Credentials come from the AWS chain. ``create``:
    create a missing directory. ``uploader``: uploader to run in this process. Without one ``sync()`` uploads, or waits
    for the daemon. ``deadline_seconds`` (30): longest time for the retries of a request. ``config``: settings of the
    log directory. ``clock``, ``ids``: replacements for tests. ``s3``: settings of S3, such as ``endpoint_url``.

    Raises:
        LockedError: the directory is open for writing already. An uploader may hold its lock for up to
            ``LOCK_PATIENCE_S``: ``open`` waits for that long.
        NotFoundError: no log there and ``create=False``, or no such bucket. An unreachable store is no error.
        ConfigError: an argument is wrong. CorruptionError: a file is damaged. RemotePermissionError: the store refuses.
    """
    place = arguments.StorePlace.checked(remote, deadline_seconds, s3)
    arguments.has("uploader", uploader, ("attach",), "tiered.uploader.Uploader(), or None")
    config = LogConfig() if config is None else config
    config = arguments.instance("config", config, LogConfig, "a tiered.config.LogConfig, or None")
    clock, ids = arguments.clock_and_ids(clock, ids)
    paths = check_paths(arguments.paths("path", path), create=arguments.flag("create", create))
    location = None if place.url is None else StoreLocation.parse(place.url, **place.s3)
    if location is None and uploader is not None:
        raise ConfigError("uploader= needs a remote", hint='open(path, remote="s3://bucket/prefix", uploader=...)')
    if location is None and config.limits is not None:
        raise ConfigError("config.limits needs a remote", hint='add remote="s3://bucket/prefix", or leave limits out')
    if location is not None:
        location.refuse_overlap(*paths)
    options = StoreOptions(
        clock=clock,
        ids=ids,
        metrics=StoreMetrics(),
        deadline_seconds=place.seconds(RETRY_DEADLINE_SECONDS),
        limits=None if config.limits is None else Limits.from_config(config.limits, clock=clock),
        notice_outages=True,
    )
    store = None if location is None else location.open(options)
    try:
        reachable = store is None or Tiering.check_reachable(store, clock=clock, ids=ids)
        # Tiered from the first record on: before the first sync, too, nothing may leave the disk that was not uploaded.
        config = dataclasses.replace(config, remote=config.remote or store is not None)
        local = LocalTier.open(
            paths, clock=clock, ids=ids, config=config, workers=ThreadWorkers, lock_patience_seconds=LOCK_PATIENCE_S
        )
    except BaseException:
        if store is not None:
            store.close()
        raise
    log = Log(local, store, clock=clock, ids=ids, reachable=reachable, store_options=options)
    if uploader is not None and location is not None:
        try:
            log._attach(uploader, location)
        except BaseException:
            log.close()
            raise
    return log


class Log:
    """Open log: topics, transactions, consumers, flush and sync. A context manager. Thread-safe.

    Call :func:`tiered.open` to get one.
    """

    def __init__(
        self,
        local: LocalTier,
        store: Store | None,
        *,
        clock: Clock,
        ids: IdSource,
        reachable: bool = True,
        store_options: StoreOptions | None = None,
    ) -> None:
        self._local = local
        self.store_options = store_options or StoreOptions(metrics=StoreMetrics())
        self.request_counts = self.store_options.metrics or StoreMetrics()
        self._store = store
        self._clock = clock
        self._runner = Runner(store, clock, ids)
        self._caches = SharedCaches(ByteCache(INDEX_CACHE_BYTES), RootCache())
        self._tiering: SpreadTiering | None = None
        limits = self.store_options.limits
        memory = None if limits is None else limits.memory
        if store is not None:
            self._tiering = SpreadTiering(local, store, clock=clock, ids=ids, reachable=reachable, memory=memory)
        self._uploader: Uploaders | None = None
        self._unreported: TieredError | None = None  # why the uploader ended; None again once an append raised it
        self._topics: dict[str, Topic] = {}
        self._opening: dict[str, threading.RLock] = {}
        self._appenders = AppenderThread(clock, ThreadWorkers())
        self._lock = threading.RLock()
        self._closed = SafeEvent()
        self._followers = Followers()
        self._closing = PlainLock()
        self._ended = False
        self._ticker = threading.Thread(
            target=_tick,
            args=(weakref.ref(local), self._closed, clock),
            name="tiered-tick",
            daemon=True,
        )
        self._start_ticking()
        _OPENED.add(self)

    def _start_ticking(self) -> None:
        try:
            self._ticker.start()
        except RuntimeError as error:  # since Python 3.12 no thread starts once the main thread has ended
            self._local.close()
            if self._store is not None:
                self._store.close()
            hint = "open the log before the main thread ends, or raise the process's limit of threads"
            raise TieredError(f"{self.directory} cannot be opened: {error}", hint=hint) from error

    @classmethod
    def opened(cls, path: str | Path) -> Log:
        """Return this process's open log of the directory ``path``, for example in a notebook cell that reruns.

        Raises NotFoundError if this process has not opened it.
        """
        wanted = arguments.path("path", path).resolve()
        for log in list(_OPENED):
            if not log._closed.is_set() and wanted in [each.resolve() for each in log._local.logs()]:
                return log
        raise NotFoundError(f"no log of this process has {path} open", hint=f"tiered.open({str(path)!r}) opens it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with closing_after(error, self.directory):
            self.close()

    __dir__ = names_without("request_counts", "store_options")

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else f"{len(self._local.topics())} topics"
        return f"<Log {str(self.directory)!r} remote={self.remote!r} {state}, kernels: {KERNELS_IN_USE}>"

    @property
    def directory(self) -> Path:
        """Return the path of the log directory, the first one if there are several."""
        return self._local.directory

    @property
    def remote(self) -> str | None:
        """Return the store's URL; None for a log that is only local."""
        return self._store.url if self._store is not None else None

    def topics(self) -> dict[str, TopicInfo]:
        """Return the topics in the log directory, by name."""
        return dict(sorted(self._local.topics().items()))

    def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        create: bool = False,
        config: TopicConfig | Mapping[str, object] | None = None,
    ) -> Topic:
        """Open the topic ``name``. ``create``: create it if it does not exist (``partitions`` defaults to 1).

        A topic that exists in the bucket is adopted with its id, partitions and settings. An empty directory then
        continues at the end of the bucket. ``config`` takes Kafka's names (``{"segment.bytes": ...}``). For an existing
        topic only the settings in ``config`` are compared, and ``partitions`` is a minimum, because an operator may
        have changed others.

        Raises:
            UnknownTopicError: no such topic, and not ``create``.
            ConfigError: fewer partitions than ``partitions``, other settings than ``config``, or another topic id in
                the bucket.
            FencedError: another volume owns a partition of the topic in the bucket.
            RemoteUnavailableError: the store does not answer, so an empty directory does not know where to continue.
        """
        name = arguments.text("topic", name)
        partitions = None if partitions is None else arguments.partition_count(name, partitions)
        create, wanted = arguments.flag("create", create), arguments.topic_settings(config)
        if is_state_log(name) and name not in self._local.topics():
            raise UnknownTopicError(
                f"there is no {name} in {self.directory}",
                hint="the first transaction or the first commit of a consumer creates it",
            )
        with self._lock:
            opening = self._opening.setdefault(name, threading.RLock())
        # The log's own lock is not held during a request, so `close` and other topics never wait for the bucket.
        with contextlib.nullcontext() if name in self._topics else opening:
            entry = None
            if self._tiering is not None and name not in self._local.topics():
                entry = self._tiering.find_topic(name)
            with self._lock:
                if name not in self._local.topics():
                    self._make(name, entry, partitions, create, wanted)
                info = self._local.topics()[name]
                _check_same(name, info.partitions, info.config, partitions, wanted)
                if self._tiering is None or is_state_log(name) or name in self._topics:  # the state log has no bucket
                    return self._opened(name)
            self._adopt(self._tiering, info)
            with self._lock:
                return self._opened(name)

    def _adopt(self, tiering: SpreadTiering, info: TopicInfo) -> None:
        if self._uploader is not None:
            self._uploader.scan_now()  # claim new partitions now, not at its next scan
        try:
            tiering.adopt(info)
        except TieredError as error:
            if self._closed.is_set():
                raise ClosedError(f"topic {info.name} cannot be opened: the log was closed at the same time") from error
            raise

    def _opened(self, name: str) -> Topic:
        if name not in self._topics:
            self._topics[name] = self._open_topic(name)
            self._topics[name]._set_slow_path(self._unreported is not None)  # after _uploader_ended can find it
        return self._topics[name]

    def _make(
        self, name: str, entry: TopicEntry | None, partitions: int | None, create: bool, settings: Mapping[str, Any]
    ) -> None:
        if entry is not None:
            its = entry.settings
            _check_same(name, entry.partitions, its, partitions, settings)  # before a file of it is made
            self._local.create_topic(name, entry.partitions, its, topic_id=entry.topic_id)
            return
        if not create:
            raise UnknownTopicError(
                f"there is no topic {name} in {self.directory}" + (f" or in {self.remote}" if self.remote else ""),
                hint=self._named(name) or "create=True makes it",
            )
        self._local.create_topic(name, partitions or 1, TopicConfig.from_properties(settings))

    def _named(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._local.topics(), 1)
        return f"did you mean {near[0]}?" if near else ""

    def _add_partitions(self, topic: str, more: int) -> int:
        if is_state_log(topic):
            raise ConfigError(f"{topic} is internal: its number of partitions is fixed", hint="name another topic")
        with self._opening[topic]:  # the lock of opening the topic: the log's own is not held during a request
            # Count from the open topic: after a failed attempt the disk may have the new ones already.
            count = arguments.partition_count(topic, self._topics[topic].partitions + more)
            if self._tiering is not None:
                self._tiering.register(topic, count)  # the bucket first: after a crash its roots wait for this disk
            with self._lock:
                info = self._local.alter_topic(topic, partitions=count)
            if self._tiering is not None:
                self._adopt(self._tiering, info)
            with self._lock:
                self._topics[topic]._spread(self._logs_of(info))
                self._topics[topic]._set_slow_path(self._unreported is not None)
                self._appenders.spread(topic, count)
            return count

    def _logs_of(self, info: TopicInfo) -> list[WriteLog | TieredError]:
        return [self._partition_or_error(TopicPartition(info.name, p)) for p in range(info.partitions)]

    def _open_topic(self, name: str) -> Topic:
        info = self._local.topics()[name]
        return Topic(
            info,
            logs=self._logs_of(info),
            open_stream=self._open_stream,
            now_ms=self._clock.now_ms,
            runner=self._runner,
            followers=self._followers,
            waiter=self,
            appenders=self._appenders,
        )

    def _partition_or_error(self, tp: TopicPartition) -> WriteLog | TieredError:
        """Return a partition, or the error with which it is out of service or on another broker."""
        try:
            return self._local.partition(tp)
        except TieredError as error:
            if tp in self._local.out_of_service or self._local.is_elsewhere(tp):
                return error
            raise

    def _open_stream(self, tp: TopicPartition) -> Steps[TierStream]:
        """Open a stream of one partition. A partition without open files is loaded from the disk first."""
        stream: TierStream = yield Blocking(functools.partial(self._stream, tp))
        return stream

    def _stream(self, tp: TopicPartition) -> TierStream:
        log: WriteLog | None = None
        try:
            log = self._local.partition(tp)
        except UnknownTopicError:
            if not self._local.is_elsewhere(tp):  # nothing of it is on this disk, as for a reader of the directory
                raise
        remote = None
        if self._store is not None and self._tiering is not None:
            known = self._tiering.known(tp)  # before the root is read, which is then never older
            topic_id = self._local.topics()[tp.topic].topic_id if log is None else log.topic_id
            remote = RemotePartition(tp, topic_id, shared=self._caches, known=known)
        return TierStream(tp, local=log, remote=remote)

    def transaction(
        self,
        transactional_id: str,
        *,
        topic: Topic | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        durability: str = "disk",
    ) -> Transaction:
        """Begin a transaction over topics of this log. Each append may name its topic. Use ``with``.

        Args:
            transactional_id: names the writer. An open transaction of the same id is aborted and its writer fenced.
            topic: topic of the appends that name none.
            timeout: seconds, at most 900, after which an open transaction is aborted.
            durability: ``commit`` returns when the transaction is on "disk", or when the bucket has it, too ("remote").

        Raises ConfigError for a wrong argument, and for "remote" without a bucket. Raises LocalIOError, DiskFullError
        or CorruptionError if the state log of transactions cannot be read or written. Raises CommitUnknownError or
        MarkersPendingError if the open transaction of the same id cannot be ended.
        """
        if durability not in ("disk", "remote"):
            raise arguments.wrong("durability", durability, '"disk" or "remote": a transaction that ended is on disk')
        timeout_ms = checked_timeout_ms(transactional_id, timeout)
        if topic is not None and not isinstance(topic, Topic):
            raise arguments.wrong("topic", topic, 'a Topic of this log; its appends may name others: topic="ledger"')
        if durability == "remote":
            self._check_remote()
        self._check_uploader()
        producer = self._local.transactions.begin(transactional_id, timeout_ms)

        def wait(logs: Mapping[TopicPartition, WriteLog]) -> None:
            if durability == "remote":  # with the markers
                ends = {tp: log.positions().end_offset for tp, log in logs.items() if not is_state_log(tp.topic)}
                self._wait_uploaded(ends, DEFAULT_REMOTE_TIMEOUT_S)

        return Transaction(
            self._local.transactions,
            producer,
            default=topic,
            find=self.topic,
            wait=wait,
            now_ms=self._clock.now_ms,
        )

    def consumer(
        self,
        group: str,
        topics: str | Iterable[str] = (),
        *,
        positions: CallersPositions | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> Consumer:
        """Return a consumer of ``topics`` that begins at the positions of ``group`` and waits for new records.

        Use ``with``. ``positions``: a mapping, or a pair of functions, that stores the positions instead of the log. It
        is for programs that store positions with their results. ``options``: such as ``start`` and ``isolation``
        (:class:`tiered.consumer.steps.ConsumerKeywords`). Without ``topics`` call ``subscribe`` or ``assign``.

        Raises UnknownTopicError, CorruptionError for damaged positions, ConfigError for a wrong option and for a group
        whose members share partitions over the bucket.
        """
        core = self._consumer_steps(group, topics, positions, options)
        return Consumer(core, self._runner)

    def _consumer_steps(
        self, group: str, topics: str | Iterable[str], positions: CallersPositions | None, options: ConsumerKeywords
    ) -> ConsumerSteps:
        checked = Options(options, now_ms=self._clock.now_ms())
        self._followers.check_open()
        logged = self._local.transactions.positions
        assignment = LogAssignment(group, logged, positions, find=self.topic, topics=self._local.topics)
        assignment.subscribe([topics] if isinstance(topics, str) else list(topics))
        if positions is None:
            logged.check(group)
            self._refuse_shared(group)
        return ConsumerSteps(group, assignment, self._open_fresh_stream, self._followers, checked)

    def _refuse_shared(self, group: str) -> None:
        """Raise ConfigError if members share the group over the bucket. During an outage only log a warning."""
        if self._tiering is None:
            return
        try:
            self._tiering.asked(refuse_shared(group))
        except RemoteUnavailableError as error:
            _logger.warning("group %s is not looked for in %s now: %s", group, self.remote, error)

    def _open_fresh_stream(self, tp: TopicPartition) -> Steps[TierStream]:
        """Open a refreshed stream of one partition."""
        stream = yield from self._open_stream(tp)
        yield from stream.refresh()
        return stream

    def delete_topic(self, name: str) -> None:
        """Delete a topic of a log without a bucket. Its files are unlinked after ``file.delete.delay.ms``.

        Raises UnknownTopicError, and ConfigError for a log with a bucket or an internal topic.
        """
        name = arguments.text("topic", name)
        with self._lock:
            if is_state_log(name):
                raise ConfigError(
                    f"{name} is internal and cannot be deleted: it has the state of transactions or groups",
                    hint="name a topic of your own; `tiered group delete` deletes the positions of a group",
                )
            if name not in self._local.topics():
                raise UnknownTopicError(
                    f"there is no topic {name} in {self.directory}", hint=self._named(name) or "topics() names them"
                )
            if self._store is not None:
                hint = f"`tiered topic delete {name} --local-only` deletes the copy on this disk"
                raise ConfigError(
                    f"topic {name} is not deleted: it is tiered, and its records in {self.remote} would stay", hint=hint
                )
            self._local.transactions.positions.delete_topic(name, self._clock.now_ms())
            self._local.delete_topic(name)
            self._topics.pop(name, None)

    def _attach(self, uploader: UploaderComponent, location: StoreLocation) -> None:
        self._uploader = uploaders = Uploaders(self._clock, self._uploader_ended)
        try:
            uploaders.start(uploader, self._local, location, self.store_options)
        except BaseException:
            self._uploader = None
            raise

    def _uploader_ended(self, error: TieredError) -> None:
        """Make the next append raise ``error``. Acquires no lock: ``close`` may hold it and wait for this thread."""
        if self._closed.is_set():
            return
        self._unreported = error  # before the topics: a topic made meanwhile reads it
        for topic in list(self._topics.values()):
            topic._set_slow_path(True)

    def _check_caller(self) -> None:
        """Raise ReentrantCallError in a thread that is inside another call of the log's disk."""
        self._local.check_caller()

    def _check_uploader(self) -> None:
        """Raise, once, the error that ended the uploader of this process. The append that raises it writes nothing."""
        error, self._unreported = self._unreported, None
        if error is None:
            return
        for topic in list(self._topics.values()):
            topic._set_slow_path(False)
        raise TieredError(
            f"the uploader of {self.directory} ended by itself, and this call appended nothing: {error.message}",
            hint="close the log and open it again to upload; or append again to continue on this disk only",
        ) from error

    @property
    def _uploader_error(self) -> str | None:
        """Return the error that ended the uploader of this process; None while it runs, and without one."""
        error = None if self._uploader is None else self._uploader.error
        return None if error is None else error.message

    def flush(self) -> None:
        """Fsync every partition: records appended before the call survive a power cut of this machine.

        Buffered records of appenders are written first. If that fails, their ``flush`` raises the error, not this call.
        """
        self._appenders.drain()
        self._local.flush()

    def positions(self) -> dict[TopicPartition, Positions]:
        """Return start and ends (:class:`tiered.model.Positions`) of each partition on this disk that is in service."""
        broken, why = self._local.out_of_service, self._uploader_error
        found = ((tp, self._local.partition(tp).positions()) for tp in self._local.partitions() if tp not in broken)
        return {tp: at if why is None else dataclasses.replace(at, uploader_error=why) for tp, at in found}

    def metrics(self) -> list[Metric]:
        """Return current metrics of the disk, partitions, background tasks, compaction and requests to the store.

        ``tiered.metrics.render`` formats them for Prometheus. The names are those of the uploader's ``/metrics``.
        """
        requests = request_metrics(self.request_counts, self._clock.monotonic())
        groups = group_metrics(self._local.transactions.positions.lags(self._clock.now_ms()))
        return [*self._local.metrics(), *self._appenders.metrics(), *groups, *requests]

    def sync(self, timeout: float | None = None) -> None:
        """Seal and upload all records appended so far, and wait for their commit: they survive the loss of this host.

        Buffered records of appenders are appended first. Requests to an unreachable store are retried for ``timeout``
        seconds. None: for ``deadline_seconds`` of ``open``, but an uploader or daemon is awaited without limit. The
        error of a fenced, offline or damaged partition is raised after all others are synced.

        Raises:
            ConfigError: the log has no remote.
            DataLocalError: some records are still only local after ``timeout``.
            FencedError: another volume owns a partition.
            RemoteUnavailableError, RemotePermissionError, CommitUnknownError: the store refused or failed.
            LocalIOError, CorruptionError: the disk failed, or a file is damaged.
        """
        if self._tiering is None:
            raise ConfigError(
                f"{self.directory} has no remote to sync to", hint='open it with remote="s3://bucket/prefix"'
            )
        timeout = arguments.seconds_or_none("timeout", timeout)
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        self._check_caller()
        self._appenders.drain()  # before the ends are looked at
        ends, refused = self._seal_all()
        rest: Mapping[TopicPartition, int] = ends
        if self._uploader is not None:
            self._uploader.scan_now()
        else:
            rest = self._sync_inline(self._tiering, ends, deadline)
        if rest:
            self._wait_uploaded(rest, None if deadline is None else max(deadline - self._clock.monotonic(), 0.0))
        if refused is not None:
            raise refused

    def _sync_inline(
        self, tiering: SpreadTiering, ends: Mapping[TopicPartition, int], deadline: float | None
    ) -> Mapping[TopicPartition, int]:
        """Upload the records below ``ends`` in this thread. Return the ends of partitions that another process uploads.

        Requests to an unreachable store are retried until ``deadline`` (monotonic seconds). None: an error is raised.
        """
        while True:
            try:
                return tiering.sync(ends, None if deadline is None else max(deadline - self._clock.monotonic(), 0.0))
            except (RemoteUnavailableError, CommitUnknownError):
                left_s = 0.0 if deadline is None else deadline - self._clock.monotonic()
                if left_s <= SYNC_RETRY_S or self._clock.wait(self._closed, SYNC_RETRY_S):
                    raise

    def _seal_all(self) -> tuple[dict[TopicPartition, int], TieredError | None]:
        """Seal all partitions. Return their sealed ends, and the first error of those that failed, None without one."""
        ends: dict[TopicPartition, int] = {}
        refused: TieredError | None = None
        with self._local.deferring_checkpoints():
            for tp in self._local.partitions():
                if is_state_log(tp.topic):
                    continue  # it is never uploaded
                try:
                    log = self._local.partition(tp)
                    end = log.positions().end_offset  # before the roll: later records are not part of this sync
                    log.roll()
                except (FencedError, LocalIOError, CorruptionError) as error:
                    refused = refused or error
                else:
                    ends[tp] = end
        try:
            self._local.note_positions()
        except TieredError as error:
            refused = refused or error
        return ends, refused

    def _check_remote(self) -> None:
        """Raise ConfigError if the log has no bucket. Waits for a commit would never end."""
        if self._store is None:
            raise ConfigError(
                f"{self.directory} has no remote to wait for", hint='open it with remote="s3://bucket/prefix"'
            )

    def _wait_uploaded(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> None:
        """Wait until the bucket has all records of each partition below its offset in ``ends``. Seals no segment."""
        wait_uploaded(
            self._local,
            ends,
            timeout_s,
            tiering=self._tiering,
            uploader=self._uploader,
            clock=self._clock,
            closed=self._closed,
        )

    def close(self) -> None:
        """Write buffered records, flush, stop the uploader and release the lock, without an upload. Safe to call again.

        The first error of an appender is raised after all parts of the log are closed.
        """
        failed: TieredError | None = None
        self._appenders.check_caller()
        self._check_caller()
        with self._closing, self._lock:
            if self._ended:
                return
            failed = self._appenders.close()
            self._closed.set()
            self._followers.close()
            if self._uploader is not None:
                self._uploader.close(CLOSE_TIMEOUT_S)
            if self._tiering is not None:
                self._tiering.close()
            try:
                self._local.close()
            except TieredError as error:
                self._ended = not isinstance(error, ReentrantCallError)  # a signal handler's call
                raise
            if self._store is not None:
                self._store.close()
            self._ended = True  # an interrupted close is completed by the next call
        if threading.current_thread() is not self._ticker:
            self._ticker.join(CLOSE_TIMEOUT_S)
        if failed is not None:
            raise failed


@contextlib.contextmanager
def closing_after(error: BaseException | None, directory: Path) -> Iterator[None]:
    """Guard the close of a log whose ``with`` block raised ``error``: a failed close is then only logged."""
    try:
        yield
    except TieredError as failed:
        if not isinstance(error, TieredError):
            raise
        # The error of the block is the cause: a full disk fails the append first, and then the close.
        _logger.warning("close_failed path=%s error=%s", directory, failed)


_OPENED: weakref.WeakSet[Log] = weakref.WeakSet()
"""Logs of this process, closed ones included."""


def _tick(local: weakref.ref[LocalTier], closed: threading.Event, clock: Clock) -> None:
    """Run the timers of the log directory each second until its close. Errors are logged and do not stop the thread."""
    while not clock.wait(closed, TICK_S):
        log = local()
        if log is None:
            return
        try:
            log.tick()
        except ClosedError:
            return
        except TieredError as error:
            _logger.warning("a timer of %s failed: %s", log.directory, error)
        del log


def _check_same(
    name: str, partitions: int, config: TopicConfig, wanted_partitions: int | None, wanted: Mapping[str, Any]
) -> None:
    """Raise ConfigError if an existing topic has fewer partitions, or differs in a setting that the caller names."""
    if wanted_partitions is not None and wanted_partitions > partitions:
        raise ConfigError(
            f"topic {name} has {partitions} partitions, not {wanted_partitions}",
            hint=f"add_partitions() of the topic or `tiered topic set {name} --partitions {wanted_partitions}`"
            " adds some; leave partitions out to use the topic's own",
        )
    have = config.to_properties()
    others = [f"{key} is {have[key]}, not {value}" for key, value in wanted.items() if have[key] != value]
    if others:
        raise ConfigError(
            f"topic {name} exists with other settings: {', '.join(others)}",
            hint="leave config out to use the topic's own, or change the topic with `tiered topic set`",
        )
