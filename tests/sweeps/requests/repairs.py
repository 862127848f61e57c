"""The verbs of ``tiered repair`` while one request, or some, fail: what is healed afterwards, and what must be kept."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.damage.bucket.damages import DAMAGES
from tests.damage.bucket.place import HIT, RECORDS, Place
from tests.damage.bucket.repairs import (
    CATALOG,
    DROP,
    ENTRY,
    INDEX,
    REPAIRS,
    Repair,
    everything,
    findings,
    left,
    objects,
)
from tests.sim.tiers.virtual import without_threads
from tests.sweeps.requests.faults import FAULTS, FailingStore
from tests.sweeps.requests.story import TIMES, Broken
from tiered.care.enroll import entry_steps, plan_entry_steps
from tiered.care.mend import mend_steps, plan_mend_steps
from tiered.care.put_back import plan_put_back_steps, put_back_steps
from tiered.care.rebuild import plan_rebuild_steps, rebuild_steps
from tiered.care.run import restore
from tiered.errors import ConfigError, NotFoundError, TieredError
from tiered.store.retry import RetryingStore
from tiered.store.runner import Runner

PUT_BACK, PUT_BACK_ABSENT = "put-back", "put-back where nothing lies"
DAMAGED = {
    PUT_BACK: ".log truncated in a batch",
    PUT_BACK_ABSENT: ".log gone",
    INDEX: ".idx gone",
    DROP: ".log truncated in a batch",
    ENTRY: "topic entry gone",
    CATALOG: "root gone",
}
"""What each verb mends here."""


HELD = "held"
"""A log directory that still has all segments."""


class RepairCase(NamedTuple):
    """The request ``first`` of planning and carrying out, and the ``times - 1`` behind it, fail."""

    verb: str
    first: int
    fault: str
    times: int


class _Failing(Place):
    """Its store fails."""

    def __init__(self, root: Path, case: RepairCase) -> None:
        super().__init__(root)
        self.failing = FailingStore(self.inner, first=case.first, times=case.times, fault=case.fault)

    def store(self) -> RetryingStore:
        return RetryingStore(self.failing, clock=self.clock, ids=self.ids, deadline_seconds=2)


def play_repair(case: RepairCase, root: Path) -> int:
    """Runs one case, then the verb again on a store that is well; gives how many requests the first run made.

    Raises Broken if the log is not mended then, if more than the damage is gone, or if nothing keeps what was replaced.
    """
    shutil.rmtree(root, ignore_errors=True)
    place = _Failing(root, case)
    repair = REPAIRS[DAMAGED[case.verb]]
    if case.verb in (PUT_BACK, PUT_BACK_ABSENT):
        repair = Repair()
        restore(place.inner, root / HELD, clock=place.clock, ids=place.ids)
    next(each for each in DAMAGES if each.name == DAMAGED[case.verb]).hurt(place)
    before, errors = objects(place), list[str]()
    logging.disable(logging.CRITICAL)
    try:
        with without_threads():
            try:
                _carry_out(place, case.verb, repair)
            except TieredError as error:
                errors.append(f"{type(error).__name__}: {error}")
            count = place.failing.count
            place.failing.heal()
            if case.times:
                _again(place, case, repair)
                _judge(place, repair, before)
    except BaseException as error:
        error.add_note(f"{case}; errors on the way: {errors}")
        raise
    finally:
        logging.disable(logging.NOTSET)
    return count


def _carry_out(place: Place, verb: str, repair: Repair) -> None:
    """Plans, reads the plan as a person does who knows what is lost, and carries it out if it gives up no more."""
    runner = Runner(place.store(), place.clock, place.ids)
    if verb in (INDEX, DROP):
        planned = runner.run(plan_mend_steps(HIT, (), drop=verb == DROP))
        if [(loss.start, loss.end) for loss in planned.lost] not in ([], [repair.lost]):
            raise ConfigError(f"the plan gives up {planned.lost}")
        runner.run(mend_steps(planned, "test"))
    elif verb in (PUT_BACK, PUT_BACK_ABSENT):
        back = runner.run(plan_put_back_steps(HIT, place.root / HELD, ()))
        if not all(each.held for each in back.segments):
            raise ConfigError(f"the disk lacks {back.segments}")
        runner.run(put_back_steps(back))
    elif verb == ENTRY:
        runner.run(entry_steps(runner.run(plan_entry_steps(HIT.topic, None))))
    else:
        rebuilt = runner.run(plan_rebuild_steps(HIT, "test", accept_loss=False))
        if rebuilt.unused or rebuilt.root.next_offset != RECORDS:
            raise ConfigError(f"the plan leaves out {rebuilt.unused} and ends at {rebuilt.root.next_offset}")
        runner.run(rebuild_steps(rebuilt))


def _again(place: Place, case: RepairCase, repair: Repair) -> None:
    """What is mended already is nothing to repair; anything else must work now."""
    verb = case.verb
    try:
        _carry_out(place, verb, repair)
    except (ConfigError, NotFoundError) as error:
        found = findings(place)
        if verb == CATALOG and case.times > 1 and {each.split(":")[0] for each in found} == {"index_size"}:
            _carry_out(place, INDEX, Repair((INDEX,)))  # two answers called a bundle damaged: it was made without
        elif found:
            raise Broken(f"the store is well, {verb} fails: {type(error).__name__}: {error}") from error
    except TieredError as error:
        raise Broken(f"the store is well, {verb} fails: {type(error).__name__}: {error}") from error


def _judge(place: Place, repair: Repair, before: dict[str, bytes]) -> None:
    if bad := findings(place):
        raise Broken(f"check finds {bad}")
    if everything(place) != left(repair.lost, repair.partitions):
        raise Broken("other records are there than before the damage, but for those that were given up")
    after = objects(place)
    for key, data in before.items():
        if after.get(key) != data and data not in after.values() and not key.endswith("/root"):
            raise Broken(f"nothing keeps what {key} held")


def repair_cases(root: Path) -> list[RepairCase]:
    """Every request of every verb, with every fault, once, a few times and for long."""
    found = []
    for verb in DAMAGED:
        count = play_repair(RepairCase(verb, -1, "", 0), root)
        for first in range(count):
            found += [RepairCase(verb, first, fault, times) for fault in FAULTS for times in TIMES]
    return found
