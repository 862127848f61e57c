"""Every kind of damage in the bucket is found, and where the tiers contradict each other."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tests.support.admin import check, restore
from tests.unit.check.building import TOPIC, Scenario, record, scenario
from tests.unit.remote.building import TRUSTED
from tiered.check.check import CheckOptions, CheckReport
from tiered.check.findings import NEWER_RELEASE, Severity
from tiered.config import TopicConfig
from tiered.errors import CorruptionError, RemoteUnavailableError
from tiered.format.bundle import decode_bundle, encode_bundle
from tiered.format.kernels import crc32c
from tiered.format.keys import hist_key
from tiered.format.root import encode_root
from tiered.format.rows import Rows
from tiered.local.directory.read_only_log import LogView
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import TopicPartition
from tiered.plan.maintenance import MaintenanceKind
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream
from tiered.remote.maintain import Maintainer
from tiered.store.base import Get, Object, Outcome, StoreAround, StoreRequest
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.testing.faults import Fault, FaultKind, FaultStore

pytestmark = pytest.mark.usefixtures("both_catalogs")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path) as built:
        yield built


def codes(report: CheckReport) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity is Severity.ERROR}


def _lose_log(log: Scenario) -> str:
    log.delete(log.log_key(log.rows()[1]))
    return "object_missing"


def _flip_log(log: Scenario) -> str:
    key = log.log_key(log.rows()[1])
    data = bytearray(log.read(key))
    data[100] ^= 1
    log.replace(key, bytes(data))
    return "object_checksum"


def edit(log: Scenario, key: str, change: Callable[[bytes], bytes]) -> None:
    log.replace(key, change(log.read(key)))


def wrong_index(data: bytes) -> bytes:
    bundle = decode_bundle(data)
    indexes = replace(bundle.indexes, offset_index=bundle.indexes.offset_index[::-1])
    return encode_bundle(bundle.descriptor, indexes, bundle.claim_epoch)


def other_root(log: Scenario, **fields: object) -> None:
    log.replace(log.root_key(), encode_root(replace(log.root(), **fields)))  # type: ignore[arg-type]


DAMAGES: dict[str, tuple[str, Callable[[Scenario], object]]] = {
    ".log gone": ("object_missing", _lose_log),
    ".log with a flipped bit": ("object_checksum", _flip_log),
    ".log cut": ("object_size", lambda log: edit(log, log.log_key(log.rows()[1]), lambda data: data[:-1])),
    ".idx gone": ("object_missing", lambda log: log.delete(log.index_key(log.rows()[0]))),
    ".idx of noise": ("index_bundle", lambda log: edit(log, log.index_key(log.rows()[0]), lambda d: b"x" * len(d))),
    ".idx with a wrong index": ("index_bundle", lambda log: edit(log, log.index_key(log.rows()[0]), wrong_index)),
    ".idx of another segment": (
        "descriptor",
        lambda log: log.replace(log.index_key(log.rows()[0]), log.read(log.index_key(log.rows()[1]))),
    ),
    "root gone": ("root_missing", lambda log: log.delete(log.root_key())),
    "root of noise": ("root", lambda log: log.replace(log.root_key(), b"OLC1 but nothing else")),
    "root of another partition": ("root", lambda log: other_root(log, partition=5)),
    "root without its last row": ("invariant", lambda log: other_root(log, rows=Rows.from_rows(log.rows()[:-1]))),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_an_error(log: Scenario, name: str) -> None:
    code, damage = DAMAGES[name]
    damage(log)
    report = check(log.directory, log.store)
    assert code in codes(report)
    assert report.exit_code == 13


class WithoutChecksums(StoreAround):
    """A store that tells no checksums, as some servers do."""

    def execute(self, request: StoreRequest) -> Outcome:
        found = self.inner.execute(request)
        return replace(found, crc32c=None) if isinstance(found, Object) else found


def test_without_checksums_only_the_data_tells(log: Scenario) -> None:
    _flip_log(log)
    store = WithoutChecksums(log.store)
    blind = check(None, store)
    assert (codes(blind), blind.unchecked) == (set(), len(log.rows()))
    seen = check(None, store, CheckOptions(read_data=True))
    assert codes(seen) == {"log_crc", "object_checksum"}


def _copy(log: Scenario) -> str:
    root = log.root()
    newer = replace(root, version=root.version + 1)
    log.replace(hist_key(root.topic_id, 0, newer.version), encode_root(newer))
    return f"`hist/` has a copy of version {root.version + 1}"


def test_an_older_root_is_found_by_a_copy_of_a_newer_one(log: Scenario) -> None:
    """No disk has seen a newer one: without a copy it passes for the newest."""
    older = log.read(log.root_key())
    told = _copy(log)
    log.replace(log.root_key(), older)
    report = check(None, log.store)
    (found,) = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert (found.code, report.exit_code) == ("went_back", 13)
    assert told in found.message
    assert f"`tiered repair {TOPIC}:0 --dry-run`" in found.message


def test_who_may_not_list_traces_is_told(log: Scenario) -> None:
    refused = Fault(FaultKind.PERMISSION, "list", "*/hist/*")
    report = check(None, FaultStore(log.store, [refused]))
    (found,) = report.findings
    assert (found.code, found.severity, report.exit_code) == ("not_listed", Severity.INFO, 0)
    assert found.message.startswith("copies of newer roots are not looked for: ")


def test_a_gap_between_the_tiers(log: Scenario) -> None:
    with tiered.open(log.directory, log.url) as again:
        again.topic(TOPIC).append_many([record(1000)])
    for path in log.logs()[:-1]:
        path.unlink()
    rows = log.rows()
    root = log.root()
    shorter = replace(root, rows=Rows.from_rows(rows[:-1]), next_offset=rows[-2].next)
    log.replace(log.root_key(), encode_root(shorter))
    assert "tier_gap" in codes(check(log.directory, log.store))


def test_another_topic_of_the_same_name(log: Scenario, tmp_path: Path) -> None:
    with tiered.open(tmp_path / "other") as other:
        other.topic(TOPIC, create=True)
    assert codes(check(tmp_path / "other", log.store)) == {"topic_id"}


def test_a_segment_that_was_removed_meanwhile_is_no_damage(log: Scenario) -> None:
    """Retention commits a newer root between our GET of the root and our HEAD of the object."""
    key = log.log_key(log.rows()[0])
    root = log.root()
    rows = log.rows()[1:]
    trimmed = encode_root(replace(root, rows=Rows.from_rows(rows), start_offset=rows[0].base))

    class Trimming(WithoutChecksums):
        def execute(self, request: StoreRequest) -> Outcome:
            if getattr(request, "key", "") == key:
                log.delete(key)
                log.replace(log.root_key(), trimmed)
            return super().execute(request)

    report = check(None, Trimming(log.store))
    assert "removed_meanwhile" in {finding.code for finding in report.findings}
    assert codes(report) == set()


def test_a_store_that_cannot_be_asked_is_an_error_not_a_report(log: Scenario) -> None:
    with pytest.raises(RemoteUnavailableError):
        check(None, FaultStore(log.store, [Fault(FaultKind.ERROR, "head", times=-1)]))


@pytest.mark.parametrize("damage", [b"{}", b"", b"[" * 100, b" " * 300_000])
def test_an_entry_that_cannot_be_read_keeps_no_other_from_being_checked(log: Scenario, damage: bytes) -> None:
    with tiered.open(log.directory, log.url) as again:
        again.topic("trains", create=True).append(b"x")
        again.sync(timeout=60)
    log.replace("topics/trains", damage)
    _lose_log(log)
    report = check(None, log.store)
    assert codes(report) == {"topic_entry", "object_missing"}
    assert report.exit_code == 13
    assert [f.where for f in report.findings if f.code == "topic_entry"] == ["topics/trains"]
    named = check(None, log.store, CheckOptions(topics=("trains",)))
    assert codes(named) == {"topic_entry"}


def test_what_a_newer_release_wrote_is_a_finding(log: Scenario) -> None:
    """An entry and a bundle: each is named, the rest is checked; to upgrade is another exit code."""
    with tiered.open(log.directory, log.url) as again:
        again.topic("trains", create=True).append(b"x")
        again.sync(timeout=60)
    log.replace("topics/trains", log.read("topics/trains").replace(b'"format": 1', b'"format": 2'))
    row = log.rows()[0]
    newer = bytearray(log.read(log.index_key(row)))
    newer[8] = 2
    struct.pack_into("<I", newer, 508, crc32c(bytes(newer[:508])))
    log.replace(log.index_key(row), bytes(newer))
    for options in (CheckOptions(), CheckOptions(read_data=True)):
        report = check(None, log.store, options)
        assert codes(report) == {NEWER_RELEASE}
        assert {f.where for f in report.findings} == {"topics/trains", log.log_key(row)}
        assert (report.errors, report.newer, report.exit_code) == (2, 2, 2)
    _lose_log(log)
    assert check(None, log.store).exit_code == 13


def test_a_root_of_a_newer_release_is_a_finding(log: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    root = log.root()
    monkeypatch.setattr("tiered.format.framed_object.FORMAT", 99)
    newer = encode_root(root)
    monkeypatch.undo()
    log.replace(log.root_key(), newer)
    report = check(None, log.store)
    assert [(f.code, f.where) for f in report.findings] == [(NEWER_RELEASE, log.root_key())]
    assert report.exit_code == 2


def test_a_root_that_is_too_large_is_not_fetched(log: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.remote.root_view.MAX_OBJECT_BYTES", 100)
    report = check(None, log.store)
    assert codes(report) == {"root"}
    assert "more than the limit of 100" in report.findings[0].message


def _transactions(directory: Path, url: str, monkeypatch: pytest.MonkeyPatch, **lost: bytes) -> None:
    """A bucket as the release before wrote it from a disk that had ``lost`` files beside its segments."""
    indexes = SealedLocalSegment.indexes
    with tiered.open(directory, url) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 1500})
        for i in range(12):
            txn = topic.transaction("tx")
            txn.append(b"aborted%d" % i + b"." * 150)
            txn.abort()
            topic.append(b"good%d" % i + b"." * 100)
        topic.transaction("open").append(b"undecided")
        monkeypatch.setattr(SealedLocalSegment, "indexes", lambda *segment: replace(indexes(*segment), **lost))
        log.sync(timeout=60)
        monkeypatch.undo()


def test_a_transaction_index_that_was_lost_before_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/store"
    _transactions(tmp_path / "log", url, monkeypatch, txn_index=b"")
    store = open_store(url)
    assert check(None, store).findings == ()  # only the data tells
    report = check(None, store, CheckOptions(read_data=True))
    assert codes(report) == {"txn_index_lost"}
    assert "tiered restore" in report.findings[0].message
    assert restore(store, tmp_path / "new").notes
    with LogView.open(tmp_path / "new") as log:
        stream = PartitionStream.open(TopicPartition("t", 0), local=log.partition(TopicPartition("t", 0)), remote=None)
        values = [r.value for r in stream.records(ReadRange(), isolation="read_committed")]
    assert values == [b"good%d" % i + b"." * 100 for i in range(12)]


def test_a_producer_snapshot_that_was_lost_before_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/store"
    _transactions(tmp_path / "log", url, monkeypatch, producer_snapshot=b"")
    report = check(None, open_store(url), CheckOptions(read_data=True))
    assert codes(report) == {"producer_snapshot_lost"}
    assert report.errors == 1  # the newest is the one that readers ask; the others are warnings
    assert report.warnings > 2
    assert any("rebuilt" in note for note in restore(open_store(url), tmp_path / "new").notes)
    with LogView.open(tmp_path / "new") as log:
        partition = log.partition(TopicPartition("t", 0))
        assert partition.last_stable_offset() == partition.positions().end_offset - 1


def test_only_the_topics_that_were_named(log: Scenario) -> None:
    with tiered.open(log.directory, log.url) as again:
        again.topic("trains", create=True).append(b"x")
        again.sync(timeout=60)
    _lose_log(log)
    assert check(log.directory, log.store, CheckOptions(topics=("trains",))).exit_code == 0
    assert check(log.directory, log.store, CheckOptions(topics=(TOPIC,))).exit_code == 13


def test_a_partition_that_was_never_uploaded_is_information(tmp_path: Path) -> None:
    with scenario(tmp_path, partitions=1) as log:
        with tiered.open(log.directory, log.url) as again:
            again.topic("idle", create=True)
        report = check(log.directory, log.store)
        assert report.exit_code == 0


def test_an_object_that_the_store_cannot_read_is_one_finding(log: Scenario) -> None:
    rows = log.rows()
    rotten = CorruptionError("the file was cut", path_or_key=log.log_key(rows[1]))
    store = FaultStore(log.store, [Fault(FaultKind.ERROR, "get", log.log_key(rows[1]), times=-1, error=rotten)])
    report = check(None, store, CheckOptions(read_data=True))
    assert [(f.code, f.where, f.offset) for f in report.findings] == [("object", log.log_key(rows[1]), rows[1].base)]
    assert report.remote_segments == len(rows)
    assert report.data_bytes_read == sum(row.size for row in rows) - rows[1].size


def test_what_a_collection_takes_while_it_is_read_is_no_damage(log: Scenario) -> None:
    """Retention and a collection come at the first byte; the grace time is over at once."""
    collected: list[int] = []

    class Collecting(StoreAround):
        def execute(self, request: StoreRequest) -> Outcome:
            if isinstance(request, Get) and request.key.endswith(".log") and not collected:
                config = TopicConfig.from_properties({"retention.bytes": 1, "gc.grace.ms": 0})
                maintainer = Maintainer(TopicPartition(TOPIC, 0), log.root().topic_id, config, owner="m")
                for _ in range(2):
                    plan = drive(self.inner, maintainer.plan((MaintenanceKind.RETENTION, MaintenanceKind.COLLECT)))
                    assert plan is not None
                    for action in plan.actions:
                        done = drive(self.inner, maintainer.run(action, TRUSTED))
                        collected.append(0 if done.collected is None else done.collected.objects)
            return self.inner.execute(request)

    report = check(None, Collecting(log.store), CheckOptions(read_data=True))
    assert sum(collected) > 0
    assert {(found.severity, found.code) for found in report.findings} == {(Severity.INFO, "removed_meanwhile")}


def test_a_part_has_a_total_too(log: Scenario) -> None:
    totals: list[tuple[int, int]] = []

    def progress(done: int, total: int, _: str) -> None:
        totals.append((done, total))

    whole = sum(row.size for row in log.rows())
    check(None, log.store, CheckOptions(read_data=True, subset=(1, 2)), progress=progress)
    assert abs(totals[0][1] - whole // 2) <= 1


def errors(directory: Path, url: str) -> list[str]:
    store = open_store(url)
    try:
        return [each.code for each in check(directory, store).findings if each.severity is Severity.ERROR]
    finally:
        store.close()


def test_a_disk_that_ends_where_another_volume_went_on_is_whole(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    for name in ("first", "second"):
        with tiered.open(tmp_path / name, remote=url) as log:
            log.topic("t", create=True).append(name.encode())
            log.sync()
    assert errors(tmp_path / "first", url) == []
    assert errors(tmp_path / "second", url) == []


def test_records_at_offsets_that_another_volume_gave_are_named(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    with tiered.open(tmp_path / "first", remote=url) as log:
        log.topic("t", create=True).append(b"first")
        log.sync()
        log.topic("t").append(b"only here")
    with tiered.open(tmp_path / "second", remote=url) as log:
        log.topic("t").append(b"second")
        log.sync()
    assert errors(tmp_path / "first", url) == ["tiers_differ"]
