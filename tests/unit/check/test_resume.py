"""A check of a part, one that goes on where it was cut short, and one that reads no byte twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tests.unit.check.building import BATCH, RECORDS, TOPIC, Scenario, record, scenario
from tiered.care.check import CheckOptions, CheckReport, check_steps
from tiered.care.proven import ROUND_MS
from tiered.care.run import check
from tiered.errors import ConfigError, LockedError, RemoteUnavailableError
from tiered.format.bundle import decode_bundle, encode_bundle
from tiered.format.producer_snapshot import decode_snapshot, encode_snapshot
from tiered.format.root import encode_root
from tiered.local.disk.files import PosixFiles
from tiered.model import Row
from tiered.store.base import ABSENT, Delete, Get, Head, List, Object, Outcome, Page, Put, StoreRequest
from tiered.store.memory import MemoryStore
from tiered.store.runner import Runner
from tiered.testing.clock import FakeClock


class Watched:
    """Counts what is asked of ``.log`` objects; goes away after ``limit`` heads."""

    def __init__(self, inner: MemoryStore, limit: int = 10**9) -> None:
        self.inner, self.url, self.limit = inner, inner.url, limit
        self.heads: list[str] = []
        self.bytes_read: dict[str, int] = {}

    def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        if isinstance(request, Head):
            if len(self.heads) == self.limit:
                raise RemoteUnavailableError("gone")
            self.heads.append(request.key)
        outcome = self.inner.execute(request)
        if isinstance(request, Get) and request.key.endswith(".log"):
            self.bytes_read[request.key] = self.bytes_read.get(request.key, 0) + len(outcome.data)  # type: ignore[union-attr]
        return outcome

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path, partitions=2) as built:
        yield built


def keys(log: Scenario) -> list[str]:
    return [log.log_key(row, partition) for partition in (0, 1) for row in log.rows(partition)]


def ran(
    log: Scenario, state: Path | None = None, *, limit: int = 10**9, **wanted: object
) -> tuple[CheckReport, Watched]:
    store = Watched(log.store, limit)
    return check(None, store, CheckOptions(resume=state, **wanted)), store  # type: ignore[arg-type]


def flipped(log: Scenario, row: Row) -> str:
    """A bit of a record, in a store that tells no checksum of it."""
    data = bytearray(log.read(log.log_key(row)))
    data[90] ^= 1
    log.replace(log.log_key(row), bytes(data))
    return log.log_key(row)


@pytest.mark.parametrize("parts", [1, 3, 20])
def test_the_parts_are_all_of_it_and_each_segment_is_in_one(log: Scenario, parts: int) -> None:
    read: list[str] = []
    for number in range(1, parts + 1):
        report, store = ran(log, read_data=True, subset=(number, parts))
        assert (report.exit_code, len(store.heads)) == (0, len(keys(log)))
        assert report.data_bytes_read == sum(store.bytes_read.values())
        read += store.bytes_read
    assert sorted(read) == sorted(keys(log))


@pytest.mark.parametrize("subset", [(0, 3), (4, 3), (1, 0)])
def test_what_is_no_part(log: Scenario, subset: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="is no part of all"):
        ran(log, subset=subset, read_data=True)


def test_a_check_that_was_cut_short_goes_on(log: Scenario, tmp_path: Path) -> None:
    state, asked = tmp_path / "state", 0
    every = len(keys(log))
    assert every == 10
    for limit in (6, 2):
        store = Watched(log.store, limit)
        with pytest.raises(RemoteUnavailableError):
            check(None, store, CheckOptions(read_data=True, resume=state))
        asked += len(store.bytes_read)
    report, store = ran(log, state, read_data=True)
    assert (report.exit_code, report.remote_segments) == (0, every)
    assert 0 < report.passed_over == every - len(store.heads)
    assert (len(store.bytes_read), report.read_before) == (len(store.heads), 0)
    assert asked + len(store.bytes_read) == every  # no byte was read twice
    again, store = ran(log, state, read_data=True)
    assert (len(store.heads), store.bytes_read, again.passed_over) == (every, {}, 0)
    assert again.read_before == again.remote_bytes


SCOPES: dict[str, dict[str, object]] = {
    "plain": {},
    "all": {"read_data": True},
    "first half": {"read_data": True, "subset": (1, 2)},
    "second half": {"read_data": True, "subset": (2, 2)},
}


@pytest.mark.parametrize(
    ("first", "then"), [("plain", "all"), ("first half", "all"), ("first half", "second half"), ("all", "plain")]
)
def test_a_check_that_looks_at_something_else_passes_nothing_over(
    log: Scenario, tmp_path: Path, first: str, then: str
) -> None:
    state, every = tmp_path / "state", len(keys(log))
    with pytest.raises(RemoteUnavailableError):
        ran(log, state, limit=every - 1, **SCOPES[first])
    report, store = ran(log, state, **SCOPES[then])
    assert (report.exit_code, report.passed_over, len(store.heads)) == (0, 0, every)
    wanted, fresh = ran(log, **SCOPES[then])
    assert report.data_bytes_read + report.read_before == wanted.data_bytes_read == sum(fresh.bytes_read.values())


def test_a_disk_is_compared_with_what_a_check_without_it_had_seen(log: Scenario, tmp_path: Path) -> None:
    state, every = tmp_path / "state", len(keys(log))
    with pytest.raises(RemoteUnavailableError):
        ran(log, state, limit=every - 1)
    assert check(log.directory, log.store, CheckOptions(resume=state)).passed_over == 0


@pytest.mark.parametrize(("age_ms", "is_seen"), [(ROUND_MS - 1, False), (ROUND_MS, True), (-1, True)])
def test_a_round_that_is_old_is_begun_anew(log: Scenario, tmp_path: Path, age_ms: int, is_seen: bool) -> None:
    state, clock, every = tmp_path / "state", FakeClock(), len(keys(log))
    began_ms = clock.now_ms()

    def round_at(now_ms: int, limit: int = 10**9) -> CheckReport:
        clock.set_ms(now_ms)
        store = Watched(log.store, limit)
        steps = check_steps(None, store.url, CheckOptions(resume=state), PosixFiles())
        return Runner(store, clock).run(steps, lambda _: None)

    with pytest.raises(RemoteUnavailableError):
        round_at(began_ms, every - 1)
    log.delete(log.log_key(log.rows()[1]))
    report = round_at(began_ms + age_ms)
    assert [found.code for found in report.findings] == ["object_missing"] * is_seen
    assert (report.passed_over == 0) == is_seen


def test_what_was_wrong_is_never_noted(log: Scenario, tmp_path: Path) -> None:
    state = tmp_path / "state"
    bad = flipped(log, log.rows()[2])
    for limit in (6, 3):
        with pytest.raises(RemoteUnavailableError):
            ran(log, state, limit=limit, read_data=True)
    for _ in range(2):
        report, store = ran(log, state, read_data=True)
        assert (report.exit_code, {found.where for found in report.findings}) == (13, {bad})
    assert list(store.bytes_read) == [bad]


def test_an_object_that_goes_between_two_rounds_is_seen(log: Scenario, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert ran(log, state, read_data=True)[0].exit_code == 0
    log.delete(log.log_key(log.rows()[1]))
    report, _ = ran(log, state)
    assert [found.code for found in report.findings] == ["object_missing"]


def test_parts_add_up_in_one_file_and_new_segments_are_read(log: Scenario, tmp_path: Path) -> None:
    state = tmp_path / "state"
    for number in (1, 2):
        ran(log, state, read_data=True, subset=(number, 2))
    assert ran(log, state, read_data=True)[1].bytes_read == {}
    before = set(keys(log))
    with tiered.open(log.directory, log.url) as more:
        more.topic(TOPIC).append_many([record(RECORDS + at) for at in range(BATCH)], partition=0)
        more.sync(timeout=60)
    report, store = ran(log, state, read_data=True)
    assert (set(store.bytes_read), report.exit_code) == (set(keys(log)) - before, 0)
    assert len(state.read_text().splitlines()) == 1 + 2 + len(keys(log))


def test_a_torn_or_changed_line_is_no_line(log: Scenario, tmp_path: Path) -> None:
    state = tmp_path / "state"
    ran(log, state, read_data=True)
    lines = state.read_bytes().split(b"\n")
    lines[4] = lines[4].replace(lines[4][2:4], b"00" if lines[4][2:4] != b"00" else b"11", 1)
    state.write_bytes(b"\n".join(lines)[:-9])
    report, store = ran(log, state, read_data=True)
    assert (report.exit_code, len(store.bytes_read)) == (0, 2)
    assert ran(log, state, read_data=True)[1].bytes_read == {}


def test_a_line_whose_checksum_is_wrong_proves_nothing(log: Scenario, tmp_path: Path) -> None:
    state = tmp_path / "state"
    ran(log, state)
    numbers = [f"{row.id_lo % 2**64:016x}" for partition in (0, 1) for row in log.rows(partition)]
    with state.open("a") as file:
        file.writelines(f"{kind} {number} 00000000\n" for number in numbers for kind in "ds")
    report, store = ran(log, state, read_data=True)
    assert (sorted(store.bytes_read), report.passed_over) == (sorted(keys(log)), 0)
    assert [f"d {number} " in state.read_text() for number in numbers] == [True] * len(numbers)


def test_the_state_is_of_one_bucket_and_of_one_run(log: Scenario, tmp_path: Path) -> None:
    state = tmp_path / "state"
    ran(log, state)
    other = MemoryStore("another-bucket")
    try:
        with pytest.raises(ConfigError, match="is not the state of a check of memory://another-bucket"):
            check(None, other, CheckOptions(resume=state))
    finally:
        MemoryStore.forget("another-bucket")
    foreign = tmp_path / "notes.txt"
    foreign.write_text("mine")
    with pytest.raises(ConfigError, match="name another file"):
        ran(log, foreign)
    assert foreign.read_text() == "mine"
    held = PosixFiles().try_lock(state)
    assert held is not None
    with pytest.raises(LockedError, match="in use by another check"):
        ran(log, state)
    PosixFiles().close(held)


def test_a_check_of_one_topic_forgets_nothing_of_another(log: Scenario, tmp_path: Path) -> None:
    state = tmp_path / "state"
    ran(log, state, read_data=True)
    with tiered.open(log.directory, log.url) as more:
        more.topic("other", create=True).append(b"x")
        more.sync(timeout=60)
    ran(log, state, read_data=True, topics=("other",))
    assert ran(log, state, read_data=True)[1].bytes_read == {}


def test_what_an_earlier_check_has_looked_at_proves_a_newer_root(log: Scenario, tmp_path: Path) -> None:
    """Nothing else does: no disk, no copy, no claim."""
    state, older = tmp_path / "state", log.read(log.root_key())
    newer = log.root().version + 5
    log.replace(log.root_key(), encode_root(replace(log.root(), version=newer)))
    assert ran(log, state)[0].exit_code == 0
    log.replace(log.root_key(), older)
    assert ran(log)[0].exit_code == 0
    for _ in range(2):  # what the first of them noted hides nothing
        (found,) = ran(log, state)[0].findings
        assert (found.code, found.topic, found.partition) == ("went_back", TOPIC, 0)
        assert f"has looked at version {newer}, it has version {log.root().version}" in found.message


SEGMENTS = 9
"""One more than are looked at together."""


@pytest.fixture
def undecided(tmp_path: Path) -> Iterator[MemoryStore]:
    """A transaction that begins in the first segment and stays open over all others."""
    store = MemoryStore(f"undecided-{tmp_path.name}")
    with tiered.open(tmp_path / "undecided", store.url) as log:
        topic = log.topic("t", create=True)
        topic.transaction("w").__enter__().append(b"0: undecided")
        for number in range(1, SEGMENTS + 1):
            log.sync(timeout=60)
            topic.append(b"%d" % number)
    yield store
    MemoryStore.forget(store.url.removeprefix("memory://"))


def forget_open(store: MemoryStore, base: int) -> None:
    """The producer snapshot in a segment's bundle tells no open transaction any more."""
    page = store.execute(List(""))
    assert isinstance(page, Page)
    (key,) = [each.key for each in page.entries if f"/{base:020d}-" in each.key and each.key.endswith(".idx")]
    got = store.execute(Get(key))
    assert isinstance(got, Object)
    bundle = decode_bundle(got.data, key=key)
    entries = [entry._replace(txn_first_offset=-1) for entry in decode_snapshot(bundle.indexes.producer_snapshot)]
    indexes = replace(bundle.indexes, producer_snapshot=encode_snapshot(entries))
    store.execute(Delete((key,)))
    store.execute(Put(key, encode_bundle(bundle.descriptor, indexes, bundle.claim_epoch), ABSENT))


