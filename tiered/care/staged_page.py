"""A lost page of what sinks wrote: their rows put together again, and proven by what the page's pointer adds up to.

::

    staged objects that nothing names ── bundles: lengths, sizes, batches ── an order ── bases ── rows ── their sum?

A bundle of a staged segment tells everything but where it lies. An order is guessed: batch after batch, as they were
stored or else as they were decided, those of one batch as its decision names them. Offsets follow from the order,
leader epochs from the root's lineage, claim epochs from other rows. A pointer holds a 128-bit sum of whole rows: only
the right order adds up to it. A wrong guess costs nothing but the answer: nothing is told then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiered.errors import ConfigError, CorruptionError
from tiered.format.bundle import MAX_BUNDLE_BYTES, decode_bundle
from tiered.format.decision import COMMITTED, Decision, Target
from tiered.format.keys import (
    FLAG_STAGED,
    STEM_CHARS,
    Role,
    decision_key,
    index_key_of,
    is_stem_of,
    join_uid,
    parse_staged_key,
    staged_batch,
    staged_prefix,
)
from tiered.format.root import Root
from tiered.model import Row, TopicPartition
from tiered.plan.lifecycle import SPARK_VOLUME
from tiered.remote.stage import MAX_GENERATIONS, read_decision
from tiered.remote.torn import Torn
from tiered.remote.upload import row_of
from tiered.store.base import Get, ListEntry, Object, Steps, list_all


def staged_rows(tp: TopicPartition, torn: Torn, rows: Sequence[Row]) -> Steps[list[Row]]:
    """What sinks staged of the offsets that ``rows`` leave out, if that and ``rows`` add up to each page that is lost.

    Nothing where it does not, or where nothing tells: what a page held that a trim has cut is not known.
    """
    root = torn.root
    named = yield from torn.named()
    listed = yield from list_all(staged_prefix(root.topic_id, tp.partition))
    batches: dict[str, list[ListEntry]] = {}
    for entry in listed:
        parsed = parse_staged_key(entry.key)
        if (
            parsed is not None
            and parsed.suffix == "log"
            and parsed.uid not in named
            and not _is_later(root, parsed.uid)
        ):
            batches.setdefault(parsed.uid[:STEM_CHARS], []).append(entry)
    found: list[_Batch] = []
    for entries in batches.values():
        entries.sort(key=lambda entry: (entry.last_modified_ms, entry.key))
        found += [(yield from _batch(root, entries))]
    claims = _claims(root, rows)
    for order in (_Batch.stored, _Batch.decided):  # a copy of a bucket has other times
        ordered = [row for batch in sorted(found, key=order) for row in batch.rows]
        placed = _placed(ordered, root, rows, claims)
        if torn.adds_up(sorted([*rows, *placed])):
            return placed
    return []


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one batch staged: rows with their lengths for their ends, in order. ``seen``: the root's version before it
    was decided, -1 if nothing tells."""

    rows: tuple[Row, ...]
    stem: str
    stored_ms: int
    seen: int

    def stored(self) -> tuple[int, str]:
        """When the last of it was."""
        return self.stored_ms, self.stem

    def decided(self) -> tuple[int, str]:
        """When that was."""
        return self.seen, self.stem


def _is_later(root: Root, uid: str) -> bool:
    """Whether a batch that the root has not committed staged it."""
    batch = staged_batch(uid)
    return any(batch > last and is_stem_of(txn, batch, uid) for txn, last in root.txns)


def _batch(root: Root, entries: Sequence[ListEntry]) -> Steps[_Batch]:
    """One batch: its rows as its decision names them, else as they were stored."""
    rows: dict[str, Row] = {}
    txn = stem = ""
    for entry in entries:
        parsed = parse_staged_key(entry.key)
        key = index_key_of(entry.key)
        got = yield Get(key, max_bytes=MAX_BUNDLE_BYTES)
        if parsed is None or not isinstance(got, Object):
            continue
        try:
            bundle = decode_bundle(got.data, key=key)
        except (CorruptionError, ConfigError):
            continue
        told, txn, stem = bundle.descriptor, bundle.txn, parsed.uid[:STEM_CHARS]
        if (told.topic_id, told.partition, told.size_bytes) == (root.topic_id, root.partition, entry.size):
            row = row_of(told, bundle.indexes, uid=parsed.uid, role=Role.WRITER, claim_epoch=0, idx_len=got.size)
            rows[parsed.uid] = row._replace(flags=row.flags | FLAG_STAGED)
    decision = (yield from _decided(txn, staged_batch(next(iter(rows))))) if rows else None
    target = Target(root.topic_id, root.partition)
    ordered, seen = tuple(rows.values()), -1
    if decision is not None:
        times = {join_uid(row.id_hi, row.id_lo): row.appended_ms for row in decision.partitions.get(target, ())}
        ordered = tuple([rows[uid]._replace(appended_ms=ms) for uid, ms in times.items() if uid in rows])
        seen = decision.seen.get(target, -1)
    return _Batch(ordered, stem, max(entry.last_modified_ms for entry in entries), seen)


def _decided(txn: str, batch: int) -> Steps[Decision | None]:
    """To commit; None if it was swept, or cannot be read."""
    try:
        for generation in range(MAX_GENERATIONS if txn else 0):
            found = yield from read_decision(decision_key(txn, batch, generation))
            if found is None or found.state == COMMITTED:
                return found
    except (CorruptionError, ConfigError):
        pass
    return None


def _claims(root: Root, rows: Sequence[Row]) -> dict[int, int]:
    """The claim of the sinks by leader epoch: they take a new one of each when they take a partition over."""
    claims = {row.leader_epoch: row.claim_epoch for row in rows if row.flags & FLAG_STAGED}
    if root.writer.volume == SPARK_VOLUME:
        claims[root.leader_epoch] = root.writer.epoch
    return claims


def _placed(found: Sequence[Row], root: Root, rows: Sequence[Row], claims: dict[int, int]) -> list[Row]:
    """One after the other in what ``rows`` leave out. As far as they fit: what they add up to tells if they do."""
    placed: list[Row] = []
    ends = [root.start_offset, *(row.next for row in rows)]
    waiting = iter(found)
    for at, limit in zip(ends, [*(row.base for row in rows), root.next_offset], strict=True):
        while at < limit and (row := next(waiting, None)) is not None:
            epoch = next((entry.epoch for entry in reversed(root.lineage) if entry.start_offset <= at), -1)
            end = at + row.next
            placed.append(row._replace(base=at, next=end, claim_epoch=claims.get(epoch, -1), leader_epoch=epoch))
            at = end
    return _in_time(placed, rows)


def _in_time(placed: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return ``placed`` with append times no earlier than that of the row before each, as a commit sets them."""
    known, before_ms = {row.base for row in rows}, -1
    found: list[Row] = []
    for row in sorted([*rows, *placed]):
        before_ms = row.appended_ms if row.base in known else max(row.appended_ms, before_ms)
        found += [] if row.base in known else [row._replace(appended_ms=before_ms)]
    return found
