"""Machines, applications, daemons, readers and one bucket that fails now and then. Everything follows from the seed.

A step is one act of one actor. Below every request to the bucket, and in every sleep, others act too: daemons go on
where they were, applications and readers do a whole act. A process dies at any effect on its disk or request to its
bucket; a machine loses power, its disk, or gets an older one back; wall clocks jump by days; a root is lost or an older
one is put in its place. What is true is kept beside: see ``truth``.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.sim.tiers.application import Application
from tests.sim.tiers.daemon import Daemon
from tests.sim.tiers.machine import Killed, Machine, Process
from tests.sim.tiers.maintainer import Maintainer
from tests.sim.tiers.reader import LongReader
from tests.sim.tiers.truth import PARTITIONS, TOPIC, TPS, Truth, Violated
from tests.sim.tiers.virtual import SimClock, StoreClock, without_threads
from tiered.care.check import CheckOptions
from tiered.care.run import check
from tiered.errors import ConfigError, TieredError
from tiered.findings import Severity
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploads import UploadCheckpoint
from tiered.model import TopicPartition
from tiered.store.base import Get, Head, StoreRequest
from tiered.store.memory import MemoryStore
from tiered.testing.clock import SeededIds
from tiered.testing.faults import FaultKind, FaultStore

DAY_S = 86_400
FAULT_RATE = 0.08
"""Share of requests that meet a fault."""
DEPTH = 2
"""Actors that act below the request of another one below the request of a third."""

Act = Callable[[], None]


class World:
    """Two machines at a time. ``damage``: roots are lost and put back. ``begun``: records are committed already.

    ``trims``: how often a maintainer trims, as a weight like the next one. Not by default: beside a disk whose note of
    the committed end is behind the trim, a read of both tiers still answers OffsetGapError.
    ``older_disks``: how often a machine gets an older copy of its disk back, as a weight beside 8 for applications.
    """

    def __init__(
        self,
        seed: int,
        root: Path,
        *,
        damage: bool = False,
        begun: bool = True,
        older_disks: float = 0.06,
        faults: float = FAULT_RATE,
        trims: float = 0.0,
    ) -> None:
        self.rng = random.Random(seed)
        self.root = root
        self.damage = damage
        self.begun = begun
        self.older_disks = older_disks
        self.fault_rate = faults
        self.trims = trims
        self.settling = False
        self.clock = SimClock(self._passed)
        self.ids = SeededIds(seed)
        self._store_clock = StoreClock(self.clock)
        self.inner = MemoryStore(clock=self._store_clock)
        self.bucket = FaultStore(self.inner, choose=self._fault)
        self.truth = Truth(self.inner)
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        self.acting: list[object] = []
        self._machines = 0
        self.places = [self._place(), self._place()]
        self.readers = [LongReader(self, f"reader {number}") for number in range(2)]
        self.maintainer = Maintainer(self)

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> World:
        """So many acts, then all that stopped goes on without faults and is read once more."""
        logging.disable(logging.CRITICAL)
        try:
            with without_threads():
                self._begin()
                for _ in range(steps):
                    self.step()
                self.settle()
        except Violated as error:
            error.add_note("\n".join(self.history[-40:]))
            raise
        finally:
            self.end()
            logging.disable(logging.NOTSET)
        return self

    def _begin(self) -> None:
        """The topic is made once: two disks that make it at the same time have two topics, and one is refused.

        ``begun``: its partitions have a root, so that a fresh disk has somebody to take them from.
        """
        rate, self.fault_rate, self.settling = self.fault_rate, 0.0, True
        first = self.places[0][0]
        first.open()
        if self.begun:
            for tp in TPS:
                first.append(tp)
            first.sync()
        self.fault_rate, self.settling = rate, False

    def step(self) -> None:
        """One act."""
        dice = self.rng.random()
        if dice < (0.02 if abs(self.skew_s()) < 1 else 0.1):
            self._jump()
        elif dice > 0.98:
            self.bucket.apply_delayed()
        elif dice > 0.965 and self.damage:
            self._damage_a_root()
        else:
            self._somebody()
        self.look()

    def settle(self) -> None:
        """No more faults: every machine that may still write does, and everything acknowledged is read."""
        self.bucket.apply_delayed()
        self.fault_rate, self.settling = 0.0, True
        self.clock.jump(-self.skew_s())
        for application, daemon in self.places:
            daemon.stop()
            application.recover()
        self.look()
        for reader in self.readers:
            reader.again()
        for application, _ in self.places:
            application.read()
        self.look()
        self._check()

    def end(self) -> None:
        """Every thread and file is let go."""
        for application, daemon in self.places:
            application.machine.kill_all()
            application.forget()
            daemon.bury()

    def _check(self) -> None:
        """The product's own ``check`` finds no error in a bucket, nor beside a disk that goes on."""
        disks = [application.machine.path for application, _ in self.places]
        for path in (None, *disks):
            report = check(path, self.inner, CheckOptions(read_data=True))
            bad = [str(finding) for finding in report.findings if finding.severity is Severity.ERROR]
            if bad:
                raise Violated(f"check of {path.parent.name if path else 'the bucket'} finds {bad}")
        self.counts["checked"] += 1

    def _check_names(self, tp: TopicPartition, how: str) -> None:
        """``check`` names a lost root without any disk, and an older one beside a disk that has seen a newer."""
        shown = self.truth.shown_end(tp)
        disks: list[Path | None] = [None] if how == "lost" else []
        for application, _ in self.places:
            if self._has_noted(application, tp, shown):
                disks.append(application.machine.path)
        for disk in disks:
            report = check(disk, self.inner, CheckOptions())
            if not any(f.severity is Severity.ERROR and (f.topic, f.partition) == tp for f in report.findings):
                raise Violated(f"check of {disk} says nothing of {tp}, whose root is {how}: {report.findings}")
            self.counts[f"named {how}"] += 1

    def _has_noted(self, application: Application, tp: TopicPartition, offset: int) -> bool:
        """Whether the disk knows of more than ``offset`` that is committed, and will not set it aside."""
        path = application.machine.path
        if not path.exists() or tp in application.fenced | application.copied:
            return False
        noted = UploadCheckpoint(path, PosixFiles()).read().get(tp)
        return noted is not None and noted.end_offset > offset

    def note(self, actor: object, what: str) -> None:
        """One line for whoever replays it."""
        self.counts[what.split(" ", 1)[0]] += 1
        self.history.append(f"{len(self.history):5} {'  ' * len(self.acting)}{actor}: {what}")

    # -- who acts --------------------------------------------------------------------------------------------------

    def _somebody(self) -> None:
        application, daemon = self.rng.choice(self.places)
        actors: list[tuple[float, object, Act]] = [
            (8, application, application.act),
            (2, daemon, daemon.act),
            (0.6, self.readers[0], self.readers[0].act),
            (0.6, self.readers[1], self.readers[1].act),
            (self.trims, self.maintainer, self.maintainer.act),
        ]
        if not self.acting:
            actors += [
                (0.25, application, lambda: self._kill(application, daemon)),
                (0.15, application, lambda: self._cut_power(application)),
                (0.06, application, lambda: self._replace(application)),
                (2 * self.older_disks, application, application.snapshot),
                (self.older_disks, application, lambda: self._put_back(application, daemon)),
            ]
        free = [each for each in actors if not any(each[1] is busy for busy in self.acting)]
        if free:
            _, actor, act = self.rng.choices(free, [each[0] for each in free])[0]
            self.act(actor, act)

    def act(self, actor: object, act: Act) -> None:
        """An act and what becomes of it: a process may have died in it."""
        self.acting.append(actor)
        try:
            act()
        except Killed:
            self.note(actor, "killed")
        finally:
            self.acting.pop()

    def between(self, process: Process) -> None:
        """Below a request of ``process``: the daemons go on, and somebody else may act."""
        if process.dead or self.settling:
            return
        self._passed()
        if len(self.acting) <= DEPTH and self.rng.random() < 0.08:
            self._somebody()

    def _passed(self) -> None:
        if self.settling:
            return
        for _, daemon in self.places:
            if not any(busy is daemon for busy in self.acting) and daemon.running and self.rng.random() < 0.4:
                self.act(daemon, daemon.advance)

    # -- what goes wrong -------------------------------------------------------------------------------------------

    def _fault(self, request: StoreRequest) -> FaultKind | None:
        if self.rng.random() >= self.fault_rate:
            return None
        kinds = [FaultKind.ERROR, FaultKind.UNKNOWN_BEFORE, FaultKind.UNKNOWN_AFTER]
        if not isinstance(request, Get | Head):
            kinds += [FaultKind.CONFLICT, FaultKind.DELAYED, FaultKind.UNKNOWN_AFTER]
        if self.rng.random() < 0.1:
            kinds = [FaultKind.PERMISSION]
        kind = self.rng.choice(kinds)
        self.counts[kind.value] += 1
        return kind

    def fuse(self) -> int:
        """How many effects a process has left."""
        return self.rng.randrange(60) if self.fault_rate and self.rng.random() < 0.04 else -1

    def _jump(self) -> None:
        if abs(self.skew_s()) > 1:
            self.note("clock", "set right")
            self.clock.jump(-self.skew_s())
            return
        seconds = self.rng.choice((-3, -1, -0.1, 0.1, 1, 9)) * DAY_S
        self.note("clock", f"jumps {seconds / DAY_S} days")
        self.clock.jump(seconds)

    def skew_s(self) -> float:
        """How far the machines' clocks are before the store's."""
        return (self.clock.now_ms() - self._store_clock.now_ms()) / 1000

    def _kill(self, application: Application, daemon: Daemon) -> None:
        which = self.rng.choice(("application", "daemon", "both"))
        self.note(application.machine.root.name, f"kill-9 {which}")
        if which != "daemon":
            application.kill()
        if which != "application":
            daemon.kill()

    def _cut_power(self, application: Application) -> None:
        self.note(application.machine.root.name, "power cut")
        application.machine.cut_power(self.rng)
        application.lost_power()

    def _put_back(self, application: Application, daemon: Daemon) -> None:
        daemon.kill()
        application.put_back()

    def _replace(self, application: Application) -> None:
        """The machine is gone with its disk; another one begins with nothing, or from the bucket."""
        index = next(i for i, place in enumerate(self.places) if place[0] is application)
        self.note(application.machine.root.name, "disk lost")
        application.machine.kill_all()
        application.forget()
        self.places[index][1].bury()
        self.places[index] = self._place()
        fresh = self.places[index][0]
        if self.rng.random() < 0.6:
            self.act(fresh, fresh.restore)

    def _place(self) -> tuple[Application, Daemon]:
        machine = Machine(self, self.root / f"m{self._machines}")
        self._machines += 1
        return Application(self, machine), Daemon(self, machine)

    def _damage_a_root(self) -> None:
        tp = TopicPartition(TOPIC, self.rng.randrange(PARTITIONS))
        self.bucket.apply_delayed()
        self.look()
        how = self.rng.choice(("lost", "older"))
        if not self.truth.damage(tp, how, self.rng):
            return
        self.note("bucket", f"damage {tp} {how}")
        self._check_names(tp, how)
        for _ in range(self.rng.randrange(1, 12)):
            with self._only_who_can_know(tp, how):
                self._somebody()
        self.bucket.apply_delayed()
        self.truth.heal(tp)
        self.note("bucket", f"healed {tp}")

    @contextlib.contextmanager
    def _only_who_can_know(self, tp: TopicPartition, how: str) -> Iterator[None]:
        """An older root is news to nobody who has seen none that is newer: those do not act meanwhile."""
        if how == "lost":
            yield
            return
        strangers: list[object] = [self.maintainer]
        shown = self.truth.shown_end(tp)
        for place in self.places:
            if not self._has_noted(place[0], tp, shown):
                strangers += place
        strangers += [reader for reader in self.readers if not reader.is_open or not reader.has_seen(tp, shown)]
        self.acting += strangers
        try:
            yield
        finally:
            self.acting[:] = [actor for actor in self.acting if not any(actor is each for each in strangers)]

    # -- checking --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """The invariants of the bucket and of every disk."""
        self.truth.look()
        for application, _ in self.places:
            application.check_disk()

    def tolerated(self, error: TieredError) -> None:
        """What a caller may meet here; anything else says something untrue of a healthy bucket."""
        self.counts[type(error).__name__] += 1
        if isinstance(error, ConfigError) and "store's clock" in error.message and self.skew_s() > 1:
            return
        if type(error).__name__ in Truth.FALSE_ALARMS and not self.truth.damaged:
            raise Violated(f"{type(error).__name__} although nothing is damaged: {error}") from error
