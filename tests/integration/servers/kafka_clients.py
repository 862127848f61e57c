"""What clients do to a running broker of the round trip: batches, transactions, groups."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from tests.integration.servers.kafka import TIMEOUT_SECONDS
from tiered.model import TopicPartition

KEYS = 12
BATCHES = 25
TXN_TIMEOUT_MS = 600_000

Group = dict[TopicPartition, tuple[int, str]]


class Writer(AbstractContextManager["Writer"]):
    """An idempotent producer, transactional with an ``identity``. One flush makes one batch."""

    def __init__(self, bootstrap: str, seed: int, *, identity: str | None = None, codec: str = "none") -> None:
        self.dice = random.Random(seed)
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
        }
        if identity is not None:
            settings |= {"transactional.id": identity, "transaction.timeout.ms": TXN_TIMEOUT_MS}
        self.client = Producer(settings)
        self.failed: list[object] = []
        if identity is not None:
            self.client.init_transactions(TIMEOUT_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.failed == []

    def __enter__(self) -> Self:
        return self

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(error)

    def batch(self, tp: TopicPartition, count: int | None = None) -> None:
        """Records with few keys, tombstones among them."""
        for _ in range(count or self.dice.randint(1, 9)):
            value = self.dice.choice([b"v" * self.dice.randrange(200), self.dice.randbytes(90), b"", None])
            headers: list[tuple[str, str | bytes | None]] = self.dice.choice([[], [("h", b"1"), ("h", None)]])
            key = b"key-%d" % self.dice.randrange(KEYS)
            self.client.produce(tp.topic, value, key, tp.partition, headers=headers, on_delivery=self._delivered)
        assert self.client.flush(TIMEOUT_SECONDS) == 0

    def transaction(self, partitions: Sequence[TopicPartition], *, commit: bool | None) -> None:
        """A batch to each; ``commit`` None leaves the transaction open."""
        self.client.begin_transaction()
        for tp in partitions:
            self.batch(tp)
        if commit is not None:
            (self.client.commit_transaction if commit else self.client.abort_transaction)(TIMEOUT_SECONDS)


def commit_offsets(bootstrap: str, group: str, offsets: Group) -> None:
    """Commits for a group without members."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        targets = [KafkaPartition(*tp, offset, metadata) for tp, (offset, metadata) in offsets.items()]
        consumer.commit(offsets=targets, asynchronous=False)
    finally:
        consumer.close()


def groups(bootstrap: str) -> dict[str, Group]:
    """All groups that committed anything, with what they committed."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = sorted(one.group_id for one in admin.list_consumer_groups().result(TIMEOUT_SECONDS).valid)
    found: dict[str, Group] = {}
    for name in names:
        [future] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]).values()
        told = future.result(TIMEOUT_SECONDS).topic_partitions
        found[name] = {TopicPartition(p.topic, p.partition): (p.offset, p.metadata) for p in told}
    return found


def delete_group(bootstrap: str, group: str) -> None:
    """The group and its commits are forgotten."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # lives until the answer is there
    [future] = admin.delete_consumer_groups([group]).values()
    future.result(TIMEOUT_SECONDS)
