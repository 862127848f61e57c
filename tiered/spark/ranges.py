"""Planning of a query: options and the log as it is now -> pieces to read. Runs on the driver, at the first action.

Every partition costs one GET of its root, which pins what the query sees. Times and ``read_committed`` also cost index
bundles, which are fetched concurrently. Only ``subscribePattern`` lists: ``topics/``.

Missing offsets are an error, or with ``failOnDataLoss=false`` skipped, counted and logged (:func:`lose`). They are
missing if the log says so: a newer root begins after them, or no tier has them. A missing object that the catalog still
names is damage, never data loss, and fails with either option.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from tiered.errors import ConfigError, OffsetGapError, OffsetOutOfRangeError
from tiered.format.root import STATE_DELETING
from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.plan.read import (
    LocalSpan,
    RemoteSpan,
    Tier,
    TierRange,
    earliest_offset,
    latest_offset,
    plan_tiers,
)
from tiered.remote.catalog_view import CatalogView
from tiered.spark.options import EARLIEST, LATEST, Bound, ReadOptions
from tiered.spark.slices import PartitionSlice
from tiered.spark.subscription import PinnedPartition, Subscription, planning_pool, refuse_deleting
from tiered.store.base import Steps, Store

_logger = logging.getLogger("tiered.spark")

Spans = tuple[LocalSpan | None, RemoteSpan | None]


def resolve_pieces(options: ReadOptions, store: Store | None) -> list[PartitionSlice]:
    """Return the offset ranges that the query reads, each in one partition and one tier, by partition and offset.

    ``store`` None: the local tier alone. Raises ConfigError if the options do not fit the log, UnknownTopicError, and
    the errors of the tiers. For data loss: OffsetOutOfRangeError, OffsetGapError.
    """
    with contextlib.closing(Subscription(options, store)) as chosen:
        chosen.refresh()
        options = begin_at_group(options, chosen)
        check_named(options.start, chosen, "starting")
        check_named(options.end, chosen, "ending")
        # Two pools: threads of partitions wait for bundles, and must not occupy the threads that fetch them.
        with planning_pool("partitions") as partitions, planning_pool("bundles") as bundles:

            def pieces_of(tp: TopicPartition) -> list[PartitionSlice]:
                return _pieces_of(chosen.tiers(tp), options, bundles)

            return [piece for pieces in partitions.map(pieces_of, chosen.partitions) for piece in pieces]


def begin_at_group(options: ReadOptions, chosen: Subscription) -> ReadOptions:
    """Return the options with the start offsets of the group that they name. Unchanged if they name no group.

    Raises ConfigError if the group has no position in any chosen partition.
    """
    group = options.start.group
    return replace(options, start=Bound(EARLIEST, offsets=chosen.group_offsets(group))) if group else options


def check_named(bound: Bound, chosen: Subscription, side: str) -> None:
    """Raise ConfigError unless an option that lists partitions lists exactly the chosen ones, as in Spark's Kafka
    source.

    Raises ConfigError also for offsets of a topic that was deleted and created again since. ``side``: ``starting`` or
    ``ending``, the first part of the option's name.
    """
    named, wanted = bound.named(), chosen.partitions
    if named is None:
        return
    option = f"{side}OffsetsByTimestamp" if bound.timestamps is not None else f"{side}Offsets"
    missing, extra = sorted(set(wanted) - set(named)), sorted(set(named) - set(wanted))
    if missing:
        rest = "-2 for earliest, -1 for latest" if bound.offsets is not None else "a time for each"
        raise ConfigError(f"option {option} does not name {_list(missing)}", hint=f"name each partition; {rest}")
    if extra:
        raise ConfigError(
            f"option {option} names {_list(extra)}, which the query does not read",
            hint=f"correct {option}, or the topics of the query",
        )
    for topic, topic_id in bound.topic_ids.items():
        if topic in chosen.topics and chosen.topics[topic].topic_id != topic_id:
            raise ConfigError(
                f"option {option} has offsets of topic {topic} with id {topic_id}, but its id is "
                f"{chosen.topics[topic].topic_id}: it was made again since",
                hint="give offsets of the new topic",
            )


def _list(tps: Sequence[TopicPartition]) -> str:
    return ", ".join(str(tp) for tp in tps[:5]) + (f" and {len(tps) - 5} more" if len(tps) > 5 else "")


def _pieces_of(tiers: PinnedPartition, options: ReadOptions, pool: Executor) -> list[PartitionSlice]:
    """Return the offset ranges to read in one partition, each in one tier.

    Empty if neither tier has the partition. ``pool``: threads that fetch index bundles. Raises ConfigError for a start
    offset after the end, OffsetOutOfRangeError and OffsetGapError for data loss.
    """
    if tiers.local is None and tiers.remote is None:
        return []
    if tiers.pinned is not None and tiers.pinned.root.state == STATE_DELETING:
        refuse_deleting(tiers.tp.topic, options)
        return []
    latest = tiers.stream.latest()
    start, end = start_of(tiers, options, tiers.stream.earliest(), latest), _end(tiers, options, latest)
    if start > max(end, latest) and not options.fail_on_data_loss:  # no records and a warning, as Kafka's source
        held = tiers.stream.earliest(), latest
        what = f"{tiers.tp}: the query starts at offset {start}, the log holds {held[0]} to {held[1]}"
        lose(what, 0, requested=start, held=held, fail=False)
        return []
    if start > end and options.start.timestamp is None and options.start.timestamps is None:
        raise ConfigError(
            f"{tiers.tp}: the query starts at offset {start}, after its end {end}",
            hint="correct startingOffsets or endingOffsets; the end is exclusive",
        )
    return pieces_between(tiers, start, end, options, pool)


def pieces_between(
    tiers: PinnedPartition, start: int, end: int, options: ReadOptions, pool: Executor
) -> list[PartitionSlice]:
    """Cut offsets ``start`` to ``end`` (exclusive) of one partition into ranges that are in one tier each.

    With ``read_committed`` the end is at most the last stable offset. ``pool``: threads that fetch index bundles.
    Raises OffsetOutOfRangeError and OffsetGapError (data loss).
    """
    start, end = _within(tiers.tp, start, end, tiers.stream.spans(), options)
    aborted: tuple[AbortedTxn, ...] = ()
    if options.read_committed:
        end = min(end, tiers.stream.last_stable_offset())
        aborted = tiers.aborted_txns(start, end, pool) if start < end else ()
    if start >= end:
        return []
    # A lookup that met an object deleted by retention has pinned a newer root: read the spans again.
    spans = tiers.stream.spans()
    start, end = _within(tiers.tp, start, end, spans, options)
    return [
        _piece(tiers, part.tier, part.start, part.end, aborted)
        for part in _tier_ranges(tiers.tp, start, end, spans, fail=options.fail_on_data_loss)
    ]


def _within(tp: TopicPartition, start: int, end: int, spans: Spans, options: ReadOptions) -> tuple[int, int]:
    """Return start and exclusive end of those offsets of the range that the log has. ``spans``: ranges of both tiers.

    Raises OffsetOutOfRangeError for offsets outside. With ``failOnDataLoss=false`` they are logged as a warning.
    """
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
    """Yield ranges that are in one tier each, from ``start`` to ``end`` (exclusive).

    Offsets in neither tier raise OffsetGapError if ``fail``. Otherwise they are skipped, with a warning.
    """
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


def start_of(tiers: PinnedPartition, options: ReadOptions, earliest: int, latest: int) -> int:
    """Return the first offset to read in a partition with offsets ``earliest`` to ``latest`` (exclusive).

    If the options name a time and no record has it or a later one, return ``latest``. With
    ``startingOffsetsByTimestampStrategy=error`` raise ConfigError then.
    """
    bound = options.start
    timestamp = bound.timestamp if bound.timestamps is None else bound.timestamps[tiers.tp]
    if timestamp is not None:
        found = tiers.stream.offset_for_time(timestamp)
        if found is None and options.missing_start == "error":
            raise ConfigError(
                f"{tiers.tp}: no record has a timestamp of {timestamp} or later (the log ends at offset {latest})",
                hint="use an earlier startingTimestamp, or startingOffsetsByTimestampStrategy=latest",
            )
        return found[0] if found is not None else latest
    offset = bound.offsets[tiers.tp] if bound.offsets is not None else bound.default
    return {EARLIEST: earliest, LATEST: latest}.get(offset, offset)


def _end(tiers: PinnedPartition, options: ReadOptions, latest: int) -> int:
    bound = options.end
    timestamp = bound.timestamp if bound.timestamps is None else bound.timestamps[tiers.tp]
    if timestamp is not None:
        found = tiers.stream.offset_for_time(timestamp)
        return found[0] if found is not None else latest
    offset = bound.offsets[tiers.tp] if bound.offsets is not None else LATEST
    return latest if offset == LATEST else offset


def _piece(tiers: PinnedPartition, tier: Tier, start: int, end: int, aborted: tuple[AbortedTxn, ...]) -> PartitionSlice:
    hidden = tuple(txn for txn in aborted if txn.last_offset >= start and txn.first_offset < end)
    pinned = tiers.pinned
    if tier is Tier.REMOTE and pinned is not None:
        rows = tiers.runner.run(_rows_between(pinned, start, end))
        size = sum(_wanted(row, start, end)[2] for row in rows)
        return PartitionSlice(tiers.tp, tiers.topic_id, tier, start, end, size, rows, hidden, pinned.version)
    size, version = _local_bytes(tiers, start, end), pinned.version if pinned is not None else 0
    return PartitionSlice(tiers.tp, tiers.topic_id, tier, start, end, size, (), hidden, version)


def _rows_between(pinned: CatalogView, start: int, end: int) -> Steps[tuple[Row, ...]]:
    found: list[Row] = []
    at = start
    while at < end and len(rows := (yield from pinned.piece(at))):
        found += rows.slice(0, int(rows.base.searchsorted(end)))
        at = rows.end_offset
    return tuple(found)


def offset_within(tiers: PinnedPartition, start: int, end: int, size_bytes: int) -> int:
    """Return the offset up to which the log has about ``size_bytes`` of data from ``start`` on, at most ``end``.

    Inside a segment, and on disk, records count as equally large.
    """
    left = size_bytes
    for part in _tier_ranges(tiers.tp, start, end, tiers.stream.spans(), fail=False):
        pinned, sizes = tiers.pinned, [(part.start, part.end, _local_bytes(tiers, part.start, part.end))]
        if part.tier is Tier.REMOTE and pinned is not None:
            rows = tiers.runner.run(_rows_between(pinned, part.start, part.end))
            sizes = [_wanted(row, part.start, part.end) for row in rows]
        for at, until, size in sizes:
            if size > left:
                return at + (until - at) * left // size
            left -= size
    return end


def _wanted(row: Row, start: int, end: int) -> tuple[int, int, int]:
    """Return those offsets of a segment that are in ``start`` to ``end`` (exclusive), and their share of its bytes."""
    at, until = max(row.base, start), min(row.next, end)
    return at, until, row.size * (until - at) // (row.next - row.base)


def _local_bytes(tiers: PinnedPartition, start: int, end: int) -> int:
    """Estimate the bytes of offsets on disk, from the mean size of a record in sealed segments. Without those: 0."""
    if tiers.local is None:
        return 0
    sealed = [segment.descriptor for segment in tiers.local.sealed_segments(start)]
    offsets = sum(descriptor.end_offset - descriptor.base_offset for descriptor in sealed)
    return sum(descriptor.size_bytes for descriptor in sealed) * (end - start) // offsets if offsets else 0


def lose(what: str, count: int, *, requested: int, held: tuple[int, int], fail: bool, hint: str = "") -> None:
    """Report data loss: raise OffsetOutOfRangeError if ``fail``, otherwise log a warning. The caller skips the offsets.

    ``what``: the message. ``count``: the number of missing offsets. ``requested``: the offset that the error names.
    ``held``: the log's earliest offset and its exclusive end now.
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
