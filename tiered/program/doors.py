"""How commands open logs: a writable door, a reading door, both tiers side by side, and wrong names explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast
from uuid import UUID

import tiered
from tiered.config import S3_WORDS, S3Keywords, TopicConfig
from tiered.errors import ConfigError, LocalPermissionError, NotFoundError, TieredError, UnknownTopicError
from tiered.local.directory.manager import LocalLog
from tiered.local.directory.view import DirectoryView, PartitionFolder
from tiered.local.disk.checkpoints import META_PROPERTIES_NAME
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploads import known_partitions
from tiered.model import TopicPartition
from tiered.plan.known import NOTHING_KNOWN, Known
from tiered.program.application import Application
from tiered.program.patience import PATIENCE_SECONDS, Patience, WatchedStore
from tiered.program.settings import suggestion
from tiered.remote.root_view import RootView
from tiered.remote.snapshot import Snapshot
from tiered.remote.topics import TopicEntry, check_entry, list_topics, load_topic_to_read
from tiered.store.base import Steps, Store
from tiered.store.driver import drive
from tiered.store.location import StoreLocation

T = TypeVar("T")


def store_options(app: Application, url: str) -> S3Keywords:
    """What was said of S3, if ``url`` is there. The environment is many programs' and does not concern other stores.

    Raises ``ConfigError``, which names where it came from, for what a flag or the file gives to another store.
    """
    scheme = StoreLocation.parse(url, environ={}).scheme
    given = {word: app.values[word] for word in S3_WORDS if app.values[word].value is not None}
    if scheme == "s3":
        return cast("S3Keywords", {word: value.value for word, value in given.items()})
    for word, value in given.items():
        if not value.origin.startswith("environment"):
            raise ConfigError(
                f"{word} ({value.origin}) means nothing to {scheme}://", hint="leave it out: it is for s3://"
            )
    return {}


def open_reader(app: Application, as_of: str | None = None, *, pin: bool = False) -> tiered.Reader:
    """Both tiers, whichever were named, read-only: no lock is taken and nothing is written but what ``pin`` asks for.

    ``as_of``: the bucket alone, as it was.
    """
    if as_of is not None:
        location(app)
        url = app.need_remote()
        options = store_options(app, url)
        return tiered.open_reader(url, as_of=as_of, pin=pin, deadline_seconds=PATIENCE_SECONDS, **options)
    app.need_a_tier()
    need_directory(app)
    if app.remote is None:
        return tiered.open_reader(log_dir=app.log_dir, pin=pin)
    location(app)
    options = store_options(app, app.remote)
    return tiered.open_reader(app.remote, log_dir=app.log_dir, pin=pin, deadline_seconds=PATIENCE_SECONDS, **options)


def open_log(app: Application, *, create: bool, deadline_seconds: float = PATIENCE_SECONDS) -> tiered.Log:
    """The log directory for writing, with its remote tier if one was named."""
    directory = app.need_log_dir()
    if create:
        refuse_file(directory)
    else:
        need_directory(app)
    if app.remote is None:
        return tiered.open(directory, create=create, clock=app.clock, ids=app.ids)
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


def location(app: Application) -> StoreLocation:
    """The remote tier's URL, parsed. A folder that is no store is an error: reading must not make it one."""
    url = app.need_remote()
    place = StoreLocation.parse(url, **store_options(app, url))
    try:
        place.require_folder()
    except NotFoundError as error:
        raise NotFoundError(f"the remote tier: {error.message}", hint="correct --remote") from error
    return place


