"""Commits of Spark sinks: staged rows at the end of a catalog, and the handover of a partition.

A sink's tasks store segments whose offsets begin at 0 (``s/t/{uid}``): they know no base, have no claim and read no
root. The commit assigns their offsets: a pure function of the root, tried again on each newer one, and decided by
content. ``txns[txn] >= batch`` means that the batch is in the catalog, whichever process committed it. So a replay, a
second driver and a lost response all end in the same root.

``txns`` drops entries beyond its limit. A batch without an entry may then have been committed. If it was decided before
the newest dropped entry was committed, it is refused, so that no batch is committed twice (``StageIntent.seen``). The
id of a one-shot write is used for one commit. Such ids are dropped first, so that those of streams stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiered.format.keys import FLAG_STAGED, MAX_INT64, Role, join_uid, staged_batch, staged_stem
from tiered.format.root import STATE_OPEN, TXNS_LIMIT, Root
from tiered.format.rows import Rows
from tiered.model import EpochEntry, Row
from tiered.plan.commit import Stamp, holds_any, succeed, taken, with_epoch
from tiered.plan.ownership import LOCAL_VOLUME, SPARK_VOLUME, Refusal, RefusalReason, sink_refused

MAX_STAGED_ROWS = 100_000
"""Limit of segments of one batch in one partition."""

ONCE_KEPT = 16
"""Newest one-shot write ids that a partition keeps, however many ids of streams and jobs it has."""

_ONCE = re.compile(r"job-[0-9a-f]{32}")

OWNERS = {"spark": SPARK_VOLUME, "local": LOCAL_VOLUME}
"""Possible owners of a partition after a handover, each with its volume."""


@dataclass(frozen=True, slots=True)
class StageIntent:
    """Append of the segments that one batch of a sink staged, in order, at ``next_offset``.

    ``txn``: transaction id of the sink. ``batch``: number of the batch. ``rows``: rows with base 0, their number of
    offsets as ``next``, ``FLAG_STAGED`` and no epochs; ``apply`` assigns base and epochs. ``seen``: a version that this
    root had before the batch was decided. The batch is refused if a later root may have dropped its entry in ``txns``.
    """

    txn: str
    batch: int
    rows: tuple[Row, ...]
    seen: int = MAX_INT64

    op = "stage"

    def apply(self, root: Root, stamp: Stamp) -> Root | Refusal:
        """Return the root with the rows. Refuse with NOTHING if the batch is committed already.

        Refuse with FENCED if a local log owns the partition, and with STATE if the log is not open. Refuse with INVALID
        for wrong rows, and if it is unknown whether the batch is committed.
        """
        # mutant batch-commits-once
        if root.last_batch(self.txn) >= self.batch:
            return Refusal(
                RefusalReason.NOTHING, f"{root.where}: batch {self.batch} of {self.txn} is already committed"
            )
        # mutant sink-needs-ownership
        refusal = sink_refused(root) or self._forgotten(root) or self._flaw(root)
        if refusal is not None:
            return refusal
        taking = root.writer.volume != SPARK_VOLUME
        lineage = _with_new_epoch(root) if taking else root.lineage
        placed = _placed(self.rows, root.next_offset, root.writer.epoch + taking, lineage[-1].epoch)
        new = Rows.from_rows(_in_time(placed, root))
        changes: dict[str, Any] = {
            "rows": root.rows.appended(new),
            "next_offset": new.end_offset,
            "added": root.added + new.tally,
            "lineage": lineage,
            **_remembered(root, self.txn, self.batch),
        }
        if taking:
            return taken(root, stamp, self.op, Role.WRITER, volume=SPARK_VOLUME, owner=stamp.owner, **changes)
        return succeed(root, stamp, self.op, **changes)

    def _forgotten(self, root: Root) -> Refusal | None:
        if root.last_batch(self.txn) >= 0 or self.seen >= txns_dropped_up_to(root, self.txn):
            return None
        return Refusal(
            RefusalReason.INVALID,
            f"{root.where}: batch {self.batch} of {self.txn}, decided at version {self.seen}, may have been committed "
            f"already: the entry of such a commit is dropped up to version {txns_dropped_up_to(root, self.txn)}, as "
            f"only {TXNS_LIMIT} transaction ids are stored",
            hint="read the topic for its records; if they are not there, write them under a new transaction id",
        )

    def _flaw(self, root: Root) -> Refusal | None:
        flaw = _rows_flaw(self.rows, staged_stem(self.txn, self.batch))
        ids = {(row.id_hi, row.id_lo) for row in self.rows}
        if not flaw and (len(ids) < len(self.rows) or holds_any(root.rows, ids)):
            flaw = "an object id is used twice; every upload needs a new one"
        if not flaw and root.next_offset + sum([row.next for row in self.rows]) > MAX_INT64:
            flaw = f"its offsets would exceed {MAX_INT64}"
        if flaw:
            return Refusal(RefusalReason.INVALID, f"{root.where}: batch {self.batch} of {self.txn}: {flaw}")
        return None


@dataclass(frozen=True, slots=True)
class HandoverIntent:
    """Transfer of a partition to Spark sinks (``to`` "spark") or to local logs ("local"). It fences the old owner."""

    to: str

    op = "handover"

    def apply(self, root: Root, stamp: Stamp) -> Root | Refusal:
        """Return the root with the new owner. Refuse with NOTHING if the partition has this owner already.

        Refuse with STATE if the log is not open.
        """
        if root.state != STATE_OPEN:
            return Refusal(RefusalReason.STATE, f"{root.where} is {root.state}: it cannot be handed over")
        if is_owner(root, self.to):
            return Refusal(RefusalReason.NOTHING, f"{root.where} belongs to {self.to} already")
        changes: dict[str, Any] = {"lineage": _with_new_epoch(root)} if self.to == SPARK_VOLUME else {}
        return taken(root, stamp, self.op, Role.WRITER, volume=OWNERS[self.to], owner=stamp.owner, **changes)


def passed_batch(root: Root, uid: str) -> tuple[str, int] | None:
    """Return the (transaction id, batch) that staged the object ``uid``, None unless it or a later batch is committed.

    A staged object of such a batch that no row names is garbage: it can never be committed.
    """
    batch = staged_batch(uid)
    for txn, last in root.txns:
        if batch <= last and uid.startswith(staged_stem(txn, batch)):
            return txn, batch
    return None


def once_id(uid: str) -> str:
    """Return the transaction id of a one-shot write, which no other write replays. ``uid``: 32 hex digits."""
    return f"job-{uid}"


def is_once(txn: str) -> bool:
    """Return True if ``txn`` is the id of a one-shot write."""
    return _ONCE.fullmatch(txn) is not None


def txns_dropped_up_to(root: Root, txn: str) -> int:
    """Return the version up to which a commit of ``txn`` may have been dropped from ``root.txns``.

    If a batch was decided at this version or later and ``root.txns`` lacks ``txn``, the batch is not committed. The
    newest :data:`ONCE_KEPT` one-shot ids are not dropped early.
    """
    once = _versions_of_once(root)
    dropped_below = once[0] if is_once(txn) and len(once) >= ONCE_KEPT else 0
    return max(root.txns_floor, dropped_below)


def is_owner(root: Root, who: str) -> bool:
    """Return True if the partition belongs to ``who``: "spark" or "local". Without a claim it belongs to neither."""
    sinks = root.writer.volume == SPARK_VOLUME
    return sinks if who == SPARK_VOLUME else bool(root.writer.epoch) and not sinks


def owner_words(root: Root) -> str:
    """Return the partition's owner for messages: ``spark``, ``unclaimed``, ``local`` or ``local (process)``."""
    writer = root.writer
    if writer.volume == SPARK_VOLUME:
        return "spark"
    if not writer.epoch:
        return "unclaimed"
    return "local" if writer.volume == LOCAL_VOLUME else f"local ({writer.owner})"


