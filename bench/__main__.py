"""``make bench``: runs every figure, prints the table, writes ``build/bench/figures.json`` and ``ratios.png``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.cases import CASES, SHORT
from bench.gate import TARGETS, failures, last_ratios, merged
from bench.measure import Figure
from bench.picture import draw

FIGURES = Path(__file__).parent / "figures.json"
"""What was recorded last; each row is replaced by the run that records it."""

BUILD = Path("build/bench")


def main() -> int:
    """Runs the cases; 0 when all ran and no row fails the gate that was asked for, else 1. A case that fails is told,
    and the rows of the others count.
    """
    args = _parser().parse_args()
    console = Console(stderr=True)
    figures: list[Figure] = []
    failed: list[str] = []
    for case in track(
        SHORT if args.short else CASES, description="measuring", console=console, disable=not console.is_terminal
    ):
        if args.only and args.only not in case.__name__:
            continue
        try:
            figures += case(args.rounds)
        except Exception as error:  # noqa: BLE001 - an hour of other rows is not lost with it
            console.print_exception()
            failed.append(f"{case.__name__}: {type(error).__name__}: {error}")
    Console(width=140).print(_table(figures, args.rounds))
    recorded = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    # A load far above that of one process: the machine was busy, and wall times mean little.
    taken = {"rounds": args.rounds, "day": date.today().isoformat(), "load": round(os.getloadavg()[0], 1)}
    rows = [{**each.as_json(), "target": TARGETS.get(each.what), **taken} for each in figures]
    content: dict[str, object] = {"machine": _machine(), "figures": rows}
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "figures.json").write_text(json.dumps(content, indent=2) + "\n")
    draw(BUILD / "ratios.png", figures, TARGETS)
    if args.record:
        content = {**content, "figures": merged(recorded, rows)}
        FIGURES.write_text(json.dumps(content, indent=2) + "\n")
    failed += failures(figures, last_ratios(recorded)) if args.gate else []
    for sentence in failed:
        console.print(f"[red]failed[/] {sentence}", highlight=False, soft_wrap=True)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="part of a case's name")
    parser.add_argument("--short", action="store_true", help="the few rows that CI looks at")
    parser.add_argument("--gate", action="store_true", help="fail for a row far below its last recorded ratio")
    parser.add_argument("--record", action="store_true", help="write the rows into bench/figures.json")
    return parser


def _machine() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
    }


def _table(figures: list[Figure], rounds: int) -> Table:
    table = Table(title=f"CPU time (wall where it says so), best of {rounds} interleaved rounds", title_justify="left")
    right = {"tieredlog", "peer's", "ratio", "min, median, max", "target"}
    for column in ("what", "unit", "tieredlog", "peer", "peer's", "ratio", "min, median, max", "target"):
        table.add_column(column, justify="right" if column in right else "left")
    for f in figures:
        theirs = "" if f.theirs is None else shown(f.theirs)
        spread = "" if f.spread is None or f.median is None else f"{f.spread[0]:.2f} {f.median:.2f} {f.spread[1]:.2f}"
        ratio = "" if f.ratio is None else f"{f.ratio:.2f}x"
        target = f"{TARGETS[f.what]:.2f}x" if f.what in TARGETS else ""
        table.add_row(f.what, f.unit, shown(f.ours), f.peer, theirs, ratio, spread, target)
    return table


def shown(value: float) -> str:
    """Whole numbers; small ones with two digits behind the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


if __name__ == "__main__":
    sys.exit(main())
