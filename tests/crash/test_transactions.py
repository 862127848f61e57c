"""SIGKILL in the middle of transactions: each is in all of its partitions or in none, and what was said is true."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tiered
from tests.crash.transactor import PARTITIONS
from tiered.config import LogConfig

ROUNDS = int(os.environ.get("TIERED_CRASH_ROUNDS", "8"))
SEED = int(os.environ.get("TIERED_CRASH_SEED", str(random.SystemRandom().randrange(2**32))))
ROOT = Path(__file__).resolve().parents[2]


def run_and_kill(directory: Path, first: int, dice: random.Random) -> list[tuple[str, int]]:
    """Lets transactions run, then kills at some instruction; what was said until then."""
    command = [sys.executable, "-m", "tests.crash.transactor", str(directory), str(first), str(dice.randrange(2**32))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said: list[tuple[str, int]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True) as child:
        assert child.stdout is not None
        lines, spin = dice.randrange(1, 60), dice.randrange(60_000)
        for line in child.stdout:
            said.append((line.split()[0], int(line.split()[1])))
            if len(said) >= lines:
                break
        for _ in range(spin):  # moves the kill to some instruction, without a clock
            pass
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
    complete = rest[: rest.rfind("\n") + 1]
    return said + [(line.split()[0], int(line.split()[1])) for line in complete.splitlines()]


@pytest.mark.crash
def test_a_transaction_is_wholly_visible_or_wholly_aborted_after_a_kill(tmp_path: Path) -> None:
    print(f"TIERED_CRASH_SEED={SEED}")
    dice = random.Random(SEED)
    directory = tmp_path / "log"
    committed: set[int] = set()
    aborted: set[int] = set()
    doubtful: set[int] = set()
    number = 0
    for _ in range(ROUNDS):
        said = run_and_kill(directory, number, dice)
        for what, which in said:
            {"begin": doubtful, "commit": committed, "abort": aborted}[what].add(which)
        doubtful -= committed | aborted
        number = max((which for _, which in said), default=number) + 1
        with tiered.open(directory, config=LogConfig(disk_reserve_bytes=0)) as log:
            if "orders" not in log.topics():
                continue
            orders = log.topic("orders")
            seen = []
            for partition in range(PARTITIONS):
                values = [
                    r.value for r in orders.read(partition, isolation="read_committed") if r.value != b"bystander"
                ]
                numbers = [int(value or b"") for value in values]
                assert len(set(numbers)) == len(numbers), "a transaction is there twice"
                seen.append(set(numbers))
                assert orders.log(partition).open_txns() == []
            assert seen[0] == seen[1] == seen[2]
            assert committed <= seen[0] <= committed | doubtful
    assert len(committed) > ROUNDS
