"""Snapshots of many partitions under one name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiered import arguments
from tiered.display import html_table
from tiered.errors import ConfigError, UnknownTopicError
from tiered.format.keys import check_snapshot_name
from tiered.format.root import STATE_DELETING
from tiered.model import TopicPartition
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import KeptRoot, create_snapshot, load_snapshot
from tiered.remote.topics import TopicEntry, list_topics, load_topic_to_read
from tiered.store.base import Steps


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """A snapshot by partition. ``earlier``: partitions that had it before the call. ``skipped``: topics in deletion.

    ``planned``: partitions that a run without ``dry_run`` would add.
    """

    name: str
    partitions: tuple[tuple[TopicPartition, KeptRoot], ...]
    earlier: int = 0
    skipped: tuple[str, ...] = ()
    planned: tuple[TopicPartition, ...] = ()

    def __repr__(self) -> str:
        return f"<SnapshotReport {self.name!r}: {len(self.partitions)} partitions, {len(self.skipped)} topics skipped>"

    def _repr_html_(self) -> str:
        header = ("partition", "version", "from", "to")
        rows = [(tp, taken.version, taken.root.start_offset, taken.root.next_offset) for tp, taken in self.partitions]
        return html_table(f"Snapshot {self.name}", header, rows)


def snapshot_steps(
    name: str, selected: Sequence[str | TopicPartition], *, dry_run: bool = False
) -> Steps[SnapshotReport]:
    """Keep the newest version of each partition as ``name``; of all topics if none is selected.

    Partitions that have it already keep theirs, so that an interrupted call can be repeated.

    Raises:
        ConfigError: every partition has it already, or the name is invalid.
        UnknownTopicError, NotFoundError, CommitUnknownError.
    """
    check_snapshot_name(name)
    skipped: list[str] = []
    views: dict[TopicPartition, RootView] = {}
    for entry, partition in (yield from _selected(selected)):
        if not selected and entry.state == STATE_DELETING:
            skipped.append(entry.name)
            continue
        for number in arguments.chosen_partitions(entry.name, entry.partitions, partition):
            views[TopicPartition(entry.name, number)] = RootView(entry.topic_id, number, entry.name)
    made: dict[TopicPartition, KeptRoot] = {}
    for tp, view in views.items():
        taken = yield from load_snapshot(view, name)
        if taken is not None and not taken.begun:
            made[tp] = taken
    earlier = len(made)
    if made and earlier == len(views):
        raise ConfigError(
            f"there is a snapshot {name} of {next(iter(made))} already", hint="choose another name, or delete it first"
        )
    if dry_run:
        planned = tuple(tp for tp in views if tp not in made)
        return SnapshotReport(name, tuple(made.items()), earlier, tuple(skipped), planned)
    for tp, view in views.items():
        if tp not in made:
            made[tp] = KeptRoot(f"snapshot {name}", (yield from create_snapshot(view, name)))
    return SnapshotReport(name, tuple((tp, made[tp]) for tp in views), earlier, tuple(skipped))


def _selected(selected: Sequence[str | TopicPartition]) -> Steps[list[tuple[TopicEntry, int | None]]]:
    if not selected:
        return [(entry, None) for entry in (yield from list_topics())]
    found: list[tuple[TopicEntry, int | None]] = []
    for each in selected:
        topic, partition = (each, None) if isinstance(each, str) else each
        entry = yield from load_topic_to_read(topic)
        if entry is None:
            raise UnknownTopicError(f"the bucket has no topic {topic!r}", hint="see `tiered topic list`")
        found.append((entry, partition))
    return found
