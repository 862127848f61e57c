"""Erasure of keys from a bucket, by values: what goes, what stays to the byte, who holds it, what a crash leaves."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.admin import check
from tests.support.remote_face import RemoteFace
from tests.unit.remote.building import FIRST_MS, TOPIC_ID, RemoteLog, batches, records, seal
from tests.unit.remote.recording import RecordingStore
from tests.unit.remote.staging import twins
from tiered.check.check import CheckOptions
from tiered.config import DAY_MS, TopicConfig
from tiered.erase.erase import Erased, ErasePlan, erase_steps, plan_erase_steps, receipt_steps
from tiered.errors import ConfigError, CorruptionError
from tiered.format.batch import decode_records, encode_batch, read_header
from tiered.format.codecs import Codec
from tiered.format.kernels import Record, crc32c
from tiered.format.keys import (
    FLAG_STAGED,
    Role,
    aside_key,
    index_key,
    parse_segment_key,
    partition_prefix,
    root_key,
    segment_key,
)
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from tiered.format.rows import Rows
from tiered.model import TRASH_LIST, Row, TopicPartition
from tiered.plan.commit import SHAPE
from tiered.plan.erasure import Selection
from tiered.plan.invariants import check_root
from tiered.plan.maintenance import MaintenanceKind
from tiered.remote.catalog import Catalog
from tiered.remote.gc.garbage import Collector
from tiered.remote.maintain import Maintainer
from tiered.remote.pins import Pin
from tiered.remote.reader import RemotePartition
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import create_snapshot, delete_snapshot
from tiered.remote.topics import TopicEntry, load_topic, register_topic
from tiered.store.base import Capabilities, Get, List, ListPage, Match, Object, Outcome, Put, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.store.unique_upload import put_unique
from tiered.testing.clock import FakeClock


def staged_records(log: RemoteLog) -> list[Record]:
    face = RemoteFace(log.store, log.topic, TOPIC_ID, 0, clock=log.clock)
    return [record for batch in face.read_batches(0) for record in decode_records(bytes(batch))]


def test_erased_they_are_what_an_erased_log_is() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    logs = [RemoteLog(MemoryStore()) for _ in range(2)]
    for log in logs:
        drive(log.store, register_topic(log.topic, log.topic_id, 1, {}), clock=log.clock, ids=log.ids)
    logs = list(twins(logs[0].store, logs[1].store, seed))
    before = staged_records(logs[0])
    assert logs[0].root is not None
    staged = [row for row in logs[0].root.rows if row.flags & FLAG_STAGED]
    assert staged
    key = next(record.key for record in before if record.key is not None)
    selection = Selection(frozenset([key]))
    for log in logs:
        entry = drive(log.store, load_topic(log.topic))
        assert entry is not None
        plan = drive(log.store, plan_erase_steps(TP, entry, selection))
        assert plan is not None
        assert plan.records == sum(record.key == key for record in before)
        done = drive(
            log.store, erase_steps(plan, selection, "m:1", "erase-test", now=True), clock=log.clock, ids=log.ids
        )
        assert (done.records, done.left) == (plan.records, ())
        assert staged_records(log) == [record for record in before if record.key != key]
        report = check(None, log.store, CheckOptions(read_data=True))
        assert (report.errors, report.warnings) == (0, 0)
    root = logs[0].root
    assert root is not None
    assert len([row for row in root.rows if row.flags & FLAG_STAGED]) < len(staged)


TP = TopicPartition("flights", 0)
ENTRY = TopicEntry("flights", TOPIC_ID, 1, {})
KEY = Selection(frozenset([b"key-3"]))
JOB = KEY.job_id(TOPIC_ID, [0])
TRUSTED = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=True)
WHO = ProducerEntry(7, 0, 499, 499, 9, FIRST_MS)


class Bucket:
    """Segments of a hundred records of seven keys; the batches of each have another codec."""

    def __init__(self, segments: int = 5) -> None:
        self.clock = FakeClock()
        self.store = RecordingStore(MemoryStore(clock=self.clock))
        self.log = RemoteLog(self.store, clock=self.clock)
        for at, codec in zip(range(0, segments * 100, 100), Codec, strict=False):
            self.log.add(seal(batches(at, at + 100, codec=codec), snapshot=encode_snapshot([WHO])))
        self.clock.advance(86_400)

    def run(self, steps: Any) -> Any:
        return drive(self.store, steps, clock=self.clock, ids=self.log.ids)

    def plan(self, selection: Selection = KEY) -> ErasePlan:
        plan = self.run(plan_erase_steps(TP, ENTRY, selection))
        assert isinstance(plan, ErasePlan)
        return plan

    def erase(self, selection: Selection = KEY, *, now: bool = False) -> Erased:
        erased = self.run(erase_steps(self.plan(selection), selection, "m:1", JOB, now=now))
        assert isinstance(erased, Erased)
        return erased

    def receipt(self, erased: Erased) -> dict[str, Any]:
        key = self.run(receipt_steps(JOB, TOPIC_ID, KEY, erased, {"owner": "m:1"}))
        assert key == f"erasures/{TOPIC_ID.hex}-0/{JOB}/receipt.json"
        return json.loads(self.data(key))  # type: ignore[no-any-return]

    def data(self, key: str) -> bytes:
        found = self.store.inner.execute(Get(key))
        assert isinstance(found, Object)
        return bytes(found.data)

    def face(self) -> RemoteFace:
        return RemoteFace(self.store, self.log.topic, TOPIC_ID, 0, clock=self.clock)

    def read(self, start: int = 0) -> list[Record]:
        return [record for batch in self.face().read_batches(start) for record in decode_records(bytes(batch))]

    def batches(self) -> dict[int, bytes]:
        return {read_header(bytes(batch)).base_offset: bytes(batch) for batch in self.face().read_batches(0)}

    @property
    def rows(self) -> list[Row]:
        root = self.log.root
        assert root is not None
        assert check_root(root) == []
        return list(root.rows)

    def objects(self, folder: str = "s/") -> set[str]:
        page = self.store.inner.execute(List(partition_prefix(TOPIC_ID, 0) + folder))
        assert isinstance(page, ListPage)
        return {entry.key for entry in page.entries}

    def holding(self, key: bytes) -> set[str]:
        """Every object of the bucket in which the key stands, whatever it is called, compressed or not."""
        page = self.store.inner.execute(List(""))
        assert isinstance(page, ListPage)
        found = set()
        for entry in page.entries:
            data = self.data(entry.key)
            parsed = parse_segment_key(entry.key)
            if parsed is not None and parsed.suffix == "log":
                at = 0
                while at < len(data):
                    end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
                    if any(record.key == key for record in decode_records(data[at:end])):
                        found.add(entry.key)
                    at = end
            elif key in data:
                found.add(entry.key)
        return found


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def meant(record: Record) -> bool:
    return record.key == b"key-3"


@pytest.mark.parametrize("now", [False, True])
def test_nothing_is_erased_under_an_older_root_that_was_put_back(now: bool) -> None:
    """A commit of it would be newer than all evidence of the newer root."""
    bucket = Bucket()
    key = root_key(TOPIC_ID, 0)
    older = bucket.data(key)
    maintainer = Maintainer(TP, TOPIC_ID, TopicConfig(), owner="m:1")
    (trim,) = bucket.run(maintainer.plan((MaintenanceKind.RETENTION,), begin_at=100)).actions
    bucket.run(maintainer.run(trim, TRUSTED))
    newer = bucket.store.inner.execute(Get(key))
    assert isinstance(newer, Object)
    bucket.store.inner.execute(Put(key, older, Match(newer.etag)))
    objects = bucket.objects()
    with pytest.raises(CorruptionError, match=r"`hist/` has a copy of version"):
        bucket.erase(now=now)
    assert (bucket.data(key), bucket.objects()) == (older, objects)


def test_what_is_not_erased_keeps_its_offset_and_its_bytes(bucket: Bucket) -> None:
    before, parts, rows = bucket.read(), bucket.batches(), bucket.rows
    plan = bucket.plan()
    assert (plan.records, plan.segments, len(plan.hits)) == (sum(map(meant, before)), 5, 5)
    assert bucket.rows == rows  # a plan changes nothing
    done = bucket.erase()
    assert done.records == sum(map(meant, before))
    assert bucket.read() == [record for record in before if not meant(record)]
    after = bucket.batches()
    assert after.keys() == parts.keys()  # also those that are empty now
    for base, batch in parts.items():
        if not any(map(meant, decode_records(batch))):
            assert after[base] == batch
        else:
            was, now = read_header(batch), read_header(after[base])
            assert (now.last_offset, now.producer_id, now.leader_epoch, now.codec) == (
                was.last_offset, was.producer_id, was.leader_epoch, was.codec
            )  # fmt: skip
    assert [(row.base, row.next) for row in bucket.rows] == [(row.base, row.next) for row in rows]
    assert decode_snapshot(bucket.face().producer_snapshot()) == [WHO]
    for record in before:
        found = bucket.face().offset_for_time(record.timestamp)
        expected = next(each.offset for each in before if not meant(each) and each.offset >= record.offset)
        assert found is not None
        assert found[0] == expected


def test_only_the_segments_that_hold_it_are_written_anew(bucket: Bucket) -> None:
    rows = bucket.rows
    selection = Selection(frozenset([b"key-3"]), before_ms=FIRST_MS + 1500)
    done = bucket.erase(selection)
    assert [row == old for row, old in zip(bucket.rows, rows, strict=True)] == [False, False, True, True, True]
    assert [record.offset for record in bucket.read()] == [at for at in range(500) if at % 7 != 3 or at >= 150]
    assert done.records == len([at for at in range(150) if at % 7 == 3])


@pytest.mark.parametrize(
    ("selection", "goes"),
    [
        (Selection(prefixes=(b"key-",)), lambda at: True),
        (Selection(prefixes=(b"key-1", b"key-5")), lambda at: at % 7 in (1, 5)),
        (Selection(before_ms=FIRST_MS + 2000), lambda at: at < 200),
        (Selection(frozenset([b"key-0", b"no"]), (b"key-6",), FIRST_MS + 70), lambda at: at in (0, 6)),
        (Selection(frozenset([b"nobody"])), lambda at: False),
    ],
)
def test_what_is_meant(bucket: Bucket, selection: Selection, goes: Callable[[int], bool]) -> None:
    rows = bucket.rows
    done = bucket.erase(selection)
    assert [record.offset for record in bucket.read()] == [at for at in range(500) if not goes(at)]
    assert (bucket.rows == rows) is (done.records == 0)
    assert bucket.face().next_offset == 500


def test_nothing_to_go_by_is_refused() -> None:
    for wrong in (Selection, lambda: Selection(prefixes=(b"",))):
        with pytest.raises(ConfigError):
            wrong()


def test_a_record_without_a_time_is_not_older_than_anything() -> None:
    log = RemoteLog(MemoryStore())
    log.add(seal([encode_batch([record._replace(timestamp=-1) for record in records(0, 5)], base_offset=0)]))
    plan = drive(log.store, plan_erase_steps(TP, ENTRY, Selection(before_ms=FIRST_MS)))
    assert plan is not None
    assert plan.records == 0


# -- the old objects ---------------------------------------------------------------------------------------------------


def test_what_waits_for_its_grace_is_named_and_later_nothing_is_left(bucket: Bucket) -> None:
    old = {key for key in bucket.objects() if key.endswith(".log")}
    done = bucket.erase()
    assert {each.key for each in done.left} == old == bucket.holding(b"key-3")
    assert {each.why for each in done.left} == {
        "it waits for gc.grace.ms: `tiered maintain --only collect` deletes it then"
    }
    receipt = bucket.receipt(done)
    assert receipt["proven"] is False
    assert b"key-3" not in json.dumps(receipt).encode()
    bucket.clock.advance(DAY_MS / 1000 + 1)
    maintainer = Maintainer(TP, TOPIC_ID, TopicConfig(), owner="m:2")
    plan = bucket.run(maintainer.plan((MaintenanceKind.COLLECT,)))
    bucket.run(maintainer.run(plan.actions[0], TRUSTED))
    again = bucket.erase()
    assert (again.records, again.left) == (0, ())
    assert bucket.holding(b"key-3") == set()
    receipt = bucket.receipt(again)
    assert receipt["proven"] is True
    (one,) = receipt["partitions"]
    assert {each["before"] for each in one["segments"]} == old
    assert (one["records"], one["records_now"], one["read_objects"]) == (len(range(3, 500, 7)), 0, 5)


def test_now_deletes_the_old_objects_and_nothing_else(bucket: Bucket) -> None:
    """Objects of others in the trash keep their grace."""
    maintainer = Maintainer(TP, TOPIC_ID, TopicConfig(), owner="m:2")
    trim = bucket.run(maintainer.plan((MaintenanceKind.RETENTION,), begin_at=100)).actions[0]
    bucket.run(maintainer.run(trim, TRUSTED))
    trimmed = {key for key in bucket.objects() if f"/{0:020d}-" in key}
    done = bucket.erase(now=True)
    assert done.collected is not None
    assert done.collected.objects == 8
    assert bucket.holding(b"key-3") == {key for key in trimmed if key.endswith(".log")}  # it is told
    assert {each.key for each in done.left} == bucket.holding(b"key-3")
    assert trimmed <= bucket.objects()


@pytest.mark.parametrize("entries", [2, 3, 5])
def test_now_deletes_what_stands_in_pages_of_the_trash(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large erasure leaves more than a root names itself. What others have left there keeps its grace."""
    shape = replace(SHAPE, trash_entries=entries, trash_page=2)
    monkeypatch.setitem(Catalog.__init__.__kwdefaults__, "shape", shape)
    bucket = Bucket()
    maintainer = Maintainer(TP, TOPIC_ID, TopicConfig(), owner="m:2")
    trim = bucket.run(maintainer.plan((MaintenanceKind.RETENTION,), begin_at=100)).actions[0]
    bucket.run(maintainer.run(trim, TRUSTED))
    trimmed = {key for key in bucket.objects() if f"/{0:020d}-" in key}
    done = bucket.erase(now=True)
    assert bucket.log.root is not None
    lists = [entry for entry in bucket.log.root.trash if entry.what == TRASH_LIST]
    assert (done.collected and done.collected.objects, bool(lists)) == (8, True)
    assert bucket.holding(b"key-3") == {key for key in trimmed if key.endswith(".log")}
    assert {each.key for each in done.left} == bucket.holding(b"key-3")
    bucket.clock.advance(2 * 86_400)
    plan = bucket.run(maintainer.plan((MaintenanceKind.COLLECT,)))
    bucket.run(Maintainer(TP, TOPIC_ID, TopicConfig(), owner="m:3").run(plan.actions[0], TRUSTED))
    assert (bucket.holding(b"key-3"), len(bucket.log.root.trash), bucket.objects()) == (
        set(),
        0,
        {key(TOPIC_ID, 0, row) for row in bucket.rows for key in (segment_key, index_key)},
    )


