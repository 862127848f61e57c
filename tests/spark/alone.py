"""All verbs, one after the other, by the program alone: run by ``scripts/spark-alone`` where nothing else is installed.

Not a test module: it imports what ``tieredlog[spark]`` brings, and asserts by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tiered
from tiered.format.kernels import KERNELS_IN_USE

ABSENT = ("pandas", "pytest", "moto", "deltalake", "pyiceberg", "aiobotocore", "grpc", "prometheus_client")
KEYS, RECORDS = 10, 400


def filled(folder: Path) -> str:
    """A bucket with two topics, one of them compacted; its URL."""
    url = f"file://{folder / 'bucket'}"
    small = {"segment.bytes": "4096", "min.cleanable.dirty.ratio": "0", "min.compaction.lag.ms": "0"}
    with tiered.open(folder / "log", remote=url) as log:
        flights = log.topic("flights", partitions=1, create=True, config=small)
        users = log.topic("users", partitions=1, create=True, config={**small, "cleanup.policy": "compact"})
        for at in range(0, RECORDS, 20):
            numbers = range(at, at + 20)
            flights.append_many([(b"value-%06d" % number * 5, b"key-%d" % (number % KEYS)) for number in numbers])
            users.append_many([(b"user-%06d" % number, b"key-%d" % (number % KEYS)) for number in numbers])
        log.sync(timeout=60)
    return url


def ran(program: str, url: str, verb: str, *words: str, code: int = 0) -> dict[str, Any]:
    """Return what a verb that ends with ``code`` says of itself in JSON."""
    done = subprocess.run(
        [program, "spark", verb, *words, "--remote", url, "--master", "local[2]", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, (verb, done.returncode, done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"spark-alone: {verb}: {json.dumps(found)[:160]}", flush=True)
    return found


def values(url: str, topic: str) -> list[bytes | None]:
    """All of a topic."""
    with tiered.open_reader(url) as reader:
        return [record.value for record in reader.topic(topic).read()]


def main() -> int:
    """Raises AssertionError for whatever is not as it should be."""
    program, folder = sys.argv[1], Path(sys.argv[2])
    assert [name for name in ABSENT if find_spec(name) is not None] == []
    assert KERNELS_IN_USE.startswith("compiled"), KERNELS_IN_USE
    url = filled(folder)
    ran(program, url, "check")
    ran(program, url, "maintain", "users", "--only", "compact", "--yes")
    assert sorted(values(url, "users"))[-1] == b"user-%06d" % (RECORDS - 1)
    assert len(values(url, "users")) < RECORDS
    ran(program, url, "erase", "flights", "--key", "key-1", "--now", "--yes")
    left = values(url, "flights")
    assert len(left) == RECORDS - RECORDS // KEYS, len(left)
    ran(program, url, "maintain", "--yes")
    assert values(url, "flights") == left
    where = ("--to", f"{folder}/out", "--checkpoint", f"{folder}/checkpoint")
    exported = ran(program, url, "export", "flights", "--format", "parquet", *where)
    assert exported["rows"] == len(left), exported
    ran(program, url, "check")
    print("spark-alone: all verbs with tieredlog[spark] alone, kernels", KERNELS_IN_USE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
