"""Erasures that an earlier catalog undoes: segments from which one has taken records out are named again.

::

    jobs/erase-{id}/segments/{partition}-{base}-{uid}.json   a note of each segment that was written anew: what it was
                                                             made of, over which offsets, and when

A segment is what an erasure began with if a note names it, or if a catalog of before the note names it over the note's
offsets. A note comes before its commit: of one that was cut short nothing comes back, and the warning costs a look.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from tiered.care.erase import MAX_NOTE_BYTES, decode_note, uid_of, uid_of_key
from tiered.errors import CorruptionError, RemotePermissionError
from tiered.format.keys import partition_prefix
from tiered.model import Row
from tiered.store.base import Get, ListEntry, Object, Steps, list_all

_NOTE = re.compile(
    r"jobs/(?P<job>erase-[^/]+)/segments/(?P<partition>\d+)-(?P<base>\d{20})-(?P<uid>[0-9a-f]{32})\.json"
)


@dataclass(frozen=True, slots=True)
class Undone:
    """``records`` that the erasure ``job`` took out of offsets ``start`` to ``end``, and that may be there again; -1
    where a note of it cannot be read. A ``job`` of ``""``: the notes may not be listed, and nothing is known."""

    job: str
    start: int
    end: int
    records: int


class _Note(NamedTuple):
    """``before``: the key of what was written anew."""

    before: str
    at_ms: int
    undone: Undone


def undone_steps(
    topic_id: UUID, partition: int, rows: Sequence[Row], older: Sequence[Row], since_ms: int
) -> Steps[tuple[Undone, ...]]:
    """What ``rows``, which are to be named again, bring back, a row for each erasure.

    ``older``: those among them that a catalog of ``since_ms`` named: of these what any later erasure took out is back.
    """
    held = {uid_of(row) for row in rows if row.size}
    stood = [row for row in older if row.size and uid_of(row) in held]
    if not held:
        return ()
    try:
        listed = yield from list_all("jobs/erase-")
    except RemotePermissionError:
        return (Undone("", 0, 0, 0),)
    prefix = partition_prefix(topic_id, partition)
    found: dict[tuple[str, str], _Note] = {}
    for entry in listed:
        told = _NOTE.fullmatch(entry.key)
        if told is None or int(told["partition"]) != partition or told["uid"] in held:
            continue
        if not any(row.base <= int(told["base"]) < row.next for row in rows):
            continue
        note = yield from _load_note(entry, told["job"], int(told["base"]))
        start, end, at_ms = note.undone.start, note.undone.end, note.at_ms
        meets = at_ms >= since_ms and any(row.base < end and start < row.next for row in stood)
        told_of = note.before.startswith(prefix) and (meets or uid_of_key(note.before) in held)
        damaged = note.undone.records < 0
        if (told_of or damaged) and found.get((told["job"], note.before), note).at_ms <= at_ms:
            found[told["job"], note.before] = note
    return _together([note.undone for note in found.values()])


def _load_note(entry: ListEntry, job: str, base: int) -> Steps[_Note]:
    """One that is gone or cannot be read tells what its name does: nobody is kept from a repair by it."""
    try:
        got = yield Get(entry.key, max_bytes=MAX_NOTE_BYTES)
        if isinstance(got, Object):
            note = decode_note(entry.key, got.data)
            erased = Undone(job, note["start_offset"], note["end_offset"], note["records"])
            return _Note(note["before"], note["at_ms"], erased)
    except CorruptionError:
        pass
    return _Note(entry.key, 0, Undone(job, base, base, -1))


def _together(found: Sequence[Undone]) -> tuple[Undone, ...]:
    """One for each erasure."""
    jobs: dict[str, list[Undone]] = {}
    for one in found:
        jobs.setdefault(one.job, []).append(one)
    return tuple(
        Undone(job, min(one.start for one in each), max(one.end for one in each), _count(each))
        for job, each in sorted(jobs.items())
    )


def _count(each: Sequence[Undone]) -> int:
    return -1 if any(one.records < 0 for one in each) else sum(one.records for one in each)
