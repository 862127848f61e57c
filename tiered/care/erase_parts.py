"""An erasure whose work many share: looks at parts, segments written anew, single objects read; one commits.

::

    unseen ── parts of the catalog that nobody has looked at ──> look ──> who was read, hits
    hits   ── those that are alive ──> rewrite, under the claim of who commits ──> commit
    again from the newest root, until all is seen and no hit is alive
    others ── objects that are not alive ──> count

A segment never changes: a look at it stands for ever, whoever looked and when. So it is known by its id whether a
segment was looked at, and only what is new is read again. What is appended behind ``end`` is left to a later erasure.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiered.care.erase import Counter, Erased, Eraser, Hit, Left, uid_of
from tiered.care.spread import Part
from tiered.config import MAX_LONG
from tiered.errors import NotFoundError, TieredError
from tiered.model import Row, TopicPartition
from tiered.plan.erasure import Selection
from tiered.plan.jobs import SPAN_BYTES, SpanCutter
from tiered.plan.rewrite import ReplaceIntent
from tiered.remote.fetch import SegmentGone
from tiered.remote.rewrite import in_turn
from tiered.remote.topics import TopicEntry
from tiered.store.base import INCAPABLE, Capabilities, Steps
from tiered.store.probe import check_capabilities

COMMIT_TOGETHER = 64
"""Segments that give way to others in one version of the catalog."""
UID_DIGITS = 32


@dataclass(slots=True)
class Seen:
    """What all looks at a partition have found: segments that were read, and which of them hold how many records."""

    uids: set[str] = field(default_factory=set)
    records: dict[str, int] = field(default_factory=dict)
    read_bytes: int = 0

    def add(self, looked: Mapping[str, Any]) -> None:
        """What one part's look gave."""
        read = base64.b64decode(looked["read"]).hex()
        self.uids.update(read[at : at + UID_DIGITS] for at in range(0, len(read), UID_DIGITS))
        self.records |= looked["hits"]
        self.read_bytes += looked["read_bytes"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A partition at one version: what nobody has looked at, and what is alive and has to be rewritten."""

    version: int
    end_offset: int
    volume: str
    unseen: tuple[Part, ...]
    hits: tuple[Hit, ...]


def standing_steps(
    tp: TopicPartition,
    entry: TopicEntry,
    selection: Selection,
    seen: Seen,
    *,
    end: int = MAX_LONG,
    least_bytes: int = SPAN_BYTES,
) -> Steps[Standing | None]:
    """Reads the catalog up to ``end``, no segment. None for a partition without one."""
    pinned = yield from Eraser(tp, entry, selection, "").catalog.pin()
    if pinned is None:
        return None
    cutter, spans, hits = SpanCutter(least_bytes), [], list[Hit]()
    at, last = pinned.start_offset, min(end, pinned.next_offset)
    while at < last and len(piece := (yield from pinned.piece(at))):
        for row in piece:
            name = uid_of(row)
            if row.base >= last or not selection.may_be_in(row):
                continue
            if name not in seen.uids:
                cutter.add([row])
                continue
            spans += cutter.finish()
            cutter = SpanCutter(least_bytes)
            if name in seen.records:
                hits.append(Hit(row, seen.records[name]))
        at = piece.end_offset
    whole = Part(tp.topic, entry.topic_id.hex, tp.partition, entry.roots)
    unseen = tuple(
        dataclasses.replace(
            whole, start=span.start, end=span.end, segments=span.segments, size_bytes=span.size_bytes, with_root=False
        )
        for span in (*spans, *cutter.finish())
    )
    root = pinned.root
    return Standing(pinned.version, root.next_offset, root.writer.volume, unseen, tuple(hits))


def look_steps(part: Part, selection: Selection) -> Steps[dict[str, Any]]:
    """Reads the segments of a part; gives, as JSON, which were read, and the hits among them.

    One that is superseded meanwhile ends the look early: what took its place is asked for by the next one.
    """
    eraser = Eraser(TopicPartition(part.topic, part.partition), part.entry, selection, "")
    eraser.open_shop(INCAPABLE)
    pinned = yield from eraser.catalog.pin()
    if pinned is None:
        raise NotFoundError(f"{part.topic}-{part.partition} has no catalog any more", hint="was its topic deleted?")
    counter, read, rows = Counter(selection), list[Row](), list[Row]()
    at = max(part.start, pinned.start_offset)
    while at < min(part.end, pinned.next_offset):
        piece = yield from pinned.piece(at)
        rows += [row for row in piece if part.start <= row.base < part.end and selection.may_be_in(row)]
        at = piece.end_offset

    def ended(row: Row) -> None:
        counter.ended(row)
        read.append(row)

    try:
        yield from eraser.shop.read(in_turn(rows), counter.take, ended)
    except SegmentGone as gone:
        yield from eraser.need_superseded(gone)
    return {
        "read": base64.b64encode(bytes.fromhex("".join(map(uid_of, read)))).decode(),
        "hits": {uid: records for uid, records in counter.looked.items() if records},
        "read_bytes": counter.read_bytes,
    }


def rewrite_steps(
    tp: TopicPartition,
    entry: TopicEntry,
    rows: Sequence[Row],
    selection: Selection,
    *,
    job_id: str,
    claim_epoch: int,
    capabilities: Capabilities,
) -> Steps[list[tuple[Row, Row, int]]]:
    """Writes ``rows`` anew under a claim of the role ``m`` that another process holds, which commits them.

    Gives the old row, the new one and how many records went, of each that was still alive. Raises
    ConditionalWritesUnsupportedError.
    """
    check_capabilities(capabilities, "the store")
    eraser = Eraser(tp, entry, selection, job_id)
    yield from eraser.catalog.pin()
    eraser.open_shop(capabilities, claim_epoch)
    made = []
    for row in rows:
        new = yield from eraser.rewritten(row)
        if new is not None:
            made.append((row, *new))
    return made


def count_steps(tp: TopicPartition, entry: TopicEntry, key: str, selection: Selection) -> Steps[int]:
    """Records that an object holds, as ``Eraser.count`` has it."""
    return (yield from Eraser(tp, entry, selection, "").count(key))


class Committer:
    """One partition of a shared erasure, where its claim is held: its rewrites are committed here, and it is ended."""

    def __init__(self, tp: TopicPartition, entry: TopicEntry, selection: Selection, job_id: str, owner: str) -> None:
        self.tp = tp
        self.records = 0
        self._eraser = Eraser(tp, entry, selection, job_id)
        self._job_id, self._owner = job_id, owner

    @property
    def claim_epoch(self) -> int:
        """Of the claim, 0 before there is one."""
        return self._eraser.catalog.claim_epoch

    def holders(self) -> Steps[tuple[str, ...]]:
        """Who holds older versions, by name."""
        return (yield from self._eraser.holders())

    def need_free(self) -> Steps[None]:
        """Raises ConfigError if a pin or a snapshot holds older versions."""
        yield from self._eraser.need_free()

    def claim(self) -> Steps[None]:
        """Takes the role ``m``, once."""
        if not self.claim_epoch:
            yield from self._eraser.claim(self._owner)

    def commit(self, made: Sequence[tuple[Row, Row, int]]) -> Steps[None]:
        """What was rewritten under this claim takes the place of what it was made of.

        What others have replaced since stays as they left it: the next look sees it. Raises FencedError.
        """
        for at in range(0, len(made), COMMIT_TOGETHER):
            group = made[at : at + COMMIT_TOGETHER]
            intents = [ReplaceIntent((old,), (new,)) for old, new, _ in group]
            results = yield from self._eraser.catalog.commit_all(intents, reason=f"erase, job {self._job_id}")
            for (_, _, gone), result in zip(group, results, strict=True):
                if isinstance(result, TieredError):
                    if result.__class__ is not NotFoundError:
                        raise result
                    continue
                self.records += gone

    def others(self) -> Steps[dict[str, tuple[int, str]]]:
        """As ``Eraser.others``."""
        return (yield from self._eraser.others())

    def collect(self) -> Steps[Any]:
        """Deletes what all runs of the job have replaced, without the grace time."""
        notes = yield from self._eraser.notes()
        self._eraser.replaced |= {(note["id_hi"], note["id_lo"]) for note in notes}
        return (yield from self._eraser.collect(self._owner))

    def ended(self, left: Sequence[Left], read_objects: int, collected: Any) -> Steps[Erased]:
        """What became of it."""
        notes = yield from self._eraser.notes()
        pinned = yield from self._eraser.catalog.pin()
        version = pinned.version if pinned is not None else 0
        return Erased(self.tp, version, self.records, tuple(notes), tuple(left), read_objects, collected)
