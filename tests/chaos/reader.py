"""A reader of the bucket: follows every partition and looks back at random; notes each record that it sees first.

``python -m tests.chaos.reader REMOTE ENDPOINT NOTES SEED``. A gap, an offset that comes twice, another record at an
offset that it has seen, or an end that goes back, is an AssertionError: the process ends with a traceback.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from random import Random

import tiered
from tests.chaos.notes import Notes
from tests.chaos.writer import RETRY_SECONDS, WEATHER, name_of
from tiered.errors import TieredError
from tiered.reader import Reader

PAUSE_SECONDS = 0.4
LOOKS = 12
"""Rounds after which the reader is opened anew."""


class Following:
    """What one process has seen."""

    def __init__(self, notes: Notes, dice: Random) -> None:
        self._notes, self._dice = notes, dice
        self._seen: dict[tuple[str, int], list[str]] = {}

    def look(self, reader: Reader) -> None:
        """Every partition once: what is new, and now and then what is old."""
        for topic, info in reader.topics().items():
            reads = reader.topic(topic)
            for partition in range(info.partitions):
                seen = self._seen.setdefault((topic, partition), [])
                stream = reads.stream(partition)
                latest = stream.latest()
                if latest < len(seen):
                    raise AssertionError(f"{topic}-{partition} ends at {latest}, {len(seen)} were seen")
                start = self._dice.randrange(len(seen) + 1) if self._dice.random() < 0.1 else len(seen)
                for record in reads.read(partition, start=start):
                    self._take(topic, partition, start, record.offset, name_of(record.value))
                    start += 1

    def _take(self, topic: str, partition: int, expected: int, offset: int, name: str) -> None:
        seen = self._seen[topic, partition]
        if offset != expected or (offset < len(seen) and seen[offset] != name):
            before = seen[offset] if offset < len(seen) else "nothing yet"
            raise AssertionError(f"{topic}-{partition}: {name} at {offset}, expected {expected}; seen there: {before}")
        if offset == len(seen):
            seen.append(name)
            self._notes.add("seen", topic=topic, partition=partition, offset=offset, name=name)


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
