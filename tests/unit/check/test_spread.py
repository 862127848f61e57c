"""A check in parts finds what a check of the whole finds, whatever is damaged and wherever it is cut."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.damage.bucket.damages import DAMAGES, Damage
from tests.damage.bucket.place import Place
from tests.sim.tiers.virtual import without_threads
from tests.support.admin import check
from tests.unit.remote.building import FIRST_MS, TOPIC_ID, RemoteLog, records, seal
from tiered.check.check import (
    CheckOptions,
    CheckReport,
    cut_steps,
    joined,
    part_steps,
    report_as_json,
    report_from_json,
)
from tiered.check.findings import Finding, Severity
from tiered.config import MAX_LONG, TopicConfig
from tiered.errors import UnknownTopicError
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.control import ControlType, marker
from tiered.format.keys import index_key
from tiered.format.producer_snapshot import ProducerEntry, encode_snapshot
from tiered.model import NewRecord, Row, TopicPartition
from tiered.plan.jobs import SegmentSpan, SpanCutter
from tiered.remote.root_view import RootView
from tiered.remote.topics import register_topic
from tiered.store.base import ABSENT, Delete, Get, Object, Put, Store
from tiered.store.driver import Runner, drive
from tiered.store.location import open_store
from tiered.store.memory import MemoryStore
from tiered.store.steps import list_all
from tiered.testing.clock import START_MS

pytestmark = pytest.mark.usefixtures("both_catalogs")


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with without_threads():
        yield
    logging.disable(logging.NOTSET)


def spread(store: Store, least_bytes: int) -> CheckReport:
    """As the job does it, through the JSON of its receipts."""
    registry, parts = Runner(store).run(cut_steps(store.url, least_bytes=least_bytes), take=lambda _: None)
    reports = [Runner(store).run(part_steps(part), take=lambda _: None) for part in parts]
    told = [report_from_json(report_as_json(report)) for report in reports]
    return joined(registry, told)


def counted(findings: tuple[Finding, ...]) -> Counter[str]:
    return Counter(repr(found) for found in findings)


def same(one: CheckReport, other: CheckReport) -> None:
    assert counted(one.findings) == counted(other.findings)
    for name in ("errors", "warnings", "newer", "exit_code", "partitions", "remote_segments", "remote_bytes"):
        assert getattr(one, name) == getattr(other, name), name
    assert (one.unchecked, one.data_bytes_read) == (other.unchecked, other.data_bytes_read)


@pytest.mark.parametrize("least_bytes", [1])
@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.name for damage in DAMAGES])
@pytest.mark.usefixtures("quiet")
def test_every_damage_is_found_as_by_one_check(damage: Damage, least_bytes: int, tmp_path: Path) -> None:
    place = Place(tmp_path)
    damage.hurt(place)
    whole = check(None, place.store(), CheckOptions(read_data=True))
    same(spread(place.store(), least_bytes), whole)


@pytest.mark.parametrize("least_bytes", [1, 2000, 1 << 30])
@pytest.mark.usefixtures("quiet")
def test_a_bucket_that_is_whole_is_clean(least_bytes: int, tmp_path: Path) -> None:
    place = Place(tmp_path)
    report = spread(place.store(), least_bytes)
    assert (report.exit_code, report.findings) == (0, ())
    assert report.data_bytes_read == report.remote_bytes > 0


TP = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def transactional(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Small segments with transactions that reach over several of them, and producers in every one."""
    folder = tmp_path_factory.mktemp("transactional")
    url = f"file://{folder / 'bucket'}"
    settings = TopicConfig.from_properties({"segment.bytes": 2000, "index.interval.bytes": 200})
    with tiered.open(folder / "log", remote=url) as log:
        topic = log.topic(TP.topic, create=True, config=settings)
        for at in range(6):
            with topic.transaction(f"billing-{at % 2}") as txn:
                for each in range(10 if at % 3 else 60):
                    txn.append(b"v" * 80, key=b"%d" % each, timestamp=START_MS + at)
                if at in (1, 3):  # a short one, and one over several segments
                    txn.abort()
            topic.append_many([NewRecord(b"plain" * 10, b"k", START_MS + at)] * 5)
        log.sync(timeout=60)
    return url


