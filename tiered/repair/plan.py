"""The plan of a repair: one action for each thing that is wrong, with its remedy and its price.

::

    find ── Action(where, problem, remedy, lost, undone) ──> RepairPlan ── shown, asked ──> act(Workbench), in order

An action without ``act`` has no remedy yet: its ``remedy`` says what the operator can do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tiered.clock import SystemClock
from tiered.display import html_table
from tiered.errors import TieredError
from tiered.format.keys import Role
from tiered.local.directory.read_only_log import LogView
from tiered.model import TopicPartition
from tiered.remote.catalog import Catalog
from tiered.remote.fetch import ByteCache
from tiered.remote.lookup import SegmentLookup
from tiered.remote.segment_rewriter import RewriteContext
from tiered.remote.topics import TopicEntry
from tiered.store.base import Blocking, Steps
from tiered.store.capabilities import check_capabilities, probe

EXIT_LEFT = 3
"""Exit code of a repair that leaves something damaged, or brings erased records back."""

NO_PARTITION = TopicPartition("", -1)
"""Partition of an action on a file of the whole log directory, or on an object of the whole bucket."""

Act = Callable[["Workbench"], Steps[None]]


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Choices of the operator.

    ``from_dir``: a log directory that may hold lost segments. ``to_version``: the version of the root to go back to.
    ``from_version``: version of the root to continue from, if two are possible. ``accept_loss``: give up offsets that
    no copy has. ``log_dir``: a log directory to repair. Without ``from_dir`` lost segments are read from it.
    """

    from_dir: Path | None = None
    to_version: int | None = None
    from_version: int | None = None
    accept_loss: bool = False
    log_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    """One partition that a repair plans for. ``view``: the log directory that may have lost segments, None without
    one.
    """

    tp: TopicPartition
    entry: TopicEntry
    options: RepairOptions
    view: LogView | None

    @property
    def command(self) -> str:
        """Return the command that repairs this partition."""
        return f"tiered repair {self.tp.topic}:{self.tp.partition}"


@dataclass(frozen=True, slots=True)
class RepairAction:
    """One damage and its remedy. ``where``: its object key or path. ``act``: steps of the remedy, None without one.

    ``lost``: ranges of offsets that no copy has. ``undone``: erasures whose records come back, a sentence each.
    ``notes``: other consequences, a sentence each, such as transactions that count as aborted.
    """

    tp: TopicPartition
    where: str
    problem: str
    remedy: str
    lost: tuple[tuple[int, int], ...] = ()
    undone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    act: Act | None = field(default=None, repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return the action's fields in the output of ``--json``."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition if self.tp.partition >= 0 else None,
            "where": self.where,
            "problem": self.problem,
            "remedy": self.remedy,
            "lost": [list(each) for each in self.lost],
            "undone": list(self.undone),
            "notes": list(self.notes),
            "repaired": self.act is not None,
        }


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Actions for all damage that was found, in the order of their repair. Empty if there is none."""

    options: RepairOptions
    actions: tuple[RepairAction, ...]

    def __repr__(self) -> str:
        return f"<RepairPlan: {len(self.actions)} actions, {len(self.left)} without a remedy>"

    def __str__(self) -> str:
        return "\n".join(f"{each.where}: {each.problem}: {each.remedy}" for each in self.actions) or repr(self)

    def _repr_html_(self) -> str:
        header = ("place", "problem", "remedy")
        return html_table("Repair", header, [(each.where, each.problem, each.remedy) for each in self.actions])

    @property
    def left(self) -> tuple[RepairAction, ...]:
        """Return the actions without a remedy, which this repair does not carry out."""
        return tuple(action for action in self.actions if action.act is None)

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0, or 3 if something stays damaged or erased records come back."""
        return EXIT_LEFT if self.left or any(action.undone for action in self.actions) else 0

    def as_json(self) -> dict[str, Any]:
        """Return the plan's fields in the output of ``--json``."""
        return {"actions": [action.as_json() for action in self.actions]}


class Desk(NamedTuple):
    """Access to one partition that this repair has claimed as maintainer.

    ``catalog`` commits to its root. ``context`` reads and writes its segments.
    """

    catalog: Catalog
    context: RewriteContext


class Workbench:
    """Shared state of the actions of one repair. Close it at the end.

    ``owner``: name of this program in claims and commits.

    ``source``: the log directory that may have lost segments: ``from_dir`` or, without it, ``log_dir``.
    """

    def __init__(self, from_dir: Path | None, owner: str, log_dir: Path | None = None) -> None:
        self.source, self.owner = from_dir or log_dir, owner
        self._must_open = from_dir is not None
        self._view: LogView | None = None
        self._desks: dict[TopicPartition, Desk] = {}

    def view(self) -> Steps[LogView | None]:
        """Return the log directory that may hold lost segments, opened for reading.

        None without one, and for a damaged ``log_dir``. Raises the error of a ``from_dir`` that cannot be opened.
        """
        if self._view is None and self.source is not None:
            try:
                self._view = yield Blocking(partial(LogView.open, self.source, clock=SystemClock()))
            except TieredError:
                if self._must_open:
                    raise  # a directory that is repaired, too, may be damaged itself
        return self._view

    def desk(self, tp: TopicPartition, entry: TopicEntry) -> Steps[Desk]:
        """Return the access to a partition. The first call claims the maintainer's role.

        Under this claim no other garbage collection can run.
        """
        if tp not in self._desks:
            capabilities = yield from probe()
            check_capabilities(capabilities, "the store")
            catalog = Catalog(entry.topic_id, tp.partition, tp.topic, known=entry.known)
            claim = yield from catalog.claim(Role.MAINTAINER, self.owner)
            context = RewriteContext(
                tp=tp,
                topic_id=entry.topic_id,
                lookup=SegmentLookup(tp, entry.topic_id, ByteCache()),
                capabilities=capabilities,
                claim_epoch=claim.epoch,
                index_interval_bytes=entry.settings.index_interval_bytes,
                lineage=claim.root.lineage,
            )
            self._desks[tp] = Desk(catalog, context)
        return self._desks[tp]

    def close(self) -> None:
        """Close the log directory."""
        if self._view is not None:
            self._view.close()
            self._view = None
