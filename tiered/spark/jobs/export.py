"""``export``: records as Parquet files, a Delta or an Iceberg table; each run goes on where the last one ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tiered.clock import SystemClock, SystemIds
from tiered.errors import ConfigError, UnknownTopicError
from tiered.model import TopicPartition
from tiered.program.output import columns, counted, human_bytes
from tiered.remote.topics import load_topic_to_read
from tiered.spark.jobs.job import Outcome, Run
from tiered.spark.jobs.plan import JobPlan, Receipt, Task
from tiered.spark.jobs.tables import Ends, open_target, write_file
from tiered.spark.options import EARLIEST, ReadOptions
from tiered.spark.ranges import resolve_pieces
from tiered.spark.schema import arrow_schema_of, kafka_schema
from tiered.spark.slice_reader import SliceReader
from tiered.spark.slices import Slice
from tiered.store.base import Store
from tiered.store.driver import drive

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Uncompressed bytes of one row group."""

PARTS = "files"
SHAPE = ("topics", "committed", "headers")
"""Arguments that say what stands in the files."""


class Export:
    """Arguments: ``topics``, ``format``, ``to``, ``catalog``, ``table``, ``committed``, ``headers``, ``lost``,
    ``task_bytes``, and ``read`` and ``s3``: how the log and the target are reached.
    """

    name = "export"

    def plan(self, store: Store, arguments: Mapping[str, Any], now_ms: int) -> JobPlan:
        """From where the target is to the end of the log now. Raises UnknownTopicError, OffsetOutOfRangeError."""
        target, shape = open_target(arguments), {name: arguments[name] for name in SHAPE}
        unfinished = target.unfinished()
        if unfinished is not None:
            if unfinished["shape"] != shape:
                raise ConfigError(
                    f"an export into {arguments['to']} was begun with {unfinished['shape']} and not completed",
                    hint="complete it with the same options first",
                )
            tasks = unfinished.pop("tasks")
            return JobPlan(self.name, arguments, now_ms, tuple(tasks), {**unfinished, "completes": True})
        starts, held = self._starts(store, arguments["topics"], target.ends)
        options = _options(arguments, {"subscribe": ",".join(sorted(starts)), "startingOffsets": json.dumps(starts)})
        pieces = resolve_pieces(options, store)
        slices = SliceReader(options, _columns(arguments)).cut(pieces)
        tasks = [
            {
                "pieces": [[piece.tp.topic, piece.tp.partition, piece.start, piece.end] for piece in part.pieces],
                "topic_ids": {piece.tp.topic: piece.topic_id for piece in part.pieces},
                "size_bytes": part.size_bytes,
            }
            for part in slices
        ]
        ranges: dict[str, list[int]] = {}
        for piece in pieces:
            key = f"{piece.topic_id}-{piece.tp.partition}"
            ranges.setdefault(key, [held.get(key, piece.start), piece.end])[1] = piece.end
        facts = {"ranges": ranges, "job": SystemIds().uid(), "shape": shape}
        return JobPlan(self.name, arguments, now_ms, tuple(tasks), facts)

    @staticmethod
    def _starts(store: Store, topics: Iterable[str], ends: Any) -> tuple[dict[str, dict[str, int]], Ends]:
        """Offsets in the words of ``startingOffsets``, and where the target is."""
        keys: dict[TopicPartition, str] = {}
        for name in topics:
            entry = drive(store, load_topic_to_read(name))
            if entry is None:
                raise UnknownTopicError(f"there is no topic {name!r} to export", hint="see `tiered topics list`")
            keys |= {TopicPartition(name, p): f"{entry.topic_id.hex}-{p}" for p in range(entry.partitions)}
        held: Ends = ends(keys.values())
        starts: dict[str, dict[str, int]] = {}
        for tp, key in keys.items():
            starts.setdefault(tp.topic, {})[str(tp.partition)] = held.get(key, EARLIEST)
        return starts, held

    def table(self, plan: JobPlan) -> list[str]:
        """One line for each partition."""
        found: dict[tuple[str, int], list[int]] = {}
        for task in plan.tasks:
            for topic, partition, start, end in task["pieces"]:
                row = found.setdefault((topic, partition), [0, start, end])
                row[0], row[2] = row[0] + 1, end
        size = human_bytes(sum(task["size_bytes"] for task in plan.tasks))
        rows = [[f"{topic}-{partition}", *row] for (topic, partition), row in sorted(found.items())]
        if not rows:
            return ["there is nothing new to export"]
        head = f"{counted(len(plan.tasks), 'task')}, {size} to read"
        if "completes" in plan.facts:
            head += "; an export that was killed is completed first: start another one for what came since"
        return [*columns(["partition", "tasks", "from", "to"], rows), head]

    def work(self, store: Store, plan: JobPlan, task: Task) -> Receipt:
        """One file of the records of one slice; none where the slice holds no record."""
        pieces, topic_ids = task["pieces"], task.get("topic_ids", {})
        _need_same(store, topic_ids, plan.arguments)
        asked: dict[str, list[int]] = {}
        bounds: dict[str, dict[str, dict[str, Any]]] = {"startingOffsets": {}, "endingOffsets": {}}
        for topic, partition, start, end in pieces:
            asked.setdefault(topic, []).append(partition)
            bounds["startingOffsets"].setdefault(topic, {})[str(partition)] = start
            bounds["endingOffsets"].setdefault(topic, {})[str(partition)] = end
        bounds["startingOffsets"]["@"] = {"topic_ids": topic_ids}
        options = _options(
            plan.arguments, {"assign": json.dumps(asked)} | {name: json.dumps(each) for name, each in bounds.items()}
        )
        schema = _columns(plan.arguments)
        batches = SliceReader(options, schema).read(Slice(tuple(resolve_pieces(options, store))), store)
        data, rows = _parquet(batches, arrow_schema_of(schema))
        if not rows:
            return {"name": "", "path": "", "rows": 0, "size_bytes": 0, "written_ms": 0}
        name = f"{task['stem']}.parquet" if plan.arguments["format"] == "parquet" else _unique(task["stem"])
        path = write_file(task["folder"], name, data, plan.arguments["s3"])
        written_ms = SystemClock().now_ms()
        return {"name": name, "path": path, "rows": rows, "size_bytes": data.size, "written_ms": written_ms}

    def carry_out(self, run: Run) -> Outcome:
        """Files, then the one commit that names them."""
        plan, arguments = run.plan, run.plan.arguments
        if not plan.tasks:
            return Outcome({"files": 0, "rows": 0, "size_bytes": 0, "ranges": {}, "committed": False})
        target, schema = open_target(arguments, create=True), arrow_schema_of(_columns(arguments))
        target.need_fit(schema)
        begun = {"to": arguments["to"] or arguments["table"], **plan.facts, "tasks": list(plan.tasks)}
        begun.pop("completes", None)
        where = run.once("begun", lambda: {"stem": target.begin(begun), "folder": target.folder})
        stem, folder = where["stem"], where["folder"]
        tasks = [{**task, "stem": f"{stem}-{at:06d}", "folder": folder} for at, task in enumerate(plan.tasks)]
        receipts = run.tasks("exporting", tasks, phase=PARTS)
        committed = target.commit({**begun, "stem": stem}, receipts, schema)
        return Outcome(
            {
                "files": sum(1 for receipt in receipts if receipt["rows"]),
                "rows": sum(receipt["rows"] for receipt in receipts),
                "size_bytes": sum(receipt["size_bytes"] for receipt in receipts),
                "ranges": plan.facts["ranges"],
                "committed": committed,
            }
        )

    def lines(self, fields: Mapping[str, Any]) -> list[str]:
        """How much."""
        if not fields["ranges"]:
            return ["nothing new was there to export"]
        files, rows = counted(fields["files"], "file"), counted(fields["rows"], "record")
        return [f"{rows} in {files}, {human_bytes(fields['size_bytes'])}, exported"]


