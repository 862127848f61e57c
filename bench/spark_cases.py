"""Figures of Spark's source, sink, jobs that need no session: planner, idle trigger, a task of the sink, of a scrub."""

from __future__ import annotations

import dataclasses
import random
import tempfile
import time
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.streaming.datasource import ReadAllAvailable

import tiered
from bench.measure import Figure, compare
from tiered.check.check import cut_steps, part_steps
from tiered.config import TopicConfig
from tiered.format.kernels import crc32c
from tiered.format.keys import Role, root_key
from tiered.format.root import Root, decode_root, encode_root
from tiered.format.rows import Rows
from tiered.model import EpochEntry, NewRecord, Row, TopicPartition
from tiered.plan.commit import Stamp, create_root, succeed
from tiered.remote.reader import RemotePartition
from tiered.remote.topics import register_topic
from tiered.spark.options import ReadOptions, StreamOptions
from tiered.spark.ranges import resolve_pieces
from tiered.spark.schema import WriteSchema, kafka_schema
from tiered.spark.slices import cut_slices
from tiered.spark.staging import Job, SinkTopic, TaskStaging
from tiered.spark.stream import TieredStreamReader
from tiered.store.base import ABSENT, Capabilities, Get, Match, Object, Put
from tiered.store.directory import DirectoryStore
from tiered.store.driver import Runner, drive
from tiered.store.location import open_store
from tiered.store.steps import list_all

SEGMENTS = 20_000
SEGMENT_BYTES = 4000
RECORDS = 100
IDLE_PARTITIONS = 1000
STAGED_BYTES = 20_000_000
SCRUBBED_BYTES = 64_000_000
TOPIC = "bench"
TOPIC_ID = UUID(int=1)


def _many_segments(store: DirectoryStore) -> None:
    """A topic of one partition whose root names ``SEGMENTS`` small segments; planning looks at no object of them."""
    drive(store, register_topic(TOPIC, TOPIC_ID, 1, {}))
    rows = Rows.from_rows(
        [
            Row(at * RECORDS, (at + 1) * RECORDS, at, at, SEGMENT_BYTES, at, at + 1, at + 1, 100, 1, RECORDS, 0, 0)
            for at in range(SEGMENTS)
        ]
    )
    key = root_key(TOPIC_ID, 0)
    found = store.execute(Get(key))
    condition = Match(found.etag) if isinstance(found, Object) else ABSENT
    first = Stamp("0" * 31 + "1", 1, Role.WRITER, 1, "bench")
    old: Root = (
        decode_root(found.data, key=key) if isinstance(found, Object) else create_root(TOPIC_ID, 0, TOPIC, first)
    )
    root = succeed(
        old,
        dataclasses.replace(first, commit_id="0" * 31 + "2"),
        "append",
        role=dataclasses.replace(old.writer, epoch=1, seq=1),
        rows=rows,
        next_offset=SEGMENTS * RECORDS,
        lineage=(EpochEntry(0, 0),),
        added=rows.tally,
    )
    store.execute(Put(key, encode_root(root), condition))


def spark_planning(rounds: int) -> list[Figure]:
    """20,000 small segments to slices, beside reading and checking the root that names them."""
    with tempfile.TemporaryDirectory() as folder:
        store = DirectoryStore(Path(folder))
        _many_segments(store)
        options = ReadOptions.parse({"path": folder, "subscribe": TOPIC})

        def ours() -> None:
            slices = cut_slices(resolve_pieces(options, store), slice_bytes=options.slice_bytes)
            assert [len(part.pieces[0].rows) for part in slices] == [SEGMENTS]

        return [
            compare(
                "plan a Spark query of 20,000 segments",
                ours,
                units=SEGMENTS,
                unit="segments/s",
                peer="its root read and checked",
                theirs=lambda: drive(store, RemotePartition(TopicPartition(TOPIC, 0), TOPIC_ID).refresh()),
                rounds=rounds,
            )
        ]


