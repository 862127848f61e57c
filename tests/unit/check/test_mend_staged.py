"""Segments that a sink staged, mended: their objects begin at offset 0, what is written anew does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.remote_face import RemoteFace
from tests.unit.remote.building import TOPIC_ID, RemoteLog, batches, other_batches, seal
from tests.unit.remote.staging import stage
from tiered.care.check import CheckOptions
from tiered.care.run import check, mend, plan_mend
from tiered.errors import ConfigError, CorruptionError
from tiered.findings import Severity
from tiered.format.batch import decode_records
from tiered.format.bundle import encode_bundle
from tiered.format.keys import FLAG_STAGED, index_key, segment_key
from tiered.model import Row, TopicPartition
from tiered.remote.topics import register_topic
from tiered.store.base import ABSENT, Delete, Get, Object, Outcome, Put, Store, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

TP = TopicPartition("flights", 0)


@pytest.fixture
def log() -> RemoteLog:
    """Offsets 0 to 20, 20 to 50, 50 to 60."""
    log = RemoteLog(MemoryStore())
    drive(log.store, register_topic(log.topic, log.topic_id, 1, {}), clock=log.clock, ids=log.ids)
    stage(log, [seal(batches(0, 20)), seal(batches(0, 30))], 0)
    stage(log, [seal(batches(0, 10))], 1)
    return log


def rows(log: RemoteLog) -> list[Row]:
    root = log.root
    assert root is not None
    return list(root.rows)


def records(log: RemoteLog) -> dict[int, bytes | None]:
    face = RemoteFace(log.store, log.topic, TOPIC_ID, 0, clock=log.clock)
    return {record.offset: record.value for batch in face.read_batches(0) for record in decode_records(batch)}


def edit(log: RemoteLog, key: str, change: Callable[[bytes], bytes]) -> None:
    got = log.store.execute(Get(key))
    assert isinstance(got, Object)
    log.store.execute(Delete((key,)))
    log.store.execute(Put(key, change(bytes(got.data)), ABSENT))


def clean(log: RemoteLog) -> bool:
    report = check(None, log.store, CheckOptions(read_data=True))
    return not [found for found in report.findings if found.severity is not Severity.INFO]


@pytest.mark.parametrize("drop", [False, True])
def test_of_what_is_right_nothing_is_mended(log: RemoteLog, drop: bool) -> None:
    with pytest.raises(ConfigError, match="there is nothing to repair"):
        plan_mend(log.store, TP, drop=drop)


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("damage", ["gone", "garbage", "another's", "another stream's"])
def test_a_bundle_is_made_anew(log: RemoteLog, at: int, damage: str) -> None:
    before, (row, other) = records(log), (rows(log)[at], rows(log)[at - 1])
    key = index_key(TOPIC_ID, 0, row)
    if damage == "gone":
        log.store.execute(Delete((key,)))
    elif damage == "garbage":
        edit(log, key, lambda data: b"garbage")
    elif damage == "another stream's":
        bundle = seal(batches(0, row.next - row.base))
        edit(log, key, lambda data: encode_bundle(bundle.descriptor, bundle.sealed_indexes, 0, txn="other"))
    else:
        found = log.store.execute(Get(index_key(TOPIC_ID, 0, other)))
        assert isinstance(found, Object)
        edit(log, key, lambda data: bytes(found.data))
    assert not clean(log)
    plan = plan_mend(log.store, TP)
    assert [(each.row, each.lost) for each in plan.rows] == [(row, ())]
    mend(log.store, plan, "test")
    new = rows(log)[at]
    assert (new.base, new.next, new.flags & FLAG_STAGED, new.leader_epoch) == (row.base, row.next, 0, row.leader_epoch)
    assert records(log) == before
    assert clean(log)


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda data: data[:-1], (20, 50)),
        (lambda data: data[:80] + bytes([data[80] ^ 1]) + data[81:], (20, 30)),
        (lambda data: b"", (20, 50)),
    ],
    ids=["cut", "a bit of a record", "empty"],
)
def test_what_cannot_be_read_is_given_up(
    log: RemoteLog, change: Callable[[bytes], bytes], lost: tuple[int, int]
) -> None:
    before, row = records(log), rows(log)[1]
    edit(log, segment_key(TOPIC_ID, 0, row), change)
    plan = plan_mend(log.store, TP, drop=True)
    assert [(loss.start, loss.end) for loss in plan.lost] == [lost]
    mend(log.store, plan, "test")
    assert records(log) == {at: value for at, value in before.items() if not lost[0] <= at < lost[1]}
    assert clean(log)


def data(log: RemoteLog, key: str) -> bytes:
    found = log.store.execute(Get(key))
    assert isinstance(found, Object)
    return bytes(found.data)


class Untold:
    """A store that keeps no checksums: what an object is, its bytes alone tell."""

    def __init__(self, inner: Store) -> None:
        self.inner, self.url = inner, inner.url

    def execute(self, request: StoreRequest) -> Outcome:
        outcome = self.inner.execute(request)
        return replace(outcome, crc32c=None) if isinstance(outcome, Object) else outcome

    def close(self) -> None:
        """Nothing is open."""


def lay(log: RemoteLog, key: str, of: str) -> None:
    """The bytes of one object under the name of another."""
    body = data(log, of)
    edit(log, key, lambda _: body)


def swap(log: RemoteLog, one: str, two: str) -> None:
    kept = data(log, one)
    lay(log, one, two)
    edit(log, two, lambda _: kept)


def test_of_a_shorter_segment_in_the_place_of_a_longer_nothing_counts(log: RemoteLog) -> None:
    """All that sinks stage begins at offset 0: batches of the shorter would fit into the longer."""
    stage(log, [seal(batches(0, 10, size=40)), seal(batches(0, 30, size=50))], 2)
    before, (shorter, longer) = records(log), rows(log)[3:5]
    lay(log, segment_key(TOPIC_ID, 0, longer), segment_key(TOPIC_ID, 0, shorter))
    mend(log.store, plan_mend(log.store, TP, drop=True), "test")
    assert records(log) == {at: value for at, value in before.items() if not 70 <= at < 100}
    assert clean(log)


@pytest.mark.parametrize(
    "sides", [(segment_key,), (index_key,), (segment_key, index_key)], ids=[".log", ".idx", "both"]
)
@pytest.mark.parametrize("at", [(3, 4), (2, 5)], ids=["other lengths", "as many offsets and bytes"])
def test_segments_that_changed_places_lose_nothing(
    log: RemoteLog, at: tuple[int, int], sides: tuple[Callable[..., str], ...]
) -> None:
    """The checksum of the row tells whose bytes they are: a bundle tells neither place nor batch, all begin at 0."""
    stage(log, [seal(batches(0, 10, size=40)), seal(batches(0, 30, size=50)), seal(other_batches(0, 10))], 2)
    before, one, two = records(log), *(rows(log)[number] for number in at)
    assert at == (3, 4) or (one.size, one.idx_len) == (two.size, two.idx_len)
    for key in sides:
        swap(log, key(TOPIC_ID, 0, one), key(TOPIC_ID, 0, two))
    assert not clean(log)
    with pytest.raises(ConfigError, match="there is nothing to repair"):
        plan_mend(log.store, TP, drop=True)
    plan = plan_mend(log.store, TP)
    assert ([each.row for each in plan.rows], plan.lost) == ([one, two], ())
    mend(log.store, plan, "test")
    assert records(log) == before
    assert clean(log)


@pytest.mark.parametrize("told", [False, True], ids=["a store without checksums", "a store that tells them"])
def test_a_segment_of_its_stream_in_its_place_is_not_taken_for_it(log: RemoteLog, told: bool) -> None:
    """Its bundle, too: what is there agrees, and is read twice otherwise."""
    stage(log, [seal(other_batches(0, 10))], 2)
    before, (one, two) = records(log), rows(log)[2:]
    for key in (segment_key, index_key):
        lay(log, key(TOPIC_ID, 0, two), key(TOPIC_ID, 0, one))
    with pytest.raises(CorruptionError, match="offsets 60 to 70 cannot be read") as refused:
        plan_mend(log.store if told else Untold(log.store), TP)
    assert "`tiered repair put-back flights:0 60 --log-dir DIR`" in refused.value.hint
    assert "`tiered repair drop-segment flights:0 60`" in refused.value.hint
    mend(log.store, plan_mend(log.store, TP, drop=True), "test")
    assert records(log) == {at: value for at, value in before.items() if not 60 <= at < 70}
    assert clean(log)


def test_a_segment_without_objects_becomes_a_hole(log: RemoteLog) -> None:
    before, row = records(log), rows(log)[2]
    log.store.execute(Delete((segment_key(TOPIC_ID, 0, row), index_key(TOPIC_ID, 0, row))))
    mend(log.store, plan_mend(log.store, TP, drop=True), "test")
    assert records(log) == {at: value for at, value in before.items() if at < 50}
    assert clean(log)


def test_segments_that_changed_places_are_not_taken_for_each_other(log: RemoteLog) -> None:
    """Two of one length: their bytes are right, and not theirs."""
    stage(log, [seal(batches(0, 10, size=40))], 2)
    one, two = (segment_key(TOPIC_ID, 0, row) for row in rows(log)[2:])
    found = log.store.execute(Get(one))
    assert isinstance(found, Object)
    edit(log, two, lambda data: bytes(found.data))
    plan = plan_mend(log.store, TP, drop=True)
    assert [(loss.start, loss.end) for loss in plan.lost] == [(60, 70)]


def test_what_is_wrong_inside_has_the_offset_that_the_verbs_take(log: RemoteLog) -> None:
    """Its batches begin at 0, as the first segment does: that one is whole, and is not what is to be given up."""
    row = rows(log)[1]
    edit(log, segment_key(TOPIC_ID, 0, row), lambda data: data[:80] + bytes([data[80] ^ 1]) + data[81:])
    found = check(None, log.store, CheckOptions(read_data=True)).findings
    inside = [each for each in found if each.where == segment_key(TOPIC_ID, 0, row)]
    assert {(each.code, each.offset) for each in inside} >= {("log_crc", 20), ("object_checksum", 20)}
    (wrong,) = [each for each in inside if each.code == "log_crc"]
    assert wrong.message.endswith("(in the offsets of the object, which begin at 0 and not at 20)")
    plan = plan_mend(log.store, TP, [wrong.offset], drop=True)
    assert [(loss.start, loss.end) for loss in plan.lost] == [(20, 30)]
