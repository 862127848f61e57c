"""Figures of the Spark source that need no session: how long its planner takes on the driver."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from uuid import UUID

from bench.measure import Figure, compare
from tiered.format.keys import Role, root_key
from tiered.format.root import Root, decode_root, encode_root
from tiered.format.rows import Rows
from tiered.model import EpochEntry, Row
from tiered.plan.commit import Stamp, create_root, succeed
from tiered.remote.reader import RemotePartition
from tiered.remote.topics import register_topic
from tiered.spark.options import ReadOptions
from tiered.spark.ranges import resolve_pieces
from tiered.spark.slices import cut_slices
from tiered.store.base import ABSENT, Get, Match, Object, Put
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive

SEGMENTS = 20_000
SEGMENT_BYTES = 4000
RECORDS = 100
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
                theirs=lambda: drive(store, RemotePartition(TOPIC, TOPIC_ID, 0).refresh()),
                rounds=rounds,
            )
        ]
