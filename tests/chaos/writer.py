"""A host's application: appends, syncs and reads back by dice until it is killed, and notes what it was promised.

``python -m tests.chaos.writer LOG_DIR REMOTE ENDPOINT TOPIC NAME NOTES SEED [--component]``. Notes: ``opened``,
``disk`` (partition, offset, names, keys: fsynced), ``begun`` (a transaction and the names that it will hold),
``committed`` (its places) or ``aborted``, and ``bucket`` (partition, end: a sync has returned). Whatever the store does
to it is expected; what breaks a promise ends it with a status that nobody expects.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from random import Random

import tiered
from tests.chaos.notes import Notes
from tests.chaos.topics import KEYS, PARTITIONS, Kind, config_of, generation_of, kind_of, name_of
from tiered.clock import SystemClock
from tiered.errors import CommitUnknownError, DataLocalError, RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.model import NewRecord
from tiered.topic import Topic
from uploader import Uploader

WEATHER = (RemoteUnavailableError, RemotePermissionError, CommitUnknownError, DataLocalError)
"""What the faults of the proxy may come to; each leaves the promises as they are."""
OLD_MS = 2 * 3_600_000
"""Records are dated back, so that merging takes their segments at once."""
RETRY_SECONDS = 5.0
SYNC_SECONDS = 15.0
PAUSE_SECONDS = 0.03
TRANSACTIONS, ABORTS = 0.7, 0.3
"""Share of the calls that are transactions, where they are any; share of these that are aborted."""


class Writer:
    """One run of the application; ``mine`` is what this run appended, by partition and offset."""

    def __init__(self, log: tiered.Log, topic: Topic, name: str, notes: Notes, dice: Random) -> None:
        self._log, self._topic, self._name, self._notes, self._dice = log, topic, name, notes, dice
        self._kind = kind_of(topic.name)
        self._mine: dict[tuple[int, int], str] = {}
        self._aborted: set[str] = set()
        self._call = 0
        self._clock = SystemClock()

    def run(self) -> None:
        """Until it is killed. Raises FencedError once another host has taken over."""
        pause = threading.Event()
        while True:
            self._append()
            chance = self._dice.random()
            try:
                if chance < 0.03:
                    self._sync()
                elif chance < 0.05:
                    self._read_back()
            except WEATHER as error:
                self._notes.add("weather", code=error.code)
            pause.wait(self._dice.random() * PAUSE_SECONDS)

    def _append(self) -> None:
        self._call += 1
        if self._kind is Kind.TRANSACTIONAL and self._dice.random() < TRANSACTIONS:
            self._transact()
            return
        partition, count = self._dice.randrange(PARTITIONS), self._dice.choice((1, 1, 3, 20))
        names = self._names(count)
        keyed = self._kind is Kind.COMPACTED
        keys = [f"k{self._dice.randrange(KEYS)}" for _ in names] if keyed else [""] * count
        records = [self._record(name, key) for name, key in zip(names, keys, strict=True)]
        done = self._topic.append_many(records, partition=partition, durability="disk")
        at = done[0].offset
        self._notes.add("disk", partition=partition, offset=at, names=names, keys=keys)
        self._mine.update({(partition, at + i): name for i, name in enumerate(names)})

    def _transact(self) -> None:
        """Some records into both partitions, committed or aborted."""
        name, names = f"{self._name}.{self._call}", self._names(self._dice.choice((1, 2, 5, 12)))
        self._notes.add("begun", transaction=name, names=names)
        txn, places = self._topic.transaction(f"chaos-{self._topic.name}"), []
        for each in names:
            partition = self._dice.randrange(PARTITIONS)
            record = self._record(each, "")
            done = txn.append(record.value, partition=partition, timestamp=record.timestamp)
            places.append((partition, done.offset))
        if self._dice.random() < ABORTS:
            txn.abort()
            self._notes.add("aborted", transaction=name)
            self._aborted.update(names)
            return
        txn.commit()
        self._notes.add("committed", transaction=name, places=places)
        self._mine.update(zip(places, names, strict=True))

    def _names(self, count: int) -> list[str]:
        return [f"{self._name}.{self._call}.{i}" for i in range(count)]

    def _record(self, name: str, key: str) -> NewRecord:
        value = name.encode().ljust(self._dice.randrange(40, 400), b"~")
        return NewRecord(value, key.encode() or None, timestamp=self._clock.now_ms() - OLD_MS)

    def _sync(self) -> None:
        ends = {p: self._topic.positions(p).end_offset for p in range(PARTITIONS)}
        self._log.sync(timeout=SYNC_SECONDS)
        for partition, end in ends.items():
            self._notes.add("bucket", partition=partition, end=end)

    def _read_back(self) -> None:
        """Over both tiers: offsets without a gap, and at each the record that was acknowledged there.

        A host that another one has displaced and that nobody has told yet sees the records of that one in the bucket.
        """
        partition = self._dice.randrange(PARTITIONS)
        start = max(0, self._topic.positions(partition).end_offset - self._dice.randrange(1, 2000))
        expected, found = start, set[int]()
        for record in self._topic.read(partition, start=start, isolation=self._kind.isolation):
            name = name_of(record.value)
            if generation_of(name) > generation_of(self._name):
                return
            gap = record.offset != expected if self._kind is Kind.PLAIN else record.offset < expected
            other = self._mine.get((partition, record.offset), name) != name
            if gap or other or name in self._aborted:
                raise AssertionError(
                    f"{self._name} read {name} at {partition}:{record.offset}, expected offset {expected} "
                    f"with {self._mine.get((partition, record.offset), 'anything')}"
                )
            expected = record.offset + 1
            found.add(record.offset)
        mine = {offset for p, offset in self._mine if p == partition and offset >= start}
        if self._kind is not Kind.COMPACTED and not mine <= found:
            raise AssertionError(f"{self._name} read no {sorted(mine - found)[:5]} of partition {partition}")


def main() -> int:
    """The exit status: of the error that ended it."""
    parser = argparse.ArgumentParser()
    for name in ("log_dir", "remote", "endpoint", "topic", "name", "notes", "seed"):
        parser.add_argument(name)
    parser.add_argument("--component", action="store_true")
    given = parser.parse_args()
    notes = Notes(Path(given.notes))
    try:
        with tiered.open(
            given.log_dir,
            remote=given.remote,
            endpoint_url=given.endpoint,
            uploader=Uploader() if given.component else None,
            deadline_seconds=RETRY_SECONDS,
        ) as log:
            topic = log.topic(given.topic, partitions=PARTITIONS, create=True, config=config_of(given.topic))
            notes.add("opened", ends=[topic.positions(p).end_offset for p in range(PARTITIONS)])
            Writer(log, topic, given.name, notes, Random(given.seed)).run()
    except TieredError as error:
        notes.add("ended", code=error.code, message=error.message)
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
