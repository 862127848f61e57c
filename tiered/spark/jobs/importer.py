"""``import``: Parquet files or JSON lines into a topic through the sink, once under one job id, in tasks of Spark."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from tiered.errors import ConfigError, NotFoundError
from tiered.format.decision import COMMITTED
from tiered.format.keys import decision_key
from tiered.program.output import columns, counted, human_bytes
from tiered.remote.stage import read_decision
from tiered.spark import register
from tiered.spark.jobs.job import Outcome, Run
from tiered.spark.jobs.json_lines import read_lines
from tiered.spark.jobs.plan import JobPlan
from tiered.spark.jobs.tables import file_system
from tiered.store.base import Store
from tiered.store.driver import drive

BEGUN = "begun"
"""What the job keeps before its sink decides."""
SHOWN_FILES = 20
SHOWN_CHARS = 40
"""Of a line that is wrong."""
ORDER_BYTES = 128 * 1024 * 1024
"""Of files, that one task puts in order."""
MAX_FILES = 100_000
"""Files of one import: the plan names each, so that a second run reads the same ones."""

WHOLE_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
}
"""How the JSON of a row tells times: with their microseconds, which Spark leaves out by itself."""

KEPT = ("key", "value", "headers", "timestamp")
"""Columns of an export that are a record's own; its place in a log is given anew."""
RECORD = (*KEPT, "topic", "partition", "offset", "timestampType")
"""All columns of an export."""


class Import:
    """Arguments: ``files``, ``topic``, ``format`` (parquet, json), ``key``, ``value``, ``timestamp`` (names of fields),
    ``partitions`` (of a topic that is to be made, 0: none), and ``read`` and ``s3``: how the bucket is reached.
    """

    name = "import"

    def plan(self, store: Store, arguments: Mapping[str, Any], now_ms: int) -> JobPlan:
        """The files as they are now. Raises NotFoundError, ConfigError for too many and for one that is named twice."""
        del store
        read = [_files(place, arguments) for place in arguments["files"]]
        found = [each for _, files in read for each in files]
        for name, times in Counter(name for name, _ in found).items():
            if times > 1:
                raise ConfigError(f"{name} is named twice: its records would be, too", hint="name each file once")
        if len(found) > MAX_FILES:
            raise ConfigError(f"{len(found)} files, {MAX_FILES} are the most of one import", hint="several imports")
        base = _common_folder([folder for folder, _ in read])
        return JobPlan(self.name, arguments, now_ms, (), {"files": found, "base": base})

    def table(self, plan: JobPlan) -> list[str]:
        """The files, the first of many."""
        files = plan.facts["files"]
        head = f"{counted(len(files), 'file')}, {human_bytes(sum(size for _, size in files))}"
        shown = [[name, human_bytes(size)] for name, size in files[:SHOWN_FILES]]
        more = [f"and {len(files) - SHOWN_FILES} more"] if len(files) > SHOWN_FILES else []
        return [*columns(["file", "size"], shown), *more, f"{head} into {plan.arguments['topic']}"]

    def carry_out(self, run: Run) -> Outcome:
        """One transaction of the sink, whose id is the job's: rows of the same id are added once."""
        arguments, files = run.plan.arguments, run.plan.facts["files"]
        if not files:  # of which Spark would want to know the columns
            return Outcome({"files": 0, "rows": 0, "size_bytes": 0})
        _need_unused(run)
        register(run.session())
        counts = Observation()

        def imported() -> None:
            frame = _records(run.session(), files, arguments, run.plan.facts.get("base", ""))
            writer = frame.observe(counts, fn.count(fn.lit(1)).alias("rows")).write.format("tiered").mode("append")
            for name, value in arguments["read"].items():
                writer = writer.option(name, value)
            writer = writer.option("topic", arguments["topic"]).option("txnId", _txn(run))
            if arguments["partitions"]:
                writer = writer.option("createTopic", str(arguments["partitions"]))
            writer.save()

        run.spark(f"importing {counted(len(files), 'file')}", imported)
        size = sum(size for _, size in files)
        return Outcome({"files": len(files), "rows": counts.get["rows"], "size_bytes": size})

    def lines(self, fields: Mapping[str, Any]) -> list[str]:
        """How much."""
        rows, files = counted(fields["rows"], "record"), counted(fields["files"], "file")
        return [f"{rows} of {files}, {human_bytes(fields['size_bytes'])}, imported"]


def _txn(run: Run) -> str:
    """The sink's transaction id, which outlives the job's folder."""
    return f"import-{run.job_id}"


