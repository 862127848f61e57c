"""Unique puts, multipart uploads, verification and the probe on a store that fails at any request in any way."""

from __future__ import annotations

import pytest

from tests.unit.store.emulator import Emulator
from tiered.errors import CorruptionError, RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.format.kernels import crc32c
from tiered.model import BytesSource
from tiered.store.base import (
    Absent,
    Capabilities,
    Get,
    List,
    ListPage,
    Match,
    Missing,
    Object,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    StoreRequest,
)
from tiered.store.capabilities import check_capabilities, probe
from tiered.store.driver import drive
from tiered.store.layers import LayeredStore
from tiered.store.memory import MemoryStore
from tiered.store.retry import Retries
from tiered.store.unique_upload import (
    PartSizes,
    put_unique,
    upload_multipart,
    upload_object,
    verify_stored,
)
from tiered.testing.clock import FakeClock, SeededIds
from tiered.testing.faults import Fault, FaultKind, FaultStore

BODY = bytes(range(256)) * 3
CRC = crc32c(BODY)
GOOD = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=True)
BAD = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=False)
OUTAGES = (FaultKind.UNKNOWN_BEFORE, FaultKind.UNKNOWN_AFTER, FaultKind.CONFLICT, FaultKind.DELAYED)


def small_store() -> MemoryStore:
    return MemoryStore(min_part_bytes=1)


@pytest.mark.parametrize("kind", OUTAGES)
@pytest.mark.parametrize("times", [1, 3])
def test_unique_put_survives_lost_answers(kind: FaultKind, times: int) -> None:
    store = FaultStore(small_store(), [Fault(kind, "put", times=times, delay_calls=2)])
    result = drive(store, put_unique("k", BODY, CRC), clock=FakeClock(), ids=SeededIds())
    assert result.status is PutStatus.LANDED
    got = store.execute(Get("k"))
    assert isinstance(got, Object)
    assert got.data == BODY


@pytest.mark.parametrize("kind", [FaultKind.UNKNOWN_BEFORE, FaultKind.CONFLICT, FaultKind.ERROR])
def test_unique_put_gives_up_at_its_deadline(kind: FaultKind) -> None:
    clock = FakeClock()
    store = FaultStore(small_store(), [Fault(kind, "put", times=-1)])
    with pytest.raises(RemoteUnavailableError, match="Put k: the upload is still"):
        drive(store, put_unique("k", BODY, CRC, deadline_seconds=100), clock=clock, ids=SeededIds())
    assert 100 <= clock.monotonic() < 160.0


def test_refusals_are_not_repeated() -> None:
    store = FaultStore(small_store(), [Fault(FaultKind.PERMISSION, times=-1)])
    with pytest.raises(RemotePermissionError):
        drive(store, put_unique("k", BODY, CRC), clock=FakeClock())
    with pytest.raises(CorruptionError):
        drive(small_store(), put_unique("k", BODY, CRC ^ 1), clock=FakeClock())
    assert len(store.calls) == 1


def upload_once(store: FaultStore, clock: FakeClock) -> PutResult:
    retrying = LayeredStore(store, Retries(clock=clock, ids=SeededIds(1)))
    return drive(
        retrying,
        upload_multipart("k", BytesSource(BODY), part_bytes=100),
        clock=clock,
        ids=SeededIds(2),
        together=1,
    )


def test_multipart_upload_with_any_one_request_failing() -> None:
    clean = FaultStore(small_store())
    assert upload_once(clean, FakeClock()).status is PutStatus.LANDED
    total = len(clean.calls)
    assert [operation for operation, _ in clean.calls] == ["startupload"] + ["uploadpart"] * 8 + ["completeupload"]
    for kind in OUTAGES:
        for nth in range(1, total + 1):
            store = FaultStore(small_store(), [Fault(kind, nth=nth, delay_calls=1)])
            assert upload_once(store, FakeClock()).status is PutStatus.LANDED, (kind, nth)
            got = store.execute(Get("k"))
            assert isinstance(got, Object), (kind, nth)
            assert got.data == BODY, (kind, nth)
            assert store.fired, (kind, nth)


def test_multipart_upload_is_aborted_after_an_error() -> None:
    store = FaultStore(small_store(), [Fault(FaultKind.PERMISSION, "uploadpart", nth=2)])
    started: list[str] = []
    steps = upload_multipart("k", BytesSource(BODY), part_bytes=300, on_started=started.append)
    with pytest.raises(RemotePermissionError):
        drive(store, steps, clock=FakeClock())
    assert store.calls[-1] == ("abortupload", "k")
    assert len(started) == 1
    assert store.execute(Get("k")) == Missing()


def in_parts(store: FaultStore, clock: FakeClock) -> PutResult:
    """In eight parts; each request is tried once."""
    steps = upload_multipart("k", BytesSource(BODY), part_bytes=100)
    return drive(store, steps, clock=clock, ids=SeededIds(2), together=1)


def count(store: FaultStore, operation: str) -> int:
    return sum(each == operation for each, _ in store.calls)


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_part_that_fails_is_sent_again_without_the_others(nth: int) -> None:
    store = FaultStore(small_store(), [Fault(FaultKind.ERROR, "uploadpart", nth=nth)])
    assert in_parts(store, FakeClock()).status is PutStatus.LANDED
    assert (count(store, "startupload"), count(store, "uploadpart"), count(store, "abortupload")) == (1, 9, 0)
    got = store.execute(Get("k"))
    assert isinstance(got, Object)
    assert got.data == BODY


