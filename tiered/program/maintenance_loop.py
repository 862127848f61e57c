"""Maintenance of a whole bucket in rounds, for ``maintain --loop`` and inside a daemon.

One thread runs one action at a time, and ends between two actions. Each round reads topics and settings again, and
claims only partitions with work. A failure of one partition does not stop the others. A failure of the store is
reported, and the next round tries again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

import click

from tiered.arguments import chosen_partitions
from tiered.clock import Clock, IdSource
from tiered.errors import ConfigError, FencedError, TieredError, UnknownTopicError
from tiered.format.locks import SafeEvent
from tiered.format.root import STATE_DELETING
from tiered.group.admin import load_all_lags
from tiered.local.directory.figures import group_metrics
from tiered.local.transactions.group_positions import GroupLag
from tiered.metrics import Metric, metric
from tiered.model import TopicPartition
from tiered.plan.maintenance import MIN_MAP_BYTES, REWRITE_BYTES, ROUTINE, MaintenanceAction, MaintenanceKind
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES
from tiered.program.command_line import as_error
from tiered.remote.gc.deletion import resume_topic_deletion
from tiered.remote.maintain import ActionResult, Maintainer
from tiered.remote.topics import TopicEntry, list_topics, load_topic_to_read
from tiered.store.base import Capabilities, Steps, Store
from tiered.store.capabilities import check_capabilities, probe
from tiered.store.driver import drive
from tiered.store.limit import Slots

EVERY_MS = 600_000
"""Milliseconds from the end of one round to the beginning of the next."""

T = TypeVar("T")


def _kinds(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[MaintenanceKind, ...]:
    words = [word.strip() for word in value.split(",")] if value is not None else list(ROUTINE)
    unknown = [word for word in words if word not in set(MaintenanceKind)]
    if unknown:
        raise ConfigError(
            f"--only {unknown[0]!r} is not a kind of maintenance", hint=f"one of {', '.join(MaintenanceKind)}"
        )
    return tuple(MaintenanceKind(word) for word in words)


kinds_option = click.option(
    "--only",
    "kinds",
    callback=_kinds,
    metavar="KINDS",
    help="retention,merge,compact,collect: all of them by default; reencode: rewrite segments in the topic's "
    "compression.type and the newest batch format",
)
"""Option ``--only`` of the commands that maintain a bucket."""


def _never(_topic: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Scope:
    """Partitions and kinds of maintenance. ``topic`` None: all topics. ``partition`` None: all partitions.

    ``is_paused``: called with the topic before each action. No action begins on a paused topic.
    """

    kinds: tuple[MaintenanceKind, ...] = ROUTINE
    topic: str | None = None
    partition: int | None = None
    is_paused: Callable[[str], bool] = _never


@dataclass(frozen=True, slots=True)
class UpkeepView:
    """Progress of the maintenance. ``doing``: the current partition and kind of action, ``""`` between rounds.

    ``rounds``: number of completed rounds. ``actions``: number of completed actions by kind, whose bytes are added in
    ``bytes_read`` and ``bytes_written``. ``began_ms``: start of the newest round. ``ended_ms``: end of the newest
    completed round. Both are 0 before the first. ``failed``: the error of each partition whose last round failed.
    ``trouble``: the error of a whole round, or of a topic whose entry is unreadable. ``paused``: topics that the newest
    round skipped. ``fenced``: actions that ended because another maintainer took the role. ``groups``: lags of the
    bucket's groups after the newest round.
    """

    rounds: int = 0
    began_ms: int = 0
    ended_ms: int = 0
    doing: str = ""
    actions: Mapping[MaintenanceKind, int] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0
    failed: Mapping[TopicPartition, TieredError] = field(default_factory=dict)
    trouble: TieredError | None = None
    paused: frozenset[str] = frozenset()
    fenced: int = 0
    groups: tuple[GroupLag, ...] = ()

    def metrics(self) -> list[Metric]:
        """Return the progress as metrics for ``/metrics``."""
        return [
            metric("maintenance_rounds_total", self.rounds),
            *(
                metric("maintenance_actions_total", self.actions.get(kind, 0), {"kind": kind.value})
                for kind in MaintenanceKind
            ),
            metric("maintenance_read_bytes_total", self.bytes_read),
            metric("maintenance_written_bytes_total", self.bytes_written),
            metric("maintenance_failed_partitions", len(self.failed)),
            metric("maintenance_fenced_total", self.fenced),
            metric("maintenance_paused_topics", len(self.paused)),
            metric("maintenance_failing", float(self.trouble is not None)),
            metric("maintenance_last_round_timestamp_seconds", self.ended_ms / 1000),
            *group_metrics(self.groups),
        ]


OnDone = Callable[[TopicPartition, ActionResult], None]
OnFailed = Callable[[TopicPartition | None, TieredError], None]
OnRound = Callable[[UpkeepView], None]


def _nobody(*_told: object) -> None:
    return


@contextlib.contextmanager
def room_for(action: MaintenanceAction, memory: Slots | None) -> Iterator[int]:
    """Reserve up to half of ``memory`` for an action during the block, and wait until it is free.

    Yields the size in bytes of the action's map of keys. ``memory``: limit that uploads share; None: reserve nothing.
    """
    held, map_bytes = 0, DEDUPE_BUFFER_BYTES
    if memory is not None and action.kind in (MaintenanceKind.MERGE, MaintenanceKind.COMPACT, MaintenanceKind.REENCODE):
        map_bytes = max(MIN_MAP_BYTES, min(map_bytes, memory.count // 2 - REWRITE_BYTES))
        held = REWRITE_BYTES + (map_bytes if action.kind is MaintenanceKind.COMPACT else 0)
    with memory.turn(held) if memory is not None and held else contextlib.nullcontext():
        yield map_bytes


class MaintenanceLoop:
    """Loop of maintenance rounds. Call ``run`` and ``turn`` on one thread, ``end`` and ``view`` on any.

    ``on_done``: called with the partition and the result of each action. ``on_failed``: called with each error and its
    partition, None for a whole round.
    """

    def __init__(
        self,
        store: Store,
        *,
        owner: str,
        clock: Clock,
        ids: IdSource,
        scope: Scope | None = None,
        on_done: OnDone = _nobody,
        on_failed: OnFailed = _nobody,
        memory: Slots | None = None,
    ) -> None:
        """Make a loop. ``owner``: name of this program in claims.

        ``memory``: limit that actions share with uploads, None: not counted.
        """
        self._store = store
        self._owner = owner
        self._clock = clock
        self._ids = ids
        self._scope = scope or Scope()
        self._on_done = on_done
        self._on_failed = on_failed
        self._memory = memory
        self._ending = SafeEvent()
        self._news = SafeEvent()  # the end, or another interval
        self._every_ms = EVERY_MS
        self._capabilities: Capabilities | None = None
        self._counts: Counter[MaintenanceKind] = Counter()
        self._newest: dict[tuple[UUID, int], int] = {}  # versions of roots that were proven to be newest
        self.view = UpkeepView()

    def end(self) -> None:
        """Request an end after the current action, from any thread."""
        self._ending.set()
        self._news.set()

    def reconfigure(self, every_ms: int) -> None:
        """Set the interval between rounds, including the current one."""
        self._every_ms = every_ms
        self._news.set()

    def run(self, every_ms: int = EVERY_MS, *, patient: bool = True, on_round: OnRound = _nobody) -> None:
        """Run rounds until :meth:`end`, with ``every_ms`` between them. An error of a round is passed to ``on_failed``.

        ``patient`` False: raise the error if the first round as a whole fails. ``on_round``: called with the view after
        each round, even a failed one.
        """
        self._every_ms = every_ms
        while not self._ending.is_set():
            try:
                self.turn()
            except Exception as cause:
                if not patient and not self.view.rounds:
                    raise
                self._note(trouble=as_error(cause, "maintenance"))
                self._on_failed(None, as_error(cause, "maintenance"))
            on_round(self.view)
            self._rest()

    def _rest(self) -> None:
        """Wait until the next round is due, by the current interval, or until the end."""
        begun, left_s = self._clock.monotonic(), self._every_ms / 1000
        while left_s > 0 and self._clock.wait(self._news, left_s) and not self._ending.is_set():
            self._news.clear()
            left_s = begun + self._every_ms / 1000 - self._clock.monotonic()

    def turn(self) -> None:
        """Run one round: maintain each partition once. An error of one partition is passed to ``on_failed``."""
        self._note(began_ms=self._clock.now_ms(), paused=frozenset())
        try:
            if self._capabilities is None:
                capabilities = self._drive(probe())
                check_capabilities(capabilities, self._store.url)
                self._capabilities = capabilities
            failed: dict[TopicPartition, TieredError] = {}
            unreadable: dict[str, TieredError] = {}
            for entry, tp in self._partitions(unreadable):
                if self._ending.is_set():
                    return
                if self._heeds_pause(entry.name):
                    continue
                self._note(doing=f"{tp}")
                if entry.state == STATE_DELETING and tp.partition == 0:
                    with self._by_itself(tp, failed):  # it covers all partitions: their failures are not this one's
                        self._drive(resume_topic_deletion(entry, self._owner))
                with self._by_itself(tp, failed):
                    self._maintain(entry, tp, self._capabilities)
            for error in unreadable.values():
                self._on_failed(None, error)
            trouble = next(iter(unreadable.values()), None)
            self._note(groups=self._group_lags())
            self._note(rounds=self.view.rounds + 1, ended_ms=self._clock.now_ms(), failed=failed, trouble=trouble)
        finally:
            self._note(doing="")

    @contextlib.contextmanager
    def _by_itself(self, tp: TopicPartition, failed: dict[TopicPartition, TieredError]) -> Iterator[None]:
        try:
            yield
        except Exception as cause:  # noqa: BLE001 - a bug in one partition's turn must not stop the others
            failed[tp] = as_error(cause, "maintenance")
            if isinstance(cause, FencedError):
                self._note(fenced=self.view.fenced + 1)
            self._on_failed(tp, failed[tp])

    def _group_lags(self) -> tuple[GroupLag, ...]:
        """Return the lags of all groups, for a maintainer of the whole bucket; none if they cannot be read."""
        try:
            return tuple(self._drive(load_all_lags())) if self._scope.topic is None else ()
        except TieredError as error:
            self._on_failed(None, error)
            return ()

    def _heeds_pause(self, topic: str) -> bool:
        paused = self._scope.is_paused(topic)
        if paused:
            self._note(paused=self.view.paused | {topic})
        return paused

    def _partitions(self, unreadable: dict[str, TieredError]) -> Iterator[tuple[TopicEntry, TopicPartition]]:
        name = self._scope.topic
        if name is None:
            entries = self._drive(list_topics(unreadable))
        else:
            entry = self._drive(load_topic_to_read(name))
            if entry is None:
                raise UnknownTopicError(f"there is no topic {name!r}", hint="see `tiered topic list`")
            entries = [entry]
        for entry in entries:
            for number in chosen_partitions(entry.name, entry.partitions, self._scope.partition):
                yield entry, TopicPartition(entry.name, number)

    def _maintain(self, entry: TopicEntry, tp: TopicPartition, capabilities: Capabilities) -> None:
        config = entry.settings
        maintainer = Maintainer(tp, entry.topic_id, config, owner=self._owner, known=entry.known)
        plan = self._drive(maintainer.plan(self._scope.kinds))
        if plan is None:
            return
        root = entry.topic_id, tp.partition
        seen = self._newest.get(root)
        if plan.actions and (seen is None or plan.version < seen):
            self._drive(maintainer.require_newest_root(sweeps=False))  # claims on an older root would soon hide its age
        if plan.actions or (seen is not None and plan.version > seen):
            self._newest[root] = plan.version
        for action in plan.actions:
            if self._ending.is_set() or self._heeds_pause(tp.topic):
                return
            self._note(doing=f"{tp} {action.kind}")
            done = self._run(maintainer, action, capabilities)
            self._newest[root] = max(self._newest[root], maintainer.version)  # it may be older than this round's first
            self._counts[action.kind] += 1
            self._note(
                actions=dict(self._counts),
                bytes_read=self.view.bytes_read + done.bytes_read,
                bytes_written=self.view.bytes_written + done.bytes_written,
            )
            self._on_done(tp, done)

    def _run(self, maintainer: Maintainer, action: MaintenanceAction, capabilities: Capabilities) -> ActionResult:
        with room_for(action, self._memory) as map_bytes:
            return self._drive(maintainer.run(action, capabilities, memory_bytes=map_bytes))

    def _drive(self, steps: Steps[T]) -> T:
        return drive(self._store, steps, clock=self._clock, ids=self._ids)

    def _note(self, **changes: object) -> None:
        """Replace the view by a copy with ``changes``. Other threads may still read the old one."""
        self.view = replace(self.view, **changes)  # type: ignore[arg-type]
