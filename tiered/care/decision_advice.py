"""What can be done about a decision of a sink that cannot be read. Changes nothing.

Nothing but its bytes says what a decision named. But each root says how far it has committed an id, and what a batch
has staged stands below each partition: so it is known whether the batch is in all of its partitions, in none, or in
some, and only the last needs the decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tiered.errors import ConfigError, CorruptionError
from tiered.format.keys import (
    DECISIONS_PREFIX,
    DecisionKey,
    is_stem_of,
    parse_decision_key,
    parse_staged_key,
    root_key,
    staged_prefix,
)
from tiered.format.root import decode_root
from tiered.model import TopicPartition
from tiered.remote.root_view import root_get
from tiered.remote.stage import read_decision
from tiered.remote.topics import TopicEntry
from tiered.store.base import Object, Steps, list_all

NAMED_PARTITIONS = 10
"""Partitions that one sentence names; of more it tells the number."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A decision that cannot be read. Partitions: ``there`` have its batch, ``waiting`` have not and hold something of
    it, of ``unknown`` ones nothing tells. ``unseen``: where others may be, in words."""

    key: str
    problem: str
    txn: str
    batch: int
    there: list[TopicPartition] = field(default_factory=list)
    waiting: list[TopicPartition] = field(default_factory=list)
    unknown: list[TopicPartition] = field(default_factory=list)
    unseen: Sequence[str] = ()


def damaged_decisions(entries: Sequence[TopicEntry], unseen: Sequence[str]) -> Steps[list[Damaged]]:
    """All of them. Lists ``txn/`` and reads each; for a damaged one lists what is staged in each partition.

    ``unseen``: where more partitions may be than the ``entries`` name.
    """
    found: list[Damaged] = []
    for entry in (yield from list_all(DECISIONS_PREFIX)):
        parsed = parse_decision_key(entry.key)
        if parsed is None:
            continue
        try:
            yield from read_decision(entry.key)
        except CorruptionError as damage:
            told = Damaged(entry.key, damage.message, parsed.txn, parsed.batch, unseen=unseen)
            yield from _look(told, parsed, entries)
            found.append(told)
        except ConfigError:
            continue  # of a newer release, as far as is known
    return found


def _look(found: Damaged, parsed: DecisionKey, entries: Sequence[TopicEntry]) -> Steps[None]:
    """Where the batch is."""
    for entry in entries:
        for partition in range(entry.partitions):
            tp = TopicPartition(entry.name, partition)
            staged = yield from list_all(staged_prefix(entry.topic_id, partition))
            uids = {told.uid for each in staged if (told := parse_staged_key(each.key)) is not None}
            holds = any(is_stem_of(parsed.txn, parsed.batch, uid) for uid in uids)
            last, forgets = yield from _committed(entry, partition, parsed.txn)
            if last >= parsed.batch:
                found.there.append(tp)
            elif holds and forgets:
                found.unknown.append(tp)
            elif holds:
                found.waiting.append(tp)


def _committed(entry: TopicEntry, partition: int, txn: str) -> Steps[tuple[int, bool]]:
    """The newest batch that a root tells of, and whether it may have forgotten one: also where it cannot be read."""
    key = root_key(entry.topic_id, partition)
    try:
        got = yield root_get(key)
        root = decode_root(got.data, key=key) if isinstance(got, Object) else None
    except (CorruptionError, ConfigError):
        root = None
    if root is None:
        return -1, True
    last = root.last_batch(txn)
    return last, last < 0 and root.txns_floor > 0


def steps_for(damaged: Damaged) -> Iterator[str]:
    """What to do without a version or a backup of it."""
    what = f"batch {damaged.batch} of {damaged.txn}"
    if damaged.unknown or damaged.unseen:
        where = _listed([*damaged.unknown, *damaged.unseen])
        yield f"whether {where} have {what} is not known: {_ANOTHER_ID}"
    elif damaged.there and damaged.waiting:
        yield (
            f"{_listed(damaged.there)} have {what}, {_listed(damaged.waiting)} hold segments of it that are not "
            f"committed: a batch that is decided anew may differ from what is there, so do not delete the decision; "
            f"{_ANOTHER_ID}"
        )
    elif damaged.there:
        yield (
            f"{_listed(damaged.there)} have {what}, and no other partition holds anything of it: the decision is not "
            f"needed any more. Copy the object elsewhere, and delete it: the query goes on behind that batch"
        )
    else:
        waiting = f" ({_listed(damaged.waiting)} hold segments of it)" if damaged.waiting else ""
        yield (
            f"no partition has {what}{waiting}: stop the query and whatever else writes under that id, copy the object "
            f"elsewhere, and delete it: the query stages the batch again and decides anew, and a sweep takes what "
            f"waits now (`tiered gc run --orphans`)"
        )


_ANOTHER_ID = (
    "go on under another `txnId` or checkpoint, and delete the object once nothing writes under this id any more"
)


def _listed(partitions: Sequence[TopicPartition | str]) -> str:
    more = len(partitions) - NAMED_PARTITIONS
    return ", ".join(str(each) for each in partitions[:NAMED_PARTITIONS]) + (f" and {more} more" if more > 0 else "")
