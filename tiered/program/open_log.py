"""Functions that open both tiers for commands that do more than read records, or a log for writing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import tiered
from tiered.config import TopicConfig
from tiered.errors import ConfigError, TieredError, UnknownTopicError
from tiered.format.coordinator_records import is_state_log
from tiered.format.keys import topic_key
from tiered.format.root import STATE_DELETING
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.uploader_files import root_bounds_by_partition
from tiered.model import TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.program.application import STORE_DEADLINE_SECONDS, Application
from tiered.program.open_reader import need_directory, need_topic, refuse_file, refuse_foreign
from tiered.program.open_store import open_remote, store_options
from tiered.remote.catalog_view import CatalogView
from tiered.remote.root_view import RootView
from tiered.remote.topics import TopicEntry, check_entry, list_topics, load_topic_to_read
from tiered.store.base import Steps, Store
from tiered.store.driver import drive
from tiered.store.limit import Limits

T = TypeVar("T")


def open_log(app: Application, *, create: bool, deadline_seconds: float = STORE_DEADLINE_SECONDS) -> tiered.Log:
    """Open the log directory for writing, and its bucket if one was given. ``create``: create a missing directory."""
    directory = app.need_log_dir()
    if create:
        refuse_file(directory)
        refuse_foreign(directory)
    else:
        need_directory(app)
    if app.remote is None:
        return tiered.open(directory, create=create, clock=app.clock, ids=app.ids)
    if app.remote.startswith("memory:"):
        app.out.warn(f"{app.remote} keeps nothing: what is uploaded there is gone when this command ends")
    options = store_options(app, app.remote)
    return tiered.open(
        directory,
        app.remote,
        create=create,
        deadline_seconds=deadline_seconds,
        clock=app.clock,
        ids=app.ids,
        **options,
    )


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """Facts about a topic from both tiers. ``config``: settings by Kafka's names, the disk's if it has the topic.

    ``partitions``: the larger number of both tiers. Two different ids mean two different topics. ``entry``: registry
    entry, None if there is none or it is unreadable. ``unreadable``: the error in the latter case.
    """

    name: str
    partitions: int
    local_id: UUID | None
    remote_id: UUID | None
    config: Mapping[str, str]
    entry: TopicEntry | None = None
    unreadable: TieredError | None = None

    @property
    def topic_id(self) -> UUID | None:
        """Return the topic id: the bucket's, or the disk's if the bucket has none."""
        return self.remote_id if self.remote_id is not None else self.local_id

    @property
    def deleting(self) -> bool:
        """Return True if the topic is being deleted in the bucket. It is no longer read or written there."""
        return self.entry is not None and self.entry.state == STATE_DELETING

    @property
    def tiers(self) -> list[str]:
        """Return the tiers that have the topic: ``local``, ``remote``."""
        held = (("local", self.local_id), ("remote", self.remote_id))
        return [tier for tier, topic_id in held if topic_id is not None]


@dataclass(frozen=True, slots=True)
class Tiers:
    """Log directory and bucket of a log, both read-only. Either may be None."""

    local: LogView | None
    store: Store | None

    def topics(
        self, name: str | None = None, unreadable: dict[str, TieredError] | None = None
    ) -> dict[str, TopicFacts]:
        """Return all topics by name, or only the topic ``name`` (one GET, no listing).

        ``unreadable``: gets the error of each topic whose entry cannot be read. None, or with ``name``: it is raised.
        """
        found: dict[str, TopicFacts] = {}
        if self.store is not None:
            if name is None:
                entries = drive(self.store, list_topics(unreadable))
            else:
                entry = drive(self.store, load_topic_to_read(name))
                entries = [entry] if entry is not None else []
            for entry in entries:
                try:
                    settings = entry.settings.to_text()
                except ConfigError:  # raised where they are used; other topics are not affected
                    settings = dict(entry.config)
                found[entry.name] = TopicFacts(entry.name, entry.partitions, None, entry.topic_id, settings, entry)
        if self.local is not None:
            for info in self.local.topics().values():
                if name is not None and info.name != name:
                    continue
                other = found.get(info.name)
                found[info.name] = TopicFacts(
                    info.name,
                    max(info.partitions, other.partitions if other is not None else 0),
                    info.topic_id,
                    other.remote_id if other is not None else None,
                    info.config.to_text(),
                    other.entry if other is not None else None,
                    (unreadable or {}).get(info.name),
                )
        return dict(sorted(found.items()))

    def known(self) -> dict[TopicPartition, RootLowerBounds]:
        """Return the lower bounds of each partition's root, from the uploader's files on the disk.

        A root below them is stale. Call this before reading the root, or a commit in between makes it look stale.
        """
        if self.local is None:
            return {}
        return root_bounds_by_partition(self.local.uploads.read(), self.local.claims.read())

    def snapshot(self, facts: TopicFacts, partition: int, known: RootLowerBounds = NOTHING_KNOWN) -> CatalogView | None:
        """Return the newest catalog of a partition.

        It is checked against the lower bounds ``known`` and the registry entry. None if the bucket has none and should
        have none. Raises LogDestroyedError if the root or the registry entry is gone although the disk has seen it.
        Raises CorruptionError if one of them is damaged or older than the disk has seen.
        """
        if self.store is None:
            return None
        check_entry(facts.name, facts.entry, {partition: known}, where=self.store.url)
        if facts.entry is None:
            return None
        if partition < facts.entry.partitions:
            known = facts.entry.known_with(known)
        return drive(self.store, RootView(facts.entry.topic_id, partition, facts.name, known).pin())

    def run(self, steps: Steps[T]) -> T:
        """Run a steps function on the bucket and return its value. Raises ConfigError without a bucket."""
        if self.store is None:
            raise ConfigError("no bucket is named", hint="pass --remote URL")
        return drive(self.store, steps)

    def need_topic(self, name: str) -> TopicFacts:
        """Return the topic ``name``. Raises UnknownTopicError, which suggests a similar name."""
        found = self.topics(name).get(name)
        if found is None:
            others: dict[str, TieredError] = {}
            need_topic(name, {*self.topics(unreadable=others), *others})
            raise UnknownTopicError(
                f"there is no topic {name!r}", hint="run the command again: the topic was deleted just now"
            )
        return found


@contextmanager
def open_tiers(
    app: Application, *, with_local: bool = True, with_remote: bool = True, limits: Limits | None = None
) -> Iterator[Tiers]:
    """Open log directory and bucket, as given, for commands that read segments and catalogs themselves."""
    app.need_a_tier()
    if with_local:
        need_directory(app)
    store = open_remote(app, limits) if app.remote is not None and with_remote else None
    try:
        local = None
        if app.log_dir is not None and with_local:
            local = LogView.open(app.log_dir, clock=app.clock)
        try:
            yield Tiers(local, store)
        finally:
            if local is not None:
                local.close()
    finally:
        if store is not None:
            store.close()


@contextmanager
def open_in_bucket(app: Application, topic: str) -> Iterator[tuple[Tiers, TopicEntry]]:
    """Open the bucket with one topic's registry entry, for commands that change the topic there."""
    app.need_remote()
    refuse_internal(topic)
    with open_tiers(app, with_local=False) as tiers:
        entry = tiers.need_topic(topic).entry
        if entry is None:
            raise UnknownTopicError(f"topic {topic} is not in the bucket", hint="`tiered topic list` lists the topics")
        yield tiers, entry


