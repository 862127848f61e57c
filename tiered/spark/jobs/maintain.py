"""Job of ``tiered spark maintain``: does what ``tiered maintain`` does, with several partitions in each task.

A task claims the role ``m`` of its partitions, plans them again and carries the plan out with the library's own steps.
A task that runs again finds nothing left to do, and one that meets another maintainer leaves the partition to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiered.arguments import chosen_partitions
from tiered.errors import CorruptionError, FencedError, LogDestroyedError, UnknownTopicError
from tiered.format.root import STATE_DELETING
from tiered.model import TopicPartition
from tiered.plan.jobs import TWO_PHASE_RECORDS, groups_by_size
from tiered.plan.maintenance import MaintenanceKind, MaintenancePlan
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES
from tiered.plan.survivors import PAIR_BYTES, SURVIVOR_BYTES
from tiered.program.application import Application, confirm, split_topic
from tiered.program.output import columns, counted, human_bytes
from tiered.remote.committer import owner_of
from tiered.remote.maintain import Maintainer
from tiered.remote.topics import TopicEntry, list_topics, load_topic_to_read
from tiered.spark.jobs import two_phase
from tiered.spark.jobs.run import JobRunner, Receipt, Task
from tiered.spark.subscription import planning_pool
from tiered.spark.worker import capabilities_of
from tiered.store.base import Capabilities, Store
from tiered.store.driver import drive

EXIT_WARNINGS = 3
MAX_PARTITIONS_A_TASK = 64
"""Most partitions of one task, however small."""

SHUFFLED_BYTES = PAIR_BYTES + SURVIVOR_BYTES
"""Most bytes that Spark shuffles for a record with a unique key."""

_ALONE = (CorruptionError, FencedError, LogDestroyedError)
"""Errors of one partition, which do not stop the others."""


@dataclass(frozen=True, slots=True)
class JobScope:
    """Request of one job. ``selected``: ``TOPIC`` or ``TOPIC:P``; None: all topics. ``task_bytes``: bytes of one task.

    ``two_phase_bytes``: compactions that write more are done in two phases. ``memory_bytes``: size of a map of keys.
    """

    selected: str | None
    kinds: tuple[MaintenanceKind, ...]
    task_bytes: int
    two_phase_bytes: int
    memory_bytes: int = DEDUPE_BUFFER_BYTES


@dataclass(frozen=True, slots=True)
class Due:
    """Due maintenance of one partition. ``in_two_phases``: its compaction is too large for one task."""

    plan: MaintenancePlan
    in_two_phases: bool

    def total(self, name: str) -> int:
        """Return the sum of the field ``name`` over all due actions."""
        return sum(max(getattr(action, name), 0) for action in self.plan.actions)

    @property
    def single_task_kinds(self) -> list[MaintenanceKind]:
        """Return the due kinds without a compaction in two phases. One task does all of them for this partition."""
        found = dict.fromkeys(action.kind for action in self.plan.actions)
        return [kind for kind in found if not (self.in_two_phases and kind is MaintenanceKind.COMPACT)]


def maintain(runner: JobRunner, wanted: JobScope) -> int:
    """Plan the job, ask the user, run it and print the result.

    Return the exit code: that of the first partition's error, otherwise 3 if an action left a note, otherwise 0.
    Raises UnknownTopicError for a selected topic that does not exist, ConfigError if the user does not confirm, and
    JobFailedError if a task failed.
    """
    app = runner.app
    due = _due(runner.store, wanted)
    table = _table(due) if due else ["nothing is to be done"]
    if app.dry_run or not due:
        return app.out.result("spark maintain", {"partitions": [_due_fields(each) for each in due]}, table)
    for line in table:
        app.out.say(line)
    confirm(app, "spark maintain", f"Maintain {counted(len(due), 'partition')}?")
    receipts = runner.run("maintaining", maintain_partitions, _tasks(due, wanted))
    done = [each for receipt in receipts for each in receipt["partitions"]]
    done += [_in_two_phases(runner, each, wanted) for each in due if each.in_two_phases]
    return _conclude(app, done)


def _due(store: Store, wanted: JobScope) -> list[Due]:
    partitions = list(_partitions(store, wanted.selected))
    with planning_pool("maintenance") as pool:
        plans = pool.map(lambda each: drive(store, _maintainer(*each).plan(wanted.kinds)), partitions)
        found = [plan for plan in plans if plan is not None and plan.actions]
    return [Due(plan, _is_large(plan, wanted.two_phase_bytes)) for plan in found]


def _is_large(plan: MaintenancePlan, two_phase_bytes: int) -> bool:
    return any(
        action.kind is MaintenanceKind.COMPACT
        and (action.bytes_written > two_phase_bytes or action.records > TWO_PHASE_RECORDS)  # both are upper bounds
        for action in plan.actions
    )


def _partitions(store: Store, selected: str | None) -> Iterator[tuple[TopicEntry, int]]:
    """Yield (topic, partition) for all partitions, or for those of ``selected`` (``TOPIC`` or ``TOPIC:P``).

    Topics that are being deleted are left out. Raises UnknownTopicError if ``selected`` names one, or no topic.
    """
    if selected is None:
        for entry in drive(store, list_topics()):
            if entry.state != STATE_DELETING:
                yield from ((entry, number) for number in range(entry.partitions))
        return
    topic, partition = split_topic(selected)
    named = drive(store, load_topic_to_read(topic))
    if named is None or named.state == STATE_DELETING:
        raise UnknownTopicError(f"there is no topic {topic!r}", hint="see `tiered topic list`")
    yield from ((named, number) for number in chosen_partitions(topic, named.partitions, partition))


def _maintainer(entry: TopicEntry, partition: int) -> Maintainer:
    tp, owner = TopicPartition(entry.name, partition), owner_of("tiered spark maintain")
    return Maintainer(tp, entry.topic_id, entry.settings, owner=owner, known=entry.known)


def _tasks(due: Sequence[Due], wanted: JobScope) -> list[Task]:
    mine = [each for each in due if each.single_task_kinds]
    sizes = [each.total("bytes_read") for each in mine]
    return [
        {
            "memory_bytes": wanted.memory_bytes,
            "partitions": [[*mine[at].plan.tp, mine[at].single_task_kinds] for at in group],
        }
        for group in groups_by_size(sizes, wanted.task_bytes, MAX_PARTITIONS_A_TASK)
    ]


# -- in a worker -----------------------------------------------------------------------------------------------------


def maintain_partitions(store: Store, task: Task) -> Receipt:
    """Carry out the maintenance that is due now for the partitions of one task, in a worker.

    Return the actions of each partition as JSON values. Damage, fencing or loss of one partition is returned as its
    error, and does not stop the others.
    """
    capabilities = capabilities_of(store)
    return {"partitions": [_maintained(store, each, task, capabilities) for each in task["partitions"]]}


def _maintained(store: Store, each: Sequence[Any], task: Task, capabilities: Capabilities) -> dict[str, Any]:
    topic, partition, words = each
    found: dict[str, Any] = {"topic": topic, "partition": partition, "actions": []}
    entry = drive(store, load_topic_to_read(topic))
    if entry is None or entry.state == STATE_DELETING:
        return {**found, "note": "the topic was deleted meanwhile"}
    maintainer = _maintainer(entry, partition)
    try:
        plan = drive(store, maintainer.plan([MaintenanceKind(word) for word in words]))
        if plan is not None and plan.actions:
            drive(store, maintainer.require_newest_root(sweeps=False))  # a commit to an older root would hide its age
        for action in plan.actions if plan is not None else ():
            ended = drive(store, maintainer.run(action, capabilities, memory_bytes=task["memory_bytes"]))
            found["actions"].append(
                {
                    "kind": action.kind.value,
                    "start": action.start,
                    "end": action.end,
                    "rows_in": action.rows_in,
                    "bytes_read": ended.bytes_read,
                    "bytes_written": ended.bytes_written,
                    "note": ended.note,
                }
            )
    except _ALONE as error:
        found["error"] = error.as_json()
    return found


# -- the driver ------------------------------------------------------------------------------------------------------


def _in_two_phases(runner: JobRunner, due: Due, wanted: JobScope) -> dict[str, Any]:
    tp, why = due.plan.tp, next(action.reason for action in due.plan.actions if action.kind is MaintenanceKind.COMPACT)
    found: dict[str, Any] = {"topic": tp.topic, "partition": tp.partition, "actions": []}
    sizes = {"part_bytes": wanted.task_bytes, "memory_bytes": wanted.memory_bytes}
    try:
        found["actions"], note = two_phase.compact(runner, tp, why, **sizes)
    except _ALONE as error:
        return {**found, "error": error.as_json()}
    return {**found, "note": note} if note else found


def _conclude(app: Application, done: Sequence[Mapping[str, Any]]) -> int:
    actions = [one for each in done for one in each["actions"]]
    lines = []
    for each in done:
        name = f"{each['topic']}-{each['partition']}"
        notes = [each["error"]["message"]] if "error" in each else []
        notes += [each["note"]] if "note" in each else []
        lines += [f"{name}: {note}" for note in (*notes, *(one["note"] for one in each["actions"])) if note]
        lines += [
            f"{name}: two phases, {counted(one['pairs'], 'key')} shuffled, {counted(one['survivors'], 'survivor')}, "
            f"{counted(one['groups'], 'segment')} written"
            for one in each["actions"]
            if "pairs" in one
        ]
    read, written = (sum(one[name] for one in actions) for name in ("bytes_read", "bytes_written"))
    head = f"{counted(len(actions), 'action')} done, {human_bytes(read)} read, {human_bytes(written)} written"
    errors = [int(each["error"]["exit_code"]) for each in done if "error" in each]
    noted = any("note" in each or any(one["note"] for one in each["actions"]) for each in done)
    code = errors[0] if errors else EXIT_WARNINGS if noted else 0
    lines.append(head if actions else "nothing was to be done")
    return app.out.result("spark maintain", {"partitions": list(done)}, lines, code)


_FIELDS = ("rows_in", "rows_out", "bytes_read", "bytes_written", "requests", "garbage_bytes", "records")


def _due_fields(due: Due) -> dict[str, Any]:
    return {
        "topic": due.plan.tp.topic,
        "partition": due.plan.tp.partition,
        "actions": [action.kind.value for action in due.plan.actions],
        "in_two_phases": due.in_two_phases,
        "why": due.plan.actions[0].reason,
        "notes": list(due.plan.notes),
        **{name: due.total(name) for name in _FIELDS},
    }


def _table(due: Sequence[Due]) -> list[str]:
    header = ["partition", "actions", "rows in", "rows out", "read", "written", "garbage", "shuffled", "why"]
    rows = [
        [
            each.plan.tp,
            ",".join(dict.fromkeys(action.kind.value for action in each.plan.actions)),
            each.total("rows_in"),
            each.total("rows_out"),
            human_bytes(each.total("bytes_read")),
            human_bytes(each.total("bytes_written")),
            human_bytes(each.total("garbage_bytes")),
            f"at most {human_bytes(round(each.total('records') * SHUFFLED_BYTES))}" if each.in_two_phases else "-",
            each.plan.actions[0].reason,
        ]
        for each in due
    ]
    return [*columns(header, rows), *(f"{each.plan.tp}: {note}" for each in due for note in each.plan.notes)]
