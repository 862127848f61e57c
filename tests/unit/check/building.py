"""A small log on disk and in a bucket, the same on every run, and ways to damage it."""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import tiered
from tiered.config import TopicConfig
from tiered.format.keys import index_key, root_key, segment_key
from tiered.format.root import Root, decode_root
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.topics import read_topics
from tiered.model import NewRecord, Row
from tiered.store.base import ABSENT, Delete, Get, List, ListPage, Object, Put, PutResult, PutStatus
from tiered.store.memory import MemoryStore
from tiered.testing.clock import START_MS

TOPIC = "flights"
SETTINGS = TopicConfig.from_properties({"segment.bytes": 4096, "index.interval.bytes": 200, "max.message.bytes": 2048})
RECORDS = 120
BATCH = 4


@dataclass(frozen=True)
class Scenario:
    """A log directory, closed, and the store that holds all of its sealed segments."""

    directory: Path
    store: MemoryStore
    url: str

    def root(self, partition: int = 0) -> Root:
        """The catalog of one partition."""
        found = self.store.execute(Get(self.root_key(partition)))
        assert isinstance(found, Object)
        return decode_root(found.data, key=self.root_key(partition))

    def root_key(self, partition: int = 0) -> str:
        """Its key."""
        return root_key(read_topics(self.directory, PosixFiles())[TOPIC].topic_id, partition)

    def rows(self, partition: int = 0) -> list[Row]:
        """Its rows."""
        return list(self.root(partition).rows)

    def log_key(self, row: Row, partition: int = 0) -> str:
        """Key of the ``.log`` of a row."""
        return segment_key(self.root(partition).topic_id, partition, row)

    def index_key(self, row: Row, partition: int = 0) -> str:
        """Key of its bundle."""
        return index_key(self.root(partition).topic_id, partition, row)

    def read(self, key: str) -> bytes:
        """An object."""
        found = self.store.execute(Get(key))
        assert isinstance(found, Object)
        return found.data

    def replace(self, key: str, data: bytes) -> None:
        """Puts other bytes under a key, as no program of ours ever does."""
        self.store.execute(Delete((key,)))
        put = self.store.execute(Put(key, data, ABSENT))
        assert isinstance(put, PutResult)
        assert put.status is PutStatus.LANDED

    def delete(self, key: str) -> None:
        """Removes an object behind the catalog's back."""
        self.store.execute(Delete((key,)))

    def path(self, name: str, partition: int = 0) -> Path:
        """A file of a partition directory."""
        return self.directory / f"{TOPIC}-{partition}" / name

    def logs(self, partition: int = 0) -> list[Path]:
        """The ``.log`` files, oldest first."""
        return sorted((self.directory / f"{TOPIC}-{partition}").glob("*.log"))


@contextmanager
def scenario(tmp_path: Path, *, partitions: int = 1, unsealed: int = 0) -> Iterator[Scenario]:
    """A copy of the log, ``unsealed`` records of it after the last upload; forgets its store afterwards."""
    template = _template(partitions, unsealed)
    name = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]
    store = MemoryStore(name)
    for key, data in template.objects.items():
        store.execute(Put(key, data, ABSENT))
    shutil.copytree(Path(template.folder.name) / "log", tmp_path / "log")
    try:
        yield Scenario(tmp_path / "log", store, f"memory://{name}")
    finally:
        MemoryStore.forget(name)


@dataclass(frozen=True)
class _Template:
    folder: TemporaryDirectory[str]
    objects: dict[str, bytes]


@functools.cache
def _template(partitions: int, unsealed: int) -> _Template:
    """The log, written once a run: closed, and all of its sealed segments in the store."""
    folder: TemporaryDirectory[str] = TemporaryDirectory(prefix="tiered-scenario-")
    name = f"template-{partitions}-{unsealed}"
    with tiered.open(Path(folder.name) / "log", f"memory://{name}") as log:
        topic = log.topic(TOPIC, partitions=partitions, create=True, config=SETTINGS)
        for partition in range(partitions):
            for start in range(0, RECORDS, BATCH):
                topic.append_many([record(start + i) for i in range(BATCH)], partition=partition)
        log.sync(timeout=60)
        for i in range(unsealed):
            topic.append_many([record(RECORDS + i)], partition=0)
    page = MemoryStore(name).execute(List(""))
    assert isinstance(page, ListPage)
    assert not page.more
    objects = {}
    for entry in page.entries:
        found = MemoryStore(name).execute(Get(entry.key))
        assert isinstance(found, Object)
        objects[entry.key] = found.data
    MemoryStore.forget(name)
    return _Template(folder, objects)


def record(number: int) -> NewRecord:
    """The ``number``-th record of a partition; timestamps rise by a second."""
    return NewRecord(b"value %06d " % number * 8, b"key-%d" % (number % 7), START_MS + number * 1000, [("n", b"1")])


def flip(path: Path, position: int) -> None:
    """Turns one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
