"""Operations of ``tiered.admin`` for asyncio: the same steps on the event loop, disk operations on threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar, Unpack

from tiered import arguments
from tiered.admin import D, Selected, SnapshotReport, snapshot_steps
from tiered.check.check import CheckOptions, CheckReport, check_steps
from tiered.check.findings import OnFinding, Progress, emit_handler
from tiered.clock import Clock, IdSource, SystemClock
from tiered.config import S3Keywords
from tiered.erase.topic import EraseReport, TopicErasePlan, erase_topic_steps, plan_named_topic
from tiered.local.disk.files import PosixFiles
from tiered.plan.erasure import Selection
from tiered.remote.committer import owner_of
from tiered.repair.engine import plan_repair_steps, repair_steps
from tiered.repair.log_directory import RejoinPlan, plan_rejoin_steps, rejoin_steps
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.restore.plan import RestoreOptions
from tiered.restore.restore import RestoreReport, restore_steps
from tiered.store.aio_driver import AioRunner
from tiered.store.base import AioStore
from tiered.store.location import LOOK, locate, location_of
from tiered.times import Time

__all__ = ["Plan", "check", "erase", "rejoin", "repair", "restore", "snapshot"]

R = TypeVar("R")
Place = AioStore | str | Path


class AsyncPlan(Generic[D, R]):
    """Plan of a change. ``details``: facts about the change. Nothing changes before ``await plan.apply()``."""

    def __init__(self, details: D, apply: Callable[[], Awaitable[R]]) -> None:
        self.details = details
        self._apply = apply

    def __repr__(self) -> str:
        return f"<Plan {self.details!r}>"

    def _repr_html_(self) -> str:
        return self.details._repr_html_()

    async def apply(self) -> R:
        """Make the planned change and return its result. Raises ConfigError if the log changed since the plan.

        Raises LockedError if the log directory is open, FencedError if another maintainer claims a partition.
        """
        return await self._apply()


Plan = AsyncPlan


async def check(
    log_dir: str | Path | None = None,
    remote: Place | None = None,
    topics: Sequence[str] = (),
    *,
    read_data: bool = False,
    subset: tuple[int, int] | None = None,
    progress: Progress | None = None,
    on_finding: OnFinding | None = None,
    **s3: Unpack[S3Keywords],
) -> CheckReport:
    """Check a log directory, a bucket or both. Changes nothing.

    ``topics`` empty: all. ``read_data``: read every byte of the bucket, and decode every record. ``subset``: (n, m)
    reads only the n-th of m parts of the bucket. ``progress``: called with (bytes read, bytes in all or 0, partition).
    ``on_finding``: called with each finding at once. Raises NotFoundError for a missing directory or bucket,
    UnknownTopicError, ConfigError for a wrong ``subset`` or if neither place is given, and RemoteUnavailableError if
    the store does not answer.
    """
    options = CheckOptions((topics,) if isinstance(topics, str) else tuple(topics), read_data, subset)
    directory = arguments.path_or_none("log_dir", log_dir)
    async with _runner(remote, s3) as runner:
        url = None if runner.store is None else runner.store.url
        return await runner.run(check_steps(directory, url, options, PosixFiles()), emit_handler(progress, on_finding))


async def restore(
    log_dir: str | Path,
    remote: Place,
    selected: Selected = (),
    *,
    newest_bytes: int | str | None = None,
    since: Time | None = None,
    as_of: Time | None = None,
    until: Time | None = None,
    end: int | None = None,
    name: str = "",
    pin: bool = False,
    if_empty: bool = False,
    dry_run: bool = False,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    progress: Progress | None = None,
    **s3: Unpack[S3Keywords],
) -> RestoreReport:
    """Build the new log directory ``log_dir`` from a bucket.

    ``selected``: topics and partitions; empty: all. ``newest_bytes``: fetch only the newest segments of each
    partition, of at most so many bytes, but at least one. ``since``: begin at the first segment with a record of this
    time or later. ``as_of``: restore an older state: a snapshot's name, a version or a time. ``until``: end each
    partition before the first record of this time or later. ``end``: exclusive end of the one selected partition.
    ``name``: new name of the one selected topic.
    ``pin``: protect the objects from garbage collection. ``if_empty``: leave a non-empty directory alone, without an
    error. ``dry_run``: only report. ``progress``: called with (bytes done, bytes in all or 0, partition). A
    cancelled call leaves the files that were complete by then.
    Asynchronous form of ``tiered.admin.restore``, with its errors.
    """
    target = arguments.path("log_dir", log_dir)
    clock, ids = arguments.clock_and_ids(clock, ids)
    chosen = arguments.selected(selected)
    others = {"as_of": as_of, "until_offset": end, "name": name, "pin": pin, "if_empty": if_empty, "dry_run": dry_run}
    options = RestoreOptions.checked(chosen, newest_bytes, since, until, clock.now_ms(), **others)
    async with open_place(remote, s3) as store:
        steps = restore_steps(store.url, target, options, clock=clock, ids=ids, files=PosixFiles())
        return await AioRunner(store, clock, ids).run(steps, emit_handler(progress))


async def repair(
    log_dir: str | Path | None = None,
    remote: Place | None = None,
    selected: Selected = (),
    *,
    from_dir: str | Path | None = None,
    to_version: int | None = None,
    from_version: int | None = None,
    accept_loss: bool = False,
    **s3: Unpack[S3Keywords],
) -> AsyncPlan[RepairPlan, int]:
    """Find damage in a log directory, a bucket or both, and plan its repair. ``apply()`` returns the number of repairs.

    ``selected``: topics and partitions; empty: all. ``from_dir``: a log directory that may have the records that the
    bucket lost; None: ``log_dir``. ``to_version``: version of the catalog to go back to. ``from_version``: version
    to restore, if two are possible. ``accept_loss``: give up records that no copy has. A cancelled ``apply()``
    leaves some repairs complete and none half done. Asynchronous form of ``tiered.admin.repair``, with its errors.
    """
    options = RepairOptions(
        arguments.path_or_none("from_dir", from_dir),
        to_version,
        from_version,
        accept_loss,
        arguments.path_or_none("log_dir", log_dir),
    )

    async def apply() -> int:
        async with _runner(remote, s3) as runner:
            return await runner.run(repair_steps(plan))

    async with _runner(remote, s3) as runner:
        url = None if runner.store is None else runner.store.url
        plan = await runner.run(plan_repair_steps(arguments.selected(selected), options, url))
    return AsyncPlan(plan, apply)


async def rejoin(
    log_dir: str | Path, selected: Selected = (), *, clock: Clock | None = None
) -> AsyncPlan[RejoinPlan, None]:
    """Plan that partitions of a log directory start again at the end of the bucket.

    ``apply()`` moves their local files to a directory next to ``log_dir``. ``selected``: partitions, no topic names;
    empty: those that are fenced or end below the bucket's end. A cancelled ``apply()`` is completed before the
    cancellation is raised. Asynchronous form of ``tiered.admin.rejoin``, with its errors.
    """
    clock = clock or SystemClock()
    chosen = arguments.selected_partitions(selected)
    plan = await AioRunner().run(plan_rejoin_steps(arguments.path("log_dir", log_dir), chosen, clock))
    return AsyncPlan(plan, lambda: AioRunner().run(rejoin_steps(plan, clock, PosixFiles())))


async def erase(
    remote: Place,
    topic: str,
    *,
    partition: int | None = None,
    keys: Iterable[bytes] = (),
    prefixes: Iterable[bytes] = (),
    before: Time | None = None,
    now: bool = False,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    **s3: Unpack[S3Keywords],
) -> AsyncPlan[TopicErasePlan, EraseReport]:
    """Plan the erasure of records by key, key prefix or time from the bucket. Reads every segment.

    ``partition`` None: all. ``keys``, ``prefixes``: keys, and first bytes of keys; both empty: any key. ``before``:
    only records older than this time. ``now``: delete the old objects without ``gc.grace.ms``. After a cancelled
    ``apply()``, another call completes the erasure. Asynchronous form of ``tiered.admin.erase``, with its errors.
    """
    clock, ids = arguments.clock_and_ids(clock, ids)
    selection = Selection.asked(keys, prefixes, before, clock.now_ms())

    async def apply() -> EraseReport:
        place = location_of(remote, s3) if isinstance(remote, str | Path) else None
        async with _runner(remote, s3, clock, ids) as runner:
            return await runner.run(erase_topic_steps(plan, owner_of("tiered.admin.erase"), place, now=now))

    async with _runner(remote, s3, clock, ids) as runner:
        plan = await runner.run(
            plan_named_topic(arguments.text("topic", topic), arguments.partition_or_none(partition), selection)
        )
    return AsyncPlan(plan, apply)


async def snapshot(
    remote: Place,
    name: str,
    selected: Selected = (),
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    **s3: Unpack[S3Keywords],
) -> SnapshotReport:
    """Store the bucket's current state as the snapshot ``name``. A cancelled call can be repeated.

    ``selected``: topics and partitions; empty: all. Raises ConfigError if every selected partition has this snapshot
    or the name is invalid, UnknownTopicError, NotFoundError and CommitUnknownError.
    """
    clock, ids = arguments.clock_and_ids(clock, ids)
    async with _runner(remote, s3, clock, ids) as runner:
        return await runner.run(snapshot_steps(name, arguments.selected(selected)))


@contextlib.asynccontextmanager
async def open_place(place: Place, s3: S3Keywords) -> AsyncIterator[AioStore]:
    """Return an asynchronous context manager that gives the store ``place``. ``s3``: settings of an S3 URL.

    A store that is opened from a URL or path is closed at the end. An open store stays open.
    """
    if not isinstance(place, str | os.PathLike):
        yield arguments.has("remote", place, ("execute",), "a URL, a path or an open store")
        return
    store = locate(place, s3).open_aio(LOOK)
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _runner(
    remote: Place | None, s3: S3Keywords, clock: Clock | None = None, ids: IdSource | None = None
) -> AsyncIterator[AioRunner]:
    if remote is None:
        yield AioRunner(None, clock, ids)
        return
    async with open_place(remote, s3) as store:
        yield AioRunner(store, clock, ids)
