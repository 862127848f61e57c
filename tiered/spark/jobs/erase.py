"""Job of ``tiered spark erase``: deletes records of some keys from a topic, as ``tiered erase`` does on one machine.

Tasks search parts of partitions. Then one task for each partition rewrites it and proves that no such record remains.
Tasks have hashes of keys alone. Notes and receipts are those of ``tiered erase``, under the same names: the same
command again, here or on one machine, completes an interrupted erasure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tiered.arguments import chosen_partitions
from tiered.check.check import CheckPart
from tiered.erase.erase import ErasePlan, Hit, as_fields, erase_steps, receipt_steps
from tiered.erase.topic import (
    cut_erase_steps,
    find_steps,
    join_results,
    need_entry,
    noncurrent_commands,
    plan_fields,
    stays,
)
from tiered.errors import UnknownTopicError
from tiered.model import Row, TopicPartition
from tiered.plan.erasure import BlindSelection, Selection
from tiered.program.application import confirm
from tiered.program.erasure import (
    left_line,
    outcome_line,
    plan_table,
    question,
)
from tiered.remote.committer import owner_of
from tiered.remote.topics import TopicEntry
from tiered.spark.jobs.run import JobRunner, Receipt, Task
from tiered.spark.subscription import planning_pool
from tiered.spark.worker import capabilities_of
from tiered.store.base import Store
from tiered.store.driver import drive
from tiered.store.location import StoreLocation

EXIT_LEFT = 3


def erase(
    runner: JobRunner,
    topic: str,
    partition: int | None,
    selection: Selection,
    *,
    now: bool,
    task_bytes: int,
) -> int:
    """Find the records, ask the user, rewrite, verify and print. Return the exit code, 3 if records remain.

    ``partition`` None: all of the topic. ``now``: delete the old objects without ``gc.grace.ms``.
    ``task_bytes``: bytes that one task reads.

    Raises UnknownTopicError, JobFailedError if a task failed, and ConfigError if the user does not confirm. Raises
    ConfigError also if ``now`` is set and a pin or a snapshot needs the old objects.
    """
    app = runner.app
    entry = drive(runner.store, need_entry(topic))
    numbers = chosen_partitions(topic, entry.partitions, partition)
    job_id, blind = selection.job_id(entry.topic_id, numbers), BlindSelection.from_selection(selection, entry.topic_id)
    plans = _looked(runner, entry, numbers, blind, now=now, task_bytes=task_bytes)
    shown = [plan_fields(plan) for plan in plans]
    lines = [*plan_table(shown), *stays(shown)]
    if app.dry_run:
        return app.out.result("spark erase", {"dry_run": True, "job": job_id, "partitions": shown}, lines)
    for line in lines:
        app.out.say(line)
    confirm(app, "spark erase", question(shown))
    common = {
        "topic": topic,
        "url": runner.url,
        "s3": dict(runner.s3),
        "job_id": job_id,
        "now": now,
        "selection": blind.as_json(),
    }
    receipts = runner.run("erasing", erase_partition, [{**common, **_plan_task(plan)} for plan in plans])
    return _conclude(runner, topic, job_id, receipts)


def _looked(
    runner: JobRunner, entry: TopicEntry, numbers: Sequence[int], blind: BlindSelection, *, now: bool, task_bytes: int
) -> list[ErasePlan]:
    """Search all partitions that have a catalog, in parts on Spark. Return a plan for each of them.

    ``task_bytes``: least bytes that one task reads. ``now``: raise ConfigError if a pin or a snapshot needs older
    versions.
    """

    def cut(number: int) -> Any:
        tp = TopicPartition(entry.name, number)
        return drive(runner.store, cut_erase_steps(tp, entry, blind, now=now, least_bytes=task_bytes))

    with planning_pool("erase") as pool:
        found = [each for each in pool.map(cut, numbers) if each is not None]
    parts = [part for each in found for part in each.parts]
    tasks = [{"part": dataclasses.asdict(part), "selection": blind.as_json()} for part in parts]
    looks = list(zip(parts, runner.run("reading", find_in_part, tasks), strict=True))
    return [
        join_results(each.plan, (look for part, look in looks if part.partition == each.plan.tp.partition))
        for each in found
    ]


def _plan_task(plan: ErasePlan) -> Task:
    """Return the plan as JSON, from which :func:`erase_partition` rebuilds it."""
    return {
        "partition": plan.tp.partition,
        "version": plan.version,
        "end_offset": plan.end_offset,
        "volume": plan.volume,
        "hits": [[list(hit.row), hit.records] for hit in plan.hits],
        "looked": dict(plan.looked),
        "stays": stays([plan_fields(plan)]),
    }


# -- in a worker -----------------------------------------------------------------------------------------------------


def find_in_part(store: Store, task: Task) -> Receipt:
    return drive(store, find_steps(CheckPart(**task["part"]), BlindSelection.from_json(task["selection"])))


def erase_partition(store: Store, task: Task) -> Receipt:
    """Erase the selected records from one partition, in a worker. Search the partition for records that remain.

    Write the result into the bucket, as the receipt of the erasure. Return its key, the result, and the commands that
    delete noncurrent versions.
    Raises UnknownTopicError if the topic was deleted and created again since the plan.
    """
    selection = BlindSelection.from_json(task["selection"])
    entry = drive(store, need_entry(task["topic"]))
    if entry.topic_id != selection.topic_id:
        raise UnknownTopicError(
            f"topic {entry.name} was deleted and created again during the erasure", hint="run the command again"
        )
    tp, owner = TopicPartition(entry.name, task["partition"]), owner_of("tiered spark erase")
    hits = tuple(Hit(Row(*row), records) for row, records in task["hits"])
    known = {name: task[name] for name in ("version", "end_offset", "volume", "looked")}
    plan = ErasePlan(tp, entry, segments=0, read_bytes=0, hits=hits, holders=(), **known)
    capabilities = capabilities_of(store)
    steps = erase_steps(plan, selection, owner, task["job_id"], now=task["now"], capabilities=capabilities)
    erased = drive(store, steps)
    facts = {
        "topic": tp.topic,
        "owner": owner,
        "stays": task["stays"],
        "disk": [],
        "noncurrent_versions": noncurrent_commands(StoreLocation.parse(task["url"], **task["s3"]), [erased]),
    }
    key = drive(store, receipt_steps(task["job_id"], entry.topic_id, selection, erased, facts))
    return {"receipt": key, "erased": as_fields(erased), "noncurrent_versions": facts["noncurrent_versions"]}


# -- the driver ------------------------------------------------------------------------------------------------------


def _conclude(runner: JobRunner, topic: str, job_id: str, receipts: Sequence[Receipt]) -> int:
    app, partitions = runner.app, [{"topic": topic, **each["erased"]} for each in receipts]
    left = [(one["partition"], each) for one in partitions for each in one["left"]]
    for number, each in left:
        app.out.warn(left_line(f"{topic}-{number}", each))
    fields = {
        "dry_run": False,
        "job": job_id,
        "receipts": [each["receipt"] for each in receipts],
        "proven": not left,
        "noncurrent_versions": [line for each in receipts for line in each["noncurrent_versions"]],
        "partitions": partitions,
    }
    text = [outcome_line(sum(one["records_now"] for one in partitions), len(left))]
    text += [f"receipt: {each['receipt']}" for each in receipts]
    return app.out.result("spark erase", fields, text, EXIT_LEFT if left else 0)