def spark_triggers(rounds: int) -> list[Figure]:
    """A trigger of a stream that finds nothing new in any partition, beside a GET of each root, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        store = DirectoryStore(Path(folder))
        drive(store, register_topic(TOPIC, TOPIC_ID, IDLE_PARTITIONS, {}))
        options = StreamOptions.parse({"path": folder, "subscribe": TOPIC, "startingOffsets": "earliest"})
        reader = TieredStreamReader(options, kafka_schema(include_headers=False))
        start = reader.initialOffset()

        def theirs() -> None:
            for partition in range(IDLE_PARTITIONS):
                assert isinstance(store.execute(Get(root_key(TOPIC_ID, partition))), Object)

        return [
            compare(
                f"idle trigger of a stream of {IDLE_PARTITIONS:,} partitions, wall",
                lambda: reader.latestOffset(start, ReadAllAvailable()),
                units=IDLE_PARTITIONS,
                unit="partitions/s",
                peer="a GET of each root",
                theirs=theirs,
                rounds=rounds,
                clock=time.perf_counter,
            )
        ]


def spark_staging(rounds: int) -> list[Figure]:
    """Rows of one task of the sink, from Arrow to staged segments in a directory, beside a Parquet file of the same."""
    return [_staging(size, rounds) for size in (100, 1024)]


def _staging(size: int, rounds: int) -> Figure:
    count = STAGED_BYTES // size
    names = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    keys = pa.array([b"key-%012d" % at for at in range(count)], pa.binary())
    values = pa.array([b"%012d" % at * (size // 12) for at in range(count)], pa.binary())
    table = pa.Table.from_arrays([keys, values], schema=names)
    with tempfile.TemporaryDirectory() as folder:
        store = DirectoryStore(Path(folder))
        topic = SinkTopic(TOPIC, TOPIC_ID, 3, TopicConfig())
        schema = WriteSchema({"key": 0, "value": 1})
        trusted = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=True)

        def ours() -> None:
            staging = TaskStaging(store, schema, lambda _: topic, Job("bench", 0, 0), trusted)
            staged = staging.write(iter(table.to_batches(max_chunksize=10_000)))
            assert sum(segment.row.records for segment in staged) == count

        def theirs() -> None:
            with parquet.ParquetWriter(f"{folder}/peer.parquet", names, compression="none") as writer:
                for batch in table.to_batches(max_chunksize=10_000):
                    writer.write_batch(batch)

        return compare(
            f"stage rows of a Spark task, {size} B",
            ours,
            units=count * size / 1e6,
            unit="MB/s",
            peer="pyarrow: Parquet, uncompressed",
            theirs=theirs,
            rounds=rounds,
        )


def scrub(rounds: int) -> list[Figure]:
    """One part of the job ``scrub``, every byte and record of it, beside reading the same files and their CRC32C."""
    return [_scrub(size, rounds) for size in (100, 1024)]


def _scrub(size: int, rounds: int) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        url = f"file://{folder}/bucket"
        with tiered.open(f"{folder}/log", remote=url) as log:
            topic = log.topic(TOPIC, create=True, config={"segment.bytes": SCRUBBED_BYTES // 3})
            body = random.Random(1).randbytes(size)
            for at in range(0, SCRUBBED_BYTES // size, 500):
                topic.append_many([NewRecord(body, b"key-%d" % (at + each), 1 + at) for each in range(500)])
            log.sync(timeout=600)
        store = open_store(url)
        (part,) = Runner(store).run(cut_steps(url), take=lambda _: None)[1]
        keys = [entry.key for entry in drive(store, list_all("")) if entry.key.endswith(".log")]

        def ours() -> None:
            report = Runner(store).run(part_steps(part), take=lambda _: None)
            assert (report.exit_code, report.data_bytes_read) == (0, part.size_bytes)

        def theirs() -> None:
            for key in keys:
                found = store.execute(Get(key, max_bytes=SCRUBBED_BYTES))
                assert isinstance(found, Object)
                crc32c(found.data)

        return compare(
            f"scrub segments of {size} B records",
            ours,
            units=part.size_bytes / 1e6,
            unit="MB/s",
            peer="the objects read, CRC32C",
            theirs=theirs,
            rounds=rounds,
        )
