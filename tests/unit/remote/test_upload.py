"""What an upload sends, what it believes, and what a failure leaves behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.unit.remote.building import TRUSTED, RemoteLog, batches, seal
from tests.unit.remote.recording import RecordingStore
from tiered.errors import CorruptionError, RemoteUnavailableError
from tiered.format.bundle import decode_bundle
from tiered.format.kernels import crc32c
from tiered.format.keys import FLAG_ABORTED_TXNS
from tiered.model import AbortedTxn, Row
from tiered.remote.upload import upload_segment
from tiered.store.base import (
    Capabilities,
    Get,
    Head,
    Missing,
    Object,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    StoreRequest,
    UploadPart,
)
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.store.unique_upload import PartSizes
from tiered.testing.clock import FakeClock, SeededIds

SILENT = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=False, verifies_crc32c=False)
CREDULOUS = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=False)
Inner = Callable[[], Outcome]


@pytest.fixture
def store() -> RecordingStore:
    return RecordingStore(MemoryStore(min_part_bytes=1))


@pytest.fixture
def log(store: RecordingStore) -> RemoteLog:
    return RemoteLog(store)


def test_row_and_objects_of_a_segment(store: RecordingStore, log: RemoteLog) -> None:
    aborted = [AbortedTxn(7, 3, 9, 10)]
    segment = seal(batches(0, 50), aborted=aborted)
    row = log.upload(segment)
    d = segment.descriptor
    assert (row.base, row.next, row.size, row.crc, row.records) == (0, 50, d.size_bytes, d.crc32c, 50)
    assert (row.min_ts, row.max_ts, row.claim_epoch, row.leader_epoch) == (d.min_timestamp, d.max_timestamp, 1, 0)
    assert row.flags == FLAG_ABORTED_TXNS
    data = store.inner.execute(Get(log.log_key(row)))
    index = store.inner.execute(Get(log.idx_key(row)))
    assert isinstance(data, Object)
    assert isinstance(index, Object)
    assert data.data == segment.data
    assert len(index.data) == row.idx_len
    bundle = decode_bundle(index.data)
    assert (bundle.descriptor, bundle.indexes, bundle.claim_epoch) == (d, segment.sealed_indexes, 1)


def test_a_store_that_acknowledges_checksums_is_asked_nothing_more(store: RecordingStore, log: RemoteLog) -> None:
    row = log.upload(seal(batches(0, 50)))
    assert [(type(r), getattr(r, "key", "")) for r in store.requests] == [
        (Put, log.log_key(row)),
        (Put, log.idx_key(row)),
    ]
    first = store.requests[0]
    assert isinstance(first, Put)
    assert first.crc32c == row.crc
    assert first.tags == (("kind", "segment"),)


@pytest.mark.parametrize("capabilities", [SILENT, CREDULOUS])
def test_a_store_that_cannot_be_trusted_is_read_back(
    store: RecordingStore, log: RemoteLog, capabilities: Capabilities
) -> None:
    row = log.upload(seal(batches(0, 50)), capabilities)
    assert [g.key for g in store.gets()] == [log.log_key(row), log.idx_key(row)]


@pytest.mark.parametrize("capabilities", [TRUSTED, CREDULOUS])
def test_bytes_that_changed_on_the_way_are_not_a_row(
    store: RecordingStore, log: RemoteLog, capabilities: Capabilities
) -> None:
    def flip(request: StoreRequest, inner: Inner) -> Outcome:
        if isinstance(request, Put):
            assert not isinstance(request.body, bytes)
            data = bytearray(request.body.read_at(0, request.body.size))
            data[40] ^= 1
            return store.inner.execute(Put(request.key, bytes(data), request.condition))
        return inner()

    store.answer = flip
    with pytest.raises(CorruptionError, match="no source was deleted") as error:
        log.upload(seal(batches(0, 50)), capabilities)
    assert error.value.path_or_key.endswith(".log")


def test_a_file_that_changed_after_the_seal_is_named_as_such(log: RemoteLog) -> None:
    segment = seal(batches(0, 50))
    shorter = dataclasses.replace(segment, data=segment.data[:-1])
    with pytest.raises(CorruptionError, match="when it was sealed"):
        log.upload(shorter)
    flipped = bytearray(segment.data)
    flipped[100] ^= 1
    with pytest.raises(CorruptionError, match=r"has CRC32C .* was sealed"):
        log.upload(dataclasses.replace(segment, data=bytes(flipped)))


def test_a_lost_answer_is_settled_by_the_same_put_again(store: RecordingStore, log: RemoteLog) -> None:
    puts: list[str] = []

    def lose_first(request: StoreRequest, inner: Inner) -> Outcome:
        outcome = inner()
        if isinstance(request, Put):
            puts.append(request.key)
            if len(puts) == 1:
                return PutResult(PutStatus.UNKNOWN, cause="timeout")
        return outcome

    store.answer = lose_first
    row = log.upload(seal(batches(0, 50)))
    assert puts == [log.log_key(row), log.log_key(row), log.idx_key(row)]
    assert any(isinstance(r, Head) for r in store.requests)  # a 412 tells no checksum: it is asked for


def test_a_store_that_never_answers_is_unreachable(store: RecordingStore, log: RemoteLog) -> None:
    store.answer = lambda request, inner: PutResult(PutStatus.UNKNOWN, cause="timeout")
    with pytest.raises(RemoteUnavailableError, match="timeout"):
        log.upload(seal(batches(0, 50)))
    assert len({r.key for r in store.requests if isinstance(r, Put)}) == 1


def test_large_segments_go_in_parts_and_the_id_is_told_first(store: RecordingStore) -> None:
    segment = seal(batches(0, 80))
    started: list[str] = []

    def upload(capabilities: Capabilities) -> Row:
        steps = upload_segment(
            segment,
            claim_epoch=1,
            capabilities=capabilities,
            on_multipart=lambda upload_id: started.append(f"{upload_id} before part {len(store.requests)}"),
            sizes=PartSizes(1000, 300),
        )
        return drive(store, steps, clock=FakeClock(), ids=SeededIds(len(started)))

    for capabilities in (TRUSTED, SILENT):
        row = upload(capabilities)
        assert row.crc == crc32c(segment.data)
        found = store.inner.execute(Get(RemoteLog(store).log_key(row)))
        assert isinstance(found, Object)
        assert found.data == segment.data
    parts = [r for r in store.requests if isinstance(r, UploadPart)]
    assert sorted({(p.number, p.start, p.end) for p in parts}) == [
        (i + 1, at, min(at + 300, len(segment.data))) for i, at in enumerate(range(0, len(segment.data), 300))
    ]
    assert len(started) == 2
    assert started[0] == f"{parts[0].upload_id} before part 1"


def test_an_acknowledged_object_that_is_not_there(store: RecordingStore, log: RemoteLog) -> None:
    def forgetful(request: StoreRequest, inner: Inner) -> Outcome:
        if isinstance(request, (Get, Head)):
            return Missing()
        outcome = inner()
        return dataclasses.replace(outcome, crc32c=None) if isinstance(outcome, PutResult) else outcome

    store.answer = forgetful
    for capabilities in (TRUSTED, SILENT):
        with pytest.raises(CorruptionError, match="is absent"):
            log.upload(seal(batches(0, 50)), capabilities)
