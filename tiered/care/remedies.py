"""Which verbs of ``repair`` are for what a check has found in a bucket. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tiered.findings import Finding, Severity
from tiered.format.keys import parse_segment_key, parse_staged_key, topic_key

MAX_REMEDIES = 20
"""Partitions that are named; all others are damaged alike."""
_ENTRY = frozenset({"topic_entry", "two_names"})
_ROOT = frozenset({"root", "invariant", "went_back"})
_INSIDE = frozenset({"object_checksum", "offset_index", "time_index", "txn_index_lost", "producer_snapshot_lost"})
"""What only the bytes tell: a verb looks there where it is told an offset of the segment."""
NAMED_OFFSETS = 8
"""Of a partition's segments that are damaged inside so many are named; the next check names others."""


def remedies(findings: Iterable[Finding]) -> list[str]:
    """A line for each topic whose registry entry, and each partition whose root or segments are damaged: what to do
    next."""
    entries, roots, segments = dict[str, str](), dict[str, str](), dict[str, str]()
    inside = defaultdict[str, dict[str, int]](dict)
    for found in findings:
        if found.code in _ENTRY:
            entries[found.topic] = topic_key(found.topic)
        if found.severity is not Severity.ERROR or found.partition < 0:
            continue
        name, where = f"{found.topic}-{found.partition}", f"{found.topic}:{found.partition}"
        if found.code in _ROOT:
            roots[name] = where
        elif (parsed := parse_segment_key(found.where)) is not None or parse_staged_key(found.where) is not None:
            segments[name] = where
            if found.code in _INSIDE and found.offset >= 0 and len(inside[name]) < NAMED_OFFSETS:
                offset = found.offset if parsed is None else parsed.name.base  # an entry may name any offset
                inside[name].setdefault(found.where, offset)
    for name, offsets in inside.items():
        segments[name] = " ".join([segments[name], *map(str, offsets.values())])
    lines = [
        f"{where}: `tiered repair advice {name}` says how a kept entry is put back, `tiered repair registry {name}` "
        f"makes it anew from the topic's roots"
        for name, where in entries.items()
    ]
    lines += [
        f"{name}: `tiered repair advice {where.partition(':')[0]}` says how a kept root is put back, `tiered repair "
        f"rebuild-catalog {where}` makes one anew"
        for name, where in roots.items()
    ]
    lines += [
        f"{name}: `tiered repair index {where}` mends indexes and rows; what a .log has lost comes back from a log "
        f"directory that holds it (`tiered repair put-back {where} --log-dir DIR`), from a version or a backup of the "
        f"bucket, or `tiered repair drop-segment {where}` gives it up"
        for name, where in segments.items()
    ]
    return lines[:MAX_REMEDIES]