def _options(arguments: Mapping[str, Any], more: Mapping[str, str]) -> ReadOptions:
    isolation = "read_committed" if arguments["committed"] else "read_uncommitted"
    fixed = {"isolation.level": isolation, "includeHeaders": str(arguments["headers"]).lower()}
    fixed["failOnDataLoss"] = str(not arguments["lost"]).lower()
    options = ReadOptions.parse({**arguments["read"], **fixed, **more})
    return dataclasses.replace(options, slice_bytes=arguments["task_bytes"])


def _need_same(store: Store, topic_ids: Mapping[str, str], arguments: Mapping[str, Any]) -> None:
    """Raises UnknownTopicError for a topic that is another one than the export was planned over: its records would
    count as those of the one that is gone, and be exported once more as its own.
    """
    for name, topic_id in topic_ids.items():
        entry = drive(store, load_topic_to_read(name))
        if entry is None or entry.topic_id.hex != topic_id:
            again = "" if entry is None else " and made again"
            folder = ", into another folder: this one waits for what was begun in it"
            raise UnknownTopicError(
                f"the topic {name} was deleted{again} since this export was planned",
                hint=f"start a new export{folder if arguments['format'] == 'parquet' else ''}",
            )


def _columns(arguments: Mapping[str, Any]) -> Any:
    return kafka_schema(include_headers=arguments["headers"])


def _unique(stem: str) -> str:
    """An attempt's own: in a table a file that no commit names is not seen."""
    return f"{stem}-{SystemIds().uid()[:12]}.parquet"


def _parquet(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> tuple[pa.Buffer, int]:
    """One file in memory, and its rows."""
    sink = pa.BufferOutputStream()
    rows = held_bytes = 0
    held: list[pa.RecordBatch] = []
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in batches:
            held.append(batch)
            held_bytes += batch.nbytes
            rows += batch.num_rows
            if held_bytes >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(held, schema))
                held, held_bytes = [], 0
        if held:
            writer.write_table(pa.Table.from_batches(held, schema))
    return sink.getvalue(), rows
