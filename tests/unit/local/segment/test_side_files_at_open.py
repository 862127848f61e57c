"""The transaction index of the last segment at an open: held against its note or its log, rebuilt, or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tests.unit.local.aborting import TP, cut_entry, flip_first_offset, forget_notes, sealed_indexes, visible
from tiered.errors import CorruptionError
from tiered.format.segment_indexes import decode_txns
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PartitionUpload, UploadCheckpoint
from tiered.model import AbortedTxn
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream

BASES = [0, 2]


def committed(log: LocalLog) -> list[bytes]:
    stream = PartitionStream.open(TP, local=log.partition(TP), remote=None)
    return [record.value or b"" for record in stream.records(ReadRange(), isolation="read_committed")]


def fill(directory: Path, base: int) -> Path:
    """Two aborted transactions in the last segment, which begins at ``base``; closed cleanly. Returns their index."""
    with tiered.open(directory) as log:
        topic = log.topic("t", create=True)
        if base:
            topic.append(b"first")
            topic.append(b"second")
            log._local.partition(TP).roll()
        for i in range(2):
            txn = topic.transaction("tx")
            txn.append(b"aborted%d" % i)
            txn.abort()
        topic.append(b"good")
    return directory / "t-0" / f"{base:020d}.txnindex"


def expected(base: int) -> list[bytes]:
    return [b"first", b"second", b"good"] if base else [b"good"]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("damage", [Path.unlink, cut_entry, flip_first_offset])
def test_without_a_note_the_index_is_told_by_the_log(
    tmp_path: Path, base: int, damage: Callable[[Path], object]
) -> None:
    index = fill(tmp_path, base)
    entries = index.read_bytes()
    assert len(decode_txns(entries, base)) == 2
    forget_notes(tmp_path)
    damage(index)
    with LocalLog.open(tmp_path) as log:
        assert committed(log) == expected(base)
        assert index.read_bytes() == entries
        log.partition(TP).roll()
        assert committed(log) == expected(base)
    assert sealed_indexes(tmp_path)[-1].txn_index == entries
    assert visible(tmp_path) == expected(base)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("damage", [Path.unlink, cut_entry])
def test_who_only_reads_asks_the_log_too(tmp_path: Path, base: int, damage: Callable[[Path], object]) -> None:
    index = fill(tmp_path, base)
    forget_notes(tmp_path)
    damage(index)
    left = index.read_bytes() if index.exists() else None
    assert visible(tmp_path) == expected(base)
    assert (index.read_bytes() if index.exists() else None) == left  # it is its writer's


def test_a_rotten_log_does_not_tell_that_nothing_was_aborted(tmp_path: Path) -> None:
    index = fill(tmp_path, 0)
    forget_notes(tmp_path)
    index.unlink()
    data = bytearray(index.with_suffix(".log").read_bytes())
    data[25] ^= 1  # below what an open after a clean stop verifies
    with tiered.open(tmp_path) as log:  # enough behind it that the index leads past it
        for _ in range(3):
            log.topic("t").append(b"more" * 1500)
    index.unlink()
    forget_notes(tmp_path)
    whole = bytearray(index.with_suffix(".log").read_bytes())
    whole[: len(data)] = data
    index.with_suffix(".log").write_bytes(whole)
    with LocalLog.open(tmp_path) as log:
        for _ in range(2):
            with pytest.raises(CorruptionError) as error:
                log.partition(TP).aborted_txns(0, 4)
            assert error.value.path_or_key == str(index.with_suffix(".log"))
        assert not index.exists()


def fill_tiered(directory: Path, remote: str | None) -> Path:
    """An aborted transaction in the last segment, whose beginning is in the bucket alone if there is a ``remote``.

    A second one begins and ends in the last segment. The snapshot between the segments is lost, and all notes.
    """
    with tiered.open(directory, remote=remote) as log:
        topic = log.topic("t", create=True)
        topic.append(b"before")
        txn = topic.transaction("long")
        txn.append(b"aborted")
        if remote is not None:
            log.sync()
        else:
            log._local.partition(TP).roll()
        other = topic.transaction("short")
        other.append(b"aborted, too")
        other.abort()
        txn.abort()
        topic.append(b"good")
    folder = directory / "t-0"
    for name in (f"{0:020d}.log", f"{0:020d}.index", f"{0:020d}.timeindex", f"{2:020d}.snapshot"):
        (folder / name).unlink()
    forget_notes(directory)
    return folder / f"{2:020d}.txnindex"


def reopened_uncleanly(directory: Path) -> None:
    (directory / ".kafka_cleanshutdown").unlink()
    (directory / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 2\n", encoding="utf-8")
    for path in (directory / "t-0").glob("*.snapshot"):
        path.unlink()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("torn", [True, False])
def test_an_entry_whose_beginning_only_the_bucket_holds_is_kept(tmp_path: Path, clean: bool, torn: bool) -> None:
    """Once a recovery dropped it: its records in the bucket would have been served as committed."""
    remote = f"file://{tmp_path}/store"
    index = fill_tiered(tmp_path / "log", remote)
    kept = index.read_bytes()
    short, long = decode_txns(kept, 2)
    assert (short[1:], long[1:]) == ((2, 3, 1), (1, 4, 5))
    if not clean:
        reopened_uncleanly(tmp_path / "log")
    if torn:
        index.write_bytes(kept + b"\0\0\0")
    with tiered.open(tmp_path / "log", remote=remote) as log:
        if torn:  # nothing says that what is torn was no entry
            with pytest.raises(CorruptionError, match="earlier segments are no longer on this disk"):
                list(log.topic("t").read(isolation="read_committed"))
            return
        assert index.read_bytes() == kept
        assert [record.value for record in log.topic("t").read(isolation="read_committed")] == [b"before", b"good"]
        log.sync()
    with tiered.open_reader(remote) as reader:
        assert [r.value for r in reader.topic("t").read(isolation="read_committed")] == [b"before", b"good"]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_an_entry_that_is_lost_and_whose_beginning_is_not_known_is_an_error(
    tmp_path: Path, clean: bool, named: bool
) -> None:
    """``named``: whoever opened it first said that it has a bucket; its directory knows that, too."""
    remote = f"file://{tmp_path}/store"
    index = fill_tiered(tmp_path / "log", remote)
    if not clean:
        reopened_uncleanly(tmp_path / "log")
    index.unlink()
    with tiered.open(tmp_path / "log", remote=remote if named else None) as log:
        assert log._local.partition(TP).positions().end_offset == 6
    for _ in range(2):  # the note of a close does not make it known
        with tiered.open(tmp_path / "log", remote=remote) as log:
            with pytest.raises(CorruptionError, match="earlier segments are no longer on this disk") as error:
                list(log.topic("t").read(isolation="read_committed"))
            assert error.value.path_or_key == str(index)
            values = [record.value for record in log.topic("t").read()]
            assert values == [b"before", b"aborted", b"aborted, too", b"good"]
            with pytest.raises(CorruptionError, match="earlier segments are no longer on this disk"):
                log.sync()
    with tiered.open_reader(remote) as reader:
        assert [record.value for record in reader.topic("t").read()] == [b"before", b"aborted"]


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_never_uploaded_has_no_beginning_elsewhere(tmp_path: Path, clean: bool) -> None:
    index = fill_tiered(tmp_path, None)
    if not clean:
        reopened_uncleanly(tmp_path)
    index.unlink()
    with LocalLog.open(tmp_path) as log:
        assert committed(log) == [b"good"]
        assert [entry[1:] for entry in decode_txns(index.read_bytes(), 2)] == [(2, 3, 4)]


@pytest.mark.parametrize(("start", "known"), [(1, False), (2, True), (-1, False)])
def test_a_bucket_whose_log_begins_with_the_disk_holds_no_beginning(tmp_path: Path, start: int, known: bool) -> None:
    index = fill_tiered(tmp_path, None)
    UploadCheckpoint(tmp_path, PosixFiles()).write({TP: PartitionUpload(3, 1, start_offset=start)})
    reopened_uncleanly(tmp_path)
    index.unlink()
    with LocalLog.open(tmp_path) as log:
        if known:
            assert [entry[1:] for entry in decode_txns(index.read_bytes(), 2)] == [(2, 3, 4)]
            return
        with pytest.raises(CorruptionError, match="earlier segments are no longer on this disk"):
            log.partition(TP).aborted_txns(0, 6)


def test_a_cut_keeps_what_was_known_of_the_aborted(tmp_path: Path) -> None:
    """The index is lost while the log is at work: what a cut leaves is asked, not what is left of the index."""
    with tiered.open(tmp_path) as log:
        topic = log.topic("t", create=True)
        for i in range(2):
            txn = topic.transaction("tx")
            txn.append(b"aborted%d" % i)
            txn.abort()
        topic.append(b"good")
        partition = log._local.partition(TP)
        (first, _) = partition.aborted_txns(0, 5)
        assert first == AbortedTxn(first.producer_id, 0, 1, 2)
        (tmp_path / "t-0" / f"{0:020d}.txnindex").unlink()
        partition.truncate_to(2)
        assert partition.aborted_txns(0, 2) == [first]
        assert [record.value for record in topic.read(isolation="read_committed")] == []
        partition.roll()
    assert decode_txns(sealed_indexes(tmp_path)[0].txn_index, 0) == [first]
