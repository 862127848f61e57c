"""How commands open logs: one writable door, one read-only door, and names that are wrong explained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tiered
from tiered.cli.application import Application
from tiered.cli.settings import suggestion
from tiered.config import TopicConfig
from tiered.errors import ConfigError, NotFoundError, UnknownTopicError
from tiered.store.location import StoreLocation


def open_reader(app: Application) -> tiered.Reader:
    """Both tiers, whichever were named, read-only: no lock is taken and nothing is written."""
    app.need_a_tier()
    _need_directory(app)
    return tiered.open_reader(
        app.remote, log_dir=app.log_dir, endpoint_url=app.text("endpoint_url"), region=app.text("region")
    )


def open_log(app: Application, *, create: bool) -> tiered.Log:
    """The log directory for writing, with its remote tier if one was named."""
    directory = app.need_log_dir()
    if not create:
        _need_directory(app)
    return tiered.open(
        directory,
        app.remote,
        create=create,
        endpoint_url=app.text("endpoint_url"),
        region=app.text("region"),
        clock=app.clock,
        ids=app.ids,
    )


def location(app: Application) -> StoreLocation:
    """The remote tier's URL, parsed."""
    return StoreLocation.parse(app.need_remote(), endpoint_url=app.text("endpoint_url"), region=app.text("region"))


def need_topic(name: str, known: Iterable[str]) -> None:
    """Raises ``UnknownTopicError`` with a suggestion unless ``name`` is one of ``known``."""
    names = sorted(known)
    if name in names:
        return
    hint = suggestion(name, names) or (f"topics: {', '.join(names[:20])}" if names else "the log has no topics yet")
    raise UnknownTopicError(f"there is no topic {name!r}", hint=hint)


def chosen_partitions(topic: str, count: int, partition: int | None) -> list[int]:
    """All partitions, or the one that was named."""
    if partition is None:
        return list(range(count))
    if partition >= count:
        raise UnknownTopicError(
            f"topic {topic} has no partition {partition}", hint=f"its partitions are 0 to {count - 1}" if count else ""
        )
    return [partition]


def topic_config(pairs: Sequence[str]) -> TopicConfig:
    """``--set segment.bytes=64MiB`` ... as a checked configuration."""
    properties: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {pair!r} is not NAME=VALUE", hint="for example --set segment.bytes=64MiB")
        if name in properties:
            raise ConfigError(f"--set {name} is given twice", hint="keep one of them")
        properties[name] = value
    return TopicConfig.from_properties(properties)


def _need_directory(app: Application) -> None:
    directory = app.log_dir
    if directory is None:
        return
    if not directory.exists():
        raise NotFoundError(
            f"the log directory {directory} does not exist", hint="correct --log-dir, or create a topic first"
        )
    if not directory.is_dir():
        raise NotFoundError(
            f"{directory} is a file, not a log directory", hint="name the directory that holds the partitions"
        )
