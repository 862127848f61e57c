"""Erasure plan in parts, for many machines: cuts partitions, looks at the parts, joins the looks.

::

    cut_erase_steps ──> parts of the catalog          the driver
    find_steps      ──> hits, what was looked at       any machine; a segment never changes
    join_looks      ──> ErasePlan                      the driver; ``erase_steps`` carries it out, on any machine
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tiered.check.spread import CheckPart
from tiered.erase.erase import MAX_LOOKS, Counter, ErasePlan, Eraser, Hit, uid_of
from tiered.errors import ConfigError
from tiered.model import Row, TopicPartition
from tiered.plan.erasure import Selection
from tiered.plan.jobs import SPAN_BYTES, SpanCutter
from tiered.remote.fetch import SegmentGone
from tiered.remote.segment_rewriter import in_turn
from tiered.remote.topics import TopicEntry
from tiered.store.base import INCAPABLE, Steps


@dataclass(frozen=True, slots=True)
class CutPartition:
    """Partition at one catalog version: an :class:`ErasePlan` without hits, and the parts to look at."""

    plan: ErasePlan
    parts: tuple[CheckPart, ...]


def cut_erase_steps(
    tp: TopicPartition, entry: TopicEntry, selection: Selection, *, now: bool, least_bytes: int = SPAN_BYTES
) -> Steps[CutPartition | None]:
    """Read the catalog and cut it into parts; read no segment. Return None for a partition without a catalog.

    Raises ConfigError if ``now`` and a pin or a snapshot holds older versions.
    """
    eraser = Eraser(tp, entry, selection, "")
    pinned = yield from eraser.catalog.pin()
    if pinned is None:
        return None
    if now:
        yield from eraser.need_free()
    cutter, at = SpanCutter(least_bytes), pinned.start_offset
    while at < pinned.next_offset and len(piece := (yield from pinned.piece(at))):
        cutter.add(row for row in piece if selection.may_be_in(row))
        at = piece.end_offset
    whole = CheckPart(tp.topic, entry.topic_id.hex, tp.partition, with_root=False)
    parts = tuple(
        dataclasses.replace(whole, start=span.start, end=span.end, segments=span.segments, size_bytes=span.size_bytes)
        for span in cutter.finish()
    )
    root, holders = pinned.root, (yield from eraser.holders())
    plan = ErasePlan(tp, entry, root.version, root.next_offset, root.writer.volume, 0, 0, (), holders)
    return CutPartition(plan, parts)


def find_steps(part: CheckPart, selection: Selection) -> Steps[dict[str, Any]]:
    """Read the segments of a part. Return as JSON the matching records of each, and the rows with matches.

    If another maintainer replaces a segment meanwhile, its replacement is read.
    """
    eraser = Eraser(TopicPartition(part.topic, part.partition), part.entry, selection, "")
    eraser.open_shop(INCAPABLE)
    counter = Counter(selection)
    for _ in range(MAX_LOOKS):
        rows = yield from _rows(eraser, part)
        try:
            unread = [row for row in rows if uid_of(row) not in counter.looked]
            yield from eraser.shop.read(in_turn(unread), counter.add_batch, counter.ended)
        except SegmentGone as gone:
            counter.records = 0  # of a segment that was not read to its end
            yield from eraser.need_superseded(gone)
            continue
        hits = [[list(row), records] for row in rows if (records := counter.looked[uid_of(row)])]
        counts = {"segments": counter.segments, "read_bytes": counter.read_bytes}
        return {"looked": counter.looked, "hits": hits, **counts}
    raise ConfigError(
        f"{part.topic}-{part.partition}: others have rewritten it in each of {MAX_LOOKS} looks",
        hint="end other maintainers for a while, then run the same command again",
    )


def _rows(eraser: Eraser, part: CheckPart) -> Steps[list[Row]]:
    """Return the part's rows in the newest catalog that may hold matching records."""
    pinned = yield from eraser.catalog.pin()
    rows = list[Row]()
    at = part.end if pinned is None else max(part.start, pinned.start_offset)
    while pinned is not None and at < min(part.end, pinned.next_offset):
        piece = yield from pinned.piece(at)
        rows += [row for row in piece if part.start <= row.base < part.end and eraser.selection.may_be_in(row)]
        at = piece.end_offset
    return rows


def join_looks(plan: ErasePlan, looks: Iterable[Mapping[str, Any]]) -> ErasePlan:
    """Return ``plan`` with the results of all looks at its partition."""
    looked: dict[str, int] = {}
    hits: list[Hit] = []
    segments = read_bytes = 0
    for each in looks:
        looked |= each["looked"]
        hits += [Hit(Row(*row), records) for row, records in each["hits"]]
        segments, read_bytes = segments + each["segments"], read_bytes + each["read_bytes"]
    return dataclasses.replace(plan, segments=segments, read_bytes=read_bytes, hits=tuple(hits), looked=looked)
