"""``tiered topics list|create|describe``."""

from __future__ import annotations

import click

from tiered.cli.application import Application, Group, pass_application, split_topic
from tiered.cli.doors import need_topic, open_log, open_reader, topic_config
from tiered.cli.output import columns
from tiered.errors import ConfigError


@click.group(cls=Group, name="topics")
def command() -> None:
    """List, create and describe topics."""


@command.command("list")
@pass_application
def list_topics(app: Application) -> int:
    """Every topic of the tiers that were named.

    \b
    Example:
      tiered topics list --remote s3://acme-logs/prod
    """
    with open_reader(app) as reader:
        topics = reader.topics()
    entries = [
        {"topic": name, "partitions": info.partitions, "topic_id": str(info.topic_id)}
        for name, info in sorted(topics.items())
    ]
    rows = [[entry["topic"], entry["partitions"], entry["topic_id"]] for entry in entries]
    text = columns(["topic", "partitions", "topic id"], rows) if rows else []
    if not rows:
        app.out.say("no topics")
    return app.out.result("topics list", {"topics": entries}, text)


@command.command("create")
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True, help="how many partitions")
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
    config = topic_config(settings)
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
        "topics create", fields, [f"{verb} {topic}: {info.partitions} partitions, id {info.topic_id}"]
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
    name, _ = split_topic(topic)
    with open_reader(app) as reader:
        topics = reader.topics()
        need_topic(name, topics)
        info = topics[name]
        source = reader.topic(name)
        positions = [source.positions(partition) for partition in range(info.partitions)]
    entries = [
        {
            "partition": partition,
            "start_offset": at.start_offset,
            "local_start_offset": at.local_start_offset,
            "uploaded_offset": at.uploaded_offset,
            "flushed_offset": at.flushed_offset,
            "end_offset": at.end_offset,
        }
        for partition, at in enumerate(positions)
    ]
    config = {key: str(value) for key, value in info.config.to_properties().items()}
    fields = {"topic": name, "topic_id": str(info.topic_id), "config": config, "partitions": entries}
    header = ["partition", "start", "local start", "uploaded", "flushed", "end"]
    text = [f"{name}  id {info.topic_id}", *columns(header, [list(entry.values()) for entry in entries])]
    text += ["", *columns(["setting", "value"], [[key, value] for key, value in sorted(config.items())])]
    return app.out.result("topics describe", fields, text)
