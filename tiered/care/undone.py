"""Erasures that an earlier catalog undoes: segments from which one has taken records out are named again.

::

    jobs/erase-{id}/segments/{partition}-{base}-{uid}.json   a note of each segment that was written anew: what it was
                                                             made of, over which offsets, and when

A segment is what an erasure began with if a note names it, or if a catalog of before the note names it over the note's
offsets. A note comes before its commit: of one that was cut short nothing comes back, and the warning costs a look.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tiered.care.erase import uid_of, uid_of_key
from tiered.errors import RemotePermissionError
from tiered.format.keys import partition_prefix
from tiered.model import Row
from tiered.store.base import Get, Object, Steps, list_all

_NOTE = re.compile(
    r"jobs/(?P<job>erase-[^/]+)/segments/(?P<partition>\d+)-(?P<base>\d{20})-(?P<uid>[0-9a-f]{32})\.json"
)


@dataclass(frozen=True, slots=True)
class Undone:
    """``records`` that the erasure ``job`` took out of offsets ``start`` to ``end``, and that may be there again. A
    ``job`` of ``""``: the notes may not be listed, and nothing is known."""

    job: str
    start: int
    end: int
    records: int


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
    found: dict[tuple[str, str], tuple[int, Undone]] = {}
    for entry in listed:
        told = _NOTE.fullmatch(entry.key)
        if told is None or int(told["partition"]) != partition or told["uid"] in held:
            continue
        if not any(row.base <= int(told["base"]) < row.next for row in rows):
            continue
        got = yield Get(entry.key)
        if not isinstance(got, Object):
            continue
        note = json.loads(got.data)
        start, end, at_ms = note["start_offset"], note["end_offset"], note["at_ms"]
        meets = at_ms >= since_ms and any(row.base < end and start < row.next for row in stood)
        if note["before"].startswith(prefix) and (meets or uid_of_key(note["before"]) in held):
            one = Undone(told["job"], start, end, note["records"])
            if found.get((one.job, note["before"]), (-1, one))[0] <= at_ms:
                found[one.job, note["before"]] = at_ms, one
    return _together([one for _, one in found.values()])


def _together(found: Sequence[Undone]) -> tuple[Undone, ...]:
    """One for each erasure."""
    jobs: dict[str, list[Undone]] = {}
    for one in found:
        jobs.setdefault(one.job, []).append(one)
    return tuple(
        Undone(job, min(one.start for one in each), max(one.end for one in each), sum(one.records for one in each))
        for job, each in sorted(jobs.items())
    )
