"""``tiered disk compact``."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.conftest import Cli
from tiered.clock import SystemClock, SystemIds
from tiered.config import TopicConfig
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("t", 0)


def made(path: Path) -> str:
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()) as log:
        log.create_topic("plain", 1)
        log.create_topic("t", 1, TopicConfig(cleanup_policy="compact"))
        for i in range(6):
            log.partition(TP).append([NewRecord(b"%d" % i, b"k%d" % (i % 2))])
        log.partition(TP).roll()
    return str(path)


def test_the_plan_changes_nothing(cli: Cli, tmp_path: Path) -> None:
    log_dir = made(tmp_path / "log")
    before = {path: path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file()}
    planned = cli("disk", "compact", "--dry-run", "--log-dir", log_dir, "--json")
    assert planned.code == 0
    [partition] = planned.summary["partitions"]
    assert (partition["topic"], partition["first_dirty_offset"], partition["first_uncleanable_offset"]) == ("t", 0, 6)
    assert (partition["dirty_ratio"], partition["groups"], partition["refused"]) == (1.0, [[0]], "")
    assert "100%" in cli("disk", "compact", "--dry-run", "--log-dir", log_dir).text
    assert {path: path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file()} == before


def test_it_cleans_after_a_yes(cli: Cli, tmp_path: Path) -> None:
    log_dir = made(tmp_path / "log")
    assert cli("disk", "compact", "--log-dir", log_dir).code == 2
    done = cli("disk", "compact", "t:0", "--log-dir", log_dir, "--yes", "--json")
    [partition] = done.summary["partitions"]
    assert (done.code, partition["records_read"], partition["records_kept"]) == (0, 6, 2)
    assert partition["cleaned_end_offset"] == 6
    with LogView.open(tmp_path / "log") as log:
        assert len(list(log.partition(TP).read_batches(0))) == 2
    again = cli("disk", "compact", "--log-dir", log_dir, "--yes")
    assert (again.code, "there is nothing to compact" in again.err) == (0, True)


def test_why_not(cli: Cli, tmp_path: Path) -> None:
    log_dir = made(tmp_path / "log")
    refused = cli("disk", "compact", "plain", "--log-dir", log_dir, "--yes")
    assert (refused.code, "plain is not compacted: its cleanup.policy is delete" in refused.err) == (2, True)
    assert "next: `tiered topic set plain cleanup.policy=compact`" in refused.err
    assert cli("disk", "compact", "none", "--log-dir", log_dir).code == 10
    assert cli("disk", "compact", "--log-dir", str(tmp_path / "none")).code == 10
    with LocalLog.open(tmp_path / "log", clock=SystemClock(), ids=SystemIds()):
        assert cli("disk", "compact", "--dry-run", "--log-dir", log_dir).code == 0  # beside the writer, without a lock
        assert cli("disk", "compact", "--yes", "--log-dir", log_dir).code == 11
