"""The steps of a repair: plan it from what the bucket and the disk hold, then carry the plan out."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.errors import NotFoundError, UnknownTopicError
from tiered.model import TopicPartition
from tiered.remote.catalog import Catalog
from tiered.remote.fence import owner_of
from tiered.remote.topics import list_topic_names, load_topic
from tiered.repair.bench import Workbench
from tiered.repair.plan import Action, RepairOptions, RepairPlan
from tiered.repair.segments import Ground, plan_segments
from tiered.store.base import Steps


def plan_repair_steps(selected: Sequence[str | TopicPartition], options: RepairOptions) -> Steps[RepairPlan]:
    """Find what is wrong with topics or partitions, all of them if none is named. Changes nothing.

    Raises UnknownTopicError, NotFoundError, CorruptionError where two states are possible and the operator must choose.
    """
    bench = Workbench(options.from_dir, "")
    actions: list[Action] = []
    try:
        for each in selected or (yield from list_topic_names()):
            actions += yield from _plan_topic(each, options, bench)
    finally:
        bench.close()
    return RepairPlan(options, tuple(actions))


def _plan_topic(selected: str | TopicPartition, options: RepairOptions, bench: Workbench) -> Steps[list[Action]]:
    name = selected if isinstance(selected, str) else selected.topic
    entry = yield from load_topic(name)
    if entry is None or (isinstance(selected, TopicPartition) and selected.partition >= entry.partitions):
        raise UnknownTopicError(f"{selected} is not in the registry", hint="`tiered topics list` names the topics")
    partitions = range(entry.partitions) if isinstance(selected, str) else [selected.partition]
    actions: list[Action] = []
    for partition in partitions:
        tp = TopicPartition(name, partition)
        ground = Ground(tp, entry, options, (yield from bench.view()))
        pinned = yield from Catalog(entry.topic_id, partition, name, known=entry.known).pin()
        if pinned is None:
            raise NotFoundError(f"{tp} has no catalog yet", hint="nothing was uploaded")
        actions += yield from plan_segments(ground, pinned)
    return actions


def repair_steps(plan: RepairPlan) -> Steps[int]:
    """Carry out a plan, action by action, and return how many. An action that was carried out stays so.

    Raises ConfigError if the bucket or the disk changed since the plan was made, FencedError, CorruptionError.
    """
    bench = Workbench(plan.options.from_dir, owner_of("repair"))
    done = 0
    try:
        for action in plan.actions:
            if action.act is not None:
                yield from action.act(bench)
                done += 1
    finally:
        bench.close()
    return done
