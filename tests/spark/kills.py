"""``python -m tests.spark.kills``: kills the driver of each Spark job, runs it again, and compares what it leaves.

Held: the second run ends well, the records are those of a run without a kill, and ``check`` finds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

import tiered
from tests.spark.conftest import REPOSITORY, SETTINGS
from tests.spark.jobs.building import bucket, log, records
from tests.support.admin import check
from tiered.check.check import CheckOptions
from tiered.store.location import open_store

PARTITIONS = 3
RECORDS = 9000
"""Number of records of each partition."""
RETAINED = {"retention.bytes": 150_000, "merge.min.bytes": 8000, "segment.bytes": 4000}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": 4000}
COMPACT = "maintain latest --only compact --yes"
JOBS = {
    "maintain": "maintain flights --yes",
    "compact": COMPACT,
    "two-phase": f"{COMPACT} --two-phase-above 1 --task-bytes 64KiB --memory 64KiB",
    "check": "check",
    "erase": "erase flights --key key-3 --key key-7 --now --yes",
    "export": "export flights --format parquet --to {folder}/out --checkpoint {folder}/done --batch-bytes 64KiB",
}
FIRST, LAST = 0.4, 0.97
"""Parts of a whole run between which a kill falls; before, the session starts."""


def make_template(folder: Path) -> None:
    folder.mkdir()
    with log(folder, {"flights": RETAINED, "latest": COMPACTED}, PARTITIONS) as opened:
        for start in range(0, RECORDS, 50):
            for partition in range(PARTITIONS):
                opened.topic("flights").append_many(records(start, 50, keys=37), partition=partition)
                opened.topic("latest").append_many(records(start, 50, keys=400), partition=partition)


def start(folder: Path, job: str) -> subprocess.Popen[bytes]:
    """Start the job in a process group of its own; JVM and workers belong to it."""
    settings = [text for key, value in SETTINGS.items() for text in ("--conf", f"{key}={value}")]
    words = JOBS[job].format(folder=f"file://{folder}").split()
    line = [sys.executable, "-m", "tiered.spark", *words, "--remote", bucket(folder), "--master", "local[2,4]"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TIERED_")}
    environment = {**clean, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [*line, *settings], stdout=output, stderr=output, env=environment, start_new_session=True
        )


def exported(folder: Path) -> list[tuple[object, ...]]:
    """Return the exported rows, of the files that Spark's own log names."""
    names: set[str] = set()
    for line in (text for path in (folder / "out" / "_spark_metadata").glob("[0-9]*") for text in path.open()):
        if line.startswith("{"):
            names.add(json.loads(line)["path"].rpartition("/")[2])
    columns = ["partition", "offset", "key", "value"]
    rows = [row for name in names for row in pq.read_table(folder / "out" / name, columns=columns).to_pylist()]
    return sorted(tuple(row.values()) for row in rows)


def left_by(folder: Path, job: str) -> list[tuple[object, ...]]:
    """Return each exported row, or each record of both topics."""
    if job == "export":
        return exported(folder)
    with tiered.open_reader(bucket(folder)) as reader:
        return sorted(
            (name, record.partition, record.offset, record.key, record.value, record.timestamp)
            for name in ("flights", "latest")
            for record in reader.topic(name).read()
        )


def kill_each(base: Path, job: str, each: int, chance: random.Random) -> int:
    """Kill the job ``each`` times, every time on a new copy of the template. Return the number of wrong ends."""
    whole = Path(shutil.copytree(base / "template", base / f"{job}-whole"))
    began = time.monotonic()
    if start(whole, job).wait():
        raise SystemExit(f"{job} failed without a kill:\n{(whole / 'output').read_text()[-3000:]}")
    seconds, wanted = time.monotonic() - began, left_by(whole, job)
    print(f"{job}: a whole run takes {seconds:.1f} s and leaves {len(wanted)} records", flush=True)
    kills = wrong = copies = 0
    while kills < each:
        copies += 1
        folder = Path(shutil.copytree(base / "template", base / f"{job}-{copies}"))
        driver, at = start(folder, job), chance.uniform(FIRST, LAST) * seconds
        try:
            driver.wait(at)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            kills += 1
        else:
            print(f"  ended before the kill after {at:.1f} s", flush=True)
            continue
        driver.wait()
        code = start(folder, job).wait()
        findings = check(None, open_store(bucket(folder)), CheckOptions(read_data=True)).findings
        is_right = code == 0 and left_by(folder, job) == wanted and findings == ()
        wrong += not is_right
        print(f"  killed after {at:.1f} s, then exit code {code}: {'equal' if is_right else findings or 'WRONG'}")
    return wrong


def main() -> int:
    """Run the program; the exit code is 1 if a job ended wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=1, help="kills of each job")
    parser.add_argument("--only", choices=JOBS, help="one job")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tiered-kills-") as name:
        base, chance = Path(name), random.Random(given.seed)
        make_template(base / "template")
        wrong = sum(kill_each(base, job, given.each, chance) for job in ([given.only] if given.only else JOBS))
    print(f"{wrong} jobs ended wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
