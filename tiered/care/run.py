"""``check``, ``restore`` and ``rejoin``: the steps driven on the calling thread.

A store is named as ``tiered.open`` names it (``s3://bucket/prefix``, ``file:///dir``, a path), or is an open ``Store``.
What is not said of S3 comes from the environment (``TIERED_ENDPOINT_URL``, ``AWS_REGION`` and so on).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Unpack

from tiered import arguments
from tiered.care.check import CheckOptions, CheckReport, check_steps
from tiered.care.rejoin import RejoinPlan, plan_rejoin_steps, rejoin_steps
from tiered.care.restore import RestoreReport, restore_steps
from tiered.care.restore_plan import RestoreOptions
from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.config import S3Keywords
from tiered.findings import Finding, Passed
from tiered.local.disk.files import Files, PosixFiles
from tiered.model import TopicPartition
from tiered.store.base import Store
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from tiered.store.runner import Runner

Place = Store | str | Path
"""An open store, or the URL or path of one, which is opened for the call."""
LOOK = StoreOptions(create=False)
"""How it is opened: no folder is made."""

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all (0: not known) and the partition under way."""
OnFinding = Callable[[Finding], None]


def check(
    log_dir: str | Path | None,
    store: Place | None,
    options: CheckOptions = CheckOptions(),
    *,
    files: Files | None = None,
    progress: Progress | None = None,
    on_finding: OnFinding | None = None,
    **s3: Unpack[S3Keywords],
) -> CheckReport:
    """Looks at a log directory, a bucket or both. ``on_finding`` gets each finding as it is made.

    Raises ``NotFoundError`` (no such directory), ``UnknownTopicError``, and what the store raises when it cannot be
    asked: a check that could not look is an error, never a clean report.
    """
    directory = None if log_dir is None else arguments.path("log_dir", log_dir)
    with contextlib.ExitStack() as opened:
        asked = None if store is None else opened.enter_context(open_place(store, s3))
        steps = check_steps(directory, None if asked is None else asked.url, options, files or PosixFiles())
        return Runner(asked).run(steps, handed_on(progress, on_finding))


def restore(
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
    """Builds ``directory`` from ``store``. Raises ``ConfigError`` if it exists and is not empty, ``UnknownTopicError``,
    ``NotFoundError`` (no topics in the bucket), ``DiskFullError`` before the first byte is fetched,
    ``CorruptionError`` for objects that are not what the catalog says, for a root that is lost, and for a bucket that
    holds more than its registry names: less than all is restored only of what was selected. On an error nothing is
    left behind.
    """
    target = arguments.path("directory", directory)
    clock, ids = clock or SystemClock(), ids or SystemIds()
    with open_place(store, s3) as asked:
        steps = restore_steps(asked.url, target, options, clock=clock, ids=ids, files=files or PosixFiles())
        return Runner(asked, clock, ids).run(steps, handed_on(progress))


def plan_rejoin(
    directory: str | Path, selected: Collection[TopicPartition] = (), *, clock: Clock | None = None
) -> RejoinPlan:
    """The partitions of a log directory that are fenced or end below the bucket's end, or those selected.

    Changes nothing.

    Raises NotFoundError (no log there), UnknownTopicError, ConfigError (none is fenced and none was selected).
    """
    return Runner().run(plan_rejoin_steps(arguments.path("directory", directory), selected, clock or SystemClock()))


def rejoin(plan: RejoinPlan, *, clock: Clock | None = None, files: Files | None = None) -> None:
    """Carries the plan out, holding both locks of the directory. A crash in between is finished by running it again.

    Raises LockedError (the application or an uploader has the directory), NotFoundError, LocalIOError.
    """
    Runner().run(rejoin_steps(plan, clock or SystemClock(), files or PosixFiles()))


@contextlib.contextmanager
def open_place(place: Place, s3: S3Keywords | None = None) -> Iterator[Store]:
    """Opens a store that a URL or path names, and closes it. Raises NotFoundError for a folder that is no store."""
    if not isinstance(place, str | os.PathLike):
        yield arguments.has("store", place, ("execute",), "a URL, a path or an open store")
        return
    store = locate(place, s3 or {}).open(LOOK)
    try:
        yield store
    finally:
        store.close()


def locate(place: str | Path, s3: S3Keywords) -> StoreLocation:
    """The store at a URL or path. Raises NotFoundError for a folder that is none: a look must not make it one."""
    location = StoreLocation.parse(place, **s3)
    location.require_folder()
    return location


def handed_on(progress: Progress | None, on_finding: OnFinding | None = None) -> Callable[[Finding | Passed], None]:
    """Takes what steps emit to whoever wants to know."""
    done = total = 0

    def take(seen: Finding | Passed) -> None:
        nonlocal done, total
        if isinstance(seen, Passed):
            done += seen.size_bytes
            total = max(total, seen.total_bytes, done)
            if progress is not None and (seen.note or seen.size_bytes):
                progress(done, total, seen.note)
        elif on_finding is not None:
            on_finding(seen)

    return take
