"""``tiered export TOPIC FILE``: write records to a Parquet, CSV or JSON lines file, without Spark."""

from __future__ import annotations

import codecs
import csv
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import click

from tiered.arguments import chosen_partitions
from tiered.config import MAX_LONG
from tiered.errors import ConfigError, NotFoundError
from tiered.format.kernels import ConsumerRecord
from tiered.program.application import Application, Command, confirm, pass_application, split_topic
from tiered.program.open_reader import folder, open_reader, topic_to_read
from tiered.program.open_store import location
from tiered.program.output import Progress, counted, human_bytes
from tiered.program.places import need_one_partition, range_of, range_options
from tiered.program.records import envelope, envelope_line
from tiered.read.topic import TopicReads
from tiered.times import format_time

FORMATS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
"""Formats by the suffix of the file."""

CSV_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "encoding")


@click.command("export", cls=Command, exits={14: "offset in no tier"})
@click.argument("topic", metavar="TOPIC[:P]")
@click.argument("target", metavar="FILE")
@range_options
@click.option("-n", "--limit", type=click.IntRange(min=0, max=MAX_LONG), metavar="N", help="stop after N records")
@click.option(
    "--format", "kind", type=click.Choice(["parquet", "csv", "jsonl"]), help="by the suffix of FILE by default"
)
@click.option("--as-of", metavar="WHAT", help="export the bucket as it was: a snapshot's name, a version, or a time")
@click.option("--isolation", type=click.Choice(["read_committed", "read_uncommitted"]), default="read_committed")
@click.option("--pin", is_flag=True, help="keep garbage collection away from what is read, however long it takes")
@pass_application
def command(
    app: Application, *, topic: str, target: str, begin: str | None, end: str | None, kind: str | None, **options: Any
) -> int:
    """Write the records of a topic to a Parquet, CSV or JSON lines file.

    FILE appears when it is complete, and replaces an older one only after a question. Parquet has the columns of
    `read_batches`. JSON lines are those of `cat --json`. Keys and values in a CSV are UTF-8, or base64 if the column
    encoding says so. For more than one machine holds, use `tiered spark export`.

    \b
    Examples:
      tiered export flights flights.parquet --remote s3://acme-logs/prod
      tiered export flights week.csv --from 2013-01-01 --to 2013-01-08 --remote s3://acme-logs/prod
      tiered export flights:0 some.jsonl --from 4711 --limit 100 --log-dir data
    """
    name, partition = split_topic(topic)
    first, last = range_of(begin, end, app.clock.now_ms())
    path = folder("FILE", target, hint="name the file to write")
    _check_target(app, path)
    form = kind or _format_of(path)
    with open_reader(app, options["as_of"], pin=options["pin"]) as reader:
        source = topic_to_read(reader, name)
        need_one_partition(name, len(chosen_partitions(name, source.partitions, partition)), first, last)
        fields = {"topic": name, "file": str(path), "format": form, "dry_run": app.dry_run}
        if app.dry_run:
            replaced = ", and replace it" if path.exists() else ""
            line = f"dry run: would write {name} to {path} as {form}{replaced}"
            return app.out.result("export", {**fields, "records": 0}, [line])
        if path.exists():
            confirm(app, "export", f"Replace {path}?")
        wanted = {"start": first.offset, "end": last.offset, "since": first.time_ms, "until": last.time_ms}
        wanted |= {"partition": partition, "isolation": options["isolation"]}
        with Progress(app, "exporting") as progress, _replacing(path) as file:
            write = _write_parquet if form == "parquet" else partial(_write_lines, form=form)
            records = write(file, source, wanted, options["limit"], progress)
    size_bytes = path.stat().st_size
    line = f"{counted(records, 'record')} of {name} exported to {path}, {human_bytes(size_bytes)}"
    return app.out.result("export", {**fields, "records": records, "size_bytes": size_bytes}, [line])


def _format_of(path: Path) -> str:
    """Return the format for the suffix of ``path``: parquet, csv or jsonl. Raises ConfigError for another suffix."""
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        known = ", ".join(FORMATS)
        raise ConfigError(f"{path} has no suffix of a known format", hint=f"end it with {known}, or pass --format")
    return form


def _check_target(app: Application, path: Path) -> None:
    """Raise an error for a folder, a device, standard output or a place in the log or its bucket."""
    if str(path) == "-":
        raise ConfigError("export writes to a file, not to standard output", hint="name a file, or use `tiered cat`")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", hint="name the file to write in it")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is a device or a pipe", hint="name a file, which is replaced as a whole")
    if not path.absolute().parent.is_dir():
        raise NotFoundError(f"the folder of {path} does not exist", hint="create it, or correct the path")
    for place in (app.log_dir, None if app.remote is None else location(app).path):
        if place is not None and path.resolve().is_relative_to(place.resolve()):
            raise ConfigError(f"{path} lies in {place}, which has the files of the log", hint="name a file elsewhere")


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file, which replaces ``path`` at the end of the block. After an exception it is deleted."""
    number, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(number, 0o666 & ~mask)  # mkstemp makes a file for its owner alone
            yield file
            file.flush()
            os.fsync(number)
        Path(name).replace(path)
    except BaseException as error:
        with suppress(OSError):
            Path(name).unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a failed write names no file
        raise


def _write_parquet(
    file: BinaryIO, source: TopicReads, wanted: dict[str, Any], limit: int | None, progress: Progress
) -> int:
    """Write at most ``limit`` records (None: all) in batches. Return their number."""
    batches = source.read_batches(**wanted)
    import pyarrow.parquet  # noqa: PLC0415  an optional extra, which read_batches has found

    written = 0
    with pyarrow.parquet.ParquetWriter(file, batches.schema, compression="zstd") as writer:
        for batch in batches if limit != 0 else ():
            kept = batch if limit is None else batch.slice(0, limit - written)
            writer.write_batch(kept)
            written += kept.num_rows
            progress.advance(kept.num_rows)
            if written == limit:
                break
    return written


def _row(record: ConsumerRecord) -> list[object]:
    """Return the cells of a record. A null is an empty cell."""
    fields = envelope(record)
    fields["timestamp"] = format_time(record.timestamp) if record.timestamp >= 0 else None
    fields["headers"] = json.dumps(fields["headers"], ensure_ascii=False) if fields["headers"] else None
    if not isinstance(fields["encoding"], str):
        fields["encoding"] = json.dumps(fields["encoding"])
    return [fields[name] for name in CSV_COLUMNS]


def _write_lines(
    file: BinaryIO, source: TopicReads, wanted: dict[str, Any], limit: int | None, progress: Progress, *, form: str
) -> int:
    """Write at most ``limit`` records (None: all) as CSV or JSON lines. Return their number."""
    rows = csv.writer(codecs.getwriter("utf-8")(file))
    if form == "csv":
        rows.writerow(CSV_COLUMNS)
    written = 0
    for record in islice(source.read(**wanted), limit):
        if form == "csv":
            rows.writerow(_row(record))
        else:
            file.write(envelope_line(record))
        written += 1
        progress.advance()
    return written
