"""A directory as of something, until something, under another name: exactly that, checked, and a log of its own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.admin import check, restore
from tests.unit.check.building import BATCH, RECORDS, TOPIC, Scenario, record, scenario
from tiered.check.check import CheckOptions
from tiered.errors import ConfigError, CorruptionError, FencedError, NotFoundError, OffsetOutOfRangeError
from tiered.format.keys import FLAG_HOLE, Role, index_key
from tiered.local.disk.claims import Claims
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import UploadCheckpoint
from tiered.model import Row, TopicPartition
from tiered.plan.maintenance import MaintenanceKind
from tiered.remote.catalog import Catalog
from tiered.remote.maintain import Maintainer
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import create_snapshot
from tiered.remote.topics import load_topic
from tiered.restore.plan import RestoreOptions, choose_rows
from tiered.store.capabilities import probe
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import START_MS

pytestmark = pytest.mark.usefixtures("both_catalogs")
TP = TopicPartition(TOPIC, 0)
ONE = ((TOPIC, 0),)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path, partitions=2) as built:
        yield built


def values(directory: Path, topic: str = TOPIC, partition: int = 0) -> list[bytes | None]:
    with tiered.open_reader(log_dir=directory) as reader:
        return [seen.value for seen in reader.topic(topic).read(partition)]


def expected(count: int) -> list[bytes | None]:
    return [record(number).value for number in range(count)]


def clean(directory: Path) -> bool:
    return check(directory, None, CheckOptions(read_data=True)).findings == ()


@pytest.mark.parametrize("end", [0, 1, BATCH, 2 * BATCH - 1, 50, RECORDS - 1, RECORDS, RECORDS + 7])
def test_until_an_offset_ends_at_the_batch_that_holds_it(log: Scenario, tmp_path: Path, end: int) -> None:
    report = restore(log.store, tmp_path / "new", RestoreOptions(ONE, until_offset=end))
    whole = min(end - end % BATCH, RECORDS)
    assert (report.plans[0].end_offset, report.notes) == (whole, ())
    assert values(tmp_path / "new") == expected(whole)
    assert clean(tmp_path / "new")
    with tiered.open(tmp_path / "new") as opened:
        assert opened.topic(TOPIC).append(b"more", partition=0).offset == whole
    assert values(tmp_path / "new") == [*expected(whole), b"more"]
    assert clean(tmp_path / "new")


def test_every_border_of_batches_and_segments(log: Scenario, tmp_path: Path) -> None:
    rows = log.rows()
    for number, end in enumerate(range(0, RECORDS + 1, BATCH)):
        target = tmp_path / f"new-{number}"
        report = restore(log.store, target, RestoreOptions(ONE, until_offset=end))
        assert values(target) == expected(end), end
        assert report.segments == sum(row.base < end for row in rows)
        assert clean(target), end


def test_until_a_time_is_before_the_first_record_of_it_in_each_partition(log: Scenario, tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(8):
        until = START_MS + chance.randrange(-2000, RECORDS * 1000 + 2000)
        first = min(max(-(-(until - START_MS) // 1000), 0), RECORDS)
        target = tmp_path / f"new-{number}"
        report = restore(log.store, target, RestoreOptions(until_ms=until))
        whole = first - first % BATCH
        assert [plan.end_offset for plan in report.plans] == [whole, whole], until
        assert [values(target, partition=partition) for partition in (0, 1)] == [expected(whole)] * 2
        assert clean(target)


def test_a_dry_run_tells_the_end_exactly(log: Scenario, tmp_path: Path) -> None:
    report = restore(log.store, tmp_path / "new", RestoreOptions(ONE, until_offset=57, dry_run=True))
    assert (report.plans[0].start_offset, report.plans[0].end_offset) == (0, 56)
    assert not (tmp_path / "new").exists()


def test_a_part_until_an_offset(log: Scenario, tmp_path: Path) -> None:
    rows = log.rows()
    since = rows[2].min_ts
    end = rows[3].base + BATCH
    report = restore(log.store, tmp_path / "new", RestoreOptions(ONE, since_ms=since, until_offset=end))
    assert (report.plans[0].start_offset, report.plans[0].end_offset) == (rows[2].base, end)
    assert values(tmp_path / "new") == expected(end)[rows[2].base :]
    newest = restore(log.store, tmp_path / "newest", RestoreOptions(ONE, newest_bytes=1, until_offset=end))
    assert newest.plans[0].rows == (rows[3],)
    assert values(tmp_path / "newest") == expected(end)[rows[3].base :]
    assert clean(tmp_path / "new")
    assert clean(tmp_path / "newest")


def test_what_is_cut_is_a_log_of_its_own(log: Scenario, tmp_path: Path) -> None:
    restore(log.store, tmp_path / "new", RestoreOptions(until_ms=START_MS + 50_000))
    files = PosixFiles()
    assert (UploadCheckpoint(tmp_path / "new", files).read(), Claims(tmp_path / "new", files).read()) == ({}, {})
    with (
        tiered.open(tmp_path / "new", log.url) as again,
        pytest.raises(FencedError, match="holds records up to offset 48"),
    ):
        again.topic(TOPIC)
    assert log.root().next_offset == RECORDS
    other = MemoryStore(f"{log.url.removeprefix('memory://')}-other")
    try:
        restore(log.store, tmp_path / "third", RestoreOptions(until_ms=START_MS + 50_000))
        with tiered.open(tmp_path / "third", other.url) as elsewhere:
            elsewhere.sync(timeout=60)
        with tiered.open_reader(other.url) as reader:
            assert [seen.value for seen in reader.topic(TOPIC).read(0)] == expected(48)
        assert check(tmp_path / "third", other, CheckOptions(read_data=True)).findings == ()
    finally:
        MemoryStore.forget(other.url.removeprefix("memory://"))


def test_under_another_name_it_lives_beside_the_first(log: Scenario, tmp_path: Path) -> None:
    report = restore(log.store, tmp_path / "new", RestoreOptions(((TOPIC, None),), name="copy"))
    assert [plan.tp for plan in report.plans] == [TopicPartition("copy", 0), TopicPartition("copy", 1)]
    with tiered.open(tmp_path / "new", log.url) as copy:
        assert copy.topic("copy").append(b"more", partition=0).offset == RECORDS
        copy.sync(timeout=60)
    with tiered.open_reader(log.url) as reader:
        assert [seen.value for seen in reader.topic("copy").read(0)] == [*expected(RECORDS), b"more"]
        assert [seen.value for seen in reader.topic(TOPIC).read(0)] == expected(RECORDS)
    assert check(tmp_path / "new", log.store, CheckOptions(("copy",), read_data=True)).findings == ()
    with tiered.open(log.directory, log.url) as first:  # its claim was never touched
        first.topic(TOPIC).append(b"x", partition=0)
        first.sync(timeout=60)
    with pytest.raises(ConfigError, match=r"there is a topic copy in .* already"):
        restore(log.store, tmp_path / "again", RestoreOptions(((TOPIC, None),), name="copy"))


def view(log: Scenario, partition: int = 0) -> RootView:
    return RootView(log.root().topic_id, partition, TOPIC)


def test_as_of_a_snapshot_of_one_partition(log: Scenario, tmp_path: Path) -> None:
    drive(log.store, create_snapshot(view(log), "first"))
    with tiered.open(log.directory, log.url) as more:
        more.topic(TOPIC).append_many([record(RECORDS + i) for i in range(BATCH)], partition=0)
        more.sync(timeout=60)
    report = restore(log.store, tmp_path / "new", RestoreOptions(as_of="first"))
    assert values(tmp_path / "new") == expected(RECORDS)
    assert [str(plan.taken).endswith("(snapshot first)") for plan in report.plans] == [True, False]
    assert report.notes == (f"{TopicPartition(TOPIC, 1)} was not there as of first: it is empty",)
    both = RestoreOptions(ONE, as_of="first", until_offset=50, name="copy")
    restore(log.store, tmp_path / "both", both)
    assert values(tmp_path / "both", "copy") == expected(48)
    assert clean(tmp_path / "new")
    assert clean(tmp_path / "both")


def test_as_of_a_time_before_there_was_a_topic(log: Scenario, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no topic of .* was there as of 2020-01-01"):
        restore(log.store, tmp_path / "new", RestoreOptions(as_of="2020-01-01"))
    with pytest.raises(NotFoundError, match=f"topic {TOPIC} was not there as of 2020-01-01"):
        restore(log.store, tmp_path / "new", RestoreOptions(ONE, as_of="2020-01-01"))
    with pytest.raises(NotFoundError, match="version 99 was not kept"):
        restore(log.store, tmp_path / "new", RestoreOptions(ONE, as_of=99))
    assert list(tmp_path.glob("*new*")) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (RestoreOptions(until_offset=3), "more than one is to be restored"),
        (RestoreOptions(((TOPIC, None),), until_offset=3), "more than one is to be restored"),
        (RestoreOptions(ONE, until_offset=-1), "is not an offset"),
        (RestoreOptions(ONE, until_offset=3, until_ms=3), "exclude each other"),
        (RestoreOptions(since_ms=5, until_ms=5), "since is not before until"),
        (RestoreOptions(name="copy"), "needs a single topic"),
        (RestoreOptions(ONE, name="a/b"), "is not allowed"),
        (RestoreOptions(ONE, name=TOPIC), "already"),
    ],
)
def test_what_cannot_be_meant(log: Scenario, tmp_path: Path, options: RestoreOptions, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        restore(log.store, tmp_path / "new", options)
    assert not (tmp_path / "new").exists()


def test_an_offset_that_was_trimmed(tmp_path: Path) -> None:
    with scenario(tmp_path) as log:
        catalog = Catalog(log.root().topic_id, 0, TOPIC)
        drive(log.store, catalog.claim(Role.MAINTAINER, "test"))
        drive(log.store, catalog.trim(10))
        with pytest.raises(OffsetOutOfRangeError, match="begins at offset 10, it cannot be restored until 9"):
            restore(log.store, tmp_path / "new", RestoreOptions(ONE, until_offset=9))
        report = restore(log.store, tmp_path / "new", RestoreOptions(ONE, until_offset=11))
        assert (report.plans[0].start_offset, report.plans[0].end_offset) == (10, 10)


def test_a_cut_segment_whose_object_is_damaged(log: Scenario, tmp_path: Path) -> None:
    key = log.log_key(log.rows()[1])
    data = bytearray(log.read(key))
    data[-1] ^= 1  # behind the cut
    log.replace(key, bytes(data))
    with pytest.raises(CorruptionError, match=key):
        restore(log.store, tmp_path / "new", RestoreOptions(ONE, until_offset=log.rows()[1].base + BATCH))
    assert list(tmp_path.glob("*new*")) == []


def test_a_lost_bundle_of_the_cut_segment_is_made_anew(log: Scenario, tmp_path: Path) -> None:
    rows = log.rows()
    log.delete(index_key(log.root().topic_id, 0, rows[1]))
    report = restore(log.store, tmp_path / "new", RestoreOptions(ONE, until_offset=rows[1].base + BATCH))
    assert (values(tmp_path / "new"), len(report.notes)) == (expected(rows[1].base + BATCH), 1)
    assert clean(tmp_path / "new")


def transactions(directory: Path, url: str, seed: int, *, keyed: bool = False) -> dict[int, tuple[int, bool]]:
    """Interleaved transactions and single records, uploaded; offset of each record: where it was decided, and how.

    A record without a transaction is decided where it stands. ``keyed``: few transactions that are open for long, among
    many single records of two keys, in a topic to be compacted.
    """
    chance, told = random.Random(seed), dict[int, tuple[int, bool]]()
    steps, singles, longer, kept = (120, 0.9, 0.0, 0.8) if keyed else (90, 0.2, 0.6, 0.5)
    config = {"segment.bytes": 400, "cleanup.policy": "compact"} if keyed else {"segment.bytes": 700}
    with tiered.open(directory, url) as log:
        topic = log.topic(TOPIC, create=True, config={"index.interval.bytes": 100, **config})
        running: dict[str, tuple[tiered.Transaction, list[int]]] = {}

        def end(txn: tiered.Transaction, offsets: list[int], *, keep: bool) -> None:
            txn.commit() if keep else txn.abort()
            told.update(dict.fromkeys(offsets, (log.positions()[TP].end_offset - 1, keep)))

        for step in range(steps):
            name = chance.choice("abc")
            if chance.random() < singles:
                offset = topic.append(b"x" * 40, key=b"%d" % chance.randrange(2)).offset
                told[offset] = (offset, True)
            elif name in running and chance.random() >= longer:
                end(*running.pop(name), keep=chance.random() < kept)
            else:
                txn, offsets = running[name] = running.get(name) or (topic.transaction(name), [])
                offsets.append(txn.append(b"x" * 40, key=b"%s-%d" % (name.encode(), step)).offset)
        for each in running.values():
            end(*each, keep=keyed)
        log.sync(timeout=60)
    return told


@pytest.mark.parametrize("seed", range(3))
def test_transactions_that_are_cut_open_are_aborted(tmp_path: Path, seed: int) -> None:
    url = f"memory://restore-cut-{seed}-{tmp_path.name}"
    store = MemoryStore(url.removeprefix("memory://"))
    try:
        told = transactions(tmp_path / "log", url, seed)
        end = max(told) + 1
        chance = random.Random(seed)
        for number in range(12):
            until = chance.randrange(end)
            since = chance.choice([None, 300, 1200])  # with a beginning that nothing on the disk tells
            target = tmp_path / f"new-{number}"
            options = RestoreOptions(ONE, until_offset=until, newest_bytes=since)
            report = restore(store, target, options)
            assert report.notes == ()
            start = report.plans[0].start_offset
            assert report.plans[0].end_offset - report.plans[0].aborted == until  # each record is a batch here
            assert clean(target), (seed, until, since)
            with tiered.open(target) as opened:
                found = [seen.offset for seen in opened.topic(TOPIC).read(isolation="read_committed")]
                opened.topic(TOPIC).append(b"more")
            committed = [at for at, (decided, keep) in sorted(told.items()) if start <= at < until > decided and keep]
            assert found == committed, (seed, until, since)
            assert clean(target), (seed, until, since)
    finally:
        MemoryStore.forget(url.removeprefix("memory://"))


def compacted(store: MemoryStore) -> list[Row]:
    """Compacts the partition in the bucket; gives the rows that are left."""
    entry = drive(store, load_topic(TOPIC))
    assert entry is not None
    maintainer = Maintainer(TP, entry.topic_id, entry.settings, owner="m:1")
    plan = drive(store, maintainer.plan([MaintenanceKind.COMPACT]))
    assert plan is not None
    for action in plan.actions:
        drive(store, maintainer.run(action, drive(store, probe())))
    snapshot = drive(store, RootView(entry.topic_id, 0, TOPIC).pin())
    assert snapshot is not None
    return list(drive(store, choose_rows(snapshot)))


@pytest.mark.parametrize("seed", range(3))
def test_transactions_that_are_cut_open_behind_a_hole_are_aborted(tmp_path: Path, seed: int) -> None:
    """A hole has no bundle: who had a transaction open across it is told by the segment before it."""
    url = f"memory://restore-hole-{seed}-{tmp_path.name}"
    store = MemoryStore(url.removeprefix("memory://"))
    try:
        told = transactions(tmp_path / "log", url, seed, keyed=True)
        rows = compacted(store)
        assert any(row.flags & FLAG_HOLE for row in rows)
        with tiered.open_reader(url) as reader:
            left = [seen.offset for seen in reader.topic(TOPIC).read(0) if seen.offset in told]
        behind = [row for hole, row in itertools.pairwise(rows) if hole.flags & FLAG_HOLE and row.size]
        for row in behind:
            for until, newest in ((row.base + 1, None), (row.next - 1, None), (row.next - 1, row.size)):
                target = tmp_path / f"new-{until}-{newest}"
                options = RestoreOptions(ONE, until_offset=until, newest_bytes=newest)
                report = restore(store, target, options)
                start = report.plans[0].start_offset
                assert clean(target), (until, newest)
                with tiered.open(target) as opened:
                    found = [seen.offset for seen in opened.topic(TOPIC).read(isolation="read_committed")]
                    end = report.plans[0].end_offset - report.plans[0].aborted
                assert found == [at for at in left if start <= at < end > told[at][0] and told[at][1]], (until, newest)
    finally:
        MemoryStore.forget(url.removeprefix("memory://"))
