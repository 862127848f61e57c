"""The figures: append, encode, decode, verify, read, upload, each beside a peer in the same run where there is one."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import boto3
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from botocore.config import Config
from confluent_kafka import Producer

import tiered
from bench.arrow_cases import arrow
from bench.bulk_plan import spark_bulk_plan
from bench.catalog_cases import catalog
from bench.consumer_cases import consumers
from bench.daemon_cases import daemon_partitions
from bench.directories import many_partitions, unclean_open
from bench.disk_cases import group_commit, random_reads, transactions
from bench.follow_cases import follow
from bench.idle_cases import daemon_idle
from bench.local_cases import compaction
from bench.measure import Figure, compare
from bench.minio_cases import minio
from bench.recovery_cases import cold_start, recovery
from bench.remote_cases import catch_up, daemon_memory, rewrites, upload_cost
from bench.spark_cases import scrub, spark_planning, spark_staging, spark_triggers
from bench.spark_scans import spark_scans
from bench.start_cases import index_lookup, start
from tests.support.moto import locked_moto
from tiered.format.batch import decode_records, encode_batch, verify_batch
from tiered.format.batch_scanner import walk_headers
from tiered.model import NewRecord

RECORD_KEY = b"C-%013d"
VALUE = (b'{"carrier":"UA","flight":1545,"origin":"EWR","dest":"IAH","delay":2}' * 2)[:84]
BATCH_RECORDS = 146
BATCHES = 200
APPENDS = 20_000
UPLOAD_BYTES = 64 * 1024 * 1024
MB = 1e6


def _records(count: int, value_bytes: int = 84) -> list[NewRecord]:
    value = (VALUE * (1 + value_bytes // len(VALUE)))[:value_bytes]
    return [NewRecord(value, RECORD_KEY % i, 1_700_000_000_000 + i, None) for i in range(count)]


SHAPES = (
    ("100 B", 84, "16 KiB", 146),
    ("100 B", 84, "1 MiB", 9362),
    ("1 KiB", 1008, "16 KiB", 15),
    ("1 KiB", 1008, "1 MiB", 1012),
)
"""Records and batches: bytes of a value beside a key of 16, records of a batch."""


def encode(rounds: int) -> list[Figure]:
    """Records to batches, beside aiokafka's builder."""
    return [_encoded(rounds, *shape) for shape in SHAPES]


def _encoded(rounds: int, size: str, value_bytes: int, batch: str, count: int) -> Figure:
    records = _records(count, value_bytes)
    times = max(1, BATCH_RECORDS * BATCHES // count // (value_bytes // 84))

    def ours() -> None:
        for _ in range(times):
            encode_batch(records)

    def theirs() -> None:
        for _ in range(times):
            builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 22)
            for at, (value, key, timestamp, _) in enumerate(records):
                builder.append(at, timestamp, key, value, [])
            builder.build()

    what = f"encode {size} records, {batch} batches"
    return compare(what, ours, units=count * times, unit="records/s", peer="aiokafka", theirs=theirs, rounds=rounds)


def decode(rounds: int) -> list[Figure]:
    """Batches to records whose key and value are read, beside aiokafka's."""
    return [_decoded(rounds, *shape) for shape in SHAPES if shape[2] == "16 KiB"]


def _decoded(rounds: int, size: str, value_bytes: int, batch: str, count: int) -> Figure:
    data = encode_batch(_records(count, value_bytes))
    times = BATCH_RECORDS * BATCHES // count

    def ours() -> None:
        for _ in range(times):
            for record in decode_records(data):
                _ = record.key, record.value

    def theirs() -> None:
        for _ in range(times):
            for record in MemoryRecords(data).next_batch():
                _ = record.key, record.value

    what = f"decode {size} records, {batch} batches"
    return compare(what, ours, units=count * times, unit="records/s", peer="aiokafka", theirs=theirs, rounds=rounds)


