"""``tiered spark check``: verifies every byte of the bucket, as ``tiered check --read-data`` does on one machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from tiered.check.check import (
    EVERYTHING,
    CheckPart,
    CheckReport,
    cut_steps,
    joined,
    part_steps,
    report_as_json,
    report_from_json,
)
from tiered.check.segment_check import Reading
from tiered.spark.jobs.run import JobRunner, Receipt, Task
from tiered.store.base import Store
from tiered.store.driver import Runner as StepRunner


def check(runner: JobRunner, topics: tuple[str, ...], task_bytes: int, reading: Reading = EVERYTHING) -> CheckReport:
    """Check the selected topics on Spark and return one report.

    ``topics`` empty: all. ``task_bytes``: least bytes of segments in a task. ``reading``: the segments of which
    every byte is read. Raises UnknownTopicError, NotFoundError for a bucket without topics, and JobFailedError if a
    task failed.
    """
    registry, parts = StepRunner(runner.store).run(cut_steps(runner.url, topics, least_bytes=task_bytes), take=_ignore)
    asked = {"reading": dataclasses.asdict(reading)}
    receipts = runner.run("checking", check_part, [{"part": dataclasses.asdict(part), **asked} for part in parts])
    return joined(registry, [report_from_json(receipt) for receipt in receipts])


def check_part(store: Store, task: Task) -> Receipt:
    """Check the range of segments that ``task`` names, in a worker. Return the report as JSON values."""
    asked = task["reading"]
    reading = Reading(asked["data"], tuple(asked["subset"]) if asked["subset"] else None)
    steps = part_steps(CheckPart(**task["part"]), reading)
    return report_as_json(StepRunner(store).run(steps, take=_ignore))


def _ignore(_finding: Any) -> None:
    """Drop the findings that steps emit, because their report has them, too."""
