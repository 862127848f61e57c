"""What each thing costs at the store, in requests and bytes: exact numbers, which the table in docs/costs.md repeats.

Counted below the retries, on a store that answers: faults cost what they cost. Sizes of roots and indexes are not
repeated here: what is asserted of bytes is that data goes over the wire once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tests.support.proxy import FaultProxy
from tests.unit.remote.cost.bill import Bill, Line
from tiered.erase.erase import erase_steps, plan_erase_steps
from tiered.group.admin import reset_group
from tiered.group.driver import BucketTopics
from tiered.group.member import GroupSettings, Member
from tiered.model import NewRecord, Position, TopicPartition
from tiered.plan.erasure import Selection
from tiered.plan.maintenance import PART_BYTES, ROUTINE, MaintenanceKind
from tiered.plan.read import READ_LIMITS, RemoteSpan
from tiered.program.maintenance_loop import MaintenanceLoop, Scope
from tiered.read.bucket import BucketReads
from tiered.remote.maintain import ActionResult
from tiered.remote.positions import refuse_logged
from tiered.remote.topics import load_topic_to_read
from tiered.store.base import Capabilities
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.store.metrics import StoreMetrics
from tiered.store.options import StoreOptions
from tiered.testing.clock import START_MS, FakeClock, SeededIds
from uploader import Uploader

OLD_MS = START_MS - 2 * 3_600_000
"""Merging leaves what is younger than an hour alone."""
MIB = 1024 * 1024
TP = TopicPartition("t", 0)
TRUSTED = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=True)
CONFIG = {"segment.bytes": MIB, "gc.grace.ms": 0}
RECORD = b"x" * 1000


class Desk:
    """One log, one bucket, a maintainer; a bill of each."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.clock, self.url = FakeClock(), f"memory://cost-{folder}"
        self.log = tiered.open(folder / "log", remote=self.url, clock=self.clock, ids=SeededIds(1))
        self.topic = self.log.topic("t", create=True, config=CONFIG | config)
        self.log.sync()
        self.bill = Bill(self.log.request_counts)
        metrics = StoreMetrics()
        self.upkeep_bill = Bill(metrics)
        self.done: list[ActionResult] = []
        self.store = open_store(self.url, StoreOptions(clock=self.clock, metrics=metrics))

    def segments(self, count: int, *, batches: int = 1, keys: int = 1000) -> int:
        """Seals that many, of batches of 30 records each; the bytes of all of them. Keys repeat after ``keys``."""
        partition = self.log._local.partition(TP)
        before = len(partition.sealed_segments(0))
        for _ in range(count):
            for _ in range(batches):
                keyed = [b"%d" % (number % keys) for number in range(30)]
                self.topic.append_many([NewRecord(RECORD, key, timestamp=OLD_MS) for key in keyed])
            partition.roll()
        return sum(segment.size_bytes for segment in partition.sealed_segments(0)[before:])

    def upkeep(self, *kinds: MaintenanceKind) -> MaintenanceLoop:
        """A maintainer that has looked once: the store is probed only then."""
        upkeep = MaintenanceLoop(
            self.store,
            owner="test",
            clock=self.clock,
            ids=SeededIds(2),
            scope=Scope(kinds or ROUTINE),
            on_done=lambda _, done: self.done.append(done),
        )
        upkeep.turn()
        self.upkeep_bill.take()
        self.done.clear()
        return upkeep

    def reader(self) -> tiered.reader.Reader:
        return tiered.open_reader(self.url, clock=self.clock)

    def close(self) -> None:
        self.log.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    one = Desk(tmp_path)
    yield one
    one.close()


# -- uploads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 10])
def test_an_upload_is_two_puts_a_segment_and_a_commit_one_put_and_one_get(desk: Desk, count: int) -> None:
    """However many segments go into it; and the bytes of the segments are sent once."""
    desk.segments(1)
    desk.log.sync()
    desk.bill.take()
    size = desk.segments(count)
    desk.log.sync()
    lines = desk.bill.take()
    assert {op: line.requests for op, line in lines.items()} == {"put": 2 * count + 1, "get": 1}
    indexes_and_root = lines["put"].sent_bytes - size
    assert 0 < indexes_and_root < 4000 + 500 * count
    assert lines["get"].received_bytes < 4000  # the root


def test_a_sync_with_nothing_new_asks_nothing(desk: Desk) -> None:
    desk.segments(3)
    desk.log.sync()
    desk.bill.take()
    for _ in range(5):
        desk.log.sync()
    assert desk.bill.take() == {}