def test_a_snapshot_that_came_meanwhile_holds_what_stands_in_pages_of_the_trash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = replace(SHAPE, trash_entries=2, trash_page=2)
    monkeypatch.setitem(Catalog.__init__.__kwdefaults__, "shape", shape)
    bucket = Bucket()
    view, replaced = RootView(TOPIC_ID, 0, "flights"), frozenset((row.id_hi, row.id_lo) for row in bucket.rows)
    bucket.run(create_snapshot(view, "release"))
    bucket.erase()
    before, claimed = bucket.objects(), Catalog(TOPIC_ID, 0, "flights")
    bucket.run(claimed.claim(Role.MAINTAINER, "m:2"))
    assert (bucket.run(Collector(claimed, 0, only=replaced).run()).objects, bucket.objects()) == (0, before)
    bucket.run(delete_snapshot(view, "release"))
    assert bucket.run(Collector(claimed, 0, only=replaced).run()).objects == 10
    assert bucket.holding(b"key-3") == set()


@pytest.mark.parametrize("now", [True, False])
def test_a_snapshot_holds_it_and_is_named(bucket: Bucket, now: bool) -> None:
    view = RootView(TOPIC_ID, 0, "flights")
    bucket.run(create_snapshot(view, "release"))
    assert bucket.plan().holders == ("snapshot release",)
    before = bucket.rows
    if now:
        with pytest.raises(ConfigError, match="is held by snapshot release"):
            bucket.erase(now=True)
        assert bucket.rows == before
    done = bucket.erase()
    assert {each.why for each in done.left} == {"held by snapshot release"}
    assert bucket.receipt(done)["proven"] is False
    bucket.run(delete_snapshot(view, "release"))
    assert bucket.erase(now=True).left == ()
    assert bucket.holding(b"key-3") == set()


