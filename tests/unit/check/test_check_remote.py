"""Every kind of damage in the bucket is found, and where the tiers contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tests.unit.check.building import TOPIC, Scenario, record, scenario
from tiered.check import CheckOptions, CheckReport, check
from tiered.errors import CorruptionError, RemoteUnavailableError
from tiered.findings import Severity
from tiered.format.bundle import decode_bundle, encode_bundle
from tiered.format.keys import Role, SegmentName, partition_prefix, segment_key
from tiered.format.root import encode_root
from tiered.format.rows import Rows
from tiered.store.base import ABSENT, Object, Outcome, Put, StoreRequest
from tiered.testing.faults import Fault, FaultKind, FaultStore


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path) as built:
        yield built


def codes(report: CheckReport) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity is Severity.ERROR}


def _lose_log(log: Scenario) -> str:
    log.delete(log.log_key(log.rows()[1]))
    return "object_missing"


def _lose_bundle(log: Scenario) -> str:
    log.delete(log.index_key(log.rows()[0]))
    return "object_missing"


def _flip_log(log: Scenario) -> str:
    key = log.log_key(log.rows()[1])
    data = bytearray(log.read(key))
    data[100] ^= 1
    log.replace(key, bytes(data))
    return "object_checksum"


def _cut_log(log: Scenario) -> str:
    key = log.log_key(log.rows()[1])
    log.replace(key, log.read(key)[:-1])
    return "object_size"


def _garbage_bundle(log: Scenario) -> str:
    key = log.index_key(log.rows()[0])
    log.replace(key, b"x" * len(log.read(key)))
    return "index_bundle"


def _bundle_of_another_segment(log: Scenario) -> str:
    first, second = log.rows()[:2]
    log.replace(log.index_key(first), log.read(log.index_key(second)))
    return "descriptor"


def _bundle_with_wrong_index(log: Scenario) -> str:
    row = log.rows()[0]
    bundle = decode_bundle(log.read(log.index_key(row)))
    indexes = replace(bundle.indexes, offset_index=bundle.indexes.offset_index[::-1])
    log.replace(log.index_key(row), encode_bundle(bundle.descriptor, indexes, bundle.claim_epoch))
    return "index_bundle"


def _garbage_root(log: Scenario) -> str:
    log.replace(log.root_key(), b"OLC1 but nothing else")
    return "root"


def _lose_root(log: Scenario) -> str:
    log.delete(log.root_key())
    return "root_missing"


def _broken_invariant(log: Scenario) -> str:
    root = log.root()
    log.replace(log.root_key(), encode_root(replace(root, rows=Rows.from_rows(log.rows()[:-1]))))
    return "invariant"


def _foreign_root(log: Scenario) -> str:
    log.replace(log.root_key(), encode_root(replace(log.root(), partition=5)))
    return "root"


@pytest.mark.parametrize(
    "damage",
    [
        _lose_log,
        _lose_bundle,
        _flip_log,
        _cut_log,
        _garbage_bundle,
        _bundle_of_another_segment,
        _bundle_with_wrong_index,
        _garbage_root,
        _lose_root,
        _broken_invariant,
        _foreign_root,
    ],
)
@pytest.mark.parametrize("read_data", [False, True])
def test_damage_is_an_error(log: Scenario, damage: Callable[[Scenario], str], read_data: bool) -> None:
    expected = damage(log)
    report = check(log.directory, log.store, CheckOptions(read_data=read_data))
    assert expected in codes(report)
    assert report.exit_code == 13


class WithoutChecksums:
    """A store that tells no checksums, as some servers do."""

    def __init__(self, inner: Scenario) -> None:
        self._inner = inner.store
        self.url = inner.store.url

    def execute(self, request: StoreRequest) -> Outcome:
        found = self._inner.execute(request)
        return replace(found, crc32c=None) if isinstance(found, Object) else found

    def close(self) -> None:
        """Nothing to close."""


def test_without_checksums_only_the_data_tells(log: Scenario) -> None:
    _flip_log(log)
    store = WithoutChecksums(log)
    blind = check(None, store)
    assert (codes(blind), blind.unchecked) == (set(), len(log.rows()))
    seen = check(None, store, CheckOptions(read_data=True))
    assert codes(seen) == {"log_crc", "object_checksum"}


def test_tiers_that_differ(log: Scenario) -> None:
    path = log.logs()[0]
    other = log.logs()[1].read_bytes()
    path.write_bytes(other[: len(path.read_bytes())])
    assert "tiers_differ" in codes(check(log.directory, log.store))


def test_a_root_that_went_back(log: Scenario) -> None:
    old = log.read(log.root_key())
    with tiered.open(log.directory, log.url) as again:
        again.topic(TOPIC).append_many([record(1000)])
        again.sync(timeout=60)
    log.replace(log.root_key(), old)
    assert "went_back" in codes(check(log.directory, log.store))


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


def test_orphans_are_information(log: Scenario) -> None:
    with tiered.open(log.directory, log.url) as again:
        again.topic(TOPIC).append_many([record(1000)])
        again.sync(timeout=60)
    root = log.root()
    assert root.writer.epoch == 2
    dead, live = (
        segment_key(root.topic_id, 0, SegmentName(Role.WRITER, epoch, 0, f"{epoch:032x}")) for epoch in (1, 2)
    )
    stranger = partition_prefix(root.topic_id, 0) + "s/readme.txt"
    for key in (dead, live, stranger):
        log.store.execute(Put(key, b"bytes", ABSENT))
    report = check(log.directory, log.store, CheckOptions(orphans=True))
    seen = {finding.code: finding.message for finding in report.findings}
    assert set(seen) == {"orphan", "uncommitted", "foreign_object"}
    assert (dead in seen["orphan"], live in seen["uncommitted"], stranger in seen["foreign_object"]) == (True,) * 3
    assert report.exit_code == 0
    assert check(log.directory, log.store).findings == ()


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

    report = check(None, Trimming(log))
    assert "removed_meanwhile" in {finding.code for finding in report.findings}
    assert codes(report) == set()


def test_a_store_that_cannot_be_asked_is_an_error_not_a_report(log: Scenario) -> None:
    with pytest.raises(RemoteUnavailableError):
        check(None, FaultStore(log.store, [Fault(FaultKind.ERROR, "head", times=-1)]))


def test_an_unreadable_registry_is_an_error(log: Scenario) -> None:
    log.replace(f"topics/{TOPIC}", b"{}")
    with pytest.raises(CorruptionError):
        check(None, log.store)


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
