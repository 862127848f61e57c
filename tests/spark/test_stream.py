"""The stream reader as Spark drives it, without a session: offsets, limits, loss, requests, outages."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from tests.unit.remote.building import FIRST_MS, TOPIC_ID, RemoteLog, batches, records, seal
from tiered.config import TopicConfig
from tiered.errors import ConfigError, CorruptionError, OffsetOutOfRangeError, RemoteUnavailableError, UnknownTopicError
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.control import ControlType, marker
from tiered.format.producer_snapshot import ProducerEntry, encode_snapshot
from tiered.format.root import STATE_DELETING
from tiered.format.rows import Rows
from tiered.local.directory.log_directory import LocalLog
from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.remote.gc.deletion import resume_topic_deletion, start_deletion
from tiered.remote.topics import load_topic, register_topic
from tiered.spark.schema import kafka_schema
from tiered.spark.slice_reader import SliceReader
from tiered.spark.source import TieredDataSource
from tiered.spark.stream import OUTAGE_PATIENCE_SECONDS, REGISTRY_AGE_SECONDS, TieredStreamReader
from tiered.store.base import ABSENT, Delete, Get, List, NotModified, Outcome, Put, StoreRequest
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive
from tiered.testing.clock import FakeClock, SeededIds

TP = TopicPartition("flights", 0)
ALL = ReadAllAvailable()


class Counted(DirectoryStore):
    """Counts what it is asked; while ``down`` is above 0, that many requests fail."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: Counter[str] = Counter()
        self.down = 0
        self._lock = threading.Lock()

    def execute(self, request: StoreRequest) -> Outcome:
        with self._lock:
            if self.down:
                self.down -= 1
                raise RemoteUnavailableError("the store does not answer")
        outcome = super().execute(request)
        kind = type(request).__name__
        if isinstance(request, Get) and isinstance(outcome, NotModified):
            kind = "NotModified"
        with self._lock:
            self.asked[kind] += 1
        return outcome

    def take(self) -> dict[str, int]:
        with self._lock:
            found, self.asked = dict(self.asked), Counter()
        return found


@dataclass
class Desk:
    """A directory store with the topic ``flights``, and stream readers of it, each as of a process of its own."""

    path: Path
    monkeypatch: pytest.MonkeyPatch
    partitions: int = 1
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.store = Counted(self.path)
        self.monkeypatch.setattr(SliceReader, "store", lambda _: self.store)
        drive(self.store, register_topic("flights", TOPIC_ID, self.partitions, {}))
        self.log = self.of(0)

    def of(self, partition: int, topic: str = "flights", topic_id: UUID = TOPIC_ID) -> RemoteLog:
        return RemoteLog(self.store, topic, topic_id, partition)

    def reader(self, **options: Any) -> TieredStreamReader:
        chosen = {} if "subscribePattern" in options else {"subscribe": "flights"}
        given = {"path": str(self.path), **chosen, **options}
        source = TieredDataSource({key.replace("__", ".").lower(): str(value) for key, value in given.items()})
        schema = StructType([f for f in kafka_schema(include_headers=False).fields if f.name in ("offset", "topic")])
        made = source.streamReader(schema)
        assert isinstance(made, TieredStreamReader)
        return TieredStreamReader(made._options, schema, clock=self.clock, ids=SeededIds(1))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path / "bucket", monkeypatch)


