"""One run: the processes at work while things happen to them, then the calm, then the judgement."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import tiered
from tests.chaos import ledger
from tests.chaos.cast import FENCED, LOCKED, MODULE, WAIT_SECONDS, WEATHERED, Actor, Host, Violation, maintainer, reader
from tests.chaos.topics import HOSTS, PARTITIONS, Held, kind_of, name_of
from tests.chaos.topics import Kind as TopicKind
from tests.chaos.weather import Weather
from tests.integration.uploader.daemons import ROOT, environment
from tests.support.proxy import FaultProxy
from tiered.clock import SystemClock
from tiered.plan.maintenance import MaintenanceKind

STEP_SECONDS = (0.1, 1.2)
PAUSE_SECONDS = (0.2, 6.0)
WEATHER_SECONDS = (2.0, 9.0)
EVENTS = {"nothing": 4, "kill": 4, "pause": 5, "take over": 1}
FIRST_TAKEOVER_SECONDS = 8.0
OPEN_SECONDS = 150.0
"""A component looks again after a minute at what was refused."""
CALM_RUNS = 3
DRAINED = {0, 75, LOCKED, -signal.SIGTERM}
"""How a daemon may end: all is sent; a partition waits for somebody since a refusal; it had hardly begun."""


@dataclass
class Report:
    """Figures of one run."""

    seed: int
    store: str
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    forecasts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    records: int = 0
    promises: int = 0
    seen: int = 0
    rows: int = 0
    maintained: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """For people."""
        table = {
            "run": f"{self.store}, seed {self.seed}, {self.seconds:.0f} s of chaos",
            "events": _counts(self.events),
            "weather": _counts(self.forecasts),
            "faults": f"{sum(self.faults.values())} of {self.requests} requests: {_counts(self.faults)}",
            "ends": _counts(self.ends),
            "maintained": _counts(self.maintained),
            "kept": f"{self.promises} promises, {self.records} records once each, in {self.rows} rows",
            "seen": f"{self.seen} records by readers, the same ones",
        }
        return [f"{name:<11}{text}" for name, text in table.items()]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items())) or "none"


class Story:
    """``run`` once. ``say`` is told what happens; raises Violation when a promise is broken."""

    def __init__(
        self, folder: Path, endpoint: str, remote: str, *, store: str, seed: int, say: Callable[[str], None] = print
    ) -> None:
        self.folder, self.endpoint, self.remote, self.seed = folder, endpoint, remote, seed
        self.report = Report(seed, store)
        self._say = say
        self._dice = Random(f"{seed}.events")
        self._clock = SystemClock()
        self._rest = threading.Event()
        self._weather = Weather(Random(f"{seed}.weather"))
        self._hosts: dict[str, Host] = {}
        self._displaced: list[Host] = []
        self._others: list[Actor] = []
        self._wakes: dict[str, float] = {}
        self._weather_until = math.inf

    def run(self, seconds: float) -> Report:
        """The whole of it: beginning, ``seconds`` of chaos, calm, judgement."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FaultProxy(self.endpoint, choose=self._weather.choose) as proxy:
            try:
                self._begin(proxy.url)
                self._rage(proxy.url, seconds)
                self._calm()
                self.report.requests = len(proxy.seen)
            finally:
                for actor in self._actors():
                    actor.resume()
                    actor.kill()
        self._judge()
        return self.report

    def _actors(self) -> list[Actor]:
        hosts = [*self._hosts.values(), *self._displaced]
        return [actor for host in hosts for actor in host.actors] + self._others

    # ------------------------------------------------------------------ chaos

    def _begin(self, url: str) -> None:
        for topic, how in HOSTS.items():
            host = self._hosts[topic] = Host.make(self.folder, self.remote, url, topic, how, 1, self.seed)
            host.writer.start()
        for host in self._hosts.values():
            self._wait_open(host)
        self._others = [maintainer(name, self.folder, self.remote, url) for name in ("maintainer-1", "maintainer-2")]
        self._others += [reader(n, self.folder, self.remote, url, self.seed) for n in ("reader-1", "reader-2")]
        for actor in self._others:
            actor.start()

    def _wait_open(self, host: Host) -> None:
        begun = self._clock.monotonic()
        while not host.is_open:
            self._go_on()
            if self._clock.monotonic() - begun > OPEN_SECONDS:
                raise Violation(f"{host.writer.name} has not opened its log within {OPEN_SECONDS:.0f} s of calm")
            self._rest.wait(0.05)
        host.tend()

    def _rage(self, url: str, seconds: float) -> None:
        begun = self._weather_until = self._clock.monotonic()
        while (now := self._clock.monotonic()) - begun < seconds:
            self._go_on()
            event = self._dice.choices(list(EVENTS), list(EVENTS.values()))[0]
            self._happen(event, url, now - begun, now)
            self._rest.wait(self._dice.uniform(*STEP_SECONDS))
        self.report.seconds = self._clock.monotonic() - begun

    def _go_on(self) -> None:
        """What time brings: other weather, the end of a sleep, the next run of what has ended."""
        now = self._clock.monotonic()
        if now >= self._weather_until:
            self._say(f"          weather: {self._weather.change()}")
            self._weather_until = now + self._dice.uniform(*WEATHER_SECONDS)
        for host in self._hosts.values():
            host.tend()
        for actor in self._actors():
            if actor.paused and now >= self._wakes[actor.name]:
                actor.resume()
            if self._is_displaced_writer(actor) and actor.process is not None and actor.process.poll() == FENCED:
                actor.judge(FENCED, {FENCED})
            if not (self._is_displaced_writer(actor) and actor.ends[FENCED]):
                actor.tend()

    def _is_displaced_writer(self, actor: Actor) -> bool:
        return any(actor is host.writer for host in self._displaced)

    def _happen(self, event: str, url: str, at: float, now: float) -> None:
        victim = self._dice.choice([actor for actor in self._actors() if actor.is_alive])
        if event == "kill":
            victim.kill()
            victim.start()
        elif event == "pause":
            victim.pause()
            self._wakes[victim.name] = now + self._dice.uniform(*PAUSE_SECONDS)
        elif event == "take over":
            host = self._hosts[self._dice.choice(sorted(HOSTS))]
            if at < FIRST_TAKEOVER_SECONDS or not host.is_open:
                return
            victim = self._take_over(host, url).writer
        if event != "nothing":
            self.report.events[event] += 1
            self._say(f"{at:6.1f} s  {event}: {victim.name}")

    def _take_over(self, old: Host, url: str) -> Host:
        """A fresh directory on another machine, while the old host sleeps; it wakes some time later."""
        for actor in old.actors:
            actor.pause()
            self._wakes[actor.name] = self._clock.monotonic() + self._dice.uniform(*PAUSE_SECONDS)
        new = Host.make(self.folder, self.remote, url, old.topic, old.how, old.generation + 1, self.seed)
        self._displaced.append(old)
        self._hosts[old.topic] = new
        new.writer.start()
        return new

    # ------------------------------------------------------------------ the end

    def _calm(self) -> None:
        """The faults stop: every displaced writer is told so, everybody else ends well, all is in the bucket."""
        self._weather.clear()
        self._weather_until = math.inf
        for actor in self._actors():
            actor.resume()
        for host in self._hosts.values():
            self._wait_open(host)
        for host in self._displaced:
            self._must_be_fenced(host.writer)
            if host.daemon is not None:
                host.daemon.stop(DRAINED)
        for host in self._hosts.values():
            host.writer.kill()
            if host.daemon is not None:
                host.daemon.stop(DRAINED)
            self._program("uploader", "sync", "--wait", "--timeout", "100s", *self._place(host.directory))
        for actor in self._others:
            actor.stop({0, -signal.SIGTERM})
        self._tiered("maintain", "--yes")
        self.report.forecasts, self.report.faults = self._weather.forecasts, self._weather.met

    def _must_be_fenced(self, writer: Actor) -> None:
        """One that a fault has just ended is asked again."""
        for _ in range(CALM_RUNS):
            if writer.ends[FENCED]:
                return
            writer.finish({FENCED, *WEATHERED})
        raise Violation(f"{writer.name} was displaced, and nobody told it in {CALM_RUNS} runs")

    def _judge(self) -> None:
        for actor in self._actors():
            actor.check_talk()
            self.report.ends.update({f"with {status}": count for status, count in actor.ends.items()})
        self._count_maintained()
        content = self._read()
        self.report.records = ledger.check_once(content)
        for host in self._hosts.values():
            self.report.promises += ledger.check_host(host, content, displaced=False)
        for host in self._displaced:
            self.report.promises += ledger.check_host(host, content, displaced=True)
        self.report.seen = ledger.check_seen(self.folder.glob("reader-*.notes"), content)
        self._check("--read-data")
        for host in self._hosts.values():
            self._check(log_dir=host.directory)
        self._restore(content)

    def _count_maintained(self) -> None:
        """What the maintainers said that they did: ``TOPIC-P KIND ...``, a line an action."""
        for log in self.folder.glob("maintainer-*.log"):
            words = [line.split() for line in log.read_text(errors="replace").splitlines()]
            self.report.maintained.update(
                line[1] for line in words if len(line) > 1 and line[1] in set(MaintenanceKind)
            )

    def _read(self, log_dir: Path | None = None) -> ledger.Content:
        """Everything in the bucket, or on a disk. Offsets of a plain topic follow each other, or it is a Violation."""
        content: dict[tuple[str, int], dict[int, Held]] = {}
        where = {"remote": self.remote, "endpoint_url": self.endpoint} if log_dir is None else {"log_dir": log_dir}
        with tiered.open_reader(**where) as everything:
            for topic in HOSTS:
                kind = kind_of(topic)
                for partition in range(PARTITIONS):
                    content[topic, partition] = found = {
                        record.offset: Held(name_of(record.value), (record.key or b"").decode())
                        for record in everything.topic(topic).read(partition, isolation=kind.isolation)
                    }
                    if kind is TopicKind.PLAIN and list(found) != list(range(len(found))):
                        raise Violation(f"{topic}-{partition} has a gap")
        return content

    def _check(self, *options: str, log_dir: Path | None = None) -> None:
        where = ["--log-dir", str(log_dir)] if log_dir else []
        text = self._tiered("--json", *where, "check", *options)
        for line in text.splitlines():
            finding = json.loads(line)
            if finding.get("severity") in ("warning", "error"):
                raise Violation(f"check: {line}")
            self.report.rows += int(finding.get("remote_segments", 0)) if not where else 0

    def _restore(self, content: ledger.Content) -> None:
        """A fresh directory from the bucket alone holds the same records."""
        target = self.folder / "restored"
        self._tiered("restore", "--log-dir", str(target))
        restored = self._read(target)
        for (topic, partition), records in content.items():
            if restored[topic, partition] != records:
                found = len(restored[topic, partition])
                raise Violation(f"{topic}-{partition}: {found} records were restored of {len(records)}, or others")

    def _place(self, directory: Path) -> Sequence[str]:
        return ["--log-dir", str(directory), "--remote", f"{self.remote}?endpoint={self.endpoint}"]

    def _tiered(self, *arguments: str) -> str:
        return self._program("tiered", "--remote", f"{self.remote}?endpoint={self.endpoint}", *arguments)

    def _program(self, *arguments: str) -> str:
        """Standard output of a program that must end well."""
        done = subprocess.run(
            [*MODULE, *arguments],
            env=environment(),
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=2 * WAIT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise Violation(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout
