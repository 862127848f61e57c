"""``tiered snapshot``: versions of the bucket that stay readable until they are deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from tiered.errors import ConfigError, NotFoundError
from tiered.format.keys import check_snapshot_name
from tiered.format.root import Root
from tiered.model import TopicPartition
from tiered.program.application import Application, Command, Group, confirm, pass_application, split_topic
from tiered.program.doors import Tiers, chosen_partitions, open_tiers
from tiered.program.output import columns, counted
from tiered.remote.past import Taken, create_snapshot, delete_snapshot, list_snapshots, load_snapshot
from tiered.remote.root_view import RootView
from tiered.times import format_time

_NAME = click.argument("name", metavar="NAME")
_SELECTED = click.argument("selected", nargs=-1, metavar="[TOPIC[:P]]...")


@click.group("snapshot", cls=Group)
def command() -> None:
    """Keep a version of the bucket readable: nothing that it names is collected."""


@command.command("create", cls=Command)
@_NAME
@_SELECTED
@pass_application
def create_command(app: Application, *, name: str, selected: tuple[str, ...]) -> int:
    """Keep what the bucket holds now, of all topics or those that are named, under a new name.

    \b
    Example:
      tiered snapshot create before-release flights --remote s3://acme-logs/prod
    """
    check_snapshot_name(name)
    app.need_remote()
    with open_tiers(app, with_local=False) as tiers:
        views = dict(_views(tiers, selected))
        held = [tp for tp, view in views.items() if tiers.run(load_snapshot(view, name)) is not None]
        if held:
            raise ConfigError(
                f"there is a snapshot {name} of {held[0]} already", hint="choose another name, or delete it first"
            )
        made = [(tp, Taken(f"snapshot {name}", tiers.run(create_snapshot(view, name)))) for tp, view in views.items()]
    return _print(app, "snapshot create", made)


@command.command("list", cls=Command)
@_SELECTED
@pass_application
def list_command(app: Application, *, selected: tuple[str, ...]) -> int:
    """List snapshots: what each holds, and since when.

    \b
    Example:
      tiered snapshot list flights:0 --remote s3://acme-logs/prod --json
    """
    app.need_remote()
    with open_tiers(app, with_local=False) as tiers:
        found = [(tp, taken) for tp, view in _views(tiers, selected) for taken in tiers.run(list_snapshots(view))]
    return _print(app, "snapshot list", found)


@command.command("delete", cls=Command)
@_NAME
@_SELECTED
@click.option("--yes", is_flag=True, help="do not ask")
@pass_application
def delete_command(app: Application, *, name: str, selected: tuple[str, ...], yes: bool) -> int:
    """Delete a snapshot. What nothing else holds goes with the next `tiered gc run`.

    \b
    Example:
      tiered snapshot delete before-release --remote s3://acme-logs/prod --yes
    """
    check_snapshot_name(name)
    app.need_remote()
    with open_tiers(app, with_local=False) as tiers:
        held: list[tuple[TopicPartition, RootView, Root]] = []
        for tp, view in _views(tiers, selected):
            root = tiers.run(load_snapshot(view, name))
            if root is not None:
                held.append((tp, view, root))
        if not held:
            raise NotFoundError(
                f"there is no snapshot {name}", hint="`tiered snapshot list` shows those that there are"
            )
        confirm(app, "snapshot delete", f"Delete snapshot {name} of {counted(len(held), 'partition')}?", yes=yes)
        for _, view, _ in held:
            tiers.run(delete_snapshot(view, name))
    return _print(app, "snapshot delete", [(tp, Taken(f"snapshot {name}", root)) for tp, _, root in held])


def _views(tiers: Tiers, selected: Sequence[str]) -> Iterator[tuple[TopicPartition, RootView]]:
    """The partitions that were named, all of them if none was, each once."""
    wanted = [split_topic(text) for text in selected] or [(name, None) for name in tiers.topics()]
    seen: set[TopicPartition] = set()
    for name, partition in wanted:
        facts = tiers.need_topic(name)
        for number in chosen_partitions(name, facts.partitions, partition):
            tp = TopicPartition(name, number)
            if facts.entry is not None and tp not in seen:
                seen.add(tp)
                yield tp, RootView(facts.entry.topic_id, number, name)


def _print(app: Application, verb: str, found: Sequence[tuple[TopicPartition, Taken]]) -> int:
    entries = [_entry(tp, taken) for tp, taken in found]
    header = ["snapshot", "partition", "version", "time", "from", "to"]
    rows = [
        [one["name"], tp, one["version"], format_time(one["time"]), one["start_offset"], one["end_offset"]]
        for (tp, _), one in zip(found, entries, strict=True)
    ]
    return app.out.result(verb, {"snapshots": entries}, columns(header, rows) if rows else ["no snapshots"])


def _entry(tp: TopicPartition, taken: Taken) -> dict[str, Any]:
    root = taken.root
    return {
        "name": taken.source.removeprefix("snapshot "),
        "topic": tp.topic,
        "partition": tp.partition,
        "version": root.version,
        "time": root.commit.ts_ms,
        "start_offset": root.start_offset,
        "end_offset": root.next_offset,
    }