def test_a_reader_with_a_pin_reads_to_its_end_and_now_is_refused_naming_it(bucket: Bucket) -> None:
    pin = Pin("flights", TOPIC_ID, 0, set())
    reader = RemoteFace(bucket.store, "flights", TOPIC_ID, 0, clock=bucket.clock)
    reader.steps = RemotePartition(TopicPartition("flights", 0), TOPIC_ID, pin=pin)
    going = (record for batch in reader.read_batches(0) for record in decode_records(bytes(batch)))
    found = [next(going)]
    with pytest.raises(ConfigError, match=r"is held by pin .*/pin/"):
        bucket.erase(now=True)
    bucket.erase()
    maintainer = Maintainer(TP, TOPIC_ID, TopicConfig(gc_grace_ms=0), owner="m:2")
    bucket.clock.advance(1)
    for action in bucket.run(maintainer.plan((MaintenanceKind.COLLECT,))).actions:
        bucket.run(maintainer.run(action, TRUSTED))
    found += list(going)
    assert [record.offset for record in found] == list(range(500))
    bucket.run(pin.drop())
    assert bucket.erase(now=True).left == ()
    assert [record.offset for record in bucket.read()] == [at for at in range(500) if at % 7 != 3]


def test_an_object_that_no_root_names_is_named_too(bucket: Bucket) -> None:
    """An upload that was cut short leaves these parts."""
    row = bucket.log.upload(seal(batches(500, 520)))
    (left,) = bucket.erase(now=True).left
    assert (left.key, left.records) == (bucket.log.log_key(row), 3)
    assert "--only collect --orphans" in left.why
    bucket.log.delete(row)
    assert bucket.erase().left == ()