def test_an_upload_that_the_store_does_not_answer_is_aborted() -> None:
    store = FaultStore(small_store(), [Fault(FaultKind.ERROR, "uploadpart", nth=2, times=-1)])
    with pytest.raises(RemoteUnavailableError):
        in_parts(store, FakeClock())
    assert store.calls[-1] == ("abortupload", "k")


def test_a_part_that_is_stored_gives_the_others_their_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the eight needs two minutes of attempts; the whole takes longer than the deadline of one."""
    monkeypatch.setattr("tiered.store.unique_upload.PARALLEL_PARTS", 1)
    clock = FakeClock()
    faults = [Fault(FaultKind.ERROR, "uploadpart", nth=1 + 10 * at, times=9) for at in range(8)]
    store = FaultStore(small_store(), faults)
    steps = upload_multipart("k", BytesSource(BODY), part_bytes=100, deadline_seconds=200)
    assert drive(store, steps, clock=clock, ids=SeededIds(2)).status is PutStatus.LANDED
    assert clock.monotonic() > 200


def test_upload_object_chooses_by_size() -> None:
    store = FaultStore(small_store())
    for size in (0, 10, 11):
        source = BytesSource(BODY[:size])
        drive(store, upload_object(f"k{size}", source, crc32c(source.data), sizes=PartSizes(10, 4)))
    assert [op for op, key in store.calls if key == "k10"] == ["put"]
    assert [op for op, key in store.calls if key == "k11"] == ["startupload", *["uploadpart"] * 3, "completeupload"]
    assert drive(small_store(), upload_multipart("empty", BytesSource(b""))).status is PutStatus.LANDED


@pytest.mark.parametrize("capabilities", [GOOD, BAD])
@pytest.mark.parametrize("kind", [FaultKind.TRUNCATED, FaultKind.FLIPPED])
def test_damaged_objects_are_never_verified(kind: FaultKind, capabilities: Capabilities) -> None:
    store = FaultStore(small_store(), [Fault(kind, "put")])
    drive(store, put_unique("k", BODY, CRC))
    with pytest.raises(CorruptionError, match="the object k"):
        drive(store, verify_stored("k", len(BODY), CRC, capabilities))


@pytest.mark.parametrize("capabilities", [GOOD, BAD])
def test_an_object_that_goes_on_behind_what_was_sent_is_not_verified(capabilities: Capabilities) -> None:
    """All that is read back is right: only the size tells."""
    store = small_store()
    drive(store, put_unique("k", BODY + b"more", crc32c(BODY + b"more")))
    with pytest.raises(CorruptionError, match=f"has {len(BODY) + 4} bytes, {len(BODY)} were sent"):
        drive(store, verify_stored("k", len(BODY), CRC, capabilities))


def test_verification_reads_back_where_the_store_checks_nothing() -> None:
    store = FaultStore(small_store())
    drive(store, put_unique("k", BODY, CRC))
    store.calls.clear()
    drive(store, verify_stored("k", len(BODY), CRC, GOOD))
    assert store.calls == [("head", "k")]
    drive(store, verify_stored("k", len(BODY), CRC, BAD))
    assert store.calls[1:] == [("head", "k"), ("get", "k")]
    with pytest.raises(CorruptionError, match="absent"):
        drive(store, verify_stored("other", 1, 1, GOOD))


@pytest.mark.parametrize("ignores", ["create", "swap", "all"])
def test_probe_finds_a_store_that_ignores_conditions(ignores: str) -> None:
    store = Emulator(ignores=ignores)
    capabilities = drive(store, probe())
    assert not capabilities.conditional_writes
    with pytest.raises(TieredError, match="two writers could both win"):
        check_capabilities(capabilities, store.url)


class Liar(MemoryStore):
    """Answers 200 to a lost condition of one kind, without storing anything."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind

    def execute(self, request: StoreRequest) -> Outcome:
        outcome = super().execute(request)
        if isinstance(request, Put) and isinstance(request.condition, self.kind):
            return PutResult(PutStatus.LANDED, '"x"') if outcome == PutResult(PutStatus.LOST) else outcome
        return outcome


@pytest.mark.parametrize("kind", [Absent, Match])
def test_probe_believes_no_answer_that_hides_a_lost_write(kind: type) -> None:
    assert not drive(Liar(kind), probe()).conditional_writes


def test_probe_finds_a_store_that_checks_no_checksum() -> None:
    assert drive(Emulator(ignores="checksum"), probe()) == BAD
    check_capabilities(BAD, "memory://")


def test_probe_with_any_one_request_failing() -> None:
    clean = FaultStore(MemoryStore())
    assert drive(clean, probe(), clock=FakeClock()) == GOOD
    for kind in (FaultKind.UNKNOWN_BEFORE, FaultKind.UNKNOWN_AFTER, FaultKind.CONFLICT):
        for nth in range(1, len(clean.calls) + 1):
            store = FaultStore(MemoryStore(), [Fault(kind, nth=nth)])
            retrying = LayeredStore(store, Retries(clock=FakeClock(), ids=SeededIds()))
            assert drive(retrying, probe(), clock=FakeClock(), ids=SeededIds()) == GOOD, (kind, nth)
            page = store.execute(List(""))
            assert isinstance(page, ListPage)
            assert page.entries == (), (kind, nth)


def test_probe_of_a_dead_store_is_an_error_not_a_finding() -> None:
    store = FaultStore(MemoryStore(), [Fault(FaultKind.UNKNOWN_BEFORE, times=-1)])
    with pytest.raises(RemoteUnavailableError):
        drive(store, probe(), clock=FakeClock())
