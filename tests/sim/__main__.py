"""``make sim SEEDS=a-b``: seeds of the worlds on two processes, each that fails with the command that replays it.

``python -m tests.sim 0-199`` runs the world of the bucket; ``--world`` another one; ``--trace`` prints all that
happened in one seed. Ends with 1 if an invariant did not hold.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.sim.bucket.world import World as BucketWorld
from tests.sim.groups.world import World as GroupsWorld
from tests.sim.tiers.world import World as TiersWorld

TIERS_STEPS = 60
OLDER_DISKS = 1.0
"""In each fourth seed of both tiers machines often get older copies of their disks back."""
AT_A_TIME = 8
"""Seeds of one piece of work."""
GARBAGE = 100_000
"""Objects between two looks for cycles: of a world next to nothing is garbage before its end."""
SHOWN = (
    "acknowledged", "commits", "crashes", "claims", "append", "replace", "merge", "compact", "compact in parts",
    "groups of parts", "reencode", "trim", "collect", "deleted", "orphans", "unstaged", "batches",
    "erasures", "snapshots", "read", "read as of", "destroyed", "superseded", "tombstones", "checked",
    "handed out", "takes", "again", "judged dead", "idle",
)  # fmt: skip


@dataclass
class Found:
    """What some seeds came to; ``failed`` by seed, with what went before."""

    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)


def run(world: str, seed: int, folder: Path, *, trace: bool = False) -> tuple[Counter[str], list[str]]:
    """One seed. Raises what it meets."""
    if world == "bucket":
        bucket = BucketWorld(seed, trace=trace)
        return bucket.run().counts, bucket.history
    if world == "groups":
        groups = GroupsWorld(seed, trace=trace)
        return groups.run().counts, groups.history
    place = folder / str(seed)
    place.mkdir()
    try:
        kinds = {"damage": seed % 4 == 3, "begun": seed % 5 != 4, "deletes": seed % 3 == 2}
        older_disks = OLDER_DISKS if seed % 4 == 1 else 0.06
        tiers = TiersWorld(seed, place, older_disks=older_disks, **kinds).run(TIERS_STEPS)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return tiers.counts, tiers.history


def run_some(world: str, seeds: range) -> Found:
    """Some seeds, on this process."""
    found = Found()
    gc.collect()  # else what is frozen keeps the garbage of the seeds before
    gc.freeze()
    gc.set_threshold(GARBAGE)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="tiered-sim-", dir=memory if memory.is_dir() else None) as name:
        for seed in seeds:
            try:
                found.counts.update(run(world, seed, Path(name))[0])
            except Exception as error:  # noqa: BLE001 - whatever it is, the seed is told
                notes = "\n".join(getattr(error, "__notes__", []))
                found.failed[seed] = f"{type(error).__name__}: {error}\n{notes}"
            found.seeds += 1
    return found


def seeds_of(text: str) -> range:
    """``17``, or ``0-199`` with both ends."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def pieces(seeds: range) -> Iterator[range]:
    """What is done at a time."""
    for at in range(seeds.start, seeds.stop, AT_A_TIME):
        yield range(at, min(at + AT_A_TIME, seeds.stop))


def replay(world: str, seed: int) -> int:
    """One seed with all that happened in it."""
    history: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tiered-sim-") as name:
        try:
            counts, history = run(world, seed, Path(name), trace=True)
        except Exception as error:  # noqa: BLE001 - it is what one wants to see
            print("\n".join(getattr(error, "__notes__", [])))
            print(f"{type(error).__name__}: {error}")
            return 1
    print("\n".join(history))
    print(told(counts))
    return 0


def told(counts: Counter[str]) -> str:
    """The totals in one line."""
    return ", ".join(f"{counts[what]:,} {what}" for what in SHOWN if counts[what])


def main(arguments: list[str]) -> int:
    """Prints progress, failures, totals."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Run seeds of the simulation.")
    parser.add_argument("seeds", type=seeds_of, help="one seed, or first-last")
    parser.add_argument("--world", default="bucket", choices=("bucket", "tiers", "groups"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first", action="store_true", help="end with the first seed that fails")
    parser.add_argument("--trace", action="store_true", help="print all that happens in one seed")
    wanted = parser.parse_args(arguments)
    if wanted.trace:
        return replay(wanted.world, wanted.seeds.start)
    if wanted.first:
        failed = next((seed for seed in wanted.seeds if run_some(wanted.world, range(seed, seed + 1)).failed), None)
        print("none failed" if failed is None else f"seed {failed} failed")
        return failed is not None
    total = Found()
    began = said = time.perf_counter()
    with ProcessPoolExecutor(wanted.workers) as pool:
        for found in pool.map(run_some, *zip(*((wanted.world, piece) for piece in pieces(wanted.seeds)), strict=True)):
            total.seeds += found.seeds
            total.counts.update(found.counts)
            total.failed |= found.failed
            for seed, why in found.failed.items():
                print(
                    f"seed {seed} failed, replay: make sim SEEDS={seed} WORLD={wanted.world} TRACE=1\n{why}", flush=True
                )
            if time.perf_counter() - said > 10:
                said = time.perf_counter()
                print(f"{total.seeds} of {len(wanted.seeds)} seeds, {len(total.failed)} failed", flush=True)
    print(f"{wanted.world}: {total.seeds} seeds, {len(total.failed)} failed, {time.perf_counter() - began:.0f} s")
    print(told(total.counts))
    if total.failed:
        print("failed:", ", ".join(map(str, sorted(total.failed))))
    return bool(total.failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
