"""Plans the repair of what is kept beside a root: copies below ``hist/``, snapshots, pins and decisions of sinks.

A damaged one comes back from a version. Without a version a copy, a snapshot or a pin is deleted, after a copy of its
bytes went to ``aside/``. A decision is named with its batch: only its sink can write it again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

from tiered.errors import CorruptionError
from tiered.format.container import MAX_OBJECT_BYTES
from tiered.format.decision import decode_decision
from tiered.format.kept import decode_kept
from tiered.format.keys import (
    DECISIONS_PREFIX,
    aside_key,
    hist_prefix,
    is_pin_key,
    parse_decision_key,
    parse_hist_key,
    partition_prefix,
    snap_key,
)
from tiered.model import TopicPartition
from tiered.remote.past import survey_snapshots
from tiered.remote.pins import read_pin
from tiered.remote.root_view import RootView
from tiered.remote.topics import list_topics
from tiered.repair.aside import keep_copy
from tiered.repair.bench import Workbench
from tiered.repair.copies import believed
from tiered.repair.plan import NO_PARTITION, Action
from tiered.repair.segments import Ground
from tiered.repair.versions import Stored, restored
from tiered.store.base import Delete, Get, NewId, Object, Steps, list_all

Read = Callable[[bytes], object]
"""Decodes an object; raises CorruptionError for a damaged one."""


def plan_kept(ground: Ground) -> Steps[list[Action]]:
    """Return the actions for copies, snapshots and pins of one partition."""
    topic_id, tp = ground.entry.topic_id, ground.tp
    kept: list[tuple[str, str, Read]] = []
    for entry in (yield from list_all(hist_prefix(topic_id, tp.partition))):
        version = parse_hist_key(entry.key)
        if version is not None:
            kept.append((entry.key, "the copy of the root", partial(_read_copy, ground, entry.key, version)))
    _, damaged = yield from survey_snapshots(RootView(topic_id, tp.partition, tp.topic))
    for name in damaged:
        key = snap_key(topic_id, tp.partition, name)
        kept.append((key, f"snapshot {name}", partial(decode_kept, key=key)))
    pins = yield from list_all(partition_prefix(topic_id, tp.partition) + "pin/")
    kept += [(entry.key, "the pin", partial(read_pin, key=entry.key)) for entry in pins if is_pin_key(entry.key)]
    actions: list[Action] = []
    for key, what, read in kept:
        act, remedy = partial(_delete, ground, key), "delete it: no version of it is whole"
        actions += yield from _judged(tp, topic_id, read, Action(tp, key, f"{what} is damaged", remedy, act=act))
    return actions


def _read_copy(ground: Ground, key: str, version: int, data: bytes) -> None:
    root = believed(data, key, ground.entry.topic_id, ground.tp)
    if root is None or root.version != version:
        raise CorruptionError(f"{key} is not a copy of version {version}", path_or_key=key)


def _judged(tp: TopicPartition, topic_id: UUID, read: Read, without: Action) -> Steps[list[Action]]:
    """Return the action for an object that is damaged: a version of it, else ``without``."""
    key = without.where
    got = yield Get(key, max_bytes=MAX_OBJECT_BYTES)
    if not isinstance(got, Object) or _fits(read, got.data):
        return []
    stored = Stored(topic_id, max(tp.partition, 0), key, 0, 0, got.etag)
    found = yield from restored(tp, stored, without.problem, partial(_fits, read), MAX_OBJECT_BYTES)
    return [found[0] if found is not None else without]


def _fits(read: Read, data: bytes) -> bool:
    try:
        read(data)
    except CorruptionError:
        return False
    return True


def _delete(ground: Ground, key: str, _: Workbench) -> Steps[None]:
    if (yield from keep_copy(key, aside_key(ground.entry.topic_id, ground.tp.partition, (yield NewId())))):
        yield Delete((key,))


def plan_decisions() -> Steps[list[Action]]:
    """Return the actions for damaged decisions of sinks. They belong to no partition.

    What a version replaces is kept below ``aside/`` of the first topic.
    """
    actions: list[Action] = []
    entries = yield from list_topics({})
    topic_id = entries[0].topic_id if entries else UUID(int=0)
    for entry in (yield from list_all(DECISIONS_PREFIX)):
        parsed = parse_decision_key(entry.key)
        if parsed is not None:
            problem = f"the decision of batch {parsed.batch} of {parsed.txn} is damaged"
            remedy = "put it back from a backup; its sink can commit no later batch before that"
            left = Action(NO_PARTITION, entry.key, problem, remedy)
            actions += yield from _judged(NO_PARTITION, topic_id, partial(decode_decision, key=entry.key), left)
    return actions
