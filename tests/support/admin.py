"""The steps of ``tiered.admin`` with an open store, options as values, and a disk of the test's."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tiered.check.check import CheckOptions, CheckReport, check_steps
from tiered.check.findings import OnFinding, Progress, emit_handler
from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.local.disk.files import Files, PosixFiles
from tiered.model import TopicPartition
from tiered.repair.engine import plan_repair_steps, repair_steps
from tiered.repair.log_directory import RejoinPlan, plan_rejoin_steps, rejoin_steps
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.restore.plan import RestoreOptions
from tiered.restore.restore import RestoreReport, restore_steps
from tiered.store.driver import Runner
from tiered.store.location import Place, open_place


def check(
    log_dir: str | Path | None,
    store: Place | None,
    options: CheckOptions = CheckOptions(),
    *,
    files: Files | None = None,
    progress: Progress | None = None,
    on_finding: OnFinding | None = None,
) -> CheckReport:
    with _runner(store) as runner:
        directory, url = None if log_dir is None else Path(log_dir), None if runner.store is None else runner.store.url
        return runner.run(
            check_steps(directory, url, options, files or PosixFiles()), emit_handler(progress, on_finding)
        )


def restore(
    store: Place,
    directory: str | Path,
    options: RestoreOptions = RestoreOptions(),
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    files: Files | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    clock, ids, files = clock or SystemClock(), ids or SystemIds(), files or PosixFiles()
    with open_place(store, {}) as asked:
        steps = restore_steps(asked.url, Path(directory), options, clock=clock, ids=ids, files=files)
        return Runner(asked, clock, ids).run(steps, emit_handler(progress))


def plan_repair(
    store: Place | None = None,
    selected: Sequence[str | TopicPartition] = (),
    options: RepairOptions = RepairOptions(),
) -> RepairPlan:
    with _runner(store) as runner:
        url = None if runner.store is None else runner.store.url
        return runner.run(plan_repair_steps(selected, options, url))


def apply_repair(store: Place | None, plan: RepairPlan) -> int:
    with _runner(store) as runner:
        return runner.run(repair_steps(plan))


def plan_rejoin(
    directory: Path, selected: Collection[TopicPartition] = (), *, clock: Clock | None = None
) -> RejoinPlan:
    return Runner().run(plan_rejoin_steps(directory, selected, clock or SystemClock()))


def rejoin(plan: RejoinPlan, *, clock: Clock | None = None, files: Files | None = None) -> None:
    Runner().run(rejoin_steps(plan, clock or SystemClock(), files or PosixFiles()))


@contextlib.contextmanager
def _runner(store: Place | None) -> Iterator[Runner]:
    if store is None:
        yield Runner()
        return
    with open_place(store, {}) as asked:
        yield Runner(asked)
