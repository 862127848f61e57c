"""Operations on whole logs, by paths and URLs as ``tiered.open`` takes them.

::

    report = tiered.admin.check("data/log", "s3://acme-logs/prod")
    plan = tiered.admin.repair(remote="s3://acme-logs/prod")      # nothing has changed yet
    print(plan)
    plan.apply()

``repair``, ``rejoin`` and ``erase`` change existing data: each returns a :class:`Plan`. The others return a report.
``selected`` names topics (``"flights"``) and partitions (``TopicPartition("flights", 0)``); empty means all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar, Unpack

from tiered import arguments
from tiered.check.check import CheckOptions, CheckReport, check_steps
from tiered.check.findings import OnFinding, Progress, emit_handler
from tiered.clock import Clock, IdSource, SystemClock
from tiered.config import S3Keywords
from tiered.display import html_table
from tiered.erase.topic import EraseReport, TopicErasePlan, erase_topic_steps, plan_named_topic
from tiered.errors import ConfigError, UnknownTopicError
from tiered.format.keys import check_snapshot_name
from tiered.format.root import STATE_DELETING
from tiered.local.disk.files import PosixFiles
from tiered.model import TopicPartition
from tiered.plan.erasure import Selection
from tiered.remote.committer import owner_of
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import KeptRoot, create_snapshot, load_snapshot
from tiered.remote.topics import TopicEntry, list_topics, load_topic_to_read
from tiered.repair.engine import plan_repair_steps, repair_steps
from tiered.repair.log_directory import RejoinPlan, plan_rejoin_steps, rejoin_steps
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.restore.plan import RestoreOptions
from tiered.restore.restore import RestoreReport, restore_steps
from tiered.store.base import Steps
from tiered.store.driver import Runner
from tiered.store.location import Place, location_of, open_place
from tiered.times import Time

__all__ = ["Plan", "check", "erase", "rejoin", "repair", "restore", "snapshot"]


class _Details(Protocol):
    """Facts about a planned change, which a notebook shows as HTML."""

    def _repr_html_(self) -> str: ...


D = TypeVar("D", bound=_Details)
R = TypeVar("R")
Selected = str | TopicPartition | Sequence[str | TopicPartition]


class Plan(Generic[D, R]):
    """Plan of a change. ``details``: facts about the change. Nothing changes before :meth:`apply`."""

    def __init__(self, details: D, apply: Callable[[], R]) -> None:
        self.details = details
        self._apply = apply

    def __repr__(self) -> str:
        return f"<Plan {self.details!r}>"

    def _repr_html_(self) -> str:
        return self.details._repr_html_()

    def apply(self) -> R:
        """Make the planned change and return its result. Raises ConfigError if the log changed since the plan.

        Raises LockedError if the log directory is open, FencedError if another maintainer claims a partition.
        """
        return self._apply()


def check(
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

    Args:
        topics: names of topics; empty: all.
        read_data: read every byte of the bucket, and decode every record of both tiers.
        subset: (n, m) reads only the n-th of m parts of the bucket.
        progress: called with (bytes read, bytes in all or 0, partition).
        on_finding: called with each finding at once.

    Raises:
        ConfigError: neither ``log_dir`` nor ``remote`` is given, or ``subset`` is wrong.
        NotFoundError: no such directory or bucket.
        UnknownTopicError: no such topic.
        RemoteUnavailableError: the store does not answer, so there is no report.
    """
    options = CheckOptions((topics,) if isinstance(topics, str) else tuple(topics), read_data, subset)
    directory = arguments.path_or_none("log_dir", log_dir)
    with _runner(remote, s3) as runner:
        url = None if runner.store is None else runner.store.url
        return runner.run(check_steps(directory, url, options, PosixFiles()), emit_handler(progress, on_finding))