def test_what_a_repair_has_kept_counts_too(bucket: Bucket) -> None:
    """The copy of a segment holds it; that of a damaged one cannot be told; those of roots and bundles hold no key."""
    row = bucket.rows[1]
    copies = [bucket.data(bucket.log.log_key(row)), bytes(100), bucket.data(root_key(TOPIC_ID, 0))]
    copies += [bucket.data(index_key(TOPIC_ID, 0, row)), b'{"topic": "flights"}']
    keys = [aside_key(TOPIC_ID, 0, f"{number:032x}") for number in range(len(copies))]
    for key, data in zip(keys, copies, strict=True):
        bucket.run(put_unique(key, data, crc32c(data)))
    left = bucket.erase(now=True).left
    assert [(each.key, each.records) for each in left] == [(keys[0], len(range(101, 200, 7))), (keys[1], -1)]
    assert {each.why.split(":")[0] for each in left} == {"kept by `tiered repair`"}


def test_every_object_is_read_once_and_again_only_to_be_written_anew(bucket: Bucket) -> None:
    """By plan, run and proof together, whatever they hold: what is new is read by the look behind it."""
    selection = Selection(frozenset([b"key-3"]), before_ms=FIRST_MS + 1500)
    with_it = bucket.rows[:2]
    bucket.store.forget()
    done = bucket.erase(selection)
    read = Counter(request.key for request in bucket.store.gets(".log"))
    log_key = bucket.log.log_key
    assert read == {**{log_key(row): 1 for row in bucket.rows[:2]}, **{log_key(row): 2 for row in with_it}}
    assert {each.key for each in done.left} == {log_key(row) for row in with_it}
    assert done.read_objects == 4
    bucket.store.forget()
    assert bucket.erase(Selection(frozenset([b"nobody"]))).read_objects == 7
    assert Counter(request.key for request in bucket.store.gets(".log")) == {
        key: 1 for key in bucket.objects() if key.endswith(".log")
    }


