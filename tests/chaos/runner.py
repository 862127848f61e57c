"""Frame of a run of chaos: a server, a folder that stays after a breach, and a seed that is printed."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom

from tests.chaos.cast import Violation
from tests.integration.servers.commands import S3_SERVERS, S3Server


def run_chaos(prog: str, play: Callable[[Path, S3Server, int, float], list[str]]) -> int:
    """Play against a server. Return 0 if every promise was kept, 1 if not.

    ``play`` gets a folder, the server, the seed and the seconds of chaos. It returns the lines of its report.
    """
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--store", choices=S3_SERVERS, default="minio")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None, help="made and kept; a temporary one without")
    given = parser.parse_args()
    seed = SystemRandom().randrange(2**32) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="tiered-chaos-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the clean-up
    print(f"SEED={seed}, in {folder}", flush=True)
    server = S3Server.start(given.store, folder / "server")
    try:
        os.environ.update(server.credentials)
        report = play(folder / "run", server, seed, given.minutes * 60)
    except Violation as broken:
        print(f"\nviolated with SEED={seed}; see {folder}\n{broken}", flush=True)
        return 1
    finally:
        server.stop()
    print("\n".join(["", *report]))
    return 0
