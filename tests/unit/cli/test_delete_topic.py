"""``tiered topic delete`` in a bucket: marked, collected after its grace, its name free for another topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import tiered
from tests.support.uploaded import upload_topics
from tests.unit.cli.conftest import Cli
from tiered.clock import SystemClock
from tiered.errors import LogDestroyedError
from tiered.format.kernels import crc32c
from tiered.format.keys import hist_key, root_key, snap_key
from tiered.format.root import encode_complete_snapshot
from tiered.plan.maintenance import ORPHAN_MS
from tiered.remote.gc import deletion
from tiered.remote.topics import register_topic, update_topic
from tiered.store.base import ABSENT, Delete, Get, Object, Put
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from tiered.testing.clock import FakeClock
from tiered.times import format_time

SMALL: dict[str, object] = {"segment.bytes": 1000}


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    """Topic t with two partitions of forty records, and another topic u."""
    return upload_topics(tmp_path, SMALL, "tu", partitions=2)


def objects(tmp_path: Path, topic_id: str) -> list[str]:
    found = (tmp_path / "store").glob(f"??/{topic_id.replace('-', '')}-*/**/*.obj")
    return sorted(path.name for path in found)


def id_of(cli: Cli, url: str, name: str = "t") -> str:
    return str(cli("topic", "show", name, "--remote", url, "--json").summary["topic_id"])


def over(cli: Cli, url: str) -> None:
    """The grace of topic t is over."""
    assert cli("topic", "set", "t", "gc.grace.ms=0", "--remote", url).code == 0


def test_the_end_of_a_topic(cli: Cli, bucket: str, tmp_path: Path) -> None:
    """Marked, left alone for its grace, then gone with all that it had; the other topic stays as it was."""
    remote, old, other = ("--remote", bucket), id_of(cli, bucket), id_of(cli, bucket, "u")
    before, others = objects(tmp_path, old), objects(tmp_path, other)
    assert cli("topic", "delete", "t", *remote, "--dry-run").code == 0
    assert cli("topic", "delete", "t", *remote).code == 2  # nobody can answer
    with tiered.open_reader(bucket) as reader:
        assert len(list(reader.topic("t").read(0))) == 20
    assert cli("topic", "delete", "t", *remote, "--yes").text == (
        "t is marked: a maintainer deletes its objects after 1d00h\n"
    )
    with tiered.open_reader(bucket) as reader, pytest.raises(LogDestroyedError, match="is being deleted"):
        reader.topic("t")
    with tiered.open(tmp_path / "log", remote=bucket) as log, pytest.raises(LogDestroyedError, match="is being"):
        log.topic("t").append(b"late")
    assert cli("maintain", *remote, "--yes").text == "nothing was to be done\n"
    assert set(before) <= set(objects(tmp_path, old))
    over(cli, bucket)
    plan = cli("maintain", "--only", "collect", "--dry-run", "t", *remote, "--json").summary["partitions"]
    assert [one["actions"][0]["reason"] for one in plan] == ["the topic was deleted"] * 2
    done = cli("maintain", "--only", "collect", "t", *remote, "--yes", "--json")
    assert (done.code, [one["collected"]["entries"] for one in done.summary["done"]]) == (0, [1, 1])
    assert objects(tmp_path, old) == []
    assert objects(tmp_path, other) == others
    assert [one["topic"] for one in cli("topic", "list", *remote, "--json").summary["topics"]] == ["u"]
    assert cli("check", *remote, "--read-data").code == 0
    upload_topics(tmp_path, SMALL, partitions=2, log="again")
    assert id_of(cli, bucket) != old
    with tiered.open_reader(bucket) as reader:
        assert len(list(reader.topic("t").read(0))) == 20


def test_a_deleted_topic_never_comes_back(cli: Cli, bucket: str, tmp_path: Path) -> None:
    """The disk that uploaded it still has it, under its old id."""
    old = id_of(cli, bucket)
    assert cli("topic", "delete", "t", "--remote", bucket, "--yes").code == 0
    over(cli, bucket)
    assert cli("maintain", "--only", "collect", "--remote", bucket, "--yes").code == 0
    with tiered.open(tmp_path / "log", remote=bucket) as log, pytest.raises(LogDestroyedError):
        log.topic("t").append(b"late")
    with pytest.raises(LogDestroyedError, match="was deleted"):  # as a disk would that has seen no root of it
        drive(StoreLocation.parse(bucket).open(), register_topic("t", UUID(old), 2, {}))
    assert objects(tmp_path, old) == []


def test_what_comes_after_the_end_is_a_stray(cli: Cli, bucket: str, tmp_path: Path) -> None:
    """A process that stood still puts something below a topic that is gone: told as that, and swept a day later."""
    remote, old = ("--remote", bucket), id_of(cli, bucket)
    assert cli("topic", "delete", "t", *remote, "--yes").code == 0
    over(cli, bucket)
    done = cli("maintain", "--only", "collect", *remote, "--orphans", "--yes", "--json")
    assert (done.code, done.summary["strays"]) == (0, {"objects": 0, "size_bytes": 0})
    assert objects(tmp_path, old) == []
    key = hist_key(UUID(old), 1, 7)
    store = StoreLocation.parse(bucket).open()
    store.execute(Put(key, b"late", ABSENT, crc32c(b"late")))
    checked = cli("check", *remote, "--json")
    found = [(one["severity"], one["code"]) for one in checked.messages if one.get("code") == "strays"]
    assert (checked.code, found) == (0, [("info", "strays")])
    assert (
        cli("maintain", "--only", "collect", "--dry-run", *remote, "--orphans", "--json").summary["strays"]["objects"]
        == 0
    )
    store.execute(Delete((key,)))
    yesterday = StoreLocation.parse(bucket).open(StoreOptions(clock=FakeClock(SystemClock().now_ms() - ORPHAN_MS)))
    yesterday.execute(Put(key, b"late", ABSENT, crc32c(b"late")))
    assert (
        "1 stray of no topic, 4 B, would be deleted"
        in cli("maintain", "--only", "collect", "--dry-run", *remote, "--orphans").text
    )
    assert isinstance(store.execute(Get(key)), Object)
    assert (
        "1 stray of no topic, 4 B, deleted" in cli("maintain", "--only", "collect", *remote, "--orphans", "--yes").text
    )
    assert objects(tmp_path, old) == []


def test_snapshots_refuse_unless_forced(cli: Cli, bucket: str, tmp_path: Path) -> None:
    remote, old = ("--remote", bucket), id_of(cli, bucket)
    assert cli("snapshot", "create", "keep", "t:1", *remote).code == 0
    seen = cli("topic", "delete", "t", *remote, "--yes")
    assert (seen.code, "snapshot keep" in seen.err) == (2, True)
    store = StoreLocation.parse(bucket).open()
    kept = store.execute(Get(root_key(UUID(old), 1)))
    assert isinstance(kept, Object)
    assert cli("topic", "delete", "t", *remote, "--yes", "--force").code == 0
    assert cli("snapshot", "list", "t", *remote, "--json").summary["snapshots"] == []
    refused = cli("snapshot", "create", "late", "t:1", *remote)
    assert (refused.code, "t-1 is being deleted" in refused.err) == (10, True)
    # One whose PUT was under way when the topic was marked: it is kept.
    body = encode_complete_snapshot(bytes(kept.data), "0" * 32, "late")
    store.execute(Put(snap_key(UUID(old), 1, "late"), body, ABSENT, crc32c(body)))
    over(cli, bucket)
    done = cli("maintain", "--only", "collect", *remote, "--yes", "--json")
    assert (done.code, [one["collected"]["held"] for one in done.summary["done"]]) == (3, [0, 1])
    assert objects(tmp_path, old)
    assert cli("snapshot", "delete", "late", "t:1", *remote, "--yes").code == 0
    assert cli("maintain", "--only", "collect", *remote, "--yes").code == 0
    assert objects(tmp_path, old) == []


def test_a_partition_that_is_gone_by_its_deletion_is_not_lost(cli: Cli, bucket: str, tmp_path: Path) -> None:
    """The other one is held by a reader: all that was left of the topic counted as damage until it was gone, too."""
    remote, log_dir = ("--remote", bucket), ("--log-dir", str(tmp_path / "log"))
    reader = tiered.open_reader(bucket, pin=True)
    records = reader.topic("t").read(partition=1)
    next(iter(records))
    assert cli("topic", "delete", "t", *remote, "--yes").code == 0
    over(cli, bucket)
    done = cli("maintain", "--only", "collect", *remote, "--yes", "--json")
    assert (done.code, [one["collected"]["held"] for one in done.summary["done"]]) == (3, [0, 1])
    for command in (("check",), ("status",), ("status", *log_dir), ("check", *log_dir), ("repair", "t")):
        seen = cli(*command, *remote)
        assert (command, seen.code, "lost" in seen.err) == (command, 0, False)
    reader.close()
    assert cli("maintain", "--only", "collect", *remote, "--yes").code == 0
    assert [one["topic"] for one in cli("topic", "list", *remote, "--json").summary["topics"]] == ["u"]


def test_a_snapshot_of_all_topics_passes_over_one_that_is_being_deleted(cli: Cli, bucket: str) -> None:
    """The command failed for as long as the grace lasts. The topics before the failed one were deleted."""
    remote = ("--remote", bucket)
    assert cli("topic", "create", "s", "--partitions", "1", *remote).code == 0
    assert cli("topic", "delete", "t", *remote, "--yes").code == 0
    made = cli("snapshot", "create", "nightly", *remote, "--json")
    assert made.code == 3
    assert made.summary["warnings"] == ["topic t is being deleted and was passed over"]
    named = [(one["topic"], one["partition"]) for one in made.summary["snapshots"]]
    assert named == [("s", 0), ("u", 0), ("u", 1)]
    refused = cli("snapshot", "create", "late", "u", "t", *remote)
    assert (refused.code, "t-0 is being deleted" in refused.err) == (10, True)


def test_a_mark_that_was_cut_short_is_completed(
    cli: Cli, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is marked, no root is: the next maintainer marks them, and the grace begins there."""
    old, remote = id_of(cli, bucket), ("--remote", bucket)

    def entry_only(entry: Any, owner: str) -> Any:
        return (yield from update_topic(entry.name, lambda found: deletion.replace(found, state="deleting")))

    monkeypatch.setattr("tiered.cli.topic.start_deletion", entry_only)
    assert cli("topic", "delete", "t", *remote, "--yes").code == 0
    for _ in range(2):
        assert cli("maintain", "--only", "collect", *remote, "--yes").text == "nothing was to be done\n"
    assert objects(tmp_path, old)
    over(cli, bucket)
    assert cli("maintain", "--only", "collect", *remote, "--yes").code == 0
    assert objects(tmp_path, old) == []


