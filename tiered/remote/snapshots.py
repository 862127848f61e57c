"""Past versions of a partition: user snapshots, the copies below ``hist/``, and which of them an ``as_of`` means.

::

    create   root v ── PUT snap/{name}, begun, if none is there ── root again: floor above v? a newer root in its place
             ── PUT in its place, kept
    delete   PUT of a note in its place
    as_of    a name: snap/{name}    a version: hist/, the root, a snapshot    a time: the newest of all at or before it

A snapshot is a copy of a root, and for the collector a pin without expiry. The collector never passes the lowest one,
and a snapshot is only made of a version that the floor had not passed. So objects removed after version v still exist
if the floor of the root is at most v, or if a snapshot of v or an older version exists. An unfinished snapshot holds,
too, but its creator may have been killed before its check. It is not readable, and after ``BEGUN_MS`` a maintainer
deletes it.

A name is never deleted but replaced by compare-and-swap: a late DELETE would delete a later snapshot of this name. Each
body is unique (``format.root``), so that a creator recognizes its own, and a late PUT changes nothing. The
note of a deletion stays until its topic is deleted: 40 bytes.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
import threading
from dataclasses import dataclass
from typing import NamedTuple

from tiered.errors import (
    ConfigError,
    CorruptionError,
    InvalidTimestampError,
    NotFoundError,
    RemoteUnavailableError,
)
from tiered.format.framed_object import MAX_OBJECT_BYTES
from tiered.format.keys import check_snapshot_name, hist_key, parse_hist_key, parse_snap_key, snap_key, snap_prefix
from tiered.format.root import (
    DROPPED_BYTES,
    STATE_DELETING,
    Root,
    decode_snapshot_root,
    encode_complete_snapshot,
    encode_dropped,
    encode_pending_snapshot,
    is_pending,
)
from tiered.plan.invariants import check_root
from tiered.remote.catalog_view import CatalogView, PageCache
from tiered.remote.conditional_put import Cell, NextBody, deadline_after, read_cell, replace_once, stored_bytes
from tiered.remote.pins import snapshot_hint
from tiered.remote.root_history import history
from tiered.remote.root_view import RootView, root_get
from tiered.store.base import Head, NewId, Object, Steps
from tiered.store.steps import list_all
from tiered.times import Time, format_time, parse_time

SNAPSHOT_TRIES = 3
"""Most roots that one call copies, while garbage collection overtakes each of them."""
SNAPSHOT_DEADLINE_MS = 60_000
"""Longest time that one PUT under a snapshot's name is tried."""
MAX_VERSION = 10**11
"""Bound of versions: a larger number is a time in milliseconds, given by mistake."""

_WANTED = 'pass a snapshot\'s name, a version (a number), or a time: 2026-01-31T05:00:00Z, "-1d", a datetime'


@dataclass(frozen=True, slots=True)
class AsOf:
    """Version to read, as requested by a user. One field is set: a snapshot's ``name``, a ``version``, or a time
    ``time_ms``.
    """

    name: str = ""
    version: int | None = None
    time_ms: int | None = None

    @classmethod
    def parse(cls, value: Time, *, now_ms: int) -> AsOf:
        """Parse a user's value: a number, also as text, is a version.

        Text that begins with a letter is a snapshot's name. ``now``, ``now-1h``, other text and a datetime are times.
        ``now_ms``: present time, for relative ones. Raises ConfigError for a wrong value, InvalidTimestampError for a
        datetime without a time zone.
        """
        if isinstance(value, dt.datetime):
            return cls(time_ms=parse_time(value, now_ms=now_ms))
        if isinstance(value, str):
            text = value.strip()
            if text.isascii() and text.isdigit() and len(text) < 20:
                return cls._by_number(int(text))
            if re.match("[a-zA-Z]", text) and not re.match("now(?:[+-]|$)", text):
                return cls(name=check_snapshot_name(text))
            try:
                return cls(time_ms=parse_time(text, now_ms=now_ms))
            except InvalidTimestampError as error:
                raise ConfigError(f"as_of: {error.message}", hint=_WANTED) from None
        try:
            return cls._by_number(-1 if isinstance(value, bool) else operator.index(value))
        except TypeError:
            raise ConfigError(f"as_of cannot be a {type(value).__name__}", hint=_WANTED) from None

    @classmethod
    def _by_number(cls, number: int) -> AsOf:
        if not 0 < number < MAX_VERSION:
            raise ConfigError(f"as_of {number} is no version of a catalog", hint=_WANTED)
        return cls(version=number)


