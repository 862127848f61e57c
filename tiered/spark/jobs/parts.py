"""Tasks that are parts of partitions: how they are cut, told, and printed as a plan."""

from __future__ import annotations

import dataclasses

from tiered.care.spread import Part
from tiered.program.output import columns, counted, human_bytes
from tiered.spark.jobs.plan import JobPlan, Task


def task_of(part: Part) -> Task:
    """A part, as a worker is told of it."""
    return dataclasses.asdict(part)


def part_of(task: Task) -> Part:
    """The inverse."""
    return Part(**task)


def parts_table(plan: JobPlan) -> list[str]:
    """One line for each partition: what is read of it, in how many tasks."""
    rows: dict[str, list[int]] = {}
    for task in plan.tasks:
        row = rows.setdefault(f"{task['topic']}-{task['partition']}", [0, 0, 0])
        for at, more in enumerate((1, task["segments"], task["size_bytes"])):
            row[at] += more
    total = sum(row[2] for row in rows.values())
    table = [[name, tasks, segments, human_bytes(size)] for name, (tasks, segments, size) in sorted(rows.items())]
    head = f"{counted(len(plan.tasks), 'task')}, {human_bytes(total)} to read"
    return [*columns(["partition", "tasks", "segments", "read"], table), head] if rows else [head]


def ignore(_seen: object) -> None:
    """For what steps emit and their result says, too."""
