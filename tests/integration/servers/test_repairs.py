"""``tiered repair`` on real servers: what they copy, replace and put by compare-and-swap, and list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tests.integration.servers.commands import S3Server
from tests.integration.servers.conftest import OpenPrefix
from tiered.checking.check import CheckOptions
from tiered.checking.run import check
from tiered.format.keys import index_key, root_key, segment_key, topic_key
from tiered.format.root import Root, decode_root
from tiered.remote.topics import decode_topic
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.repair.run import apply_repair, plan_repair
from tiered.store.base import ABSENT, Delete, Get, Object, Put, Store, list_all
from tiered.store.driver import drive

RECORDS = 60


class Damaged:
    """A log of some segments in a bucket, and what is lost of it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def body(self, key: str) -> bytes:
        got = self.store.execute(Get(key))
        assert isinstance(got, Object)
        return got.data

    @property
    def root(self) -> Root:
        topic_id = decode_topic(self.body(topic_key("t")), key=topic_key("t")).topic_id
        return decode_root(self.body(root_key(topic_id, 0)), key=root_key(topic_id, 0))

    def repair(self, *, accept_loss: bool = False) -> RepairPlan:
        plan = plan_repair(self.store, ["t"], RepairOptions(accept_loss=accept_loss))
        assert apply_repair(self.store, plan) == len(plan.actions) == 1
        return plan

    def lose_index(self) -> None:
        self.store.execute(Delete((index_key(self.root.topic_id, 0, list(self.root.rows)[1]),)))
        self.repair()

    def lose_batch(self) -> None:
        """The one in the middle of the second segment."""
        row = list(self.root.rows)[1]
        key = segment_key(self.root.topic_id, 0, row)
        data = bytearray(self.body(key))
        data[len(data) // 2] ^= 1
        self.store.execute(Delete((key,)))
        self.store.execute(Put(key, bytes(data), ABSENT))
        ((start, end),) = self.repair(accept_loss=True).actions[0].lost
        assert end - start == 1
        asides = drive(self.store, list_all(root_key(self.root.topic_id, 0).rpartition("/")[0] + "/aside/"))
        assert bytes(data) in [self.body(entry.key) for entry in asides]

    def lose_root(self) -> None:
        self.store.execute(Delete((self.root.key,)))
        self.repair()

    def lose_entry(self) -> None:
        self.store.execute(Delete((topic_key("t"),)))
        self.repair()


@pytest.mark.parametrize(
    ("hurt_and_mend", "lost"),
    [(Damaged.lose_index, 0), (Damaged.lose_batch, 1), (Damaged.lose_root, 0), (Damaged.lose_entry, 0)],
)
def test_what_is_damaged_is_mended_on_a_real_server(
    server: S3Server, open_prefix: OpenPrefix, tmp_path: Path, hurt_and_mend: Callable[[Damaged], None], lost: int
) -> None:
    store = open_prefix(server.url)
    with tiered.open(tmp_path / "log", remote=store.url, endpoint_url=server.url) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 1000})
        for number in range(RECORDS):
            topic.append(b"%03d" % number + b"x" * 100)
        log.sync(timeout=60)
    hurt_and_mend(Damaged(store))
    assert check(None, store, CheckOptions(read_data=True, orphans=True)).exit_code == 0
    with tiered.open_reader(store.url, endpoint_url=server.url) as reader:
        offsets = [record.offset for record in reader.topic("t").read(0)]
    assert len(offsets) == RECORDS - lost
    assert sorted(set(offsets)) == offsets
