"""Changes to a catalog. Each is an intent: a pure function of the root, run again after every lost race.

``intent.apply(root, stamp)`` returns the next root, or a :class:`~tiered.plan.ownership.Refusal` with the reason why
this root must not be changed so. If it must see rows in pages, it returns a generator that requests those pages and
returns one of the two. Nothing here reads a clock or touches a store: time and ids come in the :class:`Stamp`, pages
as responses to :class:`WantedPages`. A new kind of change is one more frozen class with ``op`` and ``apply``;
``remote.catalog`` commits any of them.

:func:`succeed` does what every commit does: version + 1, a commit id of its own (so that no two bodies are equal
and ETags never repeat), ``ts_ms`` that never goes back, the role's ``last_commit``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Protocol, TypeVar
from uuid import UUID

import numpy as np

from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, FLAG_STAGED, KNOWN_FLAGS, MAX_INT64, Role
from tiered.format.page import PageKind, Pointer
from tiered.format.root import SEALED_LIMIT, STATE_DELETING, STATE_OPEN, Commit, RoleState, Root, Sealed
from tiered.format.rows import Rows, Trash
from tiered.model import EpochEntry, Row, TrashEntry
from tiered.plan.ownership import Grant, Refusal, RefusalReason, VolumeProof, decide_claim

MAX_APPEND_ROWS = 10_000
"""Limit of rows in one append."""

T = TypeVar("T")
_EPOCH = attrgetter("leader_epoch")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes at which parts of a catalog are split into pages. Tests use small ones."""

    leaf_rows: int = 1024
    tail_rows: int = 1152
    """Rows in the root at which the oldest ``leaf_rows`` move into a leaf."""
    fan_out: int = 512
    root_leaves: int = 544
    """Leaf pointers in the root at which the oldest ``fan_out`` move into an inner page."""
    small_leaf: int = 256
    """Rows below which a rewritten leaf is merged with a neighbour, or with the rows in the root."""
    trash_entries: int = 2048
    """Entries in the root at which the oldest ``trash_page`` move into a page of the trash."""
    trash_page: int = 1024

    @property
    def small_inner(self) -> int:
        """Smallest number of pointers of a rewritten inner page. With fewer it is merged with the next page, or the
        root's leaves.
        """
        return (self.fan_out + 1) // 2


SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Stamp:
    """Author and time of a commit. ``now_ms`` is a wall clock, ``epoch`` the claim epoch of the author.

    ``commit_id`` is random and new in every attempt. The names of new pages are made from it. ``owner``: text that
    names the process. ``shape``: sizes of new pages.
    """

    commit_id: str
    now_ms: int
    role: Role
    epoch: int
    owner: str
    shape: Shape = SHAPE


@dataclass(frozen=True, slots=True)
class WantedPages:
    """Request for pages that an intent needs. The response is a tuple of their contents, in the same order."""

    kind: PageKind
    pointers: tuple[Pointer, ...]


Reading = Generator[WantedPages, tuple[Any, ...], T]
"""Pure function that requests pages on its way to ``T``."""
Outcome = Root | Refusal


class Intent(Protocol):
    """Change to a catalog, such as a claim or an append."""

    @property
    def op(self) -> str:
        """Name of this kind of change, such as ``claim``, ``append`` or ``trim``."""

    def apply(self, root: Root, stamp: Stamp) -> Outcome | Reading[Outcome]:
        """Return the next root, or a refusal. If pages are needed, return a generator that requests them.

        It is pure, and is called again for each newer root after a lost race.
        """


def create_root(topic_id: UUID, partition: int, topic: str, stamp: Stamp) -> Root:
    """Return version 1 of a catalog, without rows and claims. Its commit has epoch 0."""
    commit = Commit(stamp.commit_id, stamp.role.value, 0, 0, "create", stamp.now_ms, stamp.owner)
    return Root(topic_id, partition, topic, created_ms=stamp.now_ms, version=1, commit=commit)


def succeed(root: Root, stamp: Stamp, op: str, **changes: Any) -> Root:
    """Return ``root`` with ``changes``, committed by ``stamp``'s role as the next version and under the name ``op``.

    ``changes``: fields of Root, or ``role``: the role's new state.
    """
    role = changes.pop("role", None) or root.roles[stamp.role.value]
    return _next(root, stamp, op, dataclasses.replace(role, seq=role.seq + 1), changes)


