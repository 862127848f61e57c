"""A bucket and the processes that live on it, without a machine: one step is one request of one process.

Schedules are bursty, so that a process stalls for long and goes on with what it knew then; between two requests of one
anything may happen to it, and to the others. Everything follows from the seed.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from uuid import UUID

from tests.sim.bucket.decoded import decoded_once
from tests.sim.bucket.erasures import erase_keys
from tests.sim.bucket.ledger import Ledger, Log, Violated
from tests.sim.bucket.lives import (
    Writer,
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
from tests.sim.bucket.sinks import Stream, hand_over_partitions
from tests.sim.bucket.store import WatchedStore, Weather
from tests.support.admin import check
from tiered.check.check import CheckOptions
from tiered.check.findings import Severity
from tiered.config import DAY_MS, TopicConfig
from tiered.errors import ConfigError, TieredError
from tiered.plan.commit import SHAPE, Shape, Stamp
from tiered.remote.catalog import Catalog
from tiered.remote.root_view import RootView
from tiered.remote.roots import TopicIds
from tiered.remote.sink_commit import Sink, hand_over
from tiered.remote.topics import STATE_DELETED, STATE_OPEN, register_topic
from tiered.store.base import Get, Head, StoreRequest
from tiered.store.driver import drive
from tiered.testing.clock import FakeClock, SeededIds

STEPS = 500
FAULT_RATE = 0.1
PAGED = Shape(leaf_rows=2, tail_rows=3, fan_out=2, root_leaves=3, small_leaf=2, trash_entries=6, trash_page=3)
"""Pages of two rows below inner pages of two."""
KEPT, GONE = "kept", "gone"
"""The topic that stays, and the one that is deleted and made again."""
REST_ROUNDS = 8
"""Rounds of maintenance without a fault after which nothing may be left to be done."""
LATEST_S = 300
"""No request arrives later than this after it was sent: no network keeps one for hours."""
PASSES_S = (1, 60, 1_200, 7_200, 47_000, 200_000)
LAST_DAYS = 4
"""Each so-manieth seed ends with days of compactions, in which tombstones come to their end."""
CHECKED = 5
"""The product's own ``check`` looks at the end of each so-manieth seed."""


def settings(rng: random.Random) -> TopicConfig:
    """A topic's settings: small numbers, so that everything is due in a short life."""
    policy = rng.choice(("delete", "delete", "compact", "compact", "compact,delete"))
    return TopicConfig(
        cleanup_policy=policy,
        segment_bytes=rng.choice((600, 2_000)),
        retention_ms=3 * DAY_MS if "delete" in policy and rng.random() < 0.5 else -1,
        retention_bytes=1_500 if "delete" in policy and rng.random() < 0.5 else -1,
        merge_min_bytes=rng.choice((400, 1_000)),
        merge_target_bytes=2_000,
        gc_grace_ms=rng.choice((600_000, 3_600_000, DAY_MS)),
        delete_retention_ms=rng.choice((0, 3_600_000, DAY_MS)),
        min_cleanable_dirty_ratio=rng.choice((0.01, 0.3)),
        index_interval_bytes=100,
    )


