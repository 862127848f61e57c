"""Each request of a sync, and requests of each remedy of ``tiered repair``, fail or are answered with damaged bytes.

What was acknowledged is there once the store is well, and a remedy that failed works when it is run again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.damage.bucket.damages import DAMAGES, Lost
from tests.damage.bucket.place import HIT, Place
from tests.damage.bucket.repairs import everything, findings, left, objects
from tests.sim.tiers.virtual import SimClock, without_threads
from tests.support.admin import check, restore
from tiered.check.check import CheckOptions
from tiered.check.findings import Severity
from tiered.config import LogConfig, TopicConfig
from tiered.engine.tiering import Tiering
from tiered.errors import ConfigError, NotFoundError, TieredError
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.log import Log
from tiered.read.bucket import BucketReads
from tiered.read.stream import ReadRange
from tiered.reader import Reader
from tiered.repair.engine import plan_repair_steps, repair_steps
from tiered.repair.plan import RepairOptions
from tiered.store.driver import Runner
from tiered.store.layers import LayeredStore
from tiered.store.memory import MemoryStore
from tiered.store.options import StoreOptions
from tiered.store.retry import Retries
from tiered.testing.clock import SeededIds
from tiered.testing.faults import Fault, FaultKind, FaultStore

FAULTS = [
    (FaultKind.ERROR, "*"),
    (FaultKind.UNKNOWN_BEFORE, "*"),
    (FaultKind.UNKNOWN_AFTER, "*"),
    (FaultKind.CONFLICT, "*"),
    (FaultKind.PERMISSION, "*"),
    (FaultKind.TRUNCATED, "get"),
    (FaultKind.FLIPPED, "get"),
]
CONFIG = TopicConfig(segment_bytes=300, seal_ms=-1, index_interval_bytes=100)


class StoreThatStays(FaultStore):
    """A log or a repair that ends closes its store; here the next one uses it, too."""

    def close(self) -> None:
        """Nothing is released."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No threads, and none of the warnings that hundreds of failed requests log."""
    logging.disable(logging.CRITICAL)
    with without_threads():
        yield
    logging.disable(logging.NOTSET)


# -- syncs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize(("kind", "operation"), FAULTS)
def test_a_sync_heals_whichever_of_its_requests_fails(
    kind: FaultKind, operation: str, times: int, tmp_path: Path
) -> None:
    played = 0
    while sync_with(Fault(kind, operation, nth=played + 1, times=times), tmp_path / f"{played}"):
        played += 1
    assert played >= (1 if operation == "get" else 5)


def sync_with(fault: Fault, home: Path) -> bool:
    """Sync twice, the second time with ``fault``, and again without. Return True if the fault was met."""
    inner, clock, ids = MemoryStore(), SimClock(lambda: None), SeededIds(7)
    faulty = StoreThatStays(inner)
    store = LayeredStore(faulty, Retries(clock=clock, ids=ids, deadline_seconds=8.0))
    reachable = Tiering.check_reachable(store, clock=clock, ids=ids)
    local = LocalTier.open([home], clock=clock, ids=ids, config=LogConfig(remote=True, disk_reserve_bytes=0))

    def read() -> list[bytes | None]:
        reader = Reader(None, BucketReads(store), StoreOptions(), clock=clock, ids=ids)
        return [record.value for record in reader.topic("t").stream(0).records(ReadRange())]

    with contextlib.closing(Log(local, store, clock=clock, ids=ids, reachable=reachable)) as log:
        topic, values = log.topic("t", partitions=1, create=True, config=CONFIG), list[bytes | None]()

        def append() -> None:
            for _ in range(4):
                values.append(b"value %05d" % len(values))
                topic.append(values[-1])

        append()
        log.sync(timeout=60)
        append()
        faulty.add(fault)
        with contextlib.suppress(TieredError):
            log.sync(timeout=60)
            faulty.clear()
            assert read() == values  # as it was acknowledged
        faulty.clear()
        append()
        log.sync(timeout=60)
        assert read() == values
    report = check(home, inner, CheckOptions(read_data=True))
    assert [str(each) for each in report.findings if each.severity is not Severity.INFO] == []
    return bool(faulty.fired)


# -- repairs -----------------------------------------------------------------------------------------------------------

