"""Half a minute of ``make chaos``: processes behind a network that breaks requests, killed and stopped at random."""

from __future__ import annotations

import os
from pathlib import Path
from random import SystemRandom

import pytest

from tests.chaos.story import Story
from tests.integration.servers.commands import BUCKET, S3Server

SECONDS = 20.0
SEED = int(os.environ.get("TIERED_CHAOS_SEED", str(SystemRandom().randrange(2**32))))


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_processes_under_chaos_keep_every_promise(minio: S3Server, tmp_path: Path) -> None:
    print(f"TIERED_CHAOS_SEED={SEED}")
    report = Story(tmp_path / "run", minio.url, f"s3://{BUCKET}/chaos-{SEED}", store="minio", seed=SEED).run(SECONDS)
    print("\n".join(report.lines()))
    assert report.promises > 0
    assert report.seen > 0
    assert sum(report.events.values()) > 0
