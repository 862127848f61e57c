"""Segments of the bucket that are written again: what is in them, and what stops it. Bugs carry their numbers."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.remote_face import RemoteFace
from tests.unit.remote import building, rewriting
from tests.unit.remote.building import TOPIC_ID, RemoteLog, batches, seal
from tests.unit.remote.recording import RecordingStore
from tests.unit.remote.rewriting import Rewriter
from tiered.check.findings import Finding, Findings
from tiered.check.inspection import Expectations, LogInspection, compare_descriptor
from tiered.config import TopicConfig
from tiered.errors import CorruptionError, NotFoundError, RemoteUnavailableError
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.batch_scanner import walk_headers
from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, parse_segment_key
from tiered.format.producer_snapshot import ProducerEntry, encode_snapshot
from tiered.format.rows import Rows
from tiered.format.segment_indexes import decode_txns
from tiered.model import AbortedTxn, BytesSource, EpochEntry, NewRecord, Row
from tiered.plan.offset_map import ENTRY_BYTES
from tiered.remote.catalog import Catalog
from tiered.remote.catalog_view import CatalogView
from tiered.remote.compact_parts import plan_round
from tiered.remote.segment_rewriter import hole
from tiered.store.base import (
    AbortUpload,
    CompleteUpload,
    Delete,
    List,
    Outcome,
    StartUpload,
    Steps,
    StoreRequest,
    UploadPart,
)
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("both_catalogs")
CONFIG = TopicConfig(cleanup_policy="compact", index_interval_bytes=256)


@pytest.fixture
def log() -> RemoteLog:
    return RemoteLog(RecordingStore(MemoryStore(min_part_bytes=1)))


@pytest.fixture
def rewriter(log: RemoteLog) -> Rewriter:
    return Rewriter(log, CONFIG)


def offsets(log: RemoteLog) -> list[int]:
    """Of every record that a reader sees."""
    face = RemoteFace(log.store, log.topic, TOPIC_ID, 0)
    return building.offsets(face.read_batches(0))


def looked_at(rewriter: Rewriter, row: Row) -> list[Finding]:
    """What ``check --read-data`` says of a segment beside its descriptor."""
    findings = Findings("here")
    look = LogInspection(row.size, row.base, findings, Expectations(decode=True))
    compare_descriptor(look.feed_all(BytesSource(rewriter.data(row))), rewriter.bundle(row).descriptor, findings)
    return findings.about("t", 0)


def recorded(log: RemoteLog) -> list[StoreRequest]:
    assert isinstance(log.store, RecordingStore)
    return log.store.requests


# -- merging ---------------------------------------------------------------------------------------------------------


def test_a_merged_segment_is_the_one_that_a_log_would_have_written(rewriter: Rewriter, log: RemoteLog) -> None:
    rows = log.fill(500)
    merged = rewriter.merge(rows)
    whole = seal(batches(0, 500))
    assert rewriter.data(merged) == whole.data
    bundle = rewriter.bundle(merged)
    assert bundle.descriptor == whole.descriptor
    assert bundle.indexes.offset_index == whole.sealed_indexes.offset_index
    assert bundle.indexes.time_index == whole.sealed_indexes.time_index
    assert (merged.base, merged.next, merged.records) == (0, 500, 500)
    assert merged.flags == FLAG_MAINTAINER
    assert "/s/m00000001/" in log.log_key(merged)
    face = RemoteFace(log.store, log.topic, TOPIC_ID, 0)
    assert b"".join(face.read_batches(0)) == whole.data
    assert b"".join(face.read_batches(333, 334)) == batches(330, 340)[0]


def test_what_stood_beside_the_inputs_stands_beside_the_output(rewriter: Rewriter, log: RemoteLog) -> None:
    producers = encode_snapshot([ProducerEntry(7, 0, 0, 399, 9, 5, -1, -1)])
    txns = [AbortedTxn(1, 0, 50, 60), AbortedTxn(2, 110, 150, 160)]
    rows = [
        log.add(seal(batches(0, 100), aborted=txns[:1], snapshot=b"older")),
        log.add(seal(batches(100, 200), aborted=txns[1:])),
        log.add(seal(batches(200, 300), end=310)),
        log.add(seal(batches(310, 400), snapshot=producers)),
    ]
    indexes = rewriter.bundle(rewriter.merge(rows)).indexes
    assert decode_txns(indexes.txn_index, 0) == txns
    assert indexes.producer_snapshot == producers


def test_a_gap_at_the_end_and_a_hole_stay_in_the_range(rewriter: Rewriter, log: RemoteLog) -> None:
    first, second = log.fill(200)
    rewriter.context()  # the epoch of a hole is claimed, too
    gap = log.add(seal(batches(200, 250), end=300))
    empty = hole(100, 200, "0" * 31 + "f", 1, 0)
    rewriter.put([second], empty)
    merged = rewriter.merge([first, empty, gap])
    assert (merged.base, merged.next, merged.records, merged.size) == (0, 300, 150, first.size + gap.size)


def test_an_output_larger_than_a_part_is_sent_in_parts(rewriter: Rewriter, log: RemoteLog) -> None:
    rewriter.part_bytes = 4096
    merged = rewriter.merge(log.fill(500))
    assert rewriter.data(merged) == seal(batches(0, 500)).data
    parts = [request for request in recorded(log) if isinstance(request, UploadPart)]
    assert [part.end - part.start for part in parts] == [4096] * (len(parts) - 1) + [merged.size % 4096]
    assert sum(isinstance(request, StartUpload | CompleteUpload) for request in recorded(log)) == 2


def test_bug_5_an_input_with_more_than_its_offsets_stops_the_merge(rewriter: Rewriter, log: RemoteLog) -> None:
    """Records that an uploader sealed so would be dropped without a word."""
    rows = log.fill(300)
    more = seal(batches(300, 420))
    rows.append(log.add(dataclasses.replace(more, descriptor=dataclasses.replace(more.descriptor, end_offset=400))))
    with pytest.raises(CorruptionError, match="its batches up to offset 400"):
        rewriter.merge(rows)
    assert outputs(log) == []


@pytest.mark.parametrize("part_bytes", [4096, 1 << 20])
def test_bug_5_an_input_that_is_cut_short_stops_the_merge(rewriter: Rewriter, log: RemoteLog, part_bytes: int) -> None:
    rewriter.part_bytes = part_bytes
    rows = log.fill(500)
    log.replace(log.log_key(rows[3]), rewriter.data(rows[3])[:-1])
    with pytest.raises(CorruptionError) as raised:
        rewriter.merge(rows)
    assert raised.value.path_or_key == log.log_key(rows[3])
    assert outputs(log) == []
    assert sum(isinstance(request, AbortUpload) for request in recorded(log)) == (part_bytes == 4096)


def test_bug_6_a_whole_input_that_is_another_one_stops_the_merge(rewriter: Rewriter, log: RemoteLog) -> None:
    """Each of its batches is right by itself: the checksum of the catalog tells."""
    rows = log.fill(500)
    other = batches(300, 400, size=23)
    data = b"".join(other)
    log.replace(log.log_key(rows[3]), data.ljust(rows[3].size, b"\0"))
    with pytest.raises(CorruptionError):
        rewriter.merge(rows)
    log.replace(log.log_key(rows[3]), rewriter.data(rows[2]))  # the right size, other offsets
    with pytest.raises(CorruptionError):
        rewriter.merge(rows)
    assert outputs(log) == []


def test_bug_6_a_stream_that_ends_early_is_never_completed(rewriter: Rewriter, log: RemoteLog) -> None:
    rewriter.part_bytes = 4096
    rows = log.fill(500)
    assert isinstance(log.store, RecordingStore)

    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, UploadPart) and request.number == 2:
            raise RemoteUnavailableError("the connection was reset")
        return carry_out()

    log.store.answer = answer
    with pytest.raises(RemoteUnavailableError):
        rewriter.merge(rows)
    assert isinstance(recorded(log)[-1], AbortUpload)
    assert outputs(log) == []


def outputs(log: RemoteLog) -> list[str]:
    """Objects under role m."""
    entries = log.store.execute(List("")).entries  # type: ignore[union-attr]  # a LIST gives a page
    names = [parse_segment_key(entry.key) for entry in entries]
    return [name.name.uid for name in names if name is not None and name.name.role == "m"]


# -- compaction ------------------------------------------------------------------------------------------------------


def test_a_range_without_survivors_becomes_a_hole(rewriter: Rewriter, log: RemoteLog) -> None:
    """``records`` repeats seven keys: of the first hundreds nothing is newest."""
    rewriter.config = TopicConfig(cleanup_policy="compact", segment_bytes=5000)
    log.fill(500)
    report = rewriter.compact(log.clock.now_ms())
    assert report is not None
    assert (report.end_offset, report.keys, report.records_written) == (500, 7, 7)
    rows = rewriter.rows
    assert [bool(row.flags & FLAG_HOLE) for row in rows] == [True] * (len(rows) - 1) + [False]
    assert (rows[0].base, rows[-1].next, sum(row.records for row in rows)) == (0, 500, 7)
    assert offsets(log) == list(range(493, 500))
    assert rewriter.compact(log.clock.now_ms()) is None


def test_the_end_of_the_log_never_becomes_a_hole(rewriter: Rewriter, log: RemoteLog) -> None:
    """Its bundle alone knows the producers. Records without a key would all go."""
    log.fill(100)
    unkeyed = encode_batch([NewRecord(b"v", timestamp=1)] * 10, base_offset=100, leader_epoch=0)
    producers = encode_snapshot([ProducerEntry(7, 0, 0, 399, 9, 5, -1, -1)])
    last = log.add(seal([unkeyed], end=120, snapshot=producers))
    rewriter.config = TopicConfig(cleanup_policy="compact", segment_bytes=last.size)
    rewriter.compact(log.clock.now_ms())
    assert rewriter.rows[-1] == last
    assert rewriter.rows[0].records == 7


def test_a_row_has_the_leader_epoch_of_what_is_left(rewriter: Rewriter, log: RemoteLog) -> None:
    """The newer epoch had only records without a key. They are gone, and no file stands for the hole after them."""
    unkeyed = encode_batch([NewRecord(b"v", timestamp=1)] * 5, base_offset=10, leader_epoch=1)
    first = log.add(seal([*batches(0, 10), unkeyed]))
    log.add(seal([encode_batch([NewRecord(b"v", b"other", 1)], base_offset=15, leader_epoch=1)]))
    log.put_root(Rows.from_rows(rewriter.rows), lineage=(EpochEntry(0, 0), EpochEntry(1, 10)))
    rewriter.config = TopicConfig(cleanup_policy="compact", segment_bytes=first.size)
    rewriter.compact(log.clock.now_ms())
    compacted, last = rewriter.rows
    assert (compacted.base, compacted.next, compacted.records, compacted.leader_epoch) == (0, 15, 7, 0)
    assert looked_at(rewriter, compacted) == []
    gap = hole(15, 16, "0" * 32, 1, 1)
    log.put_root(Rows.from_rows([compacted, gap]))
    merged = rewriter.merge([compacted, gap])
    assert (merged.next, merged.leader_epoch, last.leader_epoch) == (16, 0, 1)
    assert looked_at(rewriter, merged) == []


def test_an_emptied_batch_has_no_smallest_timestamp(rewriter: Rewriter, log: RemoteLog) -> None:
    """The batch stays as the newest of its producer; its record, the oldest of all, is gone."""
    old = encode_batch([NewRecord(b"v", b"k", 100)], leader_epoch=0, producer=BatchProducer(7, 0, 0))
    new = encode_batch([NewRecord(b"v", b"k", 200)], base_offset=1, leader_epoch=0)
    log.add(seal([old, new], snapshot=encode_snapshot([ProducerEntry(7, 0, 0, 0, 0, 100, -1, -1)])))
    rewriter.compact(log.clock.now_ms())
    (row,) = rewriter.rows
    assert [header.records_count for _, header in walk_headers(rewriter.data(row))] == [0, 1]
    assert (row.records, row.min_ts, row.max_ts) == (1, 200, 200)
    assert looked_at(rewriter, row) == []


def test_a_group_that_stays_as_it_is_is_not_written_again(rewriter: Rewriter, log: RemoteLog) -> None:
    """But for the last of a round in which nothing else is: its commit notes the clean end."""
    rewriter.config = TopicConfig(cleanup_policy="compact", segment_bytes=150)
    log.fill(7, per_segment=1, each=1)
    before = rewriter.rows
    report = rewriter.compact(log.clock.now_ms())
    assert report is not None
    assert report.groups == [(6,)]
    assert rewriter.rows[:-1] == before[:-1]
    assert rewriter.data(rewriter.rows[-1]) == rewriter.data(before[-1])


def test_keys_that_do_not_fit_take_several_rounds_to_the_same_end(log: RemoteLog) -> None:
    log.fill(500)
    twin = RemoteLog(MemoryStore(min_part_bytes=1))
    twin.fill(500)
    at_once, piecewise = Rewriter(log, CONFIG), Rewriter(twin, CONFIG)
    at_once.compact(log.clock.now_ms())
    rounds = 0
    while piecewise.compact(log.clock.now_ms(), memory_bytes=ENTRY_BYTES * 6) is not None:
        rounds += 1
    assert rounds > 2
    assert offsets(log) == offsets(twin) == list(range(493, 500))


def test_memory_does_not_grow_with_the_log(log: RemoteLog) -> None:
    """Sixteen megabytes go through, twenty times the peak: a map of 16 KiB, parts of 64 KiB, inputs of 200 KB, one of
    them at hand and one read ahead."""
    config = TopicConfig(cleanup_policy="compact", segment_bytes=2**24)
    rewriter = Rewriter(RemoteLog(MemoryStore(min_part_bytes=1)), config, 1 << 16, 1 << 16)
    for at in range(0, 16_000, 200):
        rewriter.log.add(seal(batches(at, at + 200, each=20, size=1000)))
    data = sum(row.size for row in rewriter.rows)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    report = rewriter.compact(log.clock.now_ms(), memory_bytes=1 << 14)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert report is not None
    assert report.records_read == 16_000
    assert peak * 20 < data


def test_phase_2_of_a_part_holds_its_bitmap_and_what_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded as a compaction on one machine is, without its map of keys: however large the part."""
    config = TopicConfig(cleanup_policy="compact", segment_bytes=2**24)
    rewriter = Rewriter(RemoteLog(MemoryStore(min_part_bytes=1)), config, 1 << 16, 1 << 16)
    for at in range(0, 16_000, 200):
        rewriter.log.add(seal(batches(at, at + 200, each=20, size=1000)))
    data = sum(row.size for row in rewriter.rows)
    steps, peaks = rewriting.rewrite_part, list[int]()

    def measured(*args: Any, **words: Any) -> Steps[list[Row | None]]:
        tracemalloc.start()
        made = yield from steps(*args, **words)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        return made

    monkeypatch.setattr(rewriting, "rewrite_part", measured)
    assert rewriter.compact_in_parts(part_bytes=data, most_keys=1000) is not None
    (peak,) = peaks
    assert peak * 20 < data
    assert sum(row.records for row in rewriter.rows) == 7


class StoodStill(Catalog):
    """First of all it gives what was newest a while ago."""

    held: CatalogView | None = None

    def pin(self) -> Steps[CatalogView | None]:
        held, self.held = self.held, None
        return held if held is not None else (yield from super().pin())


@pytest.mark.parametrize("destroyed", [False, True])
def test_a_round_over_what_is_gone_is_planned_anew_or_names_the_loss(
    log: RemoteLog, rewriter: Rewriter, destroyed: bool
) -> None:
    """Simulation, seed 19729: a planner that stood still while its topic was destroyed met a bare SegmentGone."""
    log.add(seal(batches(0, 20)))
    root, context, view = log.root, rewriter.context(), StoodStill(TOPIC_ID, log.partition, log.topic)
    assert root is not None
    view.held = CatalogView.from_root(root)
    key = log.idx_key(list(root.rows)[-1])
    log.store.execute(Delete((key, *([root.key] if destroyed else []))))
    expected = NotFoundError if destroyed else CorruptionError
    with pytest.raises(expected, match="was replaced while it was read" if destroyed else "still names it") as told:
        drive(log.store, plan_round(view, CONFIG, context, part_bytes=1))
    assert (told.type, key in told.value.message) == (expected, True)