class World:
    """``paged``: catalogs with pages of a few rows. ``sinks``: Spark sinks write the topic that is deleted.

    ``erases``: somebody erases keys. All by the seed unless told. ``trace``: all requests in ``history``.
    """

    def __init__(
        self,
        seed: int,
        *,
        faults: float = FAULT_RATE,
        paged: bool | None = None,
        sinks: bool | None = None,
        erases: bool | None = None,
        trace: bool = False,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.ids = SeededIds(seed)
        self.paged = self.rng.random() < 0.5 if paged is None else paged
        self.sinks = seed % 2 == 1 if sinks is None else sinks
        self.rewrites = seed // 2 % 3 == 0
        self.partitions = {KEPT: 1, GONE: 2 if self.sinks else 1}
        self.sweeps = 0.15
        self.deletes = False
        self.trace = trace
        self.history: list[str] = []
        self.counts: Counter[str] = Counter()
        self.clock = FakeClock()
        self.inner = WatchedStore(self.clock)
        self.bucket = Weather(self.inner, self.rng, faults)
        self._numbers = 0
        self._frozen: SteppedProcess | None = None
        self._frozen_for = 0
        self._next_id: UUID | None = None
        self._faults = faults
        self.ledger = Ledger(self.inner, self.clock.now_ms, PAGED if self.paged else SHAPE)
        self.settings = {name: settings(self.rng) for name in (KEPT, GONE)}
        alone = self.rng.random() < 0.3
        self.writers = [Writer(self, KEPT, number) for number in range(1 if alone else 2)] + [Writer(self, GONE, 0)]
        self.processes = [self._process(writer.name, writer.life) for writer in self.writers]
        self.maintainers = [self._process(f"maintainer {n}", partial(maintain, self)) for n in range(2)]
        self.processes += self.maintainers
        self.operator = self._process("operator", partial(delete_topics, self, name=GONE, config=self.settings[GONE]))
        self.processes += [
            self._process("keeper", partial(take_snapshots, self)),
            self._process("keeper too", partial(take_snapshots, self)),
            self.operator,
            self._process("reader 0", partial(read_on, self)),
            self._process("reader 1", partial(read_on, self)),
            self._process("reader with a pin", partial(read_pinned, self)),
            self._process("historian", partial(read_as_of, self)),
        ]
        self._weights = [4] * len(self.writers) + [5, 5, 1.5, 1, 0.5, 1.2, 1.2, 1.2, 1]
        self.streams = [Stream(self, GONE, name) for name in ("one", "two")] if self.sinks else []
        self.eraser: SteppedProcess | None = None
        if self.sinks:
            self._add_sinks()
        if seed % 3 == 0 if erases is None else erases:
            self.eraser = self._process("eraser", partial(erase_keys, self))
            self.processes.insert(len(self.writers), self.eraser)
            self._weights.insert(len(self.writers), 4)

    def _process(self, name: str, life: Life) -> SteppedProcess:
        return SteppedProcess(name, life, self.bucket, self.clock, self.rng.getrandbits(64))

    def _add_sinks(self) -> None:
        """Drivers of two queries, of one of them another that does not know that it was given up."""
        one, two = self.streams
        lives = [("sink one", one.life), ("sink two", two.life), ("sink one again", one.life)]
        lives.append(("handover", partial(hand_over_partitions, self, topic=GONE)))
        self.drivers = [self._process(name, life) for name, life in lives]
        at = len(self.writers)
        self._weights[at - 1] = 1.5
        self.processes[at:at] = self.drivers
        self._weights[at:at] = [5, 5, 2, 0.7]

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, steps: int = STEPS) -> World:
        """So many requests, then a rest without faults in which all garbage has to go."""
        logging.disable(logging.CRITICAL)
        try:
            with catalogs_of(PAGED if self.paged else SHAPE), decoded_once():
                self._begin()
                turn = self.processes[0]
                for _ in range(steps):
                    turn = self._step(turn)
                self.rest()
        except Violated as error:
            error.add_note("\n".join(self.history[-60:]))
            raise
        finally:
            for process in self.processes:
                process.die()
            logging.disable(logging.NOTSET)
        self.counts.update(self.ledger.counts)
        self.counts.update(self.bucket.counts)
        return self

    def _begin(self) -> None:
        for name, config in self.settings.items():
            topic_id = self.ids.uuid()
            self.ledger.announce(name, topic_id, self.partitions[name], config)
            steps = register_topic(name, topic_id, self.partitions[name], config.to_text(changed_only=True))
            drive(self.inner, steps, clock=self.clock, ids=self.ids)

    def _step(self, turn: SteppedProcess) -> SteppedProcess:
        """One request of somebody, most often of who had the turn before."""
        rng = self.rng
        self._frozen_for -= 1
        if rng.random() > 0.85 or turn is self._frozen:
            (turn,) = rng.choices(self.processes, self._weights)
        if turn is self._frozen and self._frozen_for > 0:
            return turn
        dice = rng.random()
        if dice < 0.006:
            self._kill(turn)
        elif dice < 0.02:
            seconds = rng.choice(PASSES_S)
            self.note("time", f"passes {seconds} s")
            if seconds > LATEST_S:
                self.bucket.deliver_all()
            self.clock.advance(seconds)
        elif dice < 0.024:
            self._skew(turn)
        elif dice < 0.034 and self._frozen_for <= 0:
            self._freeze(turn)
        elif dice < 0.06:
            self.bucket.deliver()
        self.advance(turn)
        return turn

    def advance(self, process: SteppedProcess) -> bool:
        """One request of a process; False if its life has ended."""
        self.clock.advance(self.rng.random() * 0.4)
        process.last = None
        alive = process.step()
        if self.trace and process.last is not None:
            self.note(process, _short(process.last))
        return alive

    def _freeze(self, process: SteppedProcess) -> None:
        """It stands still in the middle of what it does, for longer than any grace; the others go on."""
        self._frozen, self._frozen_for = process, self.rng.randrange(20, 150)
        self.note(process, f"stands still for {self._frozen_for} requests")
        self.counts["frozen"] += 1
        self.bucket.deliver_all()
        self.clock.advance(100_000)

    def _kill(self, process: SteppedProcess) -> None:
        self.counts["crashes"] += 1
        self.note(process, "killed")
        process.die()
        for writer in self.writers:
            if process.name == writer.name:
                writer.crashed(self.rng)

    def _skew(self, process: SteppedProcess) -> None:
        """The clock of its machine is set: by so much wrong, or right again."""
        process.die()
        skewed = process.clock
        skewed.skew_ms = 0 if skewed.skew_ms else int(self.rng.choice((-2, -0.5, -0.01, 0.01, 0.5, 9)) * DAY_MS)
        self.counts["skewed"] += 1
        self.note(process, f"has a clock that is {skewed.skew_ms / DAY_MS} days off")

    # -- the end ---------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Faults are over, time passes, all that waited is done: then the bucket holds what is named, nothing else."""
        self.bucket.rate = 0.0
        self.bucket.deliver_all()
        self.note("world", "rests")
        for process in self.processes:
            process.die()
            process.clock.skew_ms = 0
        for process in self.processes[: len(self.writers)] * 2:
            self._whole_life(process)
        self._finish_sinks()
        if self.eraser is not None:
            self._whole_life(self.eraser)
        if self.seed % LAST_DAYS == 0:
            self._last_days()
        self._drop_doubtful()
        self._maintain(2)
        for log in self.ledger.logs.values():
            for name, (version, _) in log.snapshots.items():
                self._whole_life(self.processes[-1], partial(read_kept, self, log=log, name=name, version=version))
            log.snapshots.clear()
        self._drop_doubtful()
        self.sweeps = 1.0
        self._maintain(REST_ROUNDS)
        while self._next_id is not None and self.ledger.entries[GONE].topic_id != self._next_id:
            self._whole_life(self.operator)
        self.ledger.check_end()
        self._check_all()

    def _finish_sinks(self) -> None:
        """What was decided is committed, by whoever; then a local log has the partitions: nobody's pages are left."""
        entry = self.ledger.entries[GONE]
        if not self.sinks or entry.state != STATE_OPEN:
            return
        ids, partitions = TopicIds(GONE, entry.topic_id), range(entry.partitions)
        drive(self.inner, hand_over(ids, partitions, "spark", "operator"), clock=self.clock, ids=self.ids)
        for process in self.drivers[:3] * 2:
            self._whole_life(process)
        for decision in self.ledger.unfinished():
            sink = Sink("operator", {entry.topic_id: GONE})
            drive(self.inner, sink.commit_staged(decision), clock=self.clock, ids=self.ids)
        if left := self.ledger.unfinished():
            raise Violated(f"{len(left)} batches are decided and not committed: {left[0]}")
        drive(self.inner, hand_over(ids, partitions, "local", "operator"), clock=self.clock, ids=self.ids)

    def _last_days(self) -> None:
        """Compactions one after the other, as tombstones need them to go."""
        for process in self.processes[: len(self.writers)] * 2:
            self.clock.advance(self.rng.choice((1_800, 90_000)))
            self._whole_life(process)
            self._whole_life(self.maintainers[0], partial(maintain, self, trims=False))

    def _maintain(self, rounds: int) -> None:
        for turn in range(rounds):
            if self.ledger.at_rest() and turn > 1:
                return
            self.clock.advance(2 * 86_400)
            self._whole_life(self.maintainers[turn % 2], partial(maintain, self, trims=False))

    def _drop_doubtful(self) -> None:
        for log in self.ledger.logs.values():
            if log.root is not None:
                view = RootView(log.topic_id, log.tp.partition, log.tp.topic)
                drive(self.inner, drop_doubtful(log, view), clock=self.clock, ids=self.ids)

    def _whole_life(self, process: SteppedProcess, life: Life | None = None) -> None:
        """A life of it from beginning to end, or another one than its own."""
        usual, process.life = process.life, life or process.life
        try:
            while self.advance(process):
                pass
        finally:
            process.life = usual

    def _check_all(self) -> None:
        for process in self.processes[-4:]:
            self._whole_life(process)
        if self.seed % CHECKED == 0:
            report = check(None, self.inner, CheckOptions(read_data=True))
            bad = [str(finding) for finding in report.findings if finding.severity is Severity.ERROR]
            if bad:
                raise Violated(f"check finds {bad}")
            self.counts["checked"] += 1

    # -- for who lives here ----------------------------------------------------------------------------------------

    def new_number(self) -> int:
        """One that nobody had."""
        self._numbers += 1
        return self._numbers

    def next_topic_id(self, name: str, config: TopicConfig) -> UUID:
        """Of the next topic of that name: the same until it is registered, as a log directory keeps it."""
        entry = self.ledger.entries[name]
        if self._next_id is None or self._next_id == entry.topic_id:
            self._next_id = self.ids.uuid()
            self.ledger.announce(name, self._next_id, self.partitions[name], config)
        return self._next_id

    def some_log(self) -> Log | None:
        """A partition that is registered just now."""
        entries = [entry for entry in self.ledger.entries.values() if entry.state != STATE_DELETED]
        if not entries:
            return None
        entry = self.rng.choice(entries)
        return self.ledger.logs[entry.topic_id, self.rng.randrange(entry.partitions) if entry.partitions > 1 else 0]

    def tolerate(self, process: SteppedProcess, error: TieredError, topic: str) -> None:
        """What is no bad weather has to have a reason."""
        self.note(process, f"{type(error).__name__} {error}")
        self.counts[type(error).__name__] += 1
        if type(error).__name__ in {"FencedError"}:
            return
        if isinstance(error, ConfigError) and "store's clock" in error.message:
            return  # it is ahead, or the process stood still between an answer and its look at the clock
        if isinstance(error, ConfigError) and "a snapshot" in error.message:
            return  # its own, by an attempt whose answer was lost
        if topic in {GONE, ""} and any(log.may_be_deleted for log in self.ledger.logs.values()):
            return
        raise Violated(f"{process}: {type(error).__name__}: {error}") from error

    def note(self, actor: object, what: str) -> None:
        """One line for whoever replays it."""
        self.history.append(f"{len(self.history):5} {self.clock.monotonic():10.1f} {actor}: {what}")


@contextlib.contextmanager
def catalogs_of(shape: Shape) -> Iterator[None]:
    """Catalogs and sinks that are given no shape have this one."""
    of_catalogs, of_sinks = Catalog.__init__.__kwdefaults__, Stamp.__init__.__defaults__
    assert of_catalogs is not None
    Catalog.__init__.__kwdefaults__ = of_catalogs | {"shape": shape}
    Stamp.__init__.__defaults__ = (shape,)
    try:
        yield
    finally:
        Catalog.__init__.__kwdefaults__, Stamp.__init__.__defaults__ = of_catalogs, of_sinks


def _short(request: StoreRequest) -> str:
    key = getattr(request, "key", None) or getattr(request, "prefix", None) or str(getattr(request, "keys", ""))
    condition = "" if isinstance(request, Get | Head) else f" {getattr(request, 'condition', '')}"
    return f"{type(request).__name__} {key}{condition}"