def _need_unused(run: Run) -> None:
    """Raises ConfigError where an import that nobody remembers, since its folder was deleted, has used the job's id.

    The sink would take this one for its repetition, and add nothing. An import that goes on has left a note before it
    decided anything; one that an earlier release planned has none.
    """
    if "base" not in run.plan.facts:
        return
    decided = False
    for generation in itertools.count():
        found = drive(run.store, read_decision(decision_key(_txn(run), 0, generation)))
        if found is None:
            break
        decided = decided or found.state == COMMITTED
    if decided and run.folder.read(BEGUN) is None:
        raise ConfigError(
            f"the job id {run.job_id} was used before, by an import whose folder below jobs/ is gone: its records "
            "count as those of this one, and none of these would be added",
            hint="another id: --job NAME",
        )
    run.folder.keep(BEGUN, {})


def _files(place: str, arguments: Mapping[str, Any]) -> tuple[str, list[tuple[str, int]]]:
    """The files at ``place``, a file or a folder, by name, as Spark reads them; hidden ones are left out. The folder.

    ``place`` is a URL, or a path of this machine, as the shell gives it: relative, with blanks or ``%`` in it.
    """
    filesystem, path = pafs.LocalFileSystem(), str(Path(place).absolute())
    if "://" in place:
        filesystem, path = file_system(place, arguments["s3"])
    info = filesystem.get_file_info(path)
    if info.type is pafs.FileType.NotFound:
        raise NotFoundError(f"there is nothing at {place} to import", hint="name a file or a folder")
    scheme = "s3a://" if place.startswith("s3://") else "file://"
    if info.type is not pafs.FileType.Directory:
        if _hidden(info.base_name):
            raise ConfigError(
                f"{place} has a name that Spark passes over: nothing of it would be imported",
                hint="rename it: no _ or . at the beginning, no ._COPYING_ at the end",
            )
        return posixpath.dirname(f"{scheme}{info.path}"), [(f"{scheme}{info.path}", info.size)]
    found = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
    below = [(each, each.path.removeprefix(path).split("/")) for each in found if each.type is pafs.FileType.File]
    kept = [each for each, parts in below if not any(map(_hidden, parts))]
    return f"{scheme}{path.rstrip('/')}", sorted((f"{scheme}{each.path}", each.size) for each in kept)


def _common_folder(folders: Sequence[str]) -> str:
    """The URL of the folder that all of them are or lie below; empty where there is none."""
    schemes, paths = zip(*[folder.split("://", 1) for folder in folders], strict=True)
    common = posixpath.commonpath(paths) if len(set(schemes)) == 1 else ""
    return f"{schemes[0]}://{common}" if common else ""


def _folder_columns(base: str, files: Sequence[tuple[str, int]]) -> set[str]:
    """The columns that stand in the names of folders below ``base``, as ``day=2024-01-01``, and in no file."""
    parts = [part for name, _ in files for part in name.removeprefix(base).split("/")[:-1]] if base else []
    return {unquote(part.partition("=")[0]) for part in parts if "=" in part}


def _hidden(name: str) -> bool:
    """Whether Spark passes over a file, or over a folder below the one that it reads, of that name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _literal(path: str) -> str:
    """``path`` as Spark takes it: to Spark a name with brackets or an asterisk is a pattern, which others may fit."""
    return re.sub(r"[\\\[\]{}*?]", r"\\\g<0>", path)


def _records(
    session: SparkSession, files: Sequence[tuple[str, int]], arguments: Mapping[str, Any], base: str
) -> DataFrame:
    """A frame with the sink's columns, in the order of ``files``: names and sizes. ``base``: the folder of them all.

    Raises ConfigError for a field that is not there.
    """
    names = [_literal(name) for name, _ in files]
    if arguments["format"] == "json":
        text = fn.col("value")
        lines = session.read.text(names).where(text.rlike(r"\S"))
        lines = lines.withColumn("read", read_lines(text.cast("binary"), _named(arguments)))
        return _in_order(session, lines, _of_lines(lines, arguments), files)
    reader = session.read.option("mergeSchema", "true")  # else what only some of them have is left out
    folders = _folder_columns(base, files)
    frame = (reader.option("basePath", base) if folders else reader).parquet(*names)
    return _in_order(session, frame, _columns_of(frame, arguments, folders), files)


def _in_order(
    session: SparkSession, frame: DataFrame, chosen: Sequence[Column], files: Sequence[tuple[str, int]]
) -> DataFrame:
    """``chosen`` of ``frame``, file after file and row after row, as the sink writes the tasks.

    Spark hands out the largest file first, so that of a key's records the newest would not come last. Of one file it
    keeps the order, and nothing is shuffled.
    """
    if len(files) == 1:
        return frame.select(*chosen)
    where = frame.metadataColumn("_metadata")
    # A + in a name stands there as it is, and is no blank; a file of this machine is file:/x or file:///x.
    name = fn.url_decode(fn.replace(where.getField("file_path"), fn.lit("+"), fn.lit("%2B")))
    name = fn.regexp_replace(name, "^file:/+", "file:///")
    block, row = where.getField("file_block_start"), fn.monotonically_increasing_id()
    rows = frame.select(*chosen, name.alias("file"), block.alias("block"), row.alias("row"))
    begins = [0, *itertools.accumulate(size for _, size in files)]
    placed = [(name, at) for (name, _), at in zip(files, begins, strict=False)]
    places = session.createDataFrame(placed, "place string, begin long")
    unknown = fn.raise_error(fn.concat(fn.lit("no file of this import has the name "), fn.col("file")))
    at = fn.coalesce(fn.col("begin"), unknown) + fn.col("block")
    rows = rows.join(fn.broadcast(places), fn.col("file") == fn.col("place"), "left").withColumn("at", at)
    tasks = begins[-1] // ORDER_BYTES + 1
    task = fn.least(fn.floor(fn.col("at") / ORDER_BYTES), fn.lit(tasks - 1)).cast("int")  # a file may have grown
    ordered = rows.repartitionById(tasks, task).sortWithinPartitions("at", "row")
    return ordered.drop("file", "block", "row", "place", "begin", "at")


def _columns_of(frame: DataFrame, arguments: Mapping[str, Any], folders: set[str]) -> list[Column]:
    """The sink's columns of Parquet files; ``folders`` are columns of their folders, which no record of an export had.

    Raises ConfigError for a field that is not there.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    for name in _named(arguments):
        if name not in types:
            raise ConfigError(f"the files have no field {name}", hint=f"their fields: {', '.join(types)}")
    others = [name for name in types if name not in RECORD and name not in folders]
    if "value" in types and not _named(arguments):
        if "key" in types and others:
            raise ConfigError(
                f"the files have key and value, and besides {', '.join(others)}, which no record would hold",
                hint="--key key --value value leaves them out; --key key alone makes the whole row the value",
            )
        if not others:
            return [_column(name) for name in KEPT if name in types]  # an export, or shaped as one
    row = fn.to_json(fn.struct(*[_column(name) for name in types]), WHOLE_TIMES)
    return _chosen(arguments, _column, row, types)