def open_remote(app: Application) -> Store:
    """The bucket alone. A person waits: it gives up after :data:`PATIENCE_SECONDS` of silence."""
    return location(app).open(clock=app.clock, ids=app.ids, deadline_seconds=PATIENCE_SECONDS, create=False)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the tiers know it; ``config`` under Kafka's names. The ids differ if they are different topics.

    ``entry`` is the bucket's, None if it has none.
    """

    name: str
    partitions: int
    local_id: UUID | None
    remote_id: UUID | None
    config: Mapping[str, str]
    entry: TopicEntry | None = None

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
                entry = drive(self.store, load_topic_to_read(name))
                entries = [entry] if entry is not None else []
            for entry in entries:
                settings = TopicConfig.from_properties(entry.config).to_text()
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
                )
        return dict(sorted(found.items()))

    def known(self) -> dict[TopicPartition, Known]:
        """What the disk has seen of the bucket. Ask it before the bucket."""
        if self.local is None:
            return {}
        return known_partitions(self.local.uploads.read(), self.local.claims.read())

    def snapshot(self, facts: TopicFacts, partition: int, known: Known = NOTHING_KNOWN) -> Snapshot | None:
        """The bucket's catalog of a partition, held against what the disk and the registry know of it.

        None where there is none and nothing says that there was; raises LogDestroyedError and CorruptionError as
        ``RootView.load`` does, and for an entry that is gone or names fewer partitions than the disk has uploaded.
        """
        if self.store is None:
            return None
        check_entry(facts.name, facts.entry, {partition: known}, where=self.store.url)
        if facts.entry is None:
            return None
        known = replace(known, made=facts.entry.roots and partition < facts.entry.partitions)
        return drive(self.store, RootView(facts.entry.topic_id, partition, facts.name, known).pin())

    def run(self, steps: Steps[T]) -> T:
        """Carries out what a snapshot is asked."""
        if self.store is None:
            raise ConfigError("there is no bucket to ask", hint="name one with --remote")
        return drive(self.store, steps)

    def need_topic(self, name: str) -> TopicFacts:
        """The topic ``name``. Raises ``UnknownTopicError`` with a suggestion."""
        found = self.topics(name).get(name)
        if found is None:
            need_topic(name, self.topics())
            raise UnknownTopicError(f"there is no topic {name!r}", hint="it vanished just now: look again")
        return found


@contextmanager
def open_tiers(app: Application, *, with_local: bool = True) -> Iterator[Tiers]:
    """The tiers that were named, for commands that look at segments and catalogs themselves.

    ``with_local`` False leaves the log directory out: it is lost, and the command goes on over the bucket.
    """
    app.need_a_tier()
    if with_local:
        need_directory(app)
    store = open_remote(app) if app.remote is not None else None
    try:
        local = None
        if app.log_dir is not None and with_local:
            local = LocalLog.open(app.log_dir, clock=app.clock, ids=app.ids, read_only=True)
        try:
            with Patience(app) as patience:
                yield Tiers(local, None if store is None else WatchedStore(store, patience))
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
    stem, _, number = name.rpartition("-")
    if stem in names and number.isdigit():
        raise UnknownTopicError(f"there is no topic {name!r}", hint=f"did you mean partition {stem}:{number}?")
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


def open_directory(app: Application, *, read_only: bool = False) -> LocalLog:
    """The log directory that was named, by itself. Raises what :func:`directory_error` finds, LockedError."""
    directory = app.need_log_dir()
    need_directory(app)
    return LocalLog.open(directory, clock=app.clock, ids=app.ids, read_only=read_only)


def need_directory(app: Application) -> None:
    """Raises what :func:`directory_error` finds."""
    refused = directory_error(app)
    if refused is not None:
        raise refused


def directory_error(app: Application) -> TieredError | None:
    """Why the log directory that was named cannot be read; None if it can, or if none was named."""
    directory = app.log_dir
    if directory is None:
        return None
    if app.remote is not None:
        hint = f"`tiered restore --remote {app.remote} --to {directory}` rebuilds it; reading needs no --log-dir"
    else:
        hint = "correct --log-dir, or create a topic first"
    try:
        refuse_file(directory)
        if not directory.exists():
            return NotFoundError(f"the log directory {directory} does not exist", hint=hint)
        if not _is_log(directory):
            return NotFoundError(
                f"{directory} is no log directory: it holds no meta.properties, no partition", hint=hint
            )
    except (PermissionError, LocalPermissionError):
        return LocalPermissionError(f"the log directory {directory} cannot be read", hint="check its owner and mode")
    except TieredError as refused:
        return refused
    return None


def folder(name: str, text: str) -> Path:
    """A folder that an option or argument names; an empty text would be the current one."""
    if not text:
        raise ConfigError(f"{name} is empty", hint="name a folder; . is the current one")
    return Path(text)


def refuse_file(directory: Path) -> None:
    """Raises ``ConfigError`` for a log directory that is a file."""
    if directory.exists() and not directory.is_dir():
        hint = "name the directory that holds the partitions"
        raise ConfigError(f"{directory} is a file, not a log directory", hint=hint)


def _is_log(directory: Path) -> bool:
    if (directory / META_PROPERTIES_NAME).exists():
        return True
    seen = DirectoryView.look(directory, PosixFiles())
    if any(isinstance(folder, PartitionFolder) for folder in seen.folders):
        return True
    if seen.strange:
        raise seen.strange[0].refusal
    return False
