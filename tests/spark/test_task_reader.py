"""What a task reads when the log moved under its plan: planner and tasks of the source, without a session."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.types import StructType

from tests.unit.remote.building import TOPIC_ID, RemoteLog, batches, records, seal
from tiered.config import TopicConfig
from tiered.errors import (
    CorruptionError,
    NotFoundError,
    OffsetGapError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from tiered.format.batch import BatchProducer, encode_batch, read_header
from tiered.format.batch_scanner import BatchRun, cut
from tiered.format.control import ControlType, marker
from tiered.format.root import STATE_DELETING, encode_root
from tiered.format.rows import Rows
from tiered.local.directory.log_directory import LocalLog
from tiered.local.partition.read_log import ReadLog
from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.plan.read import Tier
from tiered.read.stream import TierStream
from tiered.remote.topics import register_topic, update_topic
from tiered.spark.schema import kafka_schema
from tiered.spark.slice_reader import PinnedPiece, SliceReader, Sources
from tiered.spark.slices import PartitionSlice
from tiered.spark.source import TieredDataSource, TieredReader
from tiered.store.base import Delete, Get, Match, Object, Outcome, Put, Steps, StoreRequest
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive

TP = TopicPartition("flights", 0)


@dataclass
class Bucket:
    """A directory store with the topic ``flights``, and readers of it."""

    path: str
    store: DirectoryStore
    log: RemoteLog

    def reader(self, *columns: str, **options: Any) -> TieredReader:
        given = {"path": self.path, "subscribe": "flights", **options}
        source = TieredDataSource({key.replace("__", ".").lower(): str(value) for key, value in given.items()})
        schema = kafka_schema(include_headers=False)
        names = columns or ("offset", "key", "value")
        return source.reader(StructType([field for field in schema.fields if field.name in names]))


def make_bucket(path: Path, partitions: int = 1) -> Bucket:
    store = DirectoryStore(path)
    drive(store, register_topic("flights", TOPIC_ID, partitions, {}))
    return Bucket(str(path), store, RemoteLog(store))


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return make_bucket(tmp_path / "bucket")


def read(reader: TieredReader, slices: list[Any]) -> list[dict[str, Any]]:
    return [row for part in slices for piece in reader.read(part) for row in piece.to_pylist()]


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tiered.spark"]


def replaced(log: RemoteLog, rows: list[Row], new: list[Row], **root: Any) -> None:
    """Rows under new names, the old objects deleted: what a rewrite and its collection leave."""
    log.put_root(Rows.from_rows(new), **root)
    for row in set(rows) - set(new):
        log.delete(row)


# -- rewritten and merged ---------------------------------------------------------------------------------------------


def test_a_rewrite_between_two_segments_of_a_task_gives_each_record_once(bucket: Bucket) -> None:
    rows = bucket.log.fill(300)
    reader = bucket.reader("offset", "key", "value", startingOffsets=json.dumps({"flights": {"0": 15}}))
    slices = reader.partitions()
    # The first segment stays where it was; what replaces the others has batches that begin below it.
    wide = [*batches(0, 90, each=30), *batches(90, 300, each=70)]
    merged = bucket.log.upload(seal(wide))
    bucket.log.put_root(Rows.from_rows([merged]))
    bucket.log.delete(rows[1])
    bucket.log.delete(rows[2])
    found = read(reader, slices)
    assert offsets(found) == list(range(15, 300))
    assert [row["value"] for row in found] == [record.value for record in records(15, 285)]


# -- gone ------------------------------------------------------------------------------------------------------------


def trimmed(bucket: Bucket, rows: list[Row], start_offset: int) -> None:
    left = [row for row in rows if row.next > start_offset]
    replaced(bucket.log, rows, left, start_offset=start_offset)


def test_offsets_that_retention_took_while_the_query_runs_fail_it(bucket: Bucket) -> None:
    rows = bucket.log.fill(300)
    reader = bucket.reader(minPartitions=3)
    slices = reader.partitions()
    trimmed(bucket, rows, 100)
    with pytest.raises(OffsetOutOfRangeError) as error:
        read(reader, slices[:1])
    assert (error.value.requested, error.value.earliest, error.value.latest) == (0, 100, 300)
    message = "flights-0: offsets 0 to 100 are gone since this DataFrame was planned: the log holds 100 to 300"
    assert str(error.value).startswith(message)
    assert "failOnDataLoss=false" in error.value.hint
    assert offsets(read(reader, slices[1:])) == list(range(100, 300))


def test_without_fail_on_data_loss_they_are_skipped_and_counted(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    rows = bucket.log.fill(400)
    reader = bucket.reader(failOnDataLoss="false")
    slices = reader.partitions()
    trimmed(bucket, rows, 250)  # the third segment stays, the log begins inside it
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        assert offsets(read(reader, slices)) == list(range(250, 400))
    assert told(caplog) == [
        "flights-0: offsets 0 to 250 are gone since this DataFrame was planned: the log holds 250 to 400; "
        "250 offsets are skipped (failOnDataLoss=false)"
    ]
    caplog.clear()
    trimmed(bucket, rows, 400)
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        assert offsets(read(reader, slices)) == []
    assert ["; 400 offsets are skipped" in message for message in told(caplog)] == [True]


def test_an_object_that_the_catalog_still_names_is_damage_whatever_the_option(bucket: Bucket) -> None:
    rows = bucket.log.fill(200)
    for flag in ("true", "false"):
        reader = bucket.reader(failOnDataLoss=flag)
        slices = reader.partitions()
        bucket.log.delete(rows[1])
        with pytest.raises(CorruptionError, match="still names"):
            read(reader, slices)


def test_a_root_that_went_back_or_is_gone_is_damage_whatever_the_option(bucket: Bucket) -> None:
    rows = bucket.log.fill(100)
    older = bucket.store.execute(Get(bucket.log.root_key))
    assert isinstance(older, Object)
    rows += bucket.log.fill(200, start=100)
    reader = bucket.reader(failOnDataLoss="false")
    slices = reader.partitions()
    newest = bucket.store.execute(Get(bucket.log.root_key))
    assert isinstance(newest, Object)
    bucket.store.execute(Put(bucket.log.root_key, older.data, Match(newest.etag)))
    bucket.log.delete(rows[1])
    with pytest.raises(
        CorruptionError, match="the catalog went back to version 2: this DataFrame was planned with version 3"
    ):
        read(reader, slices)
    bucket.store.execute(Delete((bucket.log.root_key,)))
    with pytest.raises(CorruptionError):
        read(reader, slices)


def test_a_topic_that_was_made_again_is_data_loss(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    rows = bucket.log.fill(100)
    strict, loose = bucket.reader(), bucket.reader(failOnDataLoss="false")
    slices = strict.partitions()
    bucket.store.execute(Delete(("topics/flights", bucket.log.root_key)))
    for row in rows:
        bucket.log.delete(row)
    with pytest.raises(CorruptionError, match="no longer registered"):
        read(loose, slices)
    drive(bucket.store, register_topic("flights", UUID(int=7), 1, {}))
    with pytest.raises(OffsetOutOfRangeError, match="the topic is deleted or made again"):
        read(strict, slices)
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        assert read(loose, slices) == []
    assert ["100 offsets are skipped" in message for message in told(caplog)] == [True]


# -- the disk --------------------------------------------------------------------------------------------------------


@pytest.fixture
def both(tmp_path: Path) -> tuple[Bucket, Path]:
    """The bucket holds 0 to 60, the disk 40 to 100."""
    made, directory = make_bucket(tmp_path / "both"), tmp_path / "log"
    made.log.add(seal(batches(0, 60)))
    write_local(directory, 40, 100)
    return made, directory


def write_local(directory: Path, start: int, end: int, topic_id: UUID = TOPIC_ID, size: int = 24) -> None:
    with LocalLog.open(directory) as local:
        if "flights" not in local.topics():
            local.create_topic("flights", 1, TopicConfig(), topic_id)
            local.partition(TP).start_at(start, 1)
        local.partition(TP).append(records(start, end - start, size=size))


def move_local(directory: Path, start: int, end: int, topic_id: UUID = TOPIC_ID, size: int = 24) -> None:
    """The directory as it would be after its older segments left it."""
    directory.rename(directory.with_name(f"before-{start}"))
    write_local(directory, start, end, topic_id, size)


def test_what_left_the_disk_is_read_from_the_bucket(both: tuple[Bucket, Path]) -> None:
    bucket, directory = both
    reader = bucket.reader(local_dir=directory)
    slices = reader.partitions()
    assert [(p.tier.value, p.start, p.end) for part in slices for p in part.pieces] == [
        ("remote", 0, 60),
        ("local", 60, 100),
    ]
    bucket.log.add(seal(batches(60, 90)))
    move_local(directory, 80, 100)
    found = read(reader, slices)
    assert offsets(found) == list(range(100))
    assert [row["value"] for row in found[60:90]] == [record.value for record in records(60, 30)]
    bucket.log.add(seal(batches(90, 100)))
    move_local(directory, 100, 120)
    assert offsets(read(reader, slices)) == list(range(100))


def test_a_partition_that_left_the_disk_is_read_from_the_bucket(both: tuple[Bucket, Path]) -> None:
    bucket, directory = both
    reader = bucket.reader(local_dir=directory)
    slices = reader.partitions()
    bucket.log.add(seal(batches(60, 100)))
    directory.rename(directory.with_name("moved"))
    with LocalLog.open(directory) as local:
        local.create_topic("weather", 1, TopicConfig(), UUID(int=9))
    assert offsets(read(reader, slices)) == list(range(100))
    move_local(directory, 60, 100, UUID(int=8), size=30)  # another topic of this name
    assert [row["value"] for row in read(reader, slices)] == [record.value for record in records(0, 100)]


class Leaving(Sources):
    """The partition leaves the disk right after it was found there."""

    directory: Path

    def local(self, piece: PartitionSlice) -> ReadLog | None:
        found = super().local(piece)
        if found is not None:
            found.positions()
            shutil.rmtree(self.directory / str(TP))
        return found


def test_a_partition_that_leaves_the_disk_while_it_is_read(both: tuple[Bucket, Path]) -> None:
    bucket, directory = both
    slices = bucket.reader(local_dir=directory).partitions()
    bucket.log.add(seal(batches(60, 100)))
    (piece,) = [piece for part in slices for piece in part.pieces if piece.tier is Tier.LOCAL]
    sources = Leaving(bucket.store, str(directory))
    sources.directory = directory
    pinned = PinnedPiece(piece, sources, fail_on_data_loss=True)
    given = [each for _, stretch in pinned.stretches() for each in stretch]
    sources.close()
    assert bases(given) == list(range(60, 100, 10))


def bases(given: list[Any]) -> list[int]:
    """The first offset of each batch, in a run or alone."""
    found = [cut(each.data) if isinstance(each, BatchRun) else (each[1],) for each in given]
    return [read_header(batch).base_offset for some in found for batch in some]


def test_what_was_read_of_the_disk_before_it_left_is_not_read_again(
    both: tuple[Bucket, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, directory = both
    write_local(directory, 100, 130)
    slices = bucket.reader(local_dir=directory).partitions()
    bucket.log.add(seal(batches(60, 130)))
    read_runs = ReadLog.read_runs

    def leaving(log: ReadLog, start: int, end: int | None = None) -> Iterator[BatchRun]:
        yield next(read_runs(log, start, end))
        raise OffsetOutOfRangeError("it left", requested=100, earliest=130, latest=130)

    monkeypatch.setattr(ReadLog, "read_runs", leaving)
    (piece,) = [piece for part in slices for piece in part.pieces if piece.tier is Tier.LOCAL]
    sources = Sources(bucket.store, str(directory))
    stretches = PinnedPiece(piece, sources, fail_on_data_loss=True).stretches()
    assert [(start, bases(list(found))) for start, found in stretches] == [(60, [40]), (100, [100, 110, 120])]
    sources.close()


def test_what_was_read_elsewhere_before_retention_went_past_is_not_counted_as_lost(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = bucket.log.fill(300)
    slices = bucket.reader(failOnDataLoss="false").partitions()
    again = [bucket.log.upload(seal(batches(at, at + 100))) for at in (0, 100, 200)]
    replaced(bucket.log, rows, again)
    whole = TierStream.batches

    def overtaken(stream: TierStream, start: int, end: int, **shapes: Any) -> Steps[None]:
        if start == 0:
            yield from whole(stream, 0, 100, **shapes)
            replaced(bucket.log, again, again[2:], start_offset=200)
        yield from whole(stream, max(start, 100), end, **shapes)

    monkeypatch.setattr(TierStream, "batches", overtaken)
    (piece,) = [piece for part in slices for piece in part.pieces]
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        stretches = PinnedPiece(piece, Sources(bucket.store, None), fail_on_data_loss=False).stretches()
        found = [(start, bases(list(given))) for start, given in stretches]
    first, last = list(range(0, 100, 10)), list(range(200, 300, 10))
    assert found == [(0, []), (0, first), (200, last)]
    assert [message.partition(" are gone")[0] for message in told(caplog)] == ["flights-0: offsets 100 to 200"]


def test_batches_come_in_runs_from_the_disk_and_where_they_were_rewritten(both: tuple[Bucket, Path]) -> None:
    bucket, directory = both
    write_local(directory, 100, 130)
    write_local(directory, 130, 150)
    slices = bucket.reader(local_dir=directory).partitions()
    (remote, local) = [piece for part in slices for piece in part.pieces]
    assert bucket.log.root is not None
    replaced(bucket.log, list(bucket.log.root.rows), [bucket.log.upload(seal(batches(0, 60, each=20)))])
    sources = Sources(bucket.store, str(directory))
    for piece, expected in ((local, [[40], [100, 130]]), (remote, [[0, 20, 40]])):
        given = [each for _, found in PinnedPiece(piece, sources, fail_on_data_loss=True).stretches() for each in found]
        assert {type(each) for each in given} == {BatchRun}
        assert [bases([each]) for each in given] == expected
    sources.close()


def test_what_left_the_disk_and_is_nowhere_is_data_loss(
    both: tuple[Bucket, Path], caplog: pytest.LogCaptureFixture
) -> None:
    bucket, directory = both
    strict = bucket.reader(local_dir=directory)
    loose = bucket.reader(local_dir=directory, failOnDataLoss="false")
    slices = strict.partitions()
    move_local(directory, 80, 90)  # 60 to 80 were never uploaded, 90 to 100 are cut off
    with pytest.raises(OffsetGapError) as error:
        read(strict, slices)
    assert (error.value.start, error.value.end) == (60, 80)
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        assert offsets(read(loose, slices)) == [*range(60), *range(80, 90)]
    assert [message.partition(" are gone")[0] for message in told(caplog)] == [
        "flights-0: offsets 60 to 80",
        "flights-0: offsets 90 to 100",
    ]


def test_a_directory_that_is_not_there_is_no_empty_one(both: tuple[Bucket, Path]) -> None:
    bucket, directory = both
    reader = bucket.reader(local_dir=directory, failOnDataLoss="false")
    slices = reader.partitions()
    bucket.log.add(seal(batches(60, 100)))
    directory.rename(directory.with_name("elsewhere"))
    with pytest.raises(NotFoundError, match="by every executor"):
        read(reader, slices)


def test_a_hole_between_the_tiers_is_data_loss_when_planned(
    both: tuple[Bucket, Path], caplog: pytest.LogCaptureFixture
) -> None:
    bucket, directory = both
    move_local(directory, 80, 100)
    with pytest.raises(OffsetGapError):
        bucket.reader(local_dir=directory).partitions()
    reader = bucket.reader(local_dir=directory, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        slices = reader.partitions()
    assert ["20 offsets are skipped" in message for message in told(caplog)] == [True]
    assert offsets(read(reader, slices)) == [*range(60), *range(80, 100)]


# -- the planner -----------------------------------------------------------------------------------------------------


def test_a_topic_that_is_being_deleted_is_refused(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.log.fill(10)
    drive(bucket.store, update_topic("flights", lambda entry: dataclasses.replace(entry, state=STATE_DELETING)))
    for flag in ("true", "false"):
        with pytest.raises(UnknownTopicError, match="topic flights is being deleted"):
            bucket.reader(failOnDataLoss=flag).partitions()
    pattern = {"path": bucket.path, "subscribepattern": "fl.*"}
    schema = kafka_schema(include_headers=False)
    with pytest.raises(UnknownTopicError, match="topic flights is being deleted"):
        TieredDataSource(pattern).reader(schema).partitions()
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        assert TieredDataSource({**pattern, "failondataloss": "false"}).reader(schema).partitions() == []
    assert told(caplog) == ["topic flights is being deleted and is left out (failOnDataLoss=false)"]


def test_a_partition_that_is_being_deleted_is_refused(bucket: Bucket) -> None:
    rows = bucket.log.fill(200)
    strict, loose = bucket.reader(), bucket.reader(failOnDataLoss="false")
    slices = strict.partitions()
    root = bucket.log.put_root(Rows.from_rows(rows))
    held = bucket.store.execute(Get(bucket.log.root_key))
    assert isinstance(held, Object)
    going = encode_root(dataclasses.replace(root, state=STATE_DELETING))
    bucket.store.execute(Put(bucket.log.root_key, going, Match(held.etag)))
    with pytest.raises(UnknownTopicError, match="topic flights is being deleted"):
        bucket.reader().partitions()
    assert offsets(read(strict, slices)) == list(range(200))  # what is still there is still read
    bucket.log.delete(rows[1])
    with pytest.raises(OffsetOutOfRangeError, match="offsets 100 to 200 are gone"):
        read(strict, slices)
    assert offsets(read(loose, slices)) == list(range(100))


def test_a_topic_whose_deletion_begins_while_the_query_runs_is_data_loss(bucket: Bucket) -> None:
    rows = bucket.log.fill(200)
    strict, loose = bucket.reader(), bucket.reader(failOnDataLoss="false")
    slices = strict.partitions()
    drive(bucket.store, update_topic("flights", lambda entry: dataclasses.replace(entry, state=STATE_DELETING)))
    bucket.log.delete(rows[0])
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 0 to 200 are gone .* the topic is deleted or made again"):
        read(strict, slices)
    assert read(loose, slices) == []


class Meeting(DirectoryStore):
    """Of the reads of index bundles the first ``alone`` pass, the next ``parties`` are answered together, or never."""

    def __init__(self, path: Path, parties: int, alone: int = 0) -> None:
        super().__init__(path)
        self.asked: list[str] = []
        self._barrier = threading.Barrier(parties, timeout=30)
        self._waiting = range(alone, alone + parties)
        self._lock = threading.Lock()

    def execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, Get) and request.key.endswith(".idx"):
            with self._lock:
                at = len(self.asked)
                self.asked.append(request.key)
            if at in self._waiting:
                self._barrier.wait()
        return super().execute(request)


def test_transaction_indexes_are_fetched_concurrently_and_slices_carry_their_own(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[int] = []
    for at in range(4):
        base = at * 100
        data = encode_batch(
            records(base, 5), base_offset=base, leader_epoch=0, producer=BatchProducer(7, 0, at * 5, transactional=True)
        )
        abort = encode_batch(
            [marker(ControlType.ABORT, 0, 0)],
            base_offset=base + 5,
            leader_epoch=0,
            producer=BatchProducer(7, 0, transactional=True, control=True),
        )
        txn = AbortedTxn(7, base, base + 5, base + 6)
        bucket.log.add(seal([data, abort, *batches(base + 6, base + 100)], aborted=[txn]))
        expected += range(base + 6, base + 100)
    store = Meeting(Path(bucket.path), 3, alone=1)  # the last bundle tells the last stable offset
    reader = bucket.reader(isolation__level="read_committed", minPartitions=4)
    monkeypatch.setattr(SliceReader, "store", lambda _: store)
    slices = reader.partitions()
    carried = [[txn.first_offset for piece in part.pieces for txn in piece.aborted] for part in slices]
    assert carried == [[0], [100], [200], [300]]
    assert offsets(read(reader, slices)) == expected
