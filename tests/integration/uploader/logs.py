"""Small logs to upload, and the one judgement of what the bucket must hold afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tiered.clock import SystemClock, SystemIds
from tiered.config import LogConfig, TopicConfig
from tiered.format.keys import index_key, segment_key
from tiered.format.local_names import log_name, partition_dir
from tiered.format.root import Root
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.model import NewRecord, Row, TopicPartition
from tiered.remote.catalog import Catalog
from tiered.store.base import Get, List, ListPage, Missing, Object, Store
from tiered.store.driver import drive
from tiered.store.location import open_store

SMALL = TopicConfig.from_properties({"segment.bytes": 4096, "segment.index.bytes": 1024})
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def open_log(directory: Path) -> LocalLog:
    return LocalLog.open(directory, config=LogConfig(remote=True, disk_reserve_bytes=0))


def make_log(directory: Path, *, records: int = 200, partitions: int = 2, topic: str = "t") -> None:
    """A closed log with some 25 records a segment."""
    with open_log(directory) as log:
        if topic not in log.topics():
            log.create_topic(topic, partitions, SMALL)
        for number in range(records):
            append(log, TopicPartition(topic, number % partitions), number)


def append(log: LocalLog, tp: TopicPartition, number: int) -> None:
    log.partition(tp).append([NewRecord(b"%06d" % number + b"x" * 100)])


def read_root(store: Store, directory: Path, tp: TopicPartition) -> Root | None:
    with LogView.open(directory) as log:
        topic_id = log.partition(tp).topic_id
    return drive(store, Catalog(topic_id, tp.partition, tp.topic).load(), clock=SystemClock(), ids=SystemIds())


def rows_of(store: Store, directory: Path, tp: TopicPartition) -> list[Row]:
    root = read_root(store, directory, tp)
    return [] if root is None else list(root.rows)


def keys_of(store: Store) -> set[str]:
    found: set[str] = set()
    after = ""
    while True:
        page = store.execute(List("", start_after=after))
        assert isinstance(page, ListPage)
        found |= {entry.key for entry in page.entries}
        if not page.more:
            return found
        after = max(entry.key for entry in page.entries)


def judge(
    url: str, directory: Path, tps: Iterable[TopicPartition], *, whole: bool = True, endpoint: str | None = None
) -> int:
    """Raises AssertionError unless the bucket holds the local log, once and without a gap; returns the rows counted.

    ``whole``: the active segment too, and not one object more than the rows name.
    """
    store = open_store(url, endpoint_url=endpoint)
    rows, named = 0, set()
    for tp in tps:
        with LogView.open(directory) as log:
            partition = log.partition(tp)
            topic_id, end = partition.topic_id, partition.positions().end_offset
        root = read_root(store, directory, tp)
        assert root is not None
        at = 0
        for row in root.rows:
            assert row.base == at, f"{tp}: a gap or an overlap at {at}"
            at = row.next
            local = (directory / partition_dir(tp) / log_name(row.base)).read_bytes()
            keys = segment_key(topic_id, tp.partition, row), index_key(topic_id, tp.partition, row)
            stored = store.execute(Get(keys[0]))
            assert isinstance(stored, Object)
            assert stored.data == local, f"{tp}: {row.base} differs from the file"
            assert not isinstance(store.execute(Get(keys[1])), Missing)
            named |= {*keys}
            rows += 1
        assert at == root.next_offset
        if whole:
            assert at == end, f"{tp}: {at} of {end} in the bucket"
    if whole:
        left = {key for key in keys_of(store) if "/s/" in key}
        assert left == named, f"objects that nobody names: {sorted(left - named)}"
    store.close()
    return rows
