"""``compact``: small logs one a task, as ``tiered maintain`` does it; large ones in two phases, each over all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiered.errors import TieredError
from tiered.plan.jobs import TWO_PHASE_RECORDS
from tiered.plan.maintenance import Kind
from tiered.plan.offset_map import OffsetMap
from tiered.plan.survivors import Forecast, Sample, forecast, to_be_tried
from tiered.program.output import columns, counted, human_bytes
from tiered.remote.compact_parts import Part, plan_round, scan_part
from tiered.spark.jobs.job import Outcome, Run
from tiered.spark.jobs.plan import JobPlan, Receipt, Task
from tiered.spark.jobs.receipts import JobFolder
from tiered.spark.jobs.rounds import bench_of, entry_of, rewrite
from tiered.spark.jobs.two_phase import TwoPhase
from tiered.spark.jobs.upkeep import MaintenanceJob, bundles, outcome
from tiered.store.base import Store
from tiered.store.driver import drive

_MAINTENANCE = MaintenanceJob("compact", Kind.COMPACT)


class Compact:
    """Arguments: those of maintenance, ``two_phase_bytes``, and ``sample``: parts that are read for the forecast."""

    name = "compact"

    def plan(self, store: Store, arguments: Mapping[str, Any], now_ms: int) -> JobPlan:
        """What is due now. Raises UnknownTopicError."""
        due, notes = _MAINTENANCE.due(store, arguments["topics"])
        large = [each for each in due if _is_large(each, arguments["two_phase_bytes"])]
        told = []
        for each in large:
            expected = _forecast(store, each, arguments)
            fields = {"pairs": expected.pairs, "shuffle_bytes": expected.shuffle_bytes, "sampled": arguments["sample"]}
            told.append({**each, **fields})
        tasks = bundles([each for each in due if each not in large], arguments["task_bytes"])
        return JobPlan(self.name, arguments, now_ms, tasks, {"notes": notes, "two_phase": told})

    def table(self, plan: JobPlan) -> list[str]:
        """One line for each log that is compacted by one task, then one for each other."""
        shown = _MAINTENANCE.table(plan) if plan.tasks or not plan.facts["two_phase"] else []
        header = ["in two phases", "rows in", "records", "read", "written", "shuffled", "garbage", "why"]
        rows = [
            [
                f"{each['topic']}-{each['partition']}",
                each["rows_in"],
                each["records"],
                human_bytes(2 * each["bytes_written"]),
                human_bytes(each["bytes_written"]),
                ("" if each["sampled"] else "at most ") + human_bytes(each["shuffle_bytes"]),
                human_bytes(each["garbage_bytes"]),
                each["why"],
            ]
            for each in plan.facts["two_phase"]
        ]
        return [*shown, *columns(header, rows)] if rows else shown

    def work(self, store: Store, plan: JobPlan, task: Task) -> Receipt:
        """Whole logs, or what is left of a part of one."""
        if "partitions" in task:
            return _MAINTENANCE.work(store, plan, task)
        return rewrite(store, JobFolder(store, task["job"]), task)

    def carry_out(self, run: Run) -> Outcome:
        """The small ones, then one large one after the other; what is wrong with one keeps no other from its turn."""
        done = [each for receipt in run.tasks(self.name) for each in receipt["partitions"]] if run.plan.tasks else []
        errors: list[TieredError] = []
        for at, due in enumerate(run.plan.facts["two_phase"]):
            try:
                done.append(TwoPhase(run, at, due).carry_out())
            except TieredError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return outcome(done)

    def lines(self, fields: Mapping[str, Any]) -> list[str]:
        """How much was done, and what was not."""
        actions = [(each, one) for each in fields["partitions"] for one in each["actions"] if "pairs" in one]
        told = [
            f"{each['topic']}-{each['partition']}: two phases, {counted(one['pairs'], 'key')} shuffled, "
            f"{counted(one['survivors'], 'survivor')}, {counted(one['groups'], 'segment')} written"
            for each, one in actions
        ]
        return [*told, *_MAINTENANCE.lines(fields)]


def _is_large(due: Mapping[str, Any], two_phase_bytes: int) -> bool:
    """Whether one task should not have all of it. What is written at most is all of it, once."""
    return bool(due["bytes_written"] > two_phase_bytes or due["records"] > TWO_PHASE_RECORDS)


def _forecast(store: Store, due: Mapping[str, Any], arguments: Mapping[str, Any]) -> Forecast:
    """Of a log; parts that are tried lie all over it."""
    wanted = arguments["sample"]
    if not wanted:
        return forecast(0, due["records"], ())
    bench = bench_of(store, entry_of(store, due["topic"]), due["partition"])
    planned = drive(store, plan_round(bench.view, bench.config, bench.shop, part_bytes=arguments["task_bytes"]))
    if planned is None:
        return Forecast(0, 0)
    round_, parts = planned
    most_keys = OffsetMap(arguments["memory_bytes"]).capacity
    kinds = [_is_dirty(part, round_.first_dirty) for part in parts]
    samples = []
    for number in to_be_tried(wanted, kinds):
        sample = Sample(parts[number].records, kinds[number])
        steps = scan_part(
            bench.view, bench.shop, parts[number], number=number, first_dirty=round_.first_dirty, most_keys=most_keys
        )
        drive(store, steps, take=sample.take)
        samples.append(sample)
    dirty = sum(part.records for part, kind in zip(parts, kinds, strict=True) if kind)
    return forecast(sum(part.records for part in parts) - dirty, dirty, samples)


def _is_dirty(part: Part, first_dirty: int) -> bool:
    """Whether most of its offsets lie behind what an earlier round has cleaned."""
    return part.start + part.end > 2 * first_dirty