def rows(url: str) -> list[Row]:
    store = open_store(url)
    topic_id = Runner(store).run(_entry_id())
    pinned = drive(store, RootView(topic_id, 0, TP.topic).pin())
    assert pinned is not None
    found: list[Row] = []
    while len(piece := drive(store, pinned.piece(found[-1].next if found else 0))):
        found += list(piece)
    return found


def _entry_id():  # type: ignore[no-untyped-def]  # steps
    from tiered.remote.topics import load_topic

    entry = yield from load_topic(TP.topic)
    assert entry is not None
    return entry.topic_id


@pytest.mark.parametrize("least_bytes", [1, 3000, 9000])
def test_transactions_over_the_cuts_are_no_findings(least_bytes: int, transactional: str) -> None:
    store = open_store(transactional)
    assert len(rows(transactional)) > 10
    whole = check(None, store, CheckOptions(read_data=True))
    assert whole.findings == ()
    same(spread(store, least_bytes), whole)


@pytest.mark.parametrize("least_bytes", [1, 9000])
@pytest.mark.usefixtures("quiet")
def test_a_bundle_that_is_gone_looks_the_same_from_every_cut(least_bytes: int, transactional: str) -> None:
    bucket, store = open_store(transactional), MemoryStore()
    for entry in drive(bucket, list_all("")):
        found = bucket.execute(Get(entry.key))
        assert isinstance(found, Object)
        store.execute(Put(entry.key, found.data, ABSENT))
    topic_id = drive(store, _entry_id())
    for row in rows(transactional):
        key = index_key(topic_id, 0, row)
        bundle = store.execute(Get(key))
        assert isinstance(bundle, Object)
        store.execute(Delete((key,)))
        same(spread(store, least_bytes), check(None, store, CheckOptions(read_data=True)))
        store.execute(Put(key, bundle.data, ABSENT))


def test_a_topic_that_is_nowhere_is_no_clean_bucket(transactional: str) -> None:
    store = open_store(transactional)
    with pytest.raises(UnknownTopicError):
        Runner(store).run(cut_steps(store.url, ("nobody",)), take=lambda _: None)


def test_spans_leave_no_gap() -> None:
    cutter = SpanCutter(100)
    row = Row(0, 10, -1, -1, 60, 0, 0, 0, 0, 1, 10, 0, 0)
    cutter.add(row._replace(base=at, next=at + 10) for at in range(0, 50, 10))
    assert cutter.finish() == [SegmentSpan(0, 20, 2, 120), SegmentSpan(20, 40, 2, 120), SegmentSpan(40, 50, 1, 60)]
    assert SpanCutter(1).finish() == []


def test_the_last_part_is_open(transactional: str) -> None:
    _, parts = Runner(open_store(transactional)).run(cut_steps("x", least_bytes=4000), take=lambda _: None)
    assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert (parts[0].start, parts[-1].end) == (0, MAX_LONG)
    assert [part.with_root for part in parts] == [True] + [False] * (len(parts) - 1)


def test_an_abort_whose_entry_is_lost_is_found_where_its_data_lies_in_another_part() -> None:
    store = MemoryStore()
    drive(store, register_topic("flights", TOPIC_ID, 1, {}))
    log = RemoteLog(store)
    producer = BatchProducer(1, 0, 0, transactional=True)
    data = encode_batch(records(0, 5), base_offset=0, leader_epoch=0, producer=producer)
    ending = producer._replace(sequence=-1, control=True)
    abort = encode_batch([marker(ControlType.ABORT, 0, FIRST_MS)], base_offset=5, leader_epoch=0, producer=ending)
    opened = ProducerEntry(1, 0, 4, 4, 4, FIRST_MS, 0, 0)
    log.add(seal([data], snapshot=encode_snapshot([opened])))
    log.add(seal([abort]))  # without the entry of the aborted transaction
    whole = check(None, store, CheckOptions(read_data=True))
    assert "txn_index_lost" in {found.code for found in whole.findings if found.severity is Severity.ERROR}
    same(spread(store, 1), whole)
