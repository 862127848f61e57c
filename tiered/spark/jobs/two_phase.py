"""Compaction of one log that is too large for a task: a round in parts, from plan to last commit.

::

    plan ──> phase 1 and the shuffle ──> claim ──> waves: phase 2 of some parts, then a ``replace`` for each group
                                                     the last of them notes the clean end

    tiered_keys ──> high, low, code ── by key ──> newest of each ── by part ──> a note and a bitmap for each part
                                                                                        └── rewrite, part by part

Groups are committed in the order of their offsets, so that a tombstone is removed after all that it hides. After the
death of a driver the next one plans a new round: phase 1 is repeated, committed groups stay.

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

from tiered.config import MAX_LONG, S3_WORDS, S3Keywords
from tiered.errors import CorruptionError, NotFoundError, UnknownTopicError
from tiered.format.keys import Role
from tiered.format.root import STATE_DELETING, CompactedRange
from tiered.model import Row, TopicPartition
from tiered.plan.catalog_edit import ReplaceIntent
from tiered.plan.maintenance import MaintenanceKind
from tiered.plan.offset_map import OffsetMap, TxnsBefore
from tiered.plan.survivors import OFFSET_BITS, PAIR_BYTES, Pairs, Survivors, SurvivorsBuilder, code_of, txns_before
from tiered.remote.catalog import Catalog
from tiered.remote.catalog_view import CatalogView
from tiered.remote.committer import owner_of
from tiered.remote.compact_parts import (
    CompactionPart,
    Round,
    RowGroup,
    Scanned,
    inputs_of,
    plan_round,
    rewrite_part,
    scan_part,
)
from tiered.remote.fetch import ByteCache
from tiered.remote.lookup import SegmentLookup
from tiered.remote.root_history import require_newest_root
from tiered.remote.segment_rewriter import RewriteContext
from tiered.remote.topics import TopicEntry, load_topic_to_read
from tiered.spark.jobs.run import JobRunner, Receipt, Task, receipts_of
from tiered.spark.worker import capabilities_of, worker_store
from tiered.store.base import INCAPABLE, Store
from tiered.store.driver import drive, drive_stream

WAVE_PARTS = 256
"""Parts that are rewritten before their groups are committed: the most that the death of a driver loses."""

MAX_ROUNDS = 8
"""Most rounds of one run over one log. A round ends early if others change its rows."""


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """Planned compaction round and its parts. ``most_keys``: most keys that a task of phase 1 has in memory."""

    round: Round
    parts: tuple[CompactionPart, ...]
    most_keys: int

    @classmethod
    def plan(cls, store: Store, tp: TopicPartition, *, part_bytes: int, most_keys: int) -> PlannedRound | None:
        """Plan a round over the newest catalog. Return None if there is nothing to compact.

        ``part_bytes``: least bytes of segments in a part. ``most_keys``: most keys that a task has in memory. Raises
        UnknownTopicError, CorruptionError, and NotFoundError if others changed the rows meanwhile.
        """
        entry = entry_of(store, tp.topic)
        catalog, context = opened(store, entry, tp.partition)
        planned = drive(store, plan_round(catalog, entry.settings, context, part_bytes=part_bytes))
        return None if planned is None else cls(planned[0], tuple(planned[1]), most_keys)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON description of the round that the tasks of phase 1 get."""
        parts = [part_as_json(part) for part in self.parts]
        return {"round": dataclasses.asdict(self.round), "parts": parts, "most_keys": self.most_keys}


def part_as_json(part: CompactionPart) -> dict[str, Any]:
    """Return a part as JSON, from which :func:`part_from_json` rebuilds it."""
    groups = [dataclasses.astuple(group) for group in part.groups]
    return {"groups": groups, "size_bytes": part.size_bytes, "records": part.records}


def part_from_json(fields: Mapping[str, Any]) -> CompactionPart:
    """Return the part from the JSON of :func:`part_as_json`."""
    return CompactionPart(
        tuple([RowGroup(*group) for group in fields["groups"]]), fields["size_bytes"], fields["records"]
    )


