"""A ``.log`` whose bundle is lost: its row is proven by its batches, or it is said why not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.unit.remote.building import FIRST_MS, TOPIC_ID, TRUSTED, RemoteLog, batches, records, seal
from tiered.care.bare import gaps_of, told_by_batches
from tiered.format.batch import encode_batch
from tiered.format.control import ControlType, marker
from tiered.format.keys import FLAG_ABORTED_TXNS, Role, SegmentName, index_key, segment_key, segment_name
from tiered.model import EpochEntry, Row, TopicPartition
from tiered.remote.upload import upload_segment
from tiered.store.base import ABSENT, Delete, Get, Object, Put
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

TP = TopicPartition("flights", 0)
ALWAYS = (EpochEntry(0, 0),)
END = 40


class Bucket:
    """Segments whose bundles are lost, and behind them one that tells the leader epochs."""

    def __init__(self, epochs: tuple[EpochEntry, ...] = ALWAYS) -> None:
        self.log = RemoteLog(MemoryStore())
        self.bare: dict[str, SegmentName] = {}
        self.after = self.stored(batches(END, END + 10), epochs=epochs)
        self.before = self.stored(batches(0, 10))

    def stored(
        self, parts: list[bytes], *, epochs: tuple[EpochEntry, ...] = ALWAYS, role: Role = Role.WRITER, claim: int = 1
    ) -> Row:
        segment = seal(parts)
        segment.sealed_indexes = dataclasses.replace(segment.sealed_indexes, leader_epochs=epochs)
        steps = upload_segment(
            segment, topic_id=TOPIC_ID, partition=0, claim_epoch=claim, capabilities=TRUSTED, role=role
        )
        return drive(self.log.store, steps, clock=self.log.clock, ids=self.log.ids)

    def lost(self, parts: list[bytes], role: Role = Role.WRITER, claim: int = 1) -> Row:
        row = self.stored(parts, role=role, claim=claim)
        self.log.store.execute(Delete((index_key(TOPIC_ID, 0, row),)))
        self.bare[segment_key(TOPIC_ID, 0, row)] = segment_name(row)
        return row._replace(idx_len=0)

    def edit(self, row: Row, change: Callable[[bytes], bytes]) -> None:
        key = segment_key(TOPIC_ID, 0, row)
        got = self.log.store.execute(Get(key))
        assert isinstance(got, Object)
        self.log.store.execute(Delete((key,)))
        self.log.store.execute(Put(key, change(bytes(got.data)), ABSENT))

    def told(self, *, rows: list[Row] | None = None) -> tuple[list[Row], dict[str, str]]:
        sizes = {}
        for key in self.bare:
            got = self.log.store.execute(Get(key))
            assert isinstance(got, Object)
            sizes[key] = got.size
        gaps = gaps_of(rows or [self.before, self.after], None)
        steps = told_by_batches(TP, TOPIC_ID, gaps, self.bare, sizes)
        found, unproven = drive(self.log.store, steps, clock=self.log.clock, ids=self.log.ids)
        assert all(row.appended_ms > 0 for row in found)  # the time at which the object was stored
        return [row._replace(appended_ms=-1) for row in found], unproven

    def why_not(self, row: Row) -> str:
        rows, unproven = self.told()
        assert row not in rows
        return unproven[segment_key(TOPIC_ID, 0, row)]


def test_rows_side_by_side_are_those_of_the_upload() -> None:
    bucket = Bucket()
    rows = [bucket.lost(batches(10, 30)), bucket.lost(batches(30, END))]
    assert bucket.told() == (rows, {})


def test_the_first_of_a_log_is_told_too() -> None:
    bucket = Bucket()
    row = bucket.lost(batches(0, END))
    assert bucket.told(rows=[bucket.after]) == ([row], {})


def test_of_two_uploads_the_newest_claim_counts() -> None:
    bucket = Bucket()
    bucket.lost(batches(10, END), claim=1)
    row = bucket.lost(batches(10, END), claim=2)
    assert bucket.told() == ([row], {})


def test_an_abort_marker_is_told() -> None:
    bucket = Bucket()
    end = encode_batch(
        [marker(ControlType.ABORT, 0, FIRST_MS)],
        base_offset=END - 1,
        leader_epoch=0,
        producer_id=7,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    row = bucket.lost([*batches(10, END - 1), end])
    ((told,), unproven) = bucket.told()
    assert (told, unproven) == (row._replace(flags=FLAG_ABORTED_TXNS), {})


def test_what_another_volume_wrote_is_not_the_logs() -> None:
    """It was fenced: who came after it wrote these offsets under a newer leader epoch, and those objects are lost."""
    bucket = Bucket((EpochEntry(0, 0), EpochEntry(1, 10)))
    assert "offset 10 has leader epoch 0, the log had 1" in bucket.why_not(bucket.lost(batches(10, END)))


def test_a_batch_over_the_beginning_of_an_epoch_is_not_the_logs() -> None:
    bucket = Bucket((EpochEntry(0, 0), EpochEntry(1, END - 5)))
    assert "leader epoch" in bucket.why_not(bucket.lost(batches(10, END)))


def test_an_epoch_that_begins_behind_it_hinders_nobody() -> None:
    bucket = Bucket((EpochEntry(0, 0), EpochEntry(1, END)))
    row = bucket.lost(batches(10, END))
    assert bucket.told() == ([row], {})


@pytest.mark.parametrize("epochs", [(), (EpochEntry(0, 20),)], ids=["none", "from offset 20 on"])
def test_without_leader_epochs_nothing_is_proven(epochs: tuple[EpochEntry, ...]) -> None:
    bucket = Bucket(epochs)
    assert "tell" in bucket.why_not(bucket.lost(batches(10, END)))


def test_without_the_next_bundle_nothing_is_proven() -> None:
    bucket = Bucket()
    row = bucket.lost(batches(10, END))
    bucket.log.store.execute(Delete((index_key(TOPIC_ID, 0, bucket.after),)))
    assert "does not tell leader epochs" in bucket.why_not(row)


def test_what_does_not_meet_the_next_is_not_proven() -> None:
    bucket = Bucket()
    assert "nothing begins where it ends, at 30" in bucket.why_not(bucket.lost(batches(10, 30)))


def test_a_rewrite_is_not_proven() -> None:
    bucket = Bucket()
    assert "rewrite" in bucket.why_not(bucket.lost(batches(10, END), role=Role.MAINTAINER))


def test_offsets_that_are_left_out_are_not_proven() -> None:
    bucket = Bucket()
    assert "follows 20" in bucket.why_not(bucket.lost([*batches(10, 20), *batches(30, END)]))


def test_a_first_batch_behind_the_keys_offset_is_not_proven() -> None:
    bucket = Bucket()
    row = bucket.stored(batches(20, END))
    name = SegmentName(Role.WRITER, 1, 10, "0f" * 16)
    got = bucket.log.store.execute(Get(segment_key(TOPIC_ID, 0, row)))
    assert isinstance(got, Object)
    key = segment_key(TOPIC_ID, 0, name)
    bucket.log.store.execute(Put(key, bytes(got.data), ABSENT))
    bucket.bare[key] = name
    assert "follows 10" in bucket.told()[1][key]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data + bytes(100),
        lambda data: data[:80] + bytes([data[80] ^ 1]) + data[81:],
        lambda data: b"",
    ],
    ids=["cut", "a byte more", "zeros behind it", "a bit of a record", "empty"],
)
def test_damaged_bytes_prove_nothing(change: Callable[[bytes], bytes]) -> None:
    bucket = Bucket()
    row = bucket.lost(batches(10, END))
    bucket.edit(row, change)
    assert bucket.why_not(row)


def test_every_bit_of_a_header_is_held_to_something() -> None:
    bucket = Bucket()
    part = encode_batch(records(10, END - 10), base_offset=10, leader_epoch=0)
    row = bucket.lost([part])
    for at in range(61):
        bucket.edit(row, lambda data, at=at: part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :])  # type: ignore[misc]
        assert bucket.told()[0] == [], at
    bucket.edit(row, lambda data: part)
    assert bucket.told()[0] == [row]
