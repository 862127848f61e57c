"""Acceptance cases of loading and recovery, and replacement under crashes; the number in a name is the case's own."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.support.given import append_given, move_start
from tests.unit.local.bench import CaseBench, batch
from tiered.errors import ConfigError
from tiered.format.codecs import Codec
from tiered.format.local_names import CLEANED_SUFFIX, log_name
from tiered.format.segment_indexes import decode_txns, encode_txns
from tiered.local.segment.replacement import SegmentCopy
from tiered.model import AbortedTxn
from tiered.plan.roll import MAX_RELATIVE_OFFSET
from tiered.testing.clock import START_MS

FAR = MAX_RELATIVE_OFFSET + 2
OFFSET_COUNT = 100


def filled(directory: Path, count: int = OFFSET_COUNT) -> CaseBench:
    bench = CaseBench(directory, per_segment=12, index_interval_bytes=100, segment_index_bytes=1200)
    for i in range(count):
        bench.append(b"v", timestamp=START_MS + i)
    return bench


def checkpoint(bench: CaseBench) -> str:
    return (bench.directory / "recovery-point-offset-checkpoint").read_text()


@pytest.mark.parametrize("recovery_point", [10, 0, OFFSET_COUNT])
def test_case_61_recovery_makes_the_same_indexes(tmp_path: Path, recovery_point: int) -> None:
    """The recovery point follows at once, not at the next flush: what was recovered is fsynced by the open itself."""
    bench = filled(tmp_path / "log")
    bench.reopen()
    bench.log.close()
    before = [path.read_bytes() for path in sorted(bench.folder.glob("*.*index"))]
    (bench.directory / ".kafka_cleanshutdown").unlink()
    (bench.directory / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {recovery_point}\n")
    bench.open()
    assert bench.partition.positions().end_offset == OFFSET_COUNT
    assert bench.offsets() == list(range(OFFSET_COUNT))
    assert checkpoint(bench) == f"0\n1\nt 0 {OFFSET_COUNT}\n"
    bench.log.close()
    assert [path.read_bytes() for path in sorted(bench.folder.glob("*.*index"))] == before


@pytest.mark.parametrize("content", [None, b"", b"  "])
def test_case_62_all_indexes_lost_or_blank(tmp_path: Path, content: bytes | None) -> None:
    bench = filled(tmp_path / "log")
    bench.kill()
    for path in bench.folder.glob("*.*index"):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    for suffix in (".index", ".timeindex", ".txnindex"):
        (bench.folder / f"{7:020d}{suffix}").write_bytes(b"orphan")
    bench.open()
    assert bench.offsets() == list(range(OFFSET_COUNT))
    for i in range(OFFSET_COUNT):
        assert bench.partition.offset_for_time(START_MS + i) == (i, START_MS + i)
        assert bench.offsets(i)[0] == i
    assert not list(bench.folder.glob(f"{7:020d}.*"))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_case_63_offsets_too_far_away_begin_a_segment(tmp_path: Path, codec: Codec) -> None:
    bench = CaseBench(tmp_path / "log")
    append_given(bench.partition, batch(0, codec=codec))
    append_given(bench.partition, batch(FAR, codec=codec))
    append_given(bench.partition, batch(FAR + 1, codec=codec))
    assert bench.bases == [0, FAR]
    assert snapshots(bench) == [FAR]
    bench.reopen()
    assert (bench.bases, bench.offsets()) == ([0, FAR], [0, FAR, FAR + 1])


def test_case_65_a_log_that_ends_below_its_start_begins_again_there(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=1)
    bench.fill(10)
    assert snapshots(bench) == list(range(1, 10))
    move_start(bench.partition, 4)
    bench.log.checkpoint()
    bench.kill()
    (bench.folder / log_name(1)).write_bytes(b"junk" * 20)
    (bench.directory / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    bench.open()
    positions = bench.partition.positions()
    assert (bench.bases, positions.start_offset, positions.end_offset) == ([4], 4, 4)
    assert (snapshots(bench), bench.epochs) == ([], [(0, 4)])
    assert bench.names(".log") == [log_name(4)]
    for offset in range(4, 9):
        assert bench.append(b"v") == offset
        bench.partition.roll()
    bench.clock.advance(100)
    bench.log.tick()
    assert snapshots(bench) == [5, 6, 7, 8, 9]
    assert bench.offsets() == [4, 5, 6, 7, 8]


def snapshots(bench: CaseBench) -> list[int]:
    return [int(name[:20]) for name in bench.names(".snapshot")]


def test_case_66_an_empty_active_segment_without_indexes(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5)
    bench.fill(5)
    bench.partition.roll()
    bench.kill()
    for suffix in (".index", ".timeindex"):
        (bench.folder / f"{5:020d}{suffix}").unlink(missing_ok=True)
    bench.open()
    assert (bench.bases, bench.partition.positions().end_offset) == ([0, 5], 5)
    assert len(bench.index(5)) == 0
    assert bench.append(b"v") == 5


def test_an_index_of_aborted_transactions_that_cannot_be_read_is_made_again(tmp_path: Path) -> None:
    """Also where the batches behind the recovery point, the only ones that are read, have no transaction."""
    bench = CaseBench(tmp_path / "log", index_interval_bytes=100)
    bench.fill(30)
    bench.partition.flush()
    bench.log.checkpoint()
    bench.kill()
    path = bench.folder / f"{0:020d}.txnindex"
    path.write_bytes(b"junk" * 30)
    bench.open()
    assert bench.partition.aborted_txns(0, 30) == []
    assert path.read_bytes() == b""
    assert bench.offsets() == list(range(30))


def test_a_torn_tail_takes_the_aborted_transactions_and_snapshots_above_it(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    (bench.folder / f"{0:020d}.txnindex").write_bytes(encode_txns([AbortedTxn(1, 0, 9, 10)]))
    (bench.folder / f"{10:020d}.snapshot").write_bytes(b"state")
    bench.kill()
    path = bench.folder / log_name(0)
    path.write_bytes(path.read_bytes()[:-1])
    bench.open()
    assert bench.partition.positions().end_offset == 9
    assert snapshots(bench) == [9]
    assert (bench.folder / f"{0:020d}.txnindex").read_bytes() == b""


# -- a cleaner's replacement -------------------------------------------------------------------------------------------


def cleaned(bench: CaseBench, keep: set[int], bases: list[int]) -> list[SegmentCopy]:
    """One copy for all segments ``bases``, with the batches whose offset is in ``keep``."""
    copy = SegmentCopy(bench.files, bench.folder, bases[0], interval_bytes=100)
    for found in bench.partition.read_batches(bases[0], bases[-1] + 12):
        if struct.unpack_from(">q", found)[0] in keep:
            copy.append(found)
    copy.add_aborted(AbortedTxn(9, bases[0], bases[0] + 1, bases[0] + 2))
    return [copy]


def test_replaced_segments_are_read_by_new_reads_and_old_ones_go_on(tmp_path: Path) -> None:
    bench = filled(tmp_path / "log", 60)
    bench.partition.flush()
    assert bench.bases == [0, 12, 24, 36, 48]
    reading = bench.partition.read_batches(0)
    next(reading)
    (copy,) = cleaned(bench, {3, 20, 35}, [12, 24])
    assert bench.partition.maintenance.replace_segments([copy.finish()], [12, 24])
    assert bench.bases == [0, 12, 36, 48]
    assert bench.offsets() == [*range(12), 20, 35, *range(36, 60)]
    assert sum(1 for _ in reading) == 59
    assert bench.partition.offset_for_time(START_MS + 13) == (20, START_MS + 20)
    carried = bench.folder / f"{12:020d}.txnindex"
    assert decode_txns(carried.read_bytes(), 12) == [AbortedTxn(9, 12, 13, 14)]
    assert bench.partition.aborted_txns(0, 60) == []  # no marker: the entry would hide what producer 9 commits later
    bench.clock.advance(60)
    bench.log.tick()
    assert bench.names(".deleted") == []
    bench.reopen()
    assert bench.offsets() == [*range(12), 20, 35, *range(36, 60)]
    assert [s.descriptor.records for s in bench.partition.sealed_segments()] == [12, 2, 12]


def test_only_sealed_neighbours_are_replaced(tmp_path: Path) -> None:
    bench = filled(tmp_path / "log", 60)
    bench.partition.flush()
    (copy,) = cleaned(bench, {20}, [12])
    found = copy.finish()
    for old in ([12, 36], [36, 48]):
        with pytest.raises(ConfigError, match="neighbours"):
            bench.partition.maintenance.replace_segments([found], old)
    bench.partition.delete_local_before(36)
    assert bench.names(CLEANED_SUFFIX)
    assert not bench.partition.maintenance.replace_segments([found], [12, 24])
    assert not bench.names(CLEANED_SUFFIX)
    bench.reopen()
    assert bench.offsets() == list(range(36, 60))


def test_files_that_waited_to_be_removed_at_a_stop_are_gone_after_it_with_their_note(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=2, retention_bytes=0)
    bench.fill(5)
    bench.partition.flush()
    bench.retain()
    assert bench.names(".seal.deleted") == [f"{base:020d}.seal.deleted" for base in (0, 2, 4)]
    bench.reopen()
    assert bench.offsets() == []  # it slept until now
    assert bench.names(".deleted") == []
