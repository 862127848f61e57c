"""One change to the catalog: an intent is a pure function of the root, run again after every lost race.

``intent.apply(root, stamp)`` gives the next root, or a :class:`~tiered.plan.lifecycle.Refusal` that says why this
root must not be changed so. Nothing here reads a clock or touches a store: time and ids come in the :class:`Stamp`.
A further kind of change is one more frozen class with ``op`` and ``apply``; ``remote.catalog`` commits any of them.

What every commit does is in :func:`succeed`: version + 1, a commit id of its own (so that no two bodies are equal
and ETags never repeat), ``ts_ms`` that never goes back, the role's ``last_commit``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol
from uuid import UUID

import numpy as np

from tiered.format.keys import FLAG_MAINTAINER, KNOWN_FLAGS, MAX_INT64, Role
from tiered.format.root import SEALED_LIMIT, STATE_OPEN, Commit, RoleState, Root, Sealed
from tiered.format.rows import TRASH_MAINTAINER, TRASH_OBJECT, Rows, Trash, TrashEntry
from tiered.model import EpochEntry, Row
from tiered.plan.lifecycle import Grant, Reason, Refusal, VolumeProof, decide_claim

MAX_APPEND_ROWS = 10_000
"""Rows of one append."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who commits and when. ``now_ms`` is a wall clock, ``epoch`` the claim epoch that the committer holds."""

    commit_id: str
    now_ms: int
    role: Role
    epoch: int
    owner: str


class Intent(Protocol):
    """One change. ``op`` is its name in the root's ``commit``."""

    @property
    def op(self) -> str:
        """``claim``, ``append``, ``trim``."""

    def apply(self, root: Root, stamp: Stamp) -> Root | Refusal:
        """The next root. Pure: called again for each root that the commit is tried on."""


def create_root(topic_id: UUID, partition: int, topic: str, stamp: Stamp) -> Root:
    """Version 1 of a catalog: no rows, nobody has claimed it. Its commit belongs to no epoch."""
    commit = Commit(stamp.commit_id, stamp.role.value, 0, 0, "create", stamp.now_ms, stamp.owner)
    return Root(topic_id, partition, topic, created_ms=stamp.now_ms, version=1, commit=commit)


def succeed(root: Root, stamp: Stamp, op: str, **changes: Any) -> Root:
    """The next version by the role that holds its epoch, with ``changes`` to other fields of the root."""
    before = root.roles[stamp.role.value]
    role = dataclasses.replace(before, seq=before.seq + 1, last_commit=stamp.commit_id)
    return _next(root, stamp, op, changes.pop("role", None) or role, changes)


def _next(root: Root, stamp: Stamp, op: str, role: RoleState, changes: dict[str, Any]) -> Root:
    role = dataclasses.replace(role, last_commit=stamp.commit_id)
    ts_ms = max(stamp.now_ms, root.commit.ts_ms + 1)
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
    """Takes a role: epoch + 1, the ended epoch's last commit is sealed. Fences every older process of the role.

    ``token`` is random and must be on the volume's disk before the commit is sent. ``volume`` may be None for a
    maintainer only.
    """

    role: Role
    owner: str
    volume: VolumeProof | None = None
    token: str = ""

    op = "claim"

    def apply(self, root: Root, stamp: Stamp) -> Root | Refusal:
        """Refused by the volume table; else the claimed root, whose ``lineage`` names the writer's leader epoch."""
        grant = decide_claim(root, self.role, self.volume)
        if isinstance(grant, Refusal):
            return grant
        before = root.roles[self.role.value]
        state = RoleState(
            epoch=before.epoch + 1,
            owner=self.owner,
            claimed_ms=max(stamp.now_ms, root.commit.ts_ms + 1),
            volume=self.volume.volume_id if self.volume else "",
            token=self.token,
            last_append=before.last_append,
        )
        changes: dict[str, Any] = {"sealed": _sealed(root, self.role)}
        if self.volume is not None and self.role is Role.WRITER:
            changes |= _begun(root, grant, self.volume)
        return _next(root, stamp, self.op, state, changes)


