"""Acceptance cases of compaction that need files: preallocation, crashes, a race with retention."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.support.given import move_start
from tests.unit.local.bench import TP
from tests.unit.local.cleaning.cleaning_bench import CleaningBench, dirty
from tiered.format.keys import DELETED_SUFFIX
from tiered.local.disk.checkpoints import CLEANER_NAME
from tiered.model import NewRecord
from tiered.testing.disk import FaultyFiles, PowerCut, on_nth

BEFORE = ("a1", "b1", "a2", "c1", "b2", "a3", "d1", "a4", "b3", "c-")
AFTER = ["d1", "a4", "b3", "c-"]


def test_case_75_a_cleaned_segment_is_not_preallocated(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "log", preallocate=True)
    assert (bench.folder / "00000000000000000000.log").stat().st_size == bench.partition.config.segment_bytes
    bench.put("a1", "a2", "a3")
    bench.seal()
    bench.clean()
    assert (bench.folder / "00000000000000000003.log").stat().st_size == bench.partition.config.segment_bytes
    log = bench.folder / "00000000000000000000.log"
    assert log.stat().st_size == bench.writer.sealed[0].size_bytes
    assert log.stat().st_size < bench.partition.config.segment_bytes
    assert [p.stat().st_size for p in sorted(bench.folder.glob("00000000000000000000.*index"))] == [0, 12]


def prepared(directory: Path) -> CleaningBench:
    """Three sealed segments that become one, flushed, and a record in the active one."""
    bench = CleaningBench(directory, segment_bytes=2000)
    for at in (0, 3, 6):
        bench.put(*BEFORE[at : at + 3 if at < 6 else 10])
        bench.seal()
    bench.put("e1")
    return bench


def crash_at(directory: Path, n: int, *, power: bool) -> tuple[bool, CleaningBench]:
    """A round that is cut off at its ``n``-th effect, opened again; whether it got that far."""
    bench = prepared(directory)
    bench.files.fail = on_nth(n, "*", PowerCut)
    cut = False
    try:
        bench.clean()
    except PowerCut:
        cut = True
    bench.files.fail = None
    if power:
        bench.files.cut_power(random.Random(n))
    bench.kill()
    bench.files = FaultyFiles()
    bench.open()
    return cut, bench


@pytest.mark.parametrize("power", [False, True])
def test_case_77_a_crash_at_any_effect_leaves_the_original_or_the_cleaned_keys(tmp_path: Path, power: bool) -> None:
    outcomes: Counter[str] = Counter()
    n = 0
    cut = True
    while cut:
        n += 1
        directory = tmp_path / str(n)
        cut, bench = crash_at(directory, n, power=power)
        found = bench.pairs
        assert found in ([*BEFORE, "e1"], [*AFTER, "e1"]), n
        outcomes["cleaned" if len(found) == 5 else "original"] += 1
        assert not [name for name in bench.names("") if name.endswith((".cleaned", ".swap", DELETED_SUFFIX))], n
        assert bench.partition.append([NewRecord(b"2", b"e")]).offset == 11
        bench.put("f1")
        bench.seal()
        bench.clean()
        assert bench.newest == {"a": "4", "b": "3", "c": "-", "d": "1", "e": "2", "f": "1"}
        bench.log.close()
        shutil.rmtree(directory)
    assert outcomes["original"] > 5
    assert outcomes["cleaned"] > 5


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
