"""``tiered topic transfer``: from a local log to sinks and back, and what is refused."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tests.unit.plan.staging import staged
from tiered.errors import FencedError
from tiered.format.decision import COMMITTED, Decision
from tiered.format.root import Root
from tiered.remote.root_view import RootView
from tiered.remote.sink_commit import Sink
from tiered.store.driver import drive
from tiered.store.location import StoreLocation


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    """Topic t with two partitions that a local log writes."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, partitions=2)
        for number in range(10):
            topic.append(b"%d" % number, partition=number % 2)
        log.sync(timeout=60)
    return url


def root_of(cli: Cli, url: str, partition: int) -> Root:
    topic_id = UUID(cli("topic", "show", "t", "--remote", url, "--json").summary["topic_id"])
    root = drive(StoreLocation.parse(url).open(), RootView(topic_id, partition, "t").load())
    assert root is not None
    return root


def commit(url: str, topic_id: UUID, batch: int) -> None:
    store, sink = StoreLocation.parse(url).open(), Sink("driver:1", {topic_id: "t"})
    wanted = Decision("q", batch, COMMITTED, {(topic_id, 0): (staged(3, batch, "q", batch),)})
    drive(store, sink.commit_staged(drive(store, sink.decide(wanted))))


def test_to_spark_and_back(cli: Cli, bucket: str, tmp_path: Path) -> None:
    remote, topic_id = ("--remote", bucket), root_of(cli, bucket, 0).topic_id
    with pytest.raises(FencedError, match="tiered topic transfer t spark"):
        commit(bucket, topic_id, 0)
    dry = cli("topic", "transfer", "t", "spark", "--dry-run", "--json", *remote)
    assert [row["changed"] for row in dry.summary["partitions"]] == [True, True]
    refused = cli("topic", "transfer", "t", "spark", *remote)
    assert (refused.code, root_of(cli, bucket, 0).writer.epoch) == (2, 1)
    assert "cannot know of it" in refused.err
    done = cli("topic", "transfer", "t", "spark", "--yes", "--json", *remote)
    assert [row["end_offset"] for row in done.summary["partitions"]] == [5, 5]
    assert root_of(cli, bucket, 0).writer.volume == "spark"
    commit(bucket, topic_id, 0)
    again = cli("topic", "transfer", "t", "spark", "--yes", "--json", *remote)
    assert [row["changed"] for row in again.summary["partitions"]] == [False, False]
    with tiered.open(tmp_path / "log", remote=bucket) as log:
        log.topic("t").append(b"more", partition=0)
        with pytest.raises(FencedError, match="tiered topic transfer t local"):
            log.sync(timeout=60)
    assert cli("topic", "transfer", "t", "local", "--yes", *remote).code == 0
    with pytest.raises(FencedError, match="topic transfer t spark"):
        commit(bucket, topic_id, 1)
    with tiered.open(tmp_path / "fresh", remote=bucket) as log:
        assert log.topic("t").append(b"after", partition=0).offset == 8
        log.sync(timeout=60)
    assert root_of(cli, bucket, 0).next_offset == 9


def test_an_open_transaction_keeps_sinks_out(cli: Cli, bucket: str, tmp_path: Path) -> None:
    remote = ("--remote", bucket)
    with tiered.open(tmp_path / "log", remote=bucket) as log:
        topic = log.topic("t")
        with topic.transaction("id") as txn:
            txn.append(b"open", partition=1)
            log.sync(timeout=60)
            refused = cli("topic", "transfer", "t", "spark", "--yes", *remote)
            one = cli("topic", "transfer", "t:0", "spark", "--yes", *remote)
    assert refused.code == 2
    assert "t-1 has an open transaction from offset 5" in refused.err
    assert one.code == 0


def test_unknown_topics_and_partitions(cli: Cli, bucket: str) -> None:
    assert cli("topic", "transfer", "x", "spark", "--yes", "--remote", bucket).code == 10
    assert cli("topic", "transfer", "t:2", "spark", "--yes", "--remote", bucket).code == 10
