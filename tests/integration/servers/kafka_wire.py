"""Requests of Kafka's protocol that its Python clients lack: producers and transactions as a broker knows them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from typing import NamedTuple

from tiered.clock import SystemClock
from tiered.format.coordinator_records import WireReader, WireWriter
from tiered.model import TopicPartition

DESCRIBE_PRODUCERS = 61
LIST_TRANSACTIONS = 66
OFFSET_FOR_LEADER_EPOCH = 23
UNKNOWN = -1
CORRELATION_ID = 1
TIMEOUT_SECONDS = 30
COORDINATOR_LOAD_IN_PROGRESS = 14
LOAD_POLL_SECONDS = 0.05


class ActiveProducer(NamedTuple):
    """One producer in a partition, as ``kafka-transactions describe-producers`` lists it."""

    producer_id: int
    epoch: int
    last_sequence: int
    timestamp: int
    coordinator_epoch: int
    txn_start_offset: int


class ListedTransaction(NamedTuple):
    """One transactional id, as ``kafka-transactions list`` lists it."""

    transactional_id: str
    producer_id: int
    state: str


def describe_producers(
    bootstrap: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, list[ActiveProducer]]:
    """The producers that the leader of each partition remembers, by id."""
    topics = sorted({tp.topic for tp in partitions})
    writer = WireWriter(flexible=True)
    writer.length(len(topics))
    for topic in topics:
        writer.string(topic)
        numbers = sorted(tp.partition for tp in partitions if tp.topic == topic)
        writer.length(len(numbers))
        for number in numbers:
            writer.int32(number)
        writer.varint(0)
    writer.varint(0)
    reader = _ask(bootstrap, DESCRIBE_PRODUCERS, writer)
    found: dict[TopicPartition, list[ActiveProducer]] = {}

    def producer() -> ActiveProducer:
        one = ActiveProducer(
            reader.int64(), reader.int32(), reader.int32(), reader.int64(), reader.int32(), reader.int64()
        )
        reader.tagged()
        return one

    def topic_answer() -> None:
        name = reader.string()

        def partition_answer() -> None:
            number, code, message = reader.int32(), reader.int16(), reader.nullable_string()
            assert code == 0, (name, number, code, message)
            found[TopicPartition(name, number)] = sorted(reader.array(producer, item_bytes=37))
            reader.tagged()

        reader.array(partition_answer, item_bytes=8)
        reader.tagged()

    reader.array(topic_answer, item_bytes=3)
    return found


def epoch_ends(
    bootstrap: str, epochs: Collection[tuple[TopicPartition, int]]
) -> dict[tuple[TopicPartition, int], tuple[int, int]]:
    """Of each (partition, leader epoch): the greatest epoch at or below it, and where that ends."""
    found: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
    for epoch in sorted({epoch for _, epoch in epochs}):
        wanted = [tp for tp, one in epochs if one == epoch]
        writer = WireWriter(flexible=True)
        writer.int32(UNKNOWN)  # a consumer asks
        writer.length(len(wanted))
        for tp in wanted:
            writer.string(tp.topic)
            writer.length(1)
            writer.int32(tp.partition)
            writer.int32(UNKNOWN)  # whatever epoch the leader has
            writer.int32(epoch)
            writer.varint(0)
            writer.varint(0)
        writer.varint(0)
        reader = _ask(bootstrap, OFFSET_FOR_LEADER_EPOCH, writer, version=4)
        for _ in range(reader.varint() - 1):
            topic = reader.string()
            assert reader.varint() - 1 == 1
            code, number, answer, end = reader.int16(), reader.int32(), reader.int32(), reader.int64()
            assert code == 0, (topic, number, code)
            found[TopicPartition(topic, number), epoch] = (answer, end)
            reader.tagged()
            reader.tagged()
    return found


def list_transactions(bootstrap: str) -> list[ListedTransaction]:
    """All transactional ids that the broker's coordinator knows, as soon as it has loaded its log."""
    writer = WireWriter(flexible=True)
    for _ in ("state filters", "producer id filters"):
        writer.length(0)
    writer.varint(0)
    clock = SystemClock()
    deadline = clock.monotonic() + TIMEOUT_SECONDS
    reader = _ask(bootstrap, LIST_TRANSACTIONS, writer)
    while (code := reader.int16()) == COORDINATOR_LOAD_IN_PROGRESS:
        assert clock.monotonic() < deadline, "the broker's coordinator loads its log, and does not end"
        clock.sleep(LOAD_POLL_SECONDS)
        reader = _ask(bootstrap, LIST_TRANSACTIONS, writer)
    assert code == 0, code
    reader.array(reader.string, item_bytes=1)

    def transaction() -> ListedTransaction:
        one = ListedTransaction(reader.string(), reader.int64(), reader.string())
        reader.tagged()
        return one

    return sorted(reader.array(transaction, item_bytes=11))


def _ask(bootstrap: str, key: int, body: WireWriter, *, version: int = 0) -> WireReader:
    """Sends a request of a flexible version; the answer after its header and ``throttle_time_ms``."""
    head = WireWriter()
    head.int16(key)
    head.int16(version)
    head.int32(CORRELATION_ID)
    head.string("tests")
    head.varint(0)  # header version 2: tagged fields
    request = head.to_bytes() + body.to_bytes()
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as connection:
        connection.sendall(len(request).to_bytes(4, "big") + request)
        size = int.from_bytes(receive(connection.recv, 4), "big")
        answer = receive(connection.recv, size)
    reader = WireReader(answer, "answer", flexible=True)
    assert reader.int32() == CORRELATION_ID
    reader.tagged()
    reader.int32()
    return reader


def receive(recv: Callable[[int], bytes], count: int) -> bytes:
    """Exactly ``count`` bytes of a connection."""
    data = b""
    while len(data) < count:
        more = recv(count - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data
