"""Erasure from the partitions of one topic: the plan, its execution, the receipts.

::

    plan_topic_steps ──> TopicErasePlan ── shown, asked ──> erase_topic_steps ──> EraseReport

    cut_erase_steps ──> parts of the catalog           the driver of many machines
    find_steps      ──> hits, what was looked at       any machine; a segment never changes
    join_results    ──> ErasePlan                      the driver; ``erase_steps`` carries it out, on any machine
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiered.arguments import chosen_partitions
from tiered.check.check import CheckPart
from tiered.display import html_table
from tiered.erase.erase import (
    MAX_LOOKS,
    Counter,
    Erased,
    ErasePlan,
    Eraser,
    Hit,
    erase_steps,
    plan_erase_steps,
    receipt_steps,
)
from tiered.erase.notes import uid_of
from tiered.errors import UnknownTopicError
from tiered.format.root import STATE_DELETING
from tiered.model import Row, TopicPartition
from tiered.plan.erasure import Selection
from tiered.plan.jobs import SPAN_BYTES, SpanCutter
from tiered.remote.fetch import SegmentGone
from tiered.remote.segment_rewriter import Spend, in_turn, spend_nothing
from tiered.remote.topics import TopicEntry, load_topic_to_read
from tiered.store.base import INCAPABLE, Steps
from tiered.store.capabilities import probe
from tiered.store.location import StoreLocation

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TopicErasePlan:
    """Plan of an erasure in the partitions of one topic. Partitions without a catalog are left out."""

    entry: TopicEntry
    job_id: str
    selection: Selection
    partitions: tuple[ErasePlan, ...]

    @property
    def records(self) -> int:
        """Return the number of records to erase."""
        return sum(plan.records for plan in self.partitions)

    def __repr__(self) -> str:
        segments = sum(len(plan.hits) for plan in self.partitions)
        return f"<TopicErasePlan {self.entry.name!r}: {self.records} records of {segments} segments>"

    def _repr_html_(self) -> str:
        header = ("partition", "records", "segments", "held by")
        rows = [(plan.tp, plan.records, len(plan.hits), ", ".join(plan.holders)) for plan in self.partitions]
        return html_table(f"Erasure from {self.entry.name}", header, rows)


@dataclass(frozen=True, slots=True)
class EraseReport:
    """Result of an erasure. ``receipts``: object keys of the receipts, one for each partition.

    ``noncurrent_versions``: commands with which the owner of a versioned bucket deletes the old versions of objects.
    """

    job_id: str
    partitions: tuple[Erased, ...]
    receipts: tuple[str, ...] = ()
    noncurrent_versions: tuple[str, ...] = field(default=(), repr=False)

    @property
    def proven(self) -> bool:
        """Return True if no current object of the partitions has a matching record any more, and all could be read."""
        return not any(one.left for one in self.partitions)

    def __repr__(self) -> str:
        records, left = sum(one.records for one in self.partitions), sum(len(one.left) for one in self.partitions)
        return f"<EraseReport {self.job_id}: {records} records erased, {left} objects left>"

    def _repr_html_(self) -> str:
        rows = [(one.tp, each.key, each.records, each.why) for one in self.partitions for each in one.left]
        return html_table(repr(self)[1:-1], ("partition", "object", "records", "reason"), rows)


def need_entry(topic: str) -> Steps[TopicEntry]:
    """Return a topic's registry entry. Raises UnknownTopicError without one, and while the topic is being deleted."""
    entry = yield from load_topic_to_read(topic)
    if entry is None or entry.state == STATE_DELETING:
        raise UnknownTopicError(f"there is no topic {topic!r}", hint="see `tiered topic list`")
    return entry


def plan_named_topic(topic: str, partition: int | None, selection: Selection) -> Steps[TopicErasePlan]:
    """Plan an erasure in a topic, by its name. ``partition`` None: all partitions.

    Raises UnknownTopicError, CorruptionError for damage, ConfigError if others rewrite a partition again and again.
    """
    entry = yield from need_entry(topic)
    return (yield from plan_topic_steps(entry, chosen_partitions(topic, entry.partitions, partition), selection))


