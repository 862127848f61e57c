"""``check``, ``restore``, ``rejoin`` and advice for asyncio: the same steps, the disk on threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack
from uuid import UUID

from tiered import arguments
from tiered.care.check import CheckOptions, CheckReport, check_steps
from tiered.care.enroll import EntryPlan, entry_steps, plan_entry_steps
from tiered.care.go_back import plan_return_steps
from tiered.care.mend import MendPlan, mend_steps, plan_mend_steps
from tiered.care.put_back import PutBackPlan, plan_put_back_steps, put_back_steps
from tiered.care.rebuild import RebuildPlan, plan_rebuild_steps, rebuild_steps
from tiered.care.rejoin import RejoinPlan, plan_rejoin_steps, rejoin_steps
from tiered.care.repair_advice import Advised, advise_steps
from tiered.care.restore import RestoreReport, restore_steps
from tiered.care.restore_plan import RestoreOptions
from tiered.care.run import LOOK, OnFinding, Progress, handed_on, locate, open_disk
from tiered.clock import SystemClock, SystemIds
from tiered.local.disk.files import PosixFiles
from tiered.repair.engine import plan_repair_steps, repair_steps
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.store.aio_runner import AioRunner

if TYPE_CHECKING:
    from tiered.clock import Clock, IdSource
    from tiered.config import S3Keywords
    from tiered.local.directory.manager import LocalLog
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
    """As ``tiered.check``."""
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
    """As ``tiered.restore``; cancelled, it leaves nothing behind but what was whole by then."""
    target = arguments.path("directory", directory)
    clock, ids = clock or SystemClock(), ids or SystemIds()
    async with open_place(store, s3) as asked:
        steps = restore_steps(asked.url, target, options, clock=clock, ids=ids, files=files or PosixFiles())
        return await AioRunner(asked, clock, ids).run(steps, handed_on(progress))


async def plan_rejoin(
    directory: str | Path, selected: Collection[TopicPartition] = (), *, clock: Clock | None = None
) -> RejoinPlan:
    """As ``tiered.plan_rejoin``."""
    return await AioRunner().run(
        plan_rejoin_steps(arguments.path("directory", directory), selected, clock or SystemClock())
    )


async def rejoin(plan: RejoinPlan, *, clock: Clock | None = None, files: Files | None = None) -> None:
    """As ``tiered.rejoin``; cancelled, it ends first."""
    await AioRunner().run(rejoin_steps(plan, clock or SystemClock(), files or PosixFiles()))


async def advise(store: Place, local: LocalLog | str | Path | None, topics: Collection[str] = ()) -> Advised:
    """As ``tiered.advise``."""
    with open_disk(local) as log:
        async with open_place(store) as asked:
            return await AioRunner(asked).run(advise_steps(asked.url, log, topics))


async def plan_rebuild(
    store: Place, tp: TopicPartition, owner: str, *, accept_loss: bool = False, accept_order: bool = False
) -> RebuildPlan:
    """As ``tiered.plan_rebuild``."""
    steps = plan_rebuild_steps(tp, owner, accept_loss=accept_loss, accept_order=accept_order)
    async with open_place(store) as asked:
        return await AioRunner(asked).run(steps)


async def plan_return(store: Place, tp: TopicPartition, version: int, owner: str) -> RebuildPlan:
    """As ``tiered.plan_return``."""
    async with open_place(store) as asked:
        return await AioRunner(asked).run(plan_return_steps(tp, version, owner))


async def plan_mend(
    store: Place, tp: TopicPartition, offsets: Sequence[int] = (), *, drop: bool = False, accept_loss: bool = False
) -> MendPlan:
    """As ``tiered.plan_mend``."""
    async with open_place(store) as asked:
        steps = plan_mend_steps(tp, offsets, drop=drop, accept_loss=accept_loss, url=asked.url)
        return await AioRunner(asked).run(steps)


async def mend(store: Place, plan: MendPlan, owner: str) -> int:
    """As ``tiered.mend``."""
    async with open_place(store) as asked:
        return await AioRunner(asked).run(mend_steps(plan, owner))


async def plan_put_back(
    store: Place, tp: TopicPartition, directory: str | Path, offsets: Sequence[int] = ()
) -> PutBackPlan:
    """As ``tiered.plan_put_back``."""
    async with open_place(store) as asked:
        return await AioRunner(asked).run(plan_put_back_steps(tp, arguments.path("directory", directory), offsets))


async def put_back(store: Place, plan: PutBackPlan) -> int:
    """As ``tiered.put_back``."""
    async with open_place(store) as asked:
        return await AioRunner(asked).run(put_back_steps(plan))


async def plan_entry(store: Place, topic: str, topic_id: UUID | None = None) -> EntryPlan:
    """As ``tiered.plan_entry``."""
    async with open_place(store) as asked:
        return await AioRunner(asked).run(plan_entry_steps(topic, topic_id))


async def put_entry(store: Place, plan: EntryPlan) -> None:
    """As ``tiered.put_entry``."""
    async with open_place(store) as asked:
        await AioRunner(asked).run(entry_steps(plan))


async def rebuild(store: Place, plan: RebuildPlan) -> None:
    """As ``tiered.rebuild``."""
    async with open_place(store) as asked:
        await AioRunner(asked).run(rebuild_steps(plan))


async def plan_repair(
    store: Place, selected: Sequence[str | TopicPartition] = (), options: RepairOptions = RepairOptions()
) -> RepairPlan:
    """As ``tiered.plan_repair``."""
    async with open_place(store) as asked:
        return await AioRunner(asked).run(plan_repair_steps(selected, options))


async def apply_repair(store: Place, plan: RepairPlan) -> int:
    """As ``tiered.apply_repair``; cancelled, it leaves whole what was repaired by then."""
    async with open_place(store) as asked:
        return await AioRunner(asked).run(repair_steps(plan))


@contextlib.asynccontextmanager
async def open_place(place: Place, s3: S3Keywords | None = None) -> AsyncIterator[AioStore]:
    """As ``tiered.care.run.open_place``."""
    if not isinstance(place, str | os.PathLike):
        yield arguments.has("store", place, ("execute",), "a URL, a path or an open store")
        return
    store = locate(place, s3 or {}).open_aio(LOOK)
    try:
        yield store
    finally:
        await store.close()
