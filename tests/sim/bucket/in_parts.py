"""A compaction in two phases, as many machines make it: the product's steps of its parts, one process after the other.

The claim comes between the phases; each group is a commit of its own, the last one notes the clean end.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from tests.sim.bucket.process import SteppedProcess
from tests.unit.remote.building import TRUSTED
from tests.unit.remote.rewriting import bitmaps
from tiered.config import TopicConfig
from tiered.errors import TieredError
from tiered.format.keys import Role
from tiered.format.root import CompactedRange
from tiered.model import Row, TopicPartition
from tiered.plan.catalog_edit import ReplaceIntent
from tiered.plan.survivors import Pairs, Survivors, txns_before
from tiered.remote.catalog import Catalog
from tiered.remote.compact_parts import CompactionPart, Round, RowGroup, inputs_of, plan_round, rewrite_part, scan_part
from tiered.remote.fetch import ByteCache
from tiered.remote.lookup import SegmentLookup
from tiered.remote.segment_rewriter import RewriteContext
from tiered.remote.topics import TopicEntry
from tiered.store.base import Emit, Steps

PART_BYTES = 1500
MOST_KEYS = 5

T = TypeVar("T")


def compact_in_parts(process: SteppedProcess, entry: TopicEntry, tp: TopicPartition, config: TopicConfig) -> Steps[int]:
    """One round; how many groups it committed. Raises NotFoundError where others change what it was planned over."""
    catalog = Catalog(entry.topic_id, tp.partition, tp.topic, known=entry.known)
    planned = yield from plan_round(catalog, config, _context(entry, tp, config, 0), part_bytes=PART_BYTES)
    if planned is None:
        return 0
    round_, parts = planned
    pairs: list[tuple[int, int, int]] = []
    effects: list[dict[str, list[int]]] = []

    def take(found: Pairs) -> None:
        pairs.extend(zip(found.high.tolist(), found.low.tolist(), found.codes.tolist(), strict=True))

    for number, part in enumerate(parts):
        context = _context(entry, tp, config, 0)
        steps = scan_part(catalog, context, part, number=number, first_dirty=round_.first_dirty, most_keys=MOST_KEYS)
        effects += (yield from _taken(steps, take)).effects
    live = bitmaps(round_, parts, pairs)
    yield from catalog.claim(Role.MAINTAINER, str(process))
    context = _context(entry, tp, config, catalog.claim_epoch)
    return (yield from _phase_2(catalog, context, round_, parts, effects, live))


def _context(entry: TopicEntry, tp: TopicPartition, config: TopicConfig, epoch: int) -> RewriteContext:
    return RewriteContext(
        tp=tp,
        topic_id=entry.topic_id,
        lookup=SegmentLookup(tp, entry.topic_id, ByteCache()),
        capabilities=TRUSTED,
        claim_epoch=epoch,
        index_interval_bytes=config.index_interval_bytes,
        lineage=(),
    )


def _phase_2(
    catalog: Catalog,
    context: RewriteContext,
    round_: Round,
    parts: list[CompactionPart],
    effects: list[dict[str, list[int]]],
    live: list[bytes],
) -> Steps[int]:
    groups = [group for part in parts for group in part.groups]
    before = dict(zip(groups, txns_before([group.start for group in groups], effects), strict=True))
    waiting: tuple[list[Row], Row] | None = None
    count = 0
    for part, bitmap in zip(parts, live, strict=True):
        survivors = Survivors(bitmap, part.start, part.end, key="bits", latest_offset=round_.first_uncleanable - 1)
        snapshot = yield from catalog.pin()
        assert snapshot is not None
        left: list[tuple[RowGroup, list[Row]]] = []
        for group in part.groups:
            rows = yield from inputs_of(snapshot, group)
            left += [(group, rows)] if rows else []
        last = part is parts[-1] and waiting is None
        told = [(group, before[group]) for group, _ in left]
        made = yield from rewrite_part(catalog, context, round_, told, survivors, always=last)
        for (_, rows), row in zip(left, made, strict=True):
            if row is not None:
                count += yield from _commit(catalog, waiting, None)
                waiting = [old for old in rows if old.base >= row.base], row
    cleaned = CompactedRange(round_.first_uncleanable, round_.now_ms + round_.delete_retention_ms)
    return count + (yield from _commit(catalog, waiting, cleaned))


def _commit(catalog: Catalog, made: tuple[list[Row], Row] | None, cleaned: CompactedRange | None) -> Steps[int]:
    if made is None:
        return 0
    yield from catalog.commit(ReplaceIntent(tuple(made[0]), (made[1],), cleaned), reason="compact, in parts")
    return 1


def _taken(steps: Generator[Any, Any, T], take: Any) -> Steps[T]:
    """What steps emit is handed to ``take``, as Spark would shuffle it; all else is asked as before."""
    answer: Any = None
    error: TieredError | None = None
    while True:
        try:
            request = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            found: T = end.value
            return found
        answer, error = None, None
        if isinstance(request, Emit):
            take(request.value)
            continue
        try:
            answer = yield request
        except TieredError as failed:
            error = failed
