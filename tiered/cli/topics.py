"""``tiered topics list|create|describe|alter|delete|handover``: manage topics."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from tiered.cli.handover import handover
from tiered.config import MAX_LONG, MAX_PARTITIONS, OF_SEGMENT, UNLIMITED, TopicConfig, unknown_key
from tiered.errors import ConfigError, NotFoundError, TieredError
from tiered.format.keys import check_topic_name, partition_dir
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.topics import TopicInfo, read_topics
from tiered.model import TopicPartition
from tiered.program.application import (
    Application,
    Group,
    confirm,
    destructive,
    pass_application,
    split_topic,
)
from tiered.program.open_log import (
    TopicFacts,
    as_fields,
    open_in_bucket,
    open_log,
    open_tiers,
    refuse_internal,
    tell_unreadable,
    topic_settings,
)
from tiered.program.open_reader import chosen_partitions, need_topic
from tiered.program.output import Problem, columns, counted, human_bytes, human_duration
from tiered.program.partition_status import DiskNotes, deleting_told, partition_status
from tiered.remote.claim import owner_of
from tiered.remote.gc.deletion import begin_deletion
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import delete_snapshot, list_snapshots
from tiered.remote.topics import TopicEntry, register_topic, update_topic

SAME_AS_WHOLE = -2
"""Value of ``local.retention.*`` for "the same as ``retention.*``"."""


@click.group(cls=Group, name="topics")
def command() -> None:
    """List, create, describe, alter, delete and hand over topics."""


command.add_command(handover)


@command.command("list")
@pass_application
def list_topics(app: Application) -> int:
    """Every topic of the tiers that were named. Exit code 13 if the bucket's entry of one is damaged.

    \b
    Example:
      tiered topics list --remote s3://acme-logs/prod
    """
    with open_tiers(app) as tiers:
        unreadable: dict[str, TieredError] = {}
        topics = tiers.topics(unreadable=unreadable)
    entries = [
        {
            "topic": facts.name,
            "partitions": facts.partitions,
            "topic_id": str(facts.topic_id) if facts.topic_id is not None else None,
            "tiers": facts.tiers,
            "deleting": facts.deleting,
        }
        for facts in topics.values()
    ]
    rows: list[list[object]] = [[name, None, None, Problem("unreadable")] for name in unreadable if name not in topics]
    for name, facts in topics.items():
        held = [*facts.tiers, "unreadable"] if name in unreadable else facts.tiers
        tier = "+".join(held) + ", deleting" * facts.deleting
        rows.append([name, facts.partitions, facts.topic_id, Problem(tier) if name in unreadable else tier])
    rows.sort(key=lambda row: str(row[0]))
    if not rows:
        app.out.say("no topics")
    text = columns(["topic", "partitions", "topic id", "tiers"], rows) if rows else []
    code = tell_unreadable(app, unreadable)
    return app.out.result("topics list", {"topics": entries, "unreadable": as_fields(unreadable)}, text, code)


@command.command("create")
@click.argument("topic")
@click.option(
    "--partitions", type=click.IntRange(1, MAX_PARTITIONS), default=1, show_default=True, help="how many partitions"
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="topic setting under Kafka's name; repeatable"
)
@click.option("--if-not-exists", is_flag=True, help="an existing topic is no error")
@pass_application
def create(app: Application, topic: str, partitions: int, settings: tuple[str, ...], if_not_exists: bool) -> int:
    """Create a topic, and the log directory if it is missing.

    With --remote alone it is made in the bucket, for Spark sinks: the first that writes to a partition takes it.

    \b
    Examples:
      tiered topics create flights --log-dir data --remote s3://acme-logs/prod --partitions 3 --set segment.bytes=64MiB
      tiered topics create flights --remote s3://acme-logs/prod --partitions 3
    """
    check_topic_name(topic)
    config = topic_settings(settings)
    app.need_a_tier()
    create_it = _created_on_disk if app.log_dir is not None else _created_in_bucket
    created, made = create_it(app, topic, partitions, config)
    if not created and not if_not_exists:
        raise ConfigError(f"topic {topic} exists already", hint="pass --if-not-exists, or choose another name")
    fields = {
        "topic": topic,
        "created": created,
        "partitions": made.partitions,
        "topic_id": str(made.topic_id),
        "config": made.config.to_properties(),
    }
    verb = "created" if created else "exists"
    return app.out.result(
        "topics create", fields, [f"{verb} {topic}: {counted(made.partitions, 'partition')}, id {made.topic_id}"]
    )


def _created_on_disk(
    app: Application, topic: str, partitions: int, config: Mapping[str, Any]
) -> tuple[bool, TopicInfo]:
    with open_log(app, create=True) as log:
        exists = topic in log.topics()
        if not exists:
            log.topic(topic, partitions=partitions, create=True, config=config)
        return not exists, log.topics()[topic]


def _created_in_bucket(
    app: Application, topic: str, partitions: int, config: Mapping[str, Any]
) -> tuple[bool, TopicInfo]:
    settings = TopicConfig.from_properties(config).to_text(changed_only=True)
    wanted = app.ids.uuid()
    with open_tiers(app, with_local=False) as tiers:
        entry = tiers.run(register_topic(topic, wanted, partitions, settings))
    info = TopicInfo(entry.name, entry.topic_id, entry.partitions, entry.settings)
    return entry.topic_id == wanted, info


@command.command("describe")
@click.argument("topic")
@pass_application
def describe(app: Application, topic: str) -> int:
    """Id, settings and positions of a topic.

    \b
    Example:
      tiered topics describe flights --log-dir data
    """
    name, partition = split_topic(topic)
    with open_tiers(app) as tiers:
        notes = DiskNotes.read(tiers)
        facts = tiers.need_topic(name)
        chosen = chosen_partitions(name, facts.partitions, partition)
        partitions = [partition_status(tiers, facts, number, notes) for number in chosen]
    for status in partitions:
        if status.lost is not None:
            raise status.lost
    entries = [status.as_json() for status in partitions]
    fields = {
        "topic": name,
        "topic_id": str(facts.topic_id) if facts.topic_id is not None else None,
        "tiers": facts.tiers,
        "deleting": facts.deleting,
        "config": dict(facts.config),
        "partitions": entries,
    }
    names = ["partition", "start_offset", "local_start_offset", "uploaded_offset", "flushed_offset", "end_offset"]
    rows = [[entry[column] for column in names] for entry in entries]
    told = deleting_told(partitions)
    text = [f"{name}  id {facts.topic_id}  in {' and '.join(facts.tiers)}{f'  {told}' if told else ''}"]
    text += columns([column.removesuffix("_offset").replace("_", " ") for column in names], rows)
    text += ["", *setting_lines(facts.config)]
    unreadable = [(status.tp, status.unreadable) for status in partitions if status.unreadable is not None]
    text += [f"problem: {tp}: {why}" for tp, why in unreadable]
    return app.out.result("topics describe", fields, text, unreadable[0][1].exit_code if unreadable else 0)


@command.command("alter")
@click.argument("topic")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="under Kafka's name; repeatable")
@click.option("--reset", "resets", multiple=True, metavar="NAME", help="back to its default; repeatable")
@click.option("--partitions", type=click.IntRange(1, MAX_PARTITIONS), metavar="N", help="N in all; never fewer")
@pass_application
def alter(
    app: Application, topic: str, settings: tuple[str, ...], resets: tuple[str, ...], partitions: int | None
) -> int:
    """Change settings of a topic, or add partitions, in the bucket and on the disk.

    Both must be named where both have the topic. A daemon and a maintainer go by the bucket. The log directory must
    have no writer at the moment. Keys are spread over all partitions from then on, as in Kafka.

    \b
    Examples:
      tiered topics alter flights --log-dir data --remote s3://acme-logs/prod --set retention.ms=30d
      tiered topics alter flights --remote s3://acme-logs/prod --reset merge.min.bytes
      tiered topics alter flights --log-dir data --remote s3://acme-logs/prod --partitions 6
    """
    with open_tiers(app) as tiers:
        facts = tiers.need_topic(topic)
        known = {tp for tp, what in tiers.known().items() if tp.topic == topic and what.by_disk}
    entry_config = facts.entry.config if facts.entry is not None else {}
    changes = {} if partitions and not (settings or resets) else _changes(settings, resets, entry_config)
    _check_count(app, facts, partitions)
    if known and app.remote is None:
        raise ConfigError(f"topic {topic} is in a bucket, too", hint="name it with --remote: both change, or neither")
    _without(facts.config, (*resets, *changes)).replace(changes)  # refused before anything is changed
    changed, count = TopicConfig(), 0
    with contextlib.ExitStack() as opened:
        log: LocalLog | None = None
        if facts.local_id is not None:  # refused before the bucket is changed where it has a writer
            log = opened.enter_context(LocalLog.open(app.need_log_dir(), clock=app.clock, ids=app.ids))
        if facts.entry is not None:
            tiers = opened.enter_context(open_tiers(app, with_local=False))
            if partitions is not None:
                tiers.run(register_topic(topic, facts.entry.topic_id, partitions, facts.entry.config))
            entry = tiers.run(update_topic(topic, lambda before: _altered(before, changes, resets)))
            changed, count = entry.settings, entry.partitions
        if log is not None:
            info = log.alter_topic(topic, changes, partitions=partitions)
            changed, count = info.config, info.partitions
    where = " and ".join(facts.tiers)
    text = [f"{topic} changed in {where}: {counted(count, 'partition')}", *setting_lines(changed.to_text())]
    fields = {"topic": topic, "tiers": facts.tiers, "partitions": count, "config": changed.to_text()}
    return app.out.result("topics alter", fields, text)


def _check_count(app: Application, facts: TopicFacts, partitions: int | None) -> None:
    """Raise ConfigError for an impossible number of partitions, before any change."""
    if partitions is None:
        return
    refuse_internal(facts.name)
    if partitions < facts.partitions:
        raise ConfigError(
            f"topic {facts.name} has {counted(facts.partitions, 'partition')}: they cannot become {partitions}",
            hint="partitions can only be added, as in Kafka",
        )
    if facts.local_id is not None:
        held = read_topics(app.need_log_dir(), PosixFiles())[facts.name].held
        if held is not None:
            raise ConfigError(
                f"topic {facts.name} lies in several log directories",
                hint="add_partitions() of the library, with all of them open, chooses where each new one lies",
            )


def _changes(settings: tuple[str, ...], resets: tuple[str, ...], config: Mapping[str, str]) -> dict[str, Any]:
    """Return changes by Kafka's names. Raises ConfigError for an unknown name, or one named twice.

    An unknown name in the registry entry's ``config`` may be reset: it is removed.
    """
    given = topic_settings(settings)
    defaults = TopicConfig().to_properties()
    for name in (*given, *resets):
        if name not in defaults and not (name in resets and name in config):
            raise unknown_key(name, defaults, "topic setting")
    twice = set(given) & set(resets)
    if twice or not (given or resets):
        raise ConfigError(
            f"{min(twice)} is set and reset" if twice else "nothing is to be changed", hint="--set NAME=VALUE"
        )
    return {**given, **{name: defaults[name] for name in resets if name in defaults}}


def _without(config: Mapping[str, str], resets: tuple[str, ...]) -> TopicConfig:
    """Return the settings without those that get another value, which may be unknown or wrong."""
    return TopicConfig.from_properties({name: value for name, value in config.items() if name not in resets})


def _altered(entry: TopicEntry, changes: dict[str, Any], resets: tuple[str, ...]) -> TopicEntry:
    config = _without(entry.config, (*resets, *changes)).replace(changes)
    return replace(entry, config=config.to_text(changed_only=True))


@command.command("delete")
@click.argument("topic")
@click.option(
    "--local-only", is_flag=True, help="a tiered topic: delete the copy on this disk, the bucket keeps its own"
)
@click.option("--force", is_flag=True, help="in the bucket: delete its snapshots, too")
@destructive
@pass_application
def delete_command(app: Application, *, topic: str, local_only: bool, force: bool, dry_run: bool, yes: bool) -> int:
    """Delete a topic from the log directory, which must have no writer, or with --remote from the bucket.

    In the bucket it is marked at once: nobody opens it or writes to it any more. `tiered maintain run` or `gc run`
    deletes its objects after gc.grace.ms; its name is free then. One place at a time, the bucket before the disk: of
    --log-dir and --remote the one on the command line, if TIERED_* or the file names the other.

    \b
    Examples:
      tiered topics delete weather --log-dir data --dry-run
      tiered topics delete weather --remote s3://acme-logs/prod --yes
      tiered topics delete weather --log-dir data --local-only --yes
    """
    if not local_only and _means_bucket(app, topic):
        return _delete_in_bucket(app, topic, force=force, dry_run=dry_run, yes=yes)
    directory = app.need_log_dir()
    if not directory.is_dir():
        raise NotFoundError(f"there is no log directory {directory}", hint="correct --log-dir")
    with LocalLog.open(directory, clock=app.clock, ids=app.ids) as log:
        need_topic(topic, log.topics())
        refuse_internal(topic)
        info = log.topics()[topic]
        tps = [TopicPartition(topic, number) for number in info.here]
        if (log.claims.read().keys() | log.uploads.read().keys()) & set(tps) and not local_only:
            raise ConfigError(
                f"topic {topic} is tiered: its records in the bucket would stay, and so would its name",
                hint=f"the bucket first: `tiered topics delete {topic} --remote URL`; --local-only deletes the copy on "
                "this disk, with all that was not uploaded",
            )
        paths = [directory / partition_dir(tp) for tp in tps]
        linked = {path.name: str(path.resolve()) for path in paths if path.is_symlink()}
        positions = {tp: log.partition(tp).positions() for tp in tps if tp not in log.out_of_service}
        rows = [[tp, p.local_start_offset, p.uploaded_offset, p.end_offset] for tp, p in positions.items()]
        for line in columns(["partition", "local start", "uploaded", "end"], rows):
            app.out.say(line)
        if not dry_run:
            confirm(app, "topics delete", f"Delete {topic} with {counted(len(tps), 'partition')}?", yes=yes)
            log.delete_topic(topic)
    fields = {"dry_run": dry_run, "topic": topic, "topic_id": str(info.topic_id), "partitions": len(tps)}
    fields["linked"] = linked
    verb = "would be deleted" if dry_run else "deleted"
    lines = [f"{'dry run: ' if dry_run else ''}{topic} {verb}, {counted(len(tps), 'partition')}"]
    lines += [
        f"{name} is a link: the next open for writing removes the files in {target}" for name, target in linked.items()
    ]
    return app.out.result("topics delete", fields, lines)


def _means_bucket(app: Application, topic: str) -> bool:
    """Return whether the bucket is meant, not the disk. Raises ConfigError if both are named and equally near.

    The command line is nearer than the environment, the environment nearer than the file.
    """
    if app.log_dir is None or app.remote is None:
        return app.log_dir is None
    disk, bucket = (app.values[name].origin for name in ("log_dir", "remote"))
    order = ("flag", "environment", "file")
    disk_rank, bucket_rank = (order.index(origin.partition(" ")[0]) for origin in (disk, bucket))
    if disk_rank == bucket_rank:
        raise ConfigError(
            f"topic {topic} is deleted in one place at a time, and two are named ({disk}, {bucket})",
            hint=f"`tiered topics delete {topic} --remote URL` without --log-dir deletes it in the bucket, with "
            "--log-dir alone on a disk; --local-only deletes the copy on this disk, with all that was not uploaded",
        )
    return bucket_rank < disk_rank


def _delete_in_bucket(app: Application, topic: str, *, force: bool, dry_run: bool, yes: bool) -> int:
    """Mark the topic as deleted. Raises ConfigError if it has snapshots, unless ``force``."""
    app.need_a_tier()
    with open_in_bucket(app, topic) as (tiers, entry):
        views = [RootView(entry.topic_id, number, topic) for number in range(entry.partitions)]
        taken = [(view, one) for view in views for one in tiers.run(list_snapshots(view))]
        if taken and not force:
            raise ConfigError(
                f"topic {topic} has {counted(len(taken), 'snapshot')}, the first is {taken[0][1]}",
                hint="`tiered snapshot delete` them, or pass --force",
            )
        rows = []
        for view in views:
            if (pinned := tiers.run(view.pin())) is not None:
                size = human_bytes(pinned.size_bytes)
                rows.append([view.name, pinned.start_offset, pinned.next_offset, pinned.segments, size])
        for line in columns(["partition", "start", "end", "segments", "bytes"], rows):
            app.out.say(line)
        if not dry_run:
            confirm(app, "topics delete", f"Delete {topic} in {app.remote} for ever?", yes=yes)
            owner = owner_of("tiered topics delete")
            tiers.run(begin_deletion(entry, owner))
            for view, one in taken:
                tiers.run(delete_snapshot(view, one.source.removeprefix("snapshot ")))
    grace_ms = entry.settings.gc_grace_ms
    fields = {"dry_run": dry_run, "topic": topic, "topic_id": str(entry.topic_id), "partitions": entry.partitions}
    done = f"{topic} would be deleted" if dry_run else f"{topic} is marked"
    text = f"{done}: a maintainer deletes its objects after {human_duration(grace_ms)}"
    return app.out.result("topics delete", fields | {"snapshots": len(taken), "grace_ms": grace_ms}, [text])


def setting_lines(config: Mapping[str, str]) -> list[str]:
    """Return a table of names, values and meanings. ``*`` marks changed ones. ``config`` has Kafka's names."""
    defaults = TopicConfig().to_text()
    rows = [
        ["*" if value != defaults.get(name) else "", name, value, setting_meaning(name, value)]
        for name, value in sorted(config.items())
    ]
    changed = any(row[0] for row in rows)
    note = ["", "* changed; the others are the defaults" if changed else "all settings are the defaults"]
    return [*columns(["", "setting", "value", "meaning"], rows), *note]


def setting_meaning(name: str, value: str) -> str:
    """Return the value with its unit, empty if the value is clear without one."""
    unit = name.rpartition(".")[2]
    if unit not in ("bytes", "ms", "messages"):
        return ""
    try:
        number = int(value)
    except ValueError:  # of an entry that is damaged: `check` says so
        return "no number"
    if number == OF_SEGMENT and name.startswith("merge."):
        return "a quarter of segment.bytes" if name == "merge.min.bytes" else "as segment.bytes"
    if number in (UNLIMITED, MAX_LONG):
        return "no limit"
    if number == SAME_AS_WHOLE:
        return f"as {name.removeprefix('local.')}"
    return {"bytes": human_bytes, "ms": human_duration}[unit](number) if unit in ("bytes", "ms") else ""
