"""``check``, ``restore``, ``rejoin`` and ``repair`` for asyncio: the same steps, the disk on threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tiered import arguments
from tiered.checking.check import CheckOptions, CheckReport, check_steps
from tiered.clock import SystemClock, SystemIds
from tiered.findings import OnFinding, Progress, handed_on
from tiered.local.disk.files import PosixFiles
from tiered.repair.engine import plan_repair_steps, repair_steps
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.repair.rejoin import RejoinPlan, plan_rejoin_steps, rejoin_steps
from tiered.restoring.plan import RestoreOptions
from tiered.restoring.restore import RestoreReport, restore_steps
from tiered.store.aio_runner import AioRunner
from tiered.store.place import LOOK, locate

if TYPE_CHECKING:
    from tiered.clock import Clock, IdSource
    from tiered.config import S3Keywords
    from tiered.local.disk.files import Files
    from tiered.model import TopicPartition
    from tiered.store.base import AioStore

    Place = AioStore | str | Path


async def check(
    log_dir: str | Path | None,
    store: Place | None,
    options: CheckOptions = CheckOptions(),
    *,
    files: Files | None = None,
    progress: Progress | None = None,
    on_finding: OnFinding | None = None,
    **s3: Unpack[S3Keywords],
) -> CheckReport:
    """Run ``tiered.check``."""
    directory = None if log_dir is None else arguments.path("log_dir", log_dir)
    async with contextlib.AsyncExitStack() as opened:
        asked = None if store is None else await opened.enter_async_context(open_place(store, s3))
        steps = check_steps(directory, None if asked is None else asked.url, options, files or PosixFiles())
        return await AioRunner(asked).run(steps, handed_on(progress, on_finding))


async def restore(
    store: Place,
    directory: str | Path,
    options: RestoreOptions = RestoreOptions(),
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    files: Files | None = None,
    progress: Progress | None = None,
    **s3: Unpack[S3Keywords],
) -> RestoreReport:
    """Run ``tiered.restore``. Cancelled, it leaves only files that were complete by then."""
    target = arguments.path("directory", directory)
    clock, ids = clock or SystemClock(), ids or SystemIds()
    async with open_place(store, s3) as asked:
        steps = restore_steps(asked.url, target, options, clock=clock, ids=ids, files=files or PosixFiles())
        return await AioRunner(asked, clock, ids).run(steps, handed_on(progress))


async def plan_rejoin(
    directory: str | Path, selected: Collection[TopicPartition] = (), *, clock: Clock | None = None
) -> RejoinPlan:
    """Run ``tiered.plan_rejoin``."""
    return await AioRunner().run(
        plan_rejoin_steps(arguments.path("directory", directory), selected, clock or SystemClock())
    )


async def rejoin(plan: RejoinPlan, *, clock: Clock | None = None, files: Files | None = None) -> None:
    """Run ``tiered.rejoin``. A cancellation takes effect only after its end."""
    await AioRunner().run(rejoin_steps(plan, clock or SystemClock(), files or PosixFiles()))


async def plan_repair(
    store: Place | None = None,
    selected: Sequence[str | TopicPartition] = (),
    options: RepairOptions = RepairOptions(),
) -> RepairPlan:
    """Run ``tiered.plan_repair``."""
    async with contextlib.AsyncExitStack() as opened:
        asked = None if store is None else await opened.enter_async_context(open_place(store))
        return await AioRunner(asked).run(plan_repair_steps(selected, options, remote=store is not None))


async def apply_repair(store: Place | None, plan: RepairPlan) -> int:
    """Run ``tiered.apply_repair``. Cancelled, it leaves complete repairs only."""
    async with contextlib.AsyncExitStack() as opened:
        asked = None if store is None else await opened.enter_async_context(open_place(store))
        return await AioRunner(asked).run(repair_steps(plan))


@contextlib.asynccontextmanager
async def open_place(place: Place, s3: S3Keywords | None = None) -> AsyncIterator[AioStore]:
    """Open a store as ``tiered.store.place.open_place`` does. One that is open already is not closed."""
    if not isinstance(place, str | os.PathLike):
        yield arguments.has("store", place, ("execute",), "a URL, a path or an open store")
        return
    store = locate(place, s3 or {}).open_aio(LOOK)
    try:
        yield store
    finally:
        await store.close()
