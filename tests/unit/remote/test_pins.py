"""A reader with a pin: no collection cuts it off, and one that crashes holds nothing for ever. All on one clock."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator

import pytest

from tests.support.remote_face import RemoteFace
from tests.unit.remote import maintaining
from tests.unit.remote.building import TOPIC_ID, offsets
from tiered.config import TopicConfig
from tiered.errors import CorruptionError, RemotePermissionError, RemoteUnavailableError
from tiered.format.kernels import crc32c
from tiered.format.keys import index_key, partition_prefix, pin_key, segment_key
from tiered.plan.maintenance import PIN_MS, MaintenanceKind
from tiered.remote.gc.orphans import Swept
from tiered.remote.maintain import ActionResult
from tiered.remote.pins import PIN_TRIES, RENEW_AGAIN_MS, RENEW_MS, Pin, read_pin, read_pins
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import AsOf, Past
from tiered.store.base import (
    ABSENT,
    Absent,
    Delete,
    Deleted,
    Get,
    List,
    Match,
    Outcome,
    Put,
    StoreRequest,
)
from tiered.store.driver import drive

pytestmark = pytest.mark.usefixtures("both_catalogs")
NO_GRACE = TopicConfig(gc_grace_ms=0, segment_bytes=20_000, merge_min_bytes=10_000)
END = 2000
PINS = partition_prefix(TOPIC_ID, 0) + "pin/"
HOUR = 3600.0


class Bucket(maintaining.Bucket):
    """Twenty small segments of one partition, without a grace time, a month old."""

    def __init__(self) -> None:
        super().__init__(END)
        self.held: set[Pin] = set()

    def face(self, *, pinned: bool = True, past: Past | None = None) -> RemoteFace:
        pin = Pin(self.log.topic, TOPIC_ID, 0, self.held) if pinned else None
        return RemoteFace(
            self.store, self.log.topic, TOPIC_ID, 0, clock=self.clock, ids=self.log.ids, pin=pin, past=past
        )

    def maintain(self, *kinds: MaintenanceKind, begin_at: int | None = None) -> list[ActionResult]:
        """By somebody else: what its plan says is done."""
        maintainer = self.maintainer(NO_GRACE)
        plan = drive(self.store, maintainer.plan(kinds, begin_at=begin_at), clock=self.clock, ids=self.log.ids)
        assert plan is not None
        return [self.run(maintainer, action) for action in plan.actions]

    def live(self, begin_at: int) -> int:
        """Trim, merge, collection at once; the objects that were collected."""
        assert self.maintain(begin_at=begin_at)
        self.maintain(MaintenanceKind.MERGE)
        return self.collect()

    def collect(self) -> int:
        """A second later (a root's time is ahead of a clock that stands still); the objects that went."""
        self.clock.advance(1)
        return sum(
            done.collected.objects for done in self.maintain(MaintenanceKind.COLLECT) if done.collected is not None
        )

    def sweep(self, *, delete: bool) -> Swept:
        """By somebody else."""
        return drive(self.store, self.maintainer(NO_GRACE).sweep(delete=delete), clock=self.clock, ids=self.log.ids)

    @property
    def version(self) -> int:
        """Of the newest root."""
        assert self.log.root is not None
        return self.log.root.version

    @property
    def named(self) -> set[str]:
        """Objects that the newest root names."""
        assert self.log.root is not None
        return {key(TOPIC_ID, 0, row) for row in self.log.root.rows for key in (segment_key, index_key)}

    def pin_puts(self) -> list[Put]:
        return [r for r in self.store.requests if isinstance(r, Put) and r.key.startswith(PINS)]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def version_of(put: Put) -> int:
    """What a pin holds, which says its own name."""
    body = json.loads(put.body)
    assert body.pop("uid") == put.key.rpartition("/")[2]
    (version,) = body.values()
    assert type(version) is int
    return version


def release(bucket: Bucket, face: RemoteFace) -> None:
    drive(bucket.store, face.steps.release(), clock=bucket.clock, ids=bucket.log.ids)


def read_slowly(bucket: Bucket, reading: Iterator[memoryview], pause_s: float) -> list[int]:
    """Offsets; after each batch a pause, after each ten a collection that finds nothing."""
    read: list[int] = []
    for count, batch in enumerate(reading):
        read += offsets(iter([batch]))
        bucket.clock.advance(pause_s)
        assert count % 10 or bucket.collect() == 0
    return read


def test_a_pin_costs_three_requests_and_without_one_there_is_none(bucket: Bucket) -> None:
    costs = []
    for pinned in (False, True):
        bucket.store.forget()
        face = bucket.face(pinned=pinned)
        offsets(face.read_batches(0))
        release(bucket, face)
        costs.append(list(bucket.store.requests))
    plain, more = costs
    assert not any(isinstance(request, Put | Delete | List) for request in plain)
    assert len(more) == len(plain) + 3
    (put,) = (request for request in more if isinstance(request, Put))
    assert (put.body, put.condition) == (
        b'{"version": %d, "uid": "%s"}' % (bucket.version, put.key.rpartition("/")[2].encode()),
        Absent(),
    )
    assert [request.keys for request in more if isinstance(request, Delete)] == [(put.key,)]


def test_a_slow_reader_renews_its_pin_and_keeps_its_version(bucket: Bucket) -> None:
    reading = bucket.face().read_batches(0)
    read = offsets(iter([next(reading)]))
    bucket.maintain(begin_at=1500)
    began = bucket.clock.monotonic()
    assert read + read_slowly(bucket, reading, HOUR / 12) == list(range(END))
    took_ms = (bucket.clock.monotonic() - began) * 1000
    puts = bucket.pin_puts()
    assert took_ms > 2 * PIN_MS
    assert len({put.key for put in puts}) == 1
    assert [type(put.condition) for put in puts] == [Absent] + [Match] * (len(puts) - 1)
    assert took_ms / RENEW_MS / 2 < len(puts) <= took_ms / RENEW_MS + 1


def test_a_reader_that_slept_too_long_pins_the_newest_version_and_finds_what_was_merged(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    face = bucket.face()
    reading = face.read_batches(0)
    read = offsets(iter([next(reading)]))
    (old,) = bucket.objects("pin/")
    bucket.maintain(MaintenanceKind.MERGE)
    bucket.clock.advance(PIN_MS / 1000 + 1)
    assert bucket.collect() > 0
    assert read + offsets(reading) == list(range(END))
    (new,) = bucket.objects("pin/")
    assert new != old
    assert bucket.version in {version_of(put) for put in bucket.pin_puts()}
    assert "pin_expired" in caplog.text


def test_collectors_that_pass_each_version_are_an_error_and_no_pin_stays(bucket: Bucket) -> None:
    trims = iter(range(100, END, 100))

    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Put) and request.key.startswith(PINS):
            bucket.store.answer = None
            bucket.maintain(begin_at=next(trims))
            bucket.collect()
            bucket.store.answer = answer
        return carry_out()

    bucket.store.answer = answer
    with pytest.raises(RemoteUnavailableError, match="garbage collection overtook each attempt to pin a version"):
        next(bucket.face().read_batches(END - 1))
    assert len(bucket.pin_puts()) == PIN_TRIES
    assert (bucket.objects("pin/"), bucket.held) == (set(), set())


def test_a_pin_counts_from_when_it_was_sent_not_from_its_answer(bucket: Bucket) -> None:
    """For the store it is as old as that: an answer that took hours must not make its reader believe it younger."""

    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if not (isinstance(request, Put) and request.key.startswith(PINS)):
            return carry_out()
        if isinstance(request.condition, Match):
            raise RemotePermissionError("the session ended", operation="PUT", resource=request.key)
        outcome = carry_out()
        bucket.clock.advance(RENEW_MS / 1000)
        return outcome

    bucket.store.answer = answer
    reading = bucket.face().read_batches(0)
    next(reading)
    bucket.clock.advance((PIN_MS - RENEW_MS) / 1000)
    assert len(offsets(reading)) == END - 10
    created = [put.key for put in bucket.pin_puts() if isinstance(put.condition, Absent)]
    assert len(set(created)) == 2  # the first had expired, whatever its answer said


def test_a_renewal_that_fails_is_tried_again_and_cuts_nothing_off(bucket: Bucket) -> None:
    tries: list[float] = []

    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Put) and request.key.startswith(PINS) and isinstance(request.condition, Match):
            tries.append(bucket.clock.monotonic())
            if len(tries) < 4:
                raise RemotePermissionError("the session ended", operation="PUT", resource=request.key)
        return carry_out()

    bucket.store.answer = answer
    reading = bucket.face().read_batches(0)
    read = offsets(iter([next(reading)]))
    bucket.maintain(begin_at=1500)
    assert read + read_slowly(bucket, reading, HOUR / 12) == list(range(END))
    assert len(tries) > 3
    assert all(later - before >= RENEW_AGAIN_MS / 1000 for before, later in itertools.pairwise(tries))


