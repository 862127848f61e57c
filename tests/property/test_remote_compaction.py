"""The bucket's compaction leaves, batch for batch and index for index, what the disk's cleaner leaves of a log."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.local.bench import TP, CaseBench
from tests.unit.local.partition.producer_bench import end
from tests.unit.remote.building import RemoteLog
from tests.unit.remote.rewriting import Rewriter
from tiered.config import TopicConfig
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.batch_scanner import walk_headers
from tiered.format.codecs import Codec
from tiered.format.local_names import local_name
from tiered.format.segment_indexes import decode_txns
from tiered.model import AbortedTxn, NewRecord
from tiered.plan.batch_filter import CleaningReport
from tiered.plan.offset_map import ENTRY_BYTES
from tiered.store.memory import MemoryStore

KEYS = "abcdefgh"
DAY_S = 86_400


class Twins:
    """A log on a disk, and its sealed segments in a bucket. Each is cleaned by its own cleaner."""

    def __init__(self, directory: Path, seed: int, *, in_parts: bool = False) -> None:
        self.dice = random.Random(seed)
        settings = {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": 0.0,
            "segment_bytes": self.dice.choice([500, 1500, 6000]),
            "index_interval_bytes": self.dice.choice([0, 200, 4096]),
            "delete_retention_ms": self.dice.choice([0, 1000, 86_400_000]),
            "segment_index_bytes": 1 << 20,
        }
        self.memory = 1 << 20 if in_parts else self.dice.choice([ENTRY_BYTES * 5, 1 << 20])
        self.in_parts = (self.dice.choice([1, 2000, 1 << 20]), self.dice.choice([1, 5, 1 << 20])) if in_parts else None
        self.bench = CaseBench(directory, **settings)
        self.bench.log.close()
        self.bench.open(cleaner_dedupe_buffer_bytes=max(self.memory, 1024))
        self.memory = max(self.memory, 1024)
        topic_id = self.bench.log.topics()[TP.topic].topic_id
        store = RemoteLog(
            MemoryStore(min_part_bytes=1, clock=self.bench.clock), TP.topic, topic_id, clock=self.bench.clock
        )
        self.remote = Rewriter(store, TopicConfig(**settings), part_bytes=self.dice.choice([300, 1 << 20]))
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    def records(self) -> list[NewRecord]:
        found = []
        for _ in range(self.dice.randint(1, 4)):
            value = None if self.dice.random() < 0.25 else b"v" * self.dice.randint(0, 40)
            found.append(NewRecord(value, self.dice.choice(KEYS).encode(), self.bench.clock.now_ms()))
        return found

    def plain(self) -> None:
        codec = self.dice.choice([Codec.NONE, Codec.GZIP, Codec.ZSTD])
        self.bench.partition.append_batches(encode_batch(self.records(), codec=codec))

    def produce(self) -> None:
        pid = self.dice.randint(1, 4)
        txn = pid > 2
        records, sequence = self.records(), self.sequences.get(pid, 0)
        self.sequences[pid] = sequence + len(records)
        self.bench.partition.append_batches(
            encode_batch(records, producer=BatchProducer(pid, 0, sequence, transactional=txn))
        )
        if txn:
            self.open.add(pid)

    def decide(self) -> None:
        for pid in sorted(self.open):
            marker = end(abort=self.dice.random() < 0.5, pid=pid, ts=self.bench.clock.now_ms())
            self.bench.partition.append_as_coordinator(marker)
        self.open.clear()

    def wait(self) -> None:
        self.bench.clock.advance(self.dice.choice([1, 10, DAY_S]))

    def clean(self) -> None:
        """All that is sealed by now is uploaded; both clean it in one round each and are compared."""
        self.bench.partition.roll()
        self.bench.partition.flush()
        rows = self.remote.rows
        at = rows[-1].next if rows else 0
        self.remote.upload(self.bench.partition.sealed_segments(at))
        if not self.remote.rows:
            return
        ours = self.bench.log.cleaner.clean(TP)
        theirs = self.theirs()
        assert (ours is None) == (theirs is None)
        if ours is not None and isinstance(theirs, CleaningReport):
            assert theirs.end_offset == ours.end_offset
            assert theirs.records_written == ours.records_written
        self.compare()

    def theirs(self) -> object | None:
        """One round in the bucket; None: nothing was dirty."""
        if self.in_parts is None:
            return self.remote.compact(self.bench.clock.now_ms(), memory_bytes=self.memory)
        part_bytes, most_keys = self.in_parts
        return self.remote.compact_in_parts(part_bytes=part_bytes, most_keys=most_keys)

    def file(self, base: int, suffix: str) -> bytes:
        path = self.bench.folder / local_name(base, suffix)
        return path.read_bytes() if path.exists() else b""

    def txns(self, data: bytes, base: int) -> list[AbortedTxn]:
        """Each from the first of its batches that is left: a disk that rebuilt its index knows of none before it."""
        headers = [header for row in self.remote.rows for _, header in walk_headers(self.remote.data(row))]
        return [
            txn._replace(
                first_offset=min(
                    header.base_offset
                    for header in headers
                    if header.producer_id == txn.producer_id and txn.first_offset <= header.base_offset
                )
            )
            for txn in decode_txns(data, base)
        ]

    def compare(self) -> None:
        sealed = self.bench.partition.sealed_segments(0)
        rows = self.remote.rows
        assert [(row.base, row.next) for row in rows] == [(s.base_offset, s.end_offset) for s in sealed]
        for row, segment in zip(rows, sealed, strict=True):
            source = segment.open_log()
            data = source.read_at(0, source.size)
            source.close()
            assert self.remote.data(row) == data, row
            if row.size:
                there = self.remote.bundle(row).indexes
                files = {suffix: self.file(row.base, suffix) for suffix in (".index", ".timeindex", ".txnindex")}
                assert there.offset_index == files[".index"]
                assert there.time_index == files[".timeindex"]
                assert self.txns(there.txn_index, row.base) == self.txns(files[".txnindex"], row.base)
                wanted = segment.descriptor
                found = self.remote.bundle(row).descriptor
                assert found == wanted


@pytest.mark.parametrize("seed", [*range(12), 247])
def test_the_bucket_is_compacted_as_the_disk_is(tmp_path: Path, seed: int) -> None:
    tell(Twins(tmp_path / "log", seed))


@pytest.mark.parametrize("seed", range(12))
def test_the_bucket_is_compacted_in_parts_as_the_disk_is(tmp_path: Path, seed: int) -> None:
    tell(Twins(tmp_path / "log", seed, in_parts=True))


def tell(twins: Twins) -> None:
    """A story of both."""
    acts = [twins.plain] * 4 + [twins.produce] * 6 + [twins.decide, twins.wait, twins.clean]
    for _ in range(120):
        twins.dice.choice(acts)()
    twins.decide()
    twins.clean()
    twins.bench.clock.advance(2 * DAY_S)
    twins.plain()
    twins.clean()
