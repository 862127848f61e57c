"""``make bench``: runs every figure, prints the table, writes ``bench/figures.json``."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.cases import CASES
from bench.measure import Figure

FIGURES = Path(__file__).parent / "figures.json"


def main() -> int:
    """Runs the cases; 0 when all ran."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="part of a case's name")
    args = parser.parse_args()
    console = Console(stderr=True)
    figures: list[Figure] = []
    for case in track(CASES, description="measuring", console=console, disable=not console.is_terminal):
        if args.only and args.only not in case.__name__:
            continue
        figures += case(args.rounds)
    table = Table(
        title=f"CPU time (wall where it says so), best of {args.rounds} interleaved rounds", title_justify="left"
    )
    for column in ("what", "unit", "tieredlog", "peer", "peer's", "ratio"):
        table.add_column(column, justify="right" if column in {"tieredlog", "peer's", "ratio"} else "left")
    for f in figures:
        theirs = "" if f.theirs is None else shown(f.theirs)
        table.add_row(f.what, f.unit, shown(f.ours), f.peer, theirs, "" if f.ratio is None else f"{f.ratio:.2f}x")
    Console(width=120).print(table)
    if not args.only:
        machine = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
        content = {"machine": machine, "rounds": args.rounds, "figures": [f.as_json() for f in figures]}
        FIGURES.write_text(json.dumps(content, indent=2) + "\n")
    return 0


def shown(value: float) -> str:
    """Whole numbers; small ones with two digits behind the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


if __name__ == "__main__":
    sys.exit(main())
