"""``tiered spark check``: every byte of the bucket verified, as ``tiered check --read-data`` does on one machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from tiered.checking.check import CheckReport
from tiered.checking.spread import Part, cut_steps, joined, part_steps, report_as_json, report_of_json
from tiered.spark.jobs.run import Receipt, Runner, Task
from tiered.store.base import Store
from tiered.store.runner import Runner as StepRunner


def check(runner: Runner, topics: tuple[str, ...], task_bytes: int) -> CheckReport:
    """Look at all parts, in one report. Raises UnknownTopicError."""
    registry, parts = StepRunner(runner.store).run(cut_steps(runner.url, topics, least_bytes=task_bytes), take=_ignore)
    receipts = runner.run("checking", check_part, [dataclasses.asdict(part) for part in parts])
    return joined(registry, [report_of_json(receipt) for receipt in receipts])


def check_part(store: Store, task: Task) -> Receipt:
    """Look at one part, in a worker."""
    return report_as_json(StepRunner(store).run(part_steps(Part(**task)), take=_ignore))


def _ignore(_finding: Any) -> None:
    """Drop what steps emit: their report has it, too."""
