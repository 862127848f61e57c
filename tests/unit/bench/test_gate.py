"""Which ratios fail the gate of ``make bench``: the rule alone, nothing is measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.__main__ import FIGURES
from bench.cases import SHORT
from bench.gate import AT_MOST, KEPT, TARGETS, failures, last_ratios, merged
from bench.measure import Figure, compare


def figure(what: str, ratio: float | None) -> Figure:
    return Figure(what, "records/s", 1.0, "peer", None if ratio is None else 1.0, ratio)


@pytest.mark.parametrize(
    ("ratio", "before", "target", "said"),
    [
        (1.5, 2.0, None, []),
        (1.49, 2.0, None, ["row: 1.49x of peer, 2.00x when it was recorded"]),
        (0.31, 0.4, None, []),
        (0.29, 0.4, None, ["row: 0.29x of peer, 0.40x when it was recorded"]),
        (0.1, None, None, []),
        (1.0, None, 1.5, []),
        (0.99, None, 1.5, ["row: 0.99x of peer, where 1.50x is promised"]),
        (0.99, 1.0, 1.5, ["row: 0.99x of peer, where 1.50x is promised"]),
        (0.7, 0.7, 0.65, []),
        (0.5, 0.6, 0.65, []),
        (0.5, 2.0, 1.5, ["row: 0.50x of peer, 2.00x when it was recorded"]),
        (None, 2.0, 1.5, []),
    ],
)
def test_a_row_fails(ratio: float | None, before: float | None, target: float | None, said: list[str]) -> None:
    last = {} if before is None else {"row": before}
    targets = {} if target is None else {"row": target}
    assert failures([figure("row", ratio)], last, targets) == said


def test_a_row_counts_with_its_best_round() -> None:
    row = figure("row", 0.9)
    assert failures([replace(row, spread=(0.5, 1.1))], {"row": 1.4}, {"row": 1.5}) == []
    assert len(failures([replace(row, spread=(0.5, 0.99))], {}, {"row": 1.5})) == 1
    assert len(failures([replace(row, spread=(0.5, 1.04))], {"row": 1.4}, {"row": 1.5})) == 1


def test_each_row_is_told_in_their_order() -> None:
    rows = [figure("b", 0.5), figure("a", 0.5), figure("c", 1.0)]
    assert [each[0] for each in failures(rows, dict.fromkeys("abc", 1.0), {})] == ["b", "a"]


def test_rows_that_were_measured_take_the_place_of_theirs() -> None:
    recorded = {"figures": [{"what": "a", "ratio": 1.0}, {"what": "b", "ratio": None}]}
    found = merged(recorded, [{"what": "c", "ratio": 3.0}, {"what": "a", "ratio": 2.0}])
    assert found == [{"what": "a", "ratio": 2.0}, {"what": "b", "ratio": None}, {"what": "c", "ratio": 3.0}]
    assert last_ratios({"figures": found}) == {"a": 2.0, "c": 3.0}
    assert last_ratios({}) == {}


def test_two_rows_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows are called 'a'"):
        merged({}, [{"what": "a"}, {"what": "b"}, {"what": "a"}])


def test_ratios_are_those_of_the_rounds() -> None:
    times = iter([0.0, 9.0, 0.0, 9.0, 0.0, 2.0, 0.0, 4.0, 0.0, 1.0, 0.0, 4.0, 0.0, 4.0, 0.0, 2.0][4:])
    found = compare(
        "row", lambda: None, units=8, unit="x", peer="peer", theirs=lambda: None, rounds=3, clock=lambda: next(times)
    )
    assert (found.ours, found.theirs, found.ratio) == (8.0, 4.0, 2.0)
    assert (found.spread, found.median) == ((0.5, 4.0), 2.0)


def test_what_ci_measures_was_recorded_and_is_promised() -> None:
    recorded = last_ratios(json.loads(FIGURES.read_text()))
    cases = {case.__name__ for case in SHORT}
    names = {name for name in recorded if name.split()[0] in cases and "Arrow" not in name}  # another case's rows
    assert len(names) == 6
    assert names <= TARGETS.keys()
    assert all(recorded[name] * KEPT > 0 for name in names)


@pytest.mark.parametrize(("ours", "said"), [(2.0, []), (60.0, []), (61.0, ["row: 61.00 s, at most 60.00 is promised"])])
def test_a_row_with_a_limit_is_held_to_it_alone(ours: float, said: list[str]) -> None:
    held = Figure("row", "s", ours, AT_MOST, 60.0, 60.0 / ours)
    assert failures([held], {"row": 1000.0}, {}) == said
