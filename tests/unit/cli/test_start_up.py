"""What a command imports is what it costs before it does anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tiered

MODULES_OF_CAT = 320
"""At most. Today 305, of which 78 are ours."""

NOT_OF_A_DISK = (
    "numpy",
    "pyarrow",
    "boto3",
    "botocore",
    "aiobotocore",
    "asyncio",
    "ssl",
    "rich",
    "tiered.log",
    "tiered.topic",
    "tiered.transaction",
    "tiered.appending",
    "tiered.check",
    "tiered.erase",
    "tiered.repair",
    "tiered.restore",
    "tiered.engine",
    "tiered.remote",
    "tiered.plan.commit",
    "tiered.format.root",
    "tiered.format.rows",
    "tiered.local.cleaning",
    "tiered.local.recovery",
    "tiered.local.transactions",
    "tiered.local.partition.write_log",
    "tiered.local.segment.active",
    "tiered.store.s3",
    "tiered.store.location",
)
"""The bucket's side, the writer's side, and what they bring."""

SHOW = """
import sys
from tiered.cli.main import main
try:
    main()
finally:
    print(*sorted(sys.modules), sep="\\n", file=sys.stderr)
"""


def modules_of(*line: object) -> tuple[str, list[str]]:
    """What the command printed, and the names of the modules that were loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *map(str, line)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.split()


def imported(loaded: list[str], *names: str) -> list[str]:
    """Which of ``names`` are there, as a module or a package."""
    return [name for name in names if any(each == name or each.startswith(f"{name}.") for each in loaded)]


def test_a_read_of_a_disk_imports_neither_the_bucket_nor_the_writer(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", partitions=1, create=True).append(b"value", key=b"key")

    out, loaded = modules_of("cat", "t", "--log-dir", tmp_path / "log")
    assert out == "value\n"
    assert imported(loaded, *NOT_OF_A_DISK) == []
    assert len(loaded) <= MODULES_OF_CAT


def test_a_read_of_a_bucket_imports_no_writer(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", f"file://{tmp_path}/store") as log:
        log.topic("t", partitions=1, create=True).append(b"value", key=b"key")
        log.sync(timeout=60)

    out, loaded = modules_of("cat", "t", "--remote", f"file://{tmp_path}/store")
    assert out == "value\n"
    for name in (
        "tiered.log",
        "tiered.topic",
        "tiered.engine",
        "tiered.check",
        "tiered.repair",
        "tiered.restore",
        "tiered.local.partition.write_log",
        "boto3",
    ):
        assert not any(each == name or each.startswith(f"{name}.") for each in loaded), name
