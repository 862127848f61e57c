"""The plan of a compaction of 10 TB, from a catalog of segments that are nowhere: a driver's seconds and memory."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from bench.gate import AT_MOST
from bench.measure import Figure
from tiered.format.bundle import encode_bundle
from tiered.format.keys import PageName, Role, index_key, root_key
from tiered.format.page import Pointers, encode_page
from tiered.format.root import decode_root, encode_root
from tiered.format.rows import Rows
from tiered.model import EpochEntry, Row, SealedIndexes, SegmentDescriptor, TopicPartition
from tiered.plan.commit import SHAPE, Stamp, succeed
from tiered.plan.jobs import SPAN_BYTES
from tiered.remote.compact_parts import CompactionPart
from tiered.remote.topics import register_topic
from tiered.spark.jobs.two_phase import PlannedRound
from tiered.store.base import ABSENT, Get, Match, Object, Put, Store
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive

SEGMENTS = 150_000
SEGMENT_BYTES = 67_000_000
SEGMENT_RECORDS = 65_000
LIMIT_SECONDS, LIMIT_MIB = 60.0, 2048.0
BUNDLE_BYTES = 524
TAIL = 1000
"""Rows that a root names itself; older ones stand in pages, as a writer leaves them."""
TOPIC = "latest"
TOPIC_ID = UUID(int=4)


_RUN = """
import pathlib, re, runpy, sys
peak, sys.argv = pathlib.Path(sys.argv[1]), sys.argv[2:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    peak.write_text(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""


@dataclass(frozen=True, slots=True)
class Planned:
    """What one run of a planner came to: what it printed, and what it used."""

    found: dict[str, Any]
    seconds: float
    peak_mib: float


def make_catalog(store: Store, *, partitions: int, segments: int) -> None:
    """A compacted topic whose partitions have ``segments`` rows each, of :data:`SEGMENT_BYTES` that nobody stored."""
    drive(store, register_topic(TOPIC, TOPIC_ID, partitions, {"cleanup.policy": "compact"}))
    for partition in range(partitions):
        _fill(store, partition, segments)


def _fill(store: Store, partition: int, segments: int) -> None:
    key = root_key(TOPIC_ID, partition)
    found = store.execute(Get(key))
    assert isinstance(found, Object)
    full = max(0, segments - TAIL) // SHAPE.leaf_rows
    pointers = []
    for leaf in range(full):
        name = PageName(Role.WRITER, 1, f"{leaf + 1:032x}")
        page = encode_page(TOPIC_ID, partition, name, rows_of(leaf * SHAPE.leaf_rows, SHAPE.leaf_rows))
        store.execute(Put(page.key, page.body, ABSENT, page.pointer.crc))
        pointers.append(page.pointer)
    newest = rows_of(full * SHAPE.leaf_rows, segments - full * SHAPE.leaf_rows)
    last = newest.row(len(newest) - 1)
    store.execute(Put(index_key(TOPIC_ID, partition, last), _bundle(partition, last), ABSENT))
    old = decode_root(found.data, key=key)
    root = succeed(
        old,
        Stamp("0" * 31 + "2", 1, Role.WRITER, 1, "bench"),
        "append",
        role=dataclasses.replace(old.writer, epoch=1, seq=1),
        leaves=Pointers.from_pointers(pointers),
        rows=newest,
        next_offset=segments * SEGMENT_RECORDS,
        lineage=(EpochEntry(0, 0),),
    )
    store.execute(Put(key, encode_root(dataclasses.replace(root, added=root.held)), Match(found.etag)))


def _bundle(partition: int, row: Row) -> bytes:
    """The one object beside a catalog that a planner asks for: does the newest segment leave transactions open?"""
    descriptor = SegmentDescriptor(
        topic_id=TOPIC_ID,
        partition=partition,
        base_offset=row.base,
        end_offset=row.next,
        min_timestamp=row.min_ts,
        max_timestamp=row.max_ts,
        records=row.records,
        size_bytes=row.size,
        crc32c=row.crc,
        leader_epoch=row.leader_epoch,
    )
    bundle = encode_bundle(descriptor, SealedIndexes(b"", b"", leader_epochs=(EpochEntry(0, 0),)), row.claim_epoch)
    assert len(bundle) == BUNDLE_BYTES
    return bundle


def rows_of(first: int, count: int) -> Rows:
    """Rows number ``first`` and following ones, as an uploader would have made them, in columns at once."""
    number, same = np.arange(first, first + count, dtype=np.int64), np.ones(count, np.int64)
    values = dict.fromkeys(Row._fields, same * 0)
    values |= {
        "base": number * SEGMENT_RECORDS,
        "next": (number + 1) * SEGMENT_RECORDS,
        "min_ts": number * 1000,
        "max_ts": number * 1000 + 999,
        "size": same * SEGMENT_BYTES,
        "id_lo": number + 1,
        "idx_len": same * BUNDLE_BYTES,
        "claim_epoch": same,
        "records": same * SEGMENT_RECORDS,
    }
    return Rows(values)


def plan_round_of(store: Store) -> tuple[dict[str, Any], tuple[CompactionPart, ...]]:
    """Return the round of one log, as the driver hands it to phase 1, and its parts."""
    planned = PlannedRound.plan(store, TopicPartition(TOPIC, 0), part_bytes=SPAN_BYTES, most_keys=1)
    assert planned is not None
    return planned.as_json(), planned.parts


def measured(module: str, *words: str) -> Planned:
    """A module that prints JSON, in a process of its own. What ``wait4`` tells of its memory may be this process's."""
    with tempfile.TemporaryDirectory() as folder:
        peak = Path(folder) / "peak"
        began = time.perf_counter()
        command = [sys.executable, "-c", _RUN, str(peak), module, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return Planned(json.loads(done.stdout), time.perf_counter() - began, int(peak.read_text()) / 1024)


def spark_bulk_plan(rounds: int) -> list[Figure]:
    """150,000 segments of 67 MB in 100 partitions, and in one: the dry run, and the round of the one log."""
    figures = []
    for partitions in (100, 1):
        with tempfile.TemporaryDirectory() as folder:
            make_catalog(DirectoryStore(Path(folder)), partitions=partitions, segments=SEGMENTS // partitions)
            words = ("--only", "compact", "--dry-run", "--json", "--remote", f"file://{folder}")
            command = ("tiered.spark", "maintain", *words)
            plans = [measured(*command) for _ in range(rounds)]
            logs = [log for each in plans for log in each.found["partitions"] if log["in_two_phases"]]
            assert sum(log["rows_in"] for log in logs) == rounds * SEGMENTS
            figures += _figures(
                f"plan of a compaction of 10 TB, {SEGMENTS:,} segments, partitions: {partitions}", plans
            )
            if partitions == 1:
                each = [measured("bench.bulk_plan", folder) for _ in range(rounds)]
                assert {one.found["segments"] for one in each} == {SEGMENTS}
                figures += _figures("parts and groups of a log of 10 TB, in two phases", each)
    return figures


def _figures(what: str, found: Sequence[Planned]) -> list[Figure]:
    """The best in time, the worst in memory."""
    seconds, peak = min(each.seconds for each in found), max(each.peak_mib for each in found)
    return [
        Figure(f"{what}, wall", "s", seconds, AT_MOST, LIMIT_SECONDS, LIMIT_SECONDS / seconds),
        Figure(f"{what}, peak memory", "MiB", peak, AT_MOST, LIMIT_MIB, LIMIT_MIB / peak),
    ]


if __name__ == "__main__":
    kept, parts = plan_round_of(DirectoryStore(Path(sys.argv[1])))
    rows = sum(group.rows for part in parts for group in part.groups)
    sys.stdout.write(json.dumps({"segments": rows, "parts": len(parts), "bytes": len(json.dumps(kept))}))