def test_an_uploader_with_nothing_to_do_asks_nothing(tmp_path: Path) -> None:
    url = f"memory://idle-{tmp_path}"
    with tiered.open(tmp_path / "log", remote=url, uploader=Uploader()) as log:
        log.topic("t", create=True).append(b"one")
        log.sync(timeout=30)
        assert log._uploader is not None
        (attached,) = log._uploader._parts
        service = attached._service  # type: ignore[attr-defined]  # what counts its requests
        bills = Bill(log.request_counts), Bill(service.store_metrics)
        for _ in range(5):
            attached.scan_now()
            attached.status()  # answered on the loop that was poked
            log.sync(timeout=30)
        assert [bill.take() for bill in bills] == [{}, {}]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_lookup_costs_an_index_once_and_then_nothing(desk: Desk) -> None:
    """Behind the topic's entry and the root, which a reader reads once: the index and the piece of data."""
    desk.segments(4)
    desk.log.sync()
    with desk.reader() as reader:
        bill = Bill(reader.request_counts)
        topic = reader.topic("t")
        assert bill.requests() == {"get": 2}
        stream = topic.stream(0)
        assert bill.requests() == {"get": 1}
        assert stream.offset_for_time(OLD_MS) == (0, OLD_MS)
        assert bill.requests() == {"get": 2}
        for _ in range(5):
            assert stream.offset_for_time(OLD_MS) == (0, OLD_MS)
        assert bill.requests() == {}
        stream.refresh()
        assert bill.take() == {"get": Line(1, 0, 0)}  # 304: nothing has changed


def test_a_read_of_a_small_segment_costs_two_gets(desk: Desk) -> None:
    """The root and the segment: an index of less than a megabyte would cost more than it spares."""
    size = desk.segments(1, batches=24)
    desk.log.sync()
    with desk.reader() as reader:
        topic = reader.topic("t")
        bill = Bill(reader.request_counts)
        assert next(iter(topic.read(0, start=500, end=501))).offset == 500
        line = bill.take()["get"]
        assert (line.requests, size < line.received_bytes < size + 4000) == (2, True)


@pytest.mark.parametrize("offset", [0, 500, 8000])
def test_a_read_from_an_offset_costs_three_gets(tmp_path: Path, offset: int) -> None:
    """The root, the index and a chunk of the data, wherever it lies; the next record costs nothing."""
    desk = Desk(tmp_path, **{"segment.bytes": 16 * MIB})
    try:
        desk.segments(1, batches=300)
        desk.log.sync()
        with desk.reader() as reader:
            topic = reader.topic("t")
            bill = Bill(reader.request_counts)
            records = iter(topic.read(0, start=offset, end=offset + 2))
            assert next(records).offset == offset
            line = bill.take()["get"]
            assert (line.requests, line.received_bytes < READ_LIMITS.chunk_bytes + 8000) == (3, True)
            assert next(records).offset == offset + 1
            assert bill.take() == {}
    finally:
        desk.close()


def test_the_next_reads_of_a_segment_cost_two_gets(tmp_path: Path) -> None:
    """The root and a chunk: the reads of one reader, or of an open log, share the indexes that they fetched."""
    desk = Desk(tmp_path, **{"segment.bytes": 16 * MIB})
    try:
        desk.segments(1, batches=300)
        desk.log.sync()
        with desk.reader() as reader:
            topic = reader.topic("t")
            bill = Bill(reader.request_counts)
            asked = []
            for offset in (0, 500, 8000, 500):
                assert next(iter(topic.read(0, start=offset, end=offset + 1))).offset == offset
                asked.append(bill.requests())
            assert asked == [{"get": 3}, {"get": 2}, {"get": 2}, {"get": 2}]
    finally:
        desk.close()


def test_the_next_look_at_a_partition_gets_no_bytes_unless_there_is_something_new(desk: Desk) -> None:
    """Each read asks for the newest root; the streams of one reader, or of an open log, share what was read of it."""
    desk.segments(1)
    desk.log.sync()
    with desk.reader() as reader:
        topic = reader.topic("t")
        for each, bill in ((topic, Bill(reader.request_counts)), (desk.topic, desk.bill)):
            each.stream(0)
            bill.take()
            each.stream(0)
            assert bill.take() == {"get": Line(1, 0, 0)}  # 304
        desk.segments(1)
        desk.log.sync()
        bill = Bill(reader.request_counts)
        assert topic.stream(0).spans()[1] == RemoteSpan(0, desk.topic.positions(0).uploaded_offset)
        line = bill.take()["get"]
        assert (line.requests, 0 < line.received_bytes < 4000) == (1, True)


# -- maintenance -------------------------------------------------------------------------------------------------------


