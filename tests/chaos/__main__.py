"""``python -m tests.chaos [--minutes 10] [--store minio] [--seed N] [--folder DIR]``: one run against one server."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from tests.chaos.cast import Violation
from tests.chaos.story import Story
from tests.integration.servers.commands import BUCKET, S3_SERVERS, S3Server


def main() -> int:
    """0 if every promise was kept, 1 if not; what the processes said stays in the folder then."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
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
        story = Story(folder / "run", server.url, f"s3://{BUCKET}/chaos-{seed}", store=given.store, seed=seed, say=_say)
        report = story.run(given.minutes * 60)
    except Violation as broken:
        print(f"\nviolated with SEED={seed}; see {folder}\n{broken}", flush=True)
        return 1
    finally:
        server.stop()
    print("\n".join(["", *report.lines()]))
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
