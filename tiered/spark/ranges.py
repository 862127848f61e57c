"""Options and the log as it is now -> the pieces to read. Runs on the driver, at the first action of a DataFrame.

Every partition is looked at once: one GET of its root, which pins what the query sees. Times and ``read_committed``
cost index bundles besides, which are fetched concurrently. Nothing lists the bucket but ``subscribePattern``, which
lists ``topics/``.

Offsets that are gone are an error, or with ``failOnDataLoss=false`` skipped, counted and told (:func:`lose`). Gone
means that the log itself says so: a newer root begins behind them, or no tier holds them. An object that the catalog
still names and the bucket does not have is damage, never data loss, and fails whatever the option says."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from tiered.errors import ConfigError, OffsetGapError, OffsetOutOfRangeError, UnknownTopicError
from tiered.format.keys import FLAG_ABORTED_TXNS
from tiered.format.root import STATE_DELETING
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.uploads import known_partitions
from tiered.local.partition.partition import PartitionLog
from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.plan.known import NOTHING_KNOWN, Known
from tiered.plan.read import (
    LocalSpan,
    RemoteSpan,
    Tier,
    TierRange,
    earliest_offset,
    latest_offset,
    plan_tiers,
)
from tiered.remote.past import AsOf, Past
from tiered.remote.reader import RemotePartition
from tiered.remote.root_view import RootView
from tiered.remote.snapshot import Snapshot
from tiered.remote.topics import TopicEntry, check_entry, confirm_topic, list_topics, load_topic_to_read
from tiered.spark.options import EARLIEST, LATEST, Bound, ReadOptions
from tiered.spark.slices import Piece
from tiered.store.base import Steps, Store
from tiered.store.driver import drive
from tiered.store.runner import Runner
from tiered.topic import PartitionStream

PLANNING_THREADS = 16
"""Roots, and of one partition index bundles, that are fetched at once."""

_logger = logging.getLogger("tiered.spark")

Spans = tuple[LocalSpan | None, RemoteSpan | None]


@dataclass(frozen=True, slots=True)
class ChosenTopic:
    """A topic as both tiers know it. ``registered``: whether the bucket does. ``made``: how many partitions the
    registry vouches for, whose roots were made."""

    name: str
    topic_id: str
    partitions: int
    registered: bool
    made: int = 0


@dataclass(frozen=True, slots=True)
class Tiers:
    """One partition, pinned."""

    tp: TopicPartition
    topic_id: str
    local: PartitionLog | None
    remote: RemotePartition | None
    stream: PartitionStream
    runner: Runner

    @property
    def pinned(self) -> Snapshot | None:
        """The pinned catalog."""
        return self.runner.run(self.remote.snapshot()) if self.remote is not None else None

    def aborted_txns(self, start: int, end: int, pool: Executor) -> tuple[AbortedTxn, ...]:
        """Aborted transactions in a range, over both tiers."""
        found: set[AbortedTxn] = set()
        if self.local is not None:
            found.update(self.local.aborted_txns(start, end))
        remote, pinned = self.remote, self.pinned
        if remote is not None and pinned is not None:
            windows = self.runner.run(aborted_windows(pinned, start, end))
            for txns in pool.map(lambda window: self.runner.run(remote.aborted_txns(*window)), windows):
                found.update(txns)
        return tuple(sorted(found, key=lambda txn: (txn.first_offset, txn)))


def aborted_windows(
    pinned: Snapshot, start: int, end: int, count: int = PLANNING_THREADS
) -> Steps[list[tuple[int, int]]]:
    """``start`` to ``end`` as at most ``count`` windows with as many transaction indexes each, one more or less."""
    bases: list[int] = []
    at = start
    while at < end and len(rows := (yield from pinned.flagged(FLAG_ABORTED_TXNS, at))):
        bases += rows.base[rows.base < end].tolist()
        at = rows.end_offset
    edges = [base for at in range(1, count) if start < (base := bases[len(bases) * at // count])] if bases else []
    return list(itertools.pairwise(sorted({start, *edges, end})))


def resolve_pieces(options: ReadOptions, store: Store | None) -> list[Piece]:
    """What the query reads, per partition and tier, in order. ``store`` None: the local tier alone.

    Raises ConfigError (options that do not fit the log), UnknownTopicError, OffsetOutOfRangeError (data loss), and
    what the tiers raise.
    """
    local = LocalLog.open(Path(options.local_dir), read_only=True) if options.local_dir else None
    try:
        known = known_partitions(local.uploads.read(), local.claims.read()) if local and store else {}
        topics = _chosen_topics(options, store, local, known)
        wanted = list(options.assign) or [TopicPartition(t.name, p) for t in topics for p in range(t.partitions)]
        _check_partitions(wanted, {topic.name: topic for topic in topics})
        _check_named(options.start, wanted, "starting")
        _check_named(options.end, wanted, "ending")
        named = {topic.name: topic for topic in topics}
        needed = set(wanted)  # one that is out of service is no concern of a query that does not name it
        on_disk = {tp: local.partition(tp) for tp in local.partitions() if tp in needed} if local is not None else {}
        # Two pools: a partition's thread waits for its bundles, and must not keep their threads from running.
        with planning_pool("partitions") as partitions, planning_pool("bundles") as bundles:

            def pieces_of(tp: TopicPartition) -> list[Piece]:
                seen = known.get(tp, NOTHING_KNOWN)
                tiers = _tiers(tp, named[tp.topic], store, on_disk.get(tp), seen, options.as_of)
                return _pieces_of(tiers, options, bundles)

            return [piece for pieces in partitions.map(pieces_of, wanted) for piece in pieces]
    finally:
        if local is not None:
            local.close()


def planning_pool(what: str) -> ThreadPoolExecutor:
    """Threads for requests of the planner."""
    return ThreadPoolExecutor(PLANNING_THREADS, thread_name_prefix=f"tiered-plan-{what}")


def _registered(options: ReadOptions, store: Store | None) -> dict[str, TopicEntry]:
    """The registry's entries: all of them for a pattern, else those that are named."""
    if store is None:
        return {}
    with planning_pool("topics") as pool:
        if options.pattern is not None:
            listed = drive(store, list_topics())
            return {entry.name: entry for entry in pool.map(lambda each: drive(store, confirm_topic(each)), listed)}
        names = {*options.subscribe, *(tp.topic for tp in options.assign)}
        entries = pool.map(lambda name: drive(store, load_topic_to_read(name)), sorted(names))
        return {entry.name: entry for entry in entries if entry is not None}


