"""Random logs, random rounds, and what a reader may rely on, against a log that was never cleaned."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plan.cleaning.building import LogBuilder, compacted
from tests.unit.plan.cleaning.rounds import MemoryLog, clean, markers, visible
from tiered.format.batch import read_header
from tiered.format.control import ControlType
from tiered.format.kernels import Record
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES, ENTRY_BYTES

RETENTION_MS = 100
KEYS = st.sampled_from([b"a", b"b", b"c", b"d", None])
PAIRS = st.lists(st.tuples(KEYS, st.sampled_from([b"x", b"y", b"z", None])), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([-1, 0]), PAIRS),  # nobody, an idempotent producer
    st.tuples(st.just("send"), st.sampled_from([1, 2]), PAIRS),  # transactional producers
    st.tuples(st.just("end"), st.sampled_from([1, 2]), st.sampled_from([ControlType.ABORT, ControlType.COMMIT])),
    st.tuples(st.just("roll")),
    st.tuples(st.just("clean"), st.sampled_from([0, 50, 100]), st.sampled_from([1, 3, 10_000])),
)
SCRIPTS = st.lists(STEPS, min_size=1, max_size=40)


@dataclass
class World:
    """A log that is appended to and cleaned, and the same log never cleaned."""

    build: LogBuilder
    whole: LogBuilder
    now: int = 10_000
    live: bool = True
    checkpoint: int | None = None
    first_seen_clean: dict[int, int] = field(default_factory=dict)

    def log(self) -> MemoryLog:
        return self.build.build(self.checkpoint, live=self.live)

    def original(self) -> MemoryLog:
        return self.whole.build()


def _play(script: list[tuple[object, ...]], *, live: bool) -> World:
    config = compacted(delete_retention_ms=RETENTION_MS, segment_bytes=400)
    world = World(LogBuilder(config), LogBuilder(config), live=live)
    for name, *values in script:
        if name == "clean":
            wait, keys = values
            world.now += wait  # type: ignore[operator]  # an int, by the name
            _clean(world, keys * ENTRY_BYTES)  # type: ignore[operator]  # drawn as object
            continue
        for build in (world.build, world.whole):
            if name == "roll":
                build.roll()
            elif name == "end":
                build.end(*values)  # type: ignore[arg-type]  # drawn as object
            else:
                producer, pairs = values
                build.append(pairs, producer=producer, transactional=name == "send")  # type: ignore[arg-type]
    return world


def _clean(world: World, memory_bytes: int) -> None:
    before = world.log()
    done = clean(before, world.now, memory_bytes=memory_bytes)
    world.build.adopt(done.log)
    world.checkpoint = done.log.checkpoint
    for record in visible(before.batches):
        if record.value is None and record.offset < done.candidate.first_uncleanable:
            world.first_seen_clean.setdefault(record.offset, world.now)
    _check_round(before, done.log, done.candidate.first_uncleanable)
    _check_readers(world)


def _check_round(before: MemoryLog, after: MemoryLog, first_uncleanable: int) -> None:
    old = {read_header(b).base_offset: read_header(b) for b in before.batches}
    new = [read_header(b) for b in after.batches]
    kept = ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
    for header in new:
        assert [getattr(header, k) for k in kept] == [getattr(old[header.base_offset], k) for k in kept]
    assert [h.base_offset for h in new] == sorted({h.base_offset for h in new})
    assert after.end_offset == before.end_offset
    assert [b for b in before.batches if read_header(b).base_offset >= first_uncleanable] == [
        b for b in after.batches if read_header(b).base_offset >= first_uncleanable
    ]
    ends = [h.next_offset for h in old.values() if h.next_offset <= first_uncleanable]
    if ends and max(ends) == first_uncleanable:  # the range can be told from the files alone
        assert first_uncleanable in {h.next_offset for h in new}
    assert set(markers(after.batches)) <= set(markers(before.batches))
    assert set(after.aborted) <= set(before.aborted)


def _committed(log: MemoryLog) -> list[Record]:
    return [r for r in visible(log.batches, log.aborted, committed=True) if r.offset < log.last_stable_offset()]


def _latest(records: list[Record]) -> dict[bytes, Record]:
    return {r.key: r for r in records if r.key is not None}


def _check_readers(world: World) -> None:
    original, cleaned = world.original(), world.log()
    assert original.last_stable_offset() == cleaned.last_stable_offset()
    everything = {r.offset: r for r in visible(original.batches)}
    for record in visible(cleaned.batches):
        assert everything[record.offset] == record
    truth, seen = _committed(original), _committed(cleaned)
    assert {r.offset for r in seen} <= {r.offset for r in truth}
    newest = _latest(truth)
    values = {key: record for key, record in newest.items() if record.value is not None}
    assert {key: r for key, r in _latest(seen).items() if r.value is not None} == values
    left = {r.offset for r in seen}
    for record in truth:
        if record.offset in left:
            continue
        assert record.offset < (world.checkpoint or 0)
        if record.key is not None and record == newest[record.key]:
            assert record.value is None
            assert world.now >= world.first_seen_clean[record.offset] + RETENTION_MS


def _sequences(log: MemoryLog) -> dict[int, tuple[int, int]]:
    """Of producers that wrote data; one that is only known from a marker goes with it."""
    return {e.producer_id: (e.last_sequence, e.last_offset) for e in log.producers if e.last_offset >= 0}


@given(SCRIPTS)
def test_readers_see_what_they_may_rely_on_while_producers_live(script: list[tuple[object, ...]]) -> None:
    world = _play([*script, ("roll",), ("clean", 0, 10_000)], live=True)
    assert _sequences(world.log()) == _sequences(world.original())


@given(SCRIPTS)
def test_readers_see_what_they_may_rely_on_when_producers_are_forgotten(script: list[tuple[object, ...]]) -> None:
    _play([*script, ("roll",), ("clean", 100, 10_000)], live=False)


@given(SCRIPTS)
def test_small_rounds_end_where_one_large_round_does(script: list[tuple[object, ...]]) -> None:
    build = _play([step for step in script if step[0] != "clean"], live=False).build
    build.roll()
    whole = build.build(live=False)
    large = clean(whole, 0, memory_bytes=DEDUPE_BUFFER_BYTES).log
    small, last = whole, None
    while small.checkpoint != last or last is None:
        last = small.checkpoint
        small = clean(small, 0, memory_bytes=2 * ENTRY_BYTES).log
        if small.checkpoint is None:
            break
    assert visible(small.batches) == visible(large.batches)
    assert small.checkpoint == large.checkpoint


@given(SCRIPTS)
def test_a_round_without_news_changes_nothing(script: list[tuple[object, ...]]) -> None:
    build = _play([step for step in script if step[0] != "clean"], live=True).build
    build.roll()
    log = build.build()
    for _ in range(2):  # the second sets the horizon of markers whose data the first removed
        log = dataclasses.replace(clean(log, 0).log, checkpoint=None)
    again = clean(log, RETENTION_MS - 1)
    assert again.log.batches == log.batches