def _sealed(root: Root, role: Role) -> tuple[Sealed, ...]:
    """With the ended epoch's entry; the oldest of this role go beyond ``SEALED_LIMIT``."""
    before = root.roles[role.value]
    if before.epoch == 0:
        return root.sealed
    mine = [entry for entry in root.sealed if entry.role == role.value]
    others = [entry for entry in root.sealed if entry.role != role.value]
    mine.append(Sealed(role.value, before.epoch, before.last_commit, before.seq))
    return (*others, *mine[-SEALED_LIMIT:])


def _begun(root: Root, grant: Grant, volume: VolumeProof) -> dict[str, Any]:
    """Where an empty catalog begins, and the leader epoch of a volume that starts a new one."""
    start = root.next_offset if grant.begins_at is None else grant.begins_at
    changes: dict[str, Any] = {} if grant.begins_at is None else {"start_offset": start, "next_offset": start}
    if grant.new_leader_epoch:
        own = volume.leader_epoch if grant.begins_at is not None else volume.leader_epoch + 1
        changes["lineage"] = _lineage(root.lineage, EpochEntry(max(own, root.leader_epoch + 1, 0), start))
    return changes


def _lineage(lineage: tuple[EpochEntry, ...], entry: EpochEntry) -> tuple[EpochEntry, ...]:
    """With ``entry``; epochs that end where they began have written nothing and are dropped."""
    kept = tuple(old for old in lineage if old.start_offset < entry.start_offset)
    return (*kept, entry)


@dataclass(frozen=True, slots=True)
class AppendIntent:
    """Adds rows behind ``next_offset``. ``append_id`` must be on the volume's disk before the commit is sent.

    ``epochs``: leader epochs that begin inside these rows; without them an epoch that is new to the catalog counts
    from the base of the first row that ends with it.
    """

    rows: tuple[Row, ...]
    append_id: str
    epochs: tuple[EpochEntry, ...] = ()

    op = "append"

    def apply(self, root: Root, stamp: Stamp) -> Root | Refusal:
        """Refused unless the rows continue the catalog without gap or overlap and carry the stamp's role and epoch."""
        refusal = _fenced(root, stamp) or _check_rows(root, self.rows, stamp)
        if refusal is not None:
            return refusal
        new = Rows.from_rows(self.rows)
        before = root.roles[stamp.role.value]
        return succeed(
            root,
            stamp,
            self.op,
            role=dataclasses.replace(before, seq=before.seq + 1, last_append=self.append_id),
            rows=root.rows.appended(new),
            next_offset=self.rows[-1].next,
            added=root.added + new.tally,
            lineage=_lineage_of(root, self.rows, self.epochs),
        )


