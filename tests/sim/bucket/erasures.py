"""The life of who erases keys beside readers, merges, compactions and collections; killed, it goes on as itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.bucket.lives import KEYS, PASSING
from tests.sim.bucket.process import SteppedProcess
from tiered.erase.erase import erase_steps, plan_erase_steps
from tiered.errors import ConfigError, CorruptionError, FencedError, LogDestroyedError, NotFoundError
from tiered.format.keys import partition_prefix
from tiered.format.root import STATE_OPEN
from tiered.plan.erasure import Selection
from tiered.store.base import Steps

if TYPE_CHECKING:
    from tests.sim.bucket.world import World

AT_ONCE = 0.4
"""Share of erasures whose old objects go without their grace."""


def erase_keys(world: World, process: SteppedProcess) -> Steps[None]:
    """Erases a key of a partition; what it was told is gone has to be gone."""
    rng, log, ledger = world.rng, world.some_log(), world.ledger
    if log is None or log.root is None or ledger.entries[log.tp.topic].state != STATE_OPEN:
        return
    entry, number = ledger.entries[log.tp.topic], log.tp.partition
    selection = Selection(frozenset([f"k{rng.randrange(KEYS)}".encode()]))
    now = rng.random() < AT_ONCE
    try:
        plan = yield from plan_erase_steps(log.tp, entry, selection)
        if plan is None:
            return
        world.note(process, f"erases {plan.records} records of {[*selection.keys]} in {log.tp}, now: {now}")
        ledger.may_erase(log, selection.keys, at_once=now)
        prefix = partition_prefix(log.topic_id, number)
        there = {key for key in ledger.all_keys() if key.startswith(prefix)}
        job = selection.job_id(log.topic_id, [number])
        erased = yield from erase_steps(plan, selection, str(process), job, now=now)
        ledger.check_erased(process, log, selection.keys, plan.end_offset, set() if erased.left else there)
    except (*PASSING, FencedError):
        return
    except (LogDestroyedError, NotFoundError, CorruptionError) as error:
        world.tolerate(process, error, log.tp.topic)
    except ConfigError as error:
        if "is held by" not in error.message and "other maintainers rewrote the partition" not in error.message:
            world.tolerate(process, error, log.tp.topic)
