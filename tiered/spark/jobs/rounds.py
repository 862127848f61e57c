"""Compaction round in parts, as the driver plans it, and a worker's share of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from tiered.config import TopicConfig
from tiered.errors import NotFoundError, UnknownTopicError
from tiered.format.root import STATE_DELETING
from tiered.model import TopicPartition
from tiered.plan.offset_map import TxnsBefore
from tiered.plan.survivors import Pairs, Survivors
from tiered.remote.cache import ByteCache
from tiered.remote.catalog import Catalog
from tiered.remote.compact_parts import CompactionPart, Round, RowGroup, Scanned, plan_round, rewrite_part, scan_part
from tiered.remote.lookup import SegmentLookup
from tiered.remote.segment_rewriter import Workshop
from tiered.remote.topics import TopicEntry, load_topic_to_read
from tiered.spark.jobs.run import Receipt, Task
from tiered.spark.stores import capabilities_of
from tiered.store.base import INCAPABLE, Store
from tiered.store.driver import drive, drive_stream


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """Round and its parts. ``most_keys``: most keys that a task of phase 1 holds at once."""

    round: Round
    parts: tuple[CompactionPart, ...]
    most_keys: int

    @classmethod
    def plan(cls, store: Store, tp: TopicPartition, *, part_bytes: int, most_keys: int) -> PlannedRound | None:
        """Plan a round over the newest catalog; None if nothing is dirty."""
        bench = bench_of(store, entry_of(store, tp.topic), tp.partition)
        planned = drive(store, plan_round(bench.view, bench.config, bench.shop, part_bytes=part_bytes))
        return None if planned is None else cls(planned[0], tuple(planned[1]), most_keys)

    def as_json(self) -> dict[str, Any]:
        """Return the input of phase 1."""
        parts = [part_as_json(part) for part in self.parts]
        return {"round": dataclasses.asdict(self.round), "parts": parts, "most_keys": self.most_keys}


def part_as_json(part: CompactionPart) -> dict[str, Any]:
    """Return all fields, for :func:`part_from_json`."""
    groups = [dataclasses.astuple(group) for group in part.groups]
    return {"groups": groups, "size_bytes": part.size_bytes, "records": part.records}


def part_from_json(fields: Mapping[str, Any]) -> CompactionPart:
    """Return the part from the fields of :func:`part_as_json`."""
    return CompactionPart(
        tuple([RowGroup(*group) for group in fields["groups"]]), fields["size_bytes"], fields["records"]
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """One partition, to read, and to write under the claim ``shop.claim_epoch``."""

    view: Catalog
    shop: Workshop
    config: TopicConfig


def bench_of(store: Store, entry: TopicEntry, partition: int, *, epoch: int = 0) -> Bench:
    """Open a partition. Raises ConditionalWritesUnsupportedError if it is to be written."""
    config, tp = entry.settings, TopicPartition(entry.name, partition)
    shop = Workshop(
        tp=tp,
        topic_id=entry.topic_id,
        lookup=SegmentLookup(tp, entry.topic_id, ByteCache()),
        capabilities=capabilities_of(store) if epoch else INCAPABLE,
        claim_epoch=epoch,
        index_interval_bytes=config.index_interval_bytes,
        lineage=(),
    )
    return Bench(Catalog(entry.topic_id, partition, entry.name, known=entry.known), shop, config)


def entry_of(store: Store, topic: str) -> TopicEntry:
    """Load a topic. Raises UnknownTopicError for one that is missing or being deleted."""
    entry = drive(store, load_topic_to_read(topic))
    if entry is None or entry.state == STATE_DELETING:
        raise UnknownTopicError(f"there is no topic {topic!r}", hint="see `tiered topic list`")
    return entry


def compacted_entry(store: Store, topic: str) -> TopicEntry:
    """Load the topic of a round. Raises NotFoundError if it is not compacted any more: all of its records stay then."""
    entry = entry_of(store, topic)
    if not entry.settings.compacted:
        raise NotFoundError(f"cleanup.policy of {topic!r} does not say compact any more", hint="plan again")
    return entry


# -- in a worker -----------------------------------------------------------------------------------------------------


def scan(store: Store, facts: Mapping[str, Any], number: int, part: CompactionPart) -> Generator[Pairs, None, Scanned]:
    """Do phase 1 of one part: yield its pairs, piece by piece; return its other results."""
    round_ = Round(**facts["round"])
    bench = bench_of(store, compacted_entry(store, round_.topic), round_.partition)
    first_dirty, most_keys = round_.first_dirty, facts["most_keys"]
    steps = scan_part(bench.view, bench.shop, part, number=number, first_dirty=first_dirty, most_keys=most_keys)
    found: Scanned = yield from drive_stream(store, steps)
    return found


def rewrite(store: Store, task: Task, bitmap: bytes) -> Receipt:
    """Do phase 2 of one part: write new segments, whose rows the driver commits.

    Raises FencedError if their claim is over.
    """
    round_ = Round(**task["round"])
    name = f"the bitmap of part {task['part']}"
    survivors = Survivors(bitmap, task["start"], task["end"], key=name, latest_offset=round_.first_uncleanable - 1)
    groups = [
        (RowGroup(*group), TxnsBefore(group[0], frozenset(committed), frozenset(aborted)))
        for group, committed, aborted in task["groups"]
    ]
    try:
        entry = compacted_entry(store, round_.topic)
        bench = bench_of(store, entry, round_.partition, epoch=task["epoch"])
        rows = drive(store, rewrite_part(bench.view, bench.shop, round_, groups, survivors, always=task["always"]))
    except NotFoundError as changed:
        if changed.__class__ is not NotFoundError:
            raise
        return {"changed": changed.message}
    return {"rows": rows}