def test_a_round_with_nothing_to_do_costs_two_lists_and_two_gets(desk: Desk) -> None:
    """Topics and groups are listed, an entry a topic and a root a partition are read, however many segments there are.

    A group is two LIST, and two GET for each topic and each partition.
    """
    desk.segments(3)
    desk.log.sync()
    upkeep = desk.upkeep()
    for _ in range(3):
        upkeep.turn()
        assert desk.upkeep_bill.requests() == ROUND
    desk.upkeep()
    topic_id = desk.log.topics()["t"].topic_id
    assert topic_id is not None
    drive(desk.store, reset_group("g", {TP: (topic_id, 0)}))
    desk.upkeep_bill.take()
    upkeep.turn()
    assert desk.upkeep_bill.requests() == {"list": 2 + 2, "get": 2 + 4}
    assert desk.done == []


ROUND = {"list": 2, "get": 2}
"""What a round costs that finds nothing to do."""

CLAIM = {"list": 1, "get": 1, "put": 2}
"""What a claim of a maintainer costs: ``hist/`` is listed and gets a copy of the root, which is put and read back."""


LOOK = {"list": 1, "get": 2}
"""What the look for a newer root costs, before the first action that a process has in a partition."""


def with_a_round_and_a_claim(**requests: int) -> dict[str, int]:
    """What an action costs that is the only one of its round, and the first of its partition."""
    ops = {*requests, *ROUND, *CLAIM, *LOOK}
    return {op: requests.get(op, 0) + ROUND.get(op, 0) + CLAIM.get(op, 0) + LOOK.get(op, 0) for op in ops}


@pytest.mark.parametrize("rows", [4, 8, 16])
def test_a_merge_reads_and_writes_its_bytes_once(desk: Desk, rows: int) -> None:
    """A GET a row and one of the last index; two PUTs of the new segment, one of the root."""
    upkeep = desk.upkeep(MaintenanceKind.MERGE)
    size = desk.segments(rows)
    desk.log.sync()
    upkeep.turn()
    lines = desk.upkeep_bill.take()
    (done,) = desk.done
    assert (done.action.rows_in, done.action.rows_out, done.bytes_read) == (rows, 1, size)
    counts = {op: line.requests for op, line in lines.items()}
    assert counts == with_a_round_and_a_claim(get=rows + 1, put=3)
    beside = 6000 + 100 * rows  # roots, indexes, the registry
    assert size <= lines["get"].received_bytes < size + beside
    assert size <= lines["put"].sent_bytes < size + beside


def test_what_a_merge_writes_beyond_a_part_goes_in_parts(tmp_path: Path) -> None:
    desk = Desk(tmp_path, **{"segment.bytes": 40 * MIB})
    try:
        upkeep = desk.upkeep(MaintenanceKind.MERGE)
        size = desk.segments(4, batches=160)
        assert PART_BYTES < size < 2 * PART_BYTES
        desk.log.sync()
        upkeep.turn()
        parts = {"startupload": 1, "uploadpart": 2, "completeupload": 1}
        assert desk.upkeep_bill.requests() == with_a_round_and_a_claim(get=5, put=2, **parts)
    finally:
        desk.close()


@pytest.mark.parametrize("rows", [4, 8])
def test_a_compaction_reads_its_bytes_twice(tmp_path: Path, rows: int) -> None:
    """Once for the map of keys, once to write what stays: two GETs a row, of the indexes what a segment needs."""
    desk = Desk(tmp_path, **{"cleanup.policy": "compact"})
    try:
        upkeep = desk.upkeep(MaintenanceKind.COMPACT)
        size = desk.segments(rows, batches=4)
        desk.log.sync()
        upkeep.turn()
        (done,) = desk.done
        assert done.bytes_read == 2 * size
        assert desk.upkeep_bill.requests() == with_a_round_and_a_claim(get=2 * rows + 4, put=3)
    finally:
        desk.close()


def test_a_collection_lists_the_pins_and_deletes_a_thousand_keys_a_request(desk: Desk) -> None:
    """Its claim, floor, what is done and two audit lines, before and after, are a PUT each."""
    upkeep = desk.upkeep(MaintenanceKind.MERGE, MaintenanceKind.COLLECT)
    desk.segments(8)
    desk.log.sync()
    upkeep.turn()
    desk.upkeep_bill.take()
    desk.clock.advance(30)
    upkeep.turn()
    collected = desk.done[-1].collected
    assert collected is not None
    assert collected.objects == 16
    assert desk.upkeep_bill.requests() == {"list": 2 + 2, "get": 3, "put": 5, "delete": 1}
    upkeep.turn()
    assert desk.upkeep_bill.requests() == ROUND


