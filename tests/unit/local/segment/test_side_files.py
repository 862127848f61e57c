"""A transaction index or a producer snapshot that is lost: reads, compaction and uploads are right, or say so.

What a segment must have is noted at its seal. What differs is told by the log, from the newest snapshot before it on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tests.support.admin import check
from tests.support.given import move_start
from tests.unit.local.aborting import (
    ROUNDS,
    TP,
    cut_entry,
    fill,
    flip_first_offset,
    forget_notes,
    good,
    sealed_indexes,
    visible,
)
from tiered.check.findings import Severity
from tiered.errors import CorruptionError
from tiered.format.producer_snapshot import decode_snapshot, encode_snapshot
from tiered.format.segment_indexes import decode_txns, encode_txns
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.partition_files import PLAIN_NAME
from tiered.local.segment.side_files import read_note
from tiered.model import AbortedTxn
from tiered.plan.side_files import NO_PRODUCERS
from tiered.plan.visibility import open_firsts


def add_entry(path: Path) -> None:
    """An abort that never was: it would hide what the producer commits afterwards."""
    entries = decode_txns(path.read_bytes(), int(path.stem))
    last = entries[-1]
    path.write_bytes(encode_txns([*entries, AbortedTxn(last.producer_id, last.first_offset, last.last_offset + 1, 0)]))


DAMAGES: list[Callable[[Path], object]] = [Path.unlink, cut_entry, flip_first_offset, add_entry]


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_transaction_index_is_told_by_the_log(tmp_path: Path, damage: Callable[[Path], object], noted: bool) -> None:
    fill(tmp_path / "log")
    if not noted:
        forget_notes(tmp_path / "log")
    before = sealed_indexes(tmp_path / "log")
    assert sum(bool(indexes.txn_index) for indexes in before) > 2
    assert visible(tmp_path / "log") == good()
    for path in sorted((tmp_path / "log" / "t-0").glob("*.txnindex"))[:-1]:
        damage(path)
    assert sealed_indexes(tmp_path / "log") == before
    assert visible(tmp_path / "log") == good()


def test_the_index_of_the_last_segment_is_noted_at_the_close(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        for _ in range(3):
            txn = topic.transaction("tx")
            txn.append(b"aborted")
            txn.abort()
        topic.append(b"good")
    index = tmp_path / "log" / "t-0" / f"{0:020d}.txnindex"
    entries = index.read_bytes()
    note = read_note(PosixFiles(), index.with_suffix(".seal"), index.with_suffix(".log").stat().st_size)
    assert note is not None
    assert (note.aborted, note.producers) == (3, 1)
    index.unlink()
    assert visible(tmp_path / "log") == [b"good"]
    with tiered.open(tmp_path / "log") as log:
        assert [record.value for record in log.topic("t").read(isolation="read_committed")] == [b"good"]
        assert index.read_bytes() == entries


def test_an_index_that_is_lost_while_the_log_is_open(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        txn = topic.transaction("tx")
        txn.append(b"aborted")
        txn.abort()
        (tmp_path / "log" / "t-0" / f"{0:020d}.txnindex").unlink()
        with pytest.raises(CorruptionError, match="holds 0 of 1 aborted transactions"):
            list(topic.read(isolation="read_committed"))
    assert visible(tmp_path / "log") == []


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize(
    "lost",
    [lambda path: path.unlink(), lambda path: path.write_bytes(b"")],
)
def test_a_producer_snapshot_is_told_by_the_log(tmp_path: Path, lost: Callable[[Path], object], noted: bool) -> None:
    fill(tmp_path / "log", undecided=True)
    if not noted:
        forget_notes(tmp_path / "log")
    before = sealed_indexes(tmp_path / "log")
    opened = [open_firsts(decode_snapshot(indexes.producer_snapshot)) for indexes in before]
    assert opened[-1]
    for path in (tmp_path / "log" / "t-0").glob("*.snapshot"):
        lost(path)
    after = sealed_indexes(tmp_path / "log")
    assert [open_firsts(decode_snapshot(indexes.producer_snapshot)) for indexes in after] == opened
    assert [indexes.txn_index for indexes in after] == [indexes.txn_index for indexes in before]


@pytest.mark.parametrize("noted", [True, False])
def test_what_the_log_cannot_tell_is_neither_uploaded_nor_guessed(tmp_path: Path, noted: bool) -> None:
    """The segment that holds a transaction's records is in the bucket alone, and the snapshot behind it is gone."""
    directory = tmp_path / "log"
    with tiered.open(directory, remote=f"file://{tmp_path}/store") as log:
        topic = log.topic("t", create=True)
        txn = topic.transaction("tx")
        txn.append(b"undecided")
        log.sync()
        topic.append(b"good")
        txn.abort()
        log._local.partition(TP).roll()
        topic.append(b"more")
    folder = directory / "t-0"
    for name in (f"{0:020d}.log", f"{0:020d}.index", f"{0:020d}.timeindex", f"{0:020d}.seal", f"{1:020d}.snapshot"):
        (folder / name).unlink()
    if not noted:
        forget_notes(directory)
    assert [bool(indexes.txn_index) for indexes in sealed_indexes(directory)] == [True]
    index = folder / f"{1:020d}.txnindex"
    kept = index.read_bytes()
    index.unlink()
    with pytest.raises(CorruptionError, match="earlier segments are no longer on this disk") as error:
        sealed_indexes(directory)
    assert (error.value.path_or_key, error.value.offset) == (str(index), 1)
    with pytest.raises(CorruptionError, match="earlier segments are no longer on this disk"):
        visible(directory)
    index.write_bytes(kept)
    assert [indexes.txn_index for indexes in sealed_indexes(directory)] == [kept]
    index.unlink()
    with tiered.open(directory, remote=f"file://{tmp_path}/store") as log:
        with pytest.raises(CorruptionError, match="earlier segments are no longer on this disk"):
            log.sync()
        assert log.positions()[TP].uploaded_offset <= 1
    assert list((tmp_path / "store").rglob(f"{1:020d}-*")) == []


