"""Options and the log as it is now -> the pieces to read. Runs on the driver, once per ``load``.

Every partition is looked at once: one GET of its root, which pins what the query sees. Times and ``read_committed``
cost index bundles besides. Nothing lists the bucket but ``subscribePattern``, which lists ``topics/``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tiered.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicError
from tiered.format.root import Root
from tiered.local.directory.manager import LocalLog
from tiered.local.partition.partition import PartitionLog
from tiered.model import AbortedTxn, TopicPartition
from tiered.plan.read import Tier, plan_tiers, segment_ranges
from tiered.remote.reader import RemotePartition
from tiered.remote.topics import list_topics, load_topic
from tiered.spark.options import EARLIEST, LATEST, Bound, ReadOptions
from tiered.spark.slices import Piece
from tiered.store.base import Store
from tiered.store.driver import drive
from tiered.stream import PartitionStream

PLANNING_THREADS = 16
"""Roots that are fetched at once."""

_logger = logging.getLogger("tiered.spark")


@dataclass(frozen=True, slots=True)
class ChosenTopic:
    """A topic as both tiers know it; ``topic_id`` empty if only the disk does."""

    name: str
    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Tiers:
    """One partition, pinned."""

    tp: TopicPartition
    topic_id: str
    local: PartitionLog | None
    remote: RemotePartition | None
    stream: PartitionStream

    @property
    def root(self) -> Root | None:
        """The pinned root."""
        return self.remote.root() if self.remote is not None else None

    def last_stable_offset(self) -> int:
        """Where ``read_committed`` ends."""
        root = self.root
        if self.local is not None and (root is None or self.local.positions().end_offset >= root.next_offset):
            return self.local.last_stable_offset()
        return self.remote.last_stable_offset() if self.remote is not None else 0

    def aborted_txns(self, start: int, end: int) -> tuple[AbortedTxn, ...]:
        """Aborted transactions in a range, over both tiers."""
        found: set[AbortedTxn] = set()
        for tier in (self.local, self.remote):
            if tier is not None:
                found.update(tier.aborted_txns(start, end))
        return tuple(sorted(found))


def resolve_pieces(options: ReadOptions, store: Store | None) -> list[Piece]:
    """What the query reads, per partition and tier, in order. ``store`` None: the local tier alone.

    Raises ConfigError (options that do not fit the log), UnknownTopicError, OffsetOutOfRangeError (data loss), and
    what the tiers raise.
    """
    local = LocalLog.open(Path(options.local_dir), read_only=True) if options.local_dir else None
    try:
        topics = _chosen_topics(options, store, local)
        wanted = list(options.assign) or [TopicPartition(t.name, p) for t in topics for p in range(t.partitions)]
        _check_partitions(wanted, {topic.name: topic for topic in topics})
        _check_named(options.start, wanted, "starting")
        _check_named(options.end, wanted, "ending")
        ids = {topic.name: topic.topic_id for topic in topics}
        on_disk = {tp: local.partition(tp) for tp in local.partitions()} if local is not None else {}
        with ThreadPoolExecutor(PLANNING_THREADS, thread_name_prefix="tiered-plan") as pool:
            found = pool.map(lambda tp: _pieces_of(_tiers(tp, ids[tp.topic], store, on_disk.get(tp)), options), wanted)
            return [piece for pieces in found for piece in pieces]
    finally:
        if local is not None:
            local.close()


def _chosen_topics(options: ReadOptions, store: Store | None, local: LocalLog | None) -> list[ChosenTopic]:
    on_disk = local.topics() if local is not None else {}
    if options.pattern is not None:
        entries = {entry.name: entry for entry in drive(store, list_topics())} if store is not None else {}
        # Internal topics are never matched by a pattern, as in Kafka's consumer.
        names = sorted(n for n in {*entries, *on_disk} if re.fullmatch(options.pattern, n) and not n.startswith("__"))
    else:
        names = sorted({*options.subscribe, *(tp.topic for tp in options.assign)})
        loaded = {name: drive(store, load_topic(name)) for name in names} if store is not None else {}
        entries = {name: entry for name, entry in loaded.items() if entry is not None}
    topics = []
    for name in names:
        entry, info = entries.get(name), on_disk.get(name)
        if entry is None and info is None:
            where = " and ".join(place for place in (options.path, options.local_dir) if place)
            raise UnknownTopicError(f"there is no topic {name} in {where}", hint="correct subscribe or path")
        if entry is not None and info is not None and entry.topic_id != info.topic_id:
            raise ConfigError(
                f"topic {name} is {info.topic_id} in {options.local_dir} and {entry.topic_id} in {options.path}",
                hint="local_dir is the directory of another log: leave it out",
            )
        partitions = max(entry.partitions if entry else 0, info.partitions if info else 0)
        topics.append(ChosenTopic(name, entry.topic_id.hex if entry else "", partitions))
    return topics


def _check_partitions(wanted: Iterable[TopicPartition], topics: dict[str, ChosenTopic]) -> None:
    for tp in wanted:
        if tp.partition >= topics[tp.topic].partitions:
            raise UnknownTopicError(
                f"option assign: there is no {tp}", hint=f"{tp.topic} has {topics[tp.topic].partitions} partitions"
            )


def _check_named(bound: Bound, wanted: Sequence[TopicPartition], side: str) -> None:
    """As in Spark's Kafka source, whoever names partitions one by one names all of them, and no others."""
    named = bound.named()
    if named is None:
        return
    option = f"{side}OffsetsByTimestamp" if bound.timestamps is not None else f"{side}Offsets"
    missing, extra = sorted(set(wanted) - set(named)), sorted(set(named) - set(wanted))
    if missing:
        rest = "-2 for earliest, -1 for latest" if bound.offsets is not None else "a time for each"
        raise ConfigError(f"option {option} does not name {_list(missing)}", hint=f"name every partition; {rest}")
    if extra:
        raise ConfigError(f"option {option} names {_list(extra)}, not subscribed", hint="correct one of the two")


