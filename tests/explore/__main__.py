"""``python -m tests.explore [--faults N] [--bound STATES] [--scene NAME]``: ``make explore``.

One line a scene: its bound, what was looked at, how long it took. Ends with 1 after a violation, whose schedule it
prints, and with 2 if a scene was left unfinished at its bound.
"""

from __future__ import annotations

import argparse
import gc
import sys

from tests.explore.process import Halted
from tests.explore.scenes import SCENES
from tests.explore.search import Counts, Scene, Search
from tests.explore.truth import Violated

GARBAGE = 200_000
"""Objects between two runs of Python's collector: nearly nothing of a search is garbage."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Look at every interleaving of the protocol's requests in a bound.")
    parser.add_argument("--faults", type=int, help="faults in one run at most, crashes included")
    parser.add_argument("--bound", type=int, help="states after which a scene is left unfinished (none)")
    parser.add_argument("--scene", action="append", default=[], help="only this one")
    parser.add_argument("--list", action="store_true", help="show the scenes and run nothing")
    wanted = parser.parse_args(arguments)
    gc.set_threshold(GARBAGE, 50, 50)
    total, violated = Counts(), 0
    for each in SCENES:
        try:
            scene = each.make()
        except (Violated, Halted) as error:
            violated += 1
            print(f"{each.make.__name__}: VIOLATED before it begins: {error}", flush=True)
            continue
        if wanted.scene and scene.name not in wanted.scene:
            continue
        faults = each.faults if wanted.faults is None else wanted.faults
        if wanted.list:
            print(f"{scene.name:30} {faults} faults: {each.make.__doc__}")
            continue
        counts = searched(scene, faults, wanted.bound)
        if counts is None:
            violated += 1
            continue
        total.add(counts)
        print(line(scene, faults, counts), flush=True)
    if wanted.list:
        return 0
    print(f"in all: {total}; {violated} scenes violate an invariant")
    return 1 if violated else 0 if total.whole else 2


def searched(scene: Scene, faults: int, bound: int | None) -> Counts | None:
    """None after a violation, which is printed with the schedule that leads to it."""
    try:
        return Search(scene, faults, bound).run()
    except (Violated, Halted) as error:
        print(f"VIOLATED: {error}")
        print("\n".join(getattr(error, "__notes__", [])), flush=True)
        return None


def line(scene: Scene, faults: int, counts: Counts) -> str:
    who = ", ".join(scene.programs)
    left = "" if counts.whole else " UNFINISHED"
    return f"{scene.name} ({who}), at most {faults} faults: {counts}{left}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
