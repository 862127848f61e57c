"""Machines, applications, daemons, readers and one bucket that fails now and then. Everything follows from the seed.

A step is one act of one actor. Below every request to the bucket, and in every sleep, others act too: daemons go on
where they were, applications and readers do a whole act. A process dies at any effect on its disk or request to its
bucket; a machine loses power, its disk, or gets an older one back; wall clocks jump by days; a root is lost or an older
one is put in its place. What is true is kept beside: see ``truth``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

from tests.sim.bucket.ledger import Ledger, Log
from tests.sim.bucket.lives import (
    delete_topics,
    drop_doubtful,
    maintain,
    read_as_of,
    read_kept,
    read_on,
    read_pinned,
    take_snapshots,
)
from tests.sim.bucket.process import Life, SteppedProcess
from tests.sim.bucket.store import WatchedStore, Weather
from tests.sim.bucket.world import LATEST_S, PAGED, REST_ROUNDS, catalogs_of
from tests.sim.tiers.application import CONFIG, Application
from tests.sim.tiers.daemon import Daemon
from tests.sim.tiers.machine import Killed, Machine, Process
from tests.sim.tiers.reader import LongReader
from tests.sim.tiers.truth import PARTITIONS, TOPIC, TPS, Truth, Violated
from tests.sim.tiers.virtual import SimClock, StoreClock, without_threads
from tests.support.admin import check
from tiered.check.check import CheckOptions
from tiered.check.findings import Severity
from tiered.config import DAY_MS, TopicConfig
from tiered.errors import ConfigError, FencedError, TieredError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import UploadCheckpoint
from tiered.model import TopicPartition
from tiered.plan.commit import SHAPE
from tiered.remote.root_view import RootView
from tiered.remote.topics import STATE_OPEN
from tiered.store.driver import drive
from tiered.testing.clock import SeededIds

DAY_S = 86_400
FAULT_RATE = 0.08
"""Share of requests that meet a fault."""
DEPTH = 2
"""Actors that act below the request of another one below the request of a third."""

STRANGER = UUID(int=0)
"""The id of a topic that is not registered."""

Act = Callable[[], None]


def settings(rng: random.Random) -> TopicConfig:
    """Of the topic: as it is with nobody who maintains it, or with much to do for who does."""
    policy = rng.choice(("delete", "delete", "compact", "compact,delete"))
    return dataclasses.replace(
        CONFIG,
        cleanup_policy=policy,
        retention_ms=4 * DAY_MS if "delete" in policy and rng.random() < 0.4 else -1,
        retention_bytes=2_000 if "delete" in policy and rng.random() < 0.4 else -1,
        merge_min_bytes=1_000,
        merge_target_bytes=2_000,
        gc_grace_ms=rng.choice((600_000, 3_600_000, DAY_MS)),
        delete_retention_ms=rng.choice((0, 3_600_000)),
        min_cleanable_dirty_ratio=0.01,
    )


class World:
    """Two machines at a time. ``damage``: roots are lost and put back. ``begun``: records are committed already.
    ``deletes``: the topic is deleted and made again.

    ``upkeep``: how often maintainers, and who takes snapshots or reads the bucket, get a turn, as a weight beside 8 for
    applications.
    ``older_disks``, ``full_disks``: how often a machine gets an older copy of its disk back, or no room for what is
    written until there is room again, as weights beside 8 for applications.
    """

    def __init__(
        self,
        seed: int,
        root: Path,
        *,
        damage: bool = False,
        begun: bool = True,
        older_disks: float = 0.06,
        full_disks: float = 0.3,
        deletes: bool = False,
        faults: float = FAULT_RATE,
        upkeep: float = 3.0,
    ) -> None:
        self.rng = random.Random(seed)
        self.root = root
        self.damage = damage
        self.begun = begun
        self.older_disks = older_disks
        self.full_disks = full_disks
        self.deletes = deletes
        self.fault_rate = faults
        self.upkeep = upkeep
        self.settling = False
        self.sweeps = 0.15
        self.rewrites = seed % 4 == 2
        self.sinks, self.partitions = False, {TOPIC: PARTITIONS}
        self.clock = SimClock(self._passed)
        self.ids = SeededIds(seed)
        self._store_clock = StoreClock(self.clock)
        self._numbers = 0
        self.shape = PAGED if self.rng.random() < 0.4 else SHAPE
        self.config = settings(self.rng) if upkeep else CONFIG
        self.inner = WatchedStore(self._store_clock)
        self.bucket = Weather(self.inner, self.rng, faults)
        self.ledger = Ledger(self.inner, self._store_clock.now_ms, self.shape)
        self.ledger.living_epochs = self.ledger.idle_pins = True
        self.ledger.settings = self.config
        self.ledger.on_root = lambda log, body: self.truth_of(log.topic_id).keep(log, body)
        self._truths: dict[UUID, Truth] = {}
        self._next_id: UUID | None = None
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        self.acting: list[object] = []
        self._machines = 0
        self.places = [self._place(), self._place()]
        self.readers = [LongReader(self, f"reader {number}") for number in range(2)]
        self.maintainers = [self._resident(f"maintainer {number}", partial(maintain, self)) for number in range(2)]
        self.residents = [*self.maintainers, self._resident("keeper", partial(take_snapshots, self))]
        self.residents += [
            self._resident("reader of the bucket", partial(read_on, self)),
            self._resident("reader with a pin", partial(read_pinned, self)),
            self._resident("historian", partial(read_as_of, self)),
        ]
        self.operator = self._resident("operator", partial(delete_topics, self, name=TOPIC, config=self.config))

    def _resident(self, name: str, life: Life) -> SteppedProcess:
        seed, store_ms = self.rng.getrandbits(64), self._store_clock.now_ms
        return SteppedProcess(name, life, self.bucket, self.clock, seed, store_ms)

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> World:
        """So many acts, then all that stopped goes on without faults and is read once more."""
        logging.disable(logging.CRITICAL)
        try:
            with without_threads(), catalogs_of(self.shape):
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
        rate, self.settling = self.fault_rate, True
        self.fault_rate = self.bucket.rate = 0.0
        first = self.places[0][0]
        first.open()
        if self.begun:
            for tp in TPS:
                first.append(tp)
            first.sync()
        self.fault_rate = self.bucket.rate = rate
        self.settling = False

    def step(self) -> None:
        """One act."""
        dice = self.rng.random()
        if dice < (0.02 if abs(self.skew_s()) < 1 else 0.1):
            self._jump()
        elif dice > 0.97:
            self.bucket.deliver()
        elif dice > 0.95:
            self._pass()
        elif dice > 0.935 and self.damage:
            self._damage_a_root()
        else:
            self._somebody()
        self.look()

    def settle(self) -> None:
        """No more faults: every machine that may still write does, and everything acknowledged is read."""
        self.bucket.deliver_all()
        self.settling = True
        self.fault_rate = self.bucket.rate = 0.0
        self.clock.jump(-self.skew_s())
        for resident in self.residents:
            resident.die()
        for _, daemon in self.places:
            daemon.stop()
        self._finish_deletion()
        for application, _ in self.places:
            application.recover()
        self.look()
        for reader in self.readers:
            reader.again()
        for application, _ in self.places:
            application.read()
        self.look()
        self._collect_all()
        for application, _ in self.places:
            application.read()
        self._check()

    def _finish_deletion(self) -> None:
        """What an operator has begun ends: the name is free, and another topic has it."""
        entry = self.ledger.entries.get(TOPIC)
        if entry is None or entry.state == STATE_OPEN:
            return
        for log in self.ledger.logs.values():
            log.snapshots.clear()
            if log.root is not None:
                view = RootView(log.topic_id, log.tp.partition, log.tp.topic)
                drive(self.inner, drop_doubtful(log, view), clock=self.clock, ids=self.ids)
        for turn in range(REST_ROUNDS):
            self.clock.advance(2 * DAY_S)
            self._live(self.maintainers[turn % 2], partial(maintain, self, trims=False))
            self._live(self.operator, self.operator.life)
            if self.ledger.entries[TOPIC].state == STATE_OPEN:
                return
        raise Violated(f"the deletion of {TOPIC} does not end: {self.ledger.entries[TOPIC]}")

    def _collect_all(self) -> None:
        """Snapshots are read a last time and go; then the bucket has to come down to what is named."""
        for log in self.ledger.logs.values():
            for name, (version, _) in log.snapshots.items():
                self._live(self.residents[-1], partial(read_kept, self, log=log, name=name, version=version))
            log.snapshots.clear()
            view = RootView(log.topic_id, log.tp.partition, log.tp.topic)
            if log.root is not None:
                drive(self.inner, drop_doubtful(log, view), clock=self.clock, ids=self.ids)
        self.sweeps = 1.0
        for turn in range(REST_ROUNDS):
            if self.ledger.at_rest() and turn > 1:
                break
            self.clock.advance(2 * DAY_S)
            self._live(self.maintainers[turn % 2], partial(maintain, self, trims=False))
        self.ledger.check_end()
        self.counts.update(self.ledger.counts)
        self.counts.update(self.bucket.counts)

    def _live(self, process: SteppedProcess, life: Life) -> None:
        """One life from its beginning to its end."""
        usual, process.life = process.life, life
        try:
            while process.step():
                pass
        finally:
            process.life = usual

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
        room = application.machine.room
        actors: list[tuple[float, object, Act]] = [
            (8, application, application.act),
            (2, daemon, daemon.act),
            (0.6, self.readers[0], self.readers[0].act),
            (0.6, self.readers[1], self.readers[1].act),
        ]
        shares = (0.35, 0.35, 0.1, 0.1, 0.1, 0.1)
        actors += [
            (self.upkeep * share, resident, partial(self._go_on, resident))
            for resident, share in zip(self.residents, shares, strict=True)
        ]
        if self.deletes and TOPIC in self.ledger.entries:
            actors.append((self.upkeep * 0.1, self.operator, partial(self._go_on, self.operator)))
        if not self.acting:
            actors += [
                (0.25, application, lambda: self._kill(application, daemon)),
                (0.15, application, lambda: self._cut_power(application)),
                (0.06, application, lambda: self._replace(application)),
                (2 * self.older_disks, application, application.snapshot),
                (self.older_disks, application, lambda: self._put_back(application, daemon)),
                (self.full_disks * (1 if room is None else 6), application, lambda: self._fill(application)),
            ]
        free = [each for each in actors if not any(each[1] is busy for busy in self.acting)]
        if free:
            _, actor, act = self.rng.choices(free, [each[0] for each in free])[0]
            self.act(actor, act)

    def _go_on(self, resident: SteppedProcess) -> None:
        """Some requests of a process of the bucket; now and then it dies."""
        if self.rng.random() < 0.04:
            self.note(resident, "killed")
            resident.die()
        for _ in range(self.rng.randrange(1, 16)):
            if not resident.step():
                return

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

    def _pass(self) -> None:
        """Hours or days pass in which nobody does anything."""
        seconds = self.rng.choice((1_200, 7_200, 47_000, 200_000))
        self.note("time", f"passes {seconds} s")
        if seconds > LATEST_S:
            self.bucket.deliver_all()
        self.clock.advance(seconds)

    def fuse(self) -> int:
        """How many effects a process has left."""
        return self.rng.randrange(60) if self.fault_rate and self.rng.random() < 0.04 else -1

    def _jump(self) -> None:
        for resident in self.residents:
            resident.die()  # what one has begun by a clock is held to that clock
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

    def _fill(self, application: Application) -> None:
        """The disk is full after some more bytes, or there is room again."""
        machine = application.machine
        machine.room = None if machine.room is not None else self.rng.choice((0, 60, 400, 2_500))
        self.note(machine.root.name, "room again" if machine.room is None else f"full-disk after {machine.room} bytes")

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
        self.bucket.deliver_all()
        self.look()
        how = self.rng.choice(("lost", "older"))
        if not self.truth.damage(tp, how, self.rng):
            return
        self.note("bucket", f"damage {tp} {how}")
        self._check_names(tp, how)
        for _ in range(self.rng.randrange(1, 12)):
            with self._only_who_can_know(tp, how):
                self._somebody()
        self.bucket.deliver_all()
        for resident in self.residents:
            resident.die()  # an answer from before is not judged by what is true after
        self.truth.heal(tp)
        self.note("bucket", f"healed {tp}")

    @contextlib.contextmanager
    def _only_who_can_know(self, tp: TopicPartition, how: str) -> Iterator[None]:
        """An older root is news to nobody who has seen none that is newer: those do not act meanwhile."""
        if how == "lost":
            yield
            return
        strangers: list[object] = [*self.residents, self.operator]
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
        """The invariants of every disk; those of the bucket are judged as it changes."""
        for application, _ in self.places:
            application.check_disk()

    def some_log(self) -> Log | None:
        """A partition of the topic."""
        log = self.truth.log(self.rng.choice(TPS))
        return None if log is None or (log.may_be_deleted and log.root is None) else log

    @property
    def truth(self) -> Truth:
        """Of the topic that has the name now, in whatever state."""
        entry = self.ledger.entries.get(TOPIC)
        return self.truth_of(STRANGER if entry is None else entry.topic_id)

    def truth_of(self, topic_id: UUID) -> Truth:
        """Of a topic that has or had the name."""
        if topic_id not in self._truths:
            self._truths[topic_id] = Truth(self.inner, self.ledger, topic_id)
        return self._truths[topic_id]

    def truth_on(self, machine: Machine) -> Truth:
        """Of the topic that a machine's disk holds."""
        return next((each.truth for each, _ in self.places if each.machine is machine), self.truth)

    def new_number(self) -> int:
        """One that nobody had."""
        self._numbers += 1
        return self._numbers

    def next_topic_id(self, name: str, config: TopicConfig) -> UUID:
        """Of the next topic of that name: the same until it is registered, as a log directory keeps it."""
        entry = self.ledger.entries[name]
        if self._next_id is None or self._next_id == entry.topic_id:
            self._next_id = self.ids.uuid()
            self.ledger.announce(name, self._next_id, PARTITIONS, config)
        return self._next_id

    def tolerate(self, process: SteppedProcess, error: TieredError, topic: str) -> None:
        """As :meth:`tolerated`, of who lives on the bucket alone."""
        self.note(process, f"{type(error).__name__} {error}")
        if isinstance(error, FencedError) or (isinstance(error, ConfigError) and "a snapshot" in error.message):
            return
        if isinstance(error, ConfigError) and "store's clock" in error.message:
            return
        if any(truth.deleted for truth in self._truths.values()):
            return
        self.tolerated(error)

    def tolerated(self, error: TieredError, truth: Truth | None = None) -> None:
        """What a caller may meet here; anything else says something untrue of a healthy bucket."""
        self.counts[type(error).__name__] += 1
        if isinstance(error, ConfigError) and "store's clock" in error.message and self.skew_s() > 1:
            return
        truth = truth or self.truth
        if type(error).__name__ in Truth.FALSE_ALARMS and not truth.damaged and not truth.deleted:
            raise Violated(f"{type(error).__name__} although nothing is damaged: {error}") from error
