"""Batches to Arrow and back, beside copying the same bytes once."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from bench.measure import Figure, compare
from tiered.arrow.decoder import ArrowDecoder
from tiered.arrow.rows import ArrowRows, pieces
from tiered.config import TopicConfig
from tiered.format.batch import HEADER_BYTES, encode_batch, walk
from tiered.format.columns import encode_columns
from tiered.model import NewRecord, TopicPartition

TOTAL_BYTES = 32 * 1024 * 1024
COLUMNS = ("offset", "timestamp", "key", "value")
SHAPES = (("100 B", 84, 146), ("1 KiB", 1008, 15))
"""Records: bytes of a value beside a key of 16, records of a batch of 16 KiB."""
ROOM = 1024 * 1024 - HEADER_BYTES
"""Bytes of the records of a batch that is encoded from Arrow."""


def arrow(rounds: int) -> list[Figure]:
    """Four columns out of batches, and batches out of two columns."""
    return [figure for shape in SHAPES for figure in (_decoded(rounds, *shape), _encoded(rounds, *shape))]


def _records(count: int, value_bytes: int) -> list[NewRecord]:
    value = bytes(range(32, 116)) * (1 + value_bytes // 84)
    return [NewRecord(value[:value_bytes], b"C-%013d" % at, 1_700_000_000_000 + at, None) for at in range(count)]


def _copy(size: int) -> partial[None]:
    """One copy of so many bytes between pages that are there."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return partial(np.copyto, target, source)


def _decoded(rounds: int, name: str, value_bytes: int, count: int) -> Figure:
    one = encode_batch(_records(count, value_bytes))
    times = TOTAL_BYTES // len(one)
    data = memoryview(one * times)
    batches = [(header, data[at : at + header.size_bytes]) for at, header in walk(data)]

    def ours() -> None:
        for _ in ArrowDecoder(TopicPartition("t", 0), columns=COLUMNS).record_batches(batches):
            pass

    return compare(
        f"decode {name} records to Arrow, four columns",
        ours,
        units=count * times,
        unit="records/s",
        peer="memcpy of the batches",
        theirs=_copy(len(data)),
        rounds=rounds,
    )


def _encoded(rounds: int, name: str, value_bytes: int, _count: int) -> Figure:
    count = TOTAL_BYTES // (value_bytes + 16)
    records = _records(count, value_bytes)
    table = pa.table({"key": [each.key for each in records], "value": [each.value for each in records]})

    def ours() -> None:
        rows = ArrowRows(table, config=TopicConfig(), partitions=1, partition=0).checked(1_700_000_000_000)
        for each in rows:
            for _, columns in pieces(each, 0, ROOM):
                encode_columns(columns)

    return compare(
        f"encode {name} records from Arrow, 1 MiB batches",
        ours,
        units=count,
        unit="records/s",
        peer="memcpy of keys and values",
        theirs=_copy(count * (value_bytes + 15)),
        rounds=rounds,
    )
