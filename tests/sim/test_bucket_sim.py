"""The bucket's protocols one request at a time: no violation over seeds; a seed replays; the ledger is not blind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.bucket.ledger import Violated
from tests.sim.bucket.world import World
from tiered.format.decision import Decision, encode_decision
from tiered.format.root import Root
from tiered.format.rows import Trash
from tiered.plan.erasure import Selection
from tiered.remote import sink_commit
from tiered.remote.conditional_put import Deadline
from tiered.remote.gc import garbage, orphans, sink_orphans
from tiered.remote.pins import Pins
from tiered.store.base import ABSENT, ListEntry, Put, Steps

pytestmark = pytest.mark.no_cover  # seeds tell nothing of coverage, and its tracer makes them take three times as long

RANDOM_SEED = random.SystemRandom().randrange(2**32)
"""Another one in each run; a failure prints it."""
SEEDS = 200
AT_A_TIME = 100
"""Many at once: what happens rarely happens in each hundred, whatever a change of the product makes of one seed."""
TRIES = 160
"""Seeds in which a broken variant has to be caught once: the rarest one is met by one in some thirty."""


def run(seed: int) -> World:
    try:
        return World(seed).run()
    except BaseException as error:
        error.add_note(f"replay: make sim SEEDS={seed} TRACE=1")
        raise


@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_no_seed_violates_an_invariant(first: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(first, first + AT_A_TIME):
        totals.update(run(seed).counts)
    least_of = {"acknowledged": 5000, "crashes": 100, "replace": 200, "collect": 200, "deleted": 5000, "orphans": 400}
    least_of |= {"snapshots": 50, "read": 500, "read as of": 75, "destroyed": 15, "superseded": 1500, "trim": 50}
    least_of |= {"batches": 500, "unstaged": 2000, "handed over": 5, "erasures": 10, "erased": 100}
    least_of |= {"reencode": 50, "compact in parts": 5, "groups of parts": 5}
    for what, least in least_of.items():
        assert totals[what] >= least, (what, totals)  # a simulation in which nothing happens proves nothing


def test_a_seed_that_nobody_has_run() -> None:
    run(RANDOM_SEED)


def test_a_seed_replays_exactly() -> None:
    worlds = [World(RANDOM_SEED, trace=True).run() for _ in range(2)]
    assert worlds[0].history == worlds[1].history
    assert worlds[0].inner.all_keys() == worlds[1].inner.all_keys()
    assert worlds[0].counts == worlds[1].counts


# -- what a broken product does ----------------------------------------------------------------------------------------


def nobody_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots hold nothing."""
    correct = garbage.read_pins

    def read_pins(root: Root) -> Steps[Pins]:
        return Pins(None, 0, (), (yield from correct(root)).date_ms)

    monkeypatch.setattr(garbage, "read_pins", read_pins)


def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What left the catalog goes at once."""

    def collectable(root: Root, *, limit: int, now_ms: int, grace_ms: int) -> Trash:
        return root.trash.where(root.trash.columns["removed_version"] <= limit)

    monkeypatch.setattr(garbage, "collectable", collectable)


def every_epoch_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep takes what may yet be committed, as soon as it is there."""
    monkeypatch.setattr(orphans, "_drop_young_epochs", lambda root, candidates: None)
    monkeypatch.setattr(orphans, "ORPHAN_MS", 0)


def a_snapshot_is_not_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is acknowledged, and nothing holds the version."""

    def create_snapshot(view: Any, name: str) -> Steps[Any]:
        return (yield from view.load())

    monkeypatch.setattr("tests.sim.bucket.lives.create_snapshot", create_snapshot)


def a_batch_is_decided_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes later commits what he staged, not what was decided before."""

    def put_decision(decision: Decision, deadline: Deadline) -> Steps[Decision]:
        yield Put(decision.key, encode_decision(decision), ABSENT)
        return decision

    monkeypatch.setattr(sink_commit, "put_decision", put_decision)


def what_a_sink_decided_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is staged and that no catalog names goes after its grace."""

    def dead_of(root: Root, unnamed: sink_orphans.Listed, *, abort: bool) -> Steps[list[ListEntry]]:
        yield from ()
        return [entry for entries in unnamed.values() for entry in entries]

    monkeypatch.setattr(orphans, "dead_of", dead_of)


def an_erasure_leaves_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each segment that holds what is meant one record stays."""
    correct = Selection.count
    monkeypatch.setattr(Selection, "count", lambda self, header, batch: max(0, correct(self, header, batch) - 1))


BROKEN = (
    nobody_pins,
    no_grace,
    every_epoch_is_dead,
    a_snapshot_is_not_put,
    a_batch_is_decided_each_time,
    what_a_sink_decided_is_swept,
    an_erasure_leaves_some,
)


@pytest.mark.parametrize("breaks", BROKEN)
def test_a_broken_product_is_caught(
    breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    for seed in range(TRIES):
        try:
            World(seed).run()
        except Violated:
            return
    pytest.fail(f"not caught in {TRIES} runs")
