"""The disk of the matrix: which names a power cut may take, and that an fsync which is missing is found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.matrix import runner
from tests.crash.matrix.disk import Cut, Disk
from tests.crash.matrix.runner import Case, Matrix
from tests.crash.matrix.table import OPERATIONS
from tests.crash.matrix.trace import Effect, TraceFiles

ROOT = Path("/disk")


def after(*effects: Effect) -> Disk:
    disk = Disk(ROOT)
    for effect in effects:
        disk.apply(effect)
    return disk


def names(disk: Disk) -> list[list[str]]:
    """The files of each state that a loss leaves, in the order of the losses."""
    dice = random.Random(0)
    return [sorted(map(str, disk.state(Cut("suffix", dice, loss)))) for loss in disk.losses()]


def test_any_end_of_the_changes_to_one_directory_is_lost_in_order() -> None:
    disk = after(
        Effect("open", ROOT / "a", 0),
        Effect("sync_directory", ROOT),
        Effect("rename", ROOT / "a", target=ROOT / "b"),
        Effect("open", ROOT / "c", 1),
        Effect("unlink", ROOT / "b"),
    )
    assert names(disk) == [["a"], ["b"], ["b", "c"]]


@pytest.mark.parametrize("name", ["truncation, sealed segment", "roll by request", "create topic"])
def test_a_product_that_never_fsyncs_a_directory_is_caught(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_suffixes(cases: list[Case], _: object) -> list[Case]:
        return [case for case in cases if case.variant == "power suffix"][-10:]

    monkeypatch.setattr(TraceFiles, "sync_directory", lambda self, path: None)
    monkeypatch.setattr(runner, "sampled", only_suffixes)
    (operation,) = [each for each in OPERATIONS if each.name == name]
    assert Matrix(operation, tmp_path).run().failed != []
