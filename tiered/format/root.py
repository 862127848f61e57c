"""The root: the one small mutable object of a partition, as a value.

It holds all that a reader or a writer must know: which rows are alive, who may commit, the last commit of each role.
Only ``encode_root`` and ``decode_root`` convert to and from bytes. ``plan.commit`` makes the next root from this one.
``plan.invariants`` checks what is true of every root.

The live rows are the rows of all pages (``format.page``) and of the tail, less ``dead``. They form one range: inner
pages first, then leaves, then the tail. ``dead`` totals the rows of pages below ``start_offset``. Fields that this
release does not know stay in ``unknown`` and are written back.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any
from uuid import UUID

from tiered.errors import CorruptionError
from tiered.format.framed_object import BODY_FIELDS, HEAD_BYTES, TableLayout, pack, unpack, with_field
from tiered.format.json_schema import HEX_128, INT32, INT64_MAX, NUMBER, TEXT, TIME_MS, ListOf, Shape, ValueType
from tiered.format.keys import Role, page_key, parse_root_key, parse_snap_key, root_key
from tiered.format.page import NO_POINTERS, POINTER_COLUMNS, Page, Pointer, Pointers
from tiered.format.rows import (
    NO_ROWS,
    NO_TALLY,
    NO_TRASH,
    ROW_COLUMNS,
    TRASH_COLUMNS,
    Rows,
    Tally,
    Trash,
)
from tiered.model import EpochEntry

SEALED_LIMIT = 64
"""Limit of past epochs per role whose last commit is stored."""
TXNS_LIMIT = 64
"""Limit of stored external transaction ids (Spark queries): those that committed last."""
CLEANED_LIMIT = 64
"""Limit of compacted ranges with a delete horizon of their own."""

SNAPSHOT_FIELDS = ("kept", "begun", "snapshot")
"""Fields that precede the root's own in a snapshot of a root (``encode_complete_snapshot``)."""

