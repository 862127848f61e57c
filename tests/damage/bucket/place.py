"""A small log in a bucket, hands to damage it with, and a store that counts instead of waiting."""

from __future__ import annotations

import functools
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tiered.config import LogConfig, TopicConfig
from tiered.format.kernels import crc32c
from tiered.format.keys import index_key, root_key, segment_key, topic_key
from tiered.format.root import Root, decode_root, encode_root
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.disk.files import PosixFiles
from tiered.log import Log
from tiered.model import TopicPartition
from tiered.store.base import ABSENT, Delete, Get, List, ListEntry, ListPage, Object, Outcome, Put, StoreRequest
from tiered.store.layers import LayeredStore
from tiered.store.memory import MemoryStore
from tiered.store.retry import Retries
from tiered.testing.clock import START_MS, FakeClock, SeededIds

TOPIC, OTHER = "alpha", "gamma"
TPS = (TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1), TopicPartition(OTHER, 0))
HIT = TPS[0]
"""The partition that is damaged."""
RECORDS = 24
BATCH = 2
SINCE = START_MS + 16_000
"""A read by time begins behind the damaged segment."""
CONFIG = TopicConfig(segment_bytes=500, seal_ms=-1, index_interval_bytes=100, local_retention_bytes=1)
MAX_REQUESTS = 2_000
MAX_EFFECTS = 20_000
"""More of either is a loop over something that nobody has checked."""


class Hang(BaseException):
    """It would not have ended."""


class CountingStore:
    """At most :data:`MAX_REQUESTS`."""

    url = "memory://damaged"

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.count = 0

    def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        self.count += 1
        if self.count > MAX_REQUESTS:
            raise Hang(f"{MAX_REQUESTS} requests")
        return self.inner.execute(request)

    def close(self) -> None:
        """Nothing is held."""


class CountingFiles(PosixFiles):
    """At most :data:`MAX_EFFECTS` files and directories are made."""

    def __init__(self) -> None:
        self.count = 0

    def _counted(self) -> None:
        self.count += 1
        if self.count > MAX_EFFECTS:
            raise Hang(f"{MAX_EFFECTS} files")

    def open_write(self, path: Path) -> int:
        self._counted()
        return super().open_write(path)

    def make_directory(self, path: Path) -> None:
        self._counted()
        super().make_directory(path)


def value(tp: TopicPartition, offset: int) -> bytes:
    """What was appended there."""
    return f"{tp} {offset:06d} ".encode() * 2


def listed(store: MemoryStore) -> tuple[ListEntry, ...]:
    """All of it."""
    page = store.execute(List(""))
    assert isinstance(page, ListPage)
    assert not page.more
    return tuple(page.entries)


