"""``tiered disk`` and ``tiered topic delete``."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.unit.cli.building import TP, made
from tests.unit.cli.conftest import Cli
from tiered.clock import SystemClock, SystemIds
from tiered.engine.disk import LogDirectory
from tiered.errors import DiskFullError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import NewRecord


def test_a_running_writer_is_not_disturbed(cli: Cli, tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()):
        for words in (
            ("disk", "truncate", "t:0", "1", "--yes"),
            ("topic", "delete", "t", "--yes"),
            ("disk", "move", "t:0", str(tmp_path / "other"), "--yes"),
        ):
            assert cli(*words, "--log-dir", str(path)).code == 11


def test_a_partition_moves_after_a_yes(cli: Cli, tmp_path: Path) -> None:
    path, target = made(tmp_path / "a"), tmp_path / "b"
    words = ("disk", "move", "t:0", str(target), "--log-dir", str(path))
    assert cli(*words).code == 2
    assert (path / "t-0").is_dir()
    assert cli(*words, "--dry-run").code == 0
    assert not target.exists()
    done = cli(*words, "--yes", "--json")
    assert (done.code, done.summary["end_offset"]) == (0, 5)
    assert (target / "t-0").is_dir()
    assert not (path / "t-0").exists()


def test_a_batch_is_cut_whole(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()) as log:
        log.create_topic("t", 1)
        for _ in range(3):
            log.partition(TP).append([NewRecord(b"a"), NewRecord(b"b"), NewRecord(b"c")])
    words = ("disk", "truncate", "t:0", "7", "--log-dir", str(path))
    dry = cli(*words, "--dry-run")
    assert (dry.code, dry.text) == (0, "dry run: t-0 would end at offset 6\n")
    assert "7 lies in the batch that begins at 6, which is removed whole" in dry.err
    done = cli(*words, "--yes", "--json").summary
    assert (done["end_offset_before"], done["end_offset"], done["removed_offsets"]) == (9, 6, 3)
    with LogView.open(path) as log:
        assert log.partition(TP).positions().end_offset == 6
    again = cli("disk", "truncate", "t:0", "6", "--log-dir", str(path))
    assert (again.code, "there is nothing to remove" in again.text) == (0, True)
    emptied = cli("disk", "truncate", "t:0", "0", "--log-dir", str(path), "--yes", "--json").summary
    assert (emptied["end_offset"], emptied["removed_offsets"]) == (0, 6)


def test_what_the_bucket_holds_is_not_cut(cli: Cli, tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()) as log:
        log.uploads.update({TP: PartitionUpload(4, 1)})
    for option in ("--dry-run", "--yes"):
        refused = cli("disk", "truncate", "t:0", "3", "--log-dir", str(path), option)
        assert (refused.code, "the records below 4 are uploaded" in refused.err) == (2, True)
    assert (
        "the bucket holds all below 4" in cli("disk", "truncate", "t:0", "4", "--log-dir", str(path), "--dry-run").err
    )
    moved = cli("disk", "move", "t:0", str(tmp_path / "b"), "--log-dir", str(path), "--dry-run")
    assert (moved.code, "t-0 cannot move: it is tiered" in moved.err) == (2, True)


def test_what_an_uploader_may_be_sending_is_not_cut(cli: Cli, tmp_path: Path) -> None:
    """The uploader sent a segment that is then cut and written again. Its commit names records that the disk lost."""
    path = made(tmp_path / "log")
    words = ("disk", "truncate", "t:0", "3", "--log-dir", str(path))
    directory = LogDirectory(path, clock=SystemClock(), ids=SystemIds())
    directory.acquire()
    refused = cli(*words, "--yes")
    assert (refused.code, "truncate, then start it again" in refused.err) == (11, True)
    assert cli(*words, "--dry-run", "--json").summary["end_offset_before"] > 3
    directory.release()
    assert cli(*words, "--yes", "--json").summary["end_offset"] == 3
    assert not directory.uploader()


def test_a_move_that_cannot_be_makes_nothing(cli: Cli, tmp_path: Path) -> None:
    path = made(tmp_path / "a")
    (tmp_path / "b" / "t-0").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for partition, target, code, told in (
        ("t:0", "a", 2, "t-0 is in"),
        ("t:0", "b", 2, "t-0 is in"),
        ("t:0", "a/inside", 2, "is inside the other"),
        ("t:0", "file", 2, "is a file"),
        ("t:7", "c", 10, "holds no partition t-7"),
        ("t:7", "a", 10, "holds no partition t-7"),
        ("u:0", "c", 10, "holds no partition u-0"),
        ("t", "c", 2, "names no partition"),
    ):
        for option in ("--dry-run", "--yes"):
            done = cli("disk", "move", partition, str(tmp_path / target), "--log-dir", str(path), option)
            assert (done.code, told in done.err) == (code, True), (partition, target, done.err)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "b", "file"]
    planned = cli("disk", "move", "t:0", str(tmp_path / "c"), "--log-dir", str(path), "--dry-run", "--json").summary
    size_bytes = sum(entry.stat().st_size for entry in (path / "t-0").iterdir())
    assert (planned["start_offset"], planned["end_offset"], planned["size_bytes"]) == (0, 5, size_bytes)


def test_a_folder_that_is_no_log_stays_as_it_is(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for words in (
        ("disk", "truncate", "t:0", "1", "--yes"),
        ("disk", "move", "t:0", str(tmp_path / "to"), "--yes"),
        ("disk", "compact", "--yes"),
        ("metrics",),
    ):
        assert cli(*words, "--log-dir", str(tmp_path / "empty")).code == 10, words
        assert cli(*words, "--log-dir", str(tmp_path / "file")).code == 2, words
    assert not list((tmp_path / "empty").iterdir())


def test_a_topic_is_deleted(cli: Cli, tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    words = ("topic", "delete", "t", "--log-dir", str(path))
    assert cli(*words, "--dry-run").code == 0
    assert (path / "t-0").is_dir()
    assert cli(*words).code == 2
    assert cli("topic", "delete", "u", "--log-dir", str(path), "--yes").code == 10
    done = cli(*words, "--yes", "--json")
    assert (done.code, done.summary["partitions"]) == (0, 2)
    assert sorted(entry.name.rpartition("-")[2] for entry in path.iterdir() if entry.is_dir()) == ["delete", "delete"]


def test_a_tiered_topic_is_deleted_only_here(cli: Cli, tmp_path: Path) -> None:
    path = made(tmp_path / "log")
    words = ("topic", "delete", "t", "--log-dir", str(path), "--yes")
    assert "leave --local-only out to delete the only copy" in cli(*words, "--local-only").err
    assert (path / "t-0").is_dir()
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()) as log:
        log.uploads.update({TP: PartitionUpload(0, 1)})
    assert cli(*words).code == 2
    assert cli(*words, "--local-only").code == 0


def fill(log: tiered.Log, numbers: range) -> None:
    """Append a record for each number to topic t, which has small segments."""
    topic = log.topic("t", create=True, config={"segment.bytes": 1000})
    for number in numbers:
        topic.append(b"%03d" % number + b"x" * 100)


def test_what_the_bucket_holds_leaves_the_disk_at_once(cli: Cli, tmp_path: Path) -> None:
    """The log stays whole, read from the bucket where its files went; what is not in the bucket stays and is told."""
    url, path = f"file://{tmp_path / 'store'}", tmp_path / "log"
    with tiered.open(path, remote=url) as log:
        fill(log, range(40))
        log.sync(timeout=60)
        fill(log, range(40, 60))
    words = ("disk", "drop", "t", "--log-dir", str(path), "--remote", url)

    def bases() -> list[int]:
        return sorted(int(file.stem) for file in (path / "t-0").glob("*.log"))

    before = bases()
    assert cli(*words).code == 2  # nobody can answer
    planned = cli(*words, "--to", str(before[1] + 1), "--dry-run", "--json")
    (one,) = planned.summary["partitions"]
    assert (planned.code, one["segments"], one["end_offset"], bases()) == (0, 2, before[2], before)
    for place, segments in (("beginning", 0), ("-1d", 0), ("end", sum(base < 40 for base in before))):
        (one,) = cli(*words, "--to", place, "--dry-run", "--json").summary["partitions"]
        assert (place, one["segments"]) == (place, segments)
    write = PosixFiles.write_at

    def write_at(self: PosixFiles, handle: int, data: bytes, position: int) -> None:
        if bases() == before:  # the disk is full until a segment is deleted
            raise DiskFullError("no space left")
        write(self, handle, data, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PosixFiles, "write_at", write_at)
        done = cli(*words, "--to", str(before[1] + 1), "--yes")
    assert (done.code, done.text.startswith("t-0: 2 segments deleted, ")) == (0, True)
    assert bases() == before[2:]
    assert "t-0: 20 offsets stay: not uploaded yet; `tiered-uploader sync`" in cli(*words, "--dry-run").text
    done = cli(*words, "--yes", "--json")
    (one,) = done.summary["partitions"]
    assert (done.code, one["uploaded_offset"], one["stays"], bases()[0]) == (3, 40, 20, 40)
    assert not list((path / "t-0").glob("*.deleted"))
    with tiered.open(path, remote=url) as log:
        assert [r.value and r.value[:3] for r in log.topic("t").read()] == [b"%03d" % number for number in range(60)]
        log.sync(timeout=60)
    assert cli(*words, "--yes").code == 0
    assert cli("topic", "set", "t", "--partitions", "2", "--log-dir", path, "--remote", url, "--yes").code == 0
    both = cli(*words, "--yes")  # the new partition has nothing to be uploaded
    assert (both.code, both.text.splitlines()[-1]) == (0, "t-1: 0 segments deleted, 0 B")


def test_what_the_bucket_lost_is_not_dropped(cli: Cli, tmp_path: Path) -> None:
    """The disk's own notes say that all is uploaded. It has the last copy of an object that is gone."""
    url, path = f"file://{tmp_path / 'store'}", tmp_path / "log"
    with tiered.open(path, remote=url) as log:
        fill(log, range(40))
        log.sync(timeout=60)
    lost = sorted((tmp_path / "store").rglob("*.log.obj"), key=lambda file: file.name)[1]
    lost.unlink()
    before = sorted((path / "t-0").glob("*.log"))
    words = ("disk", "drop", "t", "--log-dir", path, "--remote", url)
    planned = cli(*words, "--dry-run", "--json")
    done = cli(*words, "--yes")
    assert (planned.code, planned.summary["partitions"][0]["segments"]) == (13, 1)
    assert (done.code, ": the .log is missing; the segments here stay: `tiered repair`" in done.err) == (13, True)
    assert sorted((path / "t-0").glob("*.log")) == before[1:]
    assert cli("repair", "t:0", "--log-dir", path, "--remote", url, "--yes").code == 0
    assert cli(*words, "--yes").code == 0
    for root in (tmp_path / "store").rglob("root.obj"):
        root.unlink()
    refused = cli(*words, "--yes")
    assert (refused.code, "the catalog" in refused.err) == (10, True)


def test_what_no_bucket_holds_is_not_dropped(cli: Cli, tmp_path: Path) -> None:
    words = ("disk", "drop", "t:0", "--log-dir", str(made(tmp_path / "log")), "--yes")
    refused = cli(*words)
    assert refused.code == 2
    assert "is not tiered" in refused.err
    with LocalLog.open(tmp_path / "log", clock=SystemClock(), ids=SystemIds()):
        assert cli(*words).code == 11


def test_the_deletion_of_a_linked_partition_says_where_its_files_are(cli: Cli, tmp_path: Path) -> None:
    path, disk = made(tmp_path / "log"), tmp_path / "disk"
    disk.mkdir()
    (path / "t-0").rename(disk / "t-0")
    (path / "t-0").symlink_to(disk / "t-0")
    done = cli("topic", "delete", "t", "--log-dir", str(path), "--yes", "--json")
    assert (done.code, done.summary["linked"]) == (0, {"t-0": str((disk / "t-0").resolve())})
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()) as log:
        log.tick()
    assert list(disk.iterdir()) == []