STATE_OPEN = "open"
STATE_SEALED = "sealed"
STATE_DELETING = "deleting"
STATES = (STATE_OPEN, STATE_SEALED, STATE_DELETING)


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit that made a version of a root. ``id`` is unique, so no two bodies are equal and ETags never repeat.

    ``seq``: number of the commit under the claim with ``epoch``. ``op``: kind of the change. ``ts_ms``: the committer's
    wall clock, but at least one more than that of the version before. ``owner`` names the committer, followed by a
    colon and a reason if there is one.
    """

    id: str
    role: str
    epoch: int
    seq: int
    op: str
    ts_ms: int
    owner: str


@dataclass(frozen=True, slots=True)
class RoleState:
    """Claim of a role in a root. ``epoch`` 0: never claimed. ``seq``: number of the last commit under this claim.

    The commit of the claim itself is number 0. ``last_commit``: id of the last commit under this claim.

    The writer's claim also has the ``volume`` that holds it, its ``token``, and ``last_append``: the id of the last
    append commit of any writer (claims do not overwrite it).
    """

    epoch: int = 0
    owner: str = ""
    claimed_ms: int = 0
    seq: int = 0
    last_commit: str = ""
    volume: str = ""
    token: str = ""
    last_append: str = ""


@dataclass(frozen=True, slots=True)
class Sealed:
    """Last commit under a claim that a newer claim ended.

    By this a fenced owner finds out if its commit whose response was lost is in the root.
    """

    role: str
    epoch: int
    last_commit: str
    last_seq: int


@dataclass(frozen=True, slots=True)
class CompactedRange:
    """Range of offsets that was compacted. It begins at the end of the previous range. ``end_offset`` is exclusive.

    Its tombstones stay until ``horizon_ms``.
    """

    end_offset: int
    horizon_ms: int


NO_FIELDS: Mapping[str, Any] = MappingProxyType({})
NO_ROLES: Mapping[str, RoleState] = MappingProxyType(
    {Role.WRITER.value: RoleState(), Role.MAINTAINER.value: RoleState()}
)


@dataclass(frozen=True, slots=True)
class Root:
    """One version of a partition's catalog. Offsets are half-open: remote data covers ``[start_offset, next_offset)``.

    ``added`` minus ``removed`` is the total of the rows from ``start_offset`` on. ``rows`` are those in the root
    itself: all of them, or the newest after the pages of ``inner`` and ``leaves``. ``trash``: objects that wait for
    deletion. ``sealed``: last commits under claims that ended. ``cleaned``: ranges that were compacted. ``lineage``
    maps leader epochs to their first offsets. ``txns``: the last batch of each external transaction id, oldest first.
    ``txn_versions``: the versions that committed those. ``txns_floor``: the newest version whose entry in ``txns`` was
    dropped for lack of room. ``gc_floor``: objects removed by this version or earlier may be deleted. ``dead``: totals
    of the page rows below ``start_offset``. ``unwritten``: pages that must be stored before this root; empty in a
    root that was read. ``unknown``: fields of newer releases, which are written back.
    """

    topic_id: UUID
    partition: int
    topic: str
    created_ms: int
    version: int
    commit: Commit
    prev_commit_id: str = ""
    state: str = STATE_OPEN
    roles: Mapping[str, RoleState] = field(default_factory=lambda: NO_ROLES)
    sealed: tuple[Sealed, ...] = ()
    lineage: tuple[EpochEntry, ...] = ()
    txns: tuple[tuple[str, int], ...] = ()
    txn_versions: tuple[int, ...] = ()
    txns_floor: int = 0
    start_offset: int = 0
    next_offset: int = 0
    gc_floor: int = 0
    added: Tally = NO_TALLY
    removed: Tally = NO_TALLY
    rows: Rows = field(default_factory=lambda: NO_ROWS)
    trash: Trash = field(default_factory=lambda: NO_TRASH)
    inner: Pointers = field(default_factory=lambda: NO_POINTERS)
    leaves: Pointers = field(default_factory=lambda: NO_POINTERS)
    dead: Tally = NO_TALLY
    cleaned: tuple[CompactedRange, ...] = ()
    unwritten: tuple[Page, ...] = field(default=(), compare=False)
    unknown: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS)

    @property
    def key(self) -> str:
        """Object key of the root."""
        return root_key(self.topic_id, self.partition)

    @property
    def where(self) -> str:
        """Text for messages: topic, partition and version."""
        return f"{self.topic}-{self.partition} (root version {self.version})"

    @property
    def writer(self) -> RoleState:
        """The writer's claim."""
        return self.roles[Role.WRITER.value]

    def last_batch(self, txn: str) -> int:
        """Return the last committed batch of an external transaction id, -1 if none is stored."""
        return dict(self.txns).get(txn, -1)

    @property
    def held(self) -> Tally:
        """Totals of all rows in pages and in the root, including ``dead``."""
        total = self.rows.tally
        for pages in (self.inner, self.leaves):
            if pages is not NO_POINTERS:
                total += pages.tally
        return total

    @property
    def nbytes(self) -> int:
        """Bytes that the root's tables use in memory."""
        return sum([table.nbytes for table in (self.rows, self.trash, self.inner, self.leaves)])

    def page_key(self, pointer: Pointer) -> str:
        """Return the object key of the page that ``pointer`` names."""
        return page_key(self.topic_id, self.partition, pointer.name)

    @property
    def leader_epoch(self) -> int:
        """Newest leader epoch, -1 before the first."""
        return self.lineage[-1].epoch if self.lineage else -1

    def sealed_commit(self, role: str, epoch: int) -> Sealed | None:
        """Return the last commit under an earlier claim of a role, by its epoch.

        None: the root has no such entry. The claim was not ended, or more than ``SEALED_LIMIT`` claims followed.
        """
        for entry in self.sealed:
            if entry.role == role and entry.epoch == epoch:
                return entry
        return None