def _with_new_epoch(root: Root) -> tuple[EpochEntry, ...]:
    """Return the lineage with a new leader epoch for the sinks."""
    return with_epoch(root.lineage, EpochEntry(root.leader_epoch + 1, root.next_offset))


def _placed(rows: Sequence[Row], base: int, claim_epoch: int, leader_epoch: int) -> list[Row]:
    placed = []
    for row in rows:
        end = base + row.next
        placed.append(row._replace(base=base, next=end, claim_epoch=claim_epoch, leader_epoch=leader_epoch))
        base = end
    return placed


def _in_time(rows: Sequence[Row], root: Root) -> list[Row]:
    """Return ``rows`` with append times that are not before that of the last row in ``root``."""
    before_ms = root.rows.row(-1).appended_ms if len(root.rows) else -1
    return [row._replace(appended_ms=max(row.appended_ms, before_ms)) for row in rows]


def _remembered(root: Root, txn: str, batch: int) -> dict[str, Any]:
    """Return the root's fields with the batch as the newest entry of ``txns``.

    Beyond the limit the oldest one-shot id is dropped if there are more than ``ONCE_KEPT``. Otherwise the oldest entry
    is dropped, and ``txns_floor`` rises to its version.
    """
    kept = [entry for entry in zip(root.txns, root.txn_versions, strict=False) if entry[0][0] != txn]
    kept.append(((txn, batch), root.version + 1))
    floor = root.txns_floor
    while len(kept) > TXNS_LIMIT:
        once = [at for at, ((name, _), _) in enumerate(kept) if is_once(name)]
        if len(once) > ONCE_KEPT:
            del kept[once[0]]
        else:
            floor = kept.pop(0)[1]
    return {
        "txns": tuple([entry for entry, _ in kept]),
        "txn_versions": tuple([version for _, version in kept]),
        "txns_floor": floor,
    }


def _versions_of_once(root: Root) -> list[int]:
    """Return the versions of the one-shot write ids in ``root``, oldest first."""
    both = zip(root.txns, root.txn_versions, strict=False)
    return [version for (name, _), version in both if is_once(name)]


def _rows_flaw(rows: Sequence[Row], stem: str) -> str:
    """Return the flaw of a batch's staged rows, ``""`` without one."""
    if not 1 <= len(rows) <= MAX_STAGED_ROWS:
        return f"{len(rows)} staged segments, a commit has 1 to {MAX_STAGED_ROWS} of a partition"
    return next((f"staged segment {index}: {flaw}" for index, row in enumerate(rows) if (flaw := _flaw(row, stem))), "")


def _flaw(row: Row, stem: str) -> str:
    if row.base != 0 or not 0 < row.next <= MAX_INT64:
        return f"covers {row.base}..{row.next} instead of 0 and the offsets that it takes"
    if row.flags != FLAG_STAGED or row.claim_epoch or row.reserved:
        return f"flags {row.flags:#x}, epoch {row.claim_epoch}: it is no staged segment"
    if min(row.size, row.idx_len) <= 0 or row.records < 0 or not 0 <= row.crc < 2**32 or row.min_ts > row.max_ts:
        return f"size {row.size}, index {row.idx_len} bytes, {row.records} records, times {row.min_ts}..{row.max_ts}"
    uid = join_uid(row.id_hi, row.id_lo)
    return "" if uid.startswith(stem) else f"its id {uid} is not of this batch: those begin with {stem}"
