"""Spark's shuffle of keys between the phases of a compaction in parts: from segments to bitmaps of survivors.

::

    tiered_keys ──> high, low, code ── by key ──> newest of each ── by part ──> a note and a bitmap for each part
                                                                                        └── rewrite, part by part

Spark keeps the bitmaps on the disks of its executors until the round ends. A lost one is made again, from the segments.
The effect of a part on transactions travels with its pairs, in one more row: its *note*.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StructType

from tiered.config import S3_WORDS, S3Keywords
from tiered.errors import CorruptionError, NotFoundError
from tiered.plan.survivors import OFFSET_BITS, PAIR_BYTES, SurvivorsBuilder, code_of
from tiered.remote.compact_parts import CompactionPart, Scanned
from tiered.spark.jobs.rounds import PlannedRound, part_from_json, scan
from tiered.spark.jobs.run import JobRunner, Receipt, Task, receipts_of
from tiered.spark.stores import worker_store

KEYS_SOURCE = "tiered_keys"
COLUMNS = "high long, low long, code long, note string"

SHUFFLE_BYTES = 128 * 1024 * 1024
"""Bytes of one task after the shuffle, if every record has a unique key."""

MAX_SHUFFLE_TASKS = 10_000

_NOTE_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class KeyPartition(InputPartition):
    """One part, with its number."""

    number: int
    part: CompactionPart


class KeySource(DataSource):
    """Digests of the keys of a round, and codes. Options: ``url``, words of S3, ``round`` as JSON."""

    @classmethod
    def name(cls) -> str:
        """Return the word for ``format(...)``."""
        return KEYS_SOURCE

    def schema(self) -> str:
        """Return the columns: one row for a key of a part, and one with the note of the part."""
        return COLUMNS

    def reader(self, schema: StructType) -> KeyReader:
        """Return the reader of all parts."""
        del schema
        return KeyReader(self.options)


class KeyReader(DataSourceReader):
    """Reader with a partition for each part."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._url = options["url"]
        self._s3: S3Keywords = {word: options[word] for word in S3_WORDS if word in options}  # type: ignore[assignment]
        fields = json.loads(options["round"])
        self._parts = [part_from_json(part) for part in fields.pop("parts")]
        self._facts = fields

    def partitions(self) -> list[InputPartition]:
        """Return the parts of the round."""
        return [KeyPartition(number, part) for number, part in enumerate(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the pairs of a part, then its note. The note reports a catalog that has other rows by now."""
        if not isinstance(partition, KeyPartition):
            return
        number, note = partition.number, dict[str, Any]()
        try:
            found = yield from self._pairs(number, partition.part)
            note = dataclasses.asdict(found)
        except NotFoundError as changed:
            if changed.__class__ is not NotFoundError:
                raise
            note = {"changed": changed.message}
        yield _batch([None], [None], [number << OFFSET_BITS], [json.dumps(note)])

    def _pairs(self, number: int, part: CompactionPart) -> Generator[pa.RecordBatch, None, Scanned]:
        pairs = scan(worker_store(self._url, **self._s3), self._facts, number, part)
        while True:
            try:
                each = next(pairs)
            except StopIteration as end:
                return cast("Scanned", end.value)
            yield _batch(each.high, each.low, each.codes, pa.nulls(len(each.codes), pa.string()))


def _batch(high: Any, low: Any, codes: Any, notes: Any) -> pa.RecordBatch:
    columns = [*(pa.array(each, pa.int64()) for each in (high, low, codes)), pa.array(notes, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=["high", "low", "code", "note"])


class Shuffled:
    """Survivors of one round, for as long as the block lasts."""

    def __init__(self, runner: JobRunner, planned: PlannedRound) -> None:
        self._runner = runner
        self._planned = planned
        self._live: DataFrame | None = None

    def __enter__(self) -> Shuffled:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.unpersist()

    def notes(self, title: str) -> list[dict[str, Any]]:
        """Shuffle; return the note of each part, with its number of ``survivors``.

        Raises NotFoundError if the catalog has other rows than the plan, CorruptionError if a part is missing: a part
        without a bitmap is not one without survivors.
        """
        count = len(self._planned.parts)
        found = self._collect_notes(title)
        if sorted(found) != list(range(count)):
            raise CorruptionError(
                f"{title}: Spark returned {len(found)} of {count} parts: nothing was replaced",
                path_or_key=self._planned.round.topic,
                position=0,
                hint="run the same command again",
            )
        for note in found.values():
            if "changed" in note:
                raise NotFoundError(note["changed"], hint="plan again")
        return [found[number] for number in range(count)]

    def rewrite(
        self, title: str, work: Callable[..., Receipt], numbers: Sequence[int], tasks: Sequence[Task]
    ) -> list[Receipt]:
        """Run ``work`` for the parts of these numbers, each with its bitmap. Raises JobFailedError."""
        return receipts_of(self._collect_rewritten(title, work, numbers, tasks), len(tasks))

    def _collect_notes(self, title: str) -> dict[int, dict[str, Any]]:
        def query() -> dict[int, dict[str, Any]]:
            self._live = survivors(self._runner, self._planned).persist(StorageLevel.DISK_ONLY)
            note = fn.udf(_note_text, "string", useArrow=False)
            rows = self._live.select("number", note("live").alias("note")).collect()
            return {row["number"]: json.loads(row["note"]) for row in rows}

        return self._runner.waited(title, query)

    def _collect_rewritten(
        self, title: str, work: Callable[..., Receipt], numbers: Sequence[int], tasks: Sequence[Task]
    ) -> list[tuple[int, str]]:
        live = cast("DataFrame", self._live)

        def query() -> list[tuple[int, str]]:
            frame = live.join(fn.broadcast(self._runner.numbered(tasks, numbers)), "number")
            found = frame.select("number", self._runner.call(work)("task", "live").alias("receipt")).collect()
            return [(row["number"], row["receipt"]) for row in found]

        return self._runner.waited(title, query, total=len(tasks))


def survivors(runner: JobRunner, planned: PlannedRound) -> DataFrame:
    """Return a frame of ``number`` and ``live``, a partition for each part."""
    session, parts = runner.session, planned.parts
    session.dataSource.register(KeySource)
    dirty = code_of(planned.round.first_dirty, [part.start for part in parts])
    expected = sum(part.records for part in parts) * PAIR_BYTES
    tasks = int(min(max(expected // SHUFFLE_BYTES + 1, min(len(parts), 8)), MAX_SHUFFLE_TASKS))
    words = {"url": runner.url, **{word: str(value) for word, value in runner.s3.items()}}
    pairs = session.read.format(KEYS_SOURCE).options(**words, round=json.dumps(planned.as_json())).load()
    newest = fn.max("code").over(Window.partitionBy("high", "low"))
    known = pairs.repartition(tasks, "high", "low").withColumn("newest", newest)
    is_newest = (fn.col("newest") == fn.col("code")) | (fn.col("newest") < fn.lit(dirty))
    alive = known.where(fn.col("note").isNotNull() | is_newest)
    number = fn.shiftright("code", OFFSET_BITS).cast("int").alias("number")
    by_part = alive.select(number, "code", "note").repartition(min(tasks, len(parts)), "number").groupBy("number")
    grouped: Any = arrow_udf  # its stubs lack a function that takes an iterator and returns one value
    made = grouped(packer([(part.start, part.end) for part in parts]), "binary")
    live = by_part.agg(made("code", "note").alias("live"))
    return live.repartitionById(len(parts), "number")


def packer(bounds: Sequence[tuple[int, int]]) -> Callable[[Iterator[tuple[pa.Array, pa.Array]]], bytes]:
    """Return the function that makes note and bitmap of a part from all its rows. ``bounds``: of all parts."""

    def packed(rows: Iterator[tuple[pa.Array, pa.Array]]) -> bytes:
        return _pack(rows, bounds)  # by its name: Spark ships this function by value, and what it refers to

    return packed


def _pack(rows: Iterator[tuple[pa.Array, pa.Array]], bounds: Sequence[tuple[int, int]]) -> bytes:
    alive, note, number = list[Any](), dict[str, Any](), -1
    for codes, notes in rows:
        found = codes.to_numpy(zero_copy_only=False)
        number = int(found[0]) >> OFFSET_BITS
        alive.append(found[notes.is_null().to_numpy(zero_copy_only=False)])
        for text in notes.drop_null().to_pylist():
            note = json.loads(text)
    builder = SurvivorsBuilder(number, *bounds[number])
    codes = np.sort(np.concatenate(alive))
    builder.add(codes)
    head = json.dumps({**note, "survivors": len(codes)}).encode()
    return _NOTE_LENGTH.pack(len(head)) + head + builder.finish()  # u32 length | note as JSON | bitmap


def note_of(live: bytes) -> dict[str, Any]:
    """Return the note of a part."""
    found: dict[str, Any] = json.loads(_note_text(live))
    return found


def _note_text(live: bytes) -> str:
    (length,) = _NOTE_LENGTH.unpack_from(live)
    return bytes(live[_NOTE_LENGTH.size : _NOTE_LENGTH.size + length]).decode()


def bitmap_of(live: bytes) -> bytes:
    """Return the bitmap without the note before it."""
    (length,) = _NOTE_LENGTH.unpack_from(live)
    return bytes(live[_NOTE_LENGTH.size + length :])
