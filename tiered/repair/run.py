"""``plan_repair``, ``apply_repair``, ``plan_rejoin`` and ``rejoin`` on the calling thread."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tiered import arguments
from tiered.clock import Clock, SystemClock
from tiered.local.disk.files import Files, PosixFiles
from tiered.model import TopicPartition
from tiered.repair.engine import plan_repair_steps, repair_steps
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.repair.rejoin import RejoinPlan, plan_rejoin_steps, rejoin_steps
from tiered.store.place import Place, open_place
from tiered.store.runner import Runner


def plan_repair(
    store: Place | None = None,
    selected: Sequence[str | TopicPartition] = (),
    options: RepairOptions = RepairOptions(),
) -> RepairPlan:
    """Find what is wrong with topics or partitions, all if none is named, and plan its repair.

    ``store`` is a store, a URL or a path; without one only ``options.log_dir`` is read. Changes nothing. Raises
    UnknownTopicError, NotFoundError, and CorruptionError where the operator must choose.
    """
    with _opened(store) as runner:
        return runner.run(plan_repair_steps(selected, options, remote=store is not None))


def apply_repair(store: Place | None, plan: RepairPlan) -> int:
    """Carry out a plan, and return how many of its actions were carried out. Actions before an error stay done.

    Raises ConfigError if the bucket or the disk changed since the plan was made, FencedError, CorruptionError.
    """
    with _opened(store) as runner:
        return runner.run(repair_steps(plan))


def plan_rejoin(
    directory: str | Path, selected: Collection[TopicPartition] = (), *, clock: Clock | None = None
) -> RejoinPlan:
    """Return the partitions of a log directory that are fenced or end below the bucket's end, or those selected.

    Changes nothing.

    Raises NotFoundError (no log there), UnknownTopicError, ConfigError (none is fenced and none was selected).
    """
    return Runner().run(plan_rejoin_steps(arguments.path("directory", directory), selected, clock or SystemClock()))


def rejoin(plan: RejoinPlan, *, clock: Clock | None = None, files: Files | None = None) -> None:
    """Carry the plan out, holding both locks of the directory. A crash in between is finished by running it again.

    Raises LockedError (the application or an uploader has the directory), NotFoundError, LocalIOError.
    """
    Runner().run(rejoin_steps(plan, clock or SystemClock(), files or PosixFiles()))


@contextlib.contextmanager
def _opened(store: Place | None) -> Iterator[Runner]:
    if store is None:
        yield Runner()
        return
    with open_place(store) as asked:
        yield Runner(asked)
