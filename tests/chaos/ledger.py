"""What was promised and seen, held against what is in the bucket at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.chaos.cast import Host, Violation
from tests.chaos.notes import Note, read_notes
from tests.chaos.topics import Held, Kind, kind_of

Content = Mapping[tuple[str, int], Mapping[int, Held]]
"""What readers of each kind of topic get in the end, by topic and partition, then by offset."""


class Place(NamedTuple):
    """Where a record was acknowledged."""

    partition: int
    offset: int


@dataclass
class Promises:
    """Of one host: what its disk holds, by place; of that what it was told to be in the bucket; its transactions.

    ``undecided``: the names of each transaction whose end nobody has noted.
    """

    disk: dict[Place, Held] = field(default_factory=dict)
    bucket: set[Place] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    undecided: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, notes: Path) -> Promises:
        """From its notes. Raises Violation where one offset was acknowledged twice."""
        found = cls()
        for note in read_notes(notes):
            found._take(note, notes.name)
        return found

    def _take(self, note: Note, source: str) -> None:
        match note["what"]:
            case "disk":
                keys = note.get("keys") or [""] * len(note["names"])
                for at, (name, key) in enumerate(zip(note["names"], keys, strict=True)):
                    self._acknowledge(Place(note["partition"], note["offset"] + at), Held(name, key), source)
            case "begun":
                self.undecided[note["transaction"]] = note["names"]
            case "aborted":
                self.aborted.update(self.undecided.pop(note["transaction"]))
            case "committed":
                names = self.undecided.pop(note["transaction"])
                for name, place in zip(names, note["places"], strict=True):
                    self._acknowledge(Place(*place), Held(name, ""), source)
            case "bucket":  # whatever was acknowledged before it was asked for, markers of transactions too
                self.bucket.update(p for p in self.disk if p.partition == note["partition"] and p.offset < note["end"])

    def _acknowledge(self, place: Place, held: Held, source: str) -> None:
        if place in self.disk:
            raise Violation(f"{source}: {self.disk[place].name} and {held.name} were acknowledged at {place}")
        self.disk[place] = held


def check_host(host: Host, content: Content, *, displaced: bool) -> int:
    """How many promises were kept. Of a displaced host only what it was told to be in the bucket is promised there.

    No aborted record may be there, whoever aborted it, and of a transaction whose end nobody noted all or nothing;
    what a displaced host had decided and not brought to the bucket is decided by who took over, in each partition.
    """
    promises = Promises.of(host.notes)
    places = promises.bucket if displaced else promises.disk
    for place in sorted(places):
        _check_place(host.topic, place.partition, place.offset, promises.disk[place], content, "was acknowledged")
    names = {held.name for at in range(_partitions(content, host.topic)) for held in content[host.topic, at].values()}
    if there := names & promises.aborted:
        raise Violation(f"{host.topic}: {sorted(there)[:5]} were aborted, and are read as committed")
    for transaction, begun in promises.undecided.items():
        if not displaced and 0 < len(names.intersection(begun)) < len(begun):
            raise Violation(f"{host.topic}: of {transaction} only {sorted(names.intersection(begun))} are committed")
    return len(places)


def _partitions(content: Content, topic: str) -> int:
    return sum(name == topic for name, _ in content)


def _check_place(topic: str, partition: int, offset: int, held: Held, content: Content, what: str) -> None:
    """Raises Violation unless it is there, or, in a compacted topic, its key's place was taken by a newer record."""
    records = content[topic, partition]
    there = records.get(offset)
    if there == held:
        return
    newer = (other.key == held.key for at, other in records.items() if at > offset)
    if there is None and kind_of(topic) is Kind.COMPACTED and any(newer):
        return
    now = "nothing" if there is None else there.name
    raise Violation(f"{topic}-{partition}: {held} {what} at {offset}, where {now} is")


def check_once(content: Content) -> int:
    """How many records there are. Raises Violation where one is there twice."""
    places: dict[str, tuple[str, int, int]] = {}
    for (topic, partition), records in content.items():
        for offset, held in records.items():
            if held.name in places:
                raise Violation(f"{held.name} is at {places[held.name]} and at {(topic, partition, offset)}")
            places[held.name] = (topic, partition, offset)
    return len(places)


def check_seen(notes: Iterable[Path], content: Content) -> int:
    """How many records readers saw. Raises Violation where one saw what is not there, or something else."""
    seen = 0
    for path in notes:
        for note in read_notes(path):
            if note["what"] == "seen":
                held = Held(note["name"], note["key"])
                _check_place(note["topic"], note["partition"], note["offset"], held, content, f"was seen ({path.name})")
                seen += 1
    return seen
