"""Every index, snapshot and checkpoint file of the broker round-trips byte for byte, and lookups agree with a scan."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.golden.fixtures import (
    ARCHIVE,
    MAIN,
    ROOTS,
    base_offset,
    expected_records,
    log_bases,
    manifest,
    partition_dir,
    partition_facts,
    partitions,
    segment_files,
    unpack,
)
from tiered.errors import CorruptionError
from tiered.format.batch import decode_records
from tiered.format.batch_scanner import walk_headers
from tiered.format.checkpoint import (
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
)
from tiered.format.producer_snapshot import decode_snapshot, encode_snapshot
from tiered.format.segment_indexes import OffsetIndex, TimeIndex, decode_txns, encode_txns
from tiered.plan.visibility import aborted_within

CLEAN_ROOTS = [r for r in ROOTS if not r.startswith("unclean")]


def test_the_archive_is_the_one_that_was_reviewed() -> None:
    assert (
        hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()
        == "d02e1b39bed52d0352b730b0a2f1d560c93c1f3214c533aa6f08e550bfbf42f0"
    )


def test_unpacking_refuses_a_file_that_differs_from_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpack(tmp_path / "a")
    facts = manifest(root)["files"]["main/empty-0/partition.metadata"]
    monkeypatch.setitem(facts, "sha256", "0" * 64)
    monkeypatch.setattr(
        "tests.golden.fixtures.manifest", lambda _: {"files": {"main/empty-0/partition.metadata": facts}}
    )
    with pytest.raises(AssertionError, match=r"empty-0/partition\.metadata differs"):
        unpack(tmp_path / "b")


def test_offset_indexes_round_trip(kafka_fixtures: Path) -> None:
    entries = 0
    for path in segment_files(kafka_fixtures, ".index"):
        data = path.read_bytes()
        if len(data) % 8:
            with pytest.raises(CorruptionError, match="multiple of 8"):
                OffsetIndex.from_bytes(data, base_offset(path))
            assert "ragged" in path.parent.name or "truncated" in path.parent.name
            continue
        index = OffsetIndex.from_bytes(data, base_offset(path))
        assert index.to_bytes() == data
        entries += len(index)
    assert entries > 1000


def test_time_indexes_round_trip(kafka_fixtures: Path) -> None:
    entries = 0
    for path in segment_files(kafka_fixtures, ".timeindex"):
        data = path.read_bytes()
        if len(data) % 12:
            with pytest.raises(CorruptionError, match="multiple of 12"):
                TimeIndex.from_bytes(data, base_offset(path))
            continue
        index = TimeIndex.from_bytes(data, base_offset(path))
        assert index.to_bytes() == data
        entries += len(index)
    assert entries > 1000


def test_preallocated_indexes_of_a_killed_broker_lose_their_padding(kafka_fixtures: Path) -> None:
    before, after = "unclean-kill/before", "unclean-kill/after"
    padded = 0
    for path in segment_files(kafka_fixtures, ".index", root=before):
        data = path.read_bytes()
        index = OffsetIndex.from_bytes(data, base_offset(path), drop_padding=True)
        times = TimeIndex.from_bytes(path.with_suffix(".timeindex").read_bytes(), base_offset(path), drop_padding=True)
        twin = partition_dir(kafka_fixtures, path.parent.name, after) / path.name
        assert index.to_bytes() == twin.read_bytes(), path
        # The broker's recovery also writes the closing entry of the last segment.
        assert twin.with_suffix(".timeindex").read_bytes().startswith(times.to_bytes()), path
        padded += len(data) != index.size_bytes
    assert padded >= 10


@pytest.mark.parametrize("root", CLEAN_ROOTS)
def test_offset_lookups_agree_with_a_scan(kafka_fixtures: Path, root: str) -> None:
    for path in segment_files(kafka_fixtures, ".index", root=root):
        base = base_offset(path)
        data = path.with_suffix(".log").read_bytes()
        index = OffsetIndex.from_bytes(path.read_bytes(), base)
        assert index.is_sane(len(data))
        by_start = dict(walk_headers(data))
        for offset, position in index:
            assert by_start[position].last_offset == offset, path
        batches = list(by_start.items())
        for _, header in batches:
            for target in (header.base_offset, header.last_offset):
                start = index.lookup(target)[1]
                found = next(h for p, h in batches if p >= start and h.last_offset >= target)
                assert found == header, (path, target)


@pytest.mark.parametrize("root", CLEAN_ROOTS)
def test_time_lookups_agree_with_a_scan(kafka_fixtures: Path, root: str) -> None:
    for path in segment_files(kafka_fixtures, ".timeindex", root=root):
        base = base_offset(path)
        headers = [h for _, h in walk_headers(path.with_suffix(".log").read_bytes())]
        index = TimeIndex.from_bytes(path.read_bytes(), base)
        assert index.is_sane(headers[-1].next_offset if headers else base)
        last_offsets = {h.last_offset for h in headers}
        for timestamp, offset in index:
            assert offset in last_offsets
            assert max(h.max_timestamp for h in headers if h.last_offset <= offset) <= timestamp
        for header in headers:
            # Nothing at or below the offset found is later than the time asked for.
            timestamp, offset = index.lookup(header.max_timestamp)
            assert timestamp <= header.max_timestamp
            assert all(h.max_timestamp <= header.max_timestamp for h in headers if h.last_offset <= offset) or (
                timestamp == -1 and offset == base
            )


def test_live_written_indexes_can_be_rebuilt_by_appending(kafka_fixtures: Path) -> None:
    interval = 256
    rebuilt = 0
    for partition in ("codec-none-0", "codec-mixed-0", "idempotent-0", "txn-0"):
        for base in log_bases(kafka_fixtures, partition):
            path = partition_dir(kafka_fixtures, partition) / f"{base:020}.log"
            index, times = OffsetIndex(base), TimeIndex(base)
            since, largest, largest_offset = 0, -1, base
            for position, header in walk_headers(path.read_bytes()):
                if header.max_timestamp > largest:
                    largest, largest_offset = header.max_timestamp, header.last_offset
                if since > interval:
                    index.append(header.last_offset, position)
                    times.maybe_append(largest, largest_offset)
                    since = 0
                since += header.size_bytes
            times.maybe_append(largest, largest_offset)
            assert index.to_bytes() == path.with_suffix(".index").read_bytes(), path
            assert times.to_bytes() == path.with_suffix(".timeindex").read_bytes(), path
            rebuilt += len(index)
    assert rebuilt > 100


def test_txn_indexes_round_trip_and_hide_aborted_records(kafka_fixtures: Path) -> None:
    for path in segment_files(kafka_fixtures, ".txnindex"):
        txns = decode_txns(path.read_bytes(), base_offset(path))
        assert encode_txns(txns) == path.read_bytes()
    for partition in ("txn-0", "txn-1", "compact-txn-0"):
        directory = partition_dir(kafka_fixtures, partition)
        txns = [t for p in sorted(directory.glob("*.txnindex")) for t in decode_txns(p.read_bytes())]
        lso = partition_facts(kafka_fixtures, partition)["expected"]["lso"]
        aborted, _ = aborted_within(txns, 0, lso)
        committed = []
        for log in sorted(directory.glob("*.log")):
            data = log.read_bytes()
            for position, h in walk_headers(data):
                hidden = h.is_control or any(
                    h.is_transactional
                    and h.producer_id == t.producer_id
                    and t.first_offset <= h.base_offset <= t.last_offset
                    for t in aborted
                )
                if not hidden and h.base_offset < lso:
                    batch = memoryview(data)[position : position + h.size_bytes]
                    committed += [r.offset for r in decode_records(batch)]
        expected = [r.offset for r in expected_records(kafka_fixtures, partition, isolation="read_committed")]
        assert committed == expected, partition


def test_producer_snapshots_round_trip(kafka_fixtures: Path) -> None:
    producers = 0
    for path in segment_files(kafka_fixtures, ".snapshot"):
        data = path.read_bytes()
        if "unclean-damaged/before/u-snapshot-bad" in path.as_posix():
            continue
        entries = decode_snapshot(data)
        assert encode_snapshot(entries) == data
        producers += len(entries)
    assert producers > 50


def test_the_damaged_producer_snapshot_is_refused(kafka_fixtures: Path) -> None:
    directory = partition_dir(kafka_fixtures, "u-snapshot-bad-0", "unclean-damaged/before")
    outcomes = []
    for path in sorted(directory.glob("*.snapshot")):
        try:
            decode_snapshot(path.read_bytes())
        except CorruptionError:
            outcomes.append(path.name)
    assert len(outcomes) == 1


def test_checkpoints_round_trip(kafka_fixtures: Path) -> None:
    offset_files = list(kafka_fixtures.rglob("*-offset-checkpoint"))
    epoch_files = list(kafka_fixtures.rglob("leader-epoch-checkpoint"))
    assert len(offset_files) >= 20
    assert len(epoch_files) >= 80
    for path in offset_files:
        text = path.read_text()
        assert encode_offsets(decode_offsets(text)) == text or text == ""
    for path in epoch_files:
        text = path.read_text()
        assert encode_epochs(decode_epochs(text)) == text or text == ""


def test_identity_files_round_trip(kafka_fixtures: Path) -> None:
    topic_ids = set()
    for path in kafka_fixtures.rglob("partition.metadata"):
        text = path.read_bytes().decode()
        topic_ids.add(decode_partition_metadata(text))
        assert encode_partition_metadata(decode_partition_metadata(text)) == text
    assert len(topic_ids) > 20
    for path in kafka_fixtures.rglob("meta.properties"):
        text = path.read_text()
        meta = decode_meta_properties(text)
        assert meta.version == 1
        assert meta.directory_id is not None
        assert encode_meta_properties(meta) == text
    for path in kafka_fixtures.rglob(".kafka_cleanshutdown"):
        text = path.read_text()
        assert encode_clean_shutdown(decode_clean_shutdown(text)) == text


def test_every_partition_of_main_is_named_in_the_manifest(kafka_fixtures: Path) -> None:
    on_disk = {p.name for p in (kafka_fixtures / MAIN).iterdir() if p.is_dir()}
    assert on_disk == set(partitions(kafka_fixtures))
