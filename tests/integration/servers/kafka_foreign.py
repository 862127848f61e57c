"""Odd batches before a real broker and Kafka's own consumer code: what is taken, what is stored, what is read.

    python -m tests.integration.servers.kafka_foreign [SEED]      writes tests/golden/data/foreign-batches.json.gz

needs ``localstack/kafka install``; run it again when ``tests/golden/foreign.py`` makes other batches.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.golden.foreign import ARCHIVE, HUNG_UP, TOPICS, Answer, OddBatch, Sent, odd_batches, write_answers
from tests.integration.servers.commands import ROOT, run
from tests.integration.servers.kafka import TIMEOUT_SECONDS, Broker
from tests.integration.servers.kafka_wire import CORRELATION_ID, receive
from tiered.format.batch_scanner import walk_headers
from tiered.format.coordinator_records import WireReader, WireWriter

READER = Path(__file__).with_name("DecodeBatches.java")
PRODUCE, PRODUCE_VERSION = 0, 9
ACKS_LEADER = 1
SEED = 1


def read_by_kafka(batches: Sequence[bytes], *arguments: str) -> list[str]:
    """A line of JSON for each batch: what the consumer's code makes of it."""
    lines = "".join(base64.b64encode(batch).decode() + "\n" for batch in batches)
    return run("kafka", "tool", str(READER), *arguments, standard_input=lines).splitlines()


class Sender:
    """One connection to the broker that produces raw bytes, whatever they are."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = (host, int(port))
        self._connection: socket.socket | None = None

    def send(self, topic: str, records: bytes) -> dict[str, Any]:
        """The broker's answer for partition 0: ``code`` (Kafka's number), ``offset``, ``time``."""
        head, body = WireWriter(), WireWriter(flexible=True)
        head.int16(PRODUCE)
        head.int16(PRODUCE_VERSION)
        head.int32(CORRELATION_ID)
        head.string("tests")
        head.varint(0)
        body.string(None)
        body.int16(ACKS_LEADER)
        body.int32(TIMEOUT_SECONDS * 1000)
        body.length(1)
        body.string(topic)
        body.length(1)
        body.int32(0)
        body.length(len(records))
        body.raw(records)
        for _ in range(3):
            body.varint(0)
        request = head.to_bytes() + body.to_bytes()
        if self._connection is None:
            self._connection = socket.create_connection(self._address, TIMEOUT_SECONDS)
        try:
            self._connection.sendall(len(request).to_bytes(4, "big") + request)
            size = int.from_bytes(receive(self._connection.recv, 4), "big")
            return _answer(receive(self._connection.recv, size))
        except (AssertionError, ConnectionError):
            self.close()
            return {"code": HUNG_UP, "offset": -1, "time": -1}

    def close(self) -> None:
        """Also after an answer that did not come."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _answer(data: bytes) -> dict[str, Any]:
    reader = WireReader(data, "answer", flexible=True)
    assert reader.int32() == CORRELATION_ID
    reader.tagged()
    assert reader.varint() == 2
    reader.string()
    assert reader.varint() == 2
    reader.int32()
    return {"code": reader.int16(), "offset": reader.int64(), "time": reader.int64()}


def ask(batches: Sequence[OddBatch]) -> list[Answer]:
    """Everything about each batch; starts a broker of its own and ends it."""
    reads = [json.loads(line) for line in read_by_kafka([batch.data for batch in batches])]
    work = Path(tempfile.mkdtemp(prefix="foreign-"))
    broker = Broker(work)
    broker.start()
    try:
        for name, settings in TOPICS.items():
            broker.create({name: 1}, {"retention.ms": "-1", "max.compaction.lag.ms": str(2**63 - 1), **settings})
        sender = Sender(broker.bootstrap)
        said = {name: [sender.send(name, batch.data) for batch in batches] for name in TOPICS}
        sender.close()
        broker.stop()
        stored = {name: _stored(broker.data / f"{name}-0") for name in TOPICS}
    finally:
        broker.stop()
        shutil.rmtree(work)
    return [
        Answer(
            batch,
            read.get("records"),
            {
                name: Sent(one["code"], one["time"], stored[name].get(one["offset"]) if not one["code"] else None)
                for name, one in ((name, said[name][number]) for name in TOPICS)
            },
        )
        for number, (batch, read) in enumerate(zip(batches, reads, strict=True))
    ]


def _stored(directory: Path) -> dict[int, bytes]:
    """Each batch of a partition by its base offset."""
    found: dict[int, bytes] = {}
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        found |= {header.base_offset: data[at : at + header.size_bytes] for at, header in walk_headers(data)}
    return found


def main(arguments: Sequence[str]) -> None:
    seed = int(arguments[0]) if arguments else SEED
    answers = ask(odd_batches(seed))
    write_answers(seed, answers)
    print(f"{len(answers)} batches in {ARCHIVE.relative_to(ROOT)}, {ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