HELD_LOG, ABSENT_LOG, LOSS, ENTRY, ROOT = "log", "absent log", "loss", "entry", "root"
DAMAGED = {
    HELD_LOG: ".log truncated in a batch",
    ABSENT_LOG: ".log gone",
    "index": ".idx gone",
    LOSS: ".log truncated in a batch",
    ENTRY: "topic entry gone",
    ROOT: "root gone",
}
"""What each remedy mends here."""
HELD = "held"
"""A log directory that still has all segments."""


class RepairCase(NamedTuple):
    """The request ``first`` of planning and carrying out, from 1, and the ``times - 1`` after it fail."""

    remedy: str
    first: int = 1
    kind: FaultKind = FaultKind.ERROR
    operation: str = "*"
    times: int = 0


class _FailingPlace(Place):
    """Its store fails."""

    def __init__(self, root: Path, case: RepairCase) -> None:
        super().__init__(root)
        faults = [Fault(case.kind, case.operation, nth=case.first, times=case.times)] if case.times else []
        self.failing = StoreThatStays(self.inner, faults)

    def store(self) -> LayeredStore:
        return LayeredStore(self.failing, Retries(clock=self.clock, ids=self.ids, deadline_seconds=2))


def play_repair(case: RepairCase, root: Path) -> int:
    """Run one case, then the repair again on a store that is well. Return how many requests the first run made."""
    shutil.rmtree(root, ignore_errors=True)
    place = _FailingPlace(root, case)
    damage = next(each for each in DAMAGES if each.name == DAMAGED[case.remedy])
    gone = damage.lost if case.remedy == LOSS else {}
    if case.remedy in (HELD_LOG, ABSENT_LOG):
        restore(place.inner, root / HELD, clock=place.clock, ids=place.ids)
    damage.hurt(place)
    before = objects(place)
    with contextlib.suppress(TieredError):
        _carry_out(place, case.remedy, gone)
    requests = len(place.failing.calls)
    place.failing.clear()
    if case.times:
        try:
            _carry_out(place, case.remedy, gone)
        except (ConfigError, NotFoundError):
            assert findings(place) == [], case  # nothing to repair: it was mended already
        assert findings(place) == [], case
        assert everything(place) == left(gone), case
        after = objects(place)
        for key, data in before.items():
            assert after.get(key) == data or data in after.values() or key.endswith("/root"), (case, key)
    return requests


def _carry_out(place: Place, remedy: str, gone: Lost) -> None:
    """Plan, read the plan as a person does who knows what is lost, and carry it out if it gives up no more."""
    store = place.store()
    runner = Runner(store, place.clock, place.ids)
    options = RepairOptions(
        from_dir=place.root / HELD if remedy in (HELD_LOG, ABSENT_LOG) else None, accept_loss=remedy == LOSS
    )
    planned = runner.run(plan_repair_steps([HIT if remedy != ENTRY else HIT.topic], options, store.url))
    lost = [each for action in planned.actions for each in action.lost]
    if planned.left or lost not in ([], list(gone.values())):
        raise ConfigError(f"the plan is {planned.actions}")
    if any("gap" in note for action in planned.actions for note in action.notes):
        raise ConfigError(f"the plan leaves uploads out: {planned.actions}")
    runner.run(repair_steps(planned))


@pytest.mark.parametrize("remedy", DAMAGED)
def test_a_repair_heals_whichever_of_its_requests_fail(remedy: str, tmp_path: Path) -> None:
    requests = play_repair(RepairCase(remedy), tmp_path / "case")
    every = [
        RepairCase(remedy, first, kind, operation, times)
        for first, (kind, operation), times in itertools.product(range(1, requests + 1), FAULTS, (1, 3, 40))
    ]
    for case in random.sample(every, 8):
        play_repair(case, tmp_path / "case")


@pytest.mark.parametrize("kind", [FaultKind.TRUNCATED, FaultKind.FLIPPED])
def test_an_index_that_one_answer_calls_damaged_is_not_lost(kind: FaultKind, tmp_path: Path) -> None:
    """A log that ends before the upload of that index would have lost its newest records."""
    for first in range(4, 12):
        play_repair(RepairCase(ROOT, first, kind, "get", 1), tmp_path / "case")
