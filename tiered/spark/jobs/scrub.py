"""``scrub``: every byte of the bucket verified, as ``tiered check --read-data`` does it on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiered.care.spread import cut_steps, joined, part_steps, report_as_json, report_of_json
from tiered.findings import Severity
from tiered.program.output import counted, human_bytes
from tiered.spark.jobs.job import Outcome, Run
from tiered.spark.jobs.parts import ignore, part_of, parts_table, task_of
from tiered.spark.jobs.plan import JobPlan, Receipt, Task
from tiered.store.base import Store
from tiered.store.runner import Runner


class Scrub:
    """Arguments: ``topics`` (none: all) and ``task_bytes``. Finds what ``check`` finds; mends nothing."""

    name = "scrub"

    def plan(self, store: Store, arguments: Mapping[str, Any], now_ms: int) -> JobPlan:
        """What is wrong with the registry is known afterwards. Raises UnknownTopicError."""
        steps = cut_steps(store.url, tuple(arguments["topics"]), least_bytes=arguments["task_bytes"])
        report, parts = Runner(store).run(steps, take=ignore)
        facts = {"registry": report_as_json(report)}
        return JobPlan(self.name, arguments, now_ms, tuple(task_of(part) for part in parts), facts)

    def table(self, plan: JobPlan) -> list[str]:
        """What is read."""
        return parts_table(plan)

    def work(self, store: Store, plan: JobPlan, task: Task) -> Receipt:
        """Looks at one part."""
        del plan
        return report_as_json(Runner(store).run(part_steps(part_of(task)), take=ignore))

    def carry_out(self, run: Run) -> Outcome:
        """All parts, in one report; exit code as that of ``check``."""
        parts = [report_of_json(receipt) for receipt in run.tasks("scrubbing")]
        report = joined(report_of_json(run.plan.facts["registry"]), parts)
        return Outcome(report_as_json(report), report.exit_code)

    def lines(self, fields: Mapping[str, Any]) -> list[str]:
        """Findings, and how much was read."""
        report = report_of_json(fields)
        shown = [str(found) for found in report.findings if found.severity is not Severity.INFO]
        looked = f"{counted(report.partitions, 'partition')}; {counted(report.remote_segments, 'segment')}"
        verdict = f"{counted(report.errors, 'error')}, {counted(report.warnings, 'warning')}: read them above"
        return [
            *shown,
            f"{looked}, {human_bytes(report.data_bytes_read)} read",
            verdict if report.exit_code else "OK",
        ]
