"""``python -m tests.spark.restarts``: kills drivers and workers, then holds the log against what was read.

Held: each row exactly once, offsets without a gap, ``check`` without a finding, no more staged objects without a row
than the kills can have left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

from tests.spark.restarts.driver import CLASSES, ROWS, TASKS
from tests.spark.restarts.dying import POINTS, RUN, WORKER
from tests.spark.restarts.verdict import Verdict, judge
from tiered.remote.topics import register_topic
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive

REPOSITORY = Path(__file__).resolve().parents[3]
PARTITIONS = 3
ROWS_OF_A_FILE = 60
FILES_OF_A_RUN = 2
STILL_SECONDS = 300
"""A driver that has changed no file for so long is stuck: the program fails. A slow machine is not a hang."""
LOOK_SECONDS = 5
"""Between two looks at the files."""


class Restarts:
    """One stream, over all its restarts. The first run that ends by itself leaves its loaded classes to the others."""

    def __init__(self, base: Path, seed: int, rows: str = "rand") -> None:
        self._base = base
        self._kind = rows
        self._random = random.Random(seed)
        self._runs = self._files = 0
        self.died: Counter[str] = Counter()
        self.rows: list[str] = []
        (base / "input").mkdir()
        (base / "bucket").mkdir()
        self.store = DirectoryStore(base / "bucket")
        drive(self.store, register_topic("flights", UUID(int=7), PARTITIONS, {}))

    def run(self, point: str) -> bool:
        """More input, and a driver that is to die at ``point`` (an empty one: never). Whether something died."""
        for _ in range(FILES_OF_A_RUN):
            names = [f"{self._files}.{at}" for at in range(ROWS_OF_A_FILE)]
            hidden = self._base / f"file-{self._files}"
            hidden.write_text("\n".join(names) + "\n")
            hidden.rename(self._base / "input" / f"{self._files:06d}.txt")
            self.rows += names
            self._files += 1
        folder = self._base / f"run-{self._runs}"
        folder.mkdir()
        self._runs += 1
        turn = self._random.randint(1, 2)
        (folder / "order").write_text(json.dumps([point, turn]))
        classes = self._base / "classes.jsa"
        option = f"-XX:{'SharedArchiveFile' if classes.exists() else 'ArchiveClassesAtExit'}={classes}"
        environment = os.environ | {RUN: str(folder), "PYTHONPATH": str(REPOSITORY), CLASSES: option}
        with (folder / "output").open("wb") as output:
            command = [sys.executable, "-m", "tests.spark.restarts.driver", str(self._base), self._kind]
            with subprocess.Popen(command, env=environment, stdout=output, stderr=output) as driver:
                code = self._ended(driver, f"run {self._runs}: {point}")
        died = (folder / "died").exists()
        if died != (code != 0) and point != WORKER:
            tail = (folder / "output").read_text(errors="replace")[-3000:]
            raise SystemExit(f"run {self._runs}: {point}, died {died}, exit code {code}\n{tail}")
        self.died[point] += died
        return died

    def _ended(self, driver: subprocess.Popen[bytes], what: str) -> int:
        """The exit code of a driver, however long it takes, as long as files come or grow."""
        seen, since = self._files_there(), time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return driver.wait(LOOK_SECONDS)
            now = self._files_there()
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > STILL_SECONDS:
                driver.kill()
                raise SystemExit(f"{what}: no file has changed for {STILL_SECONDS} s; they stay with --keep")

    def _files_there(self) -> tuple[int, int]:
        """How many files there are, and how many bytes are in them."""
        sizes = []
        for file in self._base.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                sizes.append(file.stat().st_size)
        return len(sizes), sum(sizes)


def main() -> int:
    """Exit code 1 if anything is missing, twice or in the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=1, help="kills of the driver at each of the nine points")
    parser.add_argument("--workers", type=int, default=1, help="kills of a worker")
    parser.add_argument("--rows", choices=ROWS, default="rand", help="steady: each attempt gives the same")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--keep", help="a folder that does not exist yet: all files stay there")
    given = parser.parse_args()
    orders = [point for point in POINTS for _ in range(given.each)] + [WORKER] * given.workers
    random.Random(given.seed).shuffle(orders)
    print(f"{len(orders)} restarts, seed {given.seed}, rows {given.rows}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(given.keep or scratch) / "restarts"
        base.mkdir(parents=True)
        restarts = Restarts(base, given.seed, given.rows)
        restarts.run("")
        for number, point in enumerate(orders, 1):
            died = restarts.run(point)
            print(f"{number}/{len(orders)} {point}: {'died' if died else 'lived'}", flush=True)
        restarts.run("")
        verdict: Verdict = judge(restarts.store, restarts.rows)
    kills = sum(restarts.died.values())
    print(f"died: {dict(sorted(restarts.died.items()))}")
    print(verdict)
    return 0 if verdict.holds(kills * TASKS * PARTITIONS) else 1


if __name__ == "__main__":
    sys.exit(main())
