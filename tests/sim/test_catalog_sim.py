"""The catalog protocol under faults: no violation over many seeds, and each broken variant of it is caught."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.catalog_world import Variant, Violated, World
from tiered.errors import FencedError
from tiered.format.root import Root, encode_root
from tiered.remote.catalog import Catalog, _Held
from tiered.remote.settle import Deadline
from tiered.store.base import Get, Match, Object, Put, PutStatus, Steps

pytestmark = pytest.mark.no_cover  # seeds tell nothing of coverage, and its tracer makes them take three times as long

SEEDS = 200
STEPS = 350


def run(seed: int, variant: Variant, steps: int = STEPS) -> World:
    world = World(seed, variant)
    try:
        world.run(steps)
    except Violated as error:
        error.add_note(f"replay with World({seed}, {variant}).run({steps})")
        raise
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_no_seed_violates_an_invariant(first: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(first, first + 40):
        totals.update(run(seed, Variant()).counts)
    for what, least in {
        "acked": 250,
        "failed": 20,
        "unknown": 50,
        "claims": 100,
        "refused": 50,
        "crashes": 100,
        "trims": 100,
    }.items():
        assert totals[what] >= least, totals  # a simulation in which nothing happens proves nothing


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_no_seed_violates_an_invariant_with_pages(first: int) -> None:
    """Pages of two rows below inner pages of two; maintainers replace what writers append and others trim."""
    totals: Counter[str] = Counter()
    for seed in range(first, first + 40):
        totals.update(run(seed, Variant(paged=True), 500).counts)
    for what, least in {"acked": 200, "unknown": 50, "trims": 100, "replaced": 100, "gone": 20, "inner": 200}.items():
        assert totals[what] >= least, totals


class LostMeansFailed(Catalog):
    """412 is reported as failed without comparing commit ids."""

    def _replace(self, held: _Held, planned: Root, deadline: Deadline) -> Steps[bool]:
        if (yield from self._put(planned, deadline)):
            self._settled(held, planned.commit.id)
            return True
        raise FencedError("412")


class NoSealedTable(Catalog):
    """After a 412 only the current ``last_commit`` is compared."""

    def _replace(self, held: _Held, planned: Root, deadline: Deadline) -> Steps[bool]:
        if (yield from self._put(planned, deadline)):
            self._settled(held, planned.commit.id)
            return True
        back = yield from self._read_after_loss(deadline)
        state = back.roles[held.role.value]
        if state.last_commit == planned.commit.id:
            self._settled(held, planned.commit.id)
            return True
        self._doubt = ""
        if state.epoch != held.epoch:
            raise FencedError("a newer epoch")
        return False


class DecidedByRead(Catalog):
    """After a timeout one GET decides."""

    def _put(self, planned: Root, deadline: Deadline) -> Steps[bool]:
        put = Put(self.key, encode_root(planned), Match(self.etag))
        result = yield put
        while result.status is PutStatus.CONFLICT:
            result = yield put
        if result.status is PutStatus.UNKNOWN:
            got = yield Get(self.key)
            assert isinstance(got, Object)
            if got.data == put.body:
                self.root, self.etag = planned, got.etag
                return True
            raise FencedError("not seen")
        if result.status is PutStatus.LANDED:
            self.root, self.etag = planned, result.etag
            return True
        return False


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(Variant(make=LostMeansFailed), id="412 means failed"),
        pytest.param(Variant(make=NoSealedTable), id="no sealed table"),
        pytest.param(Variant(make=DecidedByRead), id="timeout decided by a read"),
        pytest.param(Variant(forged_proof=True), id="volume id without proof"),
        pytest.param(Variant(late_proof=True), id="proof kept after the CAS"),
    ],
)
def test_a_broken_variant_is_caught(variant: Variant) -> None:
    caught = 0
    for seed in range(60):
        try:
            run(seed, variant)
        except Violated:
            caught += 1
        if caught >= 2:
            return
    pytest.fail(f"caught in {caught} of 60 runs")