def next_ts_ms(root: Root, stamp: Stamp) -> int:
    """Return the time of ``stamp``'s commit on ``root``: always above the time of the commit before."""
    return max(stamp.now_ms, root.commit.ts_ms + 1)


def _next(root: Root, stamp: Stamp, op: str, role: RoleState, changes: dict[str, Any]) -> Root:
    role = dataclasses.replace(role, last_commit=stamp.commit_id)
    ts_ms = next_ts_ms(root, stamp)
    return dataclasses.replace(
        root,
        version=root.version + 1,
        commit=Commit(stamp.commit_id, stamp.role.value, role.epoch, role.seq, op, ts_ms, stamp.owner),
        prev_commit_id=root.commit.id,
        roles=MappingProxyType({**root.roles, stamp.role.value: role}),
        **changes,
    )


@dataclass(frozen=True, slots=True)
class ClaimIntent:
    """Claim of a role. It raises the role's epoch, records the last commit of the old epoch, and fences the old owner.

    ``owner``: text that names the claiming process.
    ``token``: random text that must be on the volume's disk before the commit is sent. ``volume``: proof of a writer's
    volume, None for a maintainer.
    """

    role: Role
    owner: str
    volume: VolumeProof | None = None
    token: str = ""

    op = "claim"

    def apply(self, root: Root, stamp: Stamp) -> Root | Refusal:
        """Return the root with the new claim. A writer's claim may add a leader epoch to ``lineage``.

        Refuse with FENCED if another volume owns the partition, or this one cannot prove that it does. Refuse with
        STATE if the log is not open, and with INVALID for a writer without a volume id. Refuse with GAP if the volume
        copies a Kafka broker's log, of which no segment begins at the catalog's end.
        """
        grant = decide_claim(root, self.role, self.volume)
        if isinstance(grant, Refusal):
            return grant
        changes: dict[str, Any] = {}
        if self.volume is not None and self.role is Role.WRITER:
            changes = _begun(root, grant, self.volume)
        volume = self.volume.volume_id if self.volume else ""
        return taken(root, stamp, self.op, self.role, volume=volume, token=self.token, owner=self.owner, **changes)


def taken(
    root: Root, stamp: Stamp, op: str, role: Role, *, volume: str, owner: str, token: str = "", **changes: Any
) -> Root:
    """Return the root's next version with a new claim of ``role``. Add the epoch that this claim ends to ``sealed``.

    ``op``: name of the change. ``volume``, ``owner``, ``token``: fields of the claim. ``changes``: other fields of Root
    to set.
    """
    before = root.roles[role.value]
    state = RoleState(
        # mutant claim-raises-epoch
        epoch=before.epoch + 1,
        owner=owner,
        claimed_ms=next_ts_ms(root, stamp),
        volume=volume,
        token=token,
        last_append=before.last_append,
    )
    return _next(root, stamp, op, state, {"sealed": _sealed(root, role), **changes})


def _sealed(root: Root, role: Role) -> tuple[Sealed, ...]:
    """Return ``root.sealed`` with the current epoch of ``role``, and at most ``SEALED_LIMIT`` entries of the role."""
    before = root.roles[role.value]
    if before.epoch == 0:
        return root.sealed
    mine = [entry for entry in root.sealed if entry.role == role.value]
    others = [entry for entry in root.sealed if entry.role != role.value]
    mine.append(Sealed(role.value, before.epoch, before.last_commit, before.seq))
    return (*others, *mine[-SEALED_LIMIT:])


def _begun(root: Root, grant: Grant, volume: VolumeProof) -> dict[str, Any]:
    """Return the root's fields that a writer's claim changes: the offsets of an empty catalog, a new leader epoch."""
    start = root.next_offset if grant.begins_at is None else grant.begins_at
    changes: dict[str, Any] = {} if grant.begins_at is None else {"start_offset": start, "next_offset": start}
    if grant.new_leader_epoch:
        own = volume.leader_epoch if grant.begins_at is not None else volume.leader_epoch + 1
        changes["lineage"] = with_epoch(root.lineage, EpochEntry(max(own, root.leader_epoch + 1, 0), start))
    return changes


def with_epoch(lineage: tuple[EpochEntry, ...], entry: EpochEntry) -> tuple[EpochEntry, ...]:
    """Return ``lineage`` with ``entry`` at its end. Epochs that begin at or above the offset of ``entry`` are removed.

    Such an epoch has no records.
    """
    kept = tuple(old for old in lineage if old.start_offset < entry.start_offset)
    return (*kept, entry)


