"""Jobs as processes: killed for real, and without pandas anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import REPOSITORY, SETTINGS
from tests.spark.jobs.building import bucket, log, records
from tiered.spark.jobs.receipts import JobFolder
from tiered.store.location import open_store

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

NO_PANDAS = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "pandas" or name.startswith("pandas."):
            raise ImportError("pandas is not there")
sys.meta_path.insert(0, Refuse())
"""

KILL = """
import os, signal
os.environ.setdefault("TIERED_TEST_DRIVER", str(os.getpid()))
if os.environ["TIERED_TEST_DRIVER"] != str(os.getpid()):
    import tiered.spark.jobs.receipts as receipts
    keep = receipts.JobFolder.keep_receipt
    def keep_and_kill(self, phase, number, receipt):
        kept = keep(self, phase, number, receipt)
        if number == 2:
            os.kill(int(os.environ["TIERED_TEST_DRIVER"]), signal.SIGKILL)
        return kept
    receipts.JobFolder.keep_receipt = keep_and_kill
"""


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Path:
    del spark  # without Java nothing of this runs
    with log(
        tmp_path, {"flights": {}, "latest": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
    ) as it:
        for at in range(0, 200, 20):
            it.topic("flights").append_many(records(at, 20))
            it.topic("latest").append_many(records(at, 20))
    return tmp_path


def environment(folder: Path, startup: str) -> dict[str, str]:
    """Of a driver whose Python, and its workers', begin with ``startup``."""
    hooks = folder / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "sitecustomize.py").write_text(startup)
    path = os.pathsep.join([str(hooks), str(REPOSITORY)])
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIERED_")}
    return {**clean, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}


def spark_job(folder: Path, startup: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = [text for key, value in SETTINGS.items() for text in ("--conf", f"{key}={value}")]
    line = [sys.executable, "-m", "tiered.spark", *arguments, "--remote", bucket(folder), "--master", "local[2,4]"]
    done = [*line, *settings, "--conf", f"spark.sql.warehouse.dir={folder}/warehouse"]
    return subprocess.run(done, capture_output=True, text=True, check=False, env=environment(folder, startup))


def test_a_driver_that_is_killed_goes_on(place: Path) -> None:
    common = ("scrub", "flights", "--task-bytes", "1KiB", "--json")
    killed = spark_job(place, KILL, *common, "--job", "mine")
    assert killed.returncode == -9, killed.stderr
    folder = JobFolder(open_store(bucket(place)), "mine")
    plan = folder.plan()
    assert plan is not None
    assert 0 < len(folder.done("tasks")) < len(plan.tasks)
    assert folder.receipt() is None
    done = spark_job(place, "", *common, "--job", "mine")
    assert done.returncode == 0, done.stderr


ALL = f"""
import sys
from pyspark.sql import SparkSession
from tiered.program.command_line import run_command
from tiered.spark.commands import PROGRAM, jobs
remote, folder = sys.argv[1:]
builder = SparkSession.builder.master("local[2]")
for key, value in {SETTINGS!r}.items():
    builder = builder.config(key, value)
spark = builder.config("spark.sql.warehouse.dir", folder + "/warehouse").getOrCreate()
LINES = [
    ["scrub"],
    ["retention"],
    ["erase", "flights", "--key", "key-3", "--yes", "--now"],
    ["compact"],
    ["merge"],
    ["reencode", "--codec", "zstd"],
]
missing = set(jobs.commands) - {{line[0] for line in LINES}}
codes = [run_command(jobs, PROGRAM, [*line, "--remote", remote]) for line in LINES]
spark.stop()
print(codes, sorted(missing), "pandas" in sys.modules)
"""


def test_every_job_runs_without_pandas(place: Path) -> None:
    script = place / "all.py"
    script.write_text(ALL)
    line = [sys.executable, str(script), bucket(place), str(place)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment(place, NO_PANDAS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{[0] * ALL.count('    [')} [] False", done.stderr
