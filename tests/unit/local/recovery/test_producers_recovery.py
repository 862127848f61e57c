"""Producers after a kill, a power cut, a cut of the log: what is stable, what was aborted, what is a repetition."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.admin import check as check_directory
from tests.support.given import start_over
from tests.unit.local.bench import TP
from tests.unit.local.partition.producer_bench import PID, ProducerBench
from tiered.check.findings import Severity
from tiered.errors import OutOfOrderSequenceError
from tiered.format.local_names import log_name, txn_index_name
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.segment_indexes import decode_txns
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PartitionUpload, UploadCheckpoint
from tiered.model import AbortedTxn
from tiered.testing.clock import START_MS


@pytest.fixture
def bench(tmp_path: Path) -> ProducerBench:
    return ProducerBench(tmp_path / "log", index_interval_bytes=100)


def opened(bench: ProducerBench) -> None:
    """An aborted transaction, an open one of another producer, and batches of a third."""
    bench.plain(4)
    bench.send(0, 2, pid=1, txn=True)
    bench.send(0, 3, pid=2, txn=True)
    bench.mark(abort=True, pid=1)
    for sequence in range(3):
        bench.send(sequence)


def check(bench: ProducerBench, *, window: int) -> None:
    """``window``: so many of a producer's batches are known again."""
    assert (bench.end, bench.lso) == (13, 6)
    assert bench.aborted() == [AbortedTxn(1, 4, 9, 6)]
    for sequence in range(3 - window, 3):
        assert bench.send(sequence).offset == 10 + sequence
    if window == 1:
        with pytest.raises(OutOfOrderSequenceError):
            bench.send(1)
    assert bench.send(3).offset == 13


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("rolled", [False, True])
def test_after_a_kill(bench: ProducerBench, flushed: bool, rolled: bool) -> None:
    opened(bench)
    if rolled:
        bench.partition.roll()
    if flushed:
        bench.partition.flush()
    bench.unclean()
    check(bench, window=1 if rolled else 3)
    bench.mark(pid=2)
    assert bench.lso == bench.end


def test_a_snapshot_that_failed_at_the_roll_is_derived_from_the_log(bench: ProducerBench) -> None:
    """The note does not name it. The next segment begins with a state that the log shows."""
    opened(bench)
    (writer,) = bench.log.roster.awake()
    left = [28]
    bench.files.fail = lambda operation, path: left.pop() if left and _is_snapshot_write(operation, path) else 0
    bench.partition.roll()
    assert left == []
    assert not (bench.directory / "t-0" / f"{13:020d}.snapshot").exists()
    (sealed,) = bench.partition.sealed_segments()
    assert decode_snapshot(sealed.indexes().producer_snapshot) == list(writer.live_producers())
    bench.plain(1)
    bench.log.close()
    assert [f for f in check_directory(bench.directory, None).findings if f.severity is Severity.ERROR] == []


def test_an_entry_whose_marker_a_power_cut_took_hides_nothing(bench: ProducerBench) -> None:
    """The marker was the first batch of its segment: nothing transactional is left in the log of that."""
    bench.send(0, 3, pid=1, txn=True)
    bench.partition.roll()
    bench.mark(abort=True, pid=1)
    log = bench.directory / "t-0" / f"{3:020d}.log"
    (entry,) = decode_txns(log.with_suffix(".txnindex").read_bytes(), 3)
    assert entry == AbortedTxn(1, 0, 3, 4)
    bench.kill()
    log.write_bytes(b"")
    bench.open()
    assert (bench.end, bench.lso) == (3, 0)
    assert log.with_suffix(".txnindex").read_bytes() == b""
    bench.mark(pid=1)
    assert (bench.lso, bench.aborted()) == (4, [])


def _is_snapshot_write(operation: str, path: Path) -> bool:
    return operation == "write" and path.name.startswith(f"{13:020d}.snapshot.")


def test_after_a_clean_stop_only_the_newest_batch_is_known(bench: ProducerBench) -> None:
    opened(bench)
    bench.reopen()
    assert bench.snapshots == [13]
    check(bench, window=1)


@pytest.mark.parametrize("rolled", [False, True])
def test_a_cut_makes_the_aborted_transactions_that_stay_durable(bench: ProducerBench, rolled: bool) -> None:
    """Whoever wrote their index was closed by the cut, unflushed; who goes on in the segment did not write them."""
    bench.send(0, txn=True)
    bench.mark(abort=True)
    end = bench.end
    bench.send(0, epoch=1, txn=True)
    if rolled:
        bench.partition.roll()
    bench.files.effects.clear()
    bench.partition.truncate_to(end)
    path = bench.directory / "t-0" / txn_index_name(0)
    assert decode_txns(path.read_bytes(), 0) == [AbortedTxn(PID, 0, 1, 2)]
    assert ("sync", path) in bench.files.effects


