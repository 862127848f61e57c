"""Segments to and from a real MinIO (``localstack/minio``), beside boto3, a socket and, where it is installed, obstore.

Client CPU is that of this process, all its threads; the server is another one on the same machine.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import boto3

import tiered
from bench.measure import Figure, compare
from tiered.format.batch import encode_batch
from tiered.model import NewRecord

SERVER = Path(__file__).resolve().parents[1] / "localstack" / "minio"
BUCKET = "bench"
MIB = 1024 * 1024
SEGMENT_BYTES = 64 * MIB
READ_SEGMENTS = 4
OBSTORE_RANGE_BYTES = 4 * MIB
OBSTORE_TOGETHER = 8
PIECE_BYTES = MIB
COMMITS = 200
CPU_AND_WALL = (("CPU", time.process_time), ("wall", time.perf_counter))

Peers = list[tuple[str, str, Callable[[], object]]]


def minio(rounds: int) -> list[Figure]:
    """Cold reads and uploads; no row where the server is not installed."""
    if subprocess.run([str(SERVER), "check"], check=False, capture_output=True).returncode:
        print("bench: MinIO is not installed, its rows are left out: localstack/minio install", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder) / "server") as url:
        client = boto3.Session().client("s3", endpoint_url=url, region_name="us-east-1")
        try:
            return [
                *_cold_reads(rounds, client, url, Path(folder)),
                *_uploads(rounds, client, url, Path(folder)),
                _commits(rounds, client, url),
            ]
        finally:
            client.close()


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Its URL; its credentials are in the environment meanwhile."""
    begin = [str(SERVER), "start", "--port", "0", "--bucket", BUCKET, "--dir", str(folder)]
    said = subprocess.run(begin, check=True, capture_output=True, text=True).stdout
    words = [shlex.split(line)[1] for line in said.splitlines() if line.startswith("export ")]
    exported = dict(word.split("=", 1) for word in words)
    before = {name: os.environ.get(name) for name in exported}
    url = exported.pop("TIERED_ENDPOINT_URL")
    os.environ.update(exported)
    try:
        yield url
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        subprocess.run([str(SERVER), "stop", "--dir", str(folder)], check=False, capture_output=True)


