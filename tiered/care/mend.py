"""``repair index`` and ``repair drop-segment``: segments that are not what the catalog names, written anew.

::

    row ── HEAD, .log, .idx ── what is wrong ── plan ──> batches that are whole ──> new .log and .idx ── replace ── root
           segment_objects     batch_walk                aside                      segment_objects

An object is never written twice: what is mended gets new names, under a claim of the role ``m``. The batches are the
old ones, byte for byte; everything beside them follows from them. ``index`` loses nothing, or refuses.
``drop-segment`` gives up the batches that cannot be read, by name, and leaves a hole where none can; at the end of the
log, where only the last segment tells the producers, an empty batch with their snapshot. It refuses where the marker of
older records would go with them, or nothing tells the producers: that changes what is shown of other offsets. Objects
that are replaced are copied below ``aside/`` before the catalog lets go of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiered.care.aside import keep_copy
from tiered.care.batch_walk import Loss
from tiered.care.segment_objects import Listing, RowPlan, SegmentObjects
from tiered.errors import ConfigError, NotFoundError, UnknownTopicError
from tiered.format.keys import FLAG_HOLE, Role, aside_key
from tiered.model import Row, TopicPartition
from tiered.plan.rewrite import ReplaceIntent
from tiered.remote.cache import ByteCache
from tiered.remote.catalog import Catalog
from tiered.remote.lookup import SegmentLookup
from tiered.remote.rewrite import Workshop
from tiered.remote.snapshot import Snapshot
from tiered.remote.topics import TopicEntry, load_topic
from tiered.store.base import NewId, Steps
from tiered.store.probe import check_capabilities, probe


@dataclass(frozen=True, slots=True)
class MendPlan:
    """What would be written anew. ``rows`` in order; ``version`` of the catalog that was looked at."""

    tp: TopicPartition
    entry: TopicEntry
    version: int
    rows: tuple[RowPlan, ...]

    @property
    def lost(self) -> tuple[Loss, ...]:
        """All that is given up."""
        return tuple(loss for row in self.rows for loss in row.lost)


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Segments of one catalog, in order."""

    entry: TopicEntry
    pinned: Snapshot
    rows: tuple[Row, ...]


def choose_rows(tp: TopicPartition, offsets: Sequence[int]) -> Steps[ChosenRows]:
    """The segments that hold ``offsets``; without any, all. Raises UnknownTopicError, NotFoundError, ConfigError."""
    entry = yield from load_topic(tp.topic)
    if entry is None or tp.partition >= entry.partitions:
        raise UnknownTopicError(f"there is no partition {tp} in the registry", hint="`tiered topics list` names them")
    pinned = yield from Catalog(entry.topic_id, tp.partition, tp.topic, known=entry.known).pin()
    if pinned is None:
        raise NotFoundError(f"{tp} has no catalog yet", hint="nothing was uploaded")
    rows: list[Row] = []
    for offset in offsets:
        row = yield from pinned.at(offset)
        if row is None or row.flags & FLAG_HOLE:
            raise ConfigError(f"{tp}: offset {offset} is in no segment", hint="`tiered segments` shows them")
        rows += [] if row in rows else [row]
    at = pinned.start_offset
    while not offsets and len(piece := (yield from pinned.piece(at))):
        rows += [row for row in piece if not row.flags & FLAG_HOLE]
        at = piece.end_offset
    return ChosenRows(entry, pinned, tuple(sorted(rows)))


def plan_mend_steps(
    tp: TopicPartition, offsets: Sequence[int], *, drop: bool, accept_loss: bool = False, url: str = ""
) -> Steps[MendPlan]:
    """Reads only. ``offsets`` name segments; without any, all that are not what the catalog names are meant.

    ``drop`` False: a segment that would lose something is CorruptionError; True: one whose loss would change what is
    shown of other offsets. Raises UnknownTopicError, NotFoundError (no catalog), ConfigError: an offset is in no
    segment, nothing is wrong, or a copy of what ``drop`` would give up lies elsewhere, unless ``accept_loss``, which
    means nothing without ``drop`` and is refused (ConfigError). ``url``: the store's, for commands that hints name.
    """
    if accept_loss and not drop:
        raise ConfigError(
            f"{tp}: accept_loss was asked for without drop: nothing is given up then, there is no loss to accept",
            hint="drop=True gives up what cannot be read; leave accept_loss out to write indexes and rows anew",
        )
    chosen = yield from choose_rows(tp, offsets)
    entry, pinned = chosen.entry, chosen.pinned
    found: list[RowPlan] = []
    kept: list[RowPlan] = []
    listing = Listing(entry.topic_id, tp.partition, url)
    for row in chosen.rows:
        one = SegmentObjects(tp, entry.topic_id, row, before=tuple(found), listing=listing)
        plan = yield from one.plan(pinned, named=bool(offsets), drop=drop, accept_loss=accept_loss)
        if plan is not None:
            (kept if drop and not plan.lost else found).append(plan)
    if not found:
        says = f"the {'objects' if drop else 'indexes'} are those that the catalog names"
        for first in kept[:1]:
            says = f"segment {first.row.base} to {first.row.next}: {first.problem}: no record is lost"
        raise ConfigError(
            f"{tp}: {says}: there is nothing to repair",
            hint="`tiered check --read-data` names the offset of what is wrong inside them: name it here, too"
            + ("; what only lies under another name `tiered repair index` writes anew" if drop else ""),
        )
    return MendPlan(tp, entry, pinned.version, tuple(found))


def mend_steps(plan: MendPlan, owner: str) -> Steps[int]:
    """Carries a plan out, segment by segment: what was committed stays so if a later one fails. Gives the new version.

    Raises FencedError (another maintainer), ConfigError if the catalog holds another segment there by now.
    """
    capabilities = yield from probe()
    check_capabilities(capabilities, "the store")
    tp, entry = plan.tp, plan.entry
    catalog = Catalog(entry.topic_id, tp.partition, tp.topic, known=entry.known)
    yield from catalog.claim(Role.MAINTAINER, owner)
    shop = Workshop(
        tp=tp,
        topic_id=entry.topic_id,
        lookup=SegmentLookup(tp, entry.topic_id, ByteCache()),
        capabilities=capabilities,
        claim_epoch=catalog.claim_epoch,
        index_interval_bytes=entry.settings.index_interval_bytes,
        lineage=root.lineage if (root := catalog.root) is not None else (),
    )
    version = 0
    for each in plan.rows:
        pinned = yield from catalog.pin()
        if pinned is None or (yield from pinned.at(each.row.base)) != each.row:
            raise ConfigError(f"{tp}: offset {each.row.base} is in another segment by now", hint="plan again")
        for key in each.aside:
            yield from keep_copy(key, aside_key(entry.topic_id, tp.partition, (yield NewId())))
        one = SegmentObjects(tp, entry.topic_id, each.source, each.body, pieces=each.pieces)
        new = yield from one.written(shop, pinned, each)
        root = yield from catalog.commit(ReplaceIntent((each.row,), (new,)), reason=_reason(each))
        version = root.version
    return version


def _reason(each: RowPlan) -> str:
    lost = ", ".join(f"{loss.start} to {loss.end}" for loss in each.lost)
    return f"{each.problem}; offsets {lost} are lost" if lost else each.problem
