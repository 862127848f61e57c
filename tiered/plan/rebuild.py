"""Rebuild of a partition's lost root from an older copy of it, and the uploads that follow the copy's end. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tiered.errors import CorruptionError
from tiered.format.keys import Role
from tiered.format.page import NO_POINTERS
from tiered.format.root import Commit, RoleState, Root, Sealed
from tiered.format.rows import NO_TALLY, NO_TRASH, Rows
from tiered.model import EpochEntry, Row
from tiered.plan.commit import Stamp
from tiered.plan.ownership import SPARK_VOLUME

KeyOf = Callable[[Row], str]
_HINT = "nothing was changed; put a version of the root back, or delete one of the two objects"


@dataclass(frozen=True, slots=True)
class Objects:
    """Contents of a rebuilt root: segments, their leader epochs, and by role the newest claim epoch in object keys."""

    rows: tuple[Row, ...]
    leader_epochs: tuple[EpochEntry, ...]
    claims: Mapping[Role, int]


def rebuilt(copy: Root, objects: Objects, version: int, stamp: Stamp) -> Root:
    """Return a new root with identity and settings of ``copy``, and with the segments of ``objects`` as its only rows.

    Both roles get a claim epoch that no process has used. The writer's claim belongs to ``spark`` if it did in
    ``copy``, otherwise to no volume. ``version``: version of the new root.
    """
    ts_ms = max(stamp.now_ms, copy.commit.ts_ms + 1)
    roles, sealed = dict[str, RoleState](), list[Sealed]()
    for role in Role:
        ended = max(objects.claims[role], copy.roles[role.value].epoch)
        last = stamp.commit_id if role is stamp.role else ""
        sinks = role is Role.WRITER and copy.writer.volume == SPARK_VOLUME
        volume = SPARK_VOLUME if sinks else ""
        roles[role.value] = RoleState(ended + 1, stamp.owner, ts_ms, last_commit=last, volume=volume)
        if ended:
            sealed.append(Sealed(role.value, ended, "", 0))
    epoch = roles[stamp.role.value].epoch
    rows = Rows.from_rows(objects.rows)
    start, end = copy.start_offset, copy.next_offset
    if objects.rows:
        start, end = max(start, objects.rows[0].base), objects.rows[-1].next
    return dataclasses.replace(
        copy,
        version=version,
        commit=Commit(stamp.commit_id, stamp.role.value, epoch, 0, "rebuild", ts_ms, stamp.owner),
        prev_commit_id="",
        roles=MappingProxyType(roles),
        sealed=tuple(sealed),
        lineage=_lineage(copy.lineage, objects, start),
        start_offset=start,
        next_offset=end,
        gc_floor=0,
        added=rows.tally,
        removed=NO_TALLY,
        rows=rows,
        trash=NO_TRASH,
        inner=NO_POINTERS,
        leaves=NO_POINTERS,
        dead=NO_TALLY,
        cleaned=tuple([each for each in copy.cleaned if start < each.end_offset <= end]),
    )


def _lineage(known: Sequence[EpochEntry], objects: Objects, start: int) -> tuple[EpochEntry, ...]:
    entries = list(known)
    rows = [EpochEntry(row.leader_epoch, row.base) for row in objects.rows]
    for entry in (*objects.leader_epochs, *rows):
        if entry.epoch > (entries[-1].epoch if entries else -1):
            entries = [*(old for old in entries if old.start_offset < entry.start_offset), entry]
    first = 0
    while first + 1 < len(entries) and entries[first + 1].start_offset <= start:
        first += 1
    return tuple(entries[first:])


def chain(found: Sequence[Row], end: int, claim: int, key_of: KeyOf) -> list[Row]:
    """Return the rows of ``found`` that follow ``end`` without a gap, in order. Their claim epochs never fall.

    ``claim``: the writer's claim epoch at ``end``. ``key_of``: returns a row's object key, for messages. Equal uploads
    of one claim count as one that was sent twice. Raises CorruptionError for different uploads of one claim at the same
    offset, and if a newer claim began inside an upload of an older one.
    """
    taken: list[Row] = []
    # mutant claims-never-fall-along-uploads
    while here := [row for row in found if row.base == end and row.claim_epoch >= claim]:
        claim = max(row.claim_epoch for row in here)
        first, *others = [row for row in here if row.claim_epoch == claim]
        others = [row for row in others if (row.next, row.size, row.crc) != (first.next, first.size, first.crc)]
        others += [row for row in found if row.claim_epoch > claim and first.base < row.base < first.next]
        if others:
            raise _contradiction(first, others[0], key_of)
        taken.append(first)
        end = first.next
    return taken


def _contradiction(one: Row, other: Row, key_of: KeyOf) -> CorruptionError:
    return CorruptionError(
        f"{key_of(one)} (offsets {one.base} to {one.next}) and {key_of(other)} (offsets {other.base} to {other.next}) "
        f"contradict each other, and no catalog shows which one is right",
        path_or_key=key_of(other),
        offset=other.base,
        hint=_HINT,
    )
