"""Partitions that a query's options choose, with access to both tiers of each. Runs on the driver.

A batch query reads their roots once. A stream keeps them from trigger to trigger, with the root that it read of each,
so that the next read of it is a conditional GET. The list of topics is refreshed at intervals.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from tiered.clock import SystemClock
from tiered.errors import ConfigError, TieredError, UnknownTopicError
from tiered.format.keys import FLAG_ABORTED_TXNS
from tiered.format.root import STATE_DELETING
from tiered.group.admin import load_committed
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.uploader_files import root_bounds_by_partition
from tiered.local.partition.read_log import ReadLog
from tiered.local.transactions.group_positions import GroupTable
from tiered.model import AbortedTxn, Position, TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.read.topic import PartitionStream
from tiered.remote.catalog_view import CatalogView
from tiered.remote.fetch import ByteCache
from tiered.remote.reader import RemotePartition
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import Past
from tiered.remote.topics import (
    TopicEntry,
    check_entry,
    confirm_topic,
    list_topics,
    load_topic_to_read,
)
from tiered.spark.options import EARLIEST, ReadOptions
from tiered.store.base import Steps, Store
from tiered.store.driver import Runner, drive
from tiered.store.threads import ThreadPool

PLANNING_THREADS = 16
"""Roots, or index bundles of one partition, that are fetched concurrently."""

_logger = logging.getLogger("tiered.spark")


@dataclass(frozen=True, slots=True)
class ChosenTopic:
    """Topic that a query reads. ``registered``: the bucket has it.

    ``partitions``: number of partitions, the larger one of both tiers. ``made``: number of partitions in the bucket.
    """

    name: str
    topic_id: str
    partitions: int
    registered: bool
    made: int = 0


@dataclass(frozen=True, slots=True)
class PinnedPartition:
    """One chosen partition, with both tiers. Its catalog stays the version that was read, until a refresh."""

    tp: TopicPartition
    topic_id: str
    local: ReadLog | None
    remote: RemotePartition | None
    stream: PartitionStream
    runner: Runner

    @property
    def pinned(self) -> CatalogView | None:
        """Return the catalog in use, read by the first call; None without a remote tier or root."""
        return self.runner.run(self.remote.snapshot()) if self.remote is not None else None

    def aborted_txns(self, start: int, end: int, pool: Executor) -> tuple[AbortedTxn, ...]:
        """Return aborted transactions with offsets in ``start`` to ``end`` (exclusive), over both tiers.

        ``pool``: threads for the requests.
        """
        found: set[AbortedTxn] = set()
        if self.local is not None:
            found.update(self.local.aborted_txns(start, end))
        remote, pinned = self.remote, self.pinned
        if remote is not None and pinned is not None:
            windows = self.runner.run(aborted_windows(pinned, start, end))
            for txns in pool.map(lambda window: self.runner.run(remote.aborted_txns(*window)), windows):
                found.update(txns)
        return tuple(sorted(found, key=lambda txn: (txn.first_offset, txn)))


class Subscription:
    """Partitions that the options choose, in a store (None: the local tier alone) and a log directory. Close it.

    Empty before the first :meth:`refresh`.
    """

    def __init__(self, options: ReadOptions, store: Store | None) -> None:
        """Open the log directory, if the options name one. Raises NotFoundError if it does not exist."""
        self._options, self._store = options, store
        self._local = LogView.open(Path(options.local_dir), clock=SystemClock()) if options.local_dir else None
        self._known: Mapping[TopicPartition, RootLowerBounds] = {}
        self._on_disk: Mapping[TopicPartition, ReadLog] = {}
        self._opened: dict[TopicPartition, PinnedPartition] = {}
        self._cache = ByteCache()
        self.topics: Mapping[str, ChosenTopic] = {}
        self.partitions: list[TopicPartition] = []

    def refresh(self) -> None:
        """Read the registry and the log directory, and update :attr:`topics` and :attr:`partitions`.

        Partitions of an unchanged topic keep the roots that were read. Raises UnknownTopicError, LogDestroyedError for
        a deleted topic, ConfigError for a topic with different ids in the two tiers, CorruptionError for a damaged or
        lost registry entry, and the errors of the store.
        """
        options, local = self._options, self._local
        known = root_bounds_by_partition(local.uploads.read(), local.claims.read()) if local and self._store else {}
        topics = {topic.name: topic for topic in _chosen_topics(options, self._store, local, known)}
        wanted = list(options.assign) or [
            TopicPartition(topic.name, number) for topic in topics.values() for number in range(topic.partitions)
        ]
        _check_partitions(wanted, topics)
        needed = set(wanted)  # only these, because another partition may be out of service
        on_disk = {tp: local.partition(tp) for tp in local.partitions() if tp in needed} if local is not None else {}
        self._opened = {
            tp: tiers
            for tp, tiers in self._opened.items()
            if tp in needed and _same(topics[tp.topic], self.topics[tp.topic]) and on_disk.get(tp) is tiers.local
        }
        self._known, self._on_disk, self.topics, self.partitions = known, on_disk, topics, wanted

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return a consumer group's committed offset in each partition, ``EARLIEST`` in one without.

        The bucket is read only if the log directory has no position of the group.
        Raises ConfigError for a group without any position in these partitions.
        """
        found: Mapping[TopicPartition, Position] = {}
        if self._local is not None:
            found = GroupTable(self._local).committed(group, self.partitions)
        if not found and self._store is not None:
            ids = {tp: UUID(self.topics[tp.topic].topic_id) for tp in self.partitions}
            found = drive(self._store, load_committed(group, ids))
        if not found:
            raise ConfigError(
                f"option startingOffsets: group {group!r} has no position in {', '.join(self.topics)}",
                hint="`tiered group list` names the groups; earliest reads from the start",
            )
        return {tp: found[tp].offset if tp in found else EARLIEST for tp in self.partitions}

    def tiers(self, tp: TopicPartition) -> PinnedPartition:
        """Return both tiers of one of :attr:`partitions`. Sends no request. All partitions share one cache.

        The root is read and pinned at the first use, and again by ``PinnedPartition.stream.refresh``. Raises
        UnknownTopicError for a partition that is missing in the log directory, LogDestroyedError or CorruptionError if
        it was lost there.
        """
        opened = self._opened.get(tp)
        if opened is None:
            opened = self._opened[tp] = self._open(tp, self.topics[tp.topic])
        return opened

    def _open(self, tp: TopicPartition, topic: ChosenTopic) -> PinnedPartition:
        store, as_of, on_disk = self._store, self._options.as_of, self._on_disk.get(tp)
        remote = None
        if store is not None and topic.registered:
            known = replace(self._known.get(tp, NOTHING_KNOWN), made=tp.partition < topic.made)
            topic_id = UUID(topic.topic_id)
            past = Past(RootView(topic_id, tp.partition, tp.topic, known), as_of) if as_of is not None else None
            remote = RemotePartition(tp, topic_id, cache=self._cache, known=known, past=past)
        if self._local is not None and on_disk is None:
            check = self._local.check_absent if remote is None else self._local.check_gone
            check(tp, UUID(topic.topic_id))
        runner = Runner(store)
        stream = PartitionStream.open(tp, local=on_disk, remote=remote, runner=runner)
        return PinnedPartition(tp, topic.topic_id, on_disk, remote, stream, runner)

    def close(self) -> None:
        """Close the local log directory."""
        if self._local is not None:
            self._local.close()