@pytest.mark.parametrize("noted", [True, False])
def test_a_transaction_whose_records_are_nowhere_needs_no_entry(tmp_path: Path, noted: bool) -> None:
    """Retention took its segment, nothing was ever uploaded: its marker hides nothing."""
    directory = tmp_path / "log"
    with tiered.open(directory) as log:
        topic = log.topic("t", create=True)
        txn = topic.transaction("tx")
        txn.append(b"undecided")
        log._local.partition(TP).roll()
        topic.append(b"good")
        txn.abort()
        log._local.partition(TP).roll()
        topic.append(b"more")
    folder = directory / "t-0"
    for name in (f"{0:020d}.log", f"{0:020d}.index", f"{0:020d}.timeindex", f"{0:020d}.seal", f"{1:020d}.snapshot"):
        (folder / name).unlink()
    (folder / f"{1:020d}.txnindex").unlink()
    if not noted:
        forget_notes(directory)
    assert visible(directory) == [b"good", b"more"]


def test_a_log_without_producers_is_not_walked(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 500})
        for _ in range(20):
            topic.append(b"." * 100)
    assert (tmp_path / "log" / "t-0" / PLAIN_NAME).exists()
    assert {(i.txn_index, i.producer_snapshot) for i in sealed_indexes(tmp_path / "log")} == {(b"", b"")}


def test_an_open_asks_the_log_when_all_snapshots_are_gone(tmp_path: Path) -> None:
    """No snapshot and no ``tiered-plain``: once this was taken for a log that no producer ever wrote to."""
    fill(tmp_path / "log", undecided=True)
    with LogView.open(tmp_path / "log") as log:
        stable = log.partition(TP).last_stable_offset()
    (tmp_path / "log" / ".kafka_cleanshutdown").write_bytes(b'{"version":0,"brokerEpoch":-1}')
    for path in (tmp_path / "log" / "t-0").glob("*.snapshot"):
        path.unlink()
    with LocalLog.open(tmp_path / "log") as log:
        assert log.partition(TP).last_stable_offset() == stable
        log.partition(TP).roll()
        assert not (tmp_path / "log" / "t-0" / PLAIN_NAME).exists()
    assert open_firsts(decode_snapshot(sealed_indexes(tmp_path / "log")[-1].producer_snapshot))


