"""The scenarios: what a log does while one request fails, and what must be true when the store is well again."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.sim.tiers.daemon import SIZES, Told
from tests.sim.tiers.truth import values_of
from tests.sim.tiers.virtual import SimClock, VirtualLoop, without_threads
from tests.support.admin import check, restore
from tests.sweeps.requests.faults import FAULTS, AioFailingStore, FailingStore
from tiered.check.check import CheckOptions
from tiered.check.findings import Severity
from tiered.config import LogConfig, TopicConfig
from tiered.engine.bucket import Bucket
from tiered.engine.disk import LogDirectory
from tiered.engine.drain import DrainMode, DrainRequested
from tiered.engine.journal import Journal
from tiered.engine.partition import EngineLimits
from tiered.engine.runner import DirectoryRun
from tiered.engine.tiering import Tiering
from tiered.errors import TieredError
from tiered.format.keys import parse_segment_key, root_key, segment_name, topic_key
from tiered.format.root import Root, decode_root
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.log import Log
from tiered.model import TopicPartition
from tiered.read.bucket import BucketReads
from tiered.read.stream import ReadRange
from tiered.reader import Reader
from tiered.remote.catalog import Catalog
from tiered.remote.topics import decode_topic
from tiered.store.base import Get, List, ListPage, Object
from tiered.store.driver import drive
from tiered.store.layers import AioLayeredStore, LayeredStore
from tiered.store.memory import MemoryStore
from tiered.store.metrics import StoreMetrics
from tiered.store.options import StoreOptions
from tiered.store.retry import Retries
from tiered.testing.clock import SeededIds
from uploader.metrics import Metrics
from uploader.telemetry import Notify

TOPIC = "t"
CONFIG = TopicConfig(segment_bytes=300, seal_ms=-1, index_interval_bytes=100)
RETRY_SECONDS = 8.0
"""An outage of a few requests is waited out, a long one is told."""
HEALING_SYNCS = 1
"""Syncs after which everything must be in the bucket."""

Values = dict[int, bytes]


class Broken(AssertionError):
    """The log did not heal, or lied meanwhile."""


class Story:
    """One run of a scenario. ``appended``: what append has answered for; ``acked``: what a sync has."""

    def __init__(self, root: Path, partitions: int, store: FailingStore) -> None:
        self.path = root / "log"
        self.root = root
        self.partitions = partitions
        self.tps = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self.store = store
        self.clock = SimClock(lambda: None)
        self.ids = SeededIds(7)
        self.log: Log | None = None
        self.appended: dict[TopicPartition, Values] = {tp: {} for tp in self.tps}
        self.acked: dict[TopicPartition, int] = dict.fromkeys(self.tps, 0)
        self.trimmed = 0
        self.errors: list[str] = []
        self._count = 0

    def _retrying(self) -> LayeredStore:
        return LayeredStore(self.store, Retries(clock=self.clock, ids=self.ids, deadline_seconds=RETRY_SECONDS))

    # -- acts ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """The log and its topic; nothing if it is open."""
        if self.log is not None:
            return
        store = self._retrying()
        reachable = Tiering.check_reachable(store, clock=self.clock, ids=self.ids)
        config = LogConfig(remote=True, disk_reserve_bytes=0)
        local = LocalTier.open([self.path], clock=self.clock, ids=self.ids, config=config)
        log = Log(local, store, clock=self.clock, ids=self.ids, reachable=reachable)
        try:
            log.topic(TOPIC, partitions=self.partitions, create=True, config=CONFIG)
        except TieredError:
            log.close()
            raise
        self.log = log

    def append(self) -> None:
        """A few records in each partition."""
        self.open()
        assert self.log is not None
        for tp in self.tps:
            for _ in range(4):
                self._count += 1
                value = b"value %05d" % self._count
                offset = self.log.topic(TOPIC).append(value, partition=tp.partition).offset
                if offset in self.appended[tp]:
                    raise Broken(f"{tp} {offset} is given out twice")
                self.appended[tp][offset] = value

    def sync(self) -> None:
        """All of it is committed."""
        self.open()
        assert self.log is not None
        ends = {tp: positions.end_offset for tp, positions in self.log.positions().items()}
        self.log.sync(timeout=60)
        self.acked.update({tp: ends[tp] for tp in self.tps})

    def close(self) -> None:
        """The end of a process."""
        log, self.log = self.log, None
        if log is not None:
            log.close()

    def upload(self) -> None:
        """A one-shot run of the daemon, everything sealed."""
        self.close()
        if not self.path.exists():
            return
        loop = VirtualLoop(self.clock)
        try:
            loop.run(self._oneshot())
        finally:
            loop.close()

    async def _oneshot(self) -> None:
        clock, ids = self.clock, self.ids
        directory = LogDirectory(self.path, clock=clock, ids=ids)
        directory.acquire()
        journal = Journal(self.path, directory.files)
        try:
            raw = AioFailingStore(self.store)
            store = AioLayeredStore(raw, Retries(clock=clock, ids=ids, deadline_seconds=RETRY_SECONDS))
            bucket = Bucket(store, directory, journal, clock=clock, ids=ids, owner="daemon", sizes=SIZES)
            told = Told(Metrics(StoreMetrics(), list), clock, notify=Notify(""))
            runner = DirectoryRun(
                bucket, directory, clock=clock, ids=ids, limits=EngineLimits(), listener=told, lazy=True
            )
            first = DrainRequested(DrainMode.ALL, runner.now_ms() + 120_000, oneshot=True)
            ending = await runner.run(first=first)
            if ending.code == 0:
                ends = {tp: max(values, default=-1) + 1 for tp, values in self.appended.items()}
                self.acked.update(ends)
        finally:
            journal.close()
            directory.release()

    def trim(self) -> None:
        """A maintainer takes the first records away."""
        root = self._root(self.tps[0])
        if root is None:
            return
        catalog = Catalog(root.topic_id, 0, TOPIC)
        store = self._retrying()
        drive(store, catalog.claim("m", "trim"), clock=self.clock, ids=self.ids)
        self.trimmed = 2
        drive(store, catalog.trim(2), clock=self.clock, ids=self.ids)

    def read(self) -> None:
        """A fresh reader of the bucket: all that is acknowledged, or an error."""
        acked = {tp: {o: v for o, v in self.appended[tp].items() if o < self.acked[tp]} for tp in self.tps}
        fired = self.store.fired
        reader = Reader(None, BucketReads(self._retrying()), StoreOptions(), clock=self.clock, ids=self.ids)
        for tp in self.tps:
            if acked[tp]:
                stream = reader.topic(TOPIC).stream(tp.partition)
                records = list(stream.records(ReadRange()))
                if self.store.fault == "stale" and self.store.fired > fired:
                    continue  # a store that answers with an older root: nobody who sees it for the first time can know
                found = {record.offset: record.value or b"" for record in records}
                self._compare(tp, acked[tp], found, "a read")

    def restore(self) -> None:
        """A disk from the bucket alone."""
        fired = self.store.fired
        target = self.root / "restored"
        shutil.rmtree(target, ignore_errors=True)
        acked = {tp: {o: v for o, v in self.appended[tp].items() if o < self.acked[tp]} for tp in self.tps}
        restore(self._retrying(), target, clock=self.clock, ids=self.ids)
        if self.store.fault == "stale" and self.store.fired > fired:
            return
        for tp in self.tps:
            found: Values = {}
            for path in sorted((target / str(tp)).glob("*.log")):
                found.update(values_of(path.read_bytes()))
            self._compare(tp, acked[tp], found, "a restore")

    def _compare(self, tp: TopicPartition, expected: Values, found: Values, who: str) -> None:
        start = self.trimmed if tp == self.tps[0] else 0
        for offset, value in expected.items():
            if found.get(offset, value if offset < start else None) != value:
                raise Broken(f"{who} gives {found.get(offset)!r} at {tp} {offset}, {value!r} was acknowledged")
        for offset, value in found.items():
            if self.appended[tp].get(offset) != value:
                raise Broken(f"{who} gives {value!r} at {tp} {offset}, which was not appended there")

    # -- what must be true -----------------------------------------------------------------------------------------

    def attempt(self, act: Callable[[Story], None]) -> None:
        """An error of the tree is an answer; anything else is not."""
        try:
            act(self)
        except TieredError as error:
            self.errors.append(f"{act.__name__}: {type(error).__name__}: {error}")

    def heal(self, uploads: Callable[[Story], None]) -> None:
        """The store is well: the next sync works, and everything that append ever answered for is there once."""
        self.store.heal()
        for _ in range(HEALING_SYNCS):
            self._again("append", Story.append)
            self._again("sync", uploads)
        self.read()
        for tp in self.tps:
            end = max(self.appended[tp], default=-1) + 1
            if self.acked[tp] != end or sorted(self.appended[tp]) != list(range(end)):
                raise Broken(f"{tp}: {self.acked[tp]} of {end} are committed, {sorted(self.appended[tp])} were told")
        self.close()
        report = check(self.path, self.store, CheckOptions(read_data=True, orphans=True))
        bad = [str(finding) for finding in report.findings if finding.severity is not Severity.INFO]
        if bad:
            raise Broken(f"check finds {bad}")
        self._orphans("\n".join(str(finding) for finding in report.findings))
        self._again("open", Story.open)
        self.close()

    def _again(self, what: str, act: Callable[[Story], None]) -> None:
        before = dict(self.acked)
        try:
            act(self)
        except TieredError as error:
            raise Broken(f"the store is well, {what} fails: {type(error).__name__}: {error}") from error
        if act is Story.upload and before == self.acked:
            raise Broken("the store is well, the daemon commits nothing")

    def _orphans(self, findings: str) -> None:
        """Every object that no root names is named by ``check --orphans``."""
        named = set()
        for tp in self.tps:
            root = self._root(tp)
            assert root is not None
            named |= {segment_name(row).uid for row in root.rows} | {
                f"{e.id_hi:016x}{e.id_lo:016x}" for e in root.trash
            }
        page = self.store.inner.execute(List(""))
        assert isinstance(page, ListPage)
        for entry in page.entries:
            parsed = parse_segment_key(entry.key)
            if parsed is not None and parsed.name.uid not in named and entry.key not in findings:
                raise Broken(f"nobody names {entry.key}")

    def _root(self, tp: TopicPartition) -> Root | None:
        got = self.store.inner.execute(Get(topic_key(TOPIC)))
        if not isinstance(got, Object):
            return None
        key = root_key(decode_topic(got.data, key=topic_key(TOPIC)).topic_id, tp.partition)
        found = self.store.inner.execute(Get(key))
        return decode_root(found.data, key=key) if isinstance(found, Object) else None


class Scenario(NamedTuple):
    """``uploads``: how this one commits."""

    name: str
    partitions: int
    acts: tuple[Callable[[Story], None], ...]
    uploads: Callable[[Story], None] = Story.sync


SCENARIOS = (
    Scenario("inline", 1, (Story.open, Story.append, Story.sync, Story.append, Story.read, Story.sync, Story.close)),
    Scenario(
        "inline, two partitions", 2, (Story.append, Story.sync, Story.append, Story.sync, Story.close, Story.read)
    ),
    Scenario(
        "restarts", 1, (Story.append, Story.sync, Story.close, Story.open, Story.append, Story.sync, Story.restore)
    ),
    Scenario("trim", 2, (Story.append, Story.sync, Story.trim, Story.append, Story.sync, Story.read)),
    Scenario("daemon", 1, (Story.append, Story.upload, Story.append, Story.upload, Story.read), Story.upload),
    Scenario("daemon, two partitions", 2, (Story.append, Story.upload, Story.append, Story.upload), Story.upload),
)
TIMES = (1, 3, 40)
"""Requests in a row that fail."""


class Case(NamedTuple):
    """The request ``first`` of a scenario and the ``times - 1`` behind it fail."""

    scenario: str
    first: int
    fault: str
    times: int


def play(case: Case, root: Path) -> Story:
    """Runs one case; raises Broken, or whatever leaves the product that is not of its tree."""
    scenario = next(each for each in SCENARIOS if each.name == case.scenario)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    store = FailingStore(MemoryStore(), first=case.first, times=case.times, fault=case.fault)
    story = Story(root, scenario.partitions, store)
    logging.disable(logging.CRITICAL)
    try:
        with without_threads():
            for act in scenario.acts:
                story.attempt(act)
            if case.times:
                story.heal(scenario.uploads)
    except BaseException as error:
        error.add_note(f"{case}; errors on the way: {story.errors}")
        raise
    finally:
        logging.disable(logging.NOTSET)
        story.close()
    return story


def cases(root: Path) -> list[Case]:
    """Every request of every scenario, with every fault, once, a few times and for long."""
    found = []
    for scenario in SCENARIOS:
        count = play(Case(scenario.name, -1, "", 0), root).store.count
        for first in range(count):
            found += [Case(scenario.name, first, fault, times) for fault in FAULTS for times in TIMES]
    return found


def sample(all_cases: list[Case], count: int, seed: int) -> list[Case]:
    """``count`` of them, as the seed has it."""
    return random.Random(seed).sample(all_cases, min(count, len(all_cases)))
