"""Reads go on while segments are renamed and removed under them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles
from tests.unit.local.bench import Bench
from tiered.errors import NotFoundError, OffsetOutOfRangeError


class GoingAway(FaultyFiles):
    """The ``.log`` whose turn it is cannot be found when it is opened: it was renamed just now."""

    turn = -1

    def open_read(self, path: Path) -> int:
        if ".log" in path.name:
            self.turn -= 1
            if self.turn == 0:
                raise NotFoundError(f"cannot open {path}: No such file or directory")
        return super().open_read(path)


def opened(path: Path) -> tuple[Bench, GoingAway]:
    """Three segments whose indexes nobody has asked for yet."""
    bench = Bench(path)
    for value in (b"a", b"b", b"c"):
        bench.append(value, timestamp=1000)
        bench.partition.roll()
    bench.log.close()
    files = bench.files = GoingAway()
    bench.open()
    bench.partition.positions()  # it is loaded when it is first named
    return bench, files


@pytest.mark.parametrize("turn", [1, 2, 3, 4, 5])
def test_a_log_that_is_renamed_before_it_is_opened_is_looked_for_again(tmp_path: Path, turn: int) -> None:
    bench, files = opened(tmp_path / "log")
    files.turn = turn
    assert bench.values() == [b"a", b"b", b"c"]
    bench, files = opened(tmp_path / "another")
    files.turn = turn
    assert bench.partition.offset_for_time(1000) == (0, 1000)


def test_a_log_that_stays_away_is_said(tmp_path: Path) -> None:
    bench, _ = opened(tmp_path / "log")
    (tmp_path / "log" / "t-0" / f"{1:020}.log").unlink()
    reading = bench.partition.read_batches(0)
    assert next(reading) is not None
    with pytest.raises(OffsetOutOfRangeError, match="offset 1 is outside 2 to 3"):
        list(reading)