def _lineage_of(root: Root, rows: Sequence[Row], epochs: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
    lineage, start, end = root.lineage, rows[0].base, rows[-1].next
    starts = [EpochEntry(row.leader_epoch, row.base) for row in rows if row.leader_epoch >= 0]
    named = {entry.epoch for entry in epochs}
    merged = sorted(
        [*(e for e in epochs if start <= e.start_offset < end), *(e for e in starts if e.epoch not in named)]
    )
    for entry in merged:
        if not lineage or entry.epoch > lineage[-1].epoch:
            lineage = _lineage(lineage, entry)
    return lineage


def _check_rows(root: Root, rows: Sequence[Row], stamp: Stamp) -> Refusal | None:
    if root.state != STATE_OPEN or stamp.role is not Role.WRITER:
        return Refusal(Reason.STATE, f"{root.where} is {root.state}: role {stamp.role.value} may not append to it")
    if not rows or len(rows) > MAX_APPEND_ROWS:
        return Refusal(Reason.INVALID, f"{root.where}: an append has 1 to {MAX_APPEND_ROWS} rows, not {len(rows)}")
    if rows[0].base != root.next_offset:
        reason = Reason.GAP if rows[0].base > root.next_offset else Reason.INVALID
        return Refusal(
            reason,
            f"{root.where} ends at offset {root.next_offset}, the append begins at {rows[0].base}",
            hint="commit segments in offset order" if reason is Reason.GAP else "this range is committed already",
        )
    expected = root.next_offset
    uids = set()
    for row in rows:
        flaw = _row_flaw(row, expected, stamp)
        if flaw:
            return Refusal(Reason.INVALID, f"{root.where}: row {row.base}..{row.next}: {flaw}")
        expected = row.next
        uids.add((row.id_hi, row.id_lo))
    if len(uids) < len(rows) or _holds_any(root.rows, uids):
        return Refusal(Reason.INVALID, f"{root.where}: an object id is used twice; every upload needs a new one")
    return None


def _row_flaw(row: Row, expected: int, stamp: Stamp) -> str:
    if row.base != expected:
        return f"begins at {row.base} instead of {expected}: rows must be contiguous"
    if not row.base < row.next <= MAX_INT64:
        return "its range is empty or too large"
    if row.min_ts > row.max_ts:
        return f"min timestamp {row.min_ts} is above max timestamp {row.max_ts}"
    if row.size <= 0 or row.idx_len <= 0 or row.records < 0 or not 0 <= row.crc < 2**32:
        return f"size {row.size}, index {row.idx_len} bytes, {row.records} records, crc {row.crc}"
    if row.flags & ~KNOWN_FLAGS or row.reserved:
        return f"unknown flags {row.flags:#x}"
    role = Role.MAINTAINER if row.flags & FLAG_MAINTAINER else Role.WRITER
    if role is not stamp.role or row.claim_epoch != stamp.epoch:
        return f"uploaded under {role.value}{row.claim_epoch}, committed under {stamp.role.value}{stamp.epoch}"
    return ""


def _holds_any(rows: Rows, uids: set[tuple[int, int]]) -> bool:
    highs = np.array([high for high, _ in uids], dtype=np.int64)
    for index in np.flatnonzero(np.isin(rows.columns["id_hi"], highs)):
        if (int(rows.columns["id_hi"][index]), int(rows.columns["id_lo"][index])) in uids:
            return True
    return False


@dataclass(frozen=True, slots=True)
class TrimIntent:
    """Retention: moves ``start_offset`` up to ``offset``. Rows that end at or below it go to the trash, none is cut."""

    offset: int

    op = "trim"

    def apply(self, root: Root, stamp: Stamp) -> Root | Refusal:
        """Refused beyond ``next_offset``; NOTHING at or below ``start_offset``."""
        refusal = _fenced(root, stamp)
        if refusal is not None:
            return refusal
        if self.offset > root.next_offset:
            return Refusal(
                Reason.OUT_OF_RANGE,
                f"{root.where} ends at offset {root.next_offset}: it cannot be trimmed to {self.offset}",
            )
        if self.offset <= root.start_offset:
            return Refusal(Reason.NOTHING, f"{root.where} begins at {root.start_offset} already")
        dead = int(np.searchsorted(root.rows.next, np.int64(self.offset), side="right"))
        ts_ms = max(stamp.now_ms, root.commit.ts_ms + 1)
        gone = root.rows.slice(0, dead)
        return succeed(
            root,
            stamp,
            self.op,
            start_offset=self.offset,
            rows=root.rows.slice(dead),
            removed=root.removed + gone.tally,
            trash=root.trash.appended(to_trash(gone, root.version + 1, ts_ms)),
            lineage=_trimmed(root.lineage, self.offset),
        )


def to_trash(rows: Rows, version: int, ts_ms: int) -> Trash:
    """Entries for the objects of rows that leave the catalog; holes have none."""
    return Trash.from_entries(
        [
            TrashEntry(
                id_hi=row.id_hi,
                id_lo=row.id_lo,
                base=row.base,
                removed_version=version,
                removed_ms=ts_ms,
                epoch=row.claim_epoch,
                kind=TRASH_OBJECT | (TRASH_MAINTAINER if row.flags & FLAG_MAINTAINER else 0),
            )
            for row in rows
            if row.size
        ]
    )


def _trimmed(lineage: tuple[EpochEntry, ...], offset: int) -> tuple[EpochEntry, ...]:
    """Without the epochs that end at or below ``offset``; the newest always stays."""
    first = 0
    while first + 1 < len(lineage) and lineage[first + 1].start_offset <= offset:
        first += 1
    return lineage[first:]


def _fenced(root: Root, stamp: Stamp) -> Refusal | None:
    held = root.roles[stamp.role.value]
    if held.epoch != stamp.epoch:
        return Refusal(
            Reason.FENCED,
            f"{root.where}: role {stamp.role.value} is at epoch {held.epoch} (claimed by {held.owner}), "
            f"this process holds epoch {stamp.epoch}",
        )
    return None