_TAIL = TableLayout("tail", ROW_COLUMNS)
_TRASH = TableLayout("trash", TRASH_COLUMNS)
_LEAF = TableLayout("leaf", POINTER_COLUMNS)
_INNER = TableLayout("inner", POINTER_COLUMNS)
_TABLES = (_TAIL, _LEAF, _INNER, _TRASH)
_LINEAGE_LIMIT = 65_536
_COMMIT = {"id": TEXT, "role": TEXT, "epoch": INT32, "seq": NUMBER, "op": TEXT, "ts_ms": TIME_MS, "owner": TEXT}
_ROLE = {
    "epoch": INT32,
    "owner": TEXT,
    "claimed_ms": TIME_MS,
    "seq": NUMBER,
    "last_commit": TEXT,
    "volume": TEXT,
    "token": TEXT,
    "last_append": TEXT,
}
# Shapes in the order of the fields of ``Sealed``, ``Tally`` and so on.
_SEALED = {"role": TEXT, "epoch": INT32, "last_commit": TEXT, "last_seq": NUMBER}
_TALLY = {"segments": NUMBER, "bytes": NUMBER, "records": NUMBER, "sum": HEX_128}
_HEADER = {
    "topic_id": HEX_128,
    "partition": INT32,
    "name": TEXT,
    "created_ms": TIME_MS,
    "state": TEXT,
    "version": ValueType(int, 1, INT64_MAX),
    "commit": _COMMIT,
    "prev_commit_id": TEXT,
    "roles": {role.value: _ROLE for role in Role},
    "start_offset": NUMBER,
    "next_offset": NUMBER,
    "gc_floor": NUMBER,
    "added": _TALLY,
    "removed": _TALLY,
    "sealed": ListOf(_SEALED, SEALED_LIMIT * len(Role)),
    "lineage": ListOf({"epoch": INT32, "start_offset": NUMBER}, _LINEAGE_LIMIT),
    "txns": ListOf({"id": TEXT, "batch": NUMBER}, TXNS_LIMIT),
    "dead": _TALLY,
}
_STAGED = {"txn_versions": ListOf(ValueType(int, 1, INT64_MAX), TXNS_LIMIT), "txns_floor": NUMBER}
_commit_values, _role_values = attrgetter(*_COMMIT), attrgetter(*_ROLE)
_CLEANED = {"cleaned": ListOf({"end_offset": NUMBER, "horizon_ms": TIME_MS}, CLEANED_LIMIT)}
_OPTIONAL: dict[str, Shape] = {"cleaned": _CLEANED, "txn_versions": _STAGED}
_KNOWN = frozenset({*_HEADER, *_CLEANED, *_STAGED, *BODY_FIELDS, *SNAPSHOT_FIELDS})


def encode_root(root: Root) -> bytes:
    """Return ``root`` as bytes. Raises ConfigError if they are too many, OverflowError if a value is too large."""
    header = {
        **root.unknown,
        "topic_id": root.topic_id.hex,
        "partition": root.partition,
        "name": root.topic,
        "created_ms": root.created_ms,
        "state": root.state,
        "version": root.version,
        "commit": dict(zip(_COMMIT, _commit_values(root.commit), strict=True)),
        "prev_commit_id": root.prev_commit_id,
        "roles": {role: dict(zip(_ROLE, _role_values(state), strict=True)) for role, state in root.roles.items()},
        "sealed": [[entry.role, entry.epoch, entry.last_commit, entry.last_seq] for entry in root.sealed],
        "lineage": list(map(list, root.lineage)),
        "txns": list(map(list, root.txns)),
        "start_offset": root.start_offset,
        "next_offset": root.next_offset,
        "gc_floor": root.gc_floor,
        "added": _tally_json(root.added),
        "removed": _tally_json(root.removed),
        "dead": _tally_json(root.dead),
    }
    if root.cleaned:
        header["cleaned"] = [[entry.end_offset, entry.horizon_ms] for entry in root.cleaned]
    if root.txn_versions or root.txns_floor:
        header |= {"txn_versions": list(root.txn_versions), "txns_floor": root.txns_floor}
    tables = (root.rows, root.leaves, root.inner, root.trash)
    return pack(header, [table.packed(layout) for layout, table in zip(_TABLES, tables, strict=True)])


def decode_root(data: bytes, *, key: str) -> Root:
    """Decode the root in the object ``key``.

    Raises CorruptionError (key and position) for damaged or foreign bytes, and for the root of another partition (by
    ``key``). Raises ConfigError for a newer format. ``plan.invariants.check_root`` checks relations between the values.
    """
    header, tables = unpack(data, lambda _: _TABLES, key=key)
    values = header.checked_fields(_HEADER)
    optional = {name: header.checked_fields(shape) for name, shape in _OPTIONAL.items() if name in header.values}
    topic_id, partition = UUID(int=values["topic_id"]), values["partition"]
    expected = None if key == root_key(topic_id, partition) else parse_root_key(key)
    if expected is not None and expected != (topic_id, partition):
        header.refuse(
            "topic_id", f"{topic_id.hex}-{partition} belongs to another partition, whose root was copied over this one"
        )
    if values["state"] not in STATES:
        header.refuse("state", f"is not one of {', '.join(STATES)}")
    return Root(
        topic_id=topic_id,
        partition=partition,
        topic=values["name"],
        created_ms=values["created_ms"],
        version=values["version"],
        commit=Commit(**values["commit"]),
        prev_commit_id=values["prev_commit_id"],
        state=values["state"],
        roles=MappingProxyType({role: RoleState(**state) for role, state in values["roles"].items()}),
        sealed=tuple(itertools.starmap(Sealed, values["sealed"])),
        lineage=tuple(itertools.starmap(EpochEntry, values["lineage"])),
        txns=tuple(map(tuple, values["txns"])),
        **_sinks(optional.get("txn_versions")),
        start_offset=values["start_offset"],
        next_offset=values["next_offset"],
        gc_floor=values["gc_floor"],
        added=Tally(*values["added"].values()),
        removed=Tally(*values["removed"].values()),
        rows=Rows(tables[_TAIL.name]),
        trash=Trash(tables[_TRASH.name]),
        inner=Pointers(tables[_INNER.name]) if len(tables[_INNER.name]["base"]) else NO_POINTERS,
        leaves=Pointers(tables[_LEAF.name]) if len(tables[_LEAF.name]["base"]) else NO_POINTERS,
        dead=Tally(*values["dead"].values()),
        cleaned=tuple(itertools.starmap(CompactedRange, optional.get("cleaned", {"cleaned": ()})["cleaned"])),
        unknown={name: value for name, value in header.values.items() if name not in _KNOWN} or NO_FIELDS,
    )


