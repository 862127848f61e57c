"""What a partition was: snapshots that users take, the copies below ``hist/``, and which of them an ``as_of`` means.

::

    create   root v ── PUT snap/{name} (create-only) ── root again: floor above v? deleted, from the start
    as_of    a name: snap/{name}    a version: hist/, the root, a snapshot    a time: the newest of all at or before it

A snapshot is a copy of a root, byte for byte, and for the collector a pin without expiry. What was removed after
version v is still there if the floor of the root is at most v, or a snapshot of v or an older version holds it: the
collector never passes the lowest one, and a snapshot is only made of a version that the floor had not passed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered.errors import CommitUnknown, ConfigError, NotFoundError, RemotePermissionError, RemoteUnavailableError
from tiered.format.crc import crc32c
from tiered.format.keys import parse_snap_key, snap_key, snap_prefix
from tiered.format.root import Root, decode_root
from tiered.remote.root_view import RootView, root_get
from tiered.store.base import ABSENT, Delete, Deleted, Get, List, Object, Page, Put, PutStatus, Steps
from tiered.times import format_time

SNAPSHOT_TRIES = 3
"""Roots that are copied before a collector that passes each of them is an error."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A root that was kept. ``source`` is ``snapshot NAME``, ``history`` or ``root``: the newest one."""

    source: str
    root: Root

    def __str__(self) -> str:
        where = "the newest root" if self.source == "root" else self.source
        return f"version {self.root.version} of {format_time(self.root.commit.ts_ms)} ({where})"


def create_snapshot(view: RootView, name: str) -> Steps[Root]:
    """Keeps the newest root as ``name``. Raises ConfigError if there is such a snapshot, or the name is no name,
    NotFoundError without a root, CommitUnknown (it is not known whether it was made)."""
    key = snap_key(view.topic_id, view.partition, name)
    if (yield from load_snapshot(view, name)) is not None:
        raise _exists(view, name)
    for _ in range(SNAPSHOT_TRIES):
        got = yield root_get(view.key)
        pinned = view.pin_received(got)
        if pinned is None or not isinstance(got, Object):
            raise NotFoundError(
                f"{view.name} has no catalog yet", hint="nothing was uploaded: there is nothing to keep"
            )
        body = bytes(got.data)
        put = yield Put(key, body, ABSENT, crc32c(body))
        if put.status is not PutStatus.LANDED:
            held = yield Get(key)  # what did not land, as far as the answer tells, may have come before its answer
            if isinstance(held, Object) and bytes(held.data) != body:
                raise _exists(view, name)
            if not isinstance(held, Object):
                raise CommitUnknown(
                    f"{view.name}: it is not known whether snapshot {name} was made ({put.cause or put.status.value})",
                    hint="`tiered snapshot list` tells; nothing else was changed",
                )
        newest = yield from view.load()
        if newest is not None and newest.gc_floor <= pinned.version:
            return pinned.root
        yield from delete_snapshot(view, name)  # a collector that listed before it came may delete what it names
    raise RemoteUnavailableError(f"{view.name}: a collector passed each root that was to be kept", hint="try again")


def load_snapshot(view: RootView, name: str) -> Steps[Root | None]:
    """The root that a snapshot holds, None if there is none of that name."""
    key = snap_key(view.topic_id, view.partition, name)
    got = yield root_get(key)
    return decode_root(got.data, key=key) if isinstance(got, Object) else None


def list_snapshots(view: RootView) -> Steps[list[Taken]]:
    """All snapshots of a partition, oldest first."""
    names, after = list[str](), ""
    while True:
        page: Page = yield List(snap_prefix(view.topic_id, view.partition), start_after=after)
        names += [name for entry in page.entries if (name := parse_snap_key(entry.key)) is not None]
        if not page.more or not page.entries:
            break
        after = page.entries[-1].key
    found = []
    for name in names:
        root = yield from load_snapshot(view, name)
        if root is not None:
            found.append(Taken(f"snapshot {name}", root))
    return sorted(found, key=lambda taken: taken.root.version)


def delete_snapshot(view: RootView, name: str) -> Steps[None]:
    """Deletes it; what it held goes with the next collections. Raises RemotePermissionError."""
    outcome: Deleted = yield Delete((snap_key(view.topic_id, view.partition, name),))
    for key, why in outcome.failed:
        raise RemotePermissionError(f"{key} was not deleted: {why}", hint="a maintainer's role may delete snapshots")


def _exists(view: RootView, name: str) -> ConfigError:
    return ConfigError(
        f"{view.name} has a snapshot {name} already", hint="choose another name, or `tiered snapshot delete` it"
    )