def _same(topic: ChosenTopic, before: ChosenTopic) -> bool:
    """Return True if roots that were read for ``before`` are still valid: it is the same topic in the same tiers."""
    return (topic.topic_id, topic.registered) == (before.topic_id, before.registered)


def planning_pool(what: str) -> ThreadPool:
    """Return a thread pool for the planner's requests. ``what`` names its threads."""
    return ThreadPool(PLANNING_THREADS, f"tiered-plan-{what}")


def _is_matched(pattern: str, name: str) -> bool:
    """Return True if the pattern matches the name. Internal topics never match, as in Kafka's consumer."""
    return re.fullmatch(pattern, name) is not None and not name.startswith("__")


def _registered(options: ReadOptions, store: Store | None) -> dict[str, TopicEntry]:
    """Return the existing registry entries of the topics that the pattern matches or the options name, by topic.

    Raises the error of a matched entry that cannot be read.
    """
    if store is None:
        return {}
    with planning_pool("topics") as pool:
        if options.pattern is not None:
            unreadable: dict[str, TieredError] = {}
            listed = drive(store, list_topics(unreadable))
            for name, error in unreadable.items():
                if _is_matched(options.pattern, name):
                    raise error
                _logger.warning("topic %s is not matched, and its entry cannot be read: %s", name, error)
            matched = [entry for entry in listed if _is_matched(options.pattern, entry.name)]
            return {entry.name: entry for entry in pool.map(lambda each: drive(store, confirm_topic(each)), matched)}
        names = {*options.subscribe, *(tp.topic for tp in options.assign)}
        entries = pool.map(lambda name: drive(store, load_topic_to_read(name)), sorted(names))
        return {entry.name: entry for entry in entries if entry is not None}