def _list(tps: Sequence[TopicPartition]) -> str:
    return ", ".join(str(tp) for tp in tps[:5]) + (f" and {len(tps) - 5} more" if len(tps) > 5 else "")


def _tiers(tp: TopicPartition, topic_id: str, store: Store | None, on_disk: PartitionLog | None) -> Tiers:
    remote = None
    if store is not None and topic_id:
        remote = RemotePartition(store, tp.topic, UUID(topic_id), tp.partition)
    return Tiers(tp, topic_id, on_disk, remote, PartitionStream(tp, local=on_disk, remote=remote))


def _pieces_of(tiers: Tiers, options: ReadOptions) -> list[Piece]:
    """The wanted range of one partition, tier by tier."""
    if tiers.local is None and tiers.remote is None:
        return []
    earliest, latest = tiers.stream.earliest(), tiers.stream.latest()
    start = _start(tiers, options, earliest, latest)
    end = _end(tiers, options, latest)
    if start > end and options.start.timestamp is None and options.start.timestamps is None:
        raise ConfigError(
            f"{tiers.tp}: the query starts at offset {start} and ends at {end}",
            hint="correct startingOffsets or endingOffsets; the end is exclusive",
        )
    start, end = _within(tiers.tp, start, end, (earliest, latest), options)
    if options.read_committed:
        end = min(end, tiers.last_stable_offset())
    if start >= end:
        return []
    aborted = tiers.aborted_txns(start, end) if options.read_committed else ()
    local, remote = tiers.stream.spans()
    return [
        _piece(tiers, part.tier, part.start, part.end, aborted)
        for part in plan_tiers(tiers.tp, start, end, local=local, remote=remote)
    ]


def _within(tp: TopicPartition, start: int, end: int, held: tuple[int, int], options: ReadOptions) -> tuple[int, int]:
    """The range inside what the log holds; anything outside is data loss."""
    earliest, latest = held
    if earliest <= start <= latest and end <= latest:
        return start, end
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{tp}: offsets {start} to {end} were asked for, the log holds {earliest} to {latest}",
            requested=start if start < earliest else max(start, end),
            earliest=earliest,
            latest=latest,
            hint="failOnDataLoss=false reads what there is",
        )
    _logger.warning("%s: offsets %s to %s were asked for, %s to %s are read", tp, start, end, earliest, latest)
    return min(max(start, earliest), latest), min(max(end, earliest), latest)


def _start(tiers: Tiers, options: ReadOptions, earliest: int, latest: int) -> int:
    bound = options.start
    timestamp = bound.timestamp if bound.timestamps is None else bound.timestamps[tiers.tp]
    if timestamp is not None:
        found = tiers.stream.offset_for_time(timestamp)
        if found is None and options.missing_start == "error":
            raise ConfigError(
                f"{tiers.tp}: no record has a timestamp of {timestamp} or later (the log ends at offset {latest})",
                hint="an earlier startingTimestamp, or startingOffsetsByTimestampStrategy=latest",
            )
        return found[0] if found is not None else latest
    offset = bound.offsets[tiers.tp] if bound.offsets is not None else EARLIEST
    return earliest if offset == EARLIEST else offset


def _end(tiers: Tiers, options: ReadOptions, latest: int) -> int:
    bound = options.end
    timestamp = bound.timestamp if bound.timestamps is None else bound.timestamps[tiers.tp]
    if timestamp is not None:
        found = tiers.stream.offset_for_time(timestamp)
        return found[0] if found is not None else latest
    offset = bound.offsets[tiers.tp] if bound.offsets is not None else LATEST
    return latest if offset == LATEST else offset


def _piece(tiers: Tiers, tier: Tier, start: int, end: int, aborted: tuple[AbortedTxn, ...]) -> Piece:
    hidden = tuple(txn for txn in aborted if txn.last_offset >= start and txn.first_offset < end)
    root = tiers.root
    if tier is Tier.REMOTE and root is not None:
        rows = tuple(part.row for part in segment_ranges(root.rows, start, end))
        size = sum(row.size * (min(row.next, end) - max(row.base, start)) // (row.next - row.base) for row in rows)
        return Piece(tiers.tp, tiers.topic_id, tier, start, end, size, rows, hidden)
    return Piece(tiers.tp, tiers.topic_id, tier, start, end, _local_bytes(tiers, start, end), (), hidden)


def _local_bytes(tiers: Tiers, start: int, end: int) -> int:
    """Estimated from the sealed segments; an active one counts like the average of them, or as nothing."""
    if tiers.local is None:
        return 0
    sealed = [segment.descriptor for segment in tiers.local.sealed_segments(start)]
    offsets = sum(descriptor.end_offset - descriptor.base_offset for descriptor in sealed)
    return sum(descriptor.size_bytes for descriptor in sealed) * (end - start) // offsets if offsets else 0