def plan_topic_steps(
    entry: TopicEntry, numbers: Sequence[int], selection: Selection, spend: Spend = spend_nothing
) -> Steps[TopicErasePlan]:
    """Read each segment of the partitions that may hold matching records, and return the plan. Changes nothing.

    ``numbers``: the partitions. ``spend``: called with the number of bytes of each read. Raises CorruptionError for
    damage, ConfigError if other maintainers rewrite a partition again and again.
    """
    plans: list[ErasePlan] = []
    for number in numbers:
        plan = yield from plan_erase_steps(TopicPartition(entry.name, number), entry, selection, spend)
        plans += [] if plan is None else [plan]
    return TopicErasePlan(entry, selection.job_id(entry.topic_id, numbers), selection, tuple(plans))


def erase_topic_steps(
    plan: TopicErasePlan,
    owner: str,
    place: StoreLocation | None,
    *,
    now: bool,
    disk: Sequence[Fields] = (),
    spend: Spend = spend_nothing,
) -> Steps[EraseReport]:
    """Erase in all partitions of the plan, and write a receipt for each.

    Raises ConfigError if other maintainers rewrite a partition again and again, or if ``now`` is set and a pin or a
    snapshot needs an old object. Raises FencedError if another maintainer claims a partition, CorruptionError for
    damage, NotFoundError if a catalog was deleted meanwhile.

    Args:
        owner: name of this program in claims and commits.
        spend: called with the number of bytes read.
        place: the store, for commands in the receipt; None: the receipt has no commands.
        now: delete the old objects at once, without ``gc.grace.ms``.
        disk: JSON fields for the receipt about matching records on this disk, each with its ``partition``.
    """
    capabilities = (yield from probe()) if plan.partitions else None
    erased: list[Erased] = []
    for each in plan.partitions:
        steps = erase_steps(each, plan.selection, owner, plan.job_id, now=now, spend=spend, capabilities=capabilities)
        erased.append((yield from steps))
    receipts: list[str] = []
    for each, one in zip(plan.partitions, erased, strict=True):
        facts = {
            "topic": plan.entry.name,
            "owner": owner,
            "stays": stays([plan_fields(each)]),
            "disk": [found for found in disk if found["partition"] == one.tp.partition],
            "noncurrent_versions": noncurrent_commands(place, [one]),
        }
        receipts.append((yield from receipt_steps(plan.job_id, plan.entry.topic_id, plan.selection, one, facts)))
    return EraseReport(plan.job_id, tuple(erased), tuple(receipts), tuple(noncurrent_commands(place, erased)))


def plan_fields(plan: ErasePlan) -> dict[str, Any]:
    """Return the plan of one partition as JSON values, for ``--json`` and :func:`stays`."""
    return {
        "topic": plan.tp.topic,
        "partition": plan.tp.partition,
        "version": plan.version,
        "end_offset": plan.end_offset,
        "segments_read": plan.segments,
        "bytes_read": plan.read_bytes,
        "records": plan.records,
        "bytes_rewritten": plan.rewritten_bytes,
        "segments": [
            {"start_offset": hit.row.base, "end_offset": hit.row.next, "records": hit.records, "bytes": hit.row.size}
            for hit in plan.hits
        ],
        "holders": list(plan.holders),
        "volume": plan.volume,
    }


def stays(plans: Iterable[Fields]) -> list[str]:
    """Return texts about data that an erasure does not reach. ``plans``: results of :func:`plan_fields`.

    Such data are on disks, in snapshots and in old versions of objects.
    """
    lines = []
    for plan in (plans := list(plans)):
        name = f"{plan['topic']}-{plan['partition']}"
        if plan["holders"]:
            lines.append(f"{name}: older versions are held by {', '.join(plan['holders'])}")
        if plan["volume"]:
            lines.append(
                f"{name}: the disk of volume {plan['volume']} keeps what local.retention.* keeps: "
                f"`tiered disk drop {plan['topic']}:{plan['partition']} --log-dir DIR --remote URL` on its machine "
                f"deletes what the bucket holds. If that disk has records from offset {plan['end_offset']} on, run "
                f"this command again after their upload"
            )
    if plans:
        lines.append(
            "a versioned bucket keeps noncurrent versions of deleted objects: the receipt has the commands that remove "
            "them, for its owner, once the objects are deleted"
        )
    return lines


