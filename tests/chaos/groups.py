"""``python -m tests.chaos.groups [--minutes 1] [--seed N]``: workers of one group, killed and stopped at random.

Every record at least once; at most once but for a kill, and for leases that the worker's own notes show as expired;
lag 0 in the end.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import tiered
from tests.chaos.cast import MODULE, Actor, Violation
from tests.chaos.group_worker import GROUP, TIMES, TOPIC
from tests.chaos.notes import read_notes
from tests.chaos.runner import run_chaos
from tests.chaos.weather import Weather
from tests.integration.servers.commands import BUCKET, S3Server
from tests.support.proxy import FaultProxy
from tiered.clock import SystemClock
from tiered.errors import NotFoundError
from tiered.group.admin import load_group
from tiered.group.objects import Ownership
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions

WORKERS, PARTITIONS = 8, 32
LEASE_S = TIMES.lease_ms / 1000
STEP_SECONDS, PAUSE_SECONDS, WEATHER_SECONDS = (0.3, 1.5), (0.5, 12.0), (2.0, 9.0)
CALM_SECONDS = 180.0
EVENTS = {"nothing": 4, "kill": 2, "pause": 3, "stop": 1}
CLOCK = SystemClock()


@dataclass
class Run:
    """One life of a worker, from its notes. ``beats``: when each heartbeat was sent, and when its answer was there.

    ``handed``: when a poll began, when it returned, and the partition and offset of one of its records.
    """

    killed: bool
    handed: list[tuple[float, float, int, int]] = field(default_factory=list)
    beats: list[tuple[float, float]] = field(default_factory=list)
    failures: list[float] = field(default_factory=list)

    def excuses(self, begin: float, end: float) -> bool:
        """Whether what it had at ``begin`` may come again at ``end``: its lease expired, or a commit failed."""
        if self.killed or any(begin <= at <= end for at in self.failures):
            return True
        sent = [beat for beat, _ in self.beats if beat <= end]
        answered = [*[answer for _, answer in self.beats][1 : len(sent)], end]
        gaps = zip(sent, answered, strict=False)
        return any(after - before >= LEASE_S and after >= begin for before, after in gaps)

    def slept_in(self, asked: float, returned: float) -> bool:
        """Return True if the lease was valid when a poll began and expired before it returned: a pause inside."""
        beat = max((sent for sent, _ in self.beats if sent <= asked), default=returned)
        return asked - beat < LEASE_S <= returned - beat


def runs_of(notes: Path, kills: int) -> list[Run]:
    """The lives of one worker; those that did not note their end were killed."""
    found: list[Run] = []
    for each in read_notes(notes):
        if each["what"] == "begun":
            found.append(Run(killed=True))
        elif each["what"] == "handed":
            found[-1].handed += [(each["asked"], each["at"], *record) for record in each["records"]]
        elif each["what"] in ("commit failed", "error"):
            found[-1].failures.append(each["at"])
        elif each["what"] == "ended":
            found[-1].killed = False
        elif each["what"] == "log" and each["text"].startswith("group_renewed"):
            found[-1].beats.append((float(each["text"].rpartition("sent=")[2]), each["at"]))
    if sum(run.killed for run in found) > kills:
        raise Violation(f"{notes}: more runs ended without a note than were killed")
    return found


def judge(runs: list[Run], ends: dict[int, int]) -> Counter[str]:
    """Raises Violation. Returns how many records came once, and how many again."""
    by_record: dict[tuple[int, int], list[tuple[float, float, Run]]] = defaultdict(list)
    for run in runs:
        for asked, at, partition, offset in run.handed:
            by_record[partition, offset].append((at, asked, run))
    counts: Counter[str] = Counter()
    for partition, end in ends.items():
        for offset in range(end):
            handed = sorted(by_record.pop((partition, offset), []), key=lambda each: each[0])
            if not handed:
                raise Violation(f"{TOPIC}-{partition}: {offset} was handed out to nobody")
            counts["once" if len(handed) == 1 else "again"] += 1
            for (before, _, first), (after, asked, second) in pairwise(handed):
                if not (first.excuses(before, after) or second.slept_in(asked, after)):
                    what = f"{TOPIC}-{partition}: {offset}"
                    raise Violation(f"{what} was handed out at {before} and {after}, without a reason")
    if by_record:
        raise Violation(f"records that were never written: {sorted(by_record)[:3]}")
    return counts


class Story:
    """One run against ``server``."""

    def __init__(self, folder: Path, server: S3Server, seed: int) -> None:
        self._folder, self._server = folder, server
        self._dice = Random(f"{seed}.events")
        self._weather = Weather(Random(f"{seed}.weather"))
        self._remote = f"s3://{BUCKET}/groups-{seed}"
        self._rest = threading.Event()
        self.events: Counter[str] = Counter()
        self.written = 0

    def run(self, seconds: float) -> Counter[str]:
        """Chaos, calm, judgement."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (
            FaultProxy(self._server.url, choose=self._weather.choose) as proxy,
            tiered.open(self._folder / "log", f"{self._remote}?endpoint={self._server.url}") as log,
        ):
            topic = log.topic(TOPIC, create=True, partitions=PARTITIONS, config={"segment.bytes": 4096})
            log.sync(timeout=60)
            place = f"{self._remote}?endpoint={proxy.url}"
            workers = [self._worker(f"worker-{number}", place) for number in range(WORKERS)]
            try:
                for worker in workers:
                    worker.start()
                self._rage(workers, log, topic, seconds)
                self._calm(workers)
                ends = {number: topic.positions(number).uploaded_offset for number in range(PARTITIONS)}
                self._wait(ends)
                for worker in workers:
                    worker.stop({0})
            finally:
                for worker in workers:
                    worker.resume()
                    worker.kill()
        for worker in workers:
            worker.check_talk()
        notes = [(self._folder / f"{worker.name}.notes", worker.runs) for worker in workers]
        return judge([run for path, kills in notes for run in runs_of(path, kills)], ends)

    def _worker(self, name: str, place: str) -> Actor:
        words = [*MODULE, "tests.chaos.group_worker", place, str(self._folder / f"{name}.notes")]
        return Actor(name, lambda _: words, self._folder, frozenset({0}))

    def _rage(self, workers: list[Actor], log: tiered.Log, topic: tiered.Topic, seconds: float) -> None:
        begun = weather_s = CLOCK.monotonic()
        wakes: dict[str, float] = {}
        while (now := CLOCK.monotonic()) - begun < seconds:
            if now >= weather_s:
                print(f"          weather: {self._weather.change()}", flush=True)
                weather_s = now + self._dice.uniform(*WEATHER_SECONDS)
            for partition in range(PARTITIONS):
                topic.append_many([b"%d" % number for number in range(self._dice.randrange(4))], partition=partition)
            log.sync(timeout=60)
            for worker in workers:
                if worker.paused and now >= wakes[worker.name]:
                    worker.resume()
                worker.tend()
            victim = self._dice.choice(workers)
            event = self._dice.choices(list(EVENTS), list(EVENTS.values()))[0]
            if event == "kill":
                victim.kill()
                victim.start()
            elif event == "pause" and not victim.paused:
                victim.pause()
                wakes[victim.name] = now + self._dice.uniform(*PAUSE_SECONDS)
            elif event == "stop" and not victim.paused and victim.process is not None:
                victim.process.terminate()
            self.events[event] += 1
            print(f"{now - begun:6.1f} s  {event}: {victim.name}", flush=True)
            self._rest.wait(self._dice.uniform(*STEP_SECONDS))

    def _calm(self, workers: list[Actor]) -> None:
        self._weather.clear()
        for worker in workers:
            worker.resume()
            worker.tend()

    def _wait(self, ends: dict[int, int]) -> None:
        """Until the lag is 0."""
        store = StoreLocation.parse(f"{self._remote}?endpoint={self._server.url}").open(StoreOptions(create=False))
        begun, left = CLOCK.monotonic(), -1
        while CLOCK.monotonic() - begun < CALM_SECONDS:
            try:
                group = drive(store, load_group(GROUP))
                found = {
                    each.partition: each.found.position.offset
                    for each in group.partitions
                    if isinstance(each.found, Ownership)
                }
                left = sum(end - found.get(partition, 0) for partition, end in ends.items())
            except NotFoundError:
                left = sum(ends.values())
            if not left:
                return
            self._rest.wait(1.0)
        raise Violation(f"the lag is {left} after {CALM_SECONDS:.0f} s of calm")


def play(folder: Path, server: S3Server, seed: int, seconds: float) -> list[str]:
    story = Story(folder, server, seed)
    counts = story.run(seconds)
    return [f"{dict(story.events)}; {counts['once']} records once, {counts['again']} again; lag 0"]


if __name__ == "__main__":
    sys.exit(run_chaos("python -m tests.chaos.groups", play))
