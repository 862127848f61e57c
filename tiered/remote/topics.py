"""The topic registry: ``topics/{topic}``, one small JSON object each, changed by compare-and-swap only.

::

    {"format": 1, "topic": "flights", "topic_id": "<32 hex>", "partitions": 3, "state": "open",
     "config": {"segment.bytes": "67108864"}, "version": 7, "changes": [["<32 hex>"], ...]}

``changes`` holds the ids of the newest changes. They make each body unique, so that ETags never repeat, and tell
whoever lost the answer to a PUT whether it landed, even after others have changed the entry again. All
registrations of a name that race create one entry, and all adopt the topic id found there.

Listing the registry is the only listing that a user can cause.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from uuid import UUID

from tiered.errors import CommitUnknown, ConfigError, CorruptionError, RemoteUnavailableError, UnknownTopicError
from tiered.format.crc import crc32c
from tiered.format.fields import INT32_MAX, Fields
from tiered.format.keys import TOPICS_PREFIX, check_topic_name, parse_topic_key, topic_key
from tiered.format.root import STATE_OPEN, STATES
from tiered.remote.settle import COMMIT_DEADLINE_MS, Deadline, deadline_after, settle
from tiered.store.base import (
    ABSENT,
    Backoff,
    Get,
    List,
    Match,
    Missing,
    NewId,
    Now,
    Object,
    Page,
    Put,
    PutStatus,
    Steps,
    Time,
    Together,
)

FORMAT = 1
MAX_ENTRY_BYTES = 256 * 1024
MAX_CONFIG_CHARS = 65_536
CHANGES_KEPT = 64
GETS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic as registered. ``config`` holds Kafka's names with text values; ``state`` as that of a root.

    ``version`` counts changes, ``changes`` are the ids of the newest ones, the newest last.
    """

    name: str
    topic_id: UUID
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    state: str = STATE_OPEN
    version: int = 1
    changes: tuple[str, ...] = ()


Change = Callable[[TopicEntry], TopicEntry]


def register_topic(name: str, topic_id: UUID, partitions: int, config: Mapping[str, str]) -> Steps[TopicEntry]:
    """Creates the entry, or gives the one that is there: compare its ``topic_id`` and ``partitions`` with yours.

    Raises ConfigError for a bad name, CommitUnknown if the outcome is not known (register again).
    """
    key = topic_key(name)
    if not 1 <= partitions <= INT32_MAX or topic_id.int == 0:
        raise ConfigError(f"topic {name}: {partitions} partitions, topic id {topic_id}")
    deadline = yield from deadline_after(COMMIT_DEADLINE_MS)
    attempt = 0
    while True:
        found = yield from load_topic(name)
        if found is not None:
            return found
        change = yield NewId()
        entry = TopicEntry(name, topic_id, partitions, MappingProxyType(dict(config)), changes=(change,))
        body = encode_topic(entry)
        settled = yield from settle(Put(key, body, ABSENT, crc32c(body)), deadline, f"topic {name}")
        if settled.status is PutStatus.LANDED:
            return entry
        attempt += 1  # lost to another registration, or to our own earlier attempt: read whose it is
        yield from _pause(deadline, attempt, name)


def load_topic(name: str) -> Steps[TopicEntry | None]:
    """The entry, None if the topic is not registered. Raises CorruptionError if it cannot be read."""
    found = yield from _fetch(name)
    return found[0] if found else None


