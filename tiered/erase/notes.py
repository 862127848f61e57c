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
from typing import Any, NamedTuple, cast
from uuid import UUID

from tiered.errors import CorruptionError, RemotePermissionError
from tiered.format.keys import (
    ErasureNoteKey,
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
    """Erasure ``job`` whose records in offsets ``start`` to ``end`` (exclusive) may be readable again.

    ``records``: their number, -1 if a note cannot be read. ``job`` is ``""`` if notes may not be listed; the other
    fields are then 0.
    """

    job: str
    start: int
    end: int
    records: int

    def sentence(self, tp: TopicPartition, topic_id: UUID, advice: str) -> str:
        """Return the warning for the user. ``advice``: how to erase the records again."""
        prefix = erasure_prefix(topic_id, tp.partition)
        if not self.job:
            return f"{tp}: {prefix} may not be listed here: erased records may be there again"
        unread = "records (a note of it cannot be read)"
        which = unread if self.records < 0 else f"{self.records} {'record' if self.records == 1 else 'records'}"
        receipt = erasure_receipt_key(topic_id, tp.partition, self.job)
        return (
            f"{tp}: {which} that {self.job} erased from offsets {self.start} to {self.end} may be there again: "
            f"{advice} ({receipt} has the keys as hashes)"
        )


class _Note(NamedTuple):
    """Decoded note. ``before``: key of the segment that was rewritten. ``at_ms``: time of the rewrite."""

    before: str
    at_ms: int
    undone: Undone


def undone_steps(
    topic_id: UUID, partition: int, rows: Sequence[Row], older: Sequence[Row], since_ms: int
) -> Steps[tuple[Undone, ...]]:
    """Return the erasures that a catalog with ``rows`` would undo, one entry per erasure.

    ``older``: rows of the catalog at ``since_ms``. Each of them that is also in ``rows`` undoes later erasures in its
    offsets. If notes may not be listed, the one entry has an empty ``job``.
    """
    held = {uid_of(row) for row in rows if row.size}
    stood = [row for row in older if row.size and uid_of(row) in held]
    if not held:
        return ()
    try:
        listed = yield from list_all(erasure_prefix(topic_id, partition))
    except RemotePermissionError:
        return (Undone("", 0, 0, 0),)
    found: dict[tuple[str, str], _Note] = {}
    for entry in listed:
        parsed = parse_erasure_note_key(entry.key)
        if parsed is None or parsed.uid in held:
            continue
        if not any(row.base <= parsed.base < row.next for row in rows):
            continue
        note = yield from _load_note(entry.key, parsed)
        start, end, at_ms = note.undone.start, note.undone.end, note.at_ms
        meets = at_ms >= since_ms and any(row.base < end and start < row.next for row in stood)
        counts = meets or uid_of_key(note.before) in held or note.undone.records < 0
        if counts and found.get((parsed.erasure, note.before), note).at_ms <= at_ms:
            found[parsed.erasure, note.before] = note
    return _together([note.undone for note in found.values()])


def _load_note(key: str, parsed: ErasureNoteKey) -> Steps[_Note]:
    """Read a note. A missing or damaged note blocks no repair: return its key's offset, with ``records`` -1."""
    try:
        got = yield Get(key, max_bytes=MAX_NOTE_BYTES)
        if isinstance(got, Object):
            note = decode_note(key, got.data)
            erased = Undone(parsed.erasure, note["start_offset"], note["end_offset"], note["records"])
            return _Note(note["before"], note["at_ms"], erased)
    except CorruptionError:
        pass
    return _Note(key, 0, Undone(parsed.erasure, parsed.base, parsed.base, -1))


def _together(found: Sequence[Undone]) -> tuple[Undone, ...]:
    jobs: dict[str, list[Undone]] = {}
    for one in found:
        jobs.setdefault(one.job, []).append(one)
    return tuple(
        Undone(job, min(one.start for one in each), max(one.end for one in each), _count(each))
        for job, each in sorted(jobs.items())
    )


def _count(each: Sequence[Undone]) -> int:
    return -1 if any(one.records < 0 for one in each) else sum(one.records for one in each)