@pytest.mark.parametrize(("rows", "hit"), [(4, 1), (8, 2), (8, 0)])
def test_an_erasure_reads_each_segment_once(desk: Desk, rows: int, hit: int) -> None:
    """All of them by the plan; of those that hold it the old one and the new one once more. The old ones wait."""
    sizes: list[int] = []
    for at in range(rows):
        if at < hit:
            desk.topic.append_many([NewRecord(RECORD, b"gone", timestamp=OLD_MS)])
        sizes.append(desk.segments(1, batches=10))
    desk.log.sync()
    entry = drive(desk.store, load_topic_to_read("t"), clock=desk.clock)
    assert entry is not None

    selection = Selection(frozenset([b"gone"]))
    desk.upkeep_bill.take()
    plan = drive(desk.store, plan_erase_steps(TP, entry, selection), clock=desk.clock)
    assert plan is not None
    planned = desk.upkeep_bill.take()
    job_id = selection.job_id(entry.topic_id, [0])
    steps = erase_steps(plan, selection, "test", job_id, capabilities=TRUSTED)
    erased = drive(desk.store, steps, clock=desk.clock, ids=SeededIds(3))
    done = desk.upkeep_bill.take()
    assert {op: line.requests for op, line in planned.items()} == {"get": rows + 1, "list": 2}
    assert sum(sizes) <= planned["get"].received_bytes < sum(sizes) + 6000
    assert (erased.records, len(erased.left), erased.read_objects) == (hit, hit, rows + hit)
    claimed = {"get": 1 + LOOK["get"], "list": 1 + LOOK["list"], "put": 1} if hit else {"get": 0, "list": 0, "put": 0}
    asked = {"get": 5 * hit + 3 + claimed["get"], "list": 4 + claimed["list"], "put": 5 * hit + claimed["put"]}
    assert {op: line.requests for op, line in done.items()} == {op: count for op, count in asked.items() if count}
    old = sum(sizes[:hit])
    new = old - hit * (sizes[0] - sizes[-1] - 61)  # a batch that is emptied keeps its header
    beside = 12_000 * (hit + 1)  # roots, indexes, notes
    assert old + new <= done["get"].received_bytes < old + new + beside
    if hit:
        assert new <= done["put"].sent_bytes < new + beside


def test_the_figures_are_those_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is counted is one over the wire. moto tells no checksum of what it stored: each object costs a
    HEAD and a GET more, as ``remote.upload`` looks at it."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with locked_moto() as url, FaultProxy(url) as proxy:
        make_bucket(url, "cost-over-http")
        with tiered.open(tmp_path / "log", remote="s3://cost-over-http/log", endpoint_url=proxy.url) as log:
            topic = log.topic("t", create=True)
            topic.append(b"one")
            log.sync()
            bill = Bill(log.request_counts)
            proxy.clear()
            topic.append(b"two")
            log.sync()
            log.sync()
            assert bill.requests() == {"put": 3, "get": 1 + 2, "head": 2}
            assert Counter(seen.method for seen in proxy.seen) == {"PUT": 3, "GET": 1 + 2, "HEAD": 2}


# -- groups ------------------------------------------------------------------------------------------------------------


def test_positions_of_a_group_of_the_log(desk: Desk) -> None:
    desk.segments(1)
    with desk.log.consumer("g", "t", stop_at="end") as consumer:
        assert desk.bill.requests() == {"get": 1}
        for read in (10, 20):
            consumer.poll(10)
            consumer.commit()
            desk.bill.take()
            desk.log.sync()
            # The first time also the upload and the commit.
            assert desk.bill.requests() == ({"put": 3 + 1, "get": 1 + 1} if read == 10 else {"put": 1, "get": 1})
        desk.log.sync()
        assert desk.bill.requests() == {}
    drive(desk.store, refuse_logged("other", ["t"], desk.clock.now_ms()))
    assert desk.upkeep_bill.requests() == {"get": 1 + 1 + 1}


def test_a_member_of_a_group(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    clock, reads, bill = FakeClock(), BucketReads(desk.store), desk.upkeep_bill
    member = Member("g", "a", ["t"], BucketTopics(reads, "latest", None), GroupSettings())

    def rounds(count: int) -> dict[str, int]:
        for _ in range(count):
            clock.advance(drive(desk.store, member.round(), clock=clock))
            member.poll([], clock.monotonic())
        return bill.requests()

    # Its object; then a heartbeat, the plan, one partition that is looked at, resolved and taken.
    assert rounds(2) == {"put": 4, "list": 2, "get": 5}
    assert rounds(5) == {"put": 5, "list": 5, "get": 5}
    assert rounds(1) == {"put": 1, "list": 1, "get": 3}  # with its look for new partitions
    assert drive(desk.store, member.commit({TP: Position(0)})) == {}
    assert bill.requests() == {"put": 1}
    drive(desk.store, member.leave())
    assert bill.requests() == {"put": 2, "delete": 1}
    desk.close()