def warn_unreadable(app: Application, unreadable: Mapping[str, TieredError]) -> int:
    """Print a warning for each unreadable registry entry. Return the highest exit code, 0 without such entries."""
    for name, error in unreadable.items():
        app.out.warn(f"{topic_key(name)} cannot be read: {error}")
    return max((error.exit_code for error in unreadable.values()), default=0)


def as_fields(unreadable: Mapping[str, TieredError]) -> list[dict[str, object]]:
    """Return unreadable registry entries as JSON values, for ``--json``."""
    return [{"topic": name, "error": error.as_json()} for name, error in unreadable.items()]


def topic_settings(pairs: Sequence[str], option: str = "--set ") -> dict[str, Any]:
    """Parse the texts of ``--set segment.bytes=64MiB``. Return values by name.

    ``option``: the word before each text on the command line, ``""`` for none. Raises ConfigError for a text without
    ``=``, an unknown name, a name that is given twice and a wrong value.
    """
    properties: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option}{pair!r} is not NAME=VALUE", hint=f"for example {option}segment.bytes=64MiB")
        if name in properties:
            raise ConfigError(f"{option}{name} is given twice", hint="keep one of them")
        properties[name] = value
    return TopicConfig.from_properties(properties).named(properties)


def open_directory(app: Application) -> LocalLog:
    """Open the log directory of the command line for writing, without the bucket."""
    directory = app.need_log_dir()
    need_directory(app)
    return LocalLog.open(directory, clock=app.clock, ids=app.ids)


def open_view(app: Application) -> LogView:
    """Open the log directory for reading, without the bucket."""
    directory = app.need_log_dir()
    need_directory(app)
    return LogView.open(directory, clock=app.clock)


def refuse_internal(topic: str) -> None:
    """Raise ConfigError if ``topic`` is an internal topic with the state of transactions or groups."""
    if is_state_log(topic):
        raise ConfigError(
            f"{topic} is internal and cannot be changed here: it has the state of transactions or groups",
            hint="`tiered transaction` and `tiered group` show and change its content",
        )
