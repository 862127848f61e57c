"""Topic registry: ``topics/{topic}``, one small JSON object each, changed by compare-and-swap only.

::

    {"format": 1, "topic": "flights", "topic_id": "<32 hex>", "partitions": 3, "state": "open",
     "config": {"segment.bytes": "67108864"}, "version": 7, "changes": [["<32 hex>"], ...]}

The roots of all partitions are made first and the entry last. From then on a missing root is lost, never "nothing
uploaded yet". More partitions are added in the same order: their roots, then the entry.

``changes`` holds the ids of the newest changes. They make each body unique, so that ETags never repeat. They also show
after a lost answer whether a PUT landed, even if others have changed the entry again. Racing registrations of a name
create one entry, and all adopt its topic id.

Listing the registry is the only listing that a user can cause.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from uuid import UUID

from tiered.config import MAX_PARTITIONS, TopicConfig
from tiered.errors import (
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    LogDestroyedError,
    NotFoundError,
    TieredError,
    UnknownTopicError,
)
from tiered.format.json_schema import HEX_128, INT64_MAX, TEXT, JsonObject, ListOf, ValueType
from tiered.format.keys import TOPICS_PREFIX, parse_topic_key, partition_prefix, root_key, topic_key
from tiered.format.root import STATE_DELETING, STATE_OPEN, STATES, Root, decode_root
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.remote.conditional_put import (
    COMMIT_DEADLINE_MS,
    Cell,
    Deadline,
    NextBody,
    Planned,
    Tagged,
    deadline_after,
    read_cell,
    update,
)
from tiered.remote.root_view import root_get
from tiered.remote.roots import TopicIds, load_roots, make_roots
from tiered.store.base import Get, Missing, NewId, Object, Outcome, Steps, Together
from tiered.store.steps import list_all

FORMAT = 1
MAX_ENTRY_BYTES = 256 * 1024
MAX_CONFIG_CHARS = 65_536
CHANGES_KEPT = 64
GETS_AT_ONCE = 16

_ENTRY = {
    "topic": TEXT,
    "topic_id": HEX_128,
    "partitions": ValueType(int, 1, MAX_PARTITIONS),
    "state": TEXT,
    "version": ValueType(int, 1, INT64_MAX),
    "changes": ListOf({"id": TEXT}, CHANGES_KEPT),
    "format": ValueType(int, 1, INT64_MAX),
}
_OPTION = ValueType(str, 0, MAX_CONFIG_CHARS)

STATE_DELETED = "deleted"
"""State of an entry whose topic has no object any more. It counts as no entry, and the next topic replaces it."""

_LOOK_HINT = "look at the topic with `tiered topic show`, then try again"
REPAIR_HINT = "`tiered repair TOPIC --dry-run` shows how it is repaired; nothing was deleted"


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """Registry entry of a topic. ``config``: Kafka's names with text values.

    ``partitions``: their number. ``state``: ``open``, ``sealed``, ``deleting``, or ``deleted``, which makes the name
    free. ``version``: number of the entry's newest change, from 1. ``changes``: ids of the newest changes, in order.
    The root of every partition was made before the entry named it.
    """

    name: str
    topic_id: UUID
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    state: str = STATE_OPEN
    version: int = 1
    changes: tuple[str, ...] = ()

    @property
    def settings(self) -> TopicConfig:
        """Return the topic's settings. Raises ConfigError for a setting or a value that this release does not know."""
        try:
            return TopicConfig.from_properties(self.config)
        except ConfigError as error:
            raise ConfigError(
                f"{topic_key(self.name)}: {error.message}",
                hint=f"upgrade tieredlog if a newer release wrote it; otherwise `tiered topic set {self.name} "
                "--reset SETTING` removes a damaged setting",
            ) from None

    @property
    def known_settings(self) -> TopicConfig:
        """Return the settings that this release knows, with defaults for others. For readers, which change nothing."""
        config = TopicConfig()
        for name, value in self.config.items():
            with contextlib.suppress(ConfigError):
                config = config.replace({name: value})
        return config

    @property
    def known(self) -> RootLowerBounds:
        """Return the lower bounds that the entry alone proves about each of the topic's roots: the root was made.

        Nothing is proven for a topic that is being deleted, whose roots are deleted one by one.
        """
        return self.known_with(NOTHING_KNOWN)

    def known_with(self, seen: RootLowerBounds) -> RootLowerBounds:
        """Return the lower bounds that the entry and a disk (``seen``) prove about a root of the topic.

        Nothing is proven for a topic that is being deleted, whose roots are deleted one by one.
        """
        return NOTHING_KNOWN if self.state == STATE_DELETING else replace(seen, made=True)


