"""Requests of Kafka's protocol that its Python clients lack: producers and transactions as a broker knows them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from typing import NamedTuple

from tiered.format.wire import WireReader, WireWriter
from tiered.model import TopicPartition

DESCRIBE_PRODUCERS = 61
LIST_TRANSACTIONS = 66
CORRELATION_ID = 1
TIMEOUT_SECONDS = 30


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


def list_transactions(bootstrap: str) -> list[ListedTransaction]:
    """All transactional ids that the broker's coordinator knows."""
    writer = WireWriter(flexible=True)
    for _ in ("state filters", "producer id filters"):
        writer.length(0)
    writer.varint(0)
    reader = _ask(bootstrap, LIST_TRANSACTIONS, writer)
    code = reader.int16()
    assert code == 0, code
    reader.array(reader.string, item_bytes=1)

    def transaction() -> ListedTransaction:
        one = ListedTransaction(reader.string(), reader.int64(), reader.string())
        reader.tagged()
        return one

    return sorted(reader.array(transaction, item_bytes=11))


def _ask(bootstrap: str, key: int, body: WireWriter) -> WireReader:
    """Sends version 0 of a request; the answer after its header and ``throttle_time_ms``."""
    head = WireWriter()
    head.int16(key)
    head.int16(0)
    head.int32(CORRELATION_ID)
    head.string("tests")
    head.varint(0)  # header version 2: tagged fields
    request = head.to_bytes() + body.to_bytes()
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as connection:
        connection.sendall(len(request).to_bytes(4, "big") + request)
        size = int.from_bytes(_receive(connection.recv, 4), "big")
        answer = _receive(connection.recv, size)
    reader = WireReader(answer, "answer", flexible=True)
    assert reader.int32() == CORRELATION_ID
    reader.tagged()
    reader.int32()
    return reader


def _receive(recv: Callable[[int], bytes], count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = recv(count - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data
