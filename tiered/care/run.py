"""``check``, ``restore``, ``rejoin`` and advice: the steps driven on the calling thread.

A store is named as ``tiered.open`` names it (``s3://bucket/prefix``, ``file:///dir``, a path), or is an open ``Store``.
What is not said of S3 comes from the environment (``TIERED_ENDPOINT_URL``, ``AWS_REGION`` and so on).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Unpack
from uuid import UUID

from tiered import arguments
from tiered.care.check import CheckOptions, CheckReport, check_steps
from tiered.care.enroll import EntryPlan, entry_steps, plan_entry_steps
from tiered.care.go_back import plan_return_steps, version_with_steps
from tiered.care.mend import MendPlan, mend_steps, plan_mend_steps
from tiered.care.put_back import PutBackPlan, plan_put_back_steps, put_back_steps
from tiered.care.rebuild import RebuildPlan, plan_rebuild_steps, rebuild_steps
from tiered.care.rejoin import RejoinPlan, plan_rejoin_steps, rejoin_steps
from tiered.care.repair_advice import Advised, advise_steps
from tiered.care.restore import RestoreReport, restore_steps
from tiered.care.restore_plan import RestoreOptions
from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.config import S3Keywords
from tiered.findings import Finding, Passed
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.files import Files, PosixFiles
from tiered.model import Row, TopicPartition
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


def advise(store: Place, local: LocalLog | str | Path | None, topics: Collection[str] = ()) -> Advised:
    """Everything that is lost, of ``topics`` or of all, and what ``store`` refused to show.

    Lists the bucket. Raises what the store raises, RemotePermissionError only if nothing may be looked at.
    """
    with open_place(store) as asked, open_disk(local) as log:
        return Runner(asked).run(advise_steps(asked.url, log, topics))


def plan_rebuild(
    store: Place, tp: TopicPartition, owner: str, *, accept_loss: bool = False, accept_order: bool = False
) -> RebuildPlan:
    """The catalog that a partition's root would be made anew as, from ``hist/`` and the objects. Changes nothing.

    ``accept_loss``: offsets that are in no object become holes, which the plan names. ``accept_order``: batches of
    sinks come in the order of their decisions where nothing tells in which they were committed; the plan names their
    offsets. Lists the partition, and reads the decisions of sinks. Raises UnknownTopicError, ConfigError if the root is
    whole, CorruptionError where the objects contradict each other, offsets are in none of them, or an order is not
    proven.
    """
    with open_place(store) as asked:
        return Runner(asked).run(plan_rebuild_steps(tp, owner, accept_loss=accept_loss, accept_order=accept_order))


def plan_return(store: Place, tp: TopicPartition, version: int, owner: str) -> RebuildPlan:
    """An older version of a partition's catalog, with what was appended since: :func:`rebuild` makes it the newest.

    Changes nothing; lists the partition. Raises UnknownTopicError, NotFoundError (not kept, or collected since),
    ConfigError (not older, or what came since does not continue it), CorruptionError (an object of it is lost).
    """
    with open_place(store) as asked:
        return Runner(asked).run(plan_return_steps(tp, version, owner))


def version_with(store: Place, tp: TopicPartition, lost: Sequence[Row]) -> int:
    """The newest version for :func:`plan_return` that has other segments in place of all of ``lost``, which a rewrite
    made and no object holds; 0 without one."""
    with open_place(store) as asked:
        return Runner(asked).run(version_with_steps(tp, lost))


def plan_mend(
    store: Place, tp: TopicPartition, offsets: Sequence[int] = (), *, drop: bool = False, accept_loss: bool = False
) -> MendPlan:
    """Segments that would be written anew: those that hold ``offsets``, or all that are not what the catalog names.

    ``drop``: what cannot be read of them is given up, which the plan names; ``accept_loss``: where an object of the
    same name and size lies under another prefix, too. Lists the bucket where something is lost; changes nothing. Raises
    UnknownTopicError, NotFoundError, ConfigError if nothing is wrong, such an object lies elsewhere, or ``accept_loss``
    is asked for without ``drop``, CorruptionError if something would be lost without ``drop``.
    """
    with open_place(store) as asked:
        return Runner(asked).run(plan_mend_steps(tp, offsets, drop=drop, accept_loss=accept_loss, url=asked.url))


def mend(store: Place, plan: MendPlan, owner: str) -> int:
    """Carries the plan out, as a maintainer; gives the version of the catalog that names the new objects.

    Raises FencedError, ConfigError if the catalog is another one by now; what was mended by then stays so.
    """
    with open_place(store) as asked:
        return Runner(asked).run(mend_steps(plan, owner))


def plan_put_back(store: Place, tp: TopicPartition, directory: str | Path, offsets: Sequence[int] = ()) -> PutBackPlan:
    """Segments whose object is gone or damaged, and which of them a log directory still holds. Changes nothing.

    ``offsets`` name segments whose bytes are read. Raises UnknownTopicError, NotFoundError, ConfigError if nothing is
    wrong, CorruptionError if the directory is another topic's.
    """
    with open_place(store) as asked:
        return Runner(asked).run(plan_put_back_steps(tp, arguments.path("directory", directory), offsets))


def put_back(store: Place, plan: PutBackPlan) -> int:
    """Puts the bytes that the directory holds under the names that the catalog has for them; gives how many objects.

    Raises ConfigError if bucket or disk hold other bytes by now, CorruptionError; what was put back by then stays so.
    """
    with open_place(store) as asked:
        return Runner(asked).run(put_back_steps(plan))


def plan_entry(store: Place, topic: str, topic_id: UUID | None = None) -> EntryPlan:
    """The registry entry that the roots of a topic tell of. Changes nothing; lists the bucket.

    Raises NotFoundError (there is no root of it), ConfigError if the entry is right, CorruptionError if several topic
    ids are in use under the name: ``topic_id`` chooses.
    """
    with open_place(store) as asked:
        return Runner(asked).run(plan_entry_steps(topic, topic_id))


def put_entry(store: Place, plan: EntryPlan) -> None:
    """Carries the plan out, by compare-and-swap; what lies there is copied aside first. Raises ConfigError if that is
    another one by now, CommitUnknown."""
    with open_place(store) as asked:
        Runner(asked).run(entry_steps(plan))


def rebuild(store: Place, plan: RebuildPlan) -> None:
    """Carries the plan out, by compare-and-swap; a root that is damaged is copied aside first.

    Raises ConfigError if the root is not what the plan saw, CommitUnknown, RemoteUnavailableError.
    """
    with open_place(store) as asked:
        Runner(asked).run(rebuild_steps(plan))


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


@contextlib.contextmanager
def open_disk(local: LocalLog | str | Path | None) -> Iterator[LocalLog | None]:
    """Opens a log directory to look at it, and closes it; one that is open stays so."""
    if not isinstance(local, str | os.PathLike):
        yield local
        return
    with LocalLog.open(arguments.path("local", local), read_only=True) as log:
        yield log


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
