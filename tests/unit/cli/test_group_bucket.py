"""``tiered group`` on groups of a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.support.uploaded import upload_topics
from tests.unit.cli.conftest import Cli
from tiered.group.admin import load_all_lags, load_group
from tiered.group.driver import BucketTopics
from tiered.group.member import GroupSettings, Member
from tiered.group.objects import Ownership
from tiered.model import Position, TopicPartition
from tiered.read.bucket import BucketReads
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from tiered.testing.clock import FakeClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return upload_topics(tmp_path, {"segment.bytes": 1000}, "tu", partitions=2)


def join(bucket: str, start: str = "earliest") -> tuple[Member, BucketReads, FakeClock]:
    """A member that owns all partitions of ``t``."""
    clock = FakeClock()
    reads = BucketReads(StoreLocation.parse(bucket).open(StoreOptions(create=False)))
    member = Member("billing", "host", ["t"], BucketTopics(reads, start, None), GroupSettings())
    for _ in range(2):
        clock.advance(drive(reads.store, member.round(), clock=clock))
    assert member.topic_id(T0) == member.topic_id(T1)  # it owns both
    return member, reads, clock


def committed(bucket: str, start: str = "earliest", *, leaves: bool = True) -> None:
    member, reads, clock = join(bucket, start)
    member.poll([], clock.monotonic())
    assert drive(reads.store, member.commit({T0: Position(7)}), clock=clock) == {}
    if leaves:
        drive(reads.store, member.leave(), clock=clock)


def epochs(bucket: str) -> set[int]:
    """The ownership epochs of the group's partitions."""
    group = drive(StoreLocation.parse(bucket).open(StoreOptions(create=False)), load_group("billing"))
    return {each.found.epoch for each in group.partitions if isinstance(each.found, Ownership)}


def test_groups_are_listed_and_shown(cli: Cli, bucket: str) -> None:
    assert cli("group", "list", "--remote", bucket).text == "no group has committed a position\n"
    committed(bucket, "latest", leaves=False)
    listed = cli("group", "list", "--remote", bucket, "--json").summary["groups"]
    assert listed == [{"group": "billing", "where": "bucket", "partitions": 2, "lag_records": 13, "members": 1}]
    shown = cli("group", "show", "billing", "--remote", bucket, "--json").summary
    assert shown["lag_records"] == 13
    rows = {each["partition"]: each for each in shown["positions"]}
    assert [(rows[p]["position"], rows[p]["end_offset"], rows[p]["lag_records"]) for p in (0, 1)] == [
        (7, 20, 13),
        (20, 20, 0),
    ]
    assert rows[0]["owner"] == shown["members"][0]
    assert "1 member, lag 13" in cli("group", "show", "billing", "--remote", bucket).text
    with tiered.open_reader(bucket) as reader:
        last_ms = max(record.timestamp for record in reader.topic("t").read(0))
    status = cli("status", "--remote", bucket, "--json").summary
    lags = {each["partition"]: each for each in status["groups"]}
    assert {number: each["lag_records"] for number, each in lags.items()} == {0: 13, 1: 0}
    assert lags[1]["lag_seconds"] == 0
    older_ms = round(lags[0]["lag_seconds"] * 1000) - (status["now_ms"] - last_ms)
    assert 0 <= older_ms < 60_000  # the age of a segment, which may begin in the millisecond of its last record
    assert "group billing   lag 13 records" in cli("status", "--remote", bucket).text


