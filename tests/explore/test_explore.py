"""A small bound of the exploration; ``make explore`` goes deeper."""

from __future__ import annotations

import random

import pytest

from tests.explore.bucket import NO_OBJECTS, STORED_MS, Request
from tests.explore.machine import Disk
from tests.explore.process import Report
from tests.explore.programs import writer
from tests.explore.scenes import SCENES, Bound, Stage, restart
from tests.explore.search import Search
from tests.explore.truth import ROOT_KEY, Memory, Violated, told
from tiered.remote.catalog import Catalog
from tiered.store.base import (
    ABSENT,
    Delete,
    Get,
    Head,
    List,
    ListEntry,
    ListPage,
    Match,
    NotModified,
    Object,
    Put,
    PutResult,
)
from tiered.store.memory import MemoryStore

QUICK = [bound for bound in SCENES if bound.quick >= 0]


@pytest.mark.parametrize("bound", QUICK, ids=lambda bound: bound.make.__name__)
def test_no_interleaving_within_the_bound_violates_an_invariant(bound: Bound) -> None:
    counts = Search(bound.make(), bound.quick).run()
    assert counts.whole
    assert counts.states > 80, counts  # a search in which nothing happens proves nothing
    assert counts.merged > 20, counts
    assert counts.ends > 0, counts


def test_the_same_search_counts_the_same() -> None:
    one, other = (Search(restart(), 0).run() for _ in range(2))
    one.seconds = other.seconds = 0.0
    assert one == other


def test_a_violation_comes_with_the_shortest_schedule_that_leads_there(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = Catalog._claim

    def believed(self: Catalog, *arguments: object) -> object:
        self._kept, kept = type(self._kept)(), self._kept
        monkeypatch.setattr(self, "_persist", lambda token, last_append: None)
        claim = yield from correct(self, *arguments)  # type: ignore[arg-type]
        self._kept = kept
        return claim

    monkeypatch.setattr(Catalog, "_claim", believed)
    with pytest.raises(Violated) as caught:
        Search(restart(), 0).run()
    assert caught.value.__notes__[0] == "scene restart, 0 faults at most; the schedule that leads there:"
    assert any("PUT root" in note for note in caught.value.__notes__)


def test_what_was_acknowledged_is_held_against_the_store() -> None:
    stage = Stage()
    stage.act("a", writer(1), Disk("a"))
    with pytest.raises(Violated, match="was acknowledged at 0, b"):
        told(Report("acked", (((0, b"other"),),)), stage.objects, stage.memory)
    with pytest.raises(Violated, match="was told to have failed, and a root named it"):
        told(Report("failed", (tuple(stage.memory.ever),)), stage.objects, stage.memory)
    with pytest.raises(Violated, match="offsets"):
        told(Report("read", (0, 2, ((0, b"a.0 0"),))), stage.objects, Memory())


@pytest.mark.parametrize("seed", range(20))
def test_the_store_answers_as_the_store_in_memory_does(seed: int) -> None:
    """Request by request, but for ETags, whose equality is compared, and for times."""
    dice = random.Random(seed)
    memory, objects = MemoryStore(), NO_OBJECTS
    ours: dict[str, str] = {}  # by ETag of the other
    keys = ["a", "a/b", "b", ROOT_KEY]
    for number in range(200):
        key = dice.choice(keys)
        held = memory.execute(Head(key))
        theirs = held.etag if isinstance(held, Object) else '"none"'
        theirs = dice.choice([theirs, theirs, *ours])
        request = dice.choice(
            [
                Put(key, b"body %d" % number, ABSENT),
                Put(key, b"body %d" % number, Match(theirs)),
                Get(key, dice.randrange(3), dice.choice([None, 5])),
                Get(key, if_none_match=theirs),
                Head(key),
                Delete(tuple(dice.sample(keys, 2))),
                List(dice.choice(["", "a"]), start_after=dice.choice(["", "a"]), limit=dice.choice([1, 1000])),
            ]
        )
        expected = memory.execute(request)
        objects, found = objects.apply(_of_ours(request, ours))
        if isinstance(expected, PutResult) and expected.etag:
            ours[expected.etag] = found.etag
        assert _plain(found) == _plain(_translated(expected, ours)), (seed, number, request)


def _of_ours(request: Request, ours: dict[str, str]) -> Request:
    if isinstance(request, Put) and isinstance(request.condition, Match):
        return Put(request.key, request.body, Match(ours.get(request.condition.etag, "none")))
    if isinstance(request, Get):
        return Get(request.key, request.start, request.end, ours.get(request.if_none_match or ""))
    return request


def _translated(outcome: object, ours: dict[str, str]) -> object:
    match outcome:
        case Object(data, etag, size, _, _, crc):
            return Object(data, ours[etag], size, STORED_MS, 0, crc)
        case PutResult(status, etag, crc):
            return PutResult(status, ours.get(etag, ""), crc)
        case ListPage(entries, more, _):
            return ListPage(tuple(ListEntry(each.key, each.size, ours[each.etag], STORED_MS) for each in entries), more)
    return outcome


def _plain(outcome: object) -> object:
    if isinstance(outcome, ListPage):
        return outcome.entries, outcome.more
    return type(outcome) if isinstance(outcome, NotModified) else outcome
