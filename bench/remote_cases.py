"""Figures of the cold tier: what an upload costs its client, rewrites of the bucket, and what a daemon does with many
segments that wait."""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from uuid import UUID

import boto3

import tiered
from bench.daemon_cases import IN_MEMORY
from bench.directories import CONFIG, QuickFiles
from bench.measure import Figure, compare
from bench.sink import sink
from tiered.config import TopicConfig
from tiered.engine.drain import DrainMode
from tiered.format.batch import decode_records, encode_batch
from tiered.format.batch_scanner import walk_headers
from tiered.format.kernels import crc32c
from tiered.format.root import CompactedRange
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.sealed import FileSource
from tiered.model import NewRecord, Row, SealedIndexes, SegmentDescriptor, TopicPartition
from tiered.plan.cleaning import LogState
from tiered.plan.maintenance import CompactionPlanner
from tiered.remote.catalog_view import CatalogView
from tiered.remote.compact import Compaction
from tiered.remote.fetch import ByteCache
from tiered.remote.lookup import SegmentLookup
from tiered.remote.root_view import RootView
from tiered.remote.segment_rewriter import RewriteContext, merge_rows
from tiered.remote.topics import load_topic
from tiered.remote.upload import upload_segment
from tiered.store.base import ABSENT, Capabilities, Get, Object, Put, Steps, Store
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import S3Target
from uploader.config import Settings
from uploader.service import Service, ServicePlace, serve

MB = 1e6
UPLOAD_BYTES = 48 * 1024 * 1024
"""One PUT of ours; several parts of boto3's ``upload_file``."""
PIECE_BYTES = 1024 * 1024
SMALL_SEGMENTS = 64
SEGMENT_BYTES = 256 * 1024
KEYS = 1000
MANY, FEW = 1_000, 100
TRUSTED = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=True)


# -- uploads ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sealed:
    """One file as a sealed segment."""

    path: Path
    descriptor: SegmentDescriptor

    def open_log(self) -> FileSource:
        """Its bytes."""
        return FileSource(PosixFiles(), self.path, self.descriptor.size_bytes, sync=False)

    def indexes(self) -> SealedIndexes:
        """None to speak of."""
        return SealedIndexes(b"", b"", b"", b"")


