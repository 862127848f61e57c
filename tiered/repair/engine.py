"""Steps of a repair: they make a plan from the bucket and the disk, and carry it out."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.arguments import chosen_partitions
from tiered.errors import ConfigError, CorruptionError, NotFoundError, TieredError
from tiered.format.root import STATE_DELETING
from tiered.model import TopicPartition
from tiered.remote.committer import owner_of
from tiered.remote.topics import list_topics, no_topics
from tiered.repair.disk import plan_disk
from tiered.repair.plan import Ground, RepairAction, RepairOptions, RepairPlan, Workbench
from tiered.repair.registry import find_unregistered, plan_entry
from tiered.repair.roots import plan_root, plan_shorter
from tiered.repair.segments import plan_segments
from tiered.repair.versions import plan_decisions, plan_kept
from tiered.store.base import Steps


def plan_repair_steps(
    selected: Sequence[str | TopicPartition], options: RepairOptions, url: str | None
) -> Steps[RepairPlan]:
    """Find the damage of topics or partitions, or of all if none is selected, and plan its repair. Changes nothing.

    ``url``: URL of the bucket; None: repair only the log directory of the options. Raises ConfigError without either,
    and UnknownTopicError for a topic that the bucket does not have. Raises NotFoundError for a missing log directory,
    and for a bucket without topics if there is no log directory.

    If a partition has two possible states, the operator must choose: CorruptionError is raised if it alone is selected.
    Otherwise it becomes an action without a remedy, and the other partitions are planned.
    """
    actions: list[RepairAction] = []
    if url is None and options.log_dir is None:
        raise ConfigError(
            "nothing to repair: neither a bucket nor a log directory is named", hint="pass log_dir, remote or both"
        )
    if url is not None:
        actions += yield from _plan_bucket(selected, options, url)
    if options.log_dir is not None:
        actions += yield from plan_disk(options.log_dir, selected, options, remote=url is not None)
    return RepairPlan(options, tuple(actions))


def _plan_bucket(
    selected: Sequence[str | TopicPartition], options: RepairOptions, url: str
) -> Steps[list[RepairAction]]:
    bench = Workbench(options.from_dir, "", options.log_dir)
    actions: list[RepairAction] = []
    try:
        if options.from_dir is not None:
            yield from bench.view()  # raises here, where it is the error of no topic
        names = selected or (yield from _all_topics())
        if not names and options.log_dir is None:
            raise no_topics(url)
        alone = len(names) == 1 and isinstance(names[0], TopicPartition)
        for each in names:
            steps = _plan_topic(each, options, bench, alone=alone)
            actions += yield from (steps if selected else _or_refused(steps, TopicPartition(str(each), -1)))
        if not selected:  # decisions belong to no topic
            actions += yield from plan_decisions()
    finally:
        bench.close()
    return actions


def _all_topics() -> Steps[list[str]]:
    """Return the names of all topics, also of those whose registry entry is missing or cannot be read."""
    unreadable: dict[str, TieredError] = {}
    entries = yield from list_topics(unreadable)
    return sorted({*unreadable, *(entry.name for entry in entries), *(yield from find_unregistered())})


def _or_refused(steps: Steps[list[RepairAction]], tp: TopicPartition) -> Steps[list[RepairAction]]:
    """Return the actions of ``steps``, or one without a remedy that says why they are refused."""
    try:
        return (yield from steps)
    except (CorruptionError, ConfigError, NotFoundError) as refused:
        where = refused.path_or_key if isinstance(refused, CorruptionError) else str(tp)
        return [RepairAction(tp, where, refused.message, refused.hint or "nothing was changed")]


def _plan_topic(
    selected: str | TopicPartition, options: RepairOptions, bench: Workbench, *, alone: bool
) -> Steps[list[RepairAction]]:
    name = selected if isinstance(selected, str) else selected.topic
    entry, actions = yield from plan_entry(name)
    chosen = selected.partition if isinstance(selected, TopicPartition) else None
    partitions = chosen_partitions(name, entry.partitions, chosen)
    if entry.state == STATE_DELETING:
        return actions  # its partitions go, one after the other
    for partition in partitions:
        ground = Ground(TopicPartition(name, partition), entry, options, (yield from bench.view()))
        steps = _plan_partition(ground)
        actions += yield from (steps if alone else _or_refused(steps, ground.tp))
    return actions


def _plan_partition(ground: Ground) -> Steps[list[RepairAction]]:
    roots, pinned = yield from plan_root(ground)
    segments = (yield from plan_segments(ground, pinned)) if pinned is not None else []
    if not roots and any(each.lost for each in segments):
        roots, pinned = yield from plan_shorter(ground)
        if roots:
            segments = (yield from plan_segments(ground, pinned)) if pinned is not None else []
    kept = yield from plan_kept(ground)
    return [*roots, *segments, *kept]


def repair_steps(plan: RepairPlan) -> Steps[int]:
    """Carry out the actions of a plan that have a remedy. Return their number. After an error, completed ones stay.

    Raises ConfigError if the bucket or the disk changed since the plan was made, and CorruptionError for new damage.
    Raises FencedError if another maintainer claimed the partition meanwhile, LockedError if the log directory is open.
    """
    bench = Workbench(plan.options.from_dir, owner_of("repair"), plan.options.log_dir)
    done = 0
    try:
        for action in plan.actions:
            if action.act is not None:
                yield from action.act(bench)
                done += 1
    finally:
        bench.close()
    return done