@dataclass(frozen=True, slots=True)
class Registrant:
    """Process that registers a topic. ``owner``: its name in new roots.

    ``seen``: numbers of the partitions whose roots this disk has seen; these roots are never made again. ``first``:
    steps that run before the first write and may raise to prevent it.
    """

    owner: str = ""
    seen: Collection[int] = ()
    first: Callable[[], Steps[object]] | None = None


ANYBODY = Registrant()
Change = Callable[[TopicEntry], TopicEntry]


def register_topic(
    name: str, topic_id: UUID, partitions: int, config: Mapping[str, str], registrant: Registrant = ANYBODY
) -> Steps[TopicEntry]:
    """Register a topic: create its roots, then its entry. Return the entry.

    An existing entry is returned instead, with its own settings: compare its ``topic_id``. If the id is the same, the
    entry gets the partitions that it lacks. An existing entry that lacks none costs one GET.

    Raises:
        ConfigError: a bad name or number.
        CommitUnknownError: the outcome is not known. Register again.
        RemoteUnavailableError: the entry was not written, but roots may have been made. Register again.
        LogDestroyedError: a root that ``registrant`` has seen is gone, or the topic is being deleted.
        CorruptionError: the entry is damaged, is missing although a root is in use, or has fewer partitions than the
            bucket or ``registrant``.
    """
    key = topic_key(name)
    if not 1 <= partitions <= MAX_PARTITIONS or topic_id.int == 0:
        raise ConfigError(
            f"topic {name} cannot have {partitions} partitions and topic id {topic_id}",
            hint=f"use 1 to {MAX_PARTITIONS} partitions, and a topic id that is not zero",
        )
    entry = TopicEntry(name, topic_id, partitions, MappingProxyType(dict(config)))
    encode_topic(entry)  # refuse an invalid entry before the first root is made
    deadline = yield from deadline_after(COMMIT_DEADLINE_MS)  # one for the whole registration, its roots too

    def first_entry(seen: Tagged[TopicEntry | None]) -> Planned[TopicEntry | None]:
        found = seen.value
        if found is not None and (found.state != STATE_DELETED or found.topic_id == topic_id):
            return None
        used = yield from _made(entry, range(partitions), registrant, deadline)
        made = replace(entry, changes=((yield NewId()),))
        if used and (yield from load_topic(name)) is None:
            raise CorruptionError(
                f"topic {name}: there is no entry {key}, and the root {used[0].key} holds offsets "
                f"{used[0].start_offset} to {used[0].next_offset}: the entry was lost",
                path_or_key=key,
                hint=REPAIR_HINT,
            )
        return NextBody(encode_topic(made), made)

    found, is_new = yield from _update(name, first_entry, deadline, hint="register it again")
    if is_new:
        return found
    need_open(found)
    return (yield from _completed(found, entry, registrant, deadline))


def _update(
    name: str,
    change: Callable[[Tagged[TopicEntry | None]], Planned[TopicEntry | None]],
    deadline: Deadline,
    *,
    hint: str,
) -> Steps[tuple[TopicEntry, bool]]:
    """Change the entry of ``name``. Return it, and True if this call wrote it."""
    key = topic_key(name)
    look = read_cell(key, lambda got: decode_topic(got.data, key=key), MAX_ENTRY_BYTES)
    done = yield from update(Cell(key, f"topic {name}", look, _holds_change, hint), change, deadline)
    if done.value is None:
        raise ValueError(f"{key}: a change left no entry")
    return done.value, done.written


def _holds_change(found: TopicEntry | None, sent: TopicEntry | None) -> bool:
    """Return True if ``found`` has the newest change of ``sent``. Raises CommitUnknownError if too many followed."""
    if found is None or sent is None or found.topic_id != sent.topic_id:
        return False
    if sent.changes[-1] in found.changes:
        return True
    if found.version - sent.version >= CHANGES_KEPT:
        raise CommitUnknownError(
            f"topic {found.name}: it is unknown whether the change was made: over {CHANGES_KEPT} others "
            "were made since",
            hint=_LOOK_HINT,
        )
    return False


