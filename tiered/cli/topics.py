"""``tiered topics list|create|describe|delete``."""

from __future__ import annotations

import click

from tiered.cli.topics_delete import delete_command
from tiered.config import MAX_PARTITIONS
from tiered.errors import ConfigError
from tiered.format.keys import check_topic_name
from tiered.program.application import Application, Group, pass_application, split_topic
from tiered.program.doors import chosen_partitions, open_log, open_tiers, topic_config
from tiered.program.output import columns, counted
from tiered.program.partition_status import partition_status
from tiered.program.topic_settings import setting_lines


@click.group(cls=Group, name="topics")
def command() -> None:
    """List, create, describe and delete topics."""


@command.command("list")
@pass_application
def list_topics(app: Application) -> int:
    """Every topic of the tiers that were named.

    \b
    Example:
      tiered topics list --remote s3://acme-logs/prod
    """
    with open_tiers(app) as tiers:
        topics = tiers.topics()
    entries = [
        {
            "topic": facts.name,
            "partitions": facts.partitions,
            "topic_id": str(facts.topic_id) if facts.topic_id is not None else None,
            "tiers": facts.tiers,
        }
        for facts in topics.values()
    ]
    rows = [[facts.name, facts.partitions, facts.topic_id, "+".join(facts.tiers)] for facts in topics.values()]
    if not rows:
        app.out.say("no topics")
    text = columns(["topic", "partitions", "topic id", "tiers"], rows) if rows else []
    return app.out.result("topics list", {"topics": entries}, text)


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

    \b
    Example:
      tiered topics create flights --log-dir data --remote s3://acme-logs/prod --partitions 3 --set segment.bytes=64MiB
    """
    check_topic_name(topic)
    config = topic_config(settings) if settings else None
    with open_log(app, create=True) as log:
        exists = topic in log.topics()
        if exists and not if_not_exists:
            raise ConfigError(f"topic {topic} exists already", hint="pass --if-not-exists, or choose another name")
        made = log.topic(topic) if exists else log.topic(topic, partitions=partitions, create=True, config=config)
        info = log.topics()[made.name]
    fields = {
        "topic": topic,
        "created": not exists,
        "partitions": info.partitions,
        "topic_id": str(info.topic_id),
        "config": info.config.to_properties(),
    }
    verb = "exists" if exists else "created"
    return app.out.result(
        "topics create", fields, [f"{verb} {topic}: {counted(info.partitions, 'partition')}, id {info.topic_id}"]
    )


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
        known = tiers.known()
        facts = tiers.need_topic(name)
        chosen = chosen_partitions(name, facts.partitions, partition)
        partitions = [partition_status(tiers, facts, number, known) for number in chosen]
    for status in partitions:
        if status.lost is not None:
            raise status.lost
    entries = [status.as_json() for status in partitions]
    fields = {
        "topic": name,
        "topic_id": str(facts.topic_id) if facts.topic_id is not None else None,
        "tiers": facts.tiers,
        "config": dict(facts.config),
        "partitions": entries,
    }
    names = ["partition", "start_offset", "local_start_offset", "uploaded_offset", "flushed_offset", "end_offset"]
    rows = [[entry[column] for column in names] for entry in entries]
    text = [f"{name}  id {facts.topic_id}  in {' and '.join(facts.tiers)}"]
    text += columns([column.removesuffix("_offset").replace("_", " ") for column in names], rows)
    text += ["", *setting_lines(facts.config)]
    return app.out.result("topics describe", fields, text)


command.add_command(delete_command)