# -- crashes, others ---------------------------------------------------------------------------------------------------


def test_a_run_that_is_cut_short_anywhere_goes_on_to_the_same_end() -> None:
    for cut in itertools.count(1):
        bucket = Bucket(2)
        expected = [record for record in bucket.read() if not meant(record)]
        plan, left = bucket.plan(), itertools.count(cut, -1)

        def answer(_: StoreRequest, carry_out: Callable[[], Outcome], left: Any = left) -> Outcome:
            if next(left) == 0:
                raise KeyboardInterrupt
            return carry_out()

        bucket.store.answer = answer
        try:
            bucket.run(erase_steps(plan, KEY, "m:1", JOB, now=True))
            over = True
        except KeyboardInterrupt:
            over = False
        bucket.store.answer = None
        done = bucket.erase(now=True)
        assert bucket.read() == expected, cut
        assert (done.left, bucket.holding(b"key-3")) == ((), set()), cut
        (one,) = bucket.receipt(done)["partitions"]
        assert sum(each["records"] for each in one["segments"]) == len(range(3, 200, 7)), cut
        if over:
            break
    assert cut > 40


def test_what_others_rewrite_meanwhile_is_looked_at_again(bucket: Bucket) -> None:
    plan = bucket.plan()
    config = TopicConfig(segment_bytes=50_000, merge_min_bytes=50_000)
    maintainer = Maintainer(TP, TOPIC_ID, config, owner="m:2")
    (merge,) = bucket.run(maintainer.plan((MaintenanceKind.MERGE,))).actions
    bucket.run(maintainer.run(merge, TRUSTED))
    bucket.run(erase_steps(plan, KEY, "m:1", JOB))
    assert len(bucket.rows) == 1
    assert [record.offset for record in bucket.read()] == [at for at in range(500) if at % 7 != 3]