def test_producers_whose_only_snapshot_lies_above_what_a_power_cut_left(bench: ProducerBench) -> None:
    """A cut inside a batch ends the log above its last record; what the power takes ends it there."""
    bench.send(0, 2)
    for _ in range(10):
        bench.clock.advance(1)
        bench.append(b"p" * 50)
    size = (bench.folder / log_name(0)).stat().st_size
    bench.append(b"p", b"p")
    bench.log.close()
    bench.open()
    bench.partition.truncate_to(13)
    assert bench.snapshots == [13]
    bench.append(b"lost")
    bench.kill()
    path = bench.folder / log_name(0)
    path.write_bytes(path.read_bytes()[: size + 10])
    bench.open()
    assert bench.end == 12
    assert bench.send(0, 2).offset == 0  # a repetition
    assert bench.end == 12


def test_a_tiered_log_keeps_the_state_where_its_disk_begins(tmp_path: Path) -> None:
    """Earlier records are in the bucket: their producers go on, their transaction is open."""
    bench = ProducerBench(tmp_path / "log")
    bench.log.close()
    bench.open(remote=True)
    bench.send(0, txn=True)
    bench.partition.roll()
    bench.partition.set_uploaded(1)
    bench.partition.delete_local_before(1)
    assert bench.snapshots == [1]
    bench.kill()
    (bench.directory / "log-start-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    bench.open(remote=True)
    assert bench.send(0, txn=True).offset == 0
    bench.mark(abort=True)
    assert bench.aborted()[0].first_offset == 0


def test_a_tiered_log_that_starts_again_knows_that_nothing_was_open(tmp_path: Path) -> None:
    """A marker without a transaction needs no entry there, also when the note of its segment is lost."""
    bench = ProducerBench(tmp_path / "log")
    bench.plain(5)
    bench.partition.roll()
    bench.partition.set_uploaded(5)
    UploadCheckpoint(bench.directory, PosixFiles()).write({TP: PartitionUpload(5)})
    start_over(bench.partition, 5)
    bench.mark(abort=True)
    bench.partition.roll()
    bench.plain(1)
    assert bench.snapshots == [5, 6]
    bench.kill()
    (bench.folder / f"{5:020d}.seal").unlink()
    bench.open()
    assert (bench.aborted(), bench.snapshots) == ([], [5, 6, 7])


def test_a_tiered_log_that_starts_again_with_plain_records_knows_it_too(tmp_path: Path) -> None:
    """The marker comes later: that nothing was open has to be known where its segment begins, not at the marker."""
    bench = ProducerBench(tmp_path / "log")
    bench.plain(5)
    bench.partition.roll()
    bench.partition.set_uploaded(5)
    UploadCheckpoint(bench.directory, PosixFiles()).write({TP: PartitionUpload(5)})
    start_over(bench.partition, 8)
    bench.plain(2)
    bench.mark(abort=True)
    assert bench.snapshots == [8, 10]
    bench.unclean()
    assert (bench.aborted(), bench.snapshots, bench.lso) == ([], [8, 11], 11)


def test_snapshots_of_nobody_go(bench: ProducerBench) -> None:
    opened(bench)
    bench.log.close()
    good = (bench.folder / f"{13:020d}.snapshot").read_bytes()
    for offset in (5, 9, 99):
        (bench.folder / f"{offset:020d}.snapshot").write_bytes(good)
    bench.open()
    check(bench, window=1)
    assert bench.snapshots == [13]


@pytest.mark.parametrize("lost", [(".txnindex",), (".txnindex", ".index"), (".index",), (".txnindex", ".timeindex")])
@pytest.mark.parametrize("after", [0, 40])
def test_case_67_an_index_missing_below_the_recovery_point_is_made_again(
    tmp_path: Path, lost: tuple[str, ...], after: int
) -> None:
    """Also where nothing but plain records follows the transaction, so that a recovery would not look at it."""
    bench = ProducerBench(tmp_path / "log", index_interval_bytes=100)
    bench.plain(1)
    bench.send(0, 3, txn=True)
    bench.mark(abort=True)
    for i in range(after):
        bench.fill(1, timestamp=START_MS + 1 + i)  # rising, or the indexes would not be believed so far
    bench.partition.flush()
    bench.log.checkpoint()
    point = (bench.directory / "recovery-point-offset-checkpoint").read_text()
    assert point == f"0\n1\nt 0 {bench.end}\n"
    bench.kill()
    for suffix in lost:
        (bench.folder / f"{0:020d}{suffix}").unlink(missing_ok=True)
    bench.open()
    assert bench.aborted() == [AbortedTxn(PID, 1, 4, 5)]
    assert (bench.end, bench.lso) == (5 + after, 5 + after)
    assert bench.offsets() == list(range(5 + after))
