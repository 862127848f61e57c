"""``plan_repair`` and ``apply_repair`` on the calling thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from tiered.care.run import Place, open_place
from tiered.model import TopicPartition
from tiered.repair.engine import plan_repair_steps, repair_steps
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.store.runner import Runner


def plan_repair(
    store: Place | None = None,
    selected: Sequence[str | TopicPartition] = (),
    options: RepairOptions = RepairOptions(),
) -> RepairPlan:
    """Find what is wrong with topics or partitions, all if none is named, and plan its repair.

    ``store`` is a store, a URL or a path; without one ``options.log_dir`` alone is looked at. Changes nothing. Raises
    UnknownTopicError, NotFoundError, and CorruptionError where the operator must choose.
    """
    with _opened(store) as runner:
        return runner.run(plan_repair_steps(selected, options, remote=store is not None))


def apply_repair(store: Place | None, plan: RepairPlan) -> int:
    """Carry out a plan, and return how many of its actions were carried out. What was done by an error stays done.

    Raises ConfigError if the bucket or the disk changed since the plan was made, FencedError, CorruptionError.
    """
    with _opened(store) as runner:
        return runner.run(repair_steps(plan))


@contextlib.contextmanager
def _opened(store: Place | None) -> Iterator[Runner]:
    if store is None:
        yield Runner()
        return
    with open_place(store) as asked:
        yield Runner(asked)
