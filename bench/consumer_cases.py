"""A consumer of a group that commits every 1,000 records, beside aiokafka's at a broker on this machine.

The broker is ``localstack/kafka``. Both have one partition with the same records and no member beside them. Opening a
consumer is in no figure. CPU is that of this process alone: the broker's work is not counted, ours is.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import tiered
from bench.measure import Figure, compare

SERVER = Path(__file__).resolve().parents[1] / "localstack" / "kafka"
RECORDS, COMMIT_EVERY = 100_000, 1_000
VALUE = b"x" * 84


def consumers(rounds: int) -> list[Figure]:
    """Measure CPU and wall time; no row where the broker is not installed."""
    if subprocess.run([str(SERVER), "check"], check=False, capture_output=True).returncode:
        print("bench: Kafka is not installed, its rows are left out: localstack/kafka install", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder, _broker(Path(folder) / "kafka") as bootstrap:
        theirs = _Theirs(bootstrap)
        with tiered.open(Path(folder) / "log") as log:
            ours = _Ours(log)
            figures = [
                compare(
                    f"consumer that commits every {COMMIT_EVERY:,} records, {name}",
                    ours.read,
                    units=RECORDS,
                    unit="records/s",
                    peer="aiokafka's consumer, a broker on loopback",
                    theirs=theirs.read,
                    rounds=rounds,
                    clock=clock,
                    prepare=ours.open,
                    prepare_peer=theirs.open,
                )
                for name, clock in (("CPU", time.process_time), ("wall", time.perf_counter))
            ]
        theirs.loop.close()
        return figures


@contextmanager
def _broker(work: Path) -> Iterator[str]:
    """Its address."""
    work.mkdir()
    begin = [str(SERVER), "start", str(work), "0"]
    said = subprocess.run(begin, check=True, capture_output=True, text=True).stdout
    words = [shlex.split(line)[1] for line in said.splitlines() if line.startswith("export ")]
    try:
        yield dict(word.split("=", 1) for word in words)["KAFKA_BOOTSTRAP"]
    finally:
        subprocess.run([str(SERVER), "stop", str(work)], check=False, capture_output=True)


class _Ours:
    """The log, and a consumer that is new for each round."""

    def __init__(self, log: tiered.Log) -> None:
        self._log = log
        self._names = itertools.count()
        topic = log.topic("bench", create=True)
        for _ in range(0, RECORDS, 500):
            topic.append_many([VALUE] * 500)

    def open(self) -> None:
        self._consumer = self._log.consumer(f"g{next(self._names)}", "bench", stop_at="end")

    def read(self) -> None:
        count = 0
        with self._consumer as consumer:
            while found := consumer.poll(COMMIT_EVERY, timeout=0):
                count += sum(record.value is not None for record in found)
                consumer.commit()
        if count != RECORDS:
            raise RuntimeError(f"{count} of {RECORDS} records were read")


class _Theirs:
    """The broker's topic, and a consumer that is new for each round. It is assigned, which spares it the joining."""

    def __init__(self, bootstrap: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._bootstrap = bootstrap
        self._names = itertools.count()
        self.loop.run_until_complete(self._produce())

    async def _produce(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic("bench", 1, 1)])
        await admin.close()
        async with AIOKafkaProducer(bootstrap_servers=self._bootstrap, linger_ms=5) as producer:
            for _ in range(0, RECORDS, COMMIT_EVERY):
                sent = [await producer.send("bench", VALUE, partition=0) for _ in range(COMMIT_EVERY)]
                await asyncio.gather(*sent)

    def open(self) -> None:
        self.loop.run_until_complete(self._open())

    async def _open(self) -> None:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=f"g{next(self._names)}",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        self._consumer.assign([KafkaPartition("bench", 0)])
        await self._consumer.start()

    def read(self) -> None:
        self.loop.run_until_complete(self._read())

    async def _read(self) -> None:
        count = 0
        while count < RECORDS:
            found = await self._consumer.getmany(timeout_ms=1000, max_records=COMMIT_EVERY)
            count += sum(record.value is not None for records in found.values() for record in records)
            await self._consumer.commit()
        await self._consumer.stop()
