"""SIGKILL of the writer and of the daemon at random moments: nothing acknowledged is lost, nothing is there twice.

``TIERED_CRASH_ROUNDS`` (default 6) and ``TIERED_CRASH_SEED`` (printed) replay a run. The parent never sleeps: it kills
after a random number of acknowledgements, while the children are at work.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tiered

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = int(os.environ.get("TIERED_CRASH_ROUNDS", "6"))
SEED = int(os.environ.get("TIERED_CRASH_SEED", str(random.SystemRandom().randrange(2**32))))
ENVIRONMENT = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONWARNINGS="default")
MAX_ACKS_PER_ROUND = 40

Acks = dict[tuple[int, int], str]


def start_writer(log_dir: Path, remote: str, run: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.tiered_writer", str(log_dir), remote, f"r{run}"],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        cwd=ROOT,
    )


def start_daemon(log_dir: Path, remote: str, errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("ab") as sink:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "uploader",
                "run",
                "--log-dir",
                str(log_dir),
                "--remote",
                remote,
                "--http",
                "off",
                "--scan-ms",
                "50",
            ],
            stdout=sink,
            stderr=sink,
            env=ENVIRONMENT,
            cwd=ROOT,
        )


def take_acks(writer: subprocess.Popen[str], count: int, acks: Acks) -> None:
    assert writer.stdout is not None
    for _ in range(count):
        line = writer.stdout.readline()
        assert line, f"the writer ended with {writer.wait()}"
        keep(line, acks)


def keep(line: str, acks: Acks) -> None:
    if not line.endswith("\n"):
        return  # the kill cut the line: the call may not have returned
    partition, offset, end, *names = line.split()
    assert len(names) == int(end) - int(offset)
    for at, name in enumerate(names):
        place = (int(partition), int(offset) + at)
        assert place not in acks, f"{name} and {acks[place]} were both acknowledged at {place}"
        acks[place] = name


def kill(child: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait()


def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, check=False
    )


@pytest.mark.crash
@pytest.mark.timeout(1200)
def test_kill_writer_and_daemon_at_random_moments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nTIERED_CRASH_SEED={SEED} TIERED_CRASH_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    log_dir, remote, errors = tmp_path / "log", f"file://{tmp_path / 'store'}", tmp_path / "daemon.log"
    acks: Acks = {}
    daemon: subprocess.Popen[bytes] | None = None
    writer: subprocess.Popen[str] | None = None
    try:
        for run in range(ROUNDS):
            writer = start_writer(log_dir, remote, run)
            take_acks(writer, 1, acks)
            if daemon is None:
                daemon = start_daemon(log_dir, remote, errors)
            take_acks(writer, chance.randrange(1, MAX_ACKS_PER_ROUND), acks)
            if chance.random() < 0.6:
                assert daemon.poll() is None, errors.read_text()
                kill(daemon)
                daemon = None
                take_acks(writer, chance.randrange(1, MAX_ACKS_PER_ROUND), acks)
            kill(writer)
            assert writer.stdout is not None
            for line in writer.stdout:
                keep(line, acks)
            writer.stdout.close()
    finally:
        for child in (daemon, writer):
            if child is not None and child.poll() is None:
                kill(child)
    settle(tmp_path, log_dir, remote)
    compare(tmp_path, log_dir, remote, acks)


def settle(tmp_path: Path, log_dir: Path, remote: str) -> None:
    where = ("--log-dir", str(log_dir), "--remote", remote)
    synced = tool("uploader", "sync", "--wait", *where)
    assert synced.returncode == 0, synced.stderr
    checked = tool("tiered", *where, "--json", "check", "--orphans")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    findings = [json.loads(line) for line in checked.stdout.splitlines()]
    assert not [f for f in findings if f.get("severity") in {"warning", "error"}]
    restored = tool("tiered", "--log-dir", str(tmp_path / "restored"), "--remote", remote, "restore")
    assert restored.returncode == 0, restored.stderr
    again = tool("tiered", "--log-dir", str(tmp_path / "restored"), "--remote", remote, "check")
    assert again.returncode == 0, again.stdout + again.stderr


def compare(tmp_path: Path, log_dir: Path, remote: str, acks: Acks) -> None:
    seen: dict[str, tuple[int, int]] = {}
    with tiered.open_reader(remote) as reader:
        for record in reader.topic("t").read():
            assert record.value is not None
            name, place = record.value.rstrip(b".").decode(), (record.partition, record.offset)
            assert name not in seen, f"{name} is at {seen[name]} and at {place}"
            seen[name] = place
    missing = {place: name for place, name in acks.items() if seen.get(name) != place}
    assert not missing
    originals = {path.relative_to(log_dir): path for path in log_dir.glob("t-*/*.log")}
    restored = {path.relative_to(tmp_path / "restored"): path for path in (tmp_path / "restored").glob("t-*/*.log")}
    compared = 0
    for name, path in restored.items():
        data = path.read_bytes()
        if data:
            assert originals[name].read_bytes() == data, name
            compared += 1
    assert compared == sum(path.stat().st_size > 0 for path in originals.values())