def _chosen_topics(
    options: ReadOptions, store: Store | None, local: LogView | None, known: Mapping[TopicPartition, RootLowerBounds]
) -> list[ChosenTopic]:
    entries = _registered(options, store)
    on_disk = local.topics() if local is not None else {}
    if options.pattern is not None:
        names = sorted(name for name in {*entries, *on_disk} if _is_matched(options.pattern, name))
    else:
        names = sorted({*options.subscribe, *(tp.topic for tp in options.assign)})
    topics = []
    for name in names:
        entry, info = entries.get(name), on_disk.get(name)
        if entry is not None and entry.state == STATE_DELETING:
            refuse_deleting(name, options)
            continue
        if store is not None:
            check_entry(name, entry, {tp.partition: k for tp, k in known.items() if tp.topic == name}, where=store.url)
        if entry is None and info is None:
            where = " and ".join(place for place in (options.path, options.local_dir) if place)
            raise UnknownTopicError(f"there is no topic {name} in {where}", hint="`tiered topic list` names the topics")
        if entry is not None and info is not None and entry.topic_id != info.topic_id:
            raise ConfigError(
                f"topic {name} has id {info.topic_id} in {options.local_dir}, but {entry.topic_id} in {options.path}",
                hint="leave local_dir out: it is the directory of another log",
            )
        partitions = max(entry.partitions if entry else 0, info.partitions if info else 0)
        topic_id = entry.topic_id if entry else info.topic_id if info else UUID(int=0)
        made = entry.partitions if entry is not None else 0
        topics.append(ChosenTopic(name, topic_id.hex, partitions, entry is not None, made))
    return topics


def refuse_deleting(name: str, options: ReadOptions) -> None:
    """Raise UnknownTopicError for the topic ``name``, which is being deleted.

    If a pattern chose the topic and ``failOnDataLoss`` is false, log a warning instead.
    """
    if options.pattern is None or options.fail_on_data_loss:
        raise UnknownTopicError(
            f"topic {name} is being deleted with its records",
            hint="choose other topics; with failOnDataLoss=false a subscribePattern skips the topic",
        )
    _logger.warning("topic %s is being deleted and is left out (failOnDataLoss=false)", name)


def _check_partitions(wanted: Iterable[TopicPartition], topics: dict[str, ChosenTopic]) -> None:
    for tp in wanted:
        if tp.partition >= topics[tp.topic].partitions:
            raise UnknownTopicError(
                f"option assign: partition {tp} does not exist",
                hint=f"{tp.topic} has {topics[tp.topic].partitions} partitions",
            )


def aborted_windows(
    pinned: CatalogView, start: int, end: int, count: int = PLANNING_THREADS
) -> Steps[list[tuple[int, int]]]:
    """Cut offsets ``start`` to ``end`` (exclusive) into at most ``count`` (start, end) ranges, for parallel requests.

    Each has about equally many segments with aborted transactions.
    """
    bases: list[int] = []
    at = start
    while at < end and len(rows := (yield from pinned.flagged(FLAG_ABORTED_TXNS, at))):
        bases += rows.base[rows.base < end].tolist()
        at = rows.end_offset
    edges = [base for at in range(1, count) if start < (base := bases[len(bases) * at // count])] if bases else []
    return list(itertools.pairwise(sorted({start, *edges, end})))