def _batches() -> bytes:
    """1 MiB of batches of 15 records of 1 KiB."""
    one = encode_batch([NewRecord(os.urandom(1008), b"C-%013d" % at, 1_700_000_000_000 + at) for at in range(15)])
    return one * (MIB // len(one))


def _filled(folder: Path, remote: str, url: str, size: int) -> tiered.Log:
    """A log whose active segment holds ``size`` bytes, flushed."""
    log = tiered.open(folder, remote=remote, endpoint_url=url)
    config = {"segment.bytes": SEGMENT_BYTES, "max.message.bytes": 2 * MIB}
    topic = log.topic("t", partitions=1, create=True, config=config)
    data = _batches()
    for _ in range(size // len(data)):
        topic.append_batches(data)
    log.flush()
    return log


def _cold_reads(rounds: int, client: Any, url: str, folder: Path) -> list[Figure]:
    """All batches of a partition, verified, by a reader that knows nothing yet."""
    remote = f"s3://{BUCKET}/cold"
    with _filled(folder / "cold", remote, url, READ_SEGMENTS * SEGMENT_BYTES) as log:
        log.sync(timeout=300)
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix="cold/")["Contents"]
    objects = [(each["Key"], each["Size"]) for each in listed if each["Key"].endswith(".log")]
    total = sum(size for _, size in objects)

    def ours() -> None:
        with tiered.open_reader(remote, endpoint_url=url) as reader:
            read = sum(len(batch.data) for batch in reader.topic("t").stream(0).batches(0))
        if read != total:
            raise RuntimeError(f"{read} of {total} bytes were read")

    def plain() -> None:
        for key, _ in objects:
            client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    peers: Peers = [("boto3", "get_object of whole segments", plain)]
    ranges = _obstore(url, objects)
    if ranges is not None:
        peers.append(("obstore", f"obstore, {OBSTORE_TOGETHER} x {OBSTORE_RANGE_BYTES // MIB} MiB", ranges))
    return _beside("cold read on MinIO", ours, peers, total, rounds)


def _obstore(url: str, objects: list[tuple[str, int]]) -> Callable[[], object] | None:
    """Reads all ``objects`` in ranges; None where obstore is not installed."""
    try:
        obstore, stores = importlib.import_module("obstore"), importlib.import_module("obstore.store")
    except ImportError:
        return None
    options = {"client_options": {"allow_http": True}, "virtual_hosted_style_request": False, "region": "us-east-1"}
    store = stores.S3Store(BUCKET, endpoint=url, **options)

    def ranges() -> None:
        waiting: deque[Any] = deque()
        with ThreadPoolExecutor(OBSTORE_TOGETHER) as pool:
            for key, size in objects:
                for start in range(0, size, OBSTORE_RANGE_BYTES):
                    end = min(size, start + OBSTORE_RANGE_BYTES)
                    waiting.append(pool.submit(obstore.get_range, store, key, start=start, end=end))
                    if len(waiting) >= OBSTORE_TOGETHER:
                        waiting.popleft().result()

    return ranges


def _commits(rounds: int, client: Any, url: str) -> Figure:
    """Positions of a group over the cold reads' topic: one conditional PUT each, beside PUTs of as many bytes."""
    partition, offsets = tiered.TopicPartition("t", 0), itertools.cycle((1, 2))
    with (
        tiered.open_reader(f"s3://{BUCKET}/cold", endpoint_url=url) as reader,
        reader.consumer("bench", "t") as consumer,
    ):
        while not consumer.assignment():
            consumer.poll(1, timeout=0.1)
        (found,) = client.list_objects_v2(Bucket=BUCKET, Prefix="cold/groups/bench/partitions/")["Contents"]

        def ours() -> None:
            for _ in range(COMMITS):
                consumer.commit({partition: next(offsets)})

        def theirs() -> None:
            for _ in range(COMMITS):
                client.put_object(Bucket=BUCKET, Key="plain", Body=b"x" * found["Size"])

        return compare(
            "commits of a group on MinIO, wall",
            ours,
            units=COMMITS,
            unit="commits/s",
            peer="boto3 put_object",
            theirs=theirs,
            rounds=rounds,
            clock=time.perf_counter,
        )


def _uploads(rounds: int, client: Any, url: str, folder: Path) -> list[Figure]:
    """Sealing, uploading and committing a segment of 48 MiB: every call has a log of its own, filled before."""
    size = 48 * MIB
    path = folder / "plain"
    path.write_bytes(_batches() * (size // MIB))
    numbers = itertools.count()
    remote = f"s3://{BUCKET}/uploads"
    logs = deque(
        _filled(folder / f"log{at}", f"{remote}/{at}", url, size) for at in range(2 * len(CPU_AND_WALL) * (rounds + 1))
    )

    def ours() -> None:
        logs[0].sync(timeout=300)
        logs.rotate(-1)

    def raw() -> None:
        place = {"Bucket": BUCKET, "Key": f"raw/{next(numbers)}"}
        _raw_put(client.generate_presigned_url("put_object", Params=place), path)

    def upload_file() -> None:
        client.upload_file(str(path), BUCKET, f"file/{next(numbers)}")

    peers: Peers = [("a socket", "PUT through a socket", raw), ("boto3", "boto3 upload_file", upload_file)]
    try:
        return _beside("seal, upload and commit on MinIO", ours, peers, size, rounds)
    finally:
        for log in logs:
            log.close()


def _raw_put(url: str, path: Path) -> None:
    """What sending a file costs at least."""
    where = urllib.parse.urlsplit(url)
    buffer, size = bytearray(PIECE_BYTES), path.stat().st_size
    address = (where.hostname or "", where.port or 80)
    with path.open("rb", buffering=0) as file, socket.create_connection(address) as connection:
        head = f"PUT {where.path}?{where.query} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {size}\r\n\r\n"
        connection.sendall(head.encode())
        while length := file.readinto(buffer):
            connection.sendall(memoryview(buffer)[:length])
        if b" 200 " not in (answer := connection.recv(4096)).split(b"\r\n")[0]:
            raise RuntimeError(f"a PUT through a socket was answered with {answer[:80]!r}")


def _beside(what: str, ours: Callable[[], None], peers: Peers, total: int, rounds: int) -> list[Figure]:
    """One row for each peer and clock."""
    return [
        compare(
            f"{what}, {word}, beside {short}",
            ours,
            units=total / 1e6,
            unit="MB/s",
            peer=peer,
            theirs=partial(theirs),
            rounds=rounds,
            clock=clock,
        )
        for (short, peer, theirs), (word, clock) in itertools.product(peers, CPU_AND_WALL)
    ]
