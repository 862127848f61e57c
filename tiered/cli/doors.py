"""How commands open logs: a writable door, a reading door, both tiers side by side, and wrong names explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import tiered
from tiered.cli.application import Application
from tiered.cli.settings import suggestion
from tiered.config import TopicConfig
from tiered.errors import ConfigError, NotFoundError, UnknownTopicError
from tiered.local.manager import LocalLog
from tiered.remote.topics import list_topics, load_topic
from tiered.store.base import Store
from tiered.store.driver import drive
from tiered.store.location import StoreLocation

PATIENCE_SECONDS = 15.0
"""How long a command goes on asking a store that does not answer."""


def open_reader(app: Application) -> tiered.Reader:
    """Both tiers, whichever were named, read-only: no lock is taken and nothing is written."""
    app.need_a_tier()
    _need_directory(app)
    if app.remote is not None:
        location(app)
    return tiered.open_reader(
        app.remote, log_dir=app.log_dir, endpoint_url=app.text("endpoint_url"), region=app.text("region")
    )


def open_log(app: Application, *, create: bool) -> tiered.Log:
    """The log directory for writing, with its remote tier if one was named."""
    directory = app.need_log_dir()
    if create:
        if directory.exists() and not directory.is_dir():
            raise ConfigError(f"{directory} is a file, not a log directory", hint="name a directory")
    else:
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
    """The remote tier's URL, parsed. A folder that does not exist is an error: reading must not create it."""
    place = StoreLocation.parse(app.need_remote(), endpoint_url=app.text("endpoint_url"), region=app.text("region"))
    if place.path is not None and not place.path.is_dir():
        raise NotFoundError(f"the folder {place.path} of the remote tier does not exist", hint="correct --remote")
    return place


def open_remote(app: Application) -> Store:
    """The bucket alone. A person waits: it gives up after :data:`PATIENCE_SECONDS` of silence."""
    return location(app).open(clock=app.clock, ids=app.ids, deadline_seconds=PATIENCE_SECONDS, create=False)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the tiers know it; ``config`` under Kafka's names. The ids differ if they are different topics."""

    name: str
    partitions: int
    local_id: UUID | None
    remote_id: UUID | None
    config: Mapping[str, str]

    @property
    def topic_id(self) -> UUID | None:
        """The id; that of the bucket where both have one."""
        return self.remote_id if self.remote_id is not None else self.local_id

    @property
    def tiers(self) -> list[str]:
        """Where it is."""
        held = (("local", self.local_id), ("remote", self.remote_id))
        return [tier for tier, topic_id in held if topic_id is not None]


@dataclass(frozen=True, slots=True)
class Tiers:
    """Both tiers side by side, read-only; either may be None."""

    local: LocalLog | None
    store: Store | None

    def topics(self, name: str | None = None) -> dict[str, TopicFacts]:
        """All topics by name, or the one that is named (over a bucket this asks for one object and lists nothing)."""
        found: dict[str, TopicFacts] = {}
        if self.store is not None:
            if name is None:
                entries = drive(self.store, list_topics())
            else:
                entry = drive(self.store, load_topic(name))
                entries = [entry] if entry is not None else []
            for entry in entries:
                found[entry.name] = TopicFacts(entry.name, entry.partitions, None, entry.topic_id, entry.config)
        if self.local is not None:
            for info in self.local.topics().values():
                if name is not None and info.name != name:
                    continue
                other = found.get(info.name)
                config = {key: str(value) for key, value in info.config.to_properties().items()}
                found[info.name] = TopicFacts(
                    info.name,
                    max(info.partitions, other.partitions if other is not None else 0),
                    info.topic_id,
                    other.remote_id if other is not None else None,
                    config,
                )
        return dict(sorted(found.items()))

    def need_topic(self, name: str) -> TopicFacts:
        """The topic ``name``. Raises ``UnknownTopicError`` with a suggestion."""
        found = self.topics(name).get(name)
        if found is None:
            need_topic(name, self.topics())
            raise UnknownTopicError(f"there is no topic {name!r}", hint="it vanished just now: look again")
        return found


@contextmanager
def open_tiers(app: Application) -> Iterator[Tiers]:
    """The tiers that were named, for commands that look at segments and catalogs themselves."""
    app.need_a_tier()
    _need_directory(app)
    store = open_remote(app) if app.remote is not None else None
    try:
        local = None
        if app.log_dir is not None:
            local = LocalLog.open(app.log_dir, clock=app.clock, ids=app.ids, read_only=True)
        try:
            yield Tiers(local, store)
        finally:
            if local is not None:
                local.close()
    finally:
        if store is not None:
            store.close()


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
    properties: dict[str, str] = {}
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
        hint = "correct --log-dir, or create a topic first"
        raise NotFoundError(f"the log directory {directory} does not exist", hint=hint)
    if not directory.is_dir():
        hint = "name the directory that holds the partitions"
        raise NotFoundError(f"{directory} is a file, not a log directory", hint=hint)