def _completed(found: TopicEntry, wanted: TopicEntry, registrant: Registrant, deadline: Deadline) -> Steps[TopicEntry]:
    """Return the entry with all partitions of ``wanted``, whose roots are made first.

    ``found``: the stored entry. Raises LogDestroyedError if a root that ``registrant`` has seen is gone. Raises
    CorruptionError if ``found`` is an older entry that was put back.
    """
    if found.topic_id != wanted.topic_id or found.partitions >= wanted.partitions:
        return found
    name, before = found.name, found.partitions
    check_entry(name, found, dict.fromkeys(registrant.seen, RootLowerBounds(writer_epoch=1)))
    used = yield from _made(wanted, range(before, wanted.partitions), registrant, deadline)
    if used:
        again = yield from load_topic(name)  # another process may have added them meanwhile
        if again is None or used[-1].partition >= again.partitions:
            raise CorruptionError(
                f"topic {name}: {topic_key(name)} has {before} partitions, but the root {used[-1].key} is in "
                "use: an older entry was put back",
                path_or_key=topic_key(name),
                hint=REPAIR_HINT,
            )

    def completed(entry: TopicEntry) -> TopicEntry:
        return replace(entry, partitions=max(entry.partitions, wanted.partitions))

    return (yield from update_topic(name, completed, deadline))


def _made(
    entry: TopicEntry, partitions: Collection[int], registrant: Registrant, deadline: Deadline
) -> Steps[list[Root]]:
    """Create the missing roots of ``partitions``. Return the existing roots that have been changed since creation.

    Raises LogDestroyedError if a root that ``registrant`` has seen is gone.
    """
    ids = TopicIds(entry.name, entry.topic_id)
    wanted = sorted(partitions)
    seen = sorted(set(wanted).intersection(registrant.seen))
    roots = yield from load_roots(ids, seen)
    if registrant.first is not None:
        yield from registrant.first()
    for partition in seen:
        if roots[partition] is None:
            raise LogDestroyedError(
                f"{entry.name}-{partition}: the catalog {partition_prefix(entry.topic_id, partition)}root is "
                "gone: it was deleted, and the partition is lost",
                hint=REPAIR_HINT,
            )
    absent = [partition for partition in wanted if roots.get(partition) is None]
    there = yield from make_roots(ids, absent, registrant.owner, deadline)
    known = [*there.values(), *(root for root in roots.values() if root is not None)]
    return sorted((root for root in known if root.version > 1), key=lambda root: root.partition)


def check_entry(
    name: str, entry: TopicEntry | None, known: Mapping[int, RootLowerBounds], *, where: str = "the bucket"
) -> None:
    """Compare an entry (None: there is none) with the lower bounds ``known`` that a disk has, by partition number.

    Raises LogDestroyedError if the disk has seen roots of a topic without an entry. Raises CorruptionError if the entry
    has fewer partitions than the disk has seen. ``where`` names the bucket in errors.
    """
    seen = [number for number, what in known.items() if what.by_disk] if known else []
    if entry is None and seen:
        raise LogDestroyedError(
            f"topic {name}: {where} does not know it, but {known[min(seen)].absent()} (partition {min(seen)})",
            hint=f"this is another bucket or prefix, or its objects were deleted: correct the URL; {REPAIR_HINT}",
        )
    if entry is not None and seen and max(seen) >= entry.partitions:
        raise CorruptionError(
            f"topic {name}: {topic_key(name)} in {where} has {entry.partitions} partitions, but this disk "
            f"uploaded partition {max(seen)}: an older entry was put back",
            path_or_key=topic_key(name),
            hint=REPAIR_HINT,
        )


def check_successor(name: str, seen: TopicEntry | None, entry: TopicEntry | None, *, where: str) -> None:
    """Compare an entry with an earlier one, ``seen``. Partitions and version must not go down.

    ``where`` names the bucket in errors. Raises LogDestroyedError if the entry is gone or of another topic id,
    CorruptionError if it is an older one.
    """
    if seen is None:
        return
    key = topic_key(name)
    if entry is None or entry.topic_id != seen.topic_id:
        now = "is missing" if entry is None else f"has {entry.topic_id}"
        raise LogDestroyedError(
            f"topic {name}: {key} in {where} had topic id {seen.topic_id} before, and {now} now",
            hint=f"if the topic was deleted, or made again, open a new reader; {REPAIR_HINT}",
        )
    if entry.partitions < seen.partitions or entry.version < seen.version:
        raise CorruptionError(
            f"topic {name}: {key} in {where} went from version {seen.version} with {seen.partitions} "
            f"partitions back to {entry.version} with {entry.partitions}: an older entry was put back",
            path_or_key=key,
            hint=REPAIR_HINT,
        )


def load_topic(name: str) -> Steps[TopicEntry | None]:
    """Return a topic's registry entry, also while it is being deleted. None if it is not registered or was deleted."""
    entry = yield from load_entry(name)
    return None if entry is None or entry.state == STATE_DELETED else entry


