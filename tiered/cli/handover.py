"""``tiered topics handover``: let Spark sinks or a local log write a topic."""

from __future__ import annotations

from typing import Any

import click

from tiered.errors import ConfigError
from tiered.plan.sink_commit import OWNERS, is_owner, owner_words
from tiered.program.application import (
    Application,
    Command,
    confirm,
    destructive,
    pass_application,
    split_topic,
)
from tiered.program.open_log import Tiers, open_in_bucket
from tiered.program.open_reader import chosen_partitions
from tiered.program.output import columns, counted
from tiered.remote.catalog_view import CatalogView
from tiered.remote.claim import owner_of
from tiered.remote.reader import RemotePartition
from tiered.remote.root_view import RootView
from tiered.remote.roots import PartitionIds
from tiered.remote.sink_commit import hand_over
from tiered.remote.topics import TopicEntry, need_open

_LOST = {
    "spark": "The local log is fenced at its next commit or claim. What it has acknowledged and did not upload is on "
    "its disk alone: the bucket cannot know of it, and it will not be in the topic. Sync the log first.",
    "local": "Sinks are refused from now on. The first log without records that opens the topic goes on at its end; "
    "one that wrote it before needs `tiered repair rejoin`.",
}


@click.command("handover", cls=Command)
@click.argument("topic", metavar="TOPIC[:P]")
@click.option("--to", type=click.Choice(list(OWNERS)), required=True, help="who writes from now on")
@destructive
@pass_application
def handover(app: Application, *, topic: str, to: str, dry_run: bool, yes: bool) -> int:
    """Give a topic in the bucket to Spark sinks, or back to a local log: only one kind of writer has a partition.

    Whoever had it is fenced. Sync and stop the local log before: what it has not uploaded stays on its disk.

    \b
    Examples:
      tiered topics handover flights --remote s3://acme-logs/prod --to spark --dry-run
      tiered topics handover flights --remote s3://acme-logs/prod --to local --yes
    """
    name, partition = split_topic(topic)
    with open_in_bucket(app, name) as (tiers, entry):
        need_open(entry)
        found = {
            number: _pinned(tiers, entry, number) for number in chosen_partitions(name, entry.partitions, partition)
        }
        moved = [number for number, pinned in found.items() if not is_owner(pinned.root, to)]
        rows = [
            [f"{name}-{number}", owner_words(pinned.root), to if number in moved else "", pinned.next_offset]
            for number, pinned in found.items()
        ]
        for line in columns(["partition", "belongs to", "handed to", "end"], rows):
            app.out.say(line)
        if to == "spark":
            for number in moved:
                _need_decided(tiers, entry, number)
        if moved:
            app.out.say(_LOST[to])
        if moved and not dry_run:
            confirm(app, "topics handover", f"Hand {counted(len(moved), 'partition')} of {name} to {to}?", yes=yes)
            owner = owner_of("tiered topics handover")
            tiers.run(hand_over(PartitionIds(name, entry.topic_id), moved, to, owner))
    entries: list[dict[str, Any]] = [
        {"partition": row, "from": owner_words(pinned.root), "changed": row in moved, "end_offset": pinned.next_offset}
        for row, pinned in found.items()
    ]
    verb = "would be handed" if dry_run else "handed"
    text = (
        f"{counted(len(moved), 'partition')} of {name} {verb} to {to}" if moved else f"{name} belongs to {to} already"
    )
    fields = {"topic": name, "to": to, "dry_run": dry_run, "partitions": entries}
    return app.out.result("topics handover", fields, [text])


def _pinned(tiers: Tiers, entry: TopicEntry, number: int) -> CatalogView:
    pinned = tiers.run(RootView(entry.topic_id, number, entry.name).pin())
    if pinned is None:
        raise ConfigError(
            f"{entry.name}-{number} has no root in the bucket yet",
            hint="open the topic once with its log directory and --remote: its roots are made then",
        )
    return pinned


def _need_decided(tiers: Tiers, entry: TopicEntry, number: int) -> None:
    """Raise ConfigError for a transaction that is open at the end: it could never end."""
    remote = RemotePartition(entry.name, entry.topic_id, number)
    stable, pinned = tiers.run(remote.last_stable_offset()), tiers.run(remote.snapshot())
    if pinned is not None and stable < pinned.next_offset:
        raise ConfigError(
            f"{entry.name}-{number} ends inside a transaction that began at offset {stable}: nobody could end it then",
            hint="commit or abort it in the local log (`tiered transactions`), sync it, then hand the topic over",
        )