@dataclass(frozen=True, slots=True)
class AppendIntent:
    """Append of rows at ``next_offset``.

    ``append_id``: id of this append, which must be on the volume's disk before the commit is sent.
    ``epochs``: leader epochs that begin inside these rows. Any other new leader epoch begins at the base of the first
    row that has it.
    """

    rows: tuple[Row, ...]
    append_id: str
    epochs: tuple[EpochEntry, ...] = ()

    op = "append"

    def apply(self, root: Root, stamp: Stamp) -> Root | Refusal:
        """Return the root with the rows. Refuse with FENCED if the stamp's claim is outdated.

        Refuse with STATE unless the writer appends to an open log, and with GAP for rows that begin above
        ``next_offset``. Refuse with INVALID for all other wrong rows, such as those of another claim.
        """
        refusal = fenced(root, stamp) or _check_rows(root, self.rows, stamp)
        if refusal is not None:
            return refusal
        new = Rows.from_rows(self.rows)
        before = root.roles[stamp.role.value]
        return succeed(
            root,
            stamp,
            self.op,
            role=dataclasses.replace(before, last_append=self.append_id),
            rows=root.rows.appended(new),
            next_offset=self.rows[-1].next,
            added=root.added + new.tally,
            lineage=_lineage_of(root, self.rows, self.epochs),
        )