def test_what_is_trimmed_while_it_is_written_anew_is_passed_over(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, rows, correct, trims = bucket.plan(), bucket.rows, bucket.store.execute, iter([True])

    def execute(request: StoreRequest) -> Outcome:
        if isinstance(request, Put) and "/segments/" in request.key and next(trims, False):
            bucket.log.put_root(Rows.from_rows(rows[1:]), start_offset=100)
        return correct(request)

    monkeypatch.setattr(bucket.store, "execute", execute)
    erased = bucket.run(erase_steps(plan, KEY, "m:1", JOB))
    assert erased.records == sum(at % 7 == 3 for at in range(100, 500))
    assert [record.offset for record in bucket.read(100)] == [at for at in range(100, 500) if at % 7 != 3]


def test_what_comes_meanwhile_is_erased_too(bucket: Bucket) -> None:
    plan = bucket.plan()
    bucket.log.add(seal(batches(500, 600)))
    bucket.run(erase_steps(plan, KEY, "m:1", JOB))
    assert [record.offset for record in bucket.read()] == [at for at in range(600) if at % 7 != 3]


def test_damage_ends_it_and_nothing_of_that_segment_is_replaced(bucket: Bucket) -> None:
    rows = bucket.rows
    plan = bucket.plan()
    bucket.log.damage(bucket.log.log_key(rows[2]), 200)
    with pytest.raises(CorruptionError):
        bucket.run(erase_steps(plan, KEY, "m:1", JOB))
    assert bucket.rows[2:] == rows[2:]