def _sealed(path: Path) -> _Sealed:
    batch = encode_batch([NewRecord(b"v" * 1000, None, 1_700_000_000_000)] * 1000)
    path.write_bytes(data := (batch * (UPLOAD_BYTES // len(batch) + 1))[:UPLOAD_BYTES])
    return _Sealed(
        path,
        SegmentDescriptor(
            topic_id=UUID(int=3),
            partition=0,
            base_offset=0,
            end_offset=1000,
            min_timestamp=0,
            max_timestamp=1,
            records=1000,
            size_bytes=len(data),
            crc32c=crc32c(data),
            leader_epoch=0,
        ),
    )


def _raw_put(port: int, path: Path) -> None:
    """What sending a file costs at least."""
    buffer = bytearray(PIECE_BYTES)
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"PUT /bench/raw HTTP/1.1\r\nHost: bench\r\nContent-Length: {size}\r\n\r\n".encode())
        while length := file.readinto(buffer):
            connection.sendall(memoryview(buffer)[:length])
        connection.recv(4096)


def upload_cost(rounds: int) -> list[Figure]:
    """A sealed segment to a server that keeps nothing: CPU and time of the client, beside a socket and beside boto3."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder, sink() as port:
        url = f"http://127.0.0.1:{port}"
        segment = _sealed(Path(folder) / "segment.log")
        store = S3Store(S3Target("bench", endpoint_url=url, region="us-east-1"))
        client = boto3.Session().client("s3", endpoint_url=url, region_name="us-east-1")

        def ours() -> None:
            steps = upload_segment(segment, claim_epoch=1, capabilities=TRUSTED)
            drive(store, steps)

        boto3_upload = partial(client.upload_file, str(segment.path), "bench", "plain")
        peers: list[tuple[str, str, Callable[[], object]]] = [
            ("a socket", "PUT through a socket", partial(_raw_put, port, segment.path)),
            ("boto3", "boto3 upload_file", boto3_upload),
        ]
        for (short, peer, theirs), (word, clock) in itertools.product(
            peers, (("CPU", time.process_time), ("wall", time.perf_counter))
        ):
            figures.append(
                compare(
                    f"upload of a segment and its indexes, {word}, beside {short}",
                    ours,
                    units=UPLOAD_BYTES / MB,
                    unit="MB/s",
                    peer=peer,
                    theirs=theirs,
                    rounds=rounds,
                    clock=clock,
                )
            )
        store.close()
        client.close()
    return figures


# -- rewrites --------------------------------------------------------------------------------------------------------


class _Bucket:
    """A partition of many small segments in a memory store: each key many times."""

    def __init__(self) -> None:
        name = f"memory://bench-rewrites-{os.getpid()}"
        config = {"segment.bytes": SEGMENT_BYTES, "cleanup.policy": "compact"}
        with tempfile.TemporaryDirectory() as folder, tiered.open(Path(folder) / "log", remote=name) as log:
            topic = log.topic("t", partitions=1, create=True, config=config)
            for at in range(0, SMALL_SEGMENTS * SEGMENT_BYTES // 1000, 50):
                keys = [b"C-%013d" % (number % KEYS) for number in range(at, at + 50)]
                topic.append_many([NewRecord(b"v" * 1000, key, 1_700_000_000_000) for key in keys], partition=0)
            log.sync(timeout=120)
        self.store: Store = StoreLocation.parse(name).open()
        entry = drive(self.store, load_topic("t"))
        assert entry is not None
        snapshot = drive(self.store, RootView(entry.topic_id, 0, "t").pin())
        assert snapshot is not None
        self.snapshot: CatalogView = snapshot
        self.rows = [*drive(self.store, snapshot.piece(0))]
        self.size = sum(row.size for row in self.rows)
        self.tp = TopicPartition("t", 0)
        self.context = RewriteContext(
            tp=self.tp,
            topic_id=entry.topic_id,
            lookup=SegmentLookup(self.tp, entry.topic_id, ByteCache()),
            capabilities=TRUSTED,
            claim_epoch=1,
            index_interval_bytes=4096,
            lineage=self.snapshot.root.lineage,
        )
        self.copies = itertools.count()

    def merge(self) -> None:
        """All of it as one segment; nothing is committed, so that it can be done again."""
        drive(self.store, merge_rows(self.context, self.rows))

    def copy(self) -> None:
        """The same bytes through the same store."""
        data = b"".join([self._data(row) for row in self.rows])
        self.store.execute(Put(f"copy/{next(self.copies)}", data, ABSENT, crc32c(data)))

    def compact(self) -> None:
        """A round over all of it."""
        config = TopicConfig(cleanup_policy="compact", segment_bytes=SEGMENT_BYTES * 16)
        end = self.snapshot.next_offset
        planner = CompactionPlanner(LogState(self.tp, config, (), 0, end, end, end), 1_800_000_000_000)
        planner.add(self.rows)
        candidate = planner.candidate()

        def commit(_old: Sequence[Row], _new: Row, _cleaned: CompactedRange | None) -> Steps[None]:
            yield from ()

        work = Compaction(self.context, self.snapshot, config, candidate, now_ms=1_800_000_000_000)
        drive(self.store, work.run(commit))

    def decode(self) -> None:
        """Every record, once."""
        for row in self.rows:
            data = memoryview(self._data(row))
            for position, header in walk_headers(data):
                for _ in decode_records(data[position : position + header.size_bytes]):
                    pass

    def _data(self, row: Row) -> bytes:
        found = self.store.execute(Get(self.context.lookup.log_key(row)))
        assert isinstance(found, Object)
        return found.data


def rewrites(rounds: int) -> list[Figure]:
    """Merging and keyed compaction of the bucket, from and to a store in memory."""
    bucket = _Bucket()
    common = {"units": bucket.size / MB, "unit": "MB/s", "rounds": rounds}
    return [
        compare(
            f"merge {len(bucket.rows)} segments into one",
            bucket.merge,
            peer="GET and PUT",
            theirs=bucket.copy,
            **common,
        ),
        compare(
            "compact in the bucket",
            bucket.compact,
            peer="GET and decoding once",
            theirs=bucket.decode,
            **common,
        ),
    ]


# -- the daemon ------------------------------------------------------------------------------------------------------


def _log(path: Path, partitions: int, segments: int, value_bytes: int) -> int:
    """Partitions whose sealed segments nobody has uploaded yet; returns their bytes."""
    size = 0
    with LocalLog.open(path, files=QuickFiles(), config=CONFIG) as log:
        log.create_topic("t", partitions)
        for tp in log.partitions():
            for _ in range(segments):
                log.partition(tp).append([NewRecord(b"x" * value_bytes)])
                log.partition(tp).roll()
            size += sum(segment.size_bytes for segment in log.partition(tp).sealed_segments())
    return size


def _drained(path: Path, remote: str) -> Service:
    """The daemon, until everything is in the bucket."""
    service = Service(ServicePlace(path, StoreLocation.parse(remote)), Settings(http=None))
    logging.disable(logging.WARNING)
    try:
        ending = asyncio.run(serve(service, oneshot=DrainMode.ALL))
    finally:
        logging.disable(logging.NOTSET)
    if ending.code:
        raise RuntimeError(f"the daemon ended with {ending}")
    return service


def catch_up(rounds: int) -> list[Figure]:
    """A daemon that finds what an outage has left behind: 16 partitions with 8 segments of 1 MiB each."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        logs, objects = itertools.count(), itertools.count()
        paths = [Path(folder) / str(at) for at in range(rounds + 1)]
        size = max([_log(path, 16, 8, PIECE_BYTES - 200) for path in paths])
        plain = sorted(paths[0].glob("t-*/*.log"))
        store = StoreLocation.parse(f"memory://bench-plain-{os.getpid()}").open()

        def ours() -> None:
            at = next(logs)
            _drained(paths[at], f"memory://bench-behind-{os.getpid()}-{at}")

        def theirs() -> None:
            for path in plain:
                data = path.read_bytes()
                store.execute(Put(f"plain/{next(objects)}", data, ABSENT, crc32c(data)))

        return [
            compare(
                "catch up after an outage, 128 segments of 1 MiB",
                ours,
                units=size / MB,
                unit="MB/s",
                peer="read, checksum, PUT",
                theirs=theirs,
                rounds=rounds,
                clock=time.perf_counter,
            )
        ]


def _peak(path: str, remote: str, answer: Connection) -> None:
    service = _drained(Path(path), remote)
    # Not what getrusage says: a process that is started takes the peak of its parent over, which other rows made.
    said = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if said is None:
        raise RuntimeError("this system does not tell the peak of a process alone")
    answer.send((int(said[1]) / 1024, len(service.committed)))


def _daemon_mib(folder: Path, partitions: int) -> float:
    """Peak of a daemon in a process of its own."""
    path = folder / str(partitions)
    _log(path, partitions, 1, 200)
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=_peak, args=(str(path), f"file://{folder}/bucket-{partitions}", theirs))
    process.start()
    peak, committed = mine.recv()
    process.join()
    if committed != partitions:
        raise RuntimeError(f"{committed} of {partitions} partitions were committed")
    return float(peak)


def daemon_memory(rounds: int) -> list[Figure]:
    """Memory of a daemon that holds many partitions, beside one that holds a tenth."""
    del rounds  # one run each
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        few, many = (_daemon_mib(Path(folder), count) for count in (FEW, MANY))
    return [Figure(f"daemon with {MANY:,} partitions, peak memory", "MiB", many, f"with {FEW}", few, few / many)]