def _lineage_of(root: Root, rows: Sequence[Row], epochs: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
    lineage, start, end = root.lineage, rows[0].base, rows[-1].next
    newest = max(*map(_EPOCH, rows), max(epochs, default=EpochEntry(-1, 0)).epoch)
    if lineage and newest <= lineage[-1].epoch:
        return lineage
    starts = [EpochEntry(row.leader_epoch, row.base) for row in rows if row.leader_epoch >= 0]
    named = {entry.epoch for entry in epochs}
    merged = sorted(
        [*(e for e in epochs if start <= e.start_offset < end), *(e for e in starts if e.epoch not in named)]
    )
    for entry in merged:
        if not lineage or entry.epoch > lineage[-1].epoch:
            lineage = with_epoch(lineage, entry)
    return lineage


_FLAW_HINT = "run `tiered check --log-dir DIR` on its disk; later segments are not committed before it is repaired"


def _check_rows(root: Root, rows: Sequence[Row], stamp: Stamp) -> Refusal | None:
    if root.state != STATE_OPEN or stamp.role is not Role.WRITER:
        return Refusal(
            RefusalReason.STATE, f"{root.where} is {root.state}: role {stamp.role.value} may not append to it"
        )
    if not rows or len(rows) > MAX_APPEND_ROWS:
        return Refusal(
            RefusalReason.INVALID, f"{root.where}: an append has 1 to {MAX_APPEND_ROWS} rows, not {len(rows)}"
        )
    if rows[0].base != root.next_offset:
        reason = RefusalReason.GAP if rows[0].base > root.next_offset else RefusalReason.INVALID
        return Refusal(
            reason,
            f"{root.where} ends at offset {root.next_offset}, the append begins at {rows[0].base}",
            hint="commit segments in offset order"
            if reason is RefusalReason.GAP
            else "plan the append from the newest catalog: this range is committed already",
        )
    expected = root.next_offset
    uids = set()
    for row in rows:
        flaw = row_flaw(row, expected, stamp) or ("it is a hole, without an object" if row.flags & FLAG_HOLE else "")
        if flaw:
            return Refusal(RefusalReason.INVALID, f"{root.where}: row {row.base}..{row.next}: {flaw}", hint=_FLAW_HINT)
        expected = row.next
        uids.add((row.id_hi, row.id_lo))
    if len(uids) < len(rows) or holds_any(root.rows, uids):
        return Refusal(RefusalReason.INVALID, f"{root.where}: an object id is used twice; every upload needs a new one")
    return None


def row_flaw(row: Row, expected: int, stamp: Stamp) -> str:
    """Return the first fault of a row that should begin at ``expected`` and be of ``stamp``'s claim; ``""`` if none."""
    if row.base != expected:
        return f"begins at {row.base} instead of {expected}: rows must be contiguous"
    if not row.base < row.next <= MAX_INT64:
        return "its range is empty or too large"
    if row.min_ts > row.max_ts:
        return f"min timestamp {row.min_ts} is above max timestamp {row.max_ts}"
    hole = bool(row.flags & FLAG_HOLE)
    sizes = (row.size == 0) == hole and (row.idx_len > 0) != hole and min(row.size, row.records) >= 0
    if not sizes or not 0 <= row.crc < 2**32:
        return f"size {row.size}, index {row.idx_len} bytes, {row.records} records, crc {row.crc}"
    if row.flags & ~(KNOWN_FLAGS & ~FLAG_STAGED) or row.reserved:
        return f"unknown flags {row.flags:#x}"
    role = Role.MAINTAINER if row.flags & FLAG_MAINTAINER else Role.WRITER
    if role is not stamp.role or row.claim_epoch != stamp.epoch:
        return f"uploaded under {role.value}{row.claim_epoch}, committed under {stamp.role.value}{stamp.epoch}"
    return ""


def holds_any(rows: Rows | Trash, uids: set[tuple[int, int]]) -> bool:
    """Return True if a row or trash entry has one of ``uids``, each given as its two 64-bit halves."""
    column = rows.columns["id_hi"]
    if len(uids) == 1:
        ((high, _),) = uids
        named = np.flatnonzero(column == high)
    else:
        named = np.flatnonzero(np.isin(column, np.array([high for high, _ in uids], dtype=np.int64)))
    return any((int(column[index]), int(rows.columns["id_lo"][index])) in uids for index in named)


def fenced(root: Root, stamp: Stamp) -> Refusal | None:
    """Return a refusal if the role's claim in ``root`` is not that of ``stamp``. None: ``stamp`` may commit."""
    held = root.roles[stamp.role.value]
    if held.epoch != stamp.epoch:
        return Refusal(
            RefusalReason.FENCED,
            f"{root.where}: role {stamp.role.value} is at epoch {held.epoch} (claimed by {held.owner}), "
            f"this process holds epoch {stamp.epoch}",
        )
    return None


@dataclass(frozen=True, slots=True)
class GcFloorIntent:
    """Rise of the root's ``gc_floor`` to ``version``: objects that it or an earlier version removed may be deleted.

    A later pin protects a newer root, which does not name these objects.
    """

    version: int

    op = "gc_floor"

    def apply(self, root: Root, stamp: Stamp) -> Outcome:
        """Return the root with the new floor. Refuse with INVALID if ``version`` is above the root's version.

        Refuse with NOTHING if the floor is ``version`` or higher already, and with FENCED for an outdated claim.
        """
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        if self.version > root.version:
            return Refusal(RefusalReason.INVALID, f"{root.where}: gc_floor {self.version} is beyond it")
        if self.version <= root.gc_floor:
            return Refusal(RefusalReason.NOTHING, f"{root.where}: the floor is {root.gc_floor} already")
        return succeed(root, stamp, self.op, gc_floor=self.version)


@dataclass(frozen=True, slots=True)
class GcDoneIntent:
    """Removal of ``entries`` from the trash, after the store has acknowledged the deletion of their objects."""

    entries: tuple[TrashEntry, ...]

    op = "gc_done"

    def apply(self, root: Root, stamp: Stamp) -> Outcome:
        """Return the root without ``entries`` in its trash. Entries that are not in the trash are ignored.

        Refuse with INVALID if an entry was removed after version ``gc_floor``. Refuse with NOTHING if no entry is in
        the trash, and with FENCED for an outdated claim.
        """
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        above = [entry for entry in self.entries if entry.removed_version > root.gc_floor]
        if above:
            return Refusal(
                RefusalReason.INVALID,
                f"{root.where}: an entry of version {above[0].removed_version} is above the floor {root.gc_floor}",
            )
        done = set(self.entries)
        kept = np.array([entry not in done for entry in root.trash], dtype=np.bool_)
        if kept.all():
            return Refusal(RefusalReason.NOTHING, f"{root.where}: none of {len(done)} entries is in the trash")
        return succeed(root, stamp, self.op, trash=root.trash.where(kept))


@dataclass(frozen=True, slots=True)
class DeletionIntent:
    """Mark of a log for deletion, which cannot be undone."""

    op = "state"

    def apply(self, root: Root, stamp: Stamp) -> Outcome:
        """Return the marked root. Refuse with NOTHING if it is marked, and with FENCED for an outdated claim."""
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        if root.state == STATE_DELETING:
            return Refusal(RefusalReason.NOTHING, f"{root.where} is {root.state} already")
        return succeed(root, stamp, self.op, state=STATE_DELETING)