class Place:
    """A bucket and the log directory that wrote it, both a test's own."""

    def __init__(self, root: Path, *, versioned: bool = False) -> None:
        template = _template()
        self.root = root
        self.directory = root / "log"
        shutil.copytree(Path(template.folder.name) / "log", self.directory)
        self.inner = MemoryStore(versioned=versioned)
        for key, data in template.objects.items():
            self.inner.execute(Put(key, data, ABSENT))
        self.topic_ids = template.topic_ids
        self.older = template.older
        self.clock = FakeClock(START_MS + 100_000)
        self.ids = SeededIds(3)

    def store(self) -> LayeredStore:
        """A fresh count."""
        return LayeredStore(CountingStore(self.inner), Retries(clock=self.clock, ids=self.ids, deadline_seconds=2))

    def log(self, directory: Path) -> Log:
        """Opened for writing."""
        config = LogConfig(remote=True, disk_reserve_bytes=0)
        local = LocalTier.open([directory], clock=self.clock, ids=self.ids, files=CountingFiles(), config=config)
        return Log(local, self.store(), clock=_Still(self.clock.now_ms()), ids=self.ids)

    # -- the bucket ------------------------------------------------------------------------------------------------

    def root_key(self, tp: TopicPartition = HIT) -> str:
        """Of a partition."""
        return root_key(self.topic_ids[tp.topic], tp.partition)

    def get(self, key: str) -> bytes:
        """An object."""
        got = self.inner.execute(Get(key))
        assert isinstance(got, Object), key
        return got.data

    def put(self, key: str, data: bytes) -> None:
        """An object, whatever was there."""
        self.delete(key)
        self.inner.execute(Put(key, data, ABSENT))

    def delete(self, *keys: str) -> None:
        """Gone."""
        self.inner.execute(Delete(keys))

    def every_key(self) -> list[str]:
        """Of all objects."""
        return [entry.key for entry in listed(self.inner)]

    def decoded(self, tp: TopicPartition = HIT) -> Root:
        """The root."""
        return decode_root(self.get(self.root_key(tp)), key=self.root_key(tp))

    def log_key(self, number: int = 1, tp: TopicPartition = HIT) -> str:
        """The ``.log`` of the row ``number``."""
        return segment_key(self.topic_ids[tp.topic], tp.partition, list(self.decoded(tp).rows)[number])

    def idx_key(self, number: int = 1, tp: TopicPartition = HIT) -> str:
        """Its bundle."""
        return index_key(self.topic_ids[tp.topic], tp.partition, list(self.decoded(tp).rows)[number])

    def edit(self, key: str, change: Callable[[bytearray], bytes | bytearray | None]) -> None:
        """The bytes of an object; ``change`` alters them or gives others."""
        data = bytearray(self.get(key))
        other = change(data)
        self.put(key, bytes(data if other is None else other))

    def swap(self, one: str, two: str) -> None:
        """Two objects change places."""
        first, second = self.get(one), self.get(two)
        self.put(one, second)
        self.put(two, first)

    def edit_root(self, **fields: Any) -> None:
        """The root with other fields."""
        self.put(self.root_key(), encode_root(replace(self.decoded(), **fields)))

    def edit_header(self, change: Callable[[dict[str, Any]], None], fmt: int | None = None) -> None:
        """The root's JSON header; its checksum agrees."""
        data = self.get(self.root_key())
        magic, old_fmt, flags, length = struct.unpack_from("<4sHHI", data)
        header = json.loads(data[12 : 12 + length])
        change(header)
        text = json.dumps(header).encode()
        head = struct.pack("<4sHHI", magic, old_fmt if fmt is None else fmt, flags, len(text))
        made = head + text + data[12 + length : -4]
        self.put(self.root_key(), made + struct.pack("<I", crc32c(made)))

    def edit_entry(self, **fields: Any) -> None:
        """The topic's entry in the registry."""
        entry = json.loads(self.get(topic_key(TOPIC)))
        entry.update(fields)
        self.put(topic_key(TOPIC), json.dumps(entry).encode())


class _Still(FakeClock):
    """The timers of an open log sleep until it is closed."""

    def wait(self, event: Any, seconds: float | None) -> bool:
        """Until the end."""
        del seconds
        return bool(event.wait())


class _Template:
    def __init__(self) -> None:
        self.folder: TemporaryDirectory[str] = TemporaryDirectory(prefix="tiered-damage-")
        clock, ids = FakeClock(), SeededIds(1)
        inner = MemoryStore()
        path = Path(self.folder.name) / "log"
        config = LogConfig(remote=True, disk_reserve_bytes=0)
        local = LocalTier.open([path], clock=clock, ids=ids, config=config)
        log = Log(local, inner, clock=_Still(), ids=ids)
        self.older: dict[TopicPartition, bytes] = {}
        for name in (TOPIC, OTHER):
            log.topic(name, partitions=2 if name == TOPIC else 1, create=True, config=CONFIG)
        self.topic_ids = {name: info.topic_id for name, info in log.topics().items()}
        for start in range(0, RECORDS, RECORDS // 2):
            for tp in TPS:
                for offset in range(start, start + RECORDS // 2, BATCH):
                    records = [(value(tp, at), START_MS + at * 1000) for at in range(offset, offset + BATCH)]
                    for body, timestamp in records:
                        log.topic(tp.topic).append(body, partition=tp.partition, timestamp=timestamp)
            log.sync(timeout=60)
            if not start:
                for tp in TPS:
                    got = inner.execute(Get(root_key(self.topic_ids[tp.topic], tp.partition)))
                    assert isinstance(got, Object)
                    self.older[tp] = got.data
        self.objects: dict[str, bytes] = {}
        for entry in listed(inner):
            got = inner.execute(Get(entry.key))
            assert isinstance(got, Object)
            self.objects[entry.key] = got.data
        log.close()  # which closes the store


@functools.cache
def _template() -> _Template:
    return _Template()
