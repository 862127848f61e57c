"""Plan the repair of the objects beside a root: copies below ``hist/``, snapshots, pins and decisions of sinks.

A damaged one comes back from a version. Without a version a copy, a snapshot or a pin is deleted, after a copy of its
bytes went to ``aside/``. A decision is named with its batch: only its sink can write it again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

from tiered.check.findings import Severity
from tiered.check.kept import KINDS, check_decisions, decode_beside, read_beside
from tiered.errors import CorruptionError, TieredError
from tiered.format.decision import decode_decision
from tiered.format.framed_object import MAX_OBJECT_BYTES
from tiered.format.keys import aside_key, parse_decision_key
from tiered.remote.root_view import RootView
from tiered.remote.topics import list_topics
from tiered.repair.aside import keep_copy
from tiered.repair.bench import Workbench
from tiered.repair.plan import NO_PARTITION, RepairAction
from tiered.repair.segments import Ground
from tiered.repair.versions import Stored, restored
from tiered.store.base import Delete, Head, NewId, Object, Steps


def plan_kept(ground: Ground) -> Steps[list[RepairAction]]:
    """Return the actions for copies, snapshots and pins of one partition. Raises ConfigError for a newer release's."""
    topic_id, tp = ground.entry.topic_id, ground.tp
    view = RootView(topic_id, tp.partition, tp.topic)
    actions: list[RepairAction] = []
    for folder, what in KINDS.items():
        for each in (yield from read_beside(view, folder)):
            if each.flaw is not None and not isinstance(each.flaw, CorruptionError):
                raise each.flaw
            if each.flaw is not None:
                remedy, act = "delete it: no version of it is whole", partial(_delete, ground, each.key)
                without = RepairAction(tp, each.key, f"the {what} is damaged: {each.flaw.message}", remedy, act=act)
                stored = Stored(topic_id, tp.partition, each.key, 0, 0, each.etag)
                actions.append((yield from _version_or(without, stored, partial(decode_beside, view, key=each.key))))
    return actions


def _version_or(without: RepairAction, stored: Stored, decode: Callable[[bytes], object]) -> Steps[RepairAction]:
    """Return the action that puts a version back, or ``without`` if there is none."""

    def fits(data: bytes) -> bool:
        try:
            decode(data)
        except TieredError:
            return False
        return True

    found = yield from restored(without.tp, stored, without.problem, fits, MAX_OBJECT_BYTES)
    return without if found is None else found[0]


def _delete(ground: Ground, key: str, _: Workbench) -> Steps[None]:
    if (yield from keep_copy(key, aside_key(ground.entry.topic_id, ground.tp.partition, (yield NewId())))):
        yield Delete((key,))


def plan_decisions() -> Steps[list[RepairAction]]:
    """Return the actions for damaged decisions of sinks. They belong to no partition.

    A copy of a replaced decision is stored below ``aside/`` of the first topic.
    """
    actions: list[RepairAction] = []
    entries = yield from list_topics({})
    topic_id = entries[0].topic_id if entries else UUID(int=0)
    for found in (yield from check_decisions()):
        key, parsed = found.where, parse_decision_key(found.where)
        if parsed is None or found.severity is not Severity.ERROR:
            continue
        problem = f"the decision of batch {parsed.batch} of {parsed.txn} is damaged"
        remedy = "put it back from a backup; its sink can commit no later batch before that"
        head = yield Head(key)
        stored = Stored(topic_id, 0, key, 0, 0, head.etag if isinstance(head, Object) else "")
        without = RepairAction(NO_PARTITION, key, problem, remedy)
        actions.append((yield from _version_or(without, stored, partial(decode_decision, key=key))))
    return actions