@dataclass(frozen=True, slots=True)
class KeptRoot:
    """Stored root of a past version. ``source``: ``snapshot NAME``, ``history``, or ``root`` for the newest root.

    ``begun``: the snapshot is unfinished, so objects that it names may be deleted.
    """

    source: str
    root: Root
    begun: bool = False

    @property
    def version(self) -> int:
        """Return the root's version."""
        return self.root.version

    @property
    def time_ms(self) -> int:
        """Return the time of the root's commit."""
        return self.root.commit.ts_ms

    def __str__(self) -> str:
        where = "the newest root" if self.source == "root" else self.source
        return f"version {self.version} of {format_time(self.time_ms)} ({where})"


class Past:
    """Past version of one partition, selected by ``as_of``.

    The version is looked up once, so that a reader continues with the version with which it began.
    """

    def __init__(self, view: RootView, as_of: AsOf) -> None:
        self._view = view
        self._as_of = as_of
        self._pages = PageCache()
        self._lock = threading.Lock()
        self._found: KeptRoot | None = None

    def pin(self) -> Steps[CatalogView]:
        """Return the catalog of the selected version. Later calls return the same version. No lease is written."""
        return CatalogView.from_root((yield from self.choose()).root, self._pages)

    def choose(self) -> Steps[KeptRoot]:
        """Return the stored root of the selected version.

        Raises NotFoundError if no root of it is stored, or if garbage collection has deleted objects that it names.
        """
        before = self._view
        view = RootView(before.topic_id, before.partition, before.topic, before.known)  # threads must not share a view
        newest = yield from view.load()
        if newest is None:
            raise NotFoundError(
                f"{view.name} has no catalog yet: nothing was uploaded",
                hint="upload first: tiered-uploader sync --wait --log-dir DIR --remote URL",
            )
        taken = self._found
        if taken is None:
            taken = yield from _find(view, newest, self._as_of)
        # mutant snapshot-is-above-floor
        if newest.gc_floor > taken.version:
            held = yield from _finished(view)
            if not any(each.version <= taken.version for each in held):
                kept = ", ".join(f"{each.source} ({each.version})" for each in held)
                raise NotFoundError(
                    f"{view.name}: {taken} cannot be read: garbage collection deleted objects up to version "
                    f"{newest.gc_floor}",
                    hint=f"choose one of {kept}" if kept else "`tiered snapshot create` protects a version in future",
                )
        with self._lock:
            self._found = self._found or taken
            return self._found


def _find(view: RootView, newest: Root, as_of: AsOf) -> Steps[KeptRoot]:
    if as_of.name:
        taken = yield from load_snapshot(view, as_of.name)
        if taken is None:
            raise NotFoundError(f"{view.name} has no snapshot {as_of.name}", hint="`tiered snapshot list` shows them")
        if taken.begun:
            raise NotFoundError(
                f"{view.name}: snapshot {as_of.name} was begun and is not finished",
                hint="wait for its creator; if that was killed, run `tiered snapshot delete "
                f"{as_of.name} {view.topic}:{view.partition}`",
            )
        return taken
    if as_of.time_ms is not None:
        return (yield from _at(view, newest, as_of.time_ms))
    version = as_of.version or 0
    if version == newest.version:
        return KeptRoot("root", newest)
    root = (yield from _copy(view, version)) if version < newest.version else None
    if root is not None:
        return KeptRoot("history", root)
    for each in (yield from _finished(view)):
        if each.version == version:
            return each
    raise NotFoundError(
        f"{view.name}: version {version} was not kept; the newest is {newest.version}",
        hint="choose a version from `tiered snapshot list`, one just before a trim or a rewrite, or a multiple of 64",
    )


def _at(view: RootView, newest: Root, time_ms: int) -> Steps[KeptRoot]:
    """Return the newest stored root that was committed at ``time_ms`` or earlier. Raises NotFoundError without one.

    Times of versions only grow.
    """
    if newest.commit.ts_ms <= time_ms:
        return KeptRoot("root", newest)
    found = [each for each in (yield from _finished(view)) if each.time_ms <= time_ms]
    versions = yield from history(newest)
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        root = yield from _copy(view, versions[middle])
        if root is not None and root.commit.ts_ms > time_ms:
            high = middle
            continue
        if root is not None:
            found.append(KeptRoot("history", root))
        low = middle + 1  # a copy that is gone was one of the oldest
    if not found:
        raise NotFoundError(
            f"{view.name}: no version of {format_time(time_ms)} or earlier exists any more",
            hint="name a later time; `tiered snapshot list` shows the snapshots",
        )
    return max(found, key=lambda taken: taken.version)


