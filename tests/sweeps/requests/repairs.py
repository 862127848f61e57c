"""The remedies of ``tiered repair`` while one request, or some, fail: what is healed then, and what must be kept."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.damage.bucket.damages import DAMAGES
from tests.damage.bucket.place import HIT, Place
from tests.damage.bucket.repairs import REPAIRS, Lost, everything, findings, left, objects
from tests.sim.tiers.virtual import without_threads
from tests.support.admin import restore
from tests.sweeps.requests.faults import FAULTS, FailingStore
from tests.sweeps.requests.story import TIMES, Broken
from tiered.errors import ConfigError, NotFoundError, TieredError
from tiered.repair.engine import plan_repair_steps, repair_steps
from tiered.repair.plan import RepairOptions
from tiered.store.driver import Runner
from tiered.store.layers import LayeredStore
from tiered.store.retry import Retries

HELD_LOG, ABSENT_LOG, INDEX, LOSS, ENTRY, ROOT = "log", "absent log", "index", "loss", "entry", "root"
DAMAGED = {
    HELD_LOG: ".log truncated in a batch",
    ABSENT_LOG: ".log gone",
    INDEX: ".idx gone",
    LOSS: ".log truncated in a batch",
    ENTRY: "topic entry gone",
    ROOT: "root gone",
}
"""What each remedy mends here."""


HELD = "held"
"""A log directory that still has all segments."""


class RepairCase(NamedTuple):
    """The request ``first`` of planning and carrying out, and the ``times - 1`` behind it, fail."""

    remedy: str
    first: int
    fault: str
    times: int


class _Failing(Place):
    """Its store fails."""

    def __init__(self, root: Path, case: RepairCase) -> None:
        super().__init__(root)
        self.failing = FailingStore(self.inner, first=case.first, times=case.times, fault=case.fault)

    def store(self) -> LayeredStore:
        return LayeredStore(self.failing, Retries(clock=self.clock, ids=self.ids, deadline_seconds=2))


def play_repair(case: RepairCase, root: Path) -> int:
    """Runs one case, then the repair again on a store that is well; gives how many requests the first run made.

    Raises Broken if the log is not mended then, if more than the damage is gone, or if nothing keeps what was replaced.
    """
    shutil.rmtree(root, ignore_errors=True)
    place = _Failing(root, case)
    gone = REPAIRS[DAMAGED[case.remedy]].lost if case.remedy == LOSS else {}
    if case.remedy in (HELD_LOG, ABSENT_LOG):
        restore(place.inner, root / HELD, clock=place.clock, ids=place.ids)
    next(each for each in DAMAGES if each.name == DAMAGED[case.remedy]).hurt(place)
    before, errors = objects(place), list[str]()
    logging.disable(logging.CRITICAL)
    try:
        with without_threads():
            try:
                _carry_out(place, case.remedy, gone)
            except TieredError as error:
                errors.append(f"{type(error).__name__}: {error}")
            count = place.failing.count
            place.failing.heal()
            if case.times:
                _again(place, case, gone)
                _judge(place, gone, before)
    except BaseException as error:
        error.add_note(f"{case}; errors on the way: {errors}")
        raise
    finally:
        logging.disable(logging.NOTSET)
    return count


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


def _again(place: Place, case: RepairCase, gone: Lost) -> None:
    """What is mended already is nothing to repair; anything else must work now."""
    try:
        _carry_out(place, case.remedy, gone)
    except (ConfigError, NotFoundError) as error:
        if findings(place):
            raise Broken(f"the store is well, {case.remedy} fails: {type(error).__name__}: {error}") from error
    except TieredError as error:
        raise Broken(f"the store is well, {case.remedy} fails: {type(error).__name__}: {error}") from error


def _judge(place: Place, gone: Lost, before: dict[str, bytes]) -> None:
    if bad := findings(place):
        raise Broken(f"check finds {bad}")
    if everything(place) != left(gone):
        raise Broken("other records are there than before the damage, but for those that were given up")
    after = objects(place)
    for key, data in before.items():
        if after.get(key) != data and data not in after.values() and not key.endswith("/root"):
            raise Broken(f"nothing keeps what {key} held")


def repair_cases(root: Path) -> list[RepairCase]:
    """Every request of every remedy, with every fault, once, a few times and for long."""
    found = []
    for remedy in DAMAGED:
        count = play_repair(RepairCase(remedy, -1, "", 0), root)
        # The end of a rebuilt root rests on a listing. Stores with stale listings are not in the fault model.
        faults = FAULTS.keys() - {"stale"} if remedy == ROOT else FAULTS.keys()
        found += [
            RepairCase(remedy, first, fault, times)
            for first in range(count)
            for fault in sorted(faults)
            for times in TIMES
        ]
    return found