def test_one_damaged_catalog_or_deleted_topic_hides_no_other_lag(cli: Cli, bucket: str, tmp_path: Path) -> None:
    for topic in "tu":
        assert cli("group", "reset", "billing", topic, "--to", "beginning", "--remote", bucket, "--yes").code == 0
    assert cli("topic", "delete", "u", "--remote", bucket, "--yes").code == 0
    with tiered.open_reader(bucket) as reader:
        topic_id = reader.topics()["t"].topic_id
    assert topic_id is not None
    (root,) = (tmp_path / "store").glob(f"??/{topic_id.hex}-0/root.obj")
    root.write_bytes(root.read_bytes()[:-1])
    done = cli("group", "show", "billing", "--remote", bucket, "--json")
    found = {
        (each["topic"], each["partition"]): (each["state"], each["lag_records"]) for each in done.summary["positions"]
    }
    deleted = "topic deleted", None
    assert found == {("t", 0): ("damaged", None), ("t", 1): ("free", 20), ("u", 0): deleted, ("u", 1): deleted}
    assert (done.code, "the end of partition 0 of t is unknown" in done.err) == (3, True)
    lags = drive(StoreLocation.parse(bucket).open(StoreOptions(create=False)), load_all_lags())
    assert [(lag.tp, lag.records) for lag in lags] == [(T1, 20)]


def test_an_unknown_group_is_an_error(cli: Cli, bucket: str) -> None:
    done = cli("group", "show", "nothing", "--remote", bucket)
    assert (done.code, "holds no group 'nothing'" in done.err) == (10, True)


@pytest.mark.parametrize(
    ("target", "positions"), [("beginning", (0, 0)), ("end", (20, 20)), ("5", (5, 5)), ("2001-01-01", (0, 0))]
)
def test_reset_sets_each_position(cli: Cli, bucket: str, target: str, positions: tuple[int, int]) -> None:
    committed(bucket)
    planned = cli("group", "reset", "billing", "--to", target, "--remote", bucket, "--dry-run", "--json").summary
    assert tuple(each["position"] for each in planned["positions"]) == positions
    shown = cli("group", "show", "billing", "--remote", bucket, "--json").summary["positions"]
    assert sorted(each["position"] for each in shown) == [0, 7]
    assert cli("group", "reset", "billing", "--to", target, "--remote", bucket, "--yes").code == 0
    shown = cli("group", "show", "billing", "--remote", bucket, "--json").summary["positions"]
    assert sorted(each["position"] for each in shown) == sorted(positions)


def test_reset_makes_a_group_and_refuses_an_offset_outside_the_log(cli: Cli, bucket: str) -> None:
    assert cli("group", "reset", "new", "u", "--to", "end", "--remote", bucket, "--yes").code == 0
    shown = cli("group", "show", "new", "--remote", bucket, "--json").summary["positions"]
    assert [(each["topic"], each["position"]) for each in shown] == [("u", 20), ("u", 20)]
    done = cli("group", "reset", "new", "--to", "21", "--remote", bucket, "--yes")
    assert (done.code, "has no offset 21" in done.err) == (2, True)


def test_members_stop_a_reset_and_a_deletion_and_force_fences_them(cli: Cli, bucket: str) -> None:
    member, reads, clock = join(bucket)
    member.poll([], clock.monotonic())
    for command in (("reset", "billing", "--to", "end"), ("delete", "billing")):
        done = cli("group", *command, "--remote", bucket, "--yes")
        assert (done.code, "is in use by 1 member(s): host~" in done.err) == (2, True)
    assert cli("group", "reset", "billing", "--to", "end", "--force", "--remote", bucket, "--yes").code == 0
    errors = drive(reads.store, member.commit({T0: Position(7)}), clock=clock)
    assert list(errors) == [T0]
    shown = cli("group", "show", "billing", "--remote", bucket, "--json").summary["positions"]
    assert [each["position"] for each in shown] == [20, 20]


def test_a_group_that_is_deleted_is_gone_and_begins_anew_with_other_epochs(cli: Cli, bucket: str) -> None:
    committed(bucket)
    before = epochs(bucket)
    assert cli("group", "delete", "billing", "--remote", bucket, "--dry-run").code == 0
    assert cli("group", "show", "billing", "--remote", bucket).code == 0
    assert cli("group", "delete", "billing", "--remote", bucket, "--yes").code == 0
    assert cli("group", "list", "--remote", bucket).text == "no group has committed a position\n"
    join(bucket)
    assert len(before | epochs(bucket)) == 4
