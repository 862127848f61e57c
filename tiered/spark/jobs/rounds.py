"""A round of compaction in parts as a job keeps it, and what a worker does of it.

::

    {round}.json              bounds and parts, or nothing: the round as it was planned first
    {round}-facts.json        the bounds alone, for workers
    {round}-keys/{number}.json     what phase 1 found in a part beside the keys
    {round}-live/{number}.bits     survivors of a part
    {round}-survivors.json    how many of each part: all bitmaps are there
    {round}-changed.json      the bucket held other rows by then: another round is planned
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tiered.config import TopicConfig
from tiered.errors import CorruptionError, NotFoundError, UnknownTopicError
from tiered.format.root import STATE_DELETING
from tiered.model import TopicPartition
from tiered.plan.offset_map import TxnsBefore
from tiered.plan.survivors import Pairs, Survivors
from tiered.remote.cache import ByteCache
from tiered.remote.compact_parts import Group, Part, Round, rewrite_part, scan_part
from tiered.remote.lookup import SegmentLookup
from tiered.remote.rewrite import Workshop
from tiered.remote.root_view import RootView
from tiered.remote.topics import TopicEntry, load_topic_to_read
from tiered.spark.jobs.plan import Receipt, Task
from tiered.spark.jobs.receipts import JobFolder
from tiered.spark.jobs.status import task_capabilities
from tiered.store.base import INCAPABLE, Store
from tiered.store.driver import drive, drive_stream

KEYS, LIVE, SURVIVORS, CHANGED, FACTS = "keys", "live", "survivors", "changed", "facts"


@dataclass(frozen=True, slots=True)
class KeptRound:
    """A round and its parts, under its ``name`` in a job's folder."""

    name: str
    round: Round
    parts: tuple[Part, ...]

    @classmethod
    def load(cls, folder: JobFolder, name: str) -> KeptRound:
        """Raises CorruptionError if it is not there."""
        fields = folder.read(name)
        if fields is None or fields["round"] is None:
            raise _absent(folder, f"{name}.json")
        return cls.of_json(name, fields)

    @classmethod
    def of_json(cls, name: str, fields: dict[str, Any]) -> KeptRound:
        """Of what :meth:`as_json` gave."""
        return cls(name, Round(**fields["round"]), tuple([part_of_json(part) for part in fields["parts"]]))


def part_as_json(part: Part) -> dict[str, Any]:
    """A part, as it is kept."""
    groups = [dataclasses.astuple(group) for group in part.groups]
    return {"groups": groups, "size_bytes": part.size_bytes, "records": part.records}


def part_of_json(fields: dict[str, Any]) -> Part:
    """The inverse."""
    return Part(tuple([Group(*group) for group in fields["groups"]]), fields["size_bytes"], fields["records"])


def bitmap_name(name: str, number: int) -> str:
    """Where the survivors of a part of round ``name`` are kept."""
    return f"{name}-{LIVE}/{number:06d}.bits"


def keep_facts(folder: JobFolder, kept: KeptRound, most_keys: int) -> None:
    """What workers are told."""
    folder.keep(f"{kept.name}-{FACTS}", {"round": dataclasses.asdict(kept.round), "most_keys": most_keys})


# -- in a worker -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bench:
    """One partition, to be read, and to be written under the claim ``shop.claim_epoch``."""

    view: RootView
    shop: Workshop
    config: TopicConfig


def bench_of(store: Store, entry: TopicEntry, partition: int, *, epoch: int = 0) -> Bench:
    """Raises ConditionalWritesUnsupportedError, where something is to be written."""
    capabilities = INCAPABLE
    if epoch:
        capabilities = task_capabilities(store)
    config, tp = entry.settings, TopicPartition(entry.name, partition)
    shop = Workshop(
        tp=tp,
        topic_id=entry.topic_id,
        lookup=SegmentLookup(tp, entry.topic_id, ByteCache()),
        capabilities=capabilities,
        claim_epoch=epoch,
        index_interval_bytes=config.index_interval_bytes,
        lineage=(),
    )
    return Bench(RootView(entry.topic_id, partition, entry.name, entry.known), shop, config)


def entry_of(store: Store, topic: str) -> TopicEntry:
    """Raises UnknownTopicError for a topic that is not there, or is being deleted."""
    entry = drive(store, load_topic_to_read(topic))
    if entry is None or entry.state == STATE_DELETING:
        raise UnknownTopicError(f"the topic {topic!r} was deleted meanwhile", hint="see `tiered topics list`")
    return entry


def compacted_entry(store: Store, round_: Round) -> TopicEntry:
    """Of the topic of a round, which may have been planned long ago. Raises NotFoundError if it is compacted no more:
    its records stay, also those that have no key, and all of a key."""
    entry = entry_of(store, round_.topic)
    if not entry.settings.compacted:
        raise NotFoundError(f"cleanup.policy of {round_.topic!r} does not say compact any more", hint="plan again")
    return entry


def scan(store: Store, folder: JobFolder, name: str, number: int, part: Part) -> Iterator[Pairs]:
    """Phase 1 of one part: its pairs, piece by piece. What else it found is kept before the last piece is given."""
    facts = _facts(folder, name)
    round_ = Round(**facts["round"])
    bench = bench_of(store, compacted_entry(store, round_), round_.partition)
    steps = scan_part(
        bench.view,
        bench.shop,
        part,
        number=number,
        first_dirty=round_.first_dirty,
        most_keys=facts["most_keys"],
    )
    found = yield from drive_stream(store, steps)
    folder.keep_receipt(f"{name}-{KEYS}", number, dataclasses.asdict(found))


def rewrite(store: Store, folder: JobFolder, task: Task) -> Receipt:
    """Phase 2 of what is left of one part: new segments, of which the driver commits the rows.

    Raises FencedError if the claim that they are written under is over.
    """
    facts = _facts(folder, task["round"])
    round_ = Round(**facts["round"])
    name = bitmap_name(task["round"], task["part"])
    bitmap = folder.read_bytes(name)
    if bitmap is None:
        raise _absent(folder, name)  # unknown is not empty
    survivors = Survivors(
        bitmap, task["start"], task["end"], key=folder.key(name), latest_offset=round_.first_uncleanable - 1
    )
    groups = [
        (Group(*group), TxnsBefore(group[0], frozenset(committed), frozenset(aborted)))
        for group, committed, aborted in task["groups"]
    ]
    try:
        bench = bench_of(store, compacted_entry(store, round_), round_.partition, epoch=task["epoch"])
        steps = rewrite_part(bench.view, bench.shop, round_, groups, survivors, always=task["always"])
        rows = drive(store, steps)
    except NotFoundError as changed:
        if changed.__class__ is not NotFoundError:
            raise
        return {"changed": changed.message}
    return {"rows": rows}


def _facts(folder: JobFolder, name: str) -> dict[str, Any]:
    facts = folder.read(f"{name}-{FACTS}")
    if facts is None:
        raise _absent(folder, f"{name}-{FACTS}.json")
    return facts


def _absent(folder: JobFolder, name: str) -> CorruptionError:
    return CorruptionError(
        f"{folder.key(name)} is gone, without which nothing is known to be superseded: nothing was replaced",
        path_or_key=folder.key(name),
        position=0,
        hint="begin the job under another id: --job NAME",
    )