def _copy(view: RootView, version: int) -> Steps[Root | None]:
    found = yield from _load(view, hist_key(view.topic_id, view.partition, version))
    return None if found is None else found.root


def _load(view: RootView, key: str) -> Steps[KeptRoot | None]:
    got = yield root_get(key)
    return decode_taken(view, bytes(got.data), key=key) if isinstance(got, Object) else None


def decode_taken(view: RootView, data: bytes, *, key: str) -> KeptRoot | None:
    """Return the root in ``data``, the body of the snapshot or history copy ``key``. None: the snapshot was deleted.

    Raises CorruptionError if the body belongs to another key or breaks a rule, ConfigError for one of a newer release.
    """
    root = decode_snapshot_root(data, key=key)
    if root is None:
        return None
    name, version = parse_snap_key(key), parse_hist_key(key)
    if version not in (None, root.version):
        raise CorruptionError(
            f"{view.name}: {key} contains version {root.version} instead of {version}",
            path_or_key=key,
            hint="the object was copied by hand: put the right one back, or delete it",
        )
    flaws = [f"it is of {root.where}"] if (root.topic_id, root.partition) != (view.topic_id, view.partition) else []
    flaws += [str(violation) for violation in check_root(root)]
    if flaws:
        raise CorruptionError(
            f"{view.name}: the saved version {key} is wrong: {flaws[0]}",
            path_or_key=key,
            hint="put a version of the object back, or delete it: another program wrote it",
        )
    return KeptRoot("history" if name is None else f"snapshot {name}", root, is_pending(data))


def create_snapshot(view: RootView, name: str) -> Steps[Root]:
    """Store the newest root as the snapshot ``name``, and return that root. Replaces an unfinished snapshot.

    Raises:
        ConfigError: the snapshot exists, or the name is invalid.
        NotFoundError: there is no root, the topic is being deleted, or another process deleted or replaced the
            unfinished snapshot of this call.
        CommitUnknownError: the store did not say whether the snapshot was made.
        RemoteUnavailableError: garbage collection overtook each attempt, or the store does not answer.
    """
    key = snap_key(view.topic_id, view.partition, name)
    place = yield from _place(key)
    if place.held:
        taken = yield from load_snapshot(view, name)
        if taken is None or not taken.begun:
            raise (yield from _exists(view, name))
    etag = place.etag
    for _ in range(SNAPSHOT_TRIES):
        got = yield root_get(view.key)
        pinned = view.pin_received(got)
        if pinned is None or not isinstance(got, Object):
            raise NotFoundError(
                f"{view.name} has no catalog yet: nothing was uploaded",
                hint="upload first: tiered-uploader sync --wait --log-dir DIR --remote URL",
            )
        if pinned.root.state == STATE_DELETING:
            raise _too_late(view)
        made = yield from _swap(view, key, encode_pending_snapshot(bytes(got.data), (yield NewId()), name), etag)
        if made is None and etag != place.etag:
            raise _taken_away(view, name)
        if made is None:
            raise (yield from _exists(view, name))  # even one of the same root: another call may have reported it
        newest = yield from view.load()
        if newest is not None and newest.state == STATE_DELETING:
            yield from _swap(view, key, encode_dropped((yield NewId())), made)
            raise _too_late(view)
        # mutant snapshot-checks-floor-again
        if newest is not None and newest.gc_floor <= pinned.version:
            if (
                yield from _swap(view, key, encode_complete_snapshot(bytes(got.data), (yield NewId()), name), made)
            ) is None:
                raise _taken_away(view, name)
            return pinned.root
        etag = made  # a collector that listed before this PUT may delete what the snapshot names
    yield from _swap(view, key, encode_dropped((yield NewId())), etag)
    raise RemoteUnavailableError(
        f"{view.name}: garbage collection overtook each attempt to make the snapshot", hint="run the command again"
    )


def load_snapshot(view: RootView, name: str) -> Steps[KeptRoot | None]:
    """Return a snapshot, even an unfinished one; None without one.

    Raises CorruptionError for a damaged one, with a hint that names the command that deletes it.
    """
    try:
        return (yield from _load(view, snap_key(view.topic_id, view.partition, name)))
    except CorruptionError as damage:
        damage.hint = snapshot_hint(view.topic, view.partition, name)
        raise


