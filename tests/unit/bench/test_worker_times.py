"""What a bench counts of Spark's workers that have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bench

DAEMON = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as Spark's daemon does
worker = os.fork()
if worker == 0:
    while time.process_time() < 0.3:
        pass
    os._exit(0)
try:
    while True:
        os.kill(worker, 0)
except ProcessLookupError:  # it has ended, and nobody can wait for it any more
    print(os.times().children_user + os.times().children_system)
"""


def counted(folder: str) -> float:
    env = os.environ | {"PYTHONPATH": folder}
    return float(
        subprocess.run([sys.executable, "-c", DAEMON], env=env, capture_output=True, check=True, text=True).stdout
    )


def test_a_daemon_has_the_times_of_its_workers() -> None:
    assert counted(str(Path(bench.__file__).with_name("worker_times"))) >= 0.25
    assert counted("") == 0.0  # what is mended
