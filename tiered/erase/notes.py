"""Notes about the segments that an erasure rewrote, and the erasures that an older catalog undoes.

::

    erasures/{topic_id}-{partition}/{id}/segments/{base}-{uid}.json   a note of each rewritten segment:
                                                                      its key before, its offsets, the time

An older catalog undoes an erasure by naming segments from before it. A segment holds erased records if a note names it,
or if a catalog older than the note names it over the note's offsets. A note is stored before its commit. A note without
a commit costs one needless warning.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from tiered.errors import CorruptionError
from tiered.format.keys import (
    erasure_prefix,
    erasure_receipt_key,
    join_uid,
    parse_erasure_note_key,
    parse_segment_key,
    parse_staged_key,
)
from tiered.model import Row, TopicPartition
from tiered.store.base import Get, Object, Steps
from tiered.store.steps import list_all

MAX_NOTE_BYTES = 64 * 1024
"""Largest note about a rewritten segment."""

_NOTE_FIELDS = {"before": str, "after": str, "start_offset": int, "end_offset": int, "records": int} | {
    "id_hi": int,
    "id_lo": int,
    "at_ms": int,
}


def uid_of(row: Row) -> str:
    """Return the uid of a segment, which is part of its object keys."""
    return join_uid(row.id_hi, row.id_lo)


def uid_of_key(key: str) -> str:
    """Return the segment uid in a key below ``s/``. Return the key itself if it is not that of a segment."""
    parsed, staged = parse_segment_key(key), parse_staged_key(key)
    return parsed.name.uid if parsed is not None else staged.uid if staged is not None else key


def decode_note(key: str, data: bytes | memoryview) -> dict[str, Any]:
    """Return the fields of a note: object keys of the segment before and after, offsets, erased records, time.

    Raises CorruptionError if the note is damaged.
    """
    try:
        note = json.loads(bytes(data))
        if any(not isinstance(note[name], kind) for name, kind in _NOTE_FIELDS.items()):
            raise ValueError("a field is missing or has the wrong type")
    except (ValueError, KeyError, TypeError) as damage:
        raise CorruptionError(
            f"{key}, the erasure's note of a segment, cannot be read: {damage}",
            path_or_key=key,
            hint="delete it, and erase again: the proof reads every object without a note",
        ) from damage
    return cast("dict[str, Any]", note)


@dataclass(frozen=True, slots=True)
class Undone:
    """Erasure ``job`` whose ``records`` in offsets ``start`` to ``end`` (exclusive) may be readable again."""

    job: str
    start: int
    end: int
    records: int

    def sentence(self, tp: TopicPartition, topic_id: UUID, advice: str) -> str:
        """Return the warning for the user. ``advice``: how to erase the records again."""
        which = f"{self.records} {'record' if self.records == 1 else 'records'}"
        receipt = erasure_receipt_key(topic_id, tp.partition, self.job)
        return (
            f"{tp}: {which} that {self.job} erased from offsets {self.start} to {self.end} may be there again: "
            f"{advice} ({receipt} has the keys as hashes)"
        )


def undone_steps(topic_id: UUID, partition: int, rows: Sequence[Row], since_ms: int) -> Steps[tuple[Undone, ...]]:
    """Return the erasures that a catalog with ``rows`` would undo, one entry per erasure.

    ``since_ms``: time of that catalog. Its segments undo later erasures in their offsets. Raises CorruptionError for a
    damaged note.
    """
    held = [row for row in rows if row.size]
    uids = {uid_of(row) for row in held}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in (yield from list_all(erasure_prefix(topic_id, partition))) if held else ():
        parsed = parse_erasure_note_key(entry.key)
        if parsed is None or parsed.uid in uids or not any(row.base <= parsed.base < row.next for row in rows):
            continue
        got = yield Get(entry.key, max_bytes=MAX_NOTE_BYTES)
        if not isinstance(got, Object):
            continue
        note = decode_note(entry.key, got.data)
        start, end, at_ms, which = note["start_offset"], note["end_offset"], note["at_ms"], note["before"]
        meets = at_ms >= since_ms and any(row.base < end and start < row.next for row in held)
        if (meets or uid_of_key(which) in uids) and found.get((parsed.erasure, which), note)["at_ms"] <= at_ms:
            found[parsed.erasure, which] = note
    jobs: dict[str, list[dict[str, Any]]] = {}
    for (job, _), note in sorted(found.items()):
        jobs.setdefault(job, []).append(note)
    return tuple(
        Undone(
            job,
            min(note["start_offset"] for note in notes),
            max(note["end_offset"] for note in notes),
            sum(note["records"] for note in notes),
        )
        for job, notes in jobs.items()
    )