def still_exists(view: RootView, taken: KeptRoot) -> Steps[bool]:
    """Return True if the snapshot ``taken`` still exists unchanged: neither deleted nor replaced since it was read."""
    now = yield from load_snapshot(view, taken.source.removeprefix("snapshot "))
    return now is not None and now.begun == taken.begun and now.root.commit.id == taken.root.commit.id


def _finished(view: RootView) -> Steps[list[KeptRoot]]:
    """Return the finished snapshots, oldest first. All objects that they name exist."""
    return [each for each in (yield from list_snapshots(view)) if not each.begun]


def list_snapshots(view: RootView) -> Steps[list[KeptRoot]]:
    """Return all snapshots of a partition, also unfinished ones, oldest first.

    Raises CorruptionError if one is damaged, because callers must know the objects of all of them.
    """
    found, damaged = yield from survey_snapshots(view)
    for damage in damaged.values():
        raise damage
    return found


def survey_snapshots(view: RootView) -> Steps[tuple[list[KeptRoot], dict[str, CorruptionError]]]:
    """Return all snapshots of a partition, oldest first, and by name the errors of the damaged ones."""
    listed = yield from list_all(snap_prefix(view.topic_id, view.partition))
    found: list[KeptRoot] = []
    damaged: dict[str, CorruptionError] = {}
    for entry in listed:
        name = parse_snap_key(entry.key)
        if name is None or entry.size == DROPPED_BYTES:
            continue
        try:
            taken = yield from load_snapshot(view, name)
        except CorruptionError as damage:
            damaged[name] = damage
            continue
        if taken is not None:
            found.append(taken)
    return sorted(found, key=lambda taken: taken.root.version), damaged


def delete_snapshot(view: RootView, name: str) -> Steps[None]:
    """Delete the snapshot that exists now, if any. Later collections delete the objects that only it protected."""
    key = snap_key(view.topic_id, view.partition, name)
    place = yield from _place(key)
    if place.held:  # a lost race means that another call deleted it, or made a later one: both are fine
        yield from _swap(view, key, encode_dropped((yield NewId())), place.etag)


class _NamedObject(NamedTuple):
    """Object under the name of a snapshot. ``held``: it is a snapshot, not the mark that one was deleted.

    ``etag``: empty without an object.
    """

    held: bool
    etag: str


def _place(key: str) -> Steps[_NamedObject]:
    found = yield Head(key)
    return (
        _NamedObject(found.size != DROPPED_BYTES, found.etag) if isinstance(found, Object) else _NamedObject(False, "")
    )


def _swap(view: RootView, key: str, body: bytes, etag: str) -> Steps[str | None]:
    """Put ``body`` in place of the object with ``etag``. Return the new ETag, None if another call was first."""
    hint = f"what is under {key} may still change: `tiered snapshot list` shows it; nothing else was changed"
    cell: Cell[bytes | None] = Cell(key, view.name, read_cell(key, stored_bytes, MAX_OBJECT_BYTES), _is_body, hint)
    deadline = yield from deadline_after(SNAPSHOT_DEADLINE_MS)
    done = yield from replace_once(cell, etag, NextBody(body, body), deadline, last_look=True)
    return done.etag if done.written else None


def _is_body(found: bytes | None, sent: bytes | None) -> bool:
    # mutant snapshot-is-our-own
    return found == sent


def _too_late(view: RootView) -> NotFoundError:
    return NotFoundError(
        f"{view.name} is being deleted, so a snapshot of it can no longer be made",
        hint="use a snapshot from before the deletion: `tiered snapshot list`",
    )


def _taken_away(view: RootView, name: str) -> NotFoundError:
    return NotFoundError(
        f"{view.name}: snapshot {name} was deleted while it was made, or another process began it",
        hint="look with `tiered snapshot list`, then create it again",
    )


def _exists(view: RootView, name: str) -> Steps[ConfigError]:
    taken = yield from load_snapshot(view, name)
    how = ", which was begun and is not finished" if taken is not None and taken.begun else ""
    return ConfigError(
        f"{view.name} has a snapshot {name} already{how}",
        hint=f"choose another name, or run `tiered snapshot delete {name} {view.topic}:{view.partition}` first",
    )
