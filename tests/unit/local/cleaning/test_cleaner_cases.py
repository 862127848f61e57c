"""Acceptance cases of compaction that need files: preallocation, crashes, a race with retention."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.faulty_files import PowerCut, on_nth
from tests.support.given import move_start
from tests.unit.local.bench import TP
from tests.unit.local.cleaning.cleaning_bench import CleaningBench, dirty
from tiered.local.disk.directory_files import CLEANER_NAME

BEFORE = ("a1", "b1", "a2", "c1", "b2", "a3", "d1", "a4", "b3", "c-")


def test_case_75_a_cleaned_segment_is_not_preallocated(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "log", preallocate=True)
    assert (bench.folder / "00000000000000000000.log").stat().st_size == bench.partition.config.segment_bytes
    bench.put("a1", "a2", "a3")
    bench.seal()
    bench.clean()
    assert (bench.folder / "00000000000000000003.log").stat().st_size == bench.partition.config.segment_bytes
    log = bench.folder / "00000000000000000000.log"
    assert log.stat().st_size == bench.partition.sealed[0].size_bytes
    assert log.stat().st_size < bench.partition.config.segment_bytes
    assert [p.stat().st_size for p in sorted(bench.folder.glob("00000000000000000000.*index"))] == [0, 12]


def test_case_79_compaction_races_with_retention(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "log", cleanup_policy="compact,delete", segment_bytes=2000)
    for at in (0, 3, 6):
        bench.put(*BEFORE[at : at + 3])
        bench.seal()
    renamed: Counter[str] = Counter()
    retained = False

    def race(operation: str, path: Path) -> int:
        nonlocal retained
        if operation == "touch" and not retained:
            retained = True
            move_start(bench.partition, 3)
            bench.partition.apply_retention()
        if operation == "rename" and path.name.endswith((".log", ".index")):
            renamed[path.name] += 1
        return 0

    bench.files.fail = race
    bench.clean()
    assert set(renamed.values()) == {1}
    assert {name for name in renamed if name.endswith(".log")} == {f"{base:020d}.log" for base in (0, 3, 6)}
    assert len(bench.bases) == 2
    assert bench.records()[0].offset >= 3
    bench.reopen()
    assert len(bench.bases) == 2
    assert bench.newest == {"a": "4", "b": "3", "c": "1", "d": "1"}
    assert (bench.directory / CLEANER_NAME).exists()
    assert bench.log.cleaner.checkpoint.offset(TP) == 9


def test_a_copy_that_an_earlier_round_left_undoes_no_swap_behind_it(tmp_path: Path) -> None:
    """A ``.cleaned`` undoes every ``.swap`` at or above it, also one whose old files are on their way out already."""
    n, cut = 0, True
    while cut:
        n += 1
        bench = dirty(CleaningBench(tmp_path / str(n)))
        bench.put("e1")
        newest = bench.newest
        (bench.folder / "00000000000000000001.log.cleaned").write_bytes(b"the disk was full")
        bench.files.fail = on_nth(n, "*", PowerCut)
        try:
            bench.clean()
            cut = False
        except PowerCut:
            bench.files.fail = None
            bench.kill()
            bench.open()
        assert bench.newest == newest, n
    assert n > 60
    assert bench.names(".cleaned") == []
