"""Between the phases of a compaction in parts: Spark's shuffle of keys, from segments to bitmaps of survivors.

::

    tiered_keys ──> high, low, code ── by key ──> newest of each ── by part ──> tiered_survivors ──> a bitmap a part

Both sources are internal: what they read and write is what the job keeps. A bitmap is created once; every part has one,
an empty one too, and only then :data:`SURVIVORS` says how many there are. Without that nothing may be rewritten.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as fn
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tiered.config import S3_WORDS, S3Keywords
from tiered.errors import CorruptionError, NotFoundError
from tiered.plan.survivors import OFFSET_BITS, PAIR_BYTES, SurvivorsBuilder, code_of
from tiered.remote.compact_parts import Part
from tiered.spark.jobs.receipts import JobFolder
from tiered.spark.jobs.rounds import CHANGED, SURVIVORS, KeptRound, bitmap_name, scan
from tiered.spark.stores import worker_store
from tiered.store.base import Store

KEYS_SOURCE, SURVIVORS_SOURCE = "tiered_keys", "tiered_survivors"
COLUMNS = "high long, low long, code long"

SHUFFLE_BYTES = 128 * 1024 * 1024
"""Of one task behind the shuffle, where every record has a key of its own."""

MAX_SHUFFLE_TASKS = 10_000


def shuffle(session: SparkSession, words: Mapping[str, str], kept: KeptRound) -> None:
    """Phase 1 of a round, and a bitmap of each part. Raises what Spark raises."""
    for source in (KeySource, SurvivorsSource):
        session.dataSource.register(source)
    parts = kept.parts
    dirty = code_of(kept.round.first_dirty, [part.start for part in parts])
    expected = sum(part.records for part in parts) * PAIR_BYTES
    tasks = int(min(max(expected // SHUFFLE_BYTES + 1, min(len(parts), 8)), MAX_SHUFFLE_TASKS))
    pairs = session.read.format(KEYS_SOURCE).options(**words, round=kept.name).load()
    newest = fn.max("code").over(Window.partitionBy("high", "low"))
    known = pairs.repartition(tasks, "high", "low").withColumn("newest", newest)
    alive = known.where((fn.col("newest") == fn.col("code")) | (fn.col("newest") < fn.lit(dirty))).select("code")
    by_part = alive.repartition(min(tasks, len(parts)), fn.shiftright("code", OFFSET_BITS))
    rows = by_part.sortWithinPartitions("code")
    rows.write.format(SURVIVORS_SOURCE).options(**words, round=kept.name).mode("append").save()


class _Options:
    """The round that a source belongs to. Holds no credentials."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.url, self.job, self.name = options["url"], options["job"], options["round"]
        self._s3: S3Keywords = {word: options[word] for word in S3_WORDS if word in options}  # type: ignore[assignment]

    def store(self) -> Store:
        return worker_store(self.url, **self._s3)

    def folder(self) -> JobFolder:
        return JobFolder(self.store(), self.job)


@dataclass(frozen=True)
class KeyPartition(InputPartition):
    """One part, with its number."""

    number: int
    part: Part


class KeySource(DataSource):
    """Digests of the keys of a round, and codes."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format(...)``."""
        return KEYS_SOURCE

    def schema(self) -> str:
        """One row for a key of a part."""
        return COLUMNS

    def reader(self, schema: StructType) -> KeyReader:
        """All parts."""
        del schema
        return KeyReader(_Options(self.options))


class KeyReader(DataSourceReader):
    """A part is a partition. What it does to transactions is kept beside the rows."""

    def __init__(self, options: _Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Of the round as it was planned."""
        kept = KeptRound.load(self._options.folder(), self._options.name)
        return [KeyPartition(number, part) for number, part in enumerate(kept.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Its pairs. Where the bucket holds other rows by now, that is kept, too: the round is planned anew then."""
        if not isinstance(partition, KeyPartition):
            return
        folder = self._options.folder()
        try:
            for pairs in scan(self._options.store(), folder, self._options.name, partition.number, partition.part):
                yield pa.RecordBatch.from_arrays(
                    [pa.array(pairs.high), pa.array(pairs.low), pa.array(pairs.codes)], names=["high", "low", "code"]
                )
        except NotFoundError as changed:
            if changed.__class__ is NotFoundError:
                folder.keep(f"{self._options.name}-{CHANGED}", {"message": changed.message})
            raise


@dataclass(frozen=True, slots=True)
class Told(WriterCommitMessage):
    """Survivors of the parts that one task made bitmaps of."""

    counts: Mapping[int, int]


class SurvivorsSource(DataSource):
    """Takes codes, by part and in order."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format(...)``."""
        return SURVIVORS_SOURCE

    def writer(self, schema: StructType, overwrite: bool) -> SurvivorsWriter:
        """All parts."""
        del schema, overwrite
        return SurvivorsWriter(_Options(self.options))


class SurvivorsWriter(DataSourceArrowWriter):
    """Bitmaps of whole parts, one after the other."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        kept = KeptRound.load(options.folder(), options.name)
        self._bounds = [(part.start, part.end) for part in kept.parts]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Told:
        """Those of one task."""
        folder, counts = self._options.folder(), dict[int, int]()
        number, builder = -1, None
        for batch in iterator:
            codes = batch.column(0).to_numpy(zero_copy_only=False)
            numbers = codes >> OFFSET_BITS
            bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(codes)]
            for low, high in itertools.pairwise(bounds):
                if low == high:
                    continue
                if builder is None or int(numbers[low]) != number:
                    self._keep(folder, number, builder)
                    number = int(numbers[low])
                    builder = self._builder(number)
                builder.add(codes[low:high])
                counts[number] = counts.get(number, 0) + high - low
        self._keep(folder, number, builder)
        return Told(counts)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Bitmaps of the parts without a survivor, then how many there are in all."""
        folder, counts = self._options.folder(), dict[int, int]()
        for message in messages:
            if isinstance(message, Told):
                counts |= message.counts
        for number in range(len(self._bounds)):
            if number not in counts:
                self._keep(folder, number, self._builder(number))
        found = [counts.get(number, 0) for number in range(len(self._bounds))]
        folder.keep(f"{self._options.name}-{SURVIVORS}", {"counts": found})

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What there is stays: another attempt makes the same."""

    def _builder(self, number: int) -> SurvivorsBuilder:
        return SurvivorsBuilder(number, *self._bounds[number])

    def _keep(self, folder: JobFolder, number: int, builder: SurvivorsBuilder | None) -> None:
        if builder is None:
            return
        made, name = builder.finish(), bitmap_name(self._options.name, number)
        if folder.keep_bytes(name, made) != made:
            raise CorruptionError(
                f"{folder.key(name)}: another attempt found other survivors of the same part",
                path_or_key=folder.key(name),
                position=0,
                hint="begin the job under another id: --job NAME; nothing was replaced",
            )
