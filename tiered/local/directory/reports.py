"""``tiered-tasks.json``: how the background work of a directory did, for people and other processes.

Written once a minute with the recovery points, at a failure of the disk and at the end; never read by the log itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tiered.errors import NotFoundError
from tiered.local.cleaning.figures import CleanerFigures
from tiered.local.directory.tasks import TaskStatus
from tiered.local.disk.files import Files

TASKS_NAME = "tiered-tasks.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """``noted_ms`` -1: nobody has noted anything. ``uncleanable``: why, by partition; ``offline`` empty: in service."""

    noted_ms: int = -1
    tasks: list[TaskStatus] = field(default_factory=list)
    cleaner: CleanerFigures = field(default_factory=CleanerFigures)
    uncleanable: dict[str, str] = field(default_factory=dict)
    offline: str = ""

    @property
    def problems(self) -> list[str]:
        """What somebody should look at."""
        found = [f"the directory went offline: {self.offline}"] if self.offline else []
        found += [f"task {task.name} failed: {task.last_error}" for task in self.tasks if task.last_error]
        return found + [f"{tp} is not cleaned until the next open: {why}" for tp, why in self.uncleanable.items()]


def store_report(directory: Path, files: Files, report: UpkeepReport) -> None:
    """Leaves the figures for other processes to look at."""
    files.replace(directory / TASKS_NAME, json.dumps({"version": VERSION, **asdict(report)}, indent=1).encode() + b"\n")


def read_report(directory: Path, files: Files) -> UpkeepReport:
    """What :func:`store_report` left; an empty one if there is nothing, or nothing that can be read."""
    try:
        value: Mapping[str, Any] = json.loads(files.read(directory / TASKS_NAME))
        return UpkeepReport(
            int(value.get("noted_ms", -1)),
            [TaskStatus(**entry) for entry in value["tasks"]],
            CleanerFigures(**value.get("cleaner", {})),
            {str(tp): str(why) for tp, why in value.get("uncleanable", {}).items()},
            str(value.get("offline", "")),
        )
    except (NotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return UpkeepReport()
