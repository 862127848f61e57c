"""``python -m tests.chaos [--minutes 10] [--store minio] [--seed N] [--folder DIR]``: one run against one server."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.chaos.runner import run_chaos
from tests.chaos.story import Story
from tests.integration.servers.commands import BUCKET, S3Server


def play(folder: Path, server: S3Server, seed: int, seconds: float) -> list[str]:
    story = Story(folder, server.url, f"s3://{BUCKET}/chaos-{seed}", store=server.name, seed=seed, say=_say)
    return story.run(seconds).lines()


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(run_chaos("python -m tests.chaos", play))
