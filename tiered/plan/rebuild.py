"""Which of the segments that a bucket holds a catalog named, when the catalog itself is lost. Pure.

What the newest good copy of the root names counts. Behind its end come uploads of the writers: a newer claim began
where the older ones had ended, so that what an older one uploaded beyond that was never committed. Rewrites that are
newer than the copy take the place of what they cover. Two candidates that could both have been it are refused, by name.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tiered.errors import CorruptionError
from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, Role
from tiered.format.page import NO_POINTERS
from tiered.format.root import Commit, RoleState, Root, Sealed
from tiered.format.rows import NO_TALLY, NO_TRASH, Rows
from tiered.model import EpochEntry, Row
from tiered.plan.commit import Stamp
from tiered.plan.lifecycle import SPARK_VOLUME

VERSION_STEP = 1 << 20
"""So far above every version that was seen a new catalog begins: what pins and snapshots hold is below it."""

KeyOf = Callable[[Row], str]
_HINT = "nothing was changed; put the root back from a version or a backup of the bucket (`tiered repair advice`)"
_GAP_HINT = f"{_HINT}; with --accept-loss they become a hole"


@dataclass(frozen=True, slots=True)
class Objects:
    """What the objects tell: ``rows``, leader epochs up to their end, the newest claim in any key."""

    rows: tuple[Row, ...]
    leader_epochs: tuple[EpochEntry, ...]
    claims: Mapping[Role, int]


def rebuilt(copy: Root, objects: Objects, version: int, stamp: Stamp) -> Root:
    """The root that goes on from ``copy``. Both roles are under claims that nobody has used, and of no volume; but what
    sinks wrote is theirs, who need no proof."""
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


def choose_rows(
    known: Sequence[Row], known_end: int, found: Sequence[Row], key_of: KeyOf, *, gaps: bool = False
) -> list[Row]:
    """The rows of the catalog, side by side; with ``gaps``, where offsets are in none, not so.

    ``known``: rows of the copy whose objects are there, in order; it ended at ``known_end``. ``found``: what else the
    bucket holds and the copy does not name. Raises CorruptionError where candidates contradict each other, or offsets
    are in none.
    """
    tail = [row for row in found if not row.flags & FLAG_MAINTAINER and row.base >= known_end]
    rows = [*known, *_writers(tail, key_of)]
    for rewrite in _rewrites([row for row in found if row.flags & FLAG_MAINTAINER], key_of):
        rows = _replaced(rows, rewrite, key_of)
    rows.sort()
    for before, after in itertools.pairwise(rows):
        if before.next != after.base and not (gaps and before.next < after.base):
            raise CorruptionError(
                f"offsets {before.next} to {after.base} are in no object, between {key_of(before)} and {key_of(after)}",
                path_or_key=key_of(after),
                offset=before.next,
                hint=_GAP_HINT,
            )
    return rows


def followers(found: Sequence[Row], end: int) -> list[Row]:
    """Uploads of writers that go on from ``end``, where a root that is the newest stops: they were under way, and what
    they hold was appended. Only as far as nothing contradicts them."""
    taken: list[Row] = []
    tail = [row for row in found if row.base >= end and not row.flags & FLAG_MAINTAINER]
    while here := [row for row in tail if row.base == end]:
        newest = max(row.claim_epoch for row in here)
        mine = [row for row in here if row.claim_epoch == newest]
        if len({(row.next, row.size, row.crc) for row in mine}) > 1:
            break
        taken.append(mine[0])
        end = mine[0].next
    return taken


def chain(found: Sequence[Row], end: int, claim: int, key_of: KeyOf) -> list[Row]:
    """Return the uploads that follow ``end`` without a gap, in order.

    ``claim`` is the writer's claim at ``end``. Claims never fall along the chain: a newer claim began where the older
    ones had ended. Equal uploads of one claim are one, whose answer was lost. Raises CorruptionError for different ones
    of the same offsets, and where a newer claim began inside an upload of an older one.
    """
    taken: list[Row] = []
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


def _writers(tail: Sequence[Row], key_of: KeyOf) -> list[Row]:
    """One upload of each segment; of those that overlap the one of the newest claim."""
    chosen: list[Row] = []
    limit: int | None = None
    for _, group in itertools.groupby(sorted(tail, key=lambda row: -row.claim_epoch), lambda row: row.claim_epoch):
        mine = _each_once(sorted(row for row in group if limit is None or row.next <= limit), key_of)
        chosen = [*mine, *chosen]
        limit = chosen[0].base if chosen else None
    return chosen


def _rewrites(found: Sequence[Row], key_of: KeyOf) -> list[Row]:
    """Rewrites that do not overlap: of those that do the ones of the newest claim."""
    chosen: list[Row] = []
    for _, group in itertools.groupby(sorted(found, key=lambda row: -row.claim_epoch), lambda row: row.claim_epoch):
        newer = list(chosen)
        chosen += [
            row
            for row in _each_once(sorted(group), key_of)
            if not any(row.base < other.next and other.base < row.next for other in newer)
        ]
    return chosen


def _each_once(rows: Sequence[Row], key_of: KeyOf) -> list[Row]:
    """Uploads of one claim, in order, each segment once. Raises where two of them hold different bytes."""
    kept: list[Row] = []
    for row in rows:
        if kept and row.base < kept[-1].next:
            before = kept[-1]
            if (row.base, row.next, row.size, row.crc) != (before.base, before.next, before.size, before.crc):
                raise _contradiction(before, row, key_of)
            continue
        kept.append(row)
    return kept


def _replaced(rows: Sequence[Row], rewrite: Row, key_of: KeyOf) -> list[Row]:
    """``rows`` with ``rewrite`` in place of what it covers; as they are if it cannot have been committed on them."""
    covered = [row for row in rows if row.base < rewrite.next and rewrite.base < row.next]
    rewritten = [row for row in covered if row.flags & FLAG_MAINTAINER and not row.flags & FLAG_HOLE]
    cuts = any(row.base < rewrite.base or row.next > rewrite.next for row in covered)
    if cuts or any(row.claim_epoch > rewrite.claim_epoch for row in rewritten):
        return list(rows)
    for row in rewritten:
        if row.claim_epoch == rewrite.claim_epoch and row.next - row.base == rewrite.next - rewrite.base:
            raise _contradiction(row, rewrite, key_of)
    return [*(row for row in rows if row not in covered), rewrite]


def _contradiction(one: Row, other: Row, key_of: KeyOf) -> CorruptionError:
    return CorruptionError(
        f"{key_of(one)} (offsets {one.base} to {one.next}) and {key_of(other)} (offsets {other.base} to {other.next}) "
        f"contradict each other: nothing tells which of them the catalog named",
        path_or_key=key_of(other),
        offset=other.base,
        hint=_HINT,
    )