def test_the_place_on_the_command_line_is_meant(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that only the environment names is left alone, though it has a topic of that name."""
    url, disk = f"file://{tmp_path / 'store'}", tmp_path / "disk"
    (tmp_path / "store").mkdir()
    with tiered.open(disk) as log:
        log.topic("t", create=True).append(b"only here")
    assert cli("topic", "create", "t", "--remote", url).code == 0
    alone = ("--remote", url)
    kept = cli("cat", "t", "--log-dir", disk)

    def at_both() -> tuple[bytes, int]:
        return cli("cat", "t", "--log-dir", disk).out, cli("cat", "t", *alone).code

    monkeypatch.setenv("TIERED_LOG_DIR", str(disk))
    monkeypatch.setenv("TIERED_REMOTE", url)
    refused = cli("topic", "delete", "t", "--yes")
    both = cli("topic", "delete", "t", "--yes", "--log-dir", disk, *alone)
    monkeypatch.delenv("TIERED_LOG_DIR")
    monkeypatch.delenv("TIERED_REMOTE")
    assert (refused.code, both.code) == (2, 2)
    assert "(environment TIERED_LOG_DIR, environment TIERED_REMOTE)" in refused.err
    assert "`env -u TIERED_LOG_DIR tiered topic delete t --remote URL`" in refused.err
    assert at_both() == (kept.out, 0)

    monkeypatch.setenv("TIERED_LOG_DIR", str(disk))
    gone = cli("topic", "delete", "t", "--yes", "--json", *alone)
    assert (gone.code, gone.summary["grace_ms"]) == (0, 86_400_000)
    monkeypatch.delenv("TIERED_LOG_DIR")
    assert at_both() == (b"only here\n", 10)

    monkeypatch.setenv("TIERED_REMOTE", url)
    assert cli("topic", "delete", "t", "--yes", "--log-dir", disk).code == 0
    assert not list(disk.glob("t-0"))


def test_who_asks_is_told_that_a_topic_is_being_deleted(cli: Cli, bucket: str, tmp_path: Path) -> None:
    """Records that were not uploaded before the mark stay on the disk, and no uploader takes them."""
    remote = ("--remote", bucket)
    line = ("append", "t:1", "--log-dir", tmp_path / "log", *remote)
    assert cli(*line, stdin=b"late\n").code == 0
    assert cli("topic", "delete", "t", *remote, "--yes").code == 0
    for place in (remote, ("--log-dir", tmp_path / "log", *remote)):
        status = cli("status", *place, "--json").summary
        marked = [one["deleting_since_ms"] for one in status["partitions"] if one["topic"] == "t"]
        each = [f"deleting since {format_time(since)}" for since in marked]
        told = each[0]  # of the topic: the first of its partitions
        assert [(one["topic"], one["deleting"]) for one in status["partitions"]] == [
            ("t", True),
            ("t", True),
            ("u", False),
            ("u", False),
        ]
        assert (len(status["notes"]), told in status["notes"][0], status["safe"]) == (1, True, True)
        rows = [row for row in cli("status", *place).text.splitlines() if row.startswith("t-")]
        assert [row.endswith(since) for row, since in zip(rows, each, strict=True)] == [True, True]
        listed = cli("topic", "list", *place, "--json").summary["topics"]
        assert [(one["topic"], one["deleting"]) for one in listed] == [("t", True), ("u", False)]
        assert cli("topic", "show", "t", *place).text.splitlines()[0].endswith(f"  {told}")
    over(cli, bucket)
    assert cli("maintain", "--only", "collect", "t:0", *remote, "--yes").code == 0
    seen = cli("topic", "show", "t:0", *remote, "--json").summary
    assert (seen["deleting"], seen["partitions"][0]["deleting_since_ms"]) == (True, None)
    assert cli("topic", "show", "t:0", *remote).text.splitlines()[0].endswith("  deleting")