def test_a_role_that_may_not_pin_is_told_which_right_it_lacks(bucket: Bucket) -> None:
    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Put):
            raise RemotePermissionError("403", operation="PUT", resource=request.key)
        return carry_out()

    bucket.store.answer = answer
    with pytest.raises(RemotePermissionError) as refused:
        next(bucket.face().read_batches(0))
    assert "statement Pin" in refused.value.hint
    assert bucket.held == set()


@pytest.mark.parametrize("cancelled", [Put, Delete])
@pytest.mark.parametrize("landed", [True, False])
def test_a_pin_goes_at_the_close_whenever_its_reader_was_cancelled(
    bucket: Bucket, cancelled: type[StoreRequest], landed: bool
) -> None:
    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if not isinstance(request, cancelled):
            return carry_out()
        if landed:
            carry_out()
        raise KeyboardInterrupt

    def reading() -> None:
        face = bucket.face()
        assert len(offsets(face.read_batches(0))) == END
        release(bucket, face)

    bucket.store.answer = answer
    with pytest.raises(KeyboardInterrupt):
        reading()
    assert len(bucket.objects("pin/")) == (landed is (cancelled is Put))
    bucket.store.answer = None
    for pin in list(bucket.held):  # as the close of a reader does
        drive(bucket.store, pin.drop(), clock=bucket.clock, ids=bucket.log.ids)
    assert bucket.objects("pin/") == set()
    assert bucket.held == set()


