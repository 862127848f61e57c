"""``tiered topic``: list, create and change topics. Larger commands have files of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from tiered.cli.topic_delete import delete
from tiered.cli.topic_show import setting_lines, setting_meaning, show
from tiered.cli.topic_transfer import transfer
from tiered.config import MAX_PARTITIONS, TopicConfig, unknown_key
from tiered.errors import ConfigError, TieredError
from tiered.format.keys import check_topic_name
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.topics import TopicInfo, read_topics
from tiered.program.application import (
    Application,
    Group,
    pass_application,
)
from tiered.program.open_log import (
    TopicFacts,
    as_fields,
    open_log,
    open_tiers,
    refuse_internal,
    topic_settings,
    warn_unreadable,
)
from tiered.program.open_reader import directory_error
from tiered.program.output import Problem, columns, counted
from tiered.remote.topics import TopicEntry, register_topic, update_topic


@click.group(cls=Group, name="topic")
def command() -> None:
    """List, create, show, change, delete and transfer topics."""


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

    With --remote alone it is made in the bucket, for Spark sinks: the first that writes to a partition takes it.

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
        raise ConfigError(f"topic {topic} is in a bucket, too", hint="name it with --remote: both change, or neither")
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
            f"{min(twice)} is set and reset" if twice else "nothing is to be changed",
            hint="name NAME=VALUE, --reset NAME or --partitions N",
        )
    return {**given, **{name: defaults[name] for name in resets if name in defaults}}


def _without(config: Mapping[str, str], resets: tuple[str, ...]) -> TopicConfig:
    """Return the settings without those that get another value, which may be unknown or wrong."""
    return TopicConfig.from_properties({name: value for name, value in config.items() if name not in resets})


def _altered(entry: TopicEntry, changes: dict[str, Any], resets: tuple[str, ...]) -> TopicEntry:
    config = _without(entry.config, (*resets, *changes)).replace(changes)
    return replace(entry, config=config.to_text(changed_only=True))


for each in (show, delete, transfer):
    command.add_command(each)
