"""``check``, ``restore``, ``rejoin`` and advice for asyncio: the same steps, the disk on threads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from tiered.care.accept_loss import LossPlan, accept_loss_steps, plan_loss_steps
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
from tiered.care.run import OnFinding, Progress, handed_on
from tiered.clock import SystemClock, SystemIds
from tiered.local.disk.files import PosixFiles
from tiered.store.aio_runner import AioRunner

if TYPE_CHECKING:
    from tiered.clock import Clock, IdSource
    from tiered.local.directory.manager import LocalLog
    from tiered.local.disk.files import Files
    from tiered.model import TopicPartition
    from tiered.store.base import AioStore


async def check(
    log_dir: Path | None,
    store: AioStore | None,
    options: CheckOptions = CheckOptions(),
    *,
    files: Files | None = None,
    progress: Progress | None = None,
    on_finding: OnFinding | None = None,
) -> CheckReport:
    """As ``tiered.check``."""
    url = store.url if store is not None else None
    return await AioRunner(store).run(
        check_steps(log_dir, url, options, files or PosixFiles()), handed_on(progress, on_finding)
    )


async def restore(
    store: AioStore,
    directory: Path,
    options: RestoreOptions = RestoreOptions(),
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    files: Files | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """As ``tiered.restore``; cancelled, it leaves nothing behind but what was whole by then."""
    steps = restore_steps(
        store.url, directory, options, clock=clock or SystemClock(), ids=ids or SystemIds(), files=files or PosixFiles()
    )
    return await AioRunner(store, clock, ids).run(steps, handed_on(progress))


async def plan_rejoin(directory: Path, selected: Collection[TopicPartition] = (), *, clock: Clock) -> RejoinPlan:
    """As ``tiered.plan_rejoin``."""
    return await AioRunner().run(plan_rejoin_steps(directory, selected, clock))


async def plan_loss(directory: Path, tp: TopicPartition, *, files: Files | None = None) -> LossPlan:
    """As ``tiered.care.run.plan_loss``."""
    return await AioRunner().run(plan_loss_steps(directory, tp, files or PosixFiles()))


async def accept_loss(plan: LossPlan, *, clock: Clock, files: Files | None = None) -> None:
    """As ``tiered.care.run.accept_loss``; cancelled, it ends first."""
    await AioRunner().run(accept_loss_steps(plan, clock, files or PosixFiles()))


async def rejoin(plan: RejoinPlan, *, clock: Clock, files: Files | None = None) -> None:
    """As ``tiered.rejoin``; cancelled, it ends first."""
    await AioRunner().run(rejoin_steps(plan, clock, files or PosixFiles()))


async def advise(store: AioStore, local: LocalLog | None, topics: Collection[str] = ()) -> Advised:
    """As ``tiered.advise``."""
    return await AioRunner(store).run(advise_steps(store.url, local, topics))


async def plan_rebuild(
    store: AioStore, tp: TopicPartition, owner: str, *, accept_loss: bool = False, accept_order: bool = False
) -> RebuildPlan:
    """As ``tiered.plan_rebuild``."""
    steps = plan_rebuild_steps(tp, owner, accept_loss=accept_loss, accept_order=accept_order)
    return await AioRunner(store).run(steps)


async def plan_return(store: AioStore, tp: TopicPartition, version: int, owner: str) -> RebuildPlan:
    """As ``tiered.plan_return``."""
    return await AioRunner(store).run(plan_return_steps(tp, version, owner))


async def plan_mend(
    store: AioStore, tp: TopicPartition, offsets: Sequence[int] = (), *, drop: bool = False, accept_loss: bool = False
) -> MendPlan:
    """As ``tiered.plan_mend``."""
    steps = plan_mend_steps(tp, offsets, drop=drop, accept_loss=accept_loss, url=store.url)
    return await AioRunner(store).run(steps)


async def mend(store: AioStore, plan: MendPlan, owner: str) -> int:
    """As ``tiered.mend``."""
    return await AioRunner(store).run(mend_steps(plan, owner))


async def plan_put_back(
    store: AioStore, tp: TopicPartition, directory: Path, offsets: Sequence[int] = ()
) -> PutBackPlan:
    """As ``tiered.plan_put_back``."""
    return await AioRunner(store).run(plan_put_back_steps(tp, directory, offsets))


async def put_back(store: AioStore, plan: PutBackPlan) -> int:
    """As ``tiered.put_back``."""
    return await AioRunner(store).run(put_back_steps(plan))


async def plan_entry(store: AioStore, topic: str, topic_id: UUID | None = None) -> EntryPlan:
    """As ``tiered.plan_entry``."""
    return await AioRunner(store).run(plan_entry_steps(topic, topic_id))


async def put_entry(store: AioStore, plan: EntryPlan) -> None:
    """As ``tiered.put_entry``."""
    await AioRunner(store).run(entry_steps(plan))


async def rebuild(store: AioStore, plan: RebuildPlan) -> None:
    """As ``tiered.rebuild``."""
    await AioRunner(store).run(rebuild_steps(plan))
