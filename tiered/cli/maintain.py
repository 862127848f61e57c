"""``tiered maintain plan|run``: retention, merging and compaction of the bucket, planned before they are done."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import click

from tiered.config import TopicConfig
from tiered.errors import ConfigError
from tiered.model import TopicPartition
from tiered.plan.known import NOTHING_KNOWN
from tiered.plan.maintenance import Action, Kind, PartitionPlan
from tiered.program.application import Application, Command, Group, confirm, pass_application, split_topic
from tiered.program.doors import Tiers, TopicFacts, chosen_partitions, open_tiers
from tiered.program.output import columns, counted, human_bytes
from tiered.program.progress import Progress
from tiered.remote.fence import owner_of
from tiered.remote.maintain import Maintainer
from tiered.times import format_time

PROGRAM = "tiered maintain"
DOABLE = (Kind.RETENTION,)
"""What this release carries out; the others are planned only."""


@click.group("maintain", cls=Group)
def command() -> None:
    """Retention, merging and compaction of what is in the bucket."""


def _only(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[Kind, ...]:
    if value is None:
        return tuple(Kind)
    words = [word.strip() for word in value.split(",")]
    unknown = [word for word in words if word not in set(Kind)]
    if unknown:
        raise ConfigError(f"--only {unknown[0]!r} is no kind of maintenance", hint=f"one of {', '.join(Kind)}")
    return tuple(Kind(word) for word in words)


_SELECTED = click.argument("selected", required=False, metavar="[TOPIC[:P]]")
_KINDS = click.option("--only", "kinds", callback=_only, metavar="KINDS", help="retention,merge,compact,collect")
_BEGIN = click.option(
    "--start-offset", "begin_at", type=click.IntRange(0), metavar="N", help="the partition is to begin at offset N"
)


@command.command("plan", cls=Command)
@_SELECTED
@_KINDS
@_BEGIN
@pass_application
def plan_command(app: Application, *, selected: str | None, kinds: tuple[Kind, ...], begin_at: int | None) -> int:
    """Print what is to be done, why, and what it costs. Nothing is changed.

    \b
    Examples:
      tiered maintain plan --remote s3://acme-logs/prod
      tiered maintain plan flights:0 --remote s3://acme-logs/prod --only retention --json
    """
    app.need_remote()
    with open_tiers(app, with_local=False) as tiers:
        plans = [plan for _, plan in _planned(tiers, selected, kinds, begin_at)]
    return _conclude(app, "maintain plan", plans, done=None)


@command.command("run", cls=Command)
@_SELECTED
@_KINDS
@_BEGIN
@click.option("--dry-run", is_flag=True, help="print the plan only")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_application
def run_command(
    app: Application,
    *,
    selected: str | None,
    kinds: tuple[Kind, ...],
    begin_at: int | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Do what `maintain plan` prints, one action after the other. Readers and writers go on meanwhile.

    \b
    Examples:
      tiered maintain run flights --remote s3://acme-logs/prod --dry-run
      tiered maintain run --remote s3://acme-logs/prod --only retention,merge --yes
    """
    app.need_remote()
    done = 0
    with open_tiers(app, with_local=False) as tiers:
        planned = list(_planned(tiers, selected, tuple(kind for kind in kinds if kind in DOABLE), begin_at))
        plans = [plan for _, plan in planned]
        work = [(maintainer, plan, action) for maintainer, plan in planned for action in plan.actions]
        if work and not dry_run:
            for line in _table(plans):
                app.out.say(line)
            confirm(app, "maintain run", f"Do {counted(len(work), 'action')}?", yes=yes)
            total = sum(action.bytes_read for _, _, action in work)
            with Progress(app, "maintaining", total=total, is_bytes=True) as progress:
                for maintainer, plan, action in work:
                    tiers.run(maintainer.run(action))
                    done += 1
                    progress.advance(action.bytes_read, f"{plan.tp} {action.kind}")
    return _conclude(app, "maintain run", plans, done=None if dry_run else done)


def _planned(
    tiers: Tiers, selected: str | None, kinds: tuple[Kind, ...], begin_at: int | None
) -> Iterator[tuple[Maintainer, PartitionPlan]]:
    name, partition = split_topic(selected) if selected is not None else (None, None)
    if begin_at is not None and partition is None:
        raise ConfigError("--start-offset is for one partition", hint="name it: TOPIC:P")
    owner = owner_of(socket.gethostname(), os.getpid(), PROGRAM)
    topics = tiers.topics() if name is None else {name: tiers.need_topic(name)}
    for facts in topics.values():
        for number in chosen_partitions(facts.name, facts.partitions, partition):
            maintainer = _maintainer(facts, number, owner)
            plan = tiers.run(maintainer.plan(kinds, begin_at=begin_at)) if maintainer is not None else None
            if maintainer is not None and plan is not None:
                yield maintainer, plan


def _maintainer(facts: TopicFacts, partition: int, owner: str) -> Maintainer | None:
    if facts.entry is None:
        return None
    tp, config = TopicPartition(facts.name, partition), TopicConfig.from_properties(facts.config)
    return Maintainer(tp, facts.entry.topic_id, config, owner=owner, known=NOTHING_KNOWN)


def _conclude(app: Application, name: str, plans: list[PartitionPlan], done: int | None) -> int:
    for plan in plans:
        for note in plan.notes:
            app.out.warn(f"{plan.tp}: {note}")
    actions = sum(len(plan.actions) for plan in plans)
    fields: dict[str, Any] = {"partitions": [_fields(plan) for plan in plans], "actions": actions, "done": done}
    if done is None:
        text = _table(plans) if actions else ["nothing is to be done"]
    else:
        text = [f"{counted(done, 'action')} done" if done else "nothing was to be done"]
    return app.out.result(name, fields, text)


def _table(plans: list[PartitionPlan]) -> list[str]:
    header = ["partition", "action", "from", "to", "rows in", "rows out", "read", "written", "requests", "garbage"]
    rows: list[list[object]] = []
    for plan in plans:
        for action in plan.actions:
            garbage = "?" if action.garbage_bytes < 0 else human_bytes(action.garbage_bytes)
            rows.append(
                [
                    plan.tp,
                    action.kind,
                    action.start,
                    action.end,
                    action.rows_in,
                    action.rows_out,
                    human_bytes(action.bytes_read),
                    human_bytes(action.bytes_written),
                    action.requests,
                    garbage,
                    format_time(action.frees_at_ms),
                    action.reason,
                ]
            )
    return columns([*header, "gone from", "why"], rows) if rows else []


def _fields(plan: PartitionPlan) -> dict[str, Any]:
    return {
        "topic": plan.tp.topic,
        "partition": plan.tp.partition,
        "version": plan.version,
        "actions": [_action_fields(action) for action in plan.actions],
        "notes": list(plan.notes),
    }


def _action_fields(action: Action) -> dict[str, Any]:
    return {
        "action": action.kind.value,
        "start_offset": action.start,
        "end_offset": action.end,
        "reason": action.reason,
        "rows_in": action.rows_in,
        "rows_out": action.rows_out,
        "bytes_read": action.bytes_read,
        "bytes_written": action.bytes_written,
        "requests": action.requests,
        "garbage_objects": action.garbage_objects,
        "garbage_bytes": action.garbage_bytes,
        "frees_at_ms": action.frees_at_ms,
    }