def verify(rounds: int) -> list[Figure]:
    """CRC and structure of every batch of 64 MiB, beside reading the same file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "segment.log"
        batch = encode_batch(_records(BATCH_RECORDS))
        path.write_bytes(batch * (UPLOAD_BYTES // len(batch)))
        size = path.stat().st_size

        def ours() -> None:
            data = memoryview(path.read_bytes())
            for position, header in walk_headers(data):
                verify_batch(data[position : position + header.size_bytes], header)

        return [
            compare(
                "scan and verify a segment",
                ours,
                units=size / MB,
                unit="MB/s",
                peer="read() of the file",
                theirs=path.read_bytes,
                rounds=rounds,
            )
        ]


def _one_by_one(topic: tiered.Topic) -> None:
    for at in range(APPENDS):
        topic.append(VALUE, key=RECORD_KEY % at)


def _buffered(topic: tiered.Topic) -> None:
    with topic.appender() as appender:
        for at in range(APPENDS):
            appender.append(VALUE, key=RECORD_KEY % at)


def _lists(topic: tiered.Topic) -> None:
    for at in range(0, APPENDS, 500):
        topic.append_many([NewRecord(VALUE, RECORD_KEY % i) for i in range(at, at + 500)])


def _produced(producer: Producer | None) -> None:
    assert producer is not None
    for at in range(APPENDS):
        producer.produce("bench", VALUE, RECORD_KEY % at)
    producer.purge()


def _written(folder: Path) -> None:
    """The bytes of a batch of one record, at the end of a file each."""
    one = encode_batch([NewRecord(VALUE, RECORD_KEY % 0, 1_700_000_000_000, None)])
    descriptor = os.open(folder / "plain", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for at in range(APPENDS):
        os.pwrite(descriptor, one, at * len(one))
    os.close(descriptor)


class _Prepared:
    """A log or a producer, new for each round: no figure has what opening it costs, or the other's threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = itertools.count()
        self._log: tiered.Log | None = None
        self.topic: tiered.Topic
        self.client: Producer | None = None

    def log(self) -> None:
        """An empty log is open, and nothing else."""
        self.close()
        self._log = tiered.open(self._folder / str(next(self._names)))
        self.topic = self._log.topic("bench", partitions=1, create=True)

    def peer(self) -> None:
        """A producer without broker is there, and nothing else."""
        self.close()
        self.client = Producer(
            {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": APPENDS * 2, "log_level": 0}
        )

    def close(self) -> None:
        """Of what is there."""
        self.client = None
        if self._log is not None:
            self._log.close()
            self._log = None


def append(rounds: int) -> list[Figure]:
    """Records into the page cache: one by one, through an appender (all of it is written), and in lists of 500."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        made = _Prepared(Path(name))
        confluent: tuple[str, Callable[[], None]] = ("confluent produce()", lambda: _produced(made.client))
        rows: list[tuple[str, Callable[[tiered.Topic], None], tuple[str, Callable[[], None]]]] = [
            ("append one at a time, 100 B", _one_by_one, confluent),
            ("append one at a time, beside its write", _one_by_one, ("pwrite of it", partial(_written, Path(name)))),
            ("append one at a time through an appender, 100 B", _buffered, confluent),
            ("append_many of 500, 100 B", _lists, confluent),
        ]
        figures = [
            compare(
                what,
                lambda use=use: use(made.topic),  # type: ignore[misc]  # of this row
                units=APPENDS,
                unit="records/s",
                peer=peer,
                theirs=theirs,
                rounds=rounds,
                prepare=made.log,
                prepare_peer=made.peer if peer == confluent[0] else made.close,
            )
            for what, use, (peer, theirs) in rows
        ]
        made.close()
        return figures


def read(rounds: int) -> list[Figure]:
    """A local log and a remote one (directory store), to records; beside aiokafka decoding the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        remote = f"file://{folder}/store"
        with tiered.open(Path(folder) / "log", remote=remote) as log:
            topic = log.topic("bench", partitions=1, create=True, config={"segment.bytes": 4 * 1024 * 1024})
            for at in range(0, 100_000, 500):
                topic.append_many(_records(500), partition=0)
                del at
            log.sync(timeout=120)
            data = b"".join(bytes(batch.data) for batch in topic.stream(0).batches(0))

            def theirs() -> None:
                records = MemoryRecords(data)
                while (batch := records.next_batch()) is not None:
                    for record in batch:
                        _ = record.key, record.value

            def local() -> None:
                for record in topic.read(0):
                    _ = record.key, record.value

            def cold() -> None:
                with tiered.open_reader(remote) as reader:
                    for record in reader.topic("bench").read(0):
                        _ = record.key, record.value

            common = {"units": len(data) / MB, "unit": "MB/s", "peer": "aiokafka decode", "rounds": rounds}
            return [
                compare("read the local tier to records", local, theirs=theirs, **common),  # type: ignore[arg-type]  # one dict
                compare("read a directory store to records", cold, theirs=theirs, **common),  # type: ignore[arg-type]  # one dict
            ]


def upload(rounds: int) -> list[Figure]:
    """One 64 MiB segment to an S3 server on loopback, client CPU, beside plain boto3 put_object."""
    with tempfile.TemporaryDirectory() as folder, locked_moto() as endpoint:
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
        client = boto3.Session().client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket="bench")
        batch = encode_batch(_records(BATCH_RECORDS))
        data = batch * (UPLOAD_BYTES // 4 // len(batch))
        counter = iter(range(1_000_000))

        def ours() -> None:
            log_dir = Path(folder) / f"log-{next(counter)}"
            with tiered.open(log_dir, remote=f"s3://bench/{log_dir.name}", endpoint_url=endpoint) as log:
                topic = log.topic("bench", partitions=1, create=True, config={"max.message.bytes": 64 * 1024 * 1024})
                topic.append_batches(data)
                log.sync(timeout=60)

        def theirs() -> None:
            client.put_object(Bucket="bench", Key=f"plain-{next(counter)}", Body=data)

        figure = compare(
            "append, seal, upload, commit 16 MiB (server in process)",
            ours,
            units=len(data) / MB,
            unit="MB/s",
            peer="boto3 put_object",
            theirs=theirs,
            rounds=rounds,
        )
        client.close()
        return [figure]


CASES = (
    encode,
    decode,
    arrow,
    verify,
    index_lookup,
    start,
    append,
    read,
    follow,
    consumers,
    upload,
    group_commit,
    transactions,
    random_reads,
    many_partitions,
    unclean_open,
    recovery,
    cold_start,
    compaction,
    daemon_partitions,
    spark_planning,
    spark_bulk_plan,
    spark_triggers,
    spark_staging,
    spark_scans,
    scrub,
    catalog,
    upload_cost,
    minio,
    rewrites,
    catch_up,
    daemon_memory,
    daemon_idle,
)

SHORT = (encode, decode)
"""What CI measures at each run: computing alone, beside a peer that only computes, whose ratio a busy machine keeps."""
