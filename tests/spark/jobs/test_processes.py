"""Verbs as processes: killed for real, and without pandas anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tiered
from tests.spark.conftest import REPOSITORY, SETTINGS
from tests.spark.jobs.building import bucket, log, records
from tests.support.admin import check
from tiered.check.check import CheckOptions
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
    import tiered.spark.jobs.maintain as maintain
    work = maintain._maintained
    def maintained_and_kill(store, each, task, capabilities):
        done = work(store, each, task, capabilities)
        os.kill(int(os.environ["TIERED_TEST_DRIVER"]), signal.SIGKILL)
        return done
    maintain._maintained = maintained_and_kill
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


def spark_job(
    folder: Path, startup: str, *arguments: str, master: str = "local[2,4]"
) -> subprocess.CompletedProcess[str]:
    settings = [text for key, value in SETTINGS.items() for text in ("--conf", f"{key}={value}")]
    line = [sys.executable, "-m", "tiered.spark", *arguments, "--remote", bucket(folder), "--master", master]
    done = [*line, *settings, "--conf", f"spark.sql.warehouse.dir={folder}/warehouse"]
    return subprocess.run(done, capture_output=True, text=True, check=False, env=environment(folder, startup))


def test_a_driver_that_is_killed_and_started_again_does_what_is_left(place: Path) -> None:
    compact = ("maintain", "latest", "--only", "compact", "--yes", "--json")
    killed = spark_job(place, KILL, *compact)
    assert killed.returncode == -9, killed.stderr
    done = spark_job(place, "", *compact)
    assert done.returncode == 0, done.stderr
    with tiered.open_reader(bucket(place)) as reader:
        found = [record.key for record in reader.topic("latest").read()]
    assert len(found) == len(set(found)) == 10
    assert check(None, open_store(bucket(place)), CheckOptions(read_data=True)).findings == ()


def test_a_master_that_spark_does_not_know(place: Path) -> None:
    refused = spark_job(place, "", "check", master="loacl[2]")
    assert refused.returncode == 2, refused.stderr
    assert "error: Spark did not start with master loacl[2]: " in refused.stderr


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
    ["check"],
    ["erase", "flights", "--key", "key-3", "--yes", "--now"],
    ["maintain", "latest", "--only", "compact", "--yes", "--two-phase-above", "1", "--task-bytes", "3KiB"],
    ["maintain", "--yes"],
    ["export", "flights", "--format", "parquet", "--to", folder + "/out", "--checkpoint", folder + "/checkpoint"],
]
missing = set(jobs.commands) - {{line[0] for line in LINES}}
codes = [run_command(jobs, PROGRAM, [*line, "--remote", remote]) for line in LINES]
spark.stop()
print(codes, sorted(missing), "pandas" in sys.modules)
"""


def test_every_verb_runs_without_pandas(place: Path) -> None:
    script = place / "all.py"
    script.write_text(ALL)
    line = [sys.executable, str(script), bucket(place), str(place)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment(place, NO_PANDAS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{[0] * ALL.count('    [')} [] False", done.stderr
