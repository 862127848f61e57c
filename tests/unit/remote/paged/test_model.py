"""Random intents on a catalog with tiny pages: what it holds is always what a list of rows holds."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.remote.paged.model import TINY, Catalog
from tiered.format.keys import Role
from tiered.format.root import Root
from tiered.plan.catalog_edit import ReplaceIntent, TrimIntent
from tiered.plan.commit import Intent, Shape
from tiered.plan.ownership import RefusalReason


def intent_of(catalog: Catalog) -> tuple[Intent, Role]:
    roll = catalog.rng.random()
    if roll < 0.55:
        return catalog.append(), Role.WRITER
    if roll < 0.70:
        low, end = catalog.root.start_offset, catalog.root.next_offset
        most = end if catalog.rng.random() < 0.1 else low + (end - low) // 2
        return TrimIntent(catalog.rng.randint(low, most)), Role.MAINTAINER
    made = catalog.replacement()
    return (made, Role.MAINTAINER) if made is not None else (catalog.append(), Role.WRITER)


SMALLEST = dataclasses.replace(TINY, leaf_rows=2, tail_rows=2, fan_out=2, root_leaves=2)


@pytest.mark.parametrize(("seed", "shape"), [*((seed, TINY) for seed in range(12)), *((n, SMALLEST) for n in range(5))])
def test_the_catalog_is_the_list(seed: int, shape: Shape) -> None:
    catalog = Catalog(seed, shape)
    for _ in range(120):
        intent, role = intent_of(catalog)
        refusal = catalog.do(intent, role)
        if refusal is None:
            catalog.apply(intent)
        else:
            assert isinstance(intent, TrimIntent), refusal
            assert refusal.reason is RefusalReason.NOTHING
        catalog.check()


@pytest.mark.parametrize("seed", range(12))
def test_intents_that_lost_a_race_are_planned_again_on_the_newer_root(seed: int) -> None:
    """Planned on an old root, overtaken by up to three commits of the other role, planned again: never half."""
    catalog = Catalog(seed)
    landed = 0
    for _ in range(80):
        intent, role = intent_of(catalog)
        lost = catalog.plan(intent, role)
        for page in lost.unwritten if isinstance(lost, Root) else ():
            catalog.store(page)  # by the attempt that lost: garbage, not damage
        for _ in range(catalog.rng.randrange(4)):
            other, other_role = intent_of(catalog)
            if other_role is not role and catalog.do(other, other_role) is None:
                catalog.apply(other)
        if isinstance(intent, ReplaceIntent) and catalog.rng.random() < 0.5:
            low, high = intent.old[0].base, intent.old[-1].next
            trim = TrimIntent(catalog.rng.randint(low, high))
            if catalog.do(trim, Role.MAINTAINER) is None:
                catalog.apply(trim)
        refusal = catalog.do(intent, role)
        if refusal is None:
            catalog.apply(intent)
            landed += 1
        elif refusal.reason is RefusalReason.GONE:
            assert isinstance(intent, ReplaceIntent)
        catalog.check()
    assert landed > 40


def test_a_replacement_of_what_is_gone_is_refused_and_changes_nothing() -> None:
    catalog = Catalog(2)
    for _ in range(20):
        append = catalog.append()
        catalog.do(append, Role.WRITER)
        catalog.apply(append)
    twice = [catalog.replacement(), catalog.replacement()]
    for first, second in (twice, reversed(twice)):
        assert first is not None
        assert second is not None
        second = ReplaceIntent(first.old, tuple([row._replace(id_hi=row.id_hi + 10**6) for row in first.rows]))
        if catalog.do(first, Role.MAINTAINER) is None:
            catalog.apply(first)
        refusal = catalog.do(second, Role.MAINTAINER)
        assert refusal is not None
        assert refusal.reason is RefusalReason.GONE
        catalog.check()
    late = catalog.replacement()
    assert late is not None
    trim = TrimIntent(late.old[-1].next)
    assert catalog.do(trim, Role.MAINTAINER) is None
    catalog.apply(trim)
    refusal = catalog.do(late, Role.MAINTAINER)
    assert refusal is not None
    assert refusal.reason is RefusalReason.GONE
    catalog.check()


WIDE = Shape(leaf_rows=6, tail_rows=8, fan_out=7, root_leaves=9, small_leaf=3, trash_entries=40, trash_page=20)


def shrink(catalog: Catalog, first: int, count: int) -> ReplaceIntent:
    """Some neighbours by one row, as a compaction leaves them."""
    old = catalog.live[first : first + count]
    return ReplaceIntent(tuple(old), (catalog.row(old[0].base, old[-1].next, Role.MAINTAINER),))


@pytest.mark.parametrize("seed", range(3))
def test_a_long_life_leaves_no_empty_tree(seed: int) -> None:
    """Hundreds of rows come, nearly all of them are compacted or trimmed away, many times over."""
    catalog = Catalog(seed, WIDE)
    rng = catalog.rng
    for _ in range(4):
        for _ in range(50):
            append = catalog.append()
            assert catalog.do(append, Role.WRITER) is None
            catalog.apply(append)
        catalog.check()
        while len(catalog.live) > 40:
            shrunk = shrink(catalog, rng.randrange(len(catalog.live) - 20), rng.choice([5, 20]))
            assert catalog.do(shrunk, Role.MAINTAINER) is None
            catalog.apply(shrunk)
            catalog.check()
        trim = TrimIntent(catalog.live[rng.randrange(10)].next)
        assert catalog.do(trim, Role.MAINTAINER) is None
        catalog.apply(trim)
        catalog.check()
        assert len(catalog.root.inner) <= 2
    last = shrink(catalog, 0, len(catalog.live))
    assert catalog.do(last, Role.MAINTAINER) is None
    catalog.apply(last)
    catalog.check()
    assert (len(catalog.root.inner), len(catalog.root.leaves), len(catalog.root.rows)) == (0, 0, 1)
