"""Prints, as a Markdown table, Kafka's acceptance cases and the tests that carry their numbers (``test_case_NN_...``).

A case without a test is listed as such, with the reason where there is one: the table says what is, not what was meant.
A test's own docstring says where our behaviour differs from the case on purpose.

With ``--run`` the numbered tests are run, and the table says of each case whether all of its tests pass; the exit code
is 1 unless every case has a test, or a reason why it has none, and every test passes.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NUMBERED = re.compile(r"test_case_(\d+)_")

CASES = {
    1: "read of an empty segment",
    2: "read before the first batch",
    3: "read between batches",
    4: "read without a position to read up to",
    5: "empty segment truncated; segment truncated to nothing",
    6: "time index and largest timestamp after truncation",
    7: "next offset of a segment",
    8: "renaming makes no index files",
    9: "time index full of junk",
    10: "junk from inside a batch on",
    11: "leader epochs learned from batches",
    12: "relative offset overflow of a segment",
    13: "offset index lookups",
    14: "offset index upper bound",
    15: "time index lookups and truncation",
    16: "time index never goes back",
    17: "aborted transactions of a range",
    18: "transaction index truncated",
    19: "transaction index absent",
    20: "roll by the wall clock without timestamps",
    21: "empty set never rolls",
    22: "roll by record time with jitter",
    23: "too large for a segment, for a message",
    24: "index entries of a follower's appends",
    25: "read over gaps",
    26: "read of zero or one byte",
    27: "read up to the high watermark",
    28: "roll at an existing base",
    29: "roll below the active base",
    30: "a hundred rolls",
    31: "closed indexes; indexes after truncation",
    32: "compacted topic wants keys",
    33: "decreasing offsets refused",
    34: "lookups by time with epochs",
    35: "names of renamed directories",
    36: "long topic names when deleted",
    37: "fully expired log",
    38: "timestamps from the future",
    39: "only acknowledged segments expire; epochs follow",
    40: "delete records",
    41: "epochs after the start moved",
    42: "epochs after truncation",
    43: "snapshots and retention",
    44: "deletion delay and its failures",
    45: "local retention of a tiered log",
    46: "local retention without remote copies",
    47: "several directories; lock",
    48: "duplicates and the window of five",
    49: "sequence wrap",
    50: "follower accepts duplicates",
    51: "marker bumps the epoch",
    52: "coordinator fencing",
    53: "interleaved transactions: index and stable offset",
    54: "log start inside an open transaction",
    55: "invalid transaction states",
    56: "transaction index write fails",
    57: "snapshots truncated and reloaded",
    58: "damaged snapshots",
    59: "timestamp limits, LogAppendTime",
    60: "level and codec on append",
    61: "unclean recovery leaves equal indexes",
    62: "all indexes lost, orphans",
    63: "offset gap beyond an index entry",
    64: "overflowed segment split, crash-safe",
    65: "log start above the end",
    66: "empty active segment without index",
    67: "index missing below the recovery point",
    68: "compaction keeps producers' last batches",
    69: "compaction and aborted data",
    70: "markers and delete horizons",
    71: "marker in a later segment",
    72: "user key like a marker",
    73: "unkeyed records of a compacted topic",
    74: "grouping limits",
    75: "preallocation and compaction",
    76: "message larger than buffers; damage",
    77: "crash around .cleaned, .swap, .deleted",
    78: "choice of the log to clean",
    79: "compaction beside retention",
    80: "highest remote offset by lineage",
    81: "epochs filtered",
    82: "segment within the lineage",
    83: "log start from remote segments",
    84: "remote retention",
    85: "custom metadata limit",
    86: "copy quota",
    87: "remote index cache",
}

ONE_CHAIN = "claims allow one chain of leader epochs in a bucket: every row of a root is the log's, nobody has to ask"
NO_FETCH = "there is no broker: nobody fetches raw bytes"
NO_FOLLOWER = "there is no follower: each offset is given here, and the high watermark is the end"
NO_BASE = "nobody chooses the base of a segment: it begins at the end of the log"
NO_PREALLOCATION = "a log file is never preallocated"
REASONS: dict[int, str] = {
    **dict.fromkeys((80, 81, 82, 83), ONE_CHAIN),
    **dict.fromkeys((4, 26), NO_FETCH),
    **dict.fromkeys((27, 33, 50), NO_FOLLOWER),
    **dict.fromkeys((28, 29), NO_BASE),
    75: NO_PREALLOCATION,
}
"""Why a case has no test."""


def tests() -> Iterator[tuple[int, str]]:
    """(number, ``path::name``) of every numbered test function."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (found := NUMBERED.match(node.name)):
                yield int(found[1]), f"{path.relative_to(ROOT / 'tests')}::{node.name}"


def table() -> list[str]:
    """The lines of the table, and a sum."""
    by_number: dict[int, list[str]] = {}
    for number, name in tests():
        by_number.setdefault(number, []).append(name)
    lines = ["| case | about | tests |", "|---|---|---|"]
    for number, about in CASES.items():
        carried = "<br>".join(f"`{name}`" for name in by_number.get(number, []))
        reason = f"none: {REASONS[number]}" if number in REASONS else "none"
        lines.append(f"| {number} | {about} | {carried or reason} |")
    done = sum(number in by_number for number in CASES)
    lines += ["", f"{done} of {len(CASES)} cases have at least one test."]
    unknown = sorted(set(by_number) - set(CASES))
    if unknown:
        lines.append(f"Tests with a number that is no case: {', '.join(map(str, unknown))}.")
    return lines


class Outcomes:
    """A pytest plugin: how the numbered tests ended. A test passes if none of its phases fails."""

    def __init__(self) -> None:
        self.by_number: dict[int, Counter[str]] = defaultdict(Counter)
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = NUMBERED.match(report.nodeid.rpartition("::")[2])
        if found is None or (report.when != "call" and report.passed):
            return
        self.by_number[int(found[1])][report.outcome] += 1
        if report.failed:
            self.failed.append(report.nodeid)


def results(outcomes: Outcomes) -> list[str]:
    """The lines of the table of a run, and a sum."""
    lines = ["| case | about | tests | result |", "|---|---|---|---|"]
    passing = 0
    for number, about in CASES.items():
        counts = outcomes.by_number[number]
        good = counts["passed"] > 0 and counts["failed"] == 0
        passing += good
        absent = f"none: {REASONS[number]}" if number in REASONS else "**not tested**"
        result = "passes" if good else f"**{counts['failed']} fail**" if counts["failed"] else absent
        lines.append(f"| {number} | {about} | {counts.total()} | {result} |")
    total = sum(counts.total() for counts in outcomes.by_number.values())
    lines += ["", f"{passing} of {len(CASES)} cases pass, in {total} tests."]
    return lines + [f"failed: `{name}`" for name in outcomes.failed]


def run() -> int:
    """Runs the numbered tests, prints the table, returns the exit code."""
    outcomes = Outcomes()
    files = sorted({str(ROOT / "tests" / name.partition("::")[0]) for _, name in tests()})
    options = ["-q", "--no-header", "--no-summary", "-k", "test_case_", "-p", "no:randomly", "-p", "no:cacheprovider"]
    pytest.main([*options, *files], plugins=[outcomes])
    lines = results(outcomes)
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
    return int(any("**" in line for line in lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kafka's acceptance cases and their tests.")
    parser.add_argument("--run", action="store_true", help="run the tests and say which cases pass")
    if parser.parse_args().run:
        sys.exit(run())
    sys.stdout.write("\n".join(table()) + "\n")