def test_a_pin_that_cannot_be_deleted_is_said_and_expires(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        return Deleted(((request.keys[0], "AccessDenied"),)) if isinstance(request, Delete) else carry_out()

    face = bucket.face()
    assert len(offsets(face.read_batches(0))) == END
    bucket.store.answer = answer
    release(bucket, face)
    assert "pin_not_deleted" in caplog.text
    assert len(bucket.objects("pin/")) == 1


def test_a_pin_holds_an_older_version_when_its_snapshot_is_deleted(bucket: Bucket) -> None:
    """The copy below ``hist/`` alone holds nothing; the pin does, from when its version was found to be whole."""
    version = bucket.version
    bucket.maintain(begin_at=1000)  # keeps a copy of the version before
    past = Past(RootView(TOPIC_ID, 0, bucket.log.topic), AsOf(version=version + 1))
    face = bucket.face(past=past)
    reading = face.read_batches(0)
    read = offsets(iter([next(reading)]))
    assert bucket.collect() == 0
    assert read + offsets(reading) == list(range(END))
    assert [request for request in bucket.store.requests if isinstance(request, Get) and "/hist/" in request.key]


def test_a_sweep_takes_pins_that_expired_and_no_others(bucket: Bucket) -> None:
    first = bucket.face().read_batches(0)
    next(first)
    first.close()
    (stale,) = bucket.objects("pin/")
    bucket.clock.advance(PIN_MS / 1000)
    second = bucket.face().read_batches(0)
    next(second)
    second.close()
    (later,) = bucket.objects("pin/") - {stale}
    bucket.clock.advance(1)
    bucket.sweep(delete=False)
    assert bucket.objects("pin/") == {stale, later}
    bucket.sweep(delete=True)
    assert bucket.objects("pin/") == {later}


def test_a_pin_in_the_place_of_another_is_damage_until_it_is_old(bucket: Bucket) -> None:
    """The pin may be of another partition, whose versions mean nothing here."""
    key, other = (pin_key(TOPIC_ID, 0, digit * 32) for digit in "ab")
    body = b'{"version": %d, "uid": "%s"}' % (bucket.version, b"a" * 32)
    assert read_pin(body, key=key) == bucket.version
    with pytest.raises(CorruptionError, match="uid is that of another pin") as told:
        read_pin(body, key=other)
    assert "expires 6 hours after its last write" in told.value.hint
    bucket.store.execute(Put(other, body, ABSENT, crc32c(body)))
    root = bucket.log.root
    assert root is not None
    with pytest.raises(CorruptionError, match="uid is that of another pin"):
        drive(bucket.store, read_pins(root), clock=bucket.clock, ids=bucket.log.ids)
    bucket.clock.advance(PIN_MS / 1000 + 1)
    assert drive(bucket.store, read_pins(root), clock=bucket.clock, ids=bucket.log.ids).expired == (other,)