def sent(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark hands an offset on: through its text."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def rows(reader: TieredStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    slices = reader.partitions(sent(start), sent(end))
    return [row["offset"] for part in slices for piece in reader.read(part) for row in piece.to_pylist()]


def offsets(end: dict[str, Any], topic: str = "flights") -> dict[str, int]:
    found: dict[str, int] = end[topic]
    return found


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tiered.spark"]


# -- where it begins and goes on -------------------------------------------------------------------------------------


def test_a_new_query_reads_what_comes_and_each_record_once(desk: Desk) -> None:
    desk.log.fill(100)
    reader = desk.reader()
    start = reader.initialOffset()
    assert start == {"flights": {"0": 100}}
    end = reader.latestOffset(sent(start), ALL)
    assert end["@"] == {"start": start, "topic_ids": {"flights": TOPIC_ID.hex}}
    assert rows(reader, start, end) == []
    desk.log.fill(130, start=100)
    after = reader.latestOffset(sent(end), ALL)
    assert after == {"@": {"topic_ids": {"flights": TOPIC_ID.hex}}, "flights": {"0": 130}}
    assert rows(reader, end, after) == list(range(100, 130))
    assert json.dumps(reader.latestOffset(sent(after), ALL)) == json.dumps(after)
    assert reader.reportLatestOffset() == after


def test_the_first_batch_is_repeated_from_where_it_first_began(desk: Desk) -> None:
    """Spark asks for the initial offset when the first batch is planned, again when it runs, and again when a crash
    made it run once more; only the end of that batch is in the checkpoint by then."""
    desk.log.fill(20)
    first = desk.reader()
    start = sent(first.initialOffset())
    desk.log.fill(25, start=20)
    end = sent(first.latestOffset(start, ALL))
    assert first.initialOffset() == start
    assert rows(first, start, end) == list(range(20, 25))
    desk.log.fill(40, start=25)
    again = desk.reader()
    later = sent(again.initialOffset())
    assert offsets(later) == {"0": 40}
    assert rows(again, later, end) == list(range(20, 25))
    after = again.latestOffset(end, ALL)
    assert rows(again, end, after) == list(range(25, 40))


def test_it_begins_where_the_options_say(desk: Desk) -> None:
    desk.log.fill(100)

    def begins(**options: Any) -> int:
        return offsets(desk.reader(**options).initialOffset())["0"]

    assert begins(startingOffsets="earliest") == 0
    assert begins(startingOffsets="latest") == 100
    assert begins(startingOffsets='{"flights": {"0": 23}}') == 23
    assert begins(startingOffsets='{"flights": {"0": -1}}') == 100
    assert begins(startingOffsets='{"flights": {"0": -2}}') == 0
    assert begins(startingTimestamp=FIRST_MS + 501) == 51
    assert begins(startingOffsetsByTimestamp=json.dumps({"flights": {"0": FIRST_MS + 990}})) == 99
    late = {"startingTimestamp": FIRST_MS + 1000}
    assert begins(**late, startingOffsetsByTimestampStrategy="latest") == 100
    with pytest.raises(ConfigError, match="no record has a timestamp of"):
        begins(**late)
    with pytest.raises(ConfigError, match="option startingOffsets does not name flights-0"):
        begins(startingOffsets='{"weather": {"0": 23}}')


def test_an_offset_from_a_querys_progress_can_be_pasted_unless_it_is_of_another_topic(desk: Desk) -> None:
    desk.log.fill(100)
    first = desk.reader(startingOffsets="earliest")
    end = first.latestOffset(sent(first.initialOffset()), ReadMaxRows(30))
    second = desk.reader(startingOffsets=json.dumps(end))
    assert second.initialOffset() == {"flights": {"0": 30}}
    end["@"]["topic_ids"]["flights"] = UUID(int=9).hex
    with pytest.raises(ConfigError, match="it was made again since"):
        desk.reader(startingOffsets=json.dumps(end)).initialOffset()


def test_both_tiers_are_one_stream(desk: Desk, tmp_path: Path) -> None:
    desk.log.fill(60)
    with LocalLog.open(tmp_path / "log") as local:
        local.create_topic("flights", 1, TopicConfig(), TOPIC_ID)
        partition = local.partition(TP)
        partition.start_at(60, 1)
        partition.append(records(60, 30))
        reader = desk.reader(startingOffsets="earliest", local_dir=tmp_path / "log")
        start = reader.initialOffset()
        end = reader.latestOffset(sent(start), ALL)
        assert rows(reader, start, end) == list(range(90))
        partition.append(records(90, 10))
        after = reader.latestOffset(sent(end), ALL)
        assert rows(reader, end, after) == list(range(90, 100))
    reader.stop()


def test_partitions_that_are_added_are_read_from_their_start(desk: Desk) -> None:
    desk.log.fill(10)
    reader = desk.reader()
    end = reader.latestOffset(sent(reader.initialOffset()), ALL)
    drive(desk.store, register_topic("flights", TOPIC_ID, 2, {}))
    desk.of(1).fill(20)
    assert reader.latestOffset(sent(end), ALL) == end  # seen a little later
    desk.clock.advance(REGISTRY_AGE_SECONDS)
    after = reader.latestOffset(sent(end), ALL)
    assert offsets(after) == {"0": 10, "1": 20}
    assert rows(reader, end, after) == list(range(20))


def test_a_pattern_that_matches_nothing_yet_waits(desk: Desk) -> None:
    reader = desk.reader(subscribePattern="weather.*")
    start = reader.initialOffset()
    end = reader.latestOffset(sent(start), ALL)
    assert (start, rows(reader, start, end)) == ({}, [])
    drive(desk.store, register_topic("weather", UUID(int=5), 1, {}))
    desk.of(0, "weather", UUID(int=5)).fill(30)
    desk.clock.advance(REGISTRY_AGE_SECONDS)
    after = reader.latestOffset(sent(end), ALL)
    assert rows(reader, end, after) == list(range(30))


def test_of_a_pattern_only_a_damaged_entry_that_it_matches_fails(desk: Desk) -> None:
    desk.log.fill(10)
    desk.store.execute(Put("topics/weather", b"{nothing", ABSENT))
    reader = desk.reader(subscribePattern="flights.*", startingOffsets="earliest")
    start = reader.initialOffset()
    assert rows(reader, start, reader.latestOffset(sent(start), ALL)) == list(range(10))
    with pytest.raises(CorruptionError, match="topics/weather"):
        desk.reader(subscribePattern=".*").initialOffset()


# -- how much at once ------------------------------------------------------------------------------------------------


def batches_of(reader: TieredStreamReader) -> list[list[int]]:
    """All batches to the end of what there is, as Spark drives a query with its default limit."""
    start, limit = sent(reader.initialOffset()), reader.getDefaultReadLimit()
    found = []
    while (end := sent(reader.latestOffset(start, limit))) != start:
        found.append(rows(reader, start, end))
        start = end
    return found


def test_a_limit_of_offsets_is_kept(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.log.fill(100)
    reader = desk.reader(startingOffsets="earliest", maxOffsetsPerTrigger=30)
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert batches_of(reader) == [list(range(at, min(at + 30, 100))) for at in range(0, 100, 30)]
    three = Desk(tmp_path / "three", monkeypatch, partitions=3)
    for partition, end in enumerate((1000, 100, 1)):
        three.of(partition).fill(end)
    found = batches_of(three.reader(startingOffsets="earliest", maxOffsetsPerTrigger=50))
    assert sum(map(len, found)) == 1101
    assert max(map(len, found)) <= 50 + 3
    assert len(found[0]) >= 50


def test_a_limit_of_bytes_is_kept(desk: Desk) -> None:
    segments = desk.log.fill(1000, per_segment=100, each=1, size=500)
    size = segments[-1].size // 100
    reader = desk.reader(startingOffsets="earliest", maxBytesPerTrigger=size * 30)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(size * 30)
    found = batches_of(reader)
    assert [at for batch in found for at in batch] == list(range(1000))
    assert {len(batch) for batch in found[:-1]} <= {28, 29, 30}
    assert batches_of(desk.reader(startingOffsets="earliest", maxBytesPerTrigger=1)) == [[at] for at in range(1000)]


def test_all_that_is_available_means_all_of_it(desk: Desk) -> None:
    """``Trigger.Once`` reads everything: the limits of the options are for other triggers."""
    desk.log.fill(100)
    reader = desk.reader(startingOffsets="earliest", maxOffsetsPerTrigger=30, maxBytesPerTrigger=100)
    start = reader.initialOffset()
    assert offsets(reader.latestOffset(sent(start), ALL)) == {"0": 100}


def test_a_batch_is_held_back_until_enough_waits_or_it_waits_long_enough(desk: Desk) -> None:
    desk.log.fill(100)
    reader = desk.reader(startingOffsets="earliest", minOffsetsPerTrigger=50, maxTriggerDelay="60s")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(50)
    end = sent(reader.latestOffset(sent(reader.initialOffset()), limit))
    desk.log.fill(149, start=100)
    assert sent(reader.latestOffset(end, limit)) == end
    desk.log.fill(150, start=149)
    more = sent(reader.latestOffset(end, limit))
    assert offsets(more) == {"0": 150}
    desk.log.fill(151, start=150)
    assert sent(reader.latestOffset(more, limit)) == more
    desk.clock.advance(60)
    assert offsets(reader.latestOffset(more, limit)) == {"0": 151}


def test_available_now_ends_at_what_there_was_when_it_began(desk: Desk) -> None:
    desk.log.fill(100)
    reader = desk.reader(startingOffsets="earliest", maxOffsetsPerTrigger=40, minOffsetsPerTrigger=30)
    reader.prepareForTriggerAvailableNow()
    start, limit = sent(reader.initialOffset()), reader.getDefaultReadLimit()
    found: list[list[int]] = []
    for more in range(100, 1000, 50):
        end = sent(reader.latestOffset(start, limit))
        desk.log.fill(more + 50, start=more)
        desk.clock.advance(REGISTRY_AGE_SECONDS)
        if end == start:
            break
        found.append(rows(reader, start, end))
        start = end
    assert found == [list(range(40)), list(range(40, 80)), list(range(80, 100))]


def test_available_now_from_the_latest_offset_is_empty(desk: Desk) -> None:
    desk.log.fill(100)
    reader = desk.reader()
    reader.prepareForTriggerAvailableNow()
    desk.log.fill(150, start=100)
    start = reader.initialOffset()
    end = reader.latestOffset(sent(start), ALL)
    assert (start, offsets(end)) == ({"flights": {"0": 100}}, {"0": 100})


# -- transactions ----------------------------------------------------------------------------------------------------


def test_read_committed_stops_at_the_last_stable_offset(desk: Desk) -> None:
    def data(base: int, producer: int) -> bytes:
        return encode_batch(
            records(base, 5),
            base_offset=base,
            leader_epoch=0,
            producer=BatchProducer(producer, 0, 0, transactional=True),
        )

    def end(base: int, producer: int, kind: ControlType) -> bytes:
        return encode_batch(
            [marker(kind, 0, FIRST_MS)],
            base_offset=base,
            leader_epoch=0,
            producer=BatchProducer(producer, 0, transactional=True, control=True),
        )

    desk.log.add(seal([*batches(0, 5), data(5, 1)], snapshot=open_at(5)))
    committed = desk.reader(startingOffsets="earliest", isolation__level="read_committed")
    plain = desk.reader(startingOffsets="earliest")
    start = committed.initialOffset()
    first = committed.latestOffset(sent(start), ALL)
    assert offsets(first) == {"0": 5}
    assert rows(committed, start, first) == list(range(5))
    assert offsets(plain.latestOffset(sent(start), ALL)) == {"0": 10}
    assert desk.reader(isolation__level="read_committed").initialOffset() == {"flights": {"0": 5}}
    desk.log.add(
        seal([end(10, 1, ControlType.ABORT), *batches(11, 15)], aborted=[AbortedTxn(1, 5, 10, 11)], snapshot=open_at())
    )
    second = committed.latestOffset(sent(first), ALL)
    assert offsets(second) == {"0": 15}
    assert rows(committed, first, second) == list(range(11, 15))


def open_at(*firsts: int) -> bytes:
    """A producer snapshot with a transaction open from each of these offsets on."""
    return encode_snapshot([ProducerEntry(1, 0, 0, first + 4, 4, FIRST_MS, 0, first) for first in firsts])


# -- what is gone ----------------------------------------------------------------------------------------------------


def trimmed(log: RemoteLog, segments: list[Row], start_offset: int) -> None:
    log.put_root(Rows.from_rows([row for row in segments if row.next > start_offset]), start_offset=start_offset)
    for row in segments:
        if row.next <= start_offset:
            log.delete(row)


def test_retention_past_the_checkpoint_ends_the_query_or_is_skipped_and_told(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    segments = desk.log.fill(300)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 50}
    first = desk.reader(**options)
    limit = first.getDefaultReadLimit()
    start = sent(first.initialOffset())
    end = sent(first.latestOffset(start, limit))
    trimmed(desk.log, segments, 200)
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 50 to 200 are gone, the log holds 200 to 300") as error:
        desk.reader(**options).latestOffset(end, limit)
    assert (error.value.requested, error.value.earliest) == (50, 200)
    assert "failOnDataLoss=false" in error.value.hint
    loose = desk.reader(**options, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        after = sent(loose.latestOffset(end, limit))
    assert any("150 offsets are skipped" in line for line in told(caplog))
    assert offsets(after) == {"0": 250}
    assert rows(loose, end, after) == list(range(200, 250))


def test_a_batch_that_is_repeated_after_retention_fails_or_gives_what_is_left(desk: Desk) -> None:
    segments = desk.log.fill(300)
    first = desk.reader(startingOffsets="earliest")
    start = sent(first.initialOffset())
    end = sent(first.latestOffset(start, ALL))
    trimmed(desk.log, segments, 200)
    with pytest.raises(OffsetOutOfRangeError):
        rows(desk.reader(), start, end)
    assert rows(desk.reader(failOnDataLoss="false"), start, end) == list(range(200, 300))


def made_again(desk: Desk, new_id: UUID) -> RemoteLog:
    """The topic deleted, its objects collected, and another one of its name registered."""
    entry = drive(desk.store, load_topic("flights"))
    assert entry is not None
    entry = drive(desk.store, start_deletion(entry, "test"))
    assert entry.state == STATE_DELETING
    prefix = desk.log.root_key.removesuffix("root")
    page: Any = desk.store.execute(List(prefix))
    desk.store.execute(Delete(tuple(each.key for each in page.entries)))
    assert drive(desk.store, resume_topic_deletion(entry, "test"))
    drive(desk.store, register_topic("flights", new_id, 1, {}))
    return desk.of(0, "flights", new_id)


def test_a_topic_that_was_made_again_ends_the_query_or_is_read_from_its_start(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.log.fill(100)
    readers = {flag: desk.reader(startingOffsets="earliest", failOnDataLoss=flag) for flag in ("true", "false")}
    start = readers["true"].initialOffset()
    ends = {flag: sent(reader.latestOffset(sent(start), ALL)) for flag, reader in readers.items()}
    made_again(desk, UUID(int=7)).fill(40)
    restarted = desk.reader()
    for reader in (readers["true"], restarted):  # while it runs, and after a restart
        with pytest.raises(OffsetOutOfRangeError, match="the topic was made again"):
            reader.latestOffset(ends["true"], ALL)
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 100 of this batch are gone"):
        rows(restarted, sent(start), ends["true"])
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        after = sent(readers["false"].latestOffset(ends["false"], ALL))
    assert any("the topic was made again" in line for line in told(caplog))
    assert after == {"@": {"topic_ids": {"flights": UUID(int=7).hex}}, "flights": {"0": 40}}
    assert rows(readers["false"], ends["false"], after) == list(range(40))
    assert rows(desk.reader(failOnDataLoss="false"), ends["false"], after) == list(range(40))


def test_a_topic_that_is_being_deleted_ends_the_query(desk: Desk) -> None:
    desk.log.fill(100)
    reader = desk.reader(startingOffsets="earliest", failOnDataLoss="false")
    end = sent(reader.latestOffset(sent(reader.initialOffset()), ALL))
    entry = drive(desk.store, load_topic("flights"))
    assert entry is not None
    drive(desk.store, start_deletion(entry, "test"))
    with pytest.raises(UnknownTopicError, match="topic flights is being deleted"):
        reader.latestOffset(end, ALL)
    pattern = desk.reader(subscribePattern="fl.*", failOnDataLoss="false")
    assert pattern.latestOffset(end, ALL) == {}


def test_a_log_that_went_back_ends_the_query_or_is_read_from_its_end_on(desk: Desk) -> None:
    desk.log.fill(100)
    end = {"@": {"topic_ids": {"flights": TOPIC_ID.hex}}, "flights": {"0": 150}}
    with pytest.raises(OffsetOutOfRangeError, match="the stream is at offset 150, the log holds 0 to 100"):
        desk.reader().latestOffset(sent(end), ALL)
    loose = desk.reader(failOnDataLoss="false")
    after = sent(loose.latestOffset(sent(end), ALL))
    assert offsets(after) == {"0": 100}
    assert rows(loose, end, after) == []


# -- requests --------------------------------------------------------------------------------------------------------


def test_an_idle_trigger_is_a_conditional_get_of_each_partition(desk: Desk, tmp_path: Path) -> None:
    many = Desk(tmp_path / "many", desk.monkeypatch, partitions=20)
    for partition in range(20):
        many.of(partition).fill(10)
    for options in ({}, {"isolation__level": "read_committed"}, {"subscribePattern": "flights"}):
        reader = many.reader(startingOffsets="earliest", **options)
        end = sent(reader.latestOffset(sent(reader.initialOffset()), ALL))
        many.store.take()
        for _ in range(3):
            assert sent(reader.latestOffset(end, ALL)) == end
            assert many.store.take() == {"NotModified": 20}


def test_the_registry_is_asked_now_and_then(desk: Desk) -> None:
    desk.log.fill(10)
    for options, asked in (({}, {}), ({"subscribePattern": "flights"}, {"List": 1})):
        reader = desk.reader(startingOffsets="earliest", **options)
        end = sent(reader.latestOffset(sent(reader.initialOffset()), ALL))
        desk.clock.advance(REGISTRY_AGE_SECONDS)
        desk.store.take()
        assert sent(reader.latestOffset(end, ALL)) == end
        assert desk.store.take() == {"NotModified": 1, "Get": 2, **asked}


def test_a_batch_is_planned_with_the_roots_that_told_of_it(desk: Desk) -> None:
    desk.log.fill(100)
    reader = desk.reader(startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(sent(start), ALL)
    desk.store.take()
    assert len(reader.partitions(sent(start), sent(end))) == 1
    assert desk.store.take() == {}


# -- outages ---------------------------------------------------------------------------------------------------------


def test_an_outage_is_waited_out(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.log.fill(100)
    reader = desk.reader(startingOffsets="earliest")
    desk.store.down = 3
    start = reader.initialOffset()
    desk.store.down = 3
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        end = reader.latestOffset(sent(start), ALL)
    assert sum("the store cannot be reached" in line for line in told(caplog)) == 6
    restarted = desk.reader()
    desk.store.down = 3
    slices = restarted.partitions(sent(start), sent(end))
    assert [piece.end for part in slices for piece in part.pieces] == [100]  # type: ignore[attr-defined]


def test_an_outage_that_does_not_end_ends_the_query(desk: Desk) -> None:
    desk.log.fill(100)
    reader = desk.reader()
    start = reader.initialOffset()
    desk.store.down = 10**9
    before = desk.clock.monotonic()
    with pytest.raises(RemoteUnavailableError):
        reader.latestOffset(sent(start), ALL)
    assert desk.clock.monotonic() - before >= OUTAGE_PATIENCE_SECONDS
