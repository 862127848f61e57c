"""A sample of the sweep of failed requests; ``make sweep`` runs more of it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import ModuleType

import pytest

from tests.sweeps.requests.faults import FAULTS
from tests.sweeps.requests.repairs import DAMAGED, RepairCase, play_repair, repair_cases
from tests.sweeps.requests.story import SCENARIOS, Broken, Case, cases, play, sample
from tiered.engine.tiering import Tiering
from tiered.local.disk.claims import Claims
from tiered.read.topic import PartitionStream
from tiered.repair import segments, versions
from tiered.store.base import Delete, Steps

SEED = int(os.environ.get("TIERED_SWEEP_SEED") or random.SystemRandom().randrange(2**32))
SAMPLE = 40


def test_a_sample_of_the_failed_requests_heals(tmp_path: Path) -> None:
    print(f"TIERED_SWEEP_SEED={SEED}")
    for case in sample(cases(tmp_path / "count"), SAMPLE, SEED):
        play(case, tmp_path / "case")


def test_a_sample_of_the_failed_requests_of_repairs_heals(tmp_path: Path) -> None:
    print(f"TIERED_SWEEP_SEED={SEED}")
    every = repair_cases(tmp_path / "count")
    assert len(every) >= 3_000
    assert {case.remedy for case in every} == DAMAGED.keys()
    for case in random.Random(SEED).sample(every, SAMPLE):
        play_repair(case, tmp_path / "case")


@pytest.mark.parametrize(("remedy", "home"), [("loss", segments), ("log", versions)])
def test_a_repair_that_keeps_no_copy_is_caught(
    remedy: str, home: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collection takes what it replaced, in the end."""

    def keeps_nothing(key: str, to: str) -> Steps[bool]:
        del to
        yield Delete((key,))
        return True

    monkeypatch.setattr(home, "keep_copy", keeps_nothing)
    with pytest.raises(Broken):
        play_repair(RepairCase(remedy, 0, "500", 1), tmp_path / "case")


@pytest.mark.parametrize("fault", ["404", "truncated", "wrong bytes"])
def test_an_index_that_one_answer_calls_gone_or_damaged_is_not_lost(tmp_path: Path, fault: str) -> None:
    """A log that ends before the upload of that index would have lost its newest records."""
    for first in range(12, 18):
        play_repair(RepairCase("root", first, fault, 1), tmp_path / "case")


def test_a_copy_that_is_said_to_be_gone_is_no_copy(tmp_path: Path) -> None:
    """One false 404 for what is to be replaced: nothing would keep what it held."""
    for first in range(12, 24):
        play_repair(RepairCase("log", first, "404", 1), tmp_path / "case")


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_fault_at_each_commit_of_a_sync_heals(fault: str, tmp_path: Path) -> None:
    """The requests around a root's PUT are those on which everything hangs: none of them is left to chance."""
    for first in range(9, 13):
        play(Case("inline", first, fault, 1), tmp_path / "case")


def test_the_sweep_is_as_large_as_it_says(tmp_path: Path) -> None:
    every = cases(tmp_path / "count")
    assert len(every) >= 1_300
    assert {case.scenario for case in every} == {scenario.name for scenario in SCENARIOS}


def test_a_sync_that_acknowledges_without_a_commit_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tiering, "sync", lambda self, ends, timeout_s: {})
    with pytest.raises(Broken):
        play(Case("inline", 5, "500", 1), tmp_path / "case")


def test_a_reader_that_ends_early_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    correct = PartitionStream.records
    monkeypatch.setattr(PartitionStream, "records", lambda self, wanted: iter(list(correct(self, wanted))[:-1]))
    with pytest.raises(Broken):
        play(Case("inline", 5, "500", 1), tmp_path / "case")


def test_a_volume_that_drops_its_claim_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof is not kept: after a lost answer, or a restart, the rightful owner is fenced."""
    monkeypatch.setattr(Claims, "keep", lambda self, tp, token, last_append: None)
    with pytest.raises(Broken):
        play(Case("restarts", 5, "500", 1), tmp_path / "case")
