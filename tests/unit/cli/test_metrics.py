"""``tiered status -v``, ``tiered metrics`` and ``tiered status`` tell what the background work met."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.unit.cli.building import made
from tests.unit.cli.conftest import Cli
from tiered.clock import SystemClock, SystemIds
from tiered.local.directory.figures import read_report, store_report
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles


def test_metrics_beside_a_writer_and_without_one(cli: Cli, tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    log_dir = str(path)
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()):
        found = cli("metrics", "--log-dir", log_dir, "--json").summary["metrics"]
    ends = {m["labels"]["partition"]: m["value"] for m in found if m["name"] == "tiered_end_offset"}
    assert ends == {"0": 5, "1": 0}
    assert {m["name"] for m in found} >= {"tiered_disk_free_bytes", "tiered_cleaner_max_dirty_ratio"}
    text = cli("metrics", "--log-dir", log_dir).text
    assert 'tiered_end_offset{topic="t",partition="0"} 5' in text
    assert f'tiered_task_runs_total{{log_dir="{log_dir}",task="retention"}} 0' in text
    assert cli("metrics", "--log-dir", str(tmp_path / "none")).code == 10


def test_what_failed_is_a_problem_until_it_goes_well(cli: Cli, tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    words = ("--log-dir", str(path))
    assert cli("status", *words).code == 0
    report = read_report(path, PosixFiles())
    flush = replace(report.tasks[0], last_error="cannot sync x: EIO", failures=1)
    bad = replace(report, tasks=[flush], uncleanable={"t-0": "CRC"}, offline="cannot sync x: EIO")
    store_report(path, PosixFiles(), bad)
    problems = [
        "the directory went offline: cannot sync x: EIO",
        f"task {flush.name} failed: cannot sync x: EIO",
        "t-0 is not cleaned until the next open: CRC",
    ]
    status = cli("status", *words, "--json")
    assert (status.code, status.summary["problems"]) == (3, problems)
    assert [task["last_error"] for task in status.summary["log_dir"]["tasks"]] == ["cannot sync x: EIO"]
    assert flush.name in cli("status", "-v", *words).text
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()) as log:
        log.tick()
    assert cli("status", *words).code == 0
