"""Pins: protect what a long reader reads from garbage collection.

::

    reader     PUT pin/{uid} {version} ── root again: floor above it? the newer version ── reads ── renews ── DELETE
    collector  gc_floor ── LIST pin/ ── younger than PIN_MS? then nothing goes that left after its version

Either the reader sees the floor of a collector, or the collector sees the pin. A pin ends with its reader. The pin of a
crashed reader expires by age, measured by the store's clock alone: its Last-Modified against the Date of one LIST. For
the reader it lasts ``PIN_MS`` from when its last acknowledged PUT was *sent*, on a monotonic clock: never longer than
for a collector.

Pins are optional. ``gc.grace.ms`` covers every shorter read, a reader without a pin needs no right to write, and a late
pin does not prove that older objects still exist.
"""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from tiered.config import DAY_MS
from tiered.errors import (
    CommitUnknownError,
    CorruptionError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.json_schema import NUMBER, JsonObject
from tiered.format.kernels import crc32c
from tiered.format.keys import is_pin_key, parse_snap_key, partition_prefix, pin_key
from tiered.format.root import DROPPED_BYTES, Root, decode_snapshot_root, encode_dropped, is_pending
from tiered.plan.maintenance import PIN_MS
from tiered.remote.catalog_view import CatalogView
from tiered.remote.conditional_put import (
    Cell,
    NextBody,
    deadline_after,
    read_cell,
    replace_once,
    stored_bytes,
)
from tiered.store.base import Delete, Deleted, Get, Match, NewId, Now, Object, Put, Steps, Time
from tiered.store.steps import Listing

LOGGER = logging.getLogger("tiered.remote")

RENEW_MS = PIN_MS // 3
"""Age at which a pin is renewed, with its reader's next request."""

RENEW_AGAIN_MS = 600_000
"""Wait after a failed renewal."""

PIN_DEADLINE_MS = 10_000
"""Longest time that one PUT of a pin is tried, because the read waits for it."""

BEGUN_MS = 3 * DAY_MS
"""Age at which an unfinished snapshot is deleted: its creator was killed."""

PIN_TRIES = 3
"""Most versions that one call tries to pin, while garbage collection overtakes each of them."""

_PIN = {"version": NUMBER}
_UID = "uid"

Refresh = Callable[[], Steps[CatalogView | None]]
"""Reads the newest catalog. None: the partition has no root."""


# -- the collector's side ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pins:
    """Pins and snapshots of one partition, as listed.

    ``lowest``: least root version that an unexpired pin or a snapshot protects, None without any. ``count``: number of
    unexpired pins and of snapshots. ``readers``: number of unexpired pins alone. ``expired``: keys of expired pins,
    which protect nothing. ``stale``: key and ETag of each unfinished snapshot older than ``BEGUN_MS``; it protects its
    version until :func:`drop_stale`. ``date_ms``: store's clock at the listing.
    """

    lowest: int | None
    count: int
    expired: tuple[str, ...]
    date_ms: int
    readers: int = 0
    stale: tuple[tuple[str, str], ...] = ()


def read_pins(root: Root) -> Steps[Pins]:
    """Return the pins and snapshots of the partition of ``root``. Sends LISTs, and a GET for each pin and snapshot.

    Raises CorruptionError for an unreadable pin or snapshot: garbage collection must then delete nothing. The age of a
    pin is measured by the store's clock: Last-Modified against the Date of one LIST.
    """
    prefix = partition_prefix(root.topic_id, root.partition)
    versions: list[int] = []
    expired: list[str] = []
    stale: list[tuple[str, str]] = []
    date_ms = readers = 0
    # mutant snapshots-are-listed
    for kind in ("pin/", "snap/"):
        listing = Listing(prefix + kind)
        while listing.more:
            for entry in (yield from listing.page()):
                if not (is_pin_key(entry.key) if kind == "pin/" else parse_snap_key(entry.key)):
                    continue  # a foreign key
                if kind == "pin/" and listing.age_ms(entry) > PIN_MS:
                    expired.append(entry.key)
                    continue
                if kind == "snap/" and entry.size == DROPPED_BYTES:
                    continue
                got = yield Get(entry.key)
                version = _version_of(root, entry.key, got.data) if isinstance(got, Object) else None
                if isinstance(got, Object) and version is not None:
                    versions.append(version)
                    readers += kind == "pin/"
                    if kind == "snap/" and is_pending(got.data) and listing.age_ms(entry) > BEGUN_MS:
                        stale.append((entry.key, got.etag))
        date_ms = listing.date_ms
    return Pins(min(versions, default=None), len(versions), tuple(expired), date_ms, readers, tuple(stale))


def snapshot_hint(topic: str, partition: int, name: str) -> str:
    """Return the hint for a damaged snapshot, which blocks garbage collection of its partition."""
    where = f"{topic}:{partition}"
    return (
        f"put the object back from a version or a backup of the bucket, or delete the snapshot: `tiered snapshot "
        f"delete {name} {where}`"
    )


def drop_stale(pins: Pins) -> Steps[None]:
    """Delete the unfinished snapshots in ``pins.stale``. A snapshot that was finished meanwhile stays.

    A process that is still creating a deleted snapshot gets an error. The next collection repeats a deletion that was
    not acknowledged. Raises RemotePermissionError, RemoteUnavailableError.
    """
    for key, etag in pins.stale:
        body = encode_dropped((yield NewId()))
        yield Put(key, body, Match(etag), crc32c(body))


def live_pins(topic_id: UUID, partition: int) -> Steps[list[str]]:
    """Return the keys of a partition's pins that have not expired."""
    listing, found = Listing(partition_prefix(topic_id, partition) + "pin/"), list[str]()
    while listing.more:
        entries = yield from listing.page()
        found += [entry.key for entry in entries if is_pin_key(entry.key) and listing.age_ms(entry) <= PIN_MS]
    return found


def _version_of(root: Root, key: str, data: bytes) -> int | None:
    """Return the root version that the pin or snapshot ``data``, the body of ``key``, protects.

    None for a snapshot that was deleted since it was listed. Raises CorruptionError for a damaged body, with a hint.
    """
    name = parse_snap_key(key)
    if name is None:
        return read_pin(data, key=key)
    try:
        kept = decode_snapshot_root(data, key=key)
    except CorruptionError as damage:
        damage.hint = snapshot_hint(root.topic, root.partition, name)
        raise
    return None if kept is None else kept.version


def read_pin(data: bytes, *, key: str) -> int:
    """Return the version that a pin protects. ``data``: the body of the object ``key``.

    Raises CorruptionError for a damaged body, which blocks garbage collection. The body of another pin, copied to this
    key, is damage, too.
    """
    try:
        fields = JsonObject(data, key=key)
        version: int = fields.checked_fields(_PIN)["version"]
        if fields.values.get(_UID) != key.rpartition("/")[2]:
            fields.refuse(_UID, "is that of another pin, whose object was copied over this key")
    except CorruptionError as damage:
        damage.hint = (
            f"wait until its reader writes it again, or until it expires {PIN_MS // 3_600_000} hours after its last "
            f"write. If no reader is running, delete this object"
        )
        raise
    return version


# -- the reader's side -------------------------------------------------------------------------------------------------


class Pin:
    """Lease by which a long reader protects the objects of one version of a partition from garbage collection.

    Call :meth:`hold` before the first read, :meth:`keep` between reads, :meth:`drop` after the last. ``held``: set of
    the reader's pins, with this pin from its PUT until its deletion. Closing the reader deletes all pins in the set.
    Not thread-safe: each stream needs its own pin.
    """

    def __init__(self, topic: str, topic_id: UUID, partition: int, held: set[Pin]) -> None:
        self.name = f"{topic}-{partition}"
        self._topic_id, self._partition = topic_id, partition
        self._all_held = held
        self._safe = False
        self.key = ""
        self.version = 0
        self._etag = ""
        self._sent = 0.0
        self._renew_at = 0.0
        self._refresh: Refresh | None = None

    def hold(self, snapshot: CatalogView, refresh: Refresh) -> Steps[CatalogView]:
        """Store the pin for the version of ``snapshot``. Return the catalog that the reader must read.

        If garbage collection has passed that version, a newer one, read by ``refresh``, is pinned and returned. Sends
        no request if the pin is stored already. Raises RemotePermissionError (the role may not write ``pin/``),
        RemoteUnavailableError, and the errors of ``refresh``.
        """
        if self._safe:
            return snapshot
        self._refresh = refresh
        for _ in range(PIN_TRIES):
            yield from self.drop()  # the pin of an attempt that failed or came too late
            yield from self._make(snapshot.version)
            newest = yield from refresh()  # after the PUT: either this sees the floor, or the collector sees the pin
            # mutant pin-checks-floor-again
            if newest is None or newest.root.gc_floor <= snapshot.version:
                self._safe = True
                return snapshot
            snapshot = newest  # a collector that listed before the pin came may delete what the older one names
        yield from self.drop()
        raise RemoteUnavailableError(
            f"{self.name}: garbage collection overtook each attempt to pin a version", hint="try again"
        )

    def keep(self) -> Steps[None]:
        """Renew the pin when due. Replace an expired pin by one of the newest version. Never raises a TieredError.

        After a replacement the reader continues with its old version. It looks for missing objects in the newest
        version, as readers without a pin do.
        """
        time: Time = yield Now()
        if not self._safe or time.monotonic < self._renew_at:
            return
        old_end = self._sent + PIN_MS / 1000
        try:
            if (
                time.monotonic < old_end
                and (yield from self._put(self._etag, time))
                and (yield Now()).monotonic < old_end
            ):
                return
        except TieredError as error:
            LOGGER.warning("pin_not_renewed partition=%s key=%s error=%s", self.name, self.key, error.message)
        now: Time = yield Now()
        if now.monotonic < old_end and self._etag:
            self._renew_at = now.monotonic + RENEW_AGAIN_MS / 1000
            return
        LOGGER.warning("pin_expired partition=%s key=%s version=%s", self.name, self.key, self.version)
        yield from self._hold_newest()

    def drop(self) -> Steps[None]:
        """Delete the pin. Never raises: a pin that cannot be deleted expires."""
        key, self._safe = self.key, False
        if not key:
            return
        try:
            outcome: Deleted = yield Delete((key,))
            why = outcome.failed[0][1] if outcome.failed else ""
        except TieredError as error:
            why = error.message
        self.key = ""  # after the DELETE: if that is cancelled, closing the reader repeats it
        self._all_held.discard(self)
        if why:
            LOGGER.warning("pin_not_deleted partition=%s key=%s error=%s", self.name, key, why)

    def _hold_newest(self) -> Steps[None]:
        refresh = self._refresh
        yield from self.drop()
        try:
            newest = (yield from refresh()) if refresh is not None else None
            if newest is not None and refresh is not None:
                yield from self.hold(newest, refresh)
        except TieredError as error:
            LOGGER.warning("pin_lost partition=%s error=%s", self.name, error.message)

    def _make(self, version: int) -> Steps[None]:
        self.key = pin_key(self._topic_id, self._partition, (yield NewId()))
        self.version = version
        self._all_held.add(self)  # before its PUT, which may land although its reader is cancelled
        try:
            if (yield from self._put("", (yield Now()))):
                return
            cause: TieredError | None = None
        except RemotePermissionError as error:
            self._all_held.discard(self)
            raise RemotePermissionError(
                f"{self.name}: {error.message}",
                operation=error.operation,
                resource=error.resource,
                hint="allow s3:PutObject, s3:GetObject and s3:DeleteObject on pin/* (statement Pin of `tiered "
                "iam-policy --pins`), or open the reader without pin",
            ) from error
        except CommitUnknownError as error:
            cause = error
        key, self.key = self.key, ""
        self._all_held.discard(self)
        raise RemoteUnavailableError(
            f"{self.name}: it is unknown whether the pin {key} was stored",
            hint="try again; a leftover pin expires by itself",
        ) from cause

    def _put(self, etag: str, time: Time) -> Steps[bool]:
        """Store the pin in place of its object with ``etag``, empty for none. Return False if that object is gone.

        ``time``: when the PUT is sent; the pin's lifetime counts from it. Raises CommitUnknownError if the pin may or
        may not be stored, RemoteUnavailableError if it is not. Raises RemotePermissionError if the role may not write
        it.
        """
        body = json.dumps({"version": self.version, _UID: self.key.rpartition("/")[2]}).encode()
        # The key is unique: an object found after a lost PUT came from an earlier attempt.
        cell: Cell[bytes | None] = Cell(self.key, self.name, read_cell(self.key, stored_bytes), operator.eq)
        done = yield from replace_once(cell, etag, NextBody(body, body), (yield from deadline_after(PIN_DEADLINE_MS)))
        self._etag = done.etag if done.written else ""
        if not self._etag:
            return False
        self._sent = time.monotonic
        self._renew_at = time.monotonic + RENEW_MS / 1000
        return True
