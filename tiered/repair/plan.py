"""The plan of a repair: one action for each thing that is wrong, with its remedy and its price.

::

    find ── Action(where, problem, remedy, lost, undone) ──> RepairPlan ── shown, asked ──> act, in order

An action without ``act`` has no remedy yet: its ``remedy`` says what the operator can do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiered.display import html_table
from tiered.model import TopicPartition
from tiered.repair.bench import Workbench
from tiered.store.base import Steps

EXIT_LEFT = 3
"""Exit code of a repair that leaves something damaged, or brings erased records back."""

NO_PARTITION = TopicPartition("", -1)
"""Partition of an action on a file of the whole log directory, or on an object of the whole bucket."""

Act = Callable[[Workbench], Steps[None]]


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Choices of the operator.

    ``from_dir``: a log directory that may hold lost segments. ``to_version``: the version of the root to go back to.
    ``from_version``: the copy of the root to go on from, where two are possible. ``accept_loss``: make holes of offsets
    that no copy holds. ``log_dir``: a log directory that is repaired, too, and read where ``from_dir`` is not named.
    """

    from_dir: Path | None = None
    to_version: int | None = None
    from_version: int | None = None
    accept_loss: bool = False
    log_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class RepairAction:
    """One thing that is wrong. ``where`` is its key or path.

    ``lost``: ranges of offsets that no copy holds. ``undone``: erasures whose records come back, a sentence each.
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
        """Return the fields for ``--json``."""
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
    """All problems, in the order of their repair. Empty if there is none."""

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
        """Return the actions that this repair does not carry out."""
        return tuple(action for action in self.actions if action.act is None)

    @property
    def exit_code(self) -> int:
        """Return 0, or 3 if something stays damaged or erased records come back."""
        return EXIT_LEFT if self.left or any(action.undone for action in self.actions) else 0

    def as_json(self) -> dict[str, Any]:
        """Return the fields for ``--json``."""
        return {"actions": [action.as_json() for action in self.actions]}
