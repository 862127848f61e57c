"""SIGKILL at random moments: what was acknowledged is there, nothing is there twice, offsets have no gap."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.appender import TP
from tiered.config import LogConfig
from tiered.format.batch import decode_records
from tiered.format.kernels import Record
from tiered.local.directory.log_directory import LocalLog

ROUNDS = int(os.environ.get("TIERED_CRASH_ROUNDS", "8"))
SEED = int(os.environ.get("TIERED_CRASH_SEED", str(random.SystemRandom().randrange(2**32))))
ROOT = Path(__file__).resolve().parents[2]


def run_and_kill(directory: Path, first_id: int, dice: random.Random) -> list[list[str]]:
    """Lets the appender run until it has said a random number of lines, then kills it; returns what it had said."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.crash.appender", str(directory), str(first_id), str(dice.randrange(2**32))]
    said: list[list[str]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True) as child:
        assert child.stdout is not None
        lines = dice.randrange(20, 400)
        spin = dice.randrange(20_000)
        for line in child.stdout:
            said.append(line.split())
            if len(said) >= lines:
                break
        for _ in range(spin):  # moves the kill to some instruction between two lines, without a clock
            pass
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
    complete = rest[: rest.rfind("\n") + 1]
    said += [line.split() for line in complete.splitlines()]
    return said


def read_all(directory: Path) -> tuple[int, list[Record]]:
    """End offset and every record of the log after its recovery."""
    with LocalLog.open(directory, config=LogConfig(disk_reserve_bytes=0)) as log:
        partition = log.partition(TP)
        records = [record for batch in partition.read_batches(0) for record in decode_records(batch)]
        return partition.positions().end_offset, records


@pytest.mark.crash
@pytest.mark.real_disk
def test_nothing_acknowledged_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    print(f"TIERED_CRASH_SEED={SEED}")
    dice = random.Random(SEED)
    calls: dict[int, tuple[int, int]] = {}
    safe = 0
    first_id = 0
    for _ in range(ROUNDS):
        for word, *rest in run_and_kill(tmp_path / "log", first_id, dice):
            numbers = [int(text) for text in rest]
            if word == "open":
                assert numbers[0] >= safe
            elif word == "safe":
                safe = max(safe, numbers[0])
            else:
                calls[numbers[0]] = (numbers[1], numbers[2])
        end, records = read_all(tmp_path / "log")
        assert end >= safe
        assert [record.offset for record in records] == list(range(end))
        seen: dict[int, list[int]] = {}
        for record in records:
            assert record.value is not None
            call_id, index, _ = record.value.split(b":")
            seen.setdefault(int(call_id), []).append(record.offset)
            assert len(seen[int(call_id)]) == int(index) + 1
        for call, (start, call_end) in calls.items():
            if call_end <= safe or call in seen:
                assert seen[call] == list(range(start, call_end))
        first_id = max(seen, default=first_id) + 1_000_000
        calls = {call: place for call, place in calls.items() if call in seen}


def test_a_second_process_is_refused_and_told_who_holds_the_log(tmp_path: Path) -> None:
    code = (
        "import sys; from tiered.local.directory.log_directory import LocalLog; from tiered.errors import LockedError\n"
        "try: LocalLog.open(sys.argv[1])\n"
        "except LockedError as error: print(error)\n"
    )
    with LocalLog.open(tmp_path / "log"):
        answer = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "log")],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert f"process {os.getpid()} on " in answer.stdout
    assert "read-only" in answer.stdout


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    dice = random.Random(7)
    run_and_kill(tmp_path / "log", 0, dice)
    LocalLog.open(tmp_path / "log", config=LogConfig(disk_reserve_bytes=0)).close()


def test_a_fork_cannot_touch_its_parents_log(tmp_path: Path) -> None:
    code = (
        "import os, sys; from tiered.local.directory.log_directory import LocalLog; from tiered.model import *\n"
        "from tiered.errors import ForkedLogError\n"
        "log = LocalLog.open(sys.argv[1]); log.create_topic('t')\n"
        "p = log.partition(TopicPartition('t', 0)); p.append([NewRecord(b'parent')])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    refused = 0\n"
        "    for call in (lambda: p.append([NewRecord(b'child')]), p.flush, p.positions, log.tick):\n"
        "        try: call()\n"
        "        except ForkedLogError: refused += 1\n"
        "    log.close()\n"
        "    os._exit(refused)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "p.append([NewRecord(b'parent again')])\n"
        "print(status, p.positions().end_offset)\n"
        "log.close()\n"
    )
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "log")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == ["4", "2"]
