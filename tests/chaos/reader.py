"""A reader of the bucket: follows every partition and looks back at random; notes each record that it sees first.

``python -m tests.chaos.reader REMOTE ENDPOINT NOTES SEED``. A gap, an offset that comes twice, another record at an
offset that it has seen, one that is gone, or an end that goes back, is an AssertionError: the process ends with a
traceback. Topics with transactions are read as committed.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from random import Random

import tiered
from tests.chaos.notes import Notes
from tests.chaos.topics import HOSTS, Held, Kind, kind_of, name_of
from tests.chaos.writer import RETRY_SECONDS, WEATHER
from tiered.errors import TieredError
from tiered.read.topic import TopicReads
from tiered.reader import Reader

PAUSE_SECONDS = 0.4
LOOKS_BACK = {Kind.PLAIN: 0.1, Kind.COMPACTED: 0.4, Kind.TRANSACTIONAL: 0.3}
"""Share of the looks at a partition that begin at an older offset."""
LOOKS = 12
"""Rounds after which the reader is opened anew."""


class Seen:
    """What one process has seen of a partition; ``end`` is behind the last record of it.

    Raises AssertionError where a record has changed, is not as others follow each other in its kind of topic, or has
    come to an offset that was passed; and, behind a pass, where what was seen is gone. Of a compacted topic the last
    value of a key that was seen stays, or a newer one is there.
    """

    def __init__(self, name: str, kind: Kind) -> None:
        self._name, self._kind = name, kind
        self._records: dict[int, Held] = {}
        self._newest: dict[str, int] = {}
        self.end = 0

    def take(self, expected: int, offset: int, held: Held) -> bool:
        """Whether it is new. ``expected``: the first offset that it may have."""
        before = self._records.get(offset)
        if (
            offset < expected
            or (self._kind is Kind.PLAIN and offset > expected)
            or (offset < self.end and before != held)
        ):
            raise AssertionError(f"{self._name}: {held} at {offset}, expected {expected}; seen there: {before}")
        if offset < self.end:
            return False
        self._records[offset], self.end = held, offset + 1
        self._newest[held.key] = offset
        return True

    def passed(self, start: int, found: Mapping[int, Held]) -> None:
        """A pass from ``start`` was read to the end, and has found this."""
        if self._kind is Kind.COMPACTED:
            there = {held.key: offset for offset, held in found.items()}
            lost = [key for key, offset in self._newest.items() if offset >= start and there.get(key, -1) < offset]
        else:
            lost = [str(offset) for offset in self._records if offset >= start and offset not in found]
        if lost:
            raise AssertionError(f"{self._name}: from {start} on there is nothing more of {sorted(lost)[:5]}")


class Following:
    """What one process has seen."""

    def __init__(self, notes: Notes, dice: Random) -> None:
        self._notes, self._dice = notes, dice
        self._seen: dict[tuple[str, int], Seen] = {}

    def look(self, reader: Reader) -> None:
        """Every partition once: what is new, and now and then what is old."""
        for topic, info in reader.topics().items():
            if topic in HOSTS:
                for partition in range(info.partitions):
                    self._look(reader.topic(topic), topic, partition)

    def _look(self, reads: TopicReads, topic: str, partition: int) -> None:
        kind = kind_of(topic)
        seen = self._seen.setdefault((topic, partition), Seen(f"{topic}-{partition}", kind))
        latest = reads.stream(partition).latest()
        if latest < seen.end:
            raise AssertionError(f"{topic}-{partition} ends at {latest}, {seen.end} were seen")
        start = expected = self._dice.randrange(seen.end + 1) if self._dice.random() < LOOKS_BACK[kind] else seen.end
        found: dict[int, Held] = {}
        for record in reads.read(partition, start=start, isolation=kind.isolation):
            held = found[record.offset] = Held(name_of(record.value), (record.key or b"").decode())
            if seen.take(expected, record.offset, held):
                place = {"topic": topic, "partition": partition, "offset": record.offset}
                self._notes.add("seen", **place, name=held.name, key=held.key)
            expected = record.offset + 1
        seen.passed(start, found)


def main() -> int:
    """The exit status: of the error that ended it."""
    parser = argparse.ArgumentParser()
    for name in ("remote", "endpoint", "notes", "seed"):
        parser.add_argument(name)
    given = parser.parse_args()
    notes, dice, pause = Notes(Path(given.notes)), Random(given.seed), threading.Event()
    following = Following(notes, dice)
    try:
        while True:
            try:
                with tiered.open_reader(
                    given.remote, endpoint_url=given.endpoint, deadline_seconds=RETRY_SECONDS
                ) as reader:
                    for _ in range(LOOKS):
                        following.look(reader)
                        pause.wait(dice.random() * PAUSE_SECONDS)
            except WEATHER as error:
                notes.add("weather", code=error.code)
    except TieredError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