def _of_lines(frame: DataFrame, arguments: Mapping[str, Any]) -> list[Column]:
    """The sink's columns of lines of JSON, in whose column ``read`` stands what is wrong with each, and its members.

    A line that is no JSON ends the import: it would be a record without what was cut off, or a tombstone. So does one
    without a member that was named, as with `tiered append`: a null that stands there is one.
    """
    line, read, names = fn.col("value"), fn.col("read"), _named(arguments)
    where = frame.metadataColumn("_metadata").getField("file_path")
    shown = fn.substring(line, 1, SHOWN_CHARS)
    wrong = fn.concat(fn.lit("a line of "), where, fn.lit(" "), read["wrong"], fn.lit(", it begins with "), shown)

    def right(column: Column) -> Column:
        return fn.when(read["wrong"].isNull(), column).otherwise(fn.raise_error(wrong))

    return _chosen(
        arguments, lambda name: right(read["members"].getItem(names.index(name)).cast("string")), right(line), {}
    )


def _named(arguments: Mapping[str, Any]) -> list[str]:
    """The fields that arguments name."""
    return [arguments[each] for each in ("key", "value", "timestamp") if arguments[each]]


def _column(name: str) -> Column:
    """The field of that very name, whatever stands in it."""
    return fn.col(f"`{name.replace('`', '``')}`")


def _chosen(arguments: Mapping[str, Any], field: Any, row: Column, types: Mapping[str, DataType]) -> list[Column]:
    """The columns that arguments name; the whole row where they name no value. ``types``: of the fields that are no
    text."""

    def typed(name: str) -> Column:
        return _typed(field(name), types.get(name, StringType()))

    found = [(typed(arguments["value"]) if arguments["value"] else row).alias("value")]
    if arguments["key"]:
        found.append(typed(arguments["key"]).alias("key"))
    if arguments["timestamp"]:
        name = arguments["timestamp"]
        found.append(_time(field(name), types.get(name, StringType())).alias("timestamp"))
    return found


def _time(column: Column, kind: DataType) -> Column:
    """A number is a time in milliseconds. A time stays what it is: its text does not say which hour is meant of the two
    that a clock shows alike when it is put back. What is no time ends the import, whatever ``spark.sql.ansi.enabled``
    says: as a null it would be the time of the import."""
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        return column.cast("timestamp")
    text = column.cast("string")
    milliseconds = fn.timestamp_millis(text.try_cast("long"))
    time = fn.when(text.rlike("^[0-9]+$"), milliseconds).otherwise(fn.to_timestamp(text))
    wrong = fn.raise_error(fn.concat(fn.lit("a timestamp is no time: "), fn.substring(text, 1, SHOWN_CHARS)))
    return fn.coalesce(time, fn.when(text.isNotNull(), wrong))


def _typed(column: Column, kind: DataType) -> Column:
    """Bytes as they are, what has parts as JSON, anything else as text."""
    if isinstance(kind, ArrayType | MapType | StructType | VariantType):
        return fn.to_json(column, WHOLE_TIMES)
    return column if isinstance(kind, BinaryType) else column.cast("string")