def opened(store: Store, entry: TopicEntry, partition: int, *, epoch: int = 0) -> tuple[Catalog, RewriteContext]:
    """Return a partition's catalog and the access to its segments. ``epoch``: the claim for writing; 0: only read.

    Raises ConditionalWritesUnsupportedError if ``epoch`` is set and the store lacks conditional writes.
    """
    tp = TopicPartition(entry.name, partition)
    context = RewriteContext(
        tp=tp,
        topic_id=entry.topic_id,
        lookup=SegmentLookup(tp, entry.topic_id, ByteCache()),
        capabilities=capabilities_of(store) if epoch else INCAPABLE,
        claim_epoch=epoch,
        index_interval_bytes=entry.settings.index_interval_bytes,
        lineage=(),
    )
    return Catalog(entry.topic_id, partition, entry.name, known=entry.known), context


def entry_of(store: Store, topic: str) -> TopicEntry:
    """Return the registry entry of a topic. Raises UnknownTopicError for one that is missing or being deleted."""
    entry = drive(store, load_topic_to_read(topic))
    if entry is None or entry.state == STATE_DELETING:
        raise UnknownTopicError(f"there is no topic {topic!r}", hint="see `tiered topic list`")
    return entry


def compacted_entry(store: Store, topic: str) -> TopicEntry:
    """Return the registry entry of the round's topic. Raises NotFoundError if compaction was turned off for it
    since.
    """
    entry = entry_of(store, topic)
    if not entry.settings.compacted:
        raise NotFoundError(
            f"topic {topic!r} cannot be compacted: its cleanup.policy is no longer compact",
            hint="run the command again",
        )
    return entry


# -- in a worker -----------------------------------------------------------------------------------------------------


def scan(store: Store, facts: Mapping[str, Any], number: int, part: CompactionPart) -> Generator[Pairs, None, Scanned]:
    """Run phase 1 on one part: yield its pairs (digest of a key, and code of its newest offset) in groups.

    Return counts, and the effects of the records on transactions. ``facts``: the JSON of :meth:`PlannedRound.as_json`.
    ``number``: index of the part. Raises NotFoundError if the catalog has other rows than the plan.
    """
    round_ = Round(**facts["round"])
    catalog, context = opened(store, compacted_entry(store, round_.topic), round_.partition)
    first_dirty, most_keys = round_.first_dirty, facts["most_keys"]
    steps = scan_part(catalog, context, part, number=number, first_dirty=first_dirty, most_keys=most_keys)
    found: Scanned = yield from drive_stream(store, steps)
    return found


def rewrite(store: Store, task: Task, bitmap: bytes) -> Receipt:
    """Run phase 2 on one part: write one new segment for each group of segments in ``task``.

    Return their rows, which the driver commits, in order; None for a group that stays as it is, or was trimmed. If the
    catalog has other rows now, return only ``changed``, the reason. ``bitmap``: one bit for each offset of the part,
    set for the records that stay. Raises FencedError if the driver's claim is over.
    """
    round_ = Round(**task["round"])
    name = f"the bitmap of part {task['part']}"
    survivors = Survivors(bitmap, task["start"], task["end"], key=name, latest_offset=round_.first_uncleanable - 1)
    groups = [
        (RowGroup(*group), TxnsBefore(group[0], frozenset(committed), frozenset(aborted)))
        for group, committed, aborted in task["groups"]
    ]
    try:
        entry = compacted_entry(store, round_.topic)
        catalog, context = opened(store, entry, round_.partition, epoch=task["epoch"])
        rows = drive(store, rewrite_part(catalog, context, round_, groups, survivors, always=task["always"]))
    except NotFoundError as changed:
        if changed.__class__ is not NotFoundError:
            raise
        return {"changed": changed.message}
    return {"rows": rows}


KEYS_SOURCE = "tiered_keys"
COLUMNS = "high long, low long, code long, note string"

SHUFFLE_BYTES = 128 * 1024 * 1024
"""Bytes of one task after the shuffle, if every record has a unique key."""

MAX_SHUFFLE_TASKS = 10_000

_NOTE_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class KeyPartition(InputPartition):
    """Spark input partition for one part of a compaction round. It has the part's number."""

    number: int
    part: CompactionPart


