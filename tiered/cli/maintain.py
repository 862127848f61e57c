"""``tiered maintain``: retention, merging, compaction and garbage collection of the bucket."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from tiered.arguments import chosen_partitions
from tiered.config import parse_duration_ms
from tiered.errors import (
    ConfigError,
    CorruptionError,
    FencedError,
    LogDestroyedError,
    RemotePermissionError,
    TieredError,
)
from tiered.format.root import STATE_DELETING
from tiered.model import TopicPartition
from tiered.plan.maintenance import MaintenanceAction, MaintenanceKind, MaintenancePlan
from tiered.program.application import Application, Command, confirm, pass_application, split_topic
from tiered.program.maintenance_loop import MaintenanceLoop, Scope, UpkeepView, kinds_option, room_for
from tiered.program.open_log import Tiers, TopicFacts, open_tiers, warn_unreadable
from tiered.program.open_store import open_remote
from tiered.program.output import (
    Progress,
    columns,
    counted,
    human_bytes,
    human_duration,
    metrics_option,
    write_metrics,
)
from tiered.program.settings import store_limits, with_limits
from tiered.remote.committer import owner_of
from tiered.remote.gc.audit import is_refused_deletion
from tiered.remote.gc.deletion import resume_topic_deletion
from tiered.remote.gc.orphans import Swept, sweep_strays
from tiered.remote.gc.sink_orphans import sweep_decisions
from tiered.remote.maintain import ActionResult, Maintainer
from tiered.store.base import Steps
from tiered.store.capabilities import check_capabilities, probe
from tiered.store.limit import Limits, Slots
from tiered.store.threads import ThreadPool
from tiered.times import format_time

PROGRAM = "tiered maintain"
T = TypeVar("T")
EXIT_WARNINGS = 3

Failed = dict[TopicPartition, TieredError]
"""Errors by partition of those that were left out."""


def _every(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    found = parse_duration_ms(value, "--loop")
    if found < 1:
        raise ConfigError(
            f"--loop {value}: the pause between rounds must be longer than 0", hint="for example 10m or 1h"
        )
    return found


@click.command("maintain", cls=Command, exits={3: "something was left"})
@click.argument("selected", required=False, metavar="[TOPIC[:P]]")
@kinds_option
@click.option("--orphans", is_flag=True, help="also delete objects that no catalog names; lists")
@click.option(
    "--loop", "every", callback=_every, metavar="EVERY", help="run again after this rest (10m), until SIGTERM"
)
@click.option(
    "--start-offset", "begin_at", type=click.IntRange(0), metavar="N", help="trim the partition up to offset N"
)
@metrics_option
@with_limits
@pass_application
def command(
    app: Application,
    *,
    selected: str | None,
    kinds: tuple[MaintenanceKind, ...],
    orphans: bool,
    every: int | None,
    begin_at: int | None,
    metrics_file: Path | None,
    **limits: str | None,
) -> int:
    """Expire, merge and compact in the bucket, and delete garbage.

    Readers and writers continue meanwhile. Garbage is what the catalog names no more: it is deleted after gc.grace.ms,
    unless a reader's pin or a snapshot holds it. Orphans are deleted a day after their upload, if no writer can commit
    them any more. With --orphans and without a topic, strays of destroyed topics and old decisions of Spark sinks are
    deleted, too. A deletion leaves a line below jobs/gc/.

    Limits are those of the daemon: TIERED_UPLOADER_MEMORY and so on, or the table [uploader] of the file.

    \b
    Examples:
      tiered maintain flights --remote s3://acme-logs/prod --dry-run
      tiered maintain --remote s3://acme-logs/prod --only retention,merge --yes
      tiered maintain --remote s3://acme-logs/prod --only collect --orphans --yes
      tiered maintain --remote s3://acme-logs/prod --loop 1h --yes
    """
    wanted = MaintainScope(selected, kinds, begin_at, orphans, limits)
    if every is None:
        if metrics_file is not None:
            raise ConfigError("--metrics needs --loop", hint="add --loop 1h, or leave it out")
        return _once(app, wanted)
    given = {"--dry-run": app.dry_run, "--start-offset": begin_at is not None, "--orphans": orphans}
    for option in (name for name, is_given in given.items() if is_given):
        raise ConfigError(f"{option} is for a single run and does not go with --loop", hint="leave one of them out")
    if not app.yes:
        raise ConfigError(
            "--loop runs without questions and needs --yes",
            hint="pass --yes; --dry-run without --loop shows what is due now",
        )
    return _loop(app, wanted, every, metrics_file)


@dataclass(frozen=True, slots=True)
class MaintainScope:
    """Partitions and kinds of maintenance to run. ``orphans``: also delete orphans.

    ``selected``: ``TOPIC`` or ``TOPIC:P``; None: all topics. ``begin_at``: new first offset of the partition; None: no
    trim. ``limits``: those on the command line; the environment and the file may have others.
    """

    selected: str | None
    kinds: tuple[MaintenanceKind, ...]
    begin_at: int | None = None
    orphans: bool = False
    limits: Mapping[str, str | None] = field(default_factory=dict)


def _once(app: Application, wanted: MaintainScope) -> int:
    dry_run = app.dry_run
    if wanted.begin_at is not None and MaintenanceKind.RETENTION not in wanted.kinds:
        kinds = ",".join(wanted.kinds)
        raise ConfigError(
            f"--start-offset needs retention, and --only {kinds} leaves it out",
            hint=f"leave one of them out, or --only {MaintenanceKind.RETENTION},{kinds}",
        )
    app.need_remote()
    limits = Limits.from_config(store_limits(wanted.limits, os.environ, app.config), clock=app.clock)
    done: list[ActionResult] = []
    swept: dict[TopicPartition, Swept] = {}
    failed: Failed = {}
    with open_tiers(app, with_local=False, limits=limits) as tiers:
        topic = split_topic(wanted.selected)[0] if wanted.selected is not None else None
        unreadable: dict[str, TieredError] = {}
        topics = tiers.topics(unreadable=unreadable) if topic is None else {topic: tiers.need_topic(topic)}
        unread = warn_unreadable(app, unreadable)
        planned = list(_planned(tiers, topics, wanted, failed))
        plans = [plan for _, plan in planned]
        work = [(maintainer, plan, action) for maintainer, plan in planned for action in plan.actions]
        if (work or wanted.orphans) and not dry_run:
            for line in _table(plans):
                app.out.say(line)
            what = f"Do {counted(len(work), 'action')}" + (", delete orphans?" if wanted.orphans else "?")
            confirm(app, "maintain", what)
            done = _carry_out(app, tiers, work, failed, limits.memory)
        if dry_run and MaintenanceKind.COLLECT in wanted.kinds:
            _print_pins(app, tiers, planned, failed)
        for each, plan in planned if wanted.orphans else ():
            entry = topics[plan.tp.topic].entry
            if entry is not None and entry.state == STATE_DELETING:  # the actions above delete all of it
                continue
            with _by_itself(plan.tp, failed):
                swept[plan.tp] = tiers.run(each.sweep(delete=not dry_run))
        damaged: list[CorruptionError] = []
        strays: Swept | None = None
        if wanted.orphans and topic is None:
            damaged = _sweep_decisions(app, tiers, delete=not dry_run)
            if unreadable:
                app.out.warn("nothing of deleted topics is swept: what looks like it may be of a topic named above")
            else:
                strays = _sweep_strays(app, tiers, delete=not dry_run)
        for facts in topics.values() if not dry_run else ():
            if facts.entry is not None and facts.entry.state == STATE_DELETING:
                with _by_itself(TopicPartition(facts.name, 0), failed):
                    tiers.run(resume_topic_deletion(facts.entry, owner_of(PROGRAM)))
    for tp, error in failed.items():
        app.out.warn(f"{tp}: {error}")
    code = unread or next((error.exit_code for error in (*failed.values(), *damaged)), 0)
    return _conclude(app, plans, None if dry_run else done, swept, strays, code)


def _print_pins(
    app: Application, tiers: Tiers, planned: Sequence[tuple[Maintainer, MaintenancePlan]], failed: Failed
) -> None:
    """Print the pins and snapshots that protect garbage, and the expired pins, for each partition that has any.

    ``failed``: gets the error of a partition whose pins cannot be read.
    """
    for maintainer, plan in planned:
        pins = None
        with _by_itself(plan.tp, failed), contextlib.suppress(RemotePermissionError):
            pins = tiers.run(maintainer.pins())
        if pins is None or not (pins.count or pins.expired):
            continue
        snapshots, expired = pins.count - pins.readers, len(pins.expired)
        if app.out.json_mode:
            counts = {"readers": pins.readers, "snapshots": snapshots, "lowest": pins.lowest, "expired": expired}
            app.out.message("pins", topic=plan.tp.topic, partition=plan.tp.partition, **counts)
            continue
        if pins.count:
            who = f"{counted(pins.readers, 'pin')} of readers and {counted(snapshots, 'snapshot')} hold"
            app.out.say(f"{plan.tp}: {who} what left the catalog after version {pins.lowest}")
        if expired:
            app.out.say(
                f"{plan.tp}: nothing is held by {counted(expired, 'expired pin')}: gone with the next collection"
            )


def _swept(app: Application, tiers: Tiers, steps: Steps[T], what: str) -> T | None:
    """Run a sweep and return its result. Without permission to list, warn and return None. ``what``: the warning."""
    try:
        return tiers.run(steps)
    except RemotePermissionError as error:  # a role that may not list
        if is_refused_deletion(error):
            raise
        app.out.warn(f"{what}: {error.message} ({error.hint})")
        return None


def _sweep_strays(app: Application, tiers: Tiers, *, delete: bool) -> Swept | None:
    """Delete strays, which belong to no topic. Without ``delete`` only count them. None: they cannot be listed."""
    return _swept(app, tiers, sweep_strays(delete=delete), "what deleted topics have left is not known")


def _sweep_decisions(app: Application, tiers: Tiers, *, delete: bool) -> list[CorruptionError]:
    """Delete obsolete decisions of sinks of all topics. Return the errors of unreadable ones, already printed."""
    old = _swept(app, tiers, sweep_decisions(delete=delete), "old decisions of sinks are not known")
    if old is None:
        return []
    for key, damage in old.damaged.items():
        app.out.warn(f"{key} cannot be read: {damage}")
    if old.keys:
        app.out.say(f"{counted(len(old.keys), 'old decision')} of sinks {'deleted' if delete else 'would be deleted'}")
    return list(old.damaged.values())


@contextlib.contextmanager
def _by_itself(tp: TopicPartition, failed: Failed) -> Iterator[None]:
    """Record an error of one partition in ``failed``, so that the others are still maintained."""
    try:
        yield
    except (CorruptionError, FencedError, LogDestroyedError) as error:
        failed[tp] = error


def _carry_out(
    app: Application,
    tiers: Tiers,
    work: Sequence[tuple[Maintainer, MaintenancePlan, MaintenanceAction]],
    failed: Failed,
    memory: Slots,
) -> list[ActionResult]:
    """Run the actions one after the other. Return the results; after an error the rest of a partition is skipped."""
    capabilities = tiers.run(probe())
    check_capabilities(capabilities, app.need_remote())
    done: list[ActionResult] = []
    total = sum(action.bytes_read for _, _, action in work)
    with Progress(app, "maintaining", total=total, is_bytes=True) as progress:
        for maintainer, plan, action in work:
            note = f"{plan.tp} {action.kind}"

            def spend(count: int, note: str = note) -> None:
                progress.advance(count, note)

            if plan.tp in failed:
                continue
            with _by_itself(plan.tp, failed), room_for(action, memory) as map_bytes:
                done.append(tiers.run(maintainer.run(action, capabilities, spend=spend, memory_bytes=map_bytes)))
                if done[-1].note:
                    app.out.warn(f"{note} {action.start} to {action.end}: {done[-1].note}")
    return done


def _planned(
    tiers: Tiers, topics: Mapping[str, TopicFacts], wanted: MaintainScope, failed: Failed
) -> Iterator[tuple[Maintainer, MaintenancePlan]]:
    _, partition = split_topic(wanted.selected) if wanted.selected is not None else (None, None)
    if wanted.begin_at is not None and partition is None:
        raise ConfigError("--start-offset needs a single partition", hint="name the partition: TOPIC:P")
    owner = owner_of(PROGRAM)
    for facts in topics.values():
        for number in chosen_partitions(facts.name, facts.partitions, partition):
            tp = TopicPartition(facts.name, number)
            if facts.entry is None:
                continue
            try:
                settings = facts.entry.settings
            except ConfigError as unknown:
                failed[tp] = unknown
                continue
            maintainer = Maintainer(tp, facts.entry.topic_id, settings, owner=owner, known=facts.entry.known)
            with _by_itself(tp, failed):
                if (plan := _plan_of(tiers, maintainer, wanted)) is not None:
                    yield maintainer, plan


def _plan_of(tiers: Tiers, maintainer: Maintainer, wanted: MaintainScope) -> MaintenancePlan | None:
    if wanted.orphans:
        tiers.run(maintainer.require_newest_root())
    plan = tiers.run(maintainer.plan(wanted.kinds, begin_at=wanted.begin_at))
    if plan is not None and plan.actions and not wanted.orphans:
        tiers.run(maintainer.require_newest_root(sweeps=False))  # a rewrite of an older root would hide its age
    return plan


def _conclude(  # noqa: PLR0917 - private, what one run has come to
    app: Application,
    plans: list[MaintenancePlan],
    done: list[ActionResult] | None,
    swept: dict[TopicPartition, Swept],
    strays: Swept | None,
    code: int,
) -> int:
    for plan in plans:
        for note in plan.notes:
            app.out.warn(f"{plan.tp}: {note}")
    actions = sum(len(plan.actions) for plan in plans)
    fields: dict[str, Any] = {"dry_run": done is None, "actions": actions}
    fields["partitions"] = [_fields(plan, swept.get(plan.tp)) for plan in plans]
    if done is None:
        waiting = [plan for plan in plans if plan.merge_due_ms >= 0 and not plan.actions]
        text = _table(plans) if actions else [f"nothing is to be done{' now' if waiting else ''}"]
        text += [
            f"{plan.tp}: a merge of small segments is due in "
            f"{human_duration(max(0, plan.merge_due_ms - app.clock.now_ms()))}, by merge.idle.ms"
            for plan in waiting
        ]
    else:
        fields["done"] = [_done_fields(one) for one in done]
        read, written = sum(one.bytes_read for one in done), sum(one.bytes_written for one in done)
        text = [f"{counted(len(done), 'action')} done, {human_bytes(read)} read, {human_bytes(written)} written"]
        text = text if done else ["nothing was to be done"]
    for tp, found in swept.items():
        text += _swept_lines(app, found, f"{tp}: {counted(found.count, 'orphan')}", f"{tp}", dry_run=done is None)
    if strays is not None:
        fields["strays"] = {"objects": strays.count, "size_bytes": strays.size_bytes}
        if strays.count:
            title = f"{counted(strays.count, 'stray')} of no topic"
            text += _swept_lines(app, strays, title, "of no topic", dry_run=done is None)
    left = any(each.readers for each in swept.values())
    incomplete = any(one.note for one in done or ()) or left
    return app.out.result("maintain", fields, text, code or (EXIT_WARNINGS if incomplete else 0))


def _swept_lines(app: Application, found: Swept, title: str, where: str, *, dry_run: bool) -> list[str]:
    """Return lines about a sweep, which begin with ``title``. Warn of what it left. ``where``: what was swept."""
    verb = "would be deleted" if dry_run else "left alone" if found.readers else "deleted"
    if found.readers:
        app.out.warn(f"{where}: nothing was swept: {counted(found.readers, 'reader')} pinned it; try again later")
    return [f"{title}, {human_bytes(found.size_bytes)}, {verb}"]


def _loop(app: Application, wanted: MaintainScope, every_ms: int, metrics_file: Path | None) -> int:
    """Run rounds until a signal, on a thread whose locks no signal handler needs. Return the exit code."""
    name, partition = split_topic(wanted.selected) if wanted.selected is not None else (None, None)
    limits = Limits.from_config(store_limits(wanted.limits, os.environ, app.config), clock=app.clock)

    def on_done(tp: TopicPartition, done: ActionResult) -> None:
        size = f"{human_bytes(done.bytes_read)} read, {human_bytes(done.bytes_written)} written"
        if app.out.json_mode:
            app.out.message("done", topic=tp.topic, partition=tp.partition, **_done_fields(done))
        else:
            app.out.line(f"{tp} {done.action.kind} {done.action.start} to {done.action.end}: {done.note or size}")
        app.out.flush()

    def on_failed(tp: TopicPartition | None, error: TieredError) -> None:
        app.out.warn(f"{tp}: {error}" if tp is not None else str(error))

    def note(view: UpkeepView) -> None:
        write_metrics(metrics_file, view.metrics())

    app.out.start("maintain", rounds=0, actions=0)
    store = open_remote(app, limits)
    upkeep = MaintenanceLoop(
        store,
        owner=owner_of(PROGRAM),
        clock=app.clock,
        ids=app.ids,
        scope=Scope(wanted.kinds, name, partition),
        on_done=on_done,
        on_failed=on_failed,
        memory=limits.memory,
    )
    try:
        with ThreadPool(1, "maintain") as thread, _ends_by_sigterm(upkeep):
            try:
                thread.submit(upkeep.run, every_ms, patient=False, on_round=note).result()
            finally:
                upkeep.end()
    finally:
        view = upkeep.view
        actions = sum(view.actions.values())
        app.out.summary_fields.update(rounds=view.rounds, actions=actions)
        store.close()
    if not app.out.json_mode:
        app.out.line(f"ended after {counted(view.rounds, 'round')}, {counted(actions, 'action')} done")
    app.out.summary(0)
    return 0


@contextlib.contextmanager
def _ends_by_sigterm(upkeep: MaintenanceLoop) -> Iterator[None]:
    """End between two actions at the first SIGTERM, at once at the second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)

    def end(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)
        upkeep.end()

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _table(plans: list[MaintenancePlan]) -> list[str]:
    """Return a table of the actions, and a line about the garbage that they make. --json has more figures."""
    actions = [(plan.tp, action) for plan in plans for action in plan.actions]
    header = ["partition", "action", "from", "to", "read", "written", "why"]
    rows: list[list[object]] = [
        [
            tp,
            action.kind,
            action.start,
            action.end,
            human_bytes(action.bytes_read),
            human_bytes(action.bytes_written),
            action.reason,
        ]
        for tp, action in actions
    ]
    if not rows:
        return []
    requests = sum(action.requests for _, action in actions)
    garbage = sum(max(action.garbage_bytes, 0) for _, action in actions)
    last = max(action.frees_at_ms for _, action in actions)
    gone = f", gone from {format_time(last)} on" if last >= 0 else ""
    return [*columns(header, rows), f"{counted(requests, 'request')}; garbage: {human_bytes(garbage)}{gone}"]


def _fields(plan: MaintenancePlan, swept: Swept | None) -> dict[str, Any]:
    orphans = {} if swept is None else {"orphans": dataclasses.asdict(swept)}
    return orphans | {
        "topic": plan.tp.topic,
        "partition": plan.tp.partition,
        "version": plan.version,
        "actions": [_action_fields(action) for action in plan.actions],
        "notes": list(plan.notes),
        "merge_due_ms": plan.merge_due_ms if plan.merge_due_ms >= 0 else None,
    }


def _action_fields(action: MaintenanceAction) -> dict[str, Any]:
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


def _done_fields(done: ActionResult) -> dict[str, Any]:
    fields = _action_fields(done.action) | {"bytes_read": done.bytes_read, "bytes_written": done.bytes_written}
    if done.collected is not None:
        fields["collected"] = dataclasses.asdict(done.collected)
    return fields | {"note": done.note}