def _sinks(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a Root that only a sink's commits set; empty for None."""
    return {} if values is None else {"txn_versions": tuple(values["txn_versions"]), "txns_floor": values["txns_floor"]}


def _tally_json(totals: Tally) -> dict[str, Any]:
    return {
        "segments": totals.segments,
        "bytes": totals.size_bytes,
        "records": totals.records,
        "sum": f"{totals.sum:032x}",
    }


# -- objects under a snapshot's name: a root that is being kept, a root that is kept, or the note of a deletion -------
#
# Each contains a random id. No two bodies under one name are equal, so ETags never repeat, and a late conditional PUT
# never matches again. A root begins with the fields "begun" or "kept", and "snapshot" (its name). A body under another
# name than its own is damage, for example after two objects were swapped.

DROPPED = b"deleted "
DROPPED_BYTES = len(DROPPED) + 32
"""Size of the note of a deletion. A root is larger: a listing distinguishes the two by size."""


_FRONT = re.compile(rb'\{"(?:kept|begun)":"[0-9a-f]{32}","snapshot":"([a-zA-Z0-9._-]{1,100})",')


def encode_complete_snapshot(root: bytes, uid: str, name: str) -> bytes:
    """Return the body of the finished snapshot ``name``. ``root``: bytes of the root to keep.

    ``uid``: 32 hex digits, new for each PUT.
    """
    return with_field(with_field(root, "snapshot", name), "kept", uid)


def encode_pending_snapshot(root: bytes, uid: str, name: str) -> bytes:
    """Return the body of the unfinished snapshot ``name``. Readers refuse it: the objects that it names may be gone.

    ``root``: bytes of the root to keep. ``uid``: 32 hex digits, new for each PUT.
    """
    return with_field(with_field(root, "snapshot", name), "begun", uid)


def is_pending(data: bytes) -> bool:
    """Return True if ``data`` is the body of an unfinished snapshot."""
    return data.startswith(b'{"begun":', HEAD_BYTES)


def encode_dropped(uid: str) -> bytes:
    """Return the body of the object that replaces a deleted snapshot. ``uid``: 32 hex digits, new for each PUT."""
    return DROPPED + uid.encode()


def decode_snapshot_root(data: bytes, *, key: str) -> Root | None:
    """Return the root in the snapshot object ``key``, finished or not. None: the snapshot was deleted.

    Raises CorruptionError for damaged bytes, and if the object is not the snapshot that its key names. Raises
    ConfigError for a newer format.
    """
    if len(data) != DROPPED_BYTES:
        root, name = decode_root(data, key=key), parse_snap_key(key)
        front = None if name is None else _FRONT.match(data, HEAD_BYTES)
        if name is not None and (front is None or front[1] != name.encode()):
            why = "no snapshot: a root was copied there" if front is None else f"the snapshot {front[1].decode()}"
            raise CorruptionError(
                f"{key} is {why}"
                + ("" if front is None else ": two snapshots were swapped, or one was copied by hand"),
                path_or_key=key,
                position=HEAD_BYTES,
            )
        return root
    if not data.startswith(DROPPED):
        raise CorruptionError(f"{key} is neither a snapshot nor the note of a deleted one", path_or_key=key, position=0)
    return None