def _chosen_topics(
    options: ReadOptions, store: Store | None, local: LocalLog | None, known: Mapping[TopicPartition, Known]
) -> list[ChosenTopic]:
    entries = _registered(options, store)
    on_disk = local.topics() if local is not None else {}
    if options.pattern is not None:
        # Internal topics are never matched by a pattern, as in Kafka's consumer.
        names = sorted(n for n in {*entries, *on_disk} if re.fullmatch(options.pattern, n) and not n.startswith("__"))
    else:
        names = sorted({*options.subscribe, *(tp.topic for tp in options.assign)})
    topics = []
    for name in names:
        entry, info = entries.get(name), on_disk.get(name)
        if entry is not None and entry.state == STATE_DELETING:
            _refuse_deleting(name, options)
            continue
        if store is not None:
            check_entry(name, entry, {tp.partition: k for tp, k in known.items() if tp.topic == name}, where=store.url)
        if entry is None and info is None:
            where = " and ".join(place for place in (options.path, options.local_dir) if place)
            raise UnknownTopicError(f"there is no topic {name} in {where}", hint="correct subscribe or path")
        if entry is not None and info is not None and entry.topic_id != info.topic_id:
            raise ConfigError(
                f"topic {name} is {info.topic_id} in {options.local_dir} and {entry.topic_id} in {options.path}",
                hint="local_dir is the directory of another log: leave it out",
            )
        partitions = max(entry.partitions if entry else 0, info.partitions if info else 0)
        topic_id = entry.topic_id if entry else info.topic_id if info else UUID(int=0)
        made = entry.partitions if entry is not None and entry.roots else 0
        topics.append(ChosenTopic(name, topic_id.hex, partitions, entry is not None, made))
    return topics


def _refuse_deleting(name: str, options: ReadOptions) -> None:
    """Returns only where a pattern matched the topic and the user allows that data is lost."""
    if options.pattern is None or options.fail_on_data_loss:
        raise UnknownTopicError(
            f"topic {name} is being deleted: its records are going",
            hint="choose other topics; failOnDataLoss=false leaves it out of what a subscribePattern matches",
        )
    _logger.warning("topic %s is being deleted and is left out (failOnDataLoss=false)", name)


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


def _tiers(  # noqa: PLR0917 - private, all that is known of one partition
    tp: TopicPartition,
    topic: ChosenTopic,
    store: Store | None,
    on_disk: PartitionLog | None,
    known: Known,
    as_of: AsOf | None,
) -> Tiers:
    remote = None
    if store is not None and topic.registered:
        known = replace(known, made=tp.partition < topic.made)
        topic_id = UUID(topic.topic_id)
        past = Past(RootView(topic_id, tp.partition, tp.topic, known), as_of) if as_of is not None else None
        remote = RemotePartition(tp.topic, topic_id, tp.partition, known=known, past=past)
    runner = Runner(store)
    stream = PartitionStream.of(tp, local=on_disk, remote=remote, runner=runner)
    return Tiers(tp, topic.topic_id, on_disk, remote, stream, runner)


