"""Only in a worker of Spark's is anything taken out of collections."""

from __future__ import annotations

import subprocess
import sys

import pytest


def in_a_worker(code: str) -> str:
    """What a Python prints that takes itself for a worker of tasks."""
    begun = "import gc, sys; from importlib.util import spec_from_loader as spec; "
    begun += "sys.modules['__main__'].__spec__ = spec('pyspark.daemon', None); "
    return subprocess.run(
        [sys.executable, "-c", begun + code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("module", ["sink", "source"])
def test_a_worker_keeps_its_modules_once_it_has_loaded_them(module: str) -> None:
    told = in_a_worker(
        f"import tiered.spark.{module}; print('tiered.spark.source' in sys.modules, gc.get_freeze_count())"
    )
    loaded, count = told.split()
    assert loaded == str(module == "source")
    assert int(count) > 10_000


def test_the_second_task_of_a_worker_keeps_what_the_first_one_has_loaded() -> None:
    counts = in_a_worker(
        "from tiered.spark.worker import start_task; kept = [[] for _ in range(1000)]\n"
        "for _ in range(4): start_task(); print(gc.get_freeze_count() >= 1000); gc.unfreeze()"
    )
    assert counts.split() == ["False", "True", "False", "False"]