def restore(
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
    """Build the new log directory ``log_dir`` from a bucket. An error leaves nothing on the disk.

    With ``as_of``, ``until``, ``end`` or ``name`` it is an independent log, which does not continue the bucket's log.

    Args:
        selected: topics and partitions to restore; empty: all.
        newest_bytes: fetch only the newest segments of each partition, of at most so many bytes, but at least one.
        since: begin each partition at the first segment with a record of this time or later.
        as_of: restore an older state: a snapshot's name, a version or a time.
        until: end each partition before the first record of this time or later.
        end: end the one selected partition at this offset (exclusive).
        name: new name of the one selected topic, which gets a new id.
        pin: protect the objects to fetch from garbage collection.
        if_empty: leave a directory alone that is not empty, without an error.
        progress: called with (bytes done, bytes in all or 0, partition).
        dry_run: only report what would be restored.

    Raises:
        ConfigError: the directory exists and is not empty, or the options are wrong.
        OffsetOutOfRangeError: ``end`` is below the first offset.
        NotFoundError: the bucket is empty, or has no version ``as_of``.
        UnknownTopicError, DiskFullError, CorruptionError.
    """
    target = arguments.path("log_dir", log_dir)
    clock, ids = arguments.clock_and_ids(clock, ids)
    chosen = arguments.selected(selected)
    others = {"as_of": as_of, "until_offset": end, "name": name, "pin": pin, "if_empty": if_empty, "dry_run": dry_run}
    options = RestoreOptions.checked(chosen, newest_bytes, since, until, clock.now_ms(), **others)
    with open_place(remote, s3) as store:
        steps = restore_steps(store.url, target, options, clock=clock, ids=ids, files=PosixFiles())
        return Runner(store, clock, ids).run(steps, emit_handler(progress))


def repair(
    log_dir: str | Path | None = None,
    remote: Place | None = None,
    selected: Selected = (),
    *,
    from_dir: str | Path | None = None,
    to_version: int | None = None,
    from_version: int | None = None,
    accept_loss: bool = False,
    **s3: Unpack[S3Keywords],
) -> Plan[RepairPlan, int]:
    """Find damage in a log directory, a bucket or both, and plan its repair. ``apply()`` returns the number of repairs.

    Args:
        selected: topics and partitions to repair; empty: all.
        from_dir: a log directory that may have the records that the bucket lost. Default: ``log_dir``.
        to_version: the version of the catalog to go back to.
        from_version: the version of the catalog to restore, if two copies are possible.
        accept_loss: give up the records that no copy has. Their offsets stay unused.

    Raises:
        ConfigError: neither ``log_dir`` nor ``remote`` is given.
        UnknownTopicError, NotFoundError.
        CorruptionError: two states are possible, and ``from_version`` must choose one; or the repair is impossible.
    """
    options = RepairOptions(
        arguments.path_or_none("from_dir", from_dir),
        to_version,
        from_version,
        accept_loss,
        arguments.path_or_none("log_dir", log_dir),
    )

    def apply() -> int:
        with _runner(remote, s3) as runner:
            return runner.run(repair_steps(plan))

    with _runner(remote, s3) as runner:
        url = None if runner.store is None else runner.store.url
        plan = runner.run(plan_repair_steps(arguments.selected(selected), options, url))
    return Plan(plan, apply)


def rejoin(log_dir: str | Path, selected: Selected = (), *, clock: Clock | None = None) -> Plan[RejoinPlan, None]:
    """Plan that partitions of a log directory start again at the end of the bucket.

    ``apply()`` moves their local files to a directory next to ``log_dir``.

    ``selected``: partitions, no topic names; empty: those that are fenced or end below the bucket's end. ``apply()``
    can be repeated after a crash.

    Raises:
        NotFoundError: no log there.
        UnknownTopicError.
        ConfigError: a topic name is selected, or nothing is selected and none is fenced or below the bucket's end.
    """
    clock = clock or SystemClock()
    chosen = arguments.selected_partitions(selected)
    plan = Runner().run(plan_rejoin_steps(arguments.path("log_dir", log_dir), chosen, clock))
    return Plan(plan, lambda: Runner().run(rejoin_steps(plan, clock, PosixFiles())))


def erase(
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
) -> Plan[TopicErasePlan, EraseReport]:
    """Plan the erasure of records by key, key prefix or time from the bucket. Reads every segment.

    Args:
        partition: partition to erase from; None: all of the topic.
        keys, prefixes: records with one of these keys, or whose key begins with one of these; both empty: any key.
        before: erase only records older than this time.
        now: delete the old objects at once, without ``gc.grace.ms``. Refused while a pin or snapshot needs them.

    Raises:
        ConfigError: nothing is selected, ``now`` is refused, or others rewrite a partition again and again.
        UnknownTopicError.
        CorruptionError: the catalog or a segment is damaged.
    """
    clock, ids = arguments.clock_and_ids(clock, ids)
    selection = Selection.asked(keys, prefixes, before, clock.now_ms())

    def apply() -> EraseReport:
        place = location_of(remote, s3)
        with _runner(remote, s3, clock, ids) as runner:
            return runner.run(erase_topic_steps(plan, owner_of("tiered.admin.erase"), place, now=now))

    with _runner(remote, s3, clock, ids) as runner:
        plan = runner.run(
            plan_named_topic(arguments.text("topic", topic), arguments.partition_or_none(partition), selection)
        )
    return Plan(plan, apply)


def snapshot(
    remote: Place,
    name: str,
    selected: Selected = (),
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    **s3: Unpack[S3Keywords],
) -> SnapshotReport:
    """Store the bucket's current state as the snapshot ``name``. An interrupted call can be repeated.

    ``selected``: topics and partitions; empty: all.

    Raises:
        ConfigError: every selected partition has this snapshot, or the name is invalid.
        UnknownTopicError, NotFoundError, CommitUnknownError.
    """
    clock, ids = arguments.clock_and_ids(clock, ids)
    with _runner(remote, s3, clock, ids) as runner:
        return runner.run(snapshot_steps(name, arguments.selected(selected)))


@contextlib.contextmanager
def _runner(
    remote: Place | None, s3: S3Keywords, clock: Clock | None = None, ids: IdSource | None = None
) -> Iterator[Runner]:
    if remote is None:
        yield Runner(None, clock, ids)
        return
    with open_place(remote, s3) as store:
        yield Runner(store, clock, ids)


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """Result of a snapshot, by partition. ``earlier``: number of partitions that had the snapshot before the call.

    ``skipped``: topics that are being deleted. ``planned``: after a dry run, the partitions that would get a snapshot.
    """

    name: str
    partitions: tuple[tuple[TopicPartition, KeptRoot], ...]
    earlier: int = 0
    skipped: tuple[str, ...] = ()
    planned: tuple[TopicPartition, ...] = ()

    def __repr__(self) -> str:
        return f"<SnapshotReport {self.name!r}: {len(self.partitions)} partitions, {len(self.skipped)} topics skipped>"

    def _repr_html_(self) -> str:
        header = ("partition", "version", "from", "to")
        rows = [(tp, taken.version, taken.root.start_offset, taken.root.next_offset) for tp, taken in self.partitions]
        return html_table(f"Snapshot {self.name}", header, rows)


def snapshot_steps(
    name: str, selected: Sequence[str | TopicPartition], *, dry_run: bool = False
) -> Steps[SnapshotReport]:
    """Store the newest version of each selected partition as the snapshot ``name``. Nothing selected: all topics.

    A partition that has a snapshot of this name keeps it, so that an interrupted call can be repeated. ``dry_run``:
    store nothing, and return the partitions that lack the snapshot in ``planned``.

    Raises:
        ConfigError: every partition has this snapshot, or the name is invalid.
        UnknownTopicError, NotFoundError, CommitUnknownError.
    """
    check_snapshot_name(name)
    skipped: list[str] = []
    views: dict[TopicPartition, RootView] = {}
    for entry, partition in (yield from _selected(selected)):
        if not selected and entry.state == STATE_DELETING:
            skipped.append(entry.name)
            continue
        for number in arguments.chosen_partitions(entry.name, entry.partitions, partition):
            views[TopicPartition(entry.name, number)] = RootView(entry.topic_id, number, entry.name)
    made: dict[TopicPartition, KeptRoot] = {}
    for tp, view in views.items():
        taken = yield from load_snapshot(view, name)
        if taken is not None and not taken.begun:
            made[tp] = taken
    earlier = len(made)
    if made and earlier == len(views):
        raise ConfigError(
            f"cannot create snapshot {name}: {next(iter(made))} has a snapshot of this name already",
            hint=f"choose another name, or delete it first with `tiered snapshot delete {name}`",
        )
    if dry_run:
        planned = tuple(tp for tp in views if tp not in made)
        return SnapshotReport(name, tuple(made.items()), earlier, tuple(skipped), planned)
    for tp, view in views.items():
        if tp not in made:
            made[tp] = KeptRoot(f"snapshot {name}", (yield from create_snapshot(view, name)))
    return SnapshotReport(name, tuple((tp, made[tp]) for tp in views), earlier, tuple(skipped))


def _selected(selected: Sequence[str | TopicPartition]) -> Steps[list[tuple[TopicEntry, int | None]]]:
    if not selected:
        return [(entry, None) for entry in (yield from list_topics())]
    found: list[tuple[TopicEntry, int | None]] = []
    for each in selected:
        topic, partition = (each, None) if isinstance(each, str) else each
        entry = yield from load_topic_to_read(topic)
        if entry is None:
            raise UnknownTopicError(f"the bucket has no topic {topic!r}", hint="see `tiered topic list`")
        found.append((entry, partition))
    return found
