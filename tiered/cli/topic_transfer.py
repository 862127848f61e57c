"""``tiered topic transfer``: let Spark sinks or a local log write a topic."""

from __future__ import annotations

from typing import Any

import click

from tiered.arguments import chosen_partitions
from tiered.errors import ConfigError
from tiered.model import TopicPartition
from tiered.plan.sink_commit import OWNERS, is_owner, owner_words
from tiered.program.application import (
    Application,
    Command,
    confirm,
    pass_application,
    split_topic,
)
from tiered.program.open_log import Tiers, open_in_bucket
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


@click.command("transfer", cls=Command)
@click.argument("topic", metavar="TOPIC[:P]")
@click.argument("owner", metavar="OWNER", type=click.Choice(list(OWNERS)))
@pass_application
def transfer(app: Application, *, topic: str, owner: str) -> int:
    """Transfer a topic in the bucket to Spark sinks, or back to a local log.

    A partition has one kind of writer. The one that loses it is fenced. Sync and stop the local log first: records
    that it has not uploaded stay on its disk.

    \b
    Examples:
      tiered topic transfer flights spark --remote s3://acme-logs/prod --dry-run
      tiered topic transfer flights local --remote s3://acme-logs/prod --yes
    """
    name, partition = split_topic(topic)
    with open_in_bucket(app, name) as (tiers, entry):
        need_open(entry)
        found = {
            number: _pinned(tiers, entry, number) for number in chosen_partitions(name, entry.partitions, partition)
        }
        moved = [number for number, pinned in found.items() if not is_owner(pinned.root, owner)]
        rows = [
            [f"{name}-{number}", owner_words(pinned.root), owner if number in moved else "", pinned.next_offset]
            for number, pinned in found.items()
        ]
        for line in columns(["partition", "belongs to", "transfer to", "end"], rows):
            app.out.say(line)
        if owner == "spark":
            for number in moved:
                _need_decided(tiers, entry, number)
        if moved:
            app.out.say(_LOST[owner])
        if moved and not app.dry_run:
            confirm(app, "topic transfer", f"Transfer {counted(len(moved), 'partition')} of {name} to {owner}?")
            tiers.run(hand_over(PartitionIds(name, entry.topic_id), moved, owner, owner_of("tiered topic transfer")))
    entries: list[dict[str, Any]] = [
        {"partition": row, "from": owner_words(pinned.root), "changed": row in moved, "end_offset": pinned.next_offset}
        for row, pinned in found.items()
    ]
    verb = "would be transferred" if app.dry_run else "transferred"
    text = (
        f"{counted(len(moved), 'partition')} of {name} {verb} to {owner}"
        if moved
        else f"{name} belongs to {owner} already"
    )
    fields = {"topic": name, "to": owner, "dry_run": app.dry_run, "partitions": entries}
    return app.out.result("topic transfer", fields, [text])


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
    remote = RemotePartition(TopicPartition(entry.name, number), entry.topic_id)
    stable, pinned = tiers.run(remote.last_stable_offset()), tiers.run(remote.snapshot())
    if pinned is not None and stable < pinned.next_offset:
        raise ConfigError(
            f"{entry.name}-{number} ends inside a transaction that began at offset {stable}: sinks cannot end it",
            hint="commit or abort it in the local log (`tiered transaction list`), sync it, then transfer the topic",
        )