def _pieces_of(tiers: Tiers, options: ReadOptions, pool: Executor) -> list[Piece]:
    """The wanted range of one partition, tier by tier."""
    if tiers.local is None and tiers.remote is None:
        return []
    if tiers.pinned is not None and tiers.pinned.root.state == STATE_DELETING:
        _refuse_deleting(tiers.tp.topic, options)
        return []
    latest = tiers.stream.latest()
    start, end = _start(tiers, options, tiers.stream.earliest(), latest), _end(tiers, options, latest)
    if start > end and options.start.timestamp is None and options.start.timestamps is None:
        raise ConfigError(
            f"{tiers.tp}: the query starts at offset {start} and ends at {end}",
            hint="correct startingOffsets or endingOffsets; the end is exclusive",
        )
    start, end = _within(tiers.tp, start, end, tiers.stream.spans(), options)
    aborted: tuple[AbortedTxn, ...] = ()
    if options.read_committed:
        end = min(end, tiers.stream.last_stable_offset())
        aborted = tiers.aborted_txns(start, end, pool) if start < end else ()
    if start >= end:
        return []
    # The tiers may have moved: a lookup that met an object which retention took has pinned a newer root.
    spans = tiers.stream.spans()
    start, end = _within(tiers.tp, start, end, spans, options)
    return [
        _piece(tiers, part.tier, part.start, part.end, aborted)
        for part in _tier_ranges(tiers.tp, start, end, spans, fail=options.fail_on_data_loss)
    ]


def _within(tp: TopicPartition, start: int, end: int, spans: Spans, options: ReadOptions) -> tuple[int, int]:
    """The range inside what the log holds; anything outside is data loss."""
    earliest, latest = earliest_offset(*spans), latest_offset(*spans)
    if earliest <= start <= latest and end <= latest:
        return start, end
    lost = max(0, min(end, earliest) - start) + max(0, end - max(start, latest))
    lose(
        f"{tp}: offsets {start} to {end} were asked for, the log holds {earliest} to {latest}",
        lost,
        requested=start if start < earliest else max(start, end),
        held=(earliest, latest),
        fail=options.fail_on_data_loss,
        hint="failOnDataLoss=false reads what there is",
    )
    return min(max(start, earliest), latest), min(max(end, earliest), latest)


def _tier_ranges(tp: TopicPartition, start: int, end: int, spans: Spans, *, fail: bool) -> Iterator[TierRange]:
    """Which tier serves which offsets. A hole between the tiers is data loss."""
    local, remote = spans
    while start < end:
        try:
            yield from plan_tiers(tp, start, end, local=local, remote=remote)
            return
        except OffsetGapError as gap:
            if fail:
                raise
            yield from plan_tiers(tp, start, gap.start, local=local, remote=remote)
            start = min(gap.end, end)
            lose(gap.message, start - gap.start, requested=gap.start, held=(gap.start, gap.end), fail=False)


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
    pinned = tiers.pinned
    if tier is Tier.REMOTE and pinned is not None:
        rows = tiers.runner.run(_rows_between(pinned, start, end))
        size = sum(row.size * (min(row.next, end) - max(row.base, start)) // (row.next - row.base) for row in rows)
        return Piece(tiers.tp, tiers.topic_id, tier, start, end, size, rows, hidden, pinned.version)
    size, version = _local_bytes(tiers, start, end), pinned.version if pinned is not None else 0
    return Piece(tiers.tp, tiers.topic_id, tier, start, end, size, (), hidden, version)


def _rows_between(pinned: Snapshot, start: int, end: int) -> Steps[tuple[Row, ...]]:
    """The segments that hold offsets ``start`` to ``end``."""
    found: list[Row] = []
    at = start
    while at < end and len(rows := (yield from pinned.piece(at))):
        found += rows.slice(0, int(rows.base.searchsorted(end)))
        at = rows.end_offset
    return tuple(found)


def _local_bytes(tiers: Tiers, start: int, end: int) -> int:
    """Estimated from the sealed segments; an active one counts like the average of them, or as nothing."""
    if tiers.local is None:
        return 0
    sealed = [segment.descriptor for segment in tiers.local.sealed_segments(start)]
    offsets = sum(descriptor.end_offset - descriptor.base_offset for descriptor in sealed)
    return sum(descriptor.size_bytes for descriptor in sealed) * (end - start) // offsets if offsets else 0


def lose(what: str, count: int, *, requested: int, held: tuple[int, int], fail: bool, hint: str = "") -> None:
    """``what`` is gone: ``count`` offsets. ``held``: earliest and latest offset (exclusive) of the log as it is now.

    Raises OffsetOutOfRangeError if ``fail``, else warns and returns: the caller skips them.
    """
    if fail:
        raise OffsetOutOfRangeError(
            what,
            requested=requested,
            earliest=held[0],
            latest=held[1],
            hint=hint,
        )
    _logger.warning("%s; %d offsets are skipped (failOnDataLoss=false)", what, count)
