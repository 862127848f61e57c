"""``compact``, ``merge``, ``retention``, ``reencode``: what ``tiered maintain`` does, one partition a task.

A task claims the role ``m`` of its partitions, plans them anew and carries the plan out with the library's own steps.
So a task that is done again finds nothing left to do, and one that meets another maintainer leaves the partition to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tiered.config import TopicConfig
from tiered.errors import CorruptionError, FencedError, LogDestroyedError, UnknownTopicError
from tiered.format.root import STATE_DELETING
from tiered.model import TopicPartition
from tiered.plan.jobs import bundled
from tiered.plan.maintenance import Kind, PartitionPlan
from tiered.program.output import columns, counted, human_bytes
from tiered.remote.fence import owner_of
from tiered.remote.maintain import Maintainer
from tiered.remote.topics import TopicEntry, list_topics, load_topic_to_read
from tiered.spark.jobs.job import Outcome, Run
from tiered.spark.jobs.plan import JobPlan, Receipt, Task
from tiered.spark.jobs.status import task_capabilities
from tiered.spark.subscription import planning_pool
from tiered.store.base import Store
from tiered.store.driver import drive

EXIT_WARNINGS = 3
MAX_PARTITIONS_A_TASK = 64
"""Partitions of one task, however little each of them costs."""

FIELDS = ("rows_in", "rows_out", "bytes_read", "bytes_written", "requests", "garbage_bytes", "records")


@dataclass(frozen=True, slots=True)
class MaintenanceJob:
    """One kind of maintenance. Arguments: ``topics`` (none: all), ``task_bytes``, ``memory_bytes`` of a map of keys;
    ``settings`` that count instead of a topic's own."""

    name: str
    kind: Kind

    def plan(self, store: Store, arguments: Mapping[str, Any], now_ms: int) -> JobPlan:
        """What is due now; a task looks again when it begins. Raises UnknownTopicError."""
        due, notes = self.due(store, arguments["topics"], arguments.get("settings", {}))
        return JobPlan(self.name, arguments, now_ms, bundles(due, arguments["task_bytes"]), {"notes": notes})

    def due(
        self, store: Store, topics: list[str], settings: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """What is due of each partition, and what is to be said of them. Raises UnknownTopicError."""
        entries = list(_entries(store, topics))
        wanted = [(entry, partition) for entry in entries for partition in range(entry.partitions)]
        with planning_pool("maintenance") as pool:
            planned = pool.map(
                lambda each: drive(store, self._maintainer(each[0], each[1], settings).plan((self.kind,))), wanted
            )
            plans = [plan for plan in planned if plan is not None and plan.actions]
        due = [{"topic": plan.tp.topic, "partition": plan.tp.partition, **_totals(plan)} for plan in plans]
        return due, [f"{plan.tp}: {note}" for plan in plans for note in plan.notes]

    def _maintainer(self, entry: TopicEntry, partition: int, settings: Mapping[str, str]) -> Maintainer:
        config = TopicConfig.from_properties({**entry.config, **settings})
        tp = TopicPartition(entry.name, partition)
        return Maintainer(tp, entry.topic_id, config, owner=owner_here(self.name), known=entry.known)

    def table(self, plan: JobPlan) -> list[str]:
        """One line for each partition."""
        header = ["partition", "actions", "rows in", "rows out", "read", "written", "requests", "garbage", "why"]
        due = [each for task in plan.tasks for each in task["partitions"]]
        rows = [
            [
                f"{each['topic']}-{each['partition']}",
                each["actions"],
                each["rows_in"],
                each["rows_out"],
                human_bytes(each["bytes_read"]),
                human_bytes(each["bytes_written"]),
                each["requests"],
                human_bytes(each["garbage_bytes"]),
                each["why"],
            ]
            for each in sorted(due, key=lambda each: (each["topic"], each["partition"]))
        ]
        head = f"{counted(len(plan.tasks), 'task')}, {human_bytes(sum(each['bytes_read'] for each in due))} to read"
        notes = [f"note: {note}" for note in plan.facts["notes"]]
        return [*columns(header, rows), *notes, head] if rows else ["nothing is to be done"]

    def work(self, store: Store, plan: JobPlan, task: Task) -> Receipt:
        """What is due of each partition by now. What is wrong with one keeps no other from its turn."""
        capabilities = task_capabilities(store)
        done: list[dict[str, Any]] = []
        for each in task["partitions"]:
            told: dict[str, Any] = {"topic": each["topic"], "partition": each["partition"], "actions": []}
            done.append(told)
            entry = drive(store, load_topic_to_read(each["topic"]))
            if entry is None or entry.state == STATE_DELETING:
                told["note"] = "the topic was deleted meanwhile"
                continue
            maintainer = self._maintainer(entry, each["partition"], plan.arguments.get("settings", {}))
            try:
                found = drive(store, maintainer.plan((self.kind,)))
                if found is not None and found.actions:
                    drive(store, maintainer.need_newest(sweeps=False))  # what is committed to an older root hides it
                for action in found.actions if found is not None else ():
                    steps = maintainer.run(action, capabilities, memory_bytes=plan.arguments["memory_bytes"])
                    ended = drive(store, steps)
                    told["actions"].append(
                        {
                            "start": action.start,
                            "end": action.end,
                            "rows_in": action.rows_in,
                            "bytes_read": ended.bytes_read,
                            "bytes_written": ended.bytes_written,
                            "note": ended.note,
                        }
                    )
            except (CorruptionError, FencedError, LogDestroyedError) as error:
                told["error"] = error.as_json()
        return {"partitions": done}

    def carry_out(self, run: Run) -> Outcome:
        """All partitions; the exit code of the first that failed, 3 where others were in the way."""
        return outcome([each for receipt in run.tasks(self.name) for each in receipt["partitions"]])

    def lines(self, fields: Mapping[str, Any]) -> list[str]:
        """How much was done, and what was not."""
        done = fields["partitions"]
        actions = [one for each in done for one in each["actions"]]
        read, written = (sum(one[name] for one in actions) for name in ("bytes_read", "bytes_written"))
        names = {id(each): f"{each['topic']}-{each['partition']}" for each in done}
        wrong = [f"{names[id(each)]}: {each['error']['message']}" for each in done if "error" in each]
        wrong += [f"{names[id(each)]}: {each['note']}" for each in done if "note" in each]
        wrong += [f"{names[id(each)]}: {one['note']}" for each in done for one in each["actions"] if one["note"]]
        head = f"{counted(len(actions), 'action')} done, {human_bytes(read)} read, {human_bytes(written)} written"
        return [*wrong, head if actions else "nothing was to be done"]


def owner_here(job: str) -> str:
    """How a claim of this process is told."""
    return owner_of(f"tiered spark {job}")


def bundles(due: Sequence[Mapping[str, Any]], task_bytes: int) -> tuple[Task, ...]:
    """Tasks of whole partitions."""
    sizes = [each["bytes_read"] for each in due]
    return tuple(
        {"partitions": [due[at] for at in group], "size_bytes": sum(sizes[at] for at in group)}
        for group in bundled(sizes, task_bytes, MAX_PARTITIONS_A_TASK)
    )


def outcome(done: Sequence[Mapping[str, Any]]) -> Outcome:
    """Of what was done to each partition."""
    errors = [each["error"]["exit_code"] for each in done if "error" in each]
    noted = any("note" in each or any(one["note"] for one in each["actions"]) for each in done)
    code = int(errors[0]) if errors else EXIT_WARNINGS if noted else 0
    return Outcome({"partitions": list(done)}, code)


def _entries(store: Store, topics: list[str]) -> Iterator[TopicEntry]:
    """Those that are not being deleted. Raises why an entry cannot be read: a job says of all topics what it did."""
    if not topics:
        try:
            entries = drive(store, list_topics())
        except CorruptionError as damage:
            damage.hint = f"name the other topics to go on without it; {damage.hint}"
            raise
        yield from (entry for entry in entries if entry.state != STATE_DELETING)
    for name in topics:
        entry = drive(store, load_topic_to_read(name))
        if entry is None or entry.state == STATE_DELETING:
            raise UnknownTopicError(f"there is no topic {name!r}", hint="see `tiered topics list`")
        yield entry


def _totals(plan: PartitionPlan) -> dict[str, Any]:
    found = {name: sum(max(getattr(action, name), 0) for action in plan.actions) for name in FIELDS}
    return {**found, "actions": len(plan.actions), "why": plan.actions[0].reason}
