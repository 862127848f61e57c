"""``plan_repair`` and ``apply_repair`` on the calling thread."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.care.run import Place, open_place
from tiered.model import TopicPartition
from tiered.repair.engine import plan_repair_steps, repair_steps
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.store.runner import Runner


def plan_repair(
    store: Place, selected: Sequence[str | TopicPartition] = (), options: RepairOptions = RepairOptions()
) -> RepairPlan:
    """Find what is wrong with topics or partitions of a bucket, all if none is named, and plan its repair.

    ``store`` is a store, a URL or a path. Changes nothing. Raises UnknownTopicError, NotFoundError, and CorruptionError
    where the operator must choose.
    """
    with open_place(store) as asked:
        return Runner(asked).run(plan_repair_steps(selected, options))


def apply_repair(store: Place, plan: RepairPlan) -> int:
    """Carry out a plan, and return how many of its actions were carried out. What was done by an error stays done.

    Raises ConfigError if the bucket or the disk changed since the plan was made, FencedError, CorruptionError.
    """
    with open_place(store) as asked:
        return Runner(asked).run(repair_steps(plan))