def noncurrent_commands(place: StoreLocation | None, erased: Iterable[Erased]) -> list[str]:
    """Return commands that delete noncurrent versions of replaced and left-over objects; none unless ``place`` is S3.

    There is one command for each object, because a listing of versions ends at a thousand. Current objects are never
    deleted.
    """
    if place is None or place.target is None:
        return []
    keys = {note["before"] for one in erased for note in one.segments} | {
        left.key for one in erased for left in one.left
    }
    words = {"--bucket": place.bucket, "--endpoint-url": place.target.endpoint_url, "--region": place.target.region}
    words["--expected-bucket-owner"] = place.target.expected_bucket_owner
    common = " ".join(f"{word} {shlex.quote(value)}" for word, value in words.items() if value)
    query = "{Objects: Versions[?IsLatest==`false`].{Key: Key, VersionId: VersionId}}"
    return [
        f"aws s3api list-object-versions {common} --prefix {shlex.quote(place.target.full_key(key))} "
        f"--query {shlex.quote(query)} --output json > versions.json && "
        f"aws s3api delete-objects {common} --delete file://versions.json"
        for key in sorted(keys)
    ]


# -- parts, for many machines ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CutPartition:
    """Partition cut into parts, at one catalog version. ``plan``: without hits. ``parts``: to be searched."""

    plan: ErasePlan
    parts: tuple[CheckPart, ...]


def cut_erase_steps(
    tp: TopicPartition, entry: TopicEntry, selection: Selection, *, now: bool, least_bytes: int = SPAN_BYTES
) -> Steps[CutPartition | None]:
    """Read the catalog of a partition and cut it into parts. Return None without a catalog. No segment is read.

    ``least_bytes``: a part ends at the latest with the segment that brings the part to this size.

    Raises ConfigError if ``now`` is set and a pin or a snapshot needs older versions.
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
    """Read the segments of a part. Return JSON with the number of matching records of each segment.

    ``looked``: that number by segment uid. ``hits``: (row, number) for segments with matches. ``segments``,
    ``read_bytes``: number and size of the segments read.

    If another maintainer replaces a segment meanwhile, its replacement is read. Raises ConfigError if that happens
    again and again, CorruptionError for damage.
    """
    eraser = Eraser(TopicPartition(part.topic, part.partition), part.entry, selection, "")
    eraser.start_rewriting(INCAPABLE)
    counter = Counter(selection)
    for _ in range(MAX_LOOKS):
        rows = yield from _rows(eraser, part)
        try:
            unread = [row for row in rows if uid_of(row) not in counter.looked]
            yield from eraser.context.read(in_turn(unread), counter.add_batch, counter.ended)
        except SegmentGone as gone:
            counter.records = 0  # of a segment that was not read to its end
            yield from eraser.raise_if_still_named(gone)
            continue
        hits = [[list(row), records] for row in rows if (records := counter.looked[uid_of(row)])]
        counts = {"segments": counter.segments, "read_bytes": counter.read_bytes}
        return {"looked": counter.looked, "hits": hits, **counts}
    raise eraser.too_many_rewrites()


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


def join_results(plan: ErasePlan, looks: Iterable[Mapping[str, Any]]) -> ErasePlan:
    """Return ``plan`` with ``looks``, the results of :func:`find_steps` for all parts of its partition."""
    looked: dict[str, int] = {}
    hits: list[Hit] = []
    segments = read_bytes = 0
    for each in looks:
        looked |= each["looked"]
        hits += [Hit(Row(*row), records) for row, records in each["hits"]]
        segments, read_bytes = segments + each["segments"], read_bytes + each["read_bytes"]
    return dataclasses.replace(plan, segments=segments, read_bytes=read_bytes, hits=tuple(hits), looked=looked)
