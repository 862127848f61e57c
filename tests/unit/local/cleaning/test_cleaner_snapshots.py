"""Compaction and the snapshots of producers: those of bases that vanish go with their segments, as with Kafka."""

from __future__ import annotations

from pathlib import Path

from tests.unit.local.cleaning.cleaning_bench import CLEAN
from tests.unit.local.partition.producer_bench import ProducerBench


def made(tmp_path: Path) -> ProducerBench:
    """Nine sealed segments of one key: the first round empties all but the last, the next one merges them."""
    bench = ProducerBench(tmp_path / "log", per_segment=2, file_delete_delay_ms=1000, **CLEAN)
    for sequence in range(9):
        bench.send(sequence)
    bench.partition.roll()
    assert bench.snapshots == bench.bases[1:] == [*range(1, 10)]
    bench.log.cleaner.clean(bench.partition.tp)
    bench.send(9)
    bench.partition.roll()
    return bench


def test_snapshots_of_bases_that_vanish_go_at_the_swap(tmp_path: Path) -> None:
    bench = made(tmp_path)
    before = bench.bases
    bench.log.cleaner.clean(bench.partition.tp)
    assert len(bench.bases) < len(before)
    assert bench.names(".snapshot.deleted")
    assert bench.snapshots == [base for base in bench.bases if base]
    bench.clock.advance(2)
    bench.log.tick()
    assert not bench.names(".deleted")
    state = bench.state.entries()
    bench.reopen()
    assert bench.snapshots == [base for base in bench.bases if base]
    assert bench.state.entries() == state


def test_what_is_undecided_is_known_without_snapshots(tmp_path: Path) -> None:
    bench = ProducerBench(tmp_path / "log", **CLEAN)
    bench.send(0, txn=True)
    bench.partition.roll()
    bench.send(0, pid=8)
    bench.send(1, pid=8)
    bench.partition.roll()
    bench.send(1, txn=True)
    bench.partition.roll()
    bench.partition.delete_local_before(1)  # the transaction began in what is gone
    assert bench.lso == 1
    for name in bench.names(".snapshot"):
        (bench.folder / name).unlink()
    assert bench.log.cleaner.clean(bench.partition.tp) is None
    assert [entry.last_offset for entry in bench.partition.live_producers()] == [3, 2]