def load_entry(name: str) -> Steps[TopicEntry | None]:
    """Return a topic's registry entry, also that of a deleted topic, whose name is free. None without an entry.

    Raises CorruptionError if the entry cannot be read, ConfigError if a newer release wrote it.
    """
    key = topic_key(name)
    got: Object | Missing = yield _get(key)
    return decode_topic(got.data, key=key) if isinstance(got, Object) else None


def need_open(entry: TopicEntry) -> None:
    """Raise LogDestroyedError if the topic is deleted or being deleted."""
    if entry.state in (STATE_DELETING, STATE_DELETED):
        raise being_deleted(f"topic {entry.name}", entry.topic_id, over=entry.state == STATE_DELETED)


def being_deleted(what: str, topic_id: UUID, *, over: bool = False) -> LogDestroyedError:
    """Return the error for ``what`` of a topic that is being deleted, or was deleted (``over``)."""
    return LogDestroyedError(
        f"{what} ({topic_id}) {'was' if over else 'is being'} deleted",
        hint="wait for gc.grace.ms, after which its objects are deleted and its name is free again",
    )


def confirm_topic(entry: TopicEntry) -> Steps[TopicEntry]:
    """Check that ``entry`` is not an older one that was put back. Return the entry, or a newer one.

    Raises CorruptionError if the partition after the entry's last one is in use: an older entry has too few partitions.
    For readers without a disk that has seen the partitions. Costs one GET, unless the partition is in use.
    """
    for _ in range(CHANGES_KEPT):
        key = root_key(entry.topic_id, entry.partitions)
        got = yield root_get(key)
        root = decode_root(got.data, key=key) if isinstance(got, Object) else None
        if root is None or root.version == 1:  # version 1: partitions are being added, the entry comes later
            return entry
        again = yield from load_topic(entry.name)
        if again is None or again.topic_id != entry.topic_id or again.partitions <= entry.partitions:
            break
        entry = again
    raise CorruptionError(
        f"topic {entry.name}: {topic_key(entry.name)} has {entry.partitions} partitions, but "
        f"partition {entry.partitions} is in use: an older entry was put back",
        path_or_key=topic_key(entry.name),
        hint=REPAIR_HINT,
    )


def load_topic_to_read(name: str) -> Steps[TopicEntry | None]:
    """Return a topic's registry entry, for a reader without a disk. None if it is not registered or was deleted.

    Raises CorruptionError if the entry cannot be read, or is an older one that was put back: the partition after its
    last one is in use.
    """
    entry = yield from load_topic(name)
    return None if entry is None else (yield from confirm_topic(entry))


def update_topic(name: str, change: Change, deadline: Deadline | None = None) -> Steps[TopicEntry]:
    """Replace a topic's registry entry by ``change(entry)``, by compare-and-swap, again after each lost race.

    ``change`` may alter partitions, config and state. It returns the entry itself if nothing is to be done. The roots
    of added partitions must exist: ``register_topic`` makes them first. ``deadline``: by default ``COMMIT_DEADLINE_MS``
    from now. Return the new entry.

    Raises UnknownTopicError, CommitUnknownError, RemoteUnavailableError (nothing was changed). Raises ConfigError for a
    change of name or topic id, or for fewer partitions.
    """
    deadline = deadline or (yield from deadline_after(COMMIT_DEADLINE_MS))

    def next_entry(seen: Tagged[TopicEntry | None]) -> Planned[TopicEntry | None]:
        entry = seen.value
        if entry is None:
            raise UnknownTopicError(f"topic {name} is not registered")
        if entry.state == STATE_DELETED:
            raise UnknownTopicError(f"topic {name} was deleted")
        wanted = _changed(entry, change)
        if wanted == entry:
            return None
        changes = (*entry.changes, (yield NewId()))[-CHANGES_KEPT:]
        wanted = replace(wanted, version=entry.version + 1, changes=changes)
        return NextBody(encode_topic(wanted), wanted)

    entry, _ = yield from _update(name, next_entry, deadline, hint=_LOOK_HINT)
    return entry


def no_topics(url: str) -> NotFoundError:
    """Return the error for a bucket that has no topics although a log is expected. Most likely its URL is wrong."""
    return NotFoundError(f"{url} holds no topics", hint="correct the URL: bucket and prefix")


def another_bucket(topic: str, directory: object, url: str) -> LogDestroyedError:
    """Return the error for a bucket that lacks ``topic``, which was uploaded from the log directory ``directory``."""
    return LogDestroyedError(
        f"topic {topic} was uploaded from {directory}, but {url} does not know it",
        hint="this is another bucket or prefix, or its objects were deleted: correct the URL, or copy the objects back",
    )


