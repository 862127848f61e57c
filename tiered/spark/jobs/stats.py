"""``stats``: what a bucket's records are like. Sizes, codecs, tombstones, transactions, how often keys repeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from tiered.care.spread import cut_steps
from tiered.errors import CorruptionError
from tiered.findings import Severity
from tiered.plan.known import Known
from tiered.plan.statistics import LogStatistics, StatisticsCounter
from tiered.program.output import columns, human_bytes
from tiered.remote.reader import RemotePartition
from tiered.spark.jobs.job import Outcome, Run
from tiered.spark.jobs.parts import ignore, part_of, parts_table, task_of
from tiered.spark.jobs.plan import JobPlan, Receipt, Task
from tiered.store.base import Store
from tiered.store.runner import Runner
from tiered.times import format_time


class Stats:
    """Arguments: ``topics`` (none: all), ``task_bytes``, ``keys`` (estimate distinct ones). Reads everything once."""

    name = "stats"

    def plan(self, store: Store, arguments: Mapping[str, Any], now_ms: int) -> JobPlan:
        """Raises UnknownTopicError, CorruptionError for a registry that is damaged."""
        steps = cut_steps(store.url, tuple(arguments["topics"]), least_bytes=arguments["task_bytes"])
        report, parts = Runner(store).run(steps, take=ignore)
        for found in report.findings:
            if found.severity is Severity.ERROR:
                raise CorruptionError(
                    found.message, path_or_key=found.where, position=found.position, hint="run `tiered check`"
                )
        return JobPlan(self.name, arguments, now_ms, tuple(task_of(part) for part in parts if part.segments))

    def table(self, plan: JobPlan) -> list[str]:
        """What is read."""
        return parts_table(plan)

    def work(self, store: Store, plan: JobPlan, task: Task) -> Receipt:
        """Counts one part. What retention took since the plan is not counted."""
        part = part_of(task)
        partition = RemotePartition(part.topic, UUID(part.topic_id), part.partition, known=Known(made=part.made))
        runner, counter = Runner(store), StatisticsCounter(keys=plan.arguments["keys"])
        pinned = runner.run(partition.snapshot())
        if pinned is not None and part.end > pinned.start_offset:
            start, end = max(part.start, pinned.start_offset), min(part.end, pinned.next_offset)
            for header, batch in runner.stream(partition.read(start, end)):
                counter.add(header, batch)
        return counter.finish().as_json()

    def carry_out(self, run: Run) -> Outcome:
        """One line for each partition, one for each topic."""
        partitions: dict[tuple[str, int], LogStatistics] = defaultdict(LogStatistics)
        topics: dict[str, LogStatistics] = defaultdict(LogStatistics)
        for task, receipt in zip(run.plan.tasks, run.tasks("reading"), strict=True):
            counted = LogStatistics.of_json(receipt)
            partitions[task["topic"], task["partition"]].join(counted)
            topics[task["topic"]].join(counted)
        return Outcome(
            {
                "topics": [{"topic": name, **_shown(found)} for name, found in sorted(topics.items())],
                "partitions": [
                    {"topic": topic, "partition": partition, **_shown(found)}
                    for (topic, partition), found in sorted(partitions.items())
                ],
            }
        )

    def lines(self, fields: Mapping[str, Any]) -> list[str]:
        """A table of topics."""
        header = ["topic", "records", "batches", "size", "keys", "values", "null keys", "tombstones", "distinct keys"]
        rows = [
            [
                each["topic"],
                each["records"],
                each["batches"],
                human_bytes(each["size_bytes"]),
                human_bytes(each["key_bytes"]),
                human_bytes(each["value_bytes"]),
                each["null_keys"],
                each["tombstones"],
                each["distinct_keys"] or "-",
                _codecs(each["codecs"]),
                format_time(each["min_timestamp"]) if each["min_timestamp"] >= 0 else "-",
                format_time(each["max_timestamp"]) if each["max_timestamp"] >= 0 else "-",
            ]
            for each in fields["topics"]
        ]
        return columns([*header, "codecs", "from", "to"], rows) if rows else ["there is nothing in the bucket"]


def _shown(found: LogStatistics) -> dict[str, Any]:
    """Without the sketch."""
    fields = {name: value for name, value in found.as_json().items() if name != "smallest"}
    return {**fields, "distinct_keys": found.distinct_keys}


def _codecs(found: Mapping[str, int]) -> str:
    names: Iterable[str] = sorted(found, key=lambda name: -found[name])
    return ",".join(names)