def test_what_it_warned_of_is_told_by_the_next_check_too(undecided: MemoryStore, tmp_path: Path) -> None:
    forget_open(undecided, 4)
    told = check(None, undecided, CheckOptions(read_data=True))
    (found,) = told.findings
    assert (told.exit_code, found.code, found.offset) == (3, "producer_snapshot_lost", 4)
    for _ in range(2):
        store = Watched(undecided)
        again = check(None, store, CheckOptions(read_data=True, resume=tmp_path / "state"))
        assert again.findings == told.findings
    (read,) = store.bytes_read
    assert f"/{4:020d}-" in read


def test_what_is_open_where_it_goes_on_is_known(undecided: MemoryStore, tmp_path: Path) -> None:
    """Of the segments that are passed over nothing is asked; the last of them tells what was open at its end."""
    last = SEGMENTS - 1
    forget_open(undecided, last)
    told = check(None, undecided, CheckOptions(read_data=True))
    (found,) = told.findings
    assert (told.exit_code, found.code, found.offset) == (13, "producer_snapshot_lost", last)
    state = tmp_path / "state"
    with pytest.raises(RemoteUnavailableError):
        check(None, Watched(undecided, 8), CheckOptions(read_data=True, resume=state))
    for passed_over in (8, 0):
        report = check(None, undecided, CheckOptions(read_data=True, resume=state))
        assert (report.passed_over, report.findings) == (passed_over, told.findings)