def update_topic(name: str, change: Change) -> Steps[TopicEntry]:
    """Applies ``change`` by compare-and-swap, again after each lost race. It may alter partitions, config and state.

    ``change`` gives the entry itself where nothing is to be done. Raises UnknownTopicError, CommitUnknown, ConfigError
    for a change of name or topic id, or fewer partitions.
    """
    deadline = yield from deadline_after(COMMIT_DEADLINE_MS)
    attempt, sent, sent_version = 0, "", 0
    while True:
        found = yield from _fetch(name)
        if found is None:
            raise UnknownTopicError(f"topic {name} is not registered")
        entry, etag = found
        if sent and sent in entry.changes:
            return entry
        if sent and entry.version - sent_version >= CHANGES_KEPT:
            raise CommitUnknown(
                f"topic {name}: over {CHANGES_KEPT} changes since ours was sent", hint="look, then retry"
            )
        wanted = _changed(entry, change)
        if wanted == entry:
            return entry
        sent = yield NewId()
        sent_version = entry.version + 1
        wanted = replace(wanted, version=sent_version, changes=(*entry.changes, sent)[-CHANGES_KEPT:])
        body = encode_topic(wanted)
        settled = yield from settle(Put(topic_key(name), body, Match(etag), crc32c(body)), deadline, f"topic {name}")
        if settled.status is PutStatus.LANDED:
            return wanted
        attempt += 1
        yield from _pause(deadline, attempt, name)


def list_topics() -> Steps[list[TopicEntry]]:
    """All registered topics, by name. Foreign objects under the prefix are passed over; an unreadable entry raises."""
    names: list[str] = []
    after, more = "", True
    while more:
        page: Page = yield List(TOPICS_PREFIX, start_after=after)
        names += [name for entry in page.entries if (name := parse_topic_key(entry.key)) is not None]
        more = page.more and bool(page.entries)
        after = page.entries[-1].key if page.entries else ""
    entries: list[TopicEntry] = []
    for at in range(0, len(names), GETS_AT_ONCE):
        group = names[at : at + GETS_AT_ONCE]
        objects = yield Together(tuple(Get(topic_key(name)) for name in group))
        for name, got in zip(group, objects, strict=True):
            if isinstance(got, Object):
                entries.append(decode_topic(got.data, key=topic_key(name)))
    return sorted(entries, key=lambda entry: entry.name)


def encode_topic(entry: TopicEntry) -> bytes:
    """The object's bytes, for people as well. Raises ConfigError if larger than readers accept."""
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
    """The inverse. Raises CorruptionError for damaged or foreign bytes, ConfigError for a newer format."""
    if len(data) > MAX_ENTRY_BYTES:
        raise CorruptionError(f"{key}: {len(data)} bytes are too many for a topic entry", path_or_key=key, position=0)
    fields = Fields.parse(data, key=key)
    if fields.number("format", 1) > FORMAT:
        raise ConfigError(f"{key} was written by a newer release", hint="upgrade tieredlog; nothing was changed")
    name, state = fields.text("topic"), fields.text("state")
    if topic_key(check_topic_name(name)) != key:
        fields.refuse("topic", f"is {name[:64]!r}: the entry of another topic was copied in place")
    if state not in STATES:
        fields.refuse("state", f"is none of {', '.join(STATES)}")
    config = fields.child("config")
    return TopicEntry(
        name=name,
        topic_id=UUID(int=fields.hex_number("topic_id", 32)),
        partitions=fields.number("partitions", 1, INT32_MAX),
        config=MappingProxyType({option: config.text(option, MAX_CONFIG_CHARS) for option in config.values}),
        state=state,
        version=fields.number("version", 1),
        changes=fields.tuples("changes", CHANGES_KEPT, lambda one: one.text("id"), ("id",)),
    )


def _fetch(name: str) -> Steps[tuple[TopicEntry, str] | None]:
    key = topic_key(name)
    got: Object | Missing = yield Get(key)
    return (decode_topic(got.data, key=key), got.etag) if isinstance(got, Object) else None


def _changed(entry: TopicEntry, change: Change) -> TopicEntry:
    wanted = change(entry)
    if (wanted.name, wanted.topic_id) != (entry.name, entry.topic_id) or wanted.partitions < entry.partitions:
        raise ConfigError(
            f"topic {entry.name}: name and topic id cannot change, {entry.partitions} partitions cannot become "
            f"{wanted.partitions}",
            hint="partitions can only be added, as in Kafka",
        )
    return wanted


def _pause(deadline: Deadline, attempt: int, name: str) -> Steps[None]:
    time: Time = yield Now()
    if deadline.passed(time):
        raise RemoteUnavailableError(f"topic {name}: lost {attempt} races in {deadline.after_ms} ms", hint="try again")
    yield Backoff(attempt)
