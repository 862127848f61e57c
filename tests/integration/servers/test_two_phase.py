"""Compaction in two phases on MinIO, by drivers that are killed for real, beside appends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiered
from tests.integration.servers.commands import BUCKET, S3Server
from tests.spark.conftest import REPOSITORY, SETTINGS, need_java
from tests.spark.jobs.building import records
from tiered.checking.check import CheckOptions
from tiered.checking.run import check
from tiered.store.location import open_store

REGION = "us-east-1"
URL = f"s3://{BUCKET}/two-phase"
KEYS, END = 30, 600

HOOK = """
import os, signal
os.environ.setdefault("TEST_DRIVER", str(os.getpid()))
import tiered.spark.jobs.two_phase as two_phase
two_phase.WAVE_PARTS = 3
if os.environ["TEST_DRIVER"] != str(os.getpid()):
    import tiered.spark.jobs.rounds as rounds
    import tiered.spark.jobs.shuffle as shuffle
    def killing(function):
        def call(*args):
            done = yield from function(*args)
            os.kill(int(os.environ["TEST_DRIVER"]), signal.SIGKILL)
            return done
        return call
    if os.environ["TEST_KILL"] == "scan":
        shuffle.scan = killing(rounds.scan)
    rewrite, calls = rounds.rewrite, []
    def rewrite_and_kill(store, task, bitmap):
        done = rewrite(store, task, bitmap)
        if os.environ["TEST_KILL"] == "rewrite" and task["part"] >= 3:
            os.kill(int(os.environ["TEST_DRIVER"]), signal.SIGKILL)
        return done
    two_phase.rewrite = rewrite_and_kill
"""


def compact(server: S3Server, folder: Path, kill: str) -> subprocess.CompletedProcess[str]:
    """A driver of its own, whose workers kill it after a part of the phase ``kill``."""
    (folder / "sitecustomize.py").write_text(HOOK)
    settings = [text for key, value in SETTINGS.items() for text in ("--conf", f"{key}={value}")]
    line = [
        sys.executable,
        "-m",
        "tiered.spark",
        "maintain",
        "latest",
        "--only",
        "compact",
        "--yes",
        "--master",
        "local[2,4]",
    ]
    line += ["--two-phase-above", "1", "--task-bytes", "3KiB", "--memory", "2KiB", "--json", *settings]
    line += ["--remote", URL, "--endpoint-url", server.url, "--region", REGION]
    line += ["--conf", f"spark.sql.warehouse.dir={folder}/warehouse"]
    path = os.pathsep.join([str(folder), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "TEST_KILL": kill}
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.spark
def test_killed_in_both_phases_it_ends_with_the_newest_of_each_key(minio: S3Server, tmp_path: Path) -> None:
    need_java()
    words = {"endpoint_url": minio.url, "region": REGION}
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": 2000}
    with tiered.open(tmp_path / "log", URL, **words) as log:
        topic = log.topic("latest", create=True, config=config)
        for at in range(0, END, 20):
            topic.append_many(records(at, 20, keys=KEYS))
        log.sync(timeout=60)
    store = open_store(URL, **words)
    for kill in ("scan", "rewrite"):
        killed = compact(minio, tmp_path, kill)
        assert killed.returncode == -9, (kill, killed.stderr)
    with tiered.open(tmp_path / "log", URL, **words) as log:
        log.topic("latest").append_many(records(END, 20, keys=KEYS))
        log.sync(timeout=60)
    done = compact(minio, tmp_path, "")
    assert done.returncode == 0, done.stderr
    with tiered.open_reader(URL, **words) as reader:
        found = [(record.key, record.offset) for record in reader.topic("latest").read()]
    newest = {records(at, 1, keys=KEYS)[0].key: at for at in range(END + 20)}
    assert dict(found) == newest
    assert len(found) == len(newest)
    assert check(None, store, CheckOptions(read_data=True)).findings == ()
    assert minio.credentials["AWS_SECRET_ACCESS_KEY"] not in done.stdout + done.stderr
