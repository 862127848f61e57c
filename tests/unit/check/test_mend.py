"""Bundles made anew from the ``.log``: who reads committed records sees what it saw before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tests.unit.remote.building import RemoteLog, batches, seal
from tiered.care.aside import keep_copy
from tiered.care.check import CheckOptions
from tiered.care.run import check, mend, plan_entry, plan_mend, plan_rebuild, put_entry, rebuild
from tiered.errors import ConfigError, CorruptionError
from tiered.format.keys import FLAG_ABORTED_TXNS, Role, hist_prefix, index_key, root_key, segment_key
from tiered.format.root import decode_root, encode_root
from tiered.format.rows import Rows
from tiered.model import Row, TopicPartition
from tiered.remote.catalog import Catalog
from tiered.remote.topics import TopicEntry, load_topic, register_topic
from tiered.store.base import (
    ABSENT,
    Delete,
    Get,
    Head,
    List,
    Missing,
    Object,
    Outcome,
    Page,
    Put,
    StoreRequest,
    list_all,
)
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

TP = TopicPartition("t", 0)
SETTINGS = {"segment.bytes": 700, "index.interval.bytes": 100}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    name = f"mend-{tmp_path.name}"
    yield MemoryStore(name)
    MemoryStore.forget(name)


def write(directory: Path, store: MemoryStore, seed: int) -> None:
    """Transactions of three producers and single records, in small segments."""
    chance = random.Random(seed)
    with tiered.open(directory, store.url) as log:
        topic = log.topic("t", create=True, config=SETTINGS)
        running: dict[str, tiered.Transaction] = {}
        for step in range(80):
            name, body = chance.choice("abc"), b"%d" % step + b"x" * 40
            if chance.random() < 0.2:
                topic.append(body)
            elif name not in running:
                running[name] = topic.transaction(name)
                running[name].append(body)
            elif chance.random() < 0.6:
                running[name].append(body)
            else:
                txn = running.pop(name)
                txn.commit() if chance.random() < 0.5 else txn.abort()
        for txn in running.values():
            txn.abort()
        log.sync(timeout=60)


def committed(store: MemoryStore) -> list[tuple[int, bytes | None]]:
    with tiered.open_reader(store.url) as reader:
        return [(seen.offset, seen.value) for seen in reader.topic("t").read(isolation="read_committed")]


def bundles(store: MemoryStore) -> list[str]:
    page = store.execute(List(""))
    assert isinstance(page, Page)
    return [entry.key for entry in page.entries if entry.key.endswith(".idx")]


@pytest.mark.parametrize("seed", range(3))
def test_all_bundles_of_a_log_with_transactions(store: MemoryStore, tmp_path: Path, seed: int) -> None:
    write(tmp_path / "log", store, seed)
    before = committed(store)
    for key in bundles(store):
        store.execute(Delete((key,)))
    mend(store, plan_mend(store, TP), "test")
    assert committed(store) == before
    assert check(None, store, CheckOptions(read_data=True)).findings == ()
    with tiered.open(tmp_path / "log", store.url) as log, log.topic("t").transaction("a") as txn:
        txn.append(b"more")
    assert check(tmp_path / "log", store, CheckOptions(read_data=True)).exit_code == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_rebuilt_catalog_shows_nothing_that_was_aborted(store: MemoryStore, tmp_path: Path, seed: int) -> None:
    """Its rows have no bundles before they are mended: until then readers of committed records learn that."""
    write(tmp_path / "log", store, seed)
    before = committed(store)
    entry = drive(store, load_topic("t"))
    assert entry is not None
    copies = [found.key for found in drive(store, list_all(hist_prefix(entry.topic_id, 0)))]
    last = max(bundles(store), key=lambda key: key.rsplit("/", 1)[1])
    lost = [key for key in bundles(store) if key != last]
    store.execute(Delete((root_key(entry.topic_id, 0), *copies, *lost)))
    rebuild(store, plan_rebuild(store, TP, "test"))
    with pytest.raises(CorruptionError, match="names no index bundle") as refused:
        committed(store)
    assert "`tiered repair index t:0`" in refused.value.hint
    mend(store, plan_mend(store, TP), "test")
    assert committed(store) == before
    assert check(None, store, CheckOptions(read_data=True)).findings == ()


@pytest.mark.parametrize("seed", range(3))
def test_a_row_that_does_not_tell_of_aborted_transactions_is_named(
    store: MemoryStore, tmp_path: Path, seed: int
) -> None:
    write(tmp_path / "log", store, seed)
    before, entry = committed(store), drive(store, load_topic("t"))
    assert entry is not None
    key = root_key(entry.topic_id, 0)
    got = store.execute(Get(key))
    assert isinstance(got, Object)
    root = decode_root(got.data, key=key)
    rows = Rows.from_rows([row._replace(flags=row.flags & ~FLAG_ABORTED_TXNS) for row in root.rows])
    assert rows != root.rows
    store.execute(Delete((key,)))
    store.execute(Put(key, encode_root(replace(root, rows=rows, added=rows.tally)), ABSENT))
    assert committed(store) != before
    assert {found.code for found in check(None, store, CheckOptions()).findings} == {"descriptor"}
    mend(store, plan_mend(store, TP), "test")
    assert committed(store) == before


def test_offsets_that_compaction_took_at_the_end_are_no_loss() -> None:
    log = RemoteLog(MemoryStore())
    drive(log.store, register_topic(log.topic, log.topic_id, 1, {}), clock=log.clock, ids=log.ids)
    row = log.add(seal(batches(0, 20), end=25))
    log.add(seal(batches(25, 40)))
    log.store.execute(Delete((index_key(log.topic_id, 0, row),)))
    plan = plan_mend(log.store, TopicPartition(log.topic, 0))
    assert [(each.row, each.lost) for each in plan.rows] == [(row, ())]
    mend(log.store, plan, "test")
    root = log.root
    assert root is not None
    assert next((new.base, new.next, new.size) for new in root.rows) == (0, 25, row.size)


@pytest.mark.parametrize("other", [8, 64], ids=["shorter", "longer"])
def test_another_partitions_segment_of_the_same_offsets_is_no_part_of_it(other: int) -> None:
    log = RemoteLog(MemoryStore())
    drive(log.store, register_topic(log.topic, log.topic_id, 1, {}), clock=log.clock, ids=log.ids)
    rows = [log.add(seal(batches(at, at + 40))) for at in (0, 40, 80)]
    key = segment_key(log.topic_id, 0, rows[1])
    log.store.execute(Delete((key,)))
    data = b"".join(batches(40, 70, size=other))
    log.store.execute(Put(key, data[:-1] + bytes([data[-1] ^ 1]), ABSENT))  # and its last batch is damaged
    plan = plan_mend(log.store, TopicPartition(log.topic, 0), drop=True)
    assert [(loss.start, loss.end) for loss in plan.lost] == [(40, 80)]


def test_what_is_left_of_a_segment_that_was_cut_is_part_of_it() -> None:
    log = RemoteLog(MemoryStore())
    drive(log.store, register_topic(log.topic, log.topic_id, 1, {}), clock=log.clock, ids=log.ids)
    rows = [log.add(seal(batches(at, at + 40))) for at in (0, 40, 80)]
    key = segment_key(log.topic_id, 0, rows[1])
    log.store.execute(Delete((key,)))
    log.store.execute(Put(key, b"".join(batches(40, 80))[:-1], ABSENT))
    plan = plan_mend(log.store, TopicPartition(log.topic, 0), drop=True)
    assert [(loss.start, loss.end) for loss in plan.lost] == [(70, 80)]


def maintained(store: MemoryStore) -> tuple[TopicEntry, Catalog, list[Row]]:
    """The entry of the topic, its catalog as a maintainer who has claimed it holds it, and its rows."""
    entry = drive(store, load_topic("t"))
    assert entry is not None
    catalog = Catalog(entry.topic_id, 0, "t")
    drive(store, catalog.claim(Role.MAINTAINER, "test"))
    pinned = drive(store, catalog.pin())
    assert pinned is not None
    return entry, catalog, list(drive(store, pinned.piece(0)))


def test_a_beginning_that_nobody_knows_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    write(tmp_path / "log", store, 1)
    entry, catalog, rows = maintained(store)
    refused = 0
    for row in rows[1:]:
        drive(store, catalog.trim(row.base))
        store.execute(Delete((index_key(entry.topic_id, 0, row),)))
        try:
            plan = plan_mend(store, TP, [row.base])
            mend(store, plan, "test")
        except CorruptionError as error:
            refused += "whose beginning is not in the bucket" in error.message
            break
        drive(store, catalog.claim(Role.MAINTAINER, "test"))
    assert refused == 1


def test_bytes_under_another_name_bring_their_bundle(store: MemoryStore, tmp_path: Path) -> None:
    """As an upload that nobody named. The bundle alone tells of transactions whose beginning is trimmed."""
    write(tmp_path / "log", store, 1)
    entry, catalog, rows = maintained(store)
    row = next(each for each in rows[1:] if each.flags & FLAG_ABORTED_TXNS)
    drive(store, catalog.trim(row.base))
    before = committed(store)
    for key in (segment_key, index_key):
        name, data = key(entry.topic_id, 0, row), data_of(store, key(entry.topic_id, 0, row))
        store.execute(Put(key(entry.topic_id, 0, row._replace(id_lo=row.id_lo ^ 1)), data, ABSENT))
        store.execute(Delete((name,)))
    mend(store, plan_mend(store, TP), "test")
    assert committed(store) == before
    assert check(None, store, CheckOptions(read_data=True)).exit_code == 0


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("indexes_too", [False, True])
def test_segments_that_changed_places_get_their_bytes_back(
    store: MemoryStore, tmp_path: Path, count: int, indexes_too: bool
) -> None:
    write(tmp_path / "log", store, 2)
    before, keys = committed(store), [key.removesuffix("idx") for key in bundles(store)[1 : 1 + count]]
    for suffix in ("log", "idx") if indexes_too else ("log",):
        bodies = [data_of(store, key + suffix) for key in keys]
        store.execute(Delete(tuple(key + suffix for key in keys)))
        for key, body in zip(keys, bodies[1:] + bodies[:1], strict=True):
            store.execute(Put(key + suffix, body, ABSENT))
    moved = {data_of(store, f"{key}log") for key in keys}
    assert check(None, store, CheckOptions(read_data=True)).exit_code == 13
    with pytest.raises(ConfigError, match="nothing to repair") as refused:
        plan_mend(store, TP, drop=True)
    assert "what only lies under another name `tiered repair index` writes anew" in refused.value.hint
    plan = plan_mend(store, TP)
    assert (plan.lost, [each.body for each in plan.rows]) == (
        (),
        [f"{keys[(at - 1) % count]}log" for at in range(count)],
    )
    assert [each.problem.endswith(f"; {each.body} has its bytes") for each in plan.rows] == [True] * count
    mend(store, plan, "test")
    assert committed(store) == before
    assert check(None, store, CheckOptions(read_data=True)).exit_code == 0
    assert moved <= {bytes(each.data) for each in kept(store)}
    with pytest.raises(ConfigError, match="nothing to repair"):
        plan_mend(store, TP)


def test_what_changed_again_since_the_plan_is_not_written(store: MemoryStore, tmp_path: Path) -> None:
    write(tmp_path / "log", store, 2)
    one, two = (f"{key.removesuffix('idx')}log" for key in bundles(store)[1:3])
    bodies = data_of(store, one), data_of(store, two)
    store.execute(Delete((one, two)))
    for key, body in zip((one, two), reversed(bodies), strict=True):
        store.execute(Put(key, body, ABSENT))
    plan = plan_mend(store, TP)
    for key, body in ((two, bodies[0][:-1] + bytes([bodies[0][-1] ^ 1])), (one, bodies[1])):
        store.execute(Delete((key,)))
        store.execute(Put(key, body, ABSENT))
    with pytest.raises(CorruptionError, match="does not read as it was planned") as refused:
        mend(store, plan, "test")
    assert refused.value.path_or_key == two


def data_of(store: MemoryStore, key: str) -> bytes:
    got = store.execute(Get(key))
    assert isinstance(got, Object)
    return bytes(got.data)


def test_a_plan_that_is_old_changes_nothing(store: MemoryStore, tmp_path: Path) -> None:
    write(tmp_path / "log", store, 2)
    store.execute(Delete((bundles(store)[2],)))
    one, other = plan_mend(store, TP), plan_mend(store, TP)
    mend(store, one, "test")
    with pytest.raises(ConfigError, match="is in another segment by now"):
        mend(store, other, "test")
    with pytest.raises(ConfigError, match="there is nothing to repair"):
        plan_mend(store, TP)


class Short:
    """A store whose ranged GETs of one key come short, and whose copies do, if ``of_copies``."""

    def __init__(self, inner: MemoryStore, key: str, *, of_copies: bool) -> None:
        self.inner, self.key, self.of_copies, self.url = inner, key, of_copies, inner.url

    def execute(self, request: StoreRequest) -> Outcome:
        outcome = self.inner.execute(request)
        if isinstance(outcome, Object) and isinstance(request, Get) and request.key == self.key and not self.of_copies:
            return replace(outcome, data=outcome.data[:-1])
        if isinstance(outcome, Object) and isinstance(request, Head) and "/aside/" in request.key and self.of_copies:
            return replace(outcome, size=outcome.size - 1)
        return outcome

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("of_copies", [False, True])
def test_a_copy_that_is_not_all_of_it_keeps_the_object_in_its_place(store: MemoryStore, of_copies: bool) -> None:
    key, to, data = "a/s/1.log", "a/aside/1", b"all of it"
    store.execute(Put(key, data, ABSENT))
    with pytest.raises(CorruptionError, match="nothing was replaced"):
        drive(Short(store, key, of_copies=of_copies), keep_copy(key, to))
    if of_copies:
        return
    assert drive(store, list_all("a/aside/")) == []
    assert drive(store, keep_copy(key, to))
    copy = store.execute(Get(to))
    assert isinstance(copy, Object)
    assert copy.data == data
    assert not drive(store, keep_copy("a/s/gone", to))  # there is nothing to keep


class Rotted:
    """A store that tells of one key another checksum than its bytes have. Its ``odd`` GET of it (from 1 on) gives
    ``other`` fields."""

    def __init__(self, inner: MemoryStore, key: str, odd: int, **other: object) -> None:
        self.inner, self.key, self.odd, self.other, self.url = inner, key, odd, other, inner.url
        self.gets = 0

    def execute(self, request: StoreRequest) -> Outcome:
        outcome = self.inner.execute(request)
        if isinstance(outcome, Object) and isinstance(request, Head) and request.key == self.key:
            return replace(outcome, crc32c=1)
        if isinstance(outcome, Object) and isinstance(request, Get) and request.key == self.key:
            self.gets += 1
            return replace(outcome, **self.other) if self.gets == self.odd else outcome  # type: ignore[arg-type]
        return outcome

    def close(self) -> None:
        """Nothing is open."""


def test_a_copy_of_what_has_rotted_below_its_checksum_is_what_is_read_twice(store: MemoryStore) -> None:
    key, to, data = "a/s/1.log", "a/aside/1", b"all of it"
    store.execute(Put(key, data, ABSENT))
    for unsteady in (Rotted(store, key, 1, data=b"ALL OF IT"), Rotted(store, key, 2, etag="another")):
        with pytest.raises(CorruptionError, match="nothing was replaced"):
            drive(unsteady, keep_copy(key, to))
        assert drive(store, list_all("a/aside/")) == []
    assert drive(Rotted(store, key, 0), keep_copy(key, to))
    assert data_of(store, to) == data


def test_a_registry_entry_is_not_replaced_where_its_copy_found_nothing(store: MemoryStore, tmp_path: Path) -> None:
    """One false 404 from a store: nothing would have what lay there."""
    write(tmp_path / "log", store, 0)
    store.execute(Delete(("topics/t",)))
    store.execute(Put("topics/t", b"damaged", ABSENT))
    plan = plan_entry(store, "t")

    class Forgets:
        """Says once that there is no entry, when it is asked for its size."""

        url = store.url
        asked = 0

        def execute(self, request: StoreRequest) -> Outcome:
            """One request."""
            if isinstance(request, Head) and request.key == "topics/t":
                self.asked += 1
                if self.asked == 1:
                    return Missing()
            return store.execute(request)

        def close(self) -> None:
            """Nothing is open."""

    with pytest.raises(ConfigError, match="nothing was replaced"):
        put_entry(Forgets(), plan)
    got = store.execute(Get("topics/t"))
    assert isinstance(got, Object)
    assert got.data == b"damaged"
    put_entry(store, plan)
    assert b"damaged" in {bytes(each.data) for each in kept(store)}


def kept(store: MemoryStore) -> Iterator[Object]:
    for entry in drive(store, list_all("")):
        got = store.execute(Get(entry.key))
        if "/aside/" in entry.key and isinstance(got, Object):
            yield got
