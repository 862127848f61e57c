"""What was promised and seen, held against what is in the bucket at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cast import Host, Violation
from tests.chaos.notes import read_notes

Content = Mapping[tuple[str, int], list[str]]
"""Names by topic and partition; an offset is the place in the list."""


@dataclass
class Promises:
    """Of one host: what its disk holds, by partition and offset, and up to where it was told of the bucket."""

    disk: dict[tuple[int, int], str]
    bucket: dict[int, int]

    @classmethod
    def of(cls, notes: Path) -> Promises:
        """From its notes. Raises Violation where one offset was acknowledged twice."""
        found = cls({}, {})
        for note in read_notes(notes):
            if note["what"] == "disk":
                for at, name in enumerate(note["names"]):
                    place = (note["partition"], note["offset"] + at)
                    if place in found.disk:
                        raise Violation(f"{notes.name}: {found.disk[place]} and {name} were acknowledged at {place}")
                    found.disk[place] = name
            elif note["what"] == "bucket":
                p = note["partition"]
                found.bucket[p] = max(found.bucket.get(p, 0), note["end"])
        return found


def check_host(host: Host, content: Content, *, displaced: bool) -> int:
    """How many promises were kept. Of a displaced host only what it was told to be in the bucket is promised there."""
    kept = 0
    promises = Promises.of(host.notes)
    for (partition, offset), name in promises.disk.items():
        if displaced and offset >= promises.bucket.get(partition, 0):
            continue
        held = content[host.topic, partition]
        there = held[offset] if offset < len(held) else "nothing"
        if there != name:
            raise Violation(f"{host.topic}-{partition}: {name} was acknowledged at {offset}, where {there} is")
        kept += 1
    return kept


def check_once(content: Content) -> int:
    """How many records there are. Raises Violation where one is there twice."""
    places: dict[str, tuple[str, int, int]] = {}
    for (topic, partition), names in content.items():
        for offset, name in enumerate(names):
            if name in places:
                raise Violation(f"{name} is at {places[name]} and at {(topic, partition, offset)}")
            places[name] = (topic, partition, offset)
    return len(places)


def check_seen(notes: Iterable[Path], content: Content) -> int:
    """How many records readers saw. Raises Violation where one saw what is not there, or something else."""
    seen = 0
    for path in notes:
        for note in read_notes(path):
            if note["what"] != "seen":
                continue
            held = content[note["topic"], note["partition"]]
            there = held[note["offset"]] if note["offset"] < len(held) else "nothing"
            if there != note["name"]:
                raise Violation(f"{path.name}: saw {note}, and {there} is there now")
            seen += 1
    return seen