class KeySource(DataSource):
    """Spark data source with a digest of each key in a part, and a code of the part and the key's newest offset.

    Options: ``url``, ``round`` (JSON of a PlannedRound), and S3 settings.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format, for ``format(...)``."""
        return KEYS_SOURCE

    def schema(self) -> str:
        """Return the columns of Spark's rows. A part has a row for each key, and one with ``note``, its result."""
        return COLUMNS

    def reader(self, schema: StructType) -> KeyReader:
        """Return the reader of all parts of the round."""
        del schema
        return KeyReader(self.options)


class KeyReader(DataSourceReader):
    """Spark reader of a round's keys, with one input partition for each part."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._url = options["url"]
        self._s3: S3Keywords = {word: options[word] for word in S3_WORDS if word in options}  # type: ignore[assignment]
        fields = json.loads(options["round"])
        self._parts = [part_from_json(part) for part in fields.pop("parts")]
        self._facts = fields

    def partitions(self) -> list[InputPartition]:
        """Return one input partition for each part of the round."""
        return [KeyPartition(number, part) for number, part in enumerate(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a row for each key of one part, then one with ``note``: the result of the scan as JSON.

        If the catalog has other segments by now, ``note`` has only ``changed``, the reason.
        """
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
    """Records that stay after one round, by part, as the shuffle found them. Spark stores them until the block ends."""

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
        """Run phase 1 and the shuffle. Return the result of each part, in order. ``title``: the work, for the progress.

        Its keys are ``records`` and ``pairs`` (numbers of records read and keys found), ``effects`` (on transactions)
        and ``survivors`` (number of records that stay). Raises NotFoundError if the catalog has other rows than the
        plan, CorruptionError if Spark returns no result for a part, JobFailedError if Spark fails.
        """
        count = len(self._planned.parts)
        found = self._collect_notes(title)
        if sorted(found) != list(range(count)):
            raise CorruptionError(
                f"{title}: Spark returned only {len(found)} of {count} parts; nothing was replaced",
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
        """Run ``work`` for the parts ``numbers``, each with its task and bitmap. Return the receipts.

        ``title``: the work, for the progress. Raises JobFailedError if a task failed.
        """
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
    """Return a data frame with one row, in a Spark partition of its own, for each part of the round.

    Its columns are ``number`` (of the part) and ``live``: the result of phase 1 as JSON, and a bitmap of the records
    that stay.
    """
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
    """Return the function that makes the column ``live`` of a part from the codes and notes of its surviving keys.

    ``live``: the part's result as JSON, and a bitmap of the records that stay. ``bounds``: start and exclusive end
    offset of each part.
    """

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
    """Return the result of phase 1 for a part from ``live``, the bytes of that result and the part's bitmap.

    Its keys are ``records`` and ``pairs`` (numbers of records read and keys found), ``effects`` (on transactions) and
    ``survivors`` (number of records that stay). If the catalog had other rows than the plan, ``changed`` (the error's
    text) replaces the first three.
    """
    found: dict[str, Any] = json.loads(_note_text(live))
    return found


def _note_text(live: bytes) -> str:
    (length,) = _NOTE_LENGTH.unpack_from(live)
    return bytes(live[_NOTE_LENGTH.size : _NOTE_LENGTH.size + length]).decode()


def bitmap_of(live: bytes) -> bytes:
    """Return the bitmap of the records that stay from ``live``, the bytes of a part's result and bitmap."""
    (length,) = _NOTE_LENGTH.unpack_from(live)
    return bytes(live[_NOTE_LENGTH.size + length :])


@dataclass(slots=True)
class RoundResult:
    """Counts of one compaction round. ``groups``: segments written. ``pairs``: keys that were shuffled.

    ``survivors``: records that stay.
    """

    groups: int = 0
    pairs: int = 0
    survivors: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


def compact(
    runner: JobRunner, tp: TopicPartition, why: str, *, part_bytes: int, memory_bytes: int
) -> tuple[list[dict[str, Any]], str]:
    """Compact one partition. Return a list with the completed round as JSON values, and a message.

    The list is empty if no round was completed. The message is empty, unless others changed the log in each of
    ``MAX_ROUNDS`` rounds. ``why``: reason for the commits. ``part_bytes``: least bytes of the part that one task
    rewrites. ``memory_bytes``: size of a task's map of keys. Raises FencedError if another maintainer claims the
    partition, JobFailedError, CorruptionError, and UnknownTopicError for a deleted topic.
    """
    most_keys = OffsetMap(memory_bytes).capacity
    for _ in range(MAX_ROUNDS):
        try:
            planned = PlannedRound.plan(runner.store, tp, part_bytes=part_bytes, most_keys=most_keys)
            return ([] if planned is None else [_round(runner, planned, why)]), ""
        except NotFoundError as changed:
            if changed.__class__ is not NotFoundError:
                raise
    return [], f"others changed it during {MAX_ROUNDS} rounds: the next run does the rest"


def _round(runner: JobRunner, planned: PlannedRound, why: str) -> dict[str, Any]:
    """Run one round, and return its result as JSON values. ``why``: reason for the commits."""
    name = f"{planned.round.topic}-{planned.round.partition}"
    with Shuffled(runner, planned) as shuffled:
        notes = shuffled.notes(f"{name}: the newest record of each key")
        done = Rewriting(runner, planned, shuffled, notes, why).carry_out()
    rows = sum(group.rows for part in planned.parts for group in part.groups)
    bounds = {"start": planned.round.start, "end": planned.round.first_uncleanable}
    return {"kind": MaintenanceKind.COMPACT.value, **bounds, "note": "", "rows_in": rows, **dataclasses.asdict(done)}


def rewrite_part_of(store: Store, task: Task, live: bytes) -> Receipt:
    """Run phase 2 of one part, in a worker. ``live``: the result of phase 1 as JSON, and the part's bitmap.

    If Spark lost ``live``, it was computed again. If the catalog had changed by then, the receipt has only ``changed``,
    the reason.
    """
    note = note_of(live)
    if "effects" not in note:  # the part was not read to its end: records without a bit may be live
        return {"changed": note.get("changed", f"part {task['part']} was not read to its end")}
    return rewrite(store, task, bitmap_of(live))


class Rewriting:
    """Phase 2 of a round and its commits, under a claim of its own. ``notes``: the parts' results of phase 1.

    ``why``: reason for the commits.
    """

    def __init__(
        self, runner: JobRunner, planned: PlannedRound, shuffled: Shuffled, notes: Sequence[dict[str, Any]], why: str
    ) -> None:
        self._runner = runner
        self._planned = planned
        self._shuffled = shuffled
        self._why = why
        groups = [group for part in planned.parts for group in part.groups]
        effects = [effect for note in notes for effect in note["effects"]]
        self._before = dict(zip(groups, txns_before([group.start for group in groups], effects), strict=True))
        entry = compacted_entry(runner.store, planned.round.topic)
        self._catalog = Catalog(entry.topic_id, planned.round.partition, entry.name, known=entry.known)
        drive(
            runner.store, require_newest_root(self._catalog, must_list=False)
        )  # a commit to an older root would hide its age
        self._epoch = drive(runner.store, self._catalog.claim(Role.MAINTAINER, owner_of("tiered spark maintain"))).epoch
        self._waiting: tuple[list[Row], Row] | None = None  # not committed yet, because the last one has the clean end
        self._done = RoundResult(
            pairs=sum(note["pairs"] for note in notes), survivors=sum(n["survivors"] for n in notes)
        )

    def carry_out(self) -> RoundResult:
        """Rewrite and commit all parts, ``WAVE_PARTS`` at a time. Return the counts.

        Raises FencedError if another maintainer claims the partition, NotFoundError if others changed the round's rows.
        """
        round_, parts = self._planned.round, self._planned.parts
        for first in range(0, len(parts), WAVE_PARTS):
            self._wave(range(first, min(first + WAVE_PARTS, len(parts))))
        horizon_ms = min(round_.now_ms + round_.delete_retention_ms, MAX_LONG)
        if self._waiting is None and not self._is_clean():
            self._last_group_again()
        if self._waiting is not None:
            self._commit(*self._waiting, CompactedRange(round_.first_uncleanable, horizon_ms))
        return self._done

    def _wave(self, numbers: Sequence[int]) -> None:
        """Do phase 2 of the parts ``numbers``, then commit their groups of segments, except the last group."""
        snapshot = self._pinned()
        wanted, tasks, inputs = list[int](), list[Task](), list[list[list[Row]]]()
        for number in numbers:
            part = self._planned.parts[number]
            left = [(group, rows) for group in part.groups if (rows := self._inputs(snapshot, group))]
            if left:
                wanted.append(number)
                tasks.append(self._task(number, part, [group for group, _ in left], always=False))
                inputs.append([rows for _, rows in left])
        self._rewrite(wanted, tasks, inputs)

    def _last_group_again(self) -> None:
        """Rewrite the last group although all of its records stay.

        Only a ``replace`` commit can record up to which offset the log is compacted.
        """
        number, part = len(self._planned.parts) - 1, self._planned.parts[-1]
        rows = self._inputs(self._pinned(), part.groups[-1])
        if rows:
            self._rewrite([number], [self._task(number, part, [part.groups[-1]], always=True)], [[rows]])

    def _task(self, number: int, part: CompactionPart, groups: Sequence[RowGroup], *, always: bool) -> Task:
        listed = [(dataclasses.astuple(group), *_listed(self._before[group])) for group in groups]
        return {
            "round": dataclasses.asdict(self._planned.round),
            "part": number,
            "start": part.start,
            "end": part.end,
            "epoch": self._epoch,
            "groups": listed,
            "always": always,
        }

    def _rewrite(self, numbers: Sequence[int], tasks: Sequence[Task], inputs: Sequence[list[list[Row]]]) -> None:
        """Run the tasks of the parts ``numbers`` under this claim, and commit all new segments but the last one.

        ``inputs``: the rows that each group of each part replaces. Raises NotFoundError if a worker found other rows.
        """
        if not tasks:
            return
        title = f"{self._planned.round.topic}-{self._planned.round.partition}: rewriting"
        receipts = self._shuffled.rewrite(title, rewrite_part_of, numbers, tasks)
        changed = next((receipt["changed"] for receipt in receipts if "changed" in receipt), None)
        if changed is not None:
            raise NotFoundError(changed, hint="plan again")
        for each, receipt in zip(inputs, receipts, strict=True):
            for rows, made in zip(each, receipt["rows"], strict=True):
                self._done.bytes_read += sum(row.size for row in rows)
                if made is not None:
                    self._keep(rows, Row(*made))

    def _inputs(self, snapshot: CatalogView, group: RowGroup) -> list[Row]:
        """Return the rows that a group replaces, none if a trim removed them. Raises NotFoundError for other rows."""
        return drive(self._runner.store, inputs_of(snapshot, group))

    def _keep(self, rows: Sequence[Row], row: Row) -> None:
        """Store a written group for the next commit, and commit the one before it. ``row`` replaces ``rows``."""
        if self._waiting is not None:
            self._commit(*self._waiting, None)
        self._done.groups += 1
        self._done.bytes_written += row.size
        self._waiting = [old for old in rows if old.base >= row.base], row  # a trim came in between

    def _commit(self, old: Sequence[Row], row: Row, cleaned: CompactedRange | None) -> None:
        intent = ReplaceIntent(tuple(old), (row,), cleaned)
        try:
            drive(self._runner.store, self._catalog.commit(intent, reason=f"{MaintenanceKind.COMPACT}, {self._why}"))
        except NotFoundError as gone:
            root = self._catalog.root
            if gone.__class__ is not NotFoundError or root is None or root.start_offset < row.next:
                raise  # otherwise a trim has removed the group, and all before it

    def _is_clean(self) -> bool:
        root = self._pinned().root
        return any(entry.end_offset >= self._planned.round.first_uncleanable for entry in root.cleaned)

    def _pinned(self) -> CatalogView:
        snapshot = drive(self._runner.store, self._catalog.pin())
        if snapshot is None:
            raise NotFoundError(f"{self._planned.round.topic} was deleted during the job", hint="run the command again")
        return snapshot


def _listed(before: TxnsBefore) -> tuple[list[int], list[int]]:
    return list(before.committed), list(before.aborted)  # type: ignore[call-overload]  # tuples, as txns_before gives
