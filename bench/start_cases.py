"""What starting costs: CPU of whole processes beside an interpreter that does nothing; and one look into an index."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tiered
from bench.measure import Figure, compare
from tiered.format.segment_indexes import OffsetIndex

LOOKUPS = 100_000
ENTRIES = 100_000
STARTS = 5
"""Processes of one measuring."""


def start(rounds: int) -> list[Figure]:
    """``import tiered``, the help, ``cat`` of one record: 60, 150 and 200 ms of CPU are the limits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        with tiered.open(path) as log:
            log.topic("t", partitions=1, create=True).append(b"x", key=b"k")
        commands = {
            "start: import tiered (60 ms)": ("-c", "import tiered"),
            "start: tiered --help (150 ms)": ("-m", "tiered", "--help"),
            "start: tiered cat of one record (200 ms)": ("-m", "tiered", "cat", "t", "--log-dir", str(path)),
        }
        return [
            compare(
                what,
                lambda arguments=arguments: _run(*arguments),  # type: ignore[misc]  # bound now
                units=STARTS,
                unit="starts/s",
                peer="python -c pass",
                theirs=lambda: _run("-c", "pass"),
                rounds=rounds,
                clock=_children_seconds,
            )
            for what, arguments in commands.items()
        ]


def _run(*arguments: str) -> None:
    for _ in range(STARTS):
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def index_lookup(rounds: int) -> list[Figure]:
    """Where to scan from, by offset, in a full index: a million a second is the limit."""
    index = OffsetIndex(0)
    for number in range(ENTRIES):
        index.append(146 * number, 16_384 * number)
    wanted = [(at * 7_919) % (146 * ENTRIES) for at in range(LOOKUPS)]

    def ours() -> None:
        lookup = index.lookup
        for offset in wanted:
            lookup(offset)

    return [compare("offset index lookup", ours, units=LOOKUPS, unit="lookups/s", rounds=rounds)]
