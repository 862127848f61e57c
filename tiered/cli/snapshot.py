"""Commands ``tiered snapshot``: create, list and delete snapshots of the bucket, which stay readable until deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from tiered.admin import snapshot_steps
from tiered.arguments import chosen_partitions
from tiered.errors import CorruptionError, NotFoundError, TieredError
from tiered.format.keys import check_snapshot_name
from tiered.model import TopicPartition
from tiered.program.application import (
    Application,
    Command,
    Group,
    confirm,
    pass_application,
    split_topic,
    topic_or_partition,
)
from tiered.program.open_log import Tiers, open_tiers, warn_unreadable
from tiered.program.output import Problem, columns, counted
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import KeptRoot, delete_snapshot, load_snapshot, survey_snapshots
from tiered.remote.topics import no_topics
from tiered.times import format_time

EXIT_WARNINGS = 3
_NAME = click.argument("name", metavar="NAME")
_SHOWN = ("end_offset", "state")
_SELECTED = click.argument("selected", nargs=-1, metavar="[TOPIC[:P]]...")


@click.group("snapshot", cls=Group)
def command() -> None:
    """Create, list and delete versions of the bucket that stay readable."""


@command.command("create", cls=Command)
@_NAME
@_SELECTED
@pass_application
def create_command(app: Application, *, name: str, selected: tuple[str, ...]) -> int:
    """Store the present state of the bucket, of all topics or those named, as a snapshot.

    A command that was cut short may be repeated: it adds the partitions that lack the snapshot.

    \b
    Example:
      tiered snapshot create before-release flights --remote s3://acme-logs/prod
    """
    app.need_remote()
    named = [topic_or_partition(text) for text in selected]
    with open_tiers(app, with_local=False) as tiers:
        report = tiers.run(snapshot_steps(name, named, dry_run=app.dry_run))
    if not (report.partitions or report.planned or report.skipped):
        raise no_topics(app.need_remote())
    for topic in report.skipped:
        app.out.warn(f"topic {topic} is being deleted and was passed over")
    if app.dry_run:
        tps = [str(tp) for tp in report.planned]
        fields = {"dry_run": True, "name": name, "partitions": tps}
        return app.out.result("snapshot create", fields, [f"dry run: snapshot {name} would keep {', '.join(tps)}"])
    if report.earlier:
        had = counted(report.earlier, "partition")
        app.out.say(f"snapshot {name} was there of {had}, and stays as it was taken")
    return _print(app, "snapshot create", report.partitions, code=EXIT_WARNINGS if report.skipped else 0)


@command.command("list", cls=Command)
@_SELECTED
@pass_application
def list_command(app: Application, *, selected: tuple[str, ...]) -> int:
    """List snapshots with their partitions, versions, times and end offsets.

    \b
    Example:
      tiered snapshot list flights:0 --remote s3://acme-logs/prod --json
    """
    app.need_remote()
    with open_tiers(app, with_local=False) as tiers:
        found: list[tuple[TopicPartition, KeptRoot]] = []
        damaged: list[tuple[TopicPartition, str]] = []
        unreadable: dict[str, TieredError] = {}
        for tp, view in _views(tiers, selected, unreadable):
            whole, broken = tiers.run(survey_snapshots(view))
            found += [(tp, taken) for taken in whole]
            damaged += [(tp, name) for name in broken]
            for name, damage in broken.items():
                app.out.warn(f"{tp}: snapshot {name} cannot be read: {damage.message}; {damage.hint}")
    code = warn_unreadable(app, unreadable)
    printed = _print(app, "snapshot list", found, damaged)
    return CorruptionError.exit_code if damaged else code or printed


@command.command("delete", cls=Command)
@_NAME
@_SELECTED
@pass_application
def delete_command(app: Application, *, name: str, selected: tuple[str, ...]) -> int:
    """Delete a snapshot, even a damaged one. `tiered maintain` deletes the objects that only this snapshot needs.

    \b
    Example:
      tiered snapshot delete before-release --remote s3://acme-logs/prod --yes
    """
    check_snapshot_name(name)
    app.need_remote()
    with open_tiers(app, with_local=False) as tiers:
        held: list[tuple[TopicPartition, RootView, KeptRoot]] = []
        damaged: list[tuple[TopicPartition, RootView]] = []
        for tp, view in _views(tiers, selected):
            try:
                taken = tiers.run(load_snapshot(view, name))
            except CorruptionError as damage:
                app.out.warn(f"{tp}: snapshot {name} cannot be read, and goes all the same: {damage.message}")
                damaged.append((tp, view))
                continue
            if taken is not None:
                held.append((tp, view, taken))
        if not held and not damaged:
            raise NotFoundError(
                f"snapshot {name} does not exist", hint="`tiered snapshot list` lists the existing ones"
            )
        partitions = counted(len(held) + len(damaged), "partition")
        if not app.dry_run:
            confirm(app, "snapshot delete", f"Delete snapshot {name} of {partitions}?")
            for _, view in (*((tp, view) for tp, view, _ in held), *damaged):
                tiers.run(delete_snapshot(view, name))
    state = "would be deleted" if app.dry_run else "deleted"
    return _print(app, "snapshot delete", [(tp, taken) for tp, _, taken in held], state=state)


def _views(
    tiers: Tiers, selected: Sequence[str], unreadable: dict[str, TieredError] | None = None
) -> Iterator[tuple[TopicPartition, RootView]]:
    """Yield the named partitions, all if none was named, each once.

    ``unreadable`` gets topics whose entry is damaged or too old. With named partitions, or without it, the error is
    raised.
    """
    wanted = [split_topic(text) for text in selected] or [(name, None) for name in tiers.topics(unreadable=unreadable)]
    seen: set[TopicPartition] = set()
    for name, partition in wanted:
        try:
            facts = tiers.need_topic(name)
        except CorruptionError as damage:
            if selected or unreadable is None:
                raise
            unreadable[name] = damage
            continue
        for number in chosen_partitions(name, facts.partitions, partition):
            tp = TopicPartition(name, number)
            if facts.entry is not None and tp not in seen:
                seen.add(tp)
                yield tp, RootView(facts.entry.topic_id, number, name)


def _print(
    app: Application,
    verb: str,
    found: Sequence[tuple[TopicPartition, KeptRoot]],
    damaged: Sequence[tuple[TopicPartition, str]] = (),
    *,
    code: int = 0,
    state: str = "",
) -> int:
    """Print snapshots with their state, or with ``state`` for all. Return ``code``."""
    entries = [_entry(tp, taken) | ({"state": state} if state else {}) for tp, taken in found]
    header = ["snapshot", "partition", "version", "time", "end", "state"]
    rows = [
        [one["name"], tp, one["version"], format_time(one["time"]), *[one[each] for each in _SHOWN]]
        for (tp, _), one in zip(found, entries, strict=True)
    ]
    for tp, name in damaged:
        entries.append({"name": name, "topic": tp.topic, "partition": tp.partition, "state": "damaged"})
        rows.append([name, tp, "", "", "", Problem("damaged")])
    return app.out.result(verb, {"snapshots": entries}, columns(header, rows) if rows else ["no snapshots"], code)


def _entry(tp: TopicPartition, taken: KeptRoot) -> dict[str, Any]:
    root = taken.root
    return {
        "name": taken.source.removeprefix("snapshot "),
        "topic": tp.topic,
        "partition": tp.partition,
        "version": root.version,
        "time": root.commit.ts_ms,
        "start_offset": root.start_offset,
        "end_offset": root.next_offset,
        "state": "begun" if taken.begun else "kept",
    }
