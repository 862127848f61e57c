"""``tiered topic``: list, create, change, delete and transfer topics. ``topic_show`` shows one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from tiered.arguments import chosen_partitions
from tiered.cli.topic_show import setting_lines, setting_meaning, show
from tiered.config import MAX_PARTITIONS, TopicConfig, unknown_key
from tiered.errors import ConfigError, TieredError
from tiered.format.keys import check_topic_name
from tiered.format.local_names import partition_dir
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.topics import TopicInfo, read_topics
from tiered.model import TopicPartition
from tiered.plan.sink_commit import OWNERS, is_owner, owner_words
from tiered.program.application import (
    Application,
    Group,
    confirm,
    pass_application,
    split_topic,
)
from tiered.program.open_log import (
    Tiers,
    TopicFacts,
    as_fields,
    open_directory,
    open_in_bucket,
    open_log,
    open_tiers,
    open_view,
    refuse_internal,
    topic_settings,
    warn_unreadable,
)
from tiered.program.open_reader import directory_error, need_topic
from tiered.program.output import Problem, columns, counted, human_bytes, human_duration
from tiered.remote.catalog_view import CatalogView
from tiered.remote.committer import owner_of
from tiered.remote.gc.deletion import start_deletion
from tiered.remote.reader import RemotePartition
from tiered.remote.root_view import RootView
from tiered.remote.roots import TopicIds
from tiered.remote.sink_commit import hand_over
from tiered.remote.snapshots import delete_snapshot, list_snapshots
from tiered.remote.topics import TopicEntry, need_open, register_topic, update_topic


@click.group(cls=Group, name="topic")
def command() -> None:
    """List, create, show, change, delete and transfer topics."""


command.add_command(show)


@command.command("list")
@pass_application
def list_topics(app: Application) -> int:
    """List every topic of the tiers that were named.

    \b
    Example:
      tiered topic list --remote s3://acme-logs/prod
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
    code = warn_unreadable(app, unreadable)
    return app.out.result("topic list", {"topics": entries, "unreadable": as_fields(unreadable)}, text, code)


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

    With --remote alone the topic is created in the bucket, for Spark sinks. The first one that writes owns a partition.

    \b
    Examples:
      tiered topic create flights --log-dir data --remote s3://acme-logs/prod --partitions 3 --set segment.bytes=64MiB
      tiered topic create flights --remote s3://acme-logs/prod --partitions 3
    """
    check_topic_name(topic)
    config = topic_settings(settings)
    app.need_a_tier()
    create_it = _created_on_disk if app.log_dir is not None else _created_in_bucket
    if app.dry_run:
        return _plan_of_creation(app, topic, partitions, config)
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
        "topic create", fields, [f"{verb} {topic}: {counted(made.partitions, 'partition')}, id {made.topic_id}"]
    )


def _plan_of_creation(app: Application, topic: str, partitions: int, config: Mapping[str, Any]) -> int:
    """Print what `topic create` would make."""
    exists = False
    if app.remote is not None or (app.log_dir is not None and app.log_dir.exists()):
        with open_tiers(app, with_local=directory_error(app) is None) as tiers:
            exists = topic in tiers.topics(topic)
    settings = ", ".join(f"{name}={value}" for name, value in config.items())
    verb = "exists" if exists else "would be created"
    line = f"dry run: {topic} {verb}" + ("" if exists else f" with {counted(partitions, 'partition')}")
    fields = {"dry_run": True, "topic": topic, "created": not exists, "partitions": partitions, "config": dict(config)}
    return app.out.result("topic create", fields, [line + (f", {settings}" if settings and not exists else "")])


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


@command.command("set")
@click.argument("topic")
@click.argument("settings", nargs=-1, metavar="[NAME=VALUE...]")
@click.option("--reset", "resets", multiple=True, metavar="NAME", help="back to its default; repeatable")
@click.option("--partitions", type=click.IntRange(1, MAX_PARTITIONS), metavar="N", help="add partitions: N in all")
@pass_application
def set_command(
    app: Application, topic: str, settings: tuple[str, ...], resets: tuple[str, ...], partitions: int | None
) -> int:
    """Change settings of a topic, or add partitions, in the bucket and on the disk.

    Settings have Kafka's names. If both the bucket and the disk have the topic, name both. A daemon and a maintainer
    use those of the bucket. No other program may write to the log directory meanwhile. New partitions get a part of
    the keys, as in Kafka.

    \b
    Examples:
      tiered topic set flights retention.ms=30d --log-dir data --remote s3://acme-logs/prod
      tiered topic set flights --reset merge.min.bytes --remote s3://acme-logs/prod
      tiered topic set flights --partitions 6 --log-dir data --remote s3://acme-logs/prod
    """
    with open_tiers(app) as tiers:
        facts = tiers.need_topic(topic)
        known = {tp for tp, what in tiers.known().items() if tp.topic == topic and what.by_disk}
    entry_config = facts.entry.config if facts.entry is not None else {}
    changes = {} if partitions and not (settings or resets) else _changes(settings, resets, entry_config)
    _check_count(app, facts, partitions)
    if known and app.remote is None:
        raise ConfigError(
            f"topic {topic} is also in a bucket, and no bucket is named",
            hint="pass --remote URL: the settings then change in both places",
        )
    changed = _without(facts.config, (*resets, *changes)).replace(changes)  # refused before anything is changed
    count = max(partitions or 0, facts.partitions)
    if not app.dry_run:
        changed, count = _set(app, facts, changes, resets, partitions)
    verb = "dry run: {} would change" if app.dry_run else "{} changed"
    line = f"{verb.format(topic)} in {' and '.join(facts.tiers)}: {counted(count, 'partition')}"
    config = changed.to_text()
    fields = {"topic": topic, "tiers": facts.tiers, "partitions": count, "config": config, "dry_run": app.dry_run}
    rows = [[name, config[name], setting_meaning(name, config[name])] for name in sorted(changes)]
    shown = columns(["setting", "value", "meaning"], rows) if rows else []
    if app.out.verbosity:
        shown = setting_lines(config)
    return app.out.result("topic set", fields, [line, *shown])


def _set(
    app: Application, facts: TopicFacts, changes: dict[str, Any], resets: tuple[str, ...], partitions: int | None
) -> tuple[TopicConfig, int]:
    """Change the topic in all its tiers. Return its settings and its number of partitions."""
    topic, changed, count = facts.name, TopicConfig(), 0
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
    return changed, count


def _check_count(app: Application, facts: TopicFacts, partitions: int | None) -> None:
    """Raise ConfigError for an internal topic or an impossible number of partitions, before any change."""
    refuse_internal(facts.name)
    if partitions is None:
        return
    if partitions < facts.partitions:
        raise ConfigError(
            f"topic {facts.name} has {counted(facts.partitions, 'partition')}: they cannot become {partitions}",
            hint="partitions can only be added, as in Kafka",
        )
    if facts.local_id is not None:
        held = read_topics(app.need_log_dir(), PosixFiles())[facts.name].held
        if held is not None:
            raise ConfigError(
                f"cannot add partitions to topic {facts.name}: it is in several log directories",
                hint="open all directories with tiered.open and call add_partitions() of the topic",
            )


def _changes(settings: tuple[str, ...], resets: tuple[str, ...], config: Mapping[str, str]) -> dict[str, Any]:
    """Return the new values by Kafka's names. ``settings``: texts NAME=VALUE. ``resets``: names to set to the default.

    Raises ConfigError for an unknown name, a name that is given twice, a wrong value, and if nothing is to be changed.

    An unknown name in the registry entry's ``config`` may be reset: it is removed.
    """
    given = topic_settings(settings, option="")
    defaults = TopicConfig().to_properties()
    for name in (*given, *resets):
        if name not in defaults and not (name in resets and name in config):
            raise unknown_key(name, defaults, "topic setting")
    twice = set(given) & set(resets)
    if twice or not (given or resets):
        raise ConfigError(
            f"{min(twice)} is set and reset" if twice else "nothing is to be changed",
            hint="name NAME=VALUE, --reset NAME or --partitions N",
        )
    return {**given, **{name: defaults[name] for name in resets if name in defaults}}


def _without(config: Mapping[str, str], resets: tuple[str, ...]) -> TopicConfig:
    """Return the settings in ``config`` without ``resets``, whose old values may be unknown or wrong."""
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
@pass_application
def delete(app: Application, *, topic: str, local_only: bool, force: bool) -> int:
    """Delete a topic from the log directory, which must have no writer, or with --remote from the bucket.

    In the bucket it is marked at once: from then on no program opens it. `tiered maintain` deletes its objects after
    gc.grace.ms, and then the name is free. Delete in the bucket first, then on the disk. If both are named, the one on
    the command line is meant.

    \b
    Examples:
      tiered topic delete weather --log-dir data --dry-run
      tiered topic delete weather --remote s3://acme-logs/prod --yes
      tiered topic delete weather --log-dir data --local-only --yes
    """
    name, partition = split_topic(topic)
    if partition is not None:
        raise ConfigError(
            f"{topic} is a partition, and only a whole topic can be deleted",
            hint=f"`tiered disk truncate` and retention.* delete records of a partition; {name} names all partitions",
        )
    if not local_only and _means_bucket(app, topic):
        return _delete_in_bucket(app, topic, force=force)
    with open_view(app) if app.dry_run else open_directory(app) as log:
        need_topic(topic, log.topics())
        refuse_internal(topic)
        info = log.topics()[topic]
        tps = [TopicPartition(topic, number) for number in info.here]
        is_tiered = not set(tps).isdisjoint(log.claims.read().keys() | log.uploads.read().keys())
        if local_only and not is_tiered:
            raise ConfigError(
                f"topic {topic} was never tiered: no bucket has a copy of it",
                hint="leave --local-only out to delete the only copy",
            )
        if is_tiered and not local_only:
            raise ConfigError(
                f"topic {topic} is tiered: its name and its records would stay in the bucket",
                hint=f"delete it in the bucket first: `tiered topic delete {topic} --remote URL`; --local-only "
                "deletes the copy on this disk, also records that are not uploaded",
            )
        paths = [log.directory / partition_dir(tp) for tp in tps]
        linked = {path.name: str(path.resolve()) for path in paths if path.is_symlink()}
        positions = {tp: log.partition(tp).positions() for tp in tps if tp not in log.out_of_service}
        rows = [[tp, p.local_start_offset, p.uploaded_offset, p.end_offset] for tp, p in positions.items()]
        for line in columns(["partition", "local start", "uploaded", "end"], rows):
            app.out.say(line)
        if isinstance(log, LocalLog):
            confirm(app, "topic delete", f"Delete {topic} with {counted(len(tps), 'partition')}?")
            log.delete_topic(topic)
    fields = {"dry_run": app.dry_run, "topic": topic, "topic_id": str(info.topic_id), "partitions": len(tps)}
    fields["linked"] = linked
    verb = "would be deleted" if app.dry_run else "deleted"
    lines = [f"{'dry run: ' if app.dry_run else ''}{topic} {verb}, {counted(len(tps), 'partition')}"]
    lines += [
        f"{name} is a link: the next open for writing removes the files in {target}" for name, target in linked.items()
    ]
    return app.out.result("topic delete", fields, lines)


def _means_bucket(app: Application, topic: str) -> bool:
    """Return True if the bucket is meant, False for the disk. Raises ConfigError if both come from the same source.

    If both are named, the command line has precedence over the environment, and the environment over the file.
    """
    if app.log_dir is None or app.remote is None:
        return app.log_dir is None
    disk, bucket = (app.values[name].origin for name in ("log_dir", "remote"))
    order = ("flag", "environment", "file")
    disk_rank, bucket_rank = (order.index(origin.partition(" ")[0]) for origin in (disk, bucket))
    if disk_rank == bucket_rank:
        unset = "env -u TIERED_LOG_DIR " if disk.startswith("environment ") else ""
        raise ConfigError(
            f"topic {topic} can be deleted in only one place at a time, and two are named ({disk}, {bucket})",
            hint=f"`{unset}tiered topic delete {topic} --remote URL` without --log-dir deletes it in the "
            "bucket, with --log-dir alone on a disk; --local-only deletes the copy on this disk, also "
            "records that are not uploaded",
        )
    return bucket_rank < disk_rank


def _delete_in_bucket(app: Application, topic: str, *, force: bool) -> int:
    """Mark the topic as deleted. Raises ConfigError if it has snapshots, unless ``force``."""
    app.need_a_tier()
    with open_in_bucket(app, topic) as (tiers, entry):
        views = [RootView(entry.topic_id, number, topic) for number in range(entry.partitions)]
        taken = [(view, one) for view in views for one in tiers.run(list_snapshots(view))]
        if taken and not force:
            raise ConfigError(
                f"topic {topic} is not deleted: it has {counted(len(taken), 'snapshot')}, the first is {taken[0][1]}",
                hint="delete them with `tiered snapshot delete`, or pass --force",
            )
        rows = []
        for view in views:
            if (pinned := tiers.run(view.pin())) is not None:
                size = human_bytes(pinned.size_bytes)
                rows.append([view.name, pinned.start_offset, pinned.next_offset, pinned.segments, size])
        for line in columns(["partition", "start", "end", "segments", "bytes"], rows):
            app.out.say(line)
        if not app.dry_run:
            confirm(app, "topic delete", f"Delete {topic} in {app.remote} for ever?")
            owner = owner_of("tiered topic delete")
            tiers.run(start_deletion(entry, owner))
            for view, one in taken:
                tiers.run(delete_snapshot(view, one.source.removeprefix("snapshot ")))
    grace_ms = entry.settings.gc_grace_ms
    fields = {"dry_run": app.dry_run, "topic": topic, "topic_id": str(entry.topic_id), "partitions": entry.partitions}
    done = f"{topic} would be deleted" if app.dry_run else f"{topic} is marked"
    text = f"{done}: a maintainer deletes its objects after {human_duration(grace_ms)}"
    return app.out.result("topic delete", fields | {"snapshots": len(taken), "grace_ms": grace_ms}, [text])


_LOST = {
    "spark": "The local log is fenced at its next commit or claim. What it has acknowledged and did not upload is on "
    "its disk alone: the bucket cannot know of it, and it will not be in the topic. Sync the log first.",
    "local": "Sinks are refused from now on. The first log without records that opens the topic goes on at its end; "
    "one that wrote it before needs `tiered repair rejoin`.",
}


@command.command("transfer")
@click.argument("topic", metavar="TOPIC[:P]")
@click.argument("owner", metavar="OWNER", type=click.Choice(list(OWNERS)))
@pass_application
def transfer(app: Application, *, topic: str, owner: str) -> int:
    """Transfer a topic in the bucket to Spark sinks, or back to a local log.

    A partition has one kind of writer. The former writer is fenced. Sync and stop the local log first: records
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
            tiers.run(hand_over(TopicIds(name, entry.topic_id), moved, owner, owner_of("tiered topic transfer")))
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
            hint="open the topic once with its log directory and remote=URL: that creates its roots",
        )
    return pinned


def _need_decided(tiers: Tiers, entry: TopicEntry, number: int) -> None:
    """Raise ConfigError if a transaction is open in the partition, because a Spark sink cannot end it."""
    remote = RemotePartition(TopicPartition(entry.name, number), entry.topic_id)
    stable, pinned = tiers.run(remote.last_stable_offset()), tiers.run(remote.snapshot())
    if pinned is not None and stable < pinned.next_offset:
        raise ConfigError(
            f"{entry.name}-{number} has an open transaction from offset {stable}, which a Spark sink cannot end",
            hint="commit or abort it in the local log (`tiered transaction list`), sync it, then transfer the topic",
        )