def test_nobody_needs_the_snapshots_below_the_log_start(tmp_path: Path) -> None:
    """Deleted records, and a stop before their files left: an open takes the snapshots, as a broker does."""
    fill(tmp_path / "log")
    with LocalLog.open(tmp_path / "log") as log:
        ends = [segment.end_offset for segment in log.partition(TP).sealed_segments(0)]
        start = move_start(log.partition(TP), ends[2])
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    for path in (tmp_path / "log" / "t-0").glob(f"{0:020d}.*"):
        path.unlink()  # the oldest was on its way: what came before the others is not known any more
    with LocalLog.open(tmp_path / "log") as log:
        assert log.partition(TP).positions().start_offset == start == ends[2]
    found = sorted((tmp_path / "log" / "t-0").glob("*.snapshot"))
    assert [int(path.stem) for path in found if int(path.stem) <= start] == []
    report = check(tmp_path / "log", None)
    assert [(f.severity, f.code, Path(f.where).name) for f in report.findings] == [
        (Severity.INFO, "producer_snapshot_lost", f"{base:020d}.log") for base in ends[:2]
    ]
    assert report.exit_code == 0
    assert f"below the log start {start}" in report.findings[0].message
    remote = f"file://{tmp_path}/store"
    with tiered.open(tmp_path / "log", remote=remote) as opened:
        opened.sync()
    with tiered.open_reader(remote) as reader:
        values = [record.value for record in reader.topic("t").read(isolation="read_committed")]
    assert 0 < len(values) < ROUNDS
    assert values == good()[-len(values) :]
    (tmp_path / "log" / "log-start-offset-checkpoint").unlink()
    report = check(tmp_path / "log", None)  # who needs them is not known any more
    assert {(f.severity, f.code) for f in report.findings} == {(Severity.ERROR, "producer_snapshot_lost")}


def test_a_snapshot_of_nobody_is_not_worth_an_object() -> None:
    assert encode_snapshot(()) == NO_PRODUCERS


@pytest.mark.parametrize(("at", "message"), [(-1, "crc|CRC"), (6, "stands where")])
def test_a_damaged_batch_tells_nothing_of_a_transaction_index(tmp_path: Path, at: int, message: str) -> None:
    """Its header may name another producer, or another offset, which is outside the CRC: what it would tell is not
    served in place of the file that is lost."""
    fill(tmp_path / "log")
    path = sorted((tmp_path / "log" / "t-0").glob("*.txnindex"))[1]
    data = bytearray(path.with_suffix(".log").read_bytes())
    data[at] ^= 1
    path.with_suffix(".log").write_bytes(data)
    path.unlink()
    with LogView.open(tmp_path / "log") as log:
        segment = next(one for one in log.partition(TP).sealed_segments(0) if one.base_offset == int(path.stem))
        with pytest.raises(CorruptionError, match=message) as error:
            segment.aborted_txns()
    assert error.value.path_or_key == str(path.with_suffix(".log"))


@pytest.mark.parametrize("noted", [True, False])
def test_a_lost_snapshot_of_producers_that_only_earlier_segments_name_is_missed(tmp_path: Path, noted: bool) -> None:
    """Else a log that goes on from the bucket would take their repetitions for new records."""
    directory = tmp_path / "log"
    with tiered.open(directory) as log:
        topic = log.topic("t", create=True)
        with topic.transaction("tx") as txn:
            txn.append(b"committed")
        for value in (b"one", b"two", b"three"):
            log._local.partition(TP).roll()
            topic.append(value)
    folder = directory / "t-0"
    for name in (f"{0:020d}.log", f"{0:020d}.index", f"{0:020d}.timeindex", f"{0:020d}.seal", f"{2:020d}.snapshot"):
        (folder / name).unlink()
    if not noted:
        forget_notes(directory)
    kept = [decode_snapshot(indexes.producer_snapshot) for indexes in sealed_indexes(directory)]
    assert [len(entries) for entries in kept] == [1, 1]
    (folder / f"{3:020d}.snapshot").unlink()
    if not noted:  # then the log begins here, as far as anything says: what its records name is all there is
        found = [indexes.producer_snapshot for indexes in sealed_indexes(directory)]
        assert [len(decode_snapshot(data)) if data else 0 for data in found] == [0, 1]
        return
    with pytest.raises(CorruptionError, match=r"0003\.snapshot: it is gone") as error:
        sealed_indexes(directory)
    assert error.value.offset == 2
