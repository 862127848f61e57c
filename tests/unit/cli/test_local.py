"""``tiered local``, ``tiered truncate`` and ``tiered topics delete``."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.conftest import Cli
from tiered.clock import SystemClock, SystemIds
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.uploads import PartitionUpload
from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("t", 0)


def made(path: Path) -> Path:
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()) as log:
        log.create_topic("t", 2)
        for i in range(5):
            log.partition(TP).append([NewRecord(b"%d" % i)])
    return path


def test_tasks_are_listed_and_run(cli: Cli, tmp_path: Path) -> None:
    log_dir = str(made(tmp_path / "log"))
    done = cli("local", "run", "retention", "--log-dir", log_dir, "--json")
    assert (done.code, done.summary["name"], done.summary["runs"], done.summary["last_error"]) == (
        0,
        "retention",
        1,
        "",
    )
    listed = cli("local", "tasks", "--log-dir", log_dir, "--json").summary["tasks"]
    assert {task["name"]: task["runs"] for task in listed}["retention"] == 1
    assert "recovery-point-checkpoint" in cli("local", "tasks", "--log-dir", log_dir).text
    assert cli("local", "run", "retentoin", "--log-dir", log_dir).code == 2
    assert cli("local", "tasks", "--log-dir", str(tmp_path / "none")).code == 10


def test_a_running_writer_is_not_disturbed(cli: Cli, tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()):
        for words in (
            ("local", "run", "retention"),
            ("truncate", "t:0", "1", "--yes"),
            ("topics", "delete", "t", "--yes"),
            ("local", "move", "t:0", str(tmp_path / "other"), "--yes"),
        ):
            assert cli(*words, "--log-dir", str(path)).code == 11


def test_a_partition_moves_after_a_yes(cli: Cli, tmp_path: Path) -> None:
    path, target = made(tmp_path / "a"), tmp_path / "b"
    words = ("local", "move", "t:0", str(target), "--log-dir", str(path))
    assert cli(*words).code == 2
    assert (path / "t-0").is_dir()
    assert cli(*words, "--dry-run").code == 0
    assert not target.exists()
    done = cli(*words, "--yes", "--json")
    assert (done.code, done.summary["end_offset"]) == (0, 5)
    assert (target / "t-0").is_dir()
    assert not (path / "t-0").exists()


def test_a_log_is_cut(cli: Cli, tmp_path: Path) -> None:
    words = ("truncate", "t:0", "3", "--log-dir", str(made(tmp_path / "log")), "--json")
    assert cli(*words, "--dry-run").summary["end_offset"] == 3
    done = cli(*words, "--yes")
    assert (done.code, done.summary["end_offset_before"], done.summary["end_offset"]) == (0, 5, 3)
    assert cli("truncate", "t:0", "9", *words[3:], "--yes").code == 2
    assert cli("truncate", "t", "1", *words[3:], "--yes").code == 2


def test_a_topic_is_deleted(cli: Cli, tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    words = ("topics", "delete", "t", "--log-dir", str(path))
    assert cli(*words, "--dry-run").code == 0
    assert (path / "t-0").is_dir()
    assert cli(*words).code == 2
    assert cli("topics", "delete", "u", "--log-dir", str(path), "--yes").code == 10
    done = cli(*words, "--yes", "--json")
    assert (done.code, done.summary["partitions"]) == (0, 2)
    assert sorted(entry.name.rpartition("-")[2] for entry in path.iterdir() if entry.is_dir()) == ["delete", "delete"]


def test_a_tiered_topic_is_deleted_only_here(cli: Cli, tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()) as log:
        log.uploads.update({TP: PartitionUpload(0, 1)})
    words = ("topics", "delete", "t", "--log-dir", str(path), "--yes")
    assert cli(*words).code == 2
    assert cli(*words, "--local-only").code == 0