def list_topics(unreadable: dict[str, TieredError] | None = None) -> Steps[list[TopicEntry]]:
    """Return the entries of all topics that are not deleted, sorted by name. Skips foreign objects below ``topics/``.

    ``unreadable`` gets the errors of unreadable entries by name. None: the first error is raised, CorruptionError, or
    ConfigError for a newer format.
    """
    names = yield from list_topic_names()
    entries: list[TopicEntry] = []
    for at in range(0, len(names), GETS_AT_ONCE):
        group = names[at : at + GETS_AT_ONCE]
        objects = yield Together(tuple(_get(topic_key(name)) for name in group), errors=True)
        for name, got in zip(group, objects, strict=True):
            try:
                entry = _listed(got, name)
            except (CorruptionError, ConfigError) as error:
                if unreadable is None:
                    raise
                unreadable[name] = error
                continue
            entries += [] if entry is None or entry.state == STATE_DELETED else [entry]
    return sorted(entries, key=lambda entry: entry.name)


def _listed(got: Outcome | TieredError, name: str) -> TopicEntry | None:
    """Return topic ``name``'s entry in ``got``, the answer to a GET; None if it is gone. Raises an error in ``got``."""
    if isinstance(got, TieredError):
        raise got
    return decode_topic(got.data, key=topic_key(name)) if isinstance(got, Object) else None


def list_topic_names() -> Steps[list[str]]:
    """Return the names of all registry entries, in the order of their keys.

    Deleted topics and unreadable entries are included.
    """
    listed = yield from list_all(TOPICS_PREFIX)
    return [name for entry in listed if (name := parse_topic_key(entry.key)) is not None]


def encode_topic(entry: TopicEntry) -> bytes:
    """Return the bytes of the entry's object, JSON that people can read. Raises ConfigError if they are too many."""
    body = json.dumps(
        {
            "format": FORMAT,
            "topic": entry.name,
            "topic_id": entry.topic_id.hex,
            "partitions": entry.partitions,
            "state": entry.state,
            "config": dict(sorted(entry.config.items())),
            "version": entry.version,
            "changes": [[change] for change in entry.changes],
        },
        indent=1,
    ).encode("utf-8")
    if len(body) > MAX_ENTRY_BYTES:
        raise ConfigError(f"topic {entry.name}: its entry of {len(body)} bytes is larger than {MAX_ENTRY_BYTES}")
    return body


def decode_topic(data: bytes, *, key: str) -> TopicEntry:
    """Decode a registry entry. Raises CorruptionError for damaged or foreign bytes, ConfigError for a newer format."""
    try:
        return _decoded(data, key)
    except CorruptionError as damage:
        damage.hint = damage.hint or REPAIR_HINT
        raise


def _decoded(data: bytes, key: str) -> TopicEntry:
    if len(data) > MAX_ENTRY_BYTES:
        raise CorruptionError(
            f"{key}: the topic entry has {len(data)} bytes, more than the limit", path_or_key=key, position=0
        )
    fields = JsonObject(data, key=key)
    fields.check_format(FORMAT)
    config = fields.values.get("config")
    options = dict.fromkeys(config if isinstance(config, dict) else (), _OPTION)
    values = fields.checked_fields({**_ENTRY, "config": options})
    name, state = values["topic"], values["state"]
    if TOPICS_PREFIX + name != key:
        fields.refuse("topic", f"is {name[:64]!r}: the entry of another topic was copied over this one")
    if state not in (*STATES, STATE_DELETED):
        fields.refuse("state", f"is not one of {', '.join((*STATES, STATE_DELETED))}")
    return TopicEntry(
        name=name,
        topic_id=UUID(int=values["topic_id"]),
        partitions=values["partitions"],
        config=MappingProxyType(values["config"]),
        state=state,
        version=values["version"],
        changes=tuple(itertools.chain.from_iterable(values["changes"])),
    )


def _get(key: str) -> Get:
    return Get(key, max_bytes=MAX_ENTRY_BYTES)


def _changed(entry: TopicEntry, change: Change) -> TopicEntry:
    wanted = change(entry)
    if (wanted.name, wanted.topic_id) != (entry.name, entry.topic_id):
        raise ConfigError(f"topic {entry.name}: its name and its topic id cannot change")
    if not entry.partitions <= wanted.partitions <= MAX_PARTITIONS:
        raise ConfigError(
            f"topic {entry.name}: {entry.partitions} partitions cannot become {wanted.partitions}",
            hint=f"give {entry.partitions} to {MAX_PARTITIONS}: as in Kafka, partitions can only be added",
        )
    return wanted
