"""One Kafka broker of a test: topics, records in and out, and log directories under it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.servers.commands import exported, run
from tiered.clock import SystemClock
from tiered.model import NO_TIMESTAMP, TopicPartition

TIMEOUT_SECONDS = 30
LEADER_POLL_SECONDS = 0.1
NOT_YET = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART}
CLUSTER_ID = "dGllcmVkbG9nLXRlc3RzMQ"
"""The cluster that ``localstack/kafka`` makes; its one node is 1."""


class Seen(NamedTuple):
    """One record as a consumer sees it; ``timestamp_type`` is Kafka's number (0 create, 1 append)."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def _seen(message: Message) -> Seen:
    kind, timestamp = message.timestamp()
    offset, headers = message.offset(), message.headers() or []
    assert offset is not None
    if kind == TIMESTAMP_NOT_AVAILABLE:
        kind, timestamp = TIMESTAMP_CREATE_TIME, NO_TIMESTAMP
    kind -= TIMESTAMP_CREATE_TIME
    return Seen(offset, timestamp, kind, message.key(), message.value(), list(headers))  # type: ignore[arg-type]  # bytes


def _led(consumer: Consumer, target: KafkaPartition) -> bool:
    try:
        consumer.get_watermark_offsets(target, timeout=TIMEOUT_SECONDS)
    except KafkaException as error:
        if error.args[0].code() in NOT_YET:
            return False
        raise
    return True


class Heard(NamedTuple):
    """What a consumer heard of one partition: where it starts, where it ends for this consumer, and the records."""

    start: int
    end: int
    records: list[Seen]


class Broker:
    """A broker in ``work``; its log directory is ``data``, others that ``log.dirs`` adds are ``data2``, ``data3``."""

    def __init__(self, work: Path, *settings: str, log_dirs: int = 1) -> None:
        self.work, self.data = work, work / "data"
        self.log_dirs = [self.data, *(work / f"data{number}" for number in range(2, log_dirs + 1))]
        self.settings = (*settings, f"log.dirs={','.join(map(str, self.log_dirs))}")
        self.bootstrap = ""
        self._said = 0

    def start(self) -> None:
        """Starts it on a free port. It tells everything that it does while it loads (:meth:`said`)."""
        log = self.work / "server.log"
        self._said = log.stat().st_size if log.exists() else 0
        text = run("kafka", "start", str(self.work), "0", *self.settings, KAFKA_LOG_LEVEL="info")
        self.bootstrap = exported(text)["KAFKA_BOOTSTRAP"]
        self._wait_for_leaders()

    def _wait_for_leaders(self) -> None:
        """A broker accepts connections a moment before it leads the partitions that it stores."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "start"})
        try:
            for topic in consumer.list_topics(timeout=TIMEOUT_SECONDS).topics.values():
                for partition in topic.partitions:
                    while not _led(consumer, KafkaPartition(topic.topic, partition)):
                        consumer.poll(LEADER_POLL_SECONDS)
        finally:
            consumer.close()

    def stop(self) -> None:
        """A clean shutdown."""
        run("kafka", "stop", str(self.work))

    def kill(self) -> None:
        """SIGKILL."""
        run("kafka", "kill", str(self.work))

    def create(self, topics: Mapping[str, int], settings: Mapping[str, str]) -> None:
        """Topics by name with their number of partitions, all with the same settings."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = [NewTopic(name, count, 1, config=dict(settings)) for name, count in topics.items()]
        for future in admin.create_topics(wanted).values():
            future.result(TIMEOUT_SECONDS)
        self._wait_for_leaders()

    def delete(self, topics: Iterable[str]) -> None:
        """Topics go, and their directories are renamed before this returns."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_topics(list(topics)).values():
            future.result(TIMEOUT_SECONDS)
        gone = [f"{topic}-0" for topic in topics]
        self.wait_until(lambda: not any((one / name).exists() for one in self.log_dirs for name in gone))

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Looks at the broker's files again and again; a broker that is stuck is a failure."""
        clock = SystemClock()
        deadline = clock.monotonic() + TIMEOUT_SECONDS
        while not done():
            assert clock.monotonic() < deadline, self.said()[-5:]
            clock.sleep(LEADER_POLL_SECONDS)

    def hear(self, partitions: Sequence[TopicPartition], *, isolation: str) -> dict[TopicPartition, Heard]:
        """All records of all ``partitions`` in one go, at an isolation level; CRCs are checked."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "hearer",
                "check.crcs": True,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "isolation.level": isolation,
            }
        )
        heard: dict[TopicPartition, list[Seen]] = {tp: [] for tp in partitions}
        ends: dict[TopicPartition, int] = {}
        try:
            starts = {
                tp: consumer.get_watermark_offsets(KafkaPartition(*tp), timeout=TIMEOUT_SECONDS)[0] for tp in partitions
            }
            consumer.assign([KafkaPartition(*tp, start) for tp, start in starts.items()])
            while len(ends) < len(heard):
                message = consumer.poll(TIMEOUT_SECONDS)
                assert message is not None, f"nothing more of {sorted(set(heard) - set(ends))}"
                tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
                error = message.error()
                if error is None:
                    heard[tp].append(_seen(message))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, (tp, error)
                    ends[tp] = int(message.offset() or 0)
        finally:
            consumer.close()
        return {tp: Heard(starts[tp], ends[tp], records) for tp, records in heard.items()}

    def offset_for_time(self, tp: TopicPartition, timestamp: int) -> int:
        """Kafka's answer to "the first record at or after", -1 if there is none."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "reader", "isolation.level": "read_uncommitted"}
        )
        try:
            [found] = consumer.offsets_for_times([KafkaPartition(*tp, timestamp)], timeout=TIMEOUT_SECONDS)
            start, end = consumer.get_watermark_offsets(KafkaPartition(*tp), timeout=TIMEOUT_SECONDS)
            return int(found.offset) if start <= found.offset < end else -1
        finally:
            consumer.close()

    def said(self) -> list[str]:
        """Lines of the broker's log since its last start."""
        with (self.work / "server.log").open("rb") as log:
            log.seek(self._said)
            return log.read().decode(errors="replace").splitlines()

    def complaints(self, partitions: Sequence[TopicPartition], pattern: str = "WARN|ERROR|FATAL") -> list[str]:
        """Lines since the last start, warnings and errors as a rule, that name one of the partitions."""
        names = re.compile("|".join(re.escape(str(tp)) for tp in partitions))
        return [line for line in self.said() if re.search(pattern, line) and names.search(line)]
