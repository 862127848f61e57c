"""The operations, and how the results are shown."""

from __future__ import annotations

from collections.abc import Sequence

from tests.crash.matrix.appends import APPENDS
from tests.crash.matrix.lifecycles import LIFECYCLES
from tests.crash.matrix.removals import REMOVALS
from tests.crash.matrix.runner import Result

OPERATIONS = (*APPENDS, *REMOVALS, *LIFECYCLES)

LINE = "{:<34} {:>6} {:>8} {:>6} {:>8} {:>7}  {}"


def print_header() -> None:
    """The names of the columns."""
    print(LINE.format("operation", "calls", "changing", "cases", "checked", "CPU s", "outcomes"))


def print_row(result: Result) -> None:
    """One operation: calls in all and those that change something, cases, distinct states that were opened."""
    outcomes = ", ".join(f"{name} {count}" for name, count in sorted(result.outcomes.items()))
    seconds = f"{result.seconds:.1f}"
    row = (result.name, result.calls, result.changing, result.cases, result.checked, seconds, outcomes)
    print(LINE.format(*row), flush=True)


def print_total(results: Sequence[Result]) -> None:
    """The sums."""
    sums = [sum(getattr(result, name) for result in results) for name in ("calls", "changing", "cases", "checked")]
    seconds = f"{sum(result.seconds for result in results):.1f}"
    failed = sum(len(result.failed) for result in results)
    print(LINE.format(f"{len(results)} operations", *sums, seconds, f"{failed} failed"))
