"""Command lines of ``tiered spark VERB``. Spark is imported when a verb runs, not for its help."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tiered.check.check import CheckReport
from tiered.check.segment_check import Reading
from tiered.config import parse_bytes
from tiered.errors import ConfigError, UnknownTopicError
from tiered.plan.jobs import SPAN_BYTES, TWO_PHASE_BYTES
from tiered.plan.maintenance import MaintenanceKind
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES
from tiered.program.application import Application, Command, Group, pass_application, split_topic
from tiered.program.checking import conclude_check, reading_options, show_finding, subset_of
from tiered.program.erasure import selection_of, selection_options
from tiered.program.maintenance_loop import kinds_option
from tiered.program.open_log import refuse_internal
from tiered.program.open_store import location, open_remote, store_options
from tiered.program.output import human_bytes
from tiered.remote.topics import load_topic_to_read
from tiered.spark import lacking, register
from tiered.store.driver import drive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from tiered.spark.jobs.run import JobRunner

PROGRAM = "tiered spark"
KEPT_BATCHES = ("spark.sql.streaming.numRecentProgressUpdates", "100000")
"""Batches whose number of rows Spark keeps. Its default is 100."""

F = TypeVar("F", bound=Callable[..., Any])


@click.group("spark", cls=Group)
def jobs() -> None:
    """Maintain, check, erase and export a bucket on Spark.

    Use it for jobs that outgrow one machine. If a driver was killed, run the same command again: it finishes the job.
    Credentials come from the environment of driver and workers.
    """


_SPARK = (
    click.option("--master", metavar="URL", help="local[4], yarn, k8s://..., spark://..., sc://host: Spark Connect"),
    click.option("--conf", "settings", multiple=True, metavar="K=V", help="a setting of the Spark session"),
)


def _verb(name: str, *, speculative: bool) -> Callable[[Callable[..., int]], click.Command]:
    """Return a decorator that turns a function into the command ``tiered spark NAME``.

    The function takes a :class:`JobRunner` and the options of the command, and returns the exit code.
    ``speculative``: Spark may run two attempts of a task concurrently.
    """

    def make(function: Callable[..., int]) -> click.Command:
        @pass_application
        @functools.wraps(function)
        def call(app: Application, *, master: str | None, settings: tuple[str, ...], **options: Any) -> int:
            try:
                # Heavy, and not installed without the extra ``spark``.
                from tiered.spark.jobs.run import JobRunner  # noqa: PLC0415
            except ImportError as error:
                raise lacking(f"{PROGRAM} {name}", error) from error
            url = location(app).url
            store = open_remote(app)
            try:
                s3, conf = store_options(app, app.need_remote()), pairs("--conf", settings)
                with JobRunner(app, store, url, s3, master=master, conf=conf, speculative=speculative) as runner:
                    return function(runner, **options)
            finally:
                store.close()

        for option in reversed(_SPARK):
            call = option(call)
        return jobs.command(name, cls=Command)(call)

    return make


def pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Return ``K=V`` texts as a dictionary. Raises ConfigError, which names ``option``, for a text of another form."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option} {text!r} is not K=V", hint=f"write {option} NAME=VALUE")
        found[key] = value
    return found


def _bytes(_context: click.Context, parameter: click.Parameter, value: str) -> int:
    size = parse_bytes(value)
    if size < 1:
        raise ConfigError(f"{parameter.opts[0]} {value} is less than one byte", hint="for example 1GiB")
    return size


def _size_option(name: str, default: int, text: str, to: str | None = None) -> Callable[[F], F]:
    shown = human_bytes(default).replace(".0 ", "")
    names = (name,) if to is None else (name, to)
    return click.option(*names, callback=_bytes, default=shown, show_default=True, metavar="SIZE", help=text)


_TASK_BYTES = _size_option("--task-bytes", SPAN_BYTES, "bytes that one task reads; a lost task is repeated as a whole")


@_verb("maintain", speculative=False)
@click.argument("selected", required=False, metavar="[TOPIC[:P]]")
@kinds_option
@_TASK_BYTES
@_size_option(
    "--memory", DEDUPE_BUFFER_BYTES, "for a map of keys; keys that do not fit take another round", "memory_bytes"
)
@_size_option(
    "--two-phase-above",
    TWO_PHASE_BYTES,
    "compact larger logs, and those of more than 50 million records, in two phases over all tasks",
    "two_phase_bytes",
)
def maintain(
    runner: JobRunner,
    *,
    selected: str | None,
    kinds: tuple[MaintenanceKind, ...],
    task_bytes: int,
    memory_bytes: int,
    two_phase_bytes: int,
) -> int:
    """Run retention, merging and compaction of the bucket, as `tiered maintain` does on one machine.

    One task maintains a partition. A large log is compacted in two phases: all tasks look for keys, Spark shuffles
    the keys, all tasks write. Readers and writers continue meanwhile.

    \b
    Examples:
      tiered spark maintain --remote s3://acme-logs/prod --dry-run
      tiered spark maintain positions --only compact --remote s3://acme-logs/prod --memory 2GiB --yes
      tiered spark maintain flights --only reencode --remote s3://acme-logs/prod --yes
    """
    from tiered.spark.jobs.maintain import JobScope, maintain  # noqa: PLC0415

    if selected is not None:
        refuse_internal(split_topic(selected)[0])
    wanted = JobScope(selected, kinds, task_bytes, two_phase_bytes, memory_bytes)
    return maintain(runner, wanted)


@_verb("check", speculative=True)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@reading_options("read every byte: the default on Spark, unless --read-data-subset is given")
@_TASK_BYTES
def check(
    runner: JobRunner,
    *,
    topics: tuple[str, ...],
    read_data: bool,
    read_data_subset: str | None,
    task_bytes: int,
) -> int:
    """Verify every byte of a bucket, as `tiered check --read-data` does on one machine. Changes nothing.

    \b
    Examples:
      tiered spark check --remote s3://acme-logs/prod
      tiered spark check flights --remote s3://acme-logs/prod --master yarn
      tiered spark check --read-data-subset 5% --remote s3://acme-logs/prod
    """
    from tiered.spark.jobs.check import check  # noqa: PLC0415

    app = runner.app
    app.out.start("spark check", complete=False)
    subset = subset_of(app, read_data_subset, read_data=read_data)
    report: CheckReport = check(runner, topics, task_bytes, Reading(True, subset))
    for finding in report.findings:
        show_finding(app, finding)
    return conclude_check(app, report)


@_verb("erase", speculative=False)
@click.argument("selected", metavar="TOPIC[:P]")
@selection_options
@click.option("--now", is_flag=True, help="delete the old objects without gc.grace.ms; refused under pins, snapshots")
@_TASK_BYTES
def erase(runner: JobRunner, *, selected: str, now: bool, task_bytes: int, **asked: Any) -> int:
    """Delete the records of some keys from a topic for good, as `tiered erase` does on one machine.

    All tasks look for the keys. Then one task for each partition rewrites the segments with matching records, and
    reads all other objects. Spark sees hashes of keys alone. `tiered erase --log-dir` erases from local disks.

    \b
    Examples:
      tiered spark erase users --key alice@example.org --remote s3://acme-logs/prod --dry-run
      tiered spark erase users --keys gone.txt --now --remote s3://acme-logs/prod --yes
    """
    from tiered.spark.jobs.erase import erase  # noqa: PLC0415

    topic, partition = split_topic(selected)
    refuse_internal(topic)
    selection = selection_of(runner.app, **asked)
    return erase(runner, topic, partition, selection, now=now, task_bytes=task_bytes)


@_verb("export", speculative=True)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--format", "kind", required=True, metavar="NAME", help="parquet, delta, iceberg, or any other of Spark's"
)
@click.option("--to", metavar="URL", help="folder: s3a://bucket/prefix, file:///dir")
@click.option("--table", metavar="NAME", help="table of a Spark catalog, instead of --to")
@click.option("--checkpoint", required=True, metavar="URL", help="folder in which Spark stores the export's progress")
@click.option("--option", "options", multiple=True, metavar="K=V", help="an option of the format")
@click.option("--isolation", type=click.Choice(("read_committed", "read_uncommitted")), default="read_committed")
@click.option("--headers", is_flag=True, help="add the column headers")
@click.option("--skip-lost", is_flag=True, help="continue if retention deleted records before they were exported")
@click.option(
    "--batch-bytes", callback=_bytes, default="10GiB", show_default=True, metavar="SIZE", help="of one commit"
)
def export(
    runner: JobRunner,
    *,
    topics: tuple[str, ...],
    kind: str,
    to: str | None,
    table: str | None,
    checkpoint: str,
    options: tuple[str, ...],
    isolation: str,
    headers: bool,
    skip_lost: bool,
    batch_bytes: int,
) -> int:
    """Write records in a format of Spark's or of its connectors, each once. A run continues where the last one ended.

    Spark's checkpoint stores the progress, with the transaction of the format. Delta and Iceberg need the jars of their
    connectors (--conf spark.jars.packages=...). A folder of Parquet files is exactly once for readers that use its
    _spark_metadata, as Spark does.

    \b
    Examples:
      tiered spark export flights --format parquet --to file:///data/flights --checkpoint file:///data/flights.done \\
        --remote s3://acme-logs/prod
      tiered spark export flights --format delta --to s3a://acme-lake/flights \\
        --checkpoint s3a://acme-lake/checkpoints/flights --remote s3://acme-logs/prod
    """
    for topic in topics:
        refuse_internal(topic)
    names, out = tuple(sorted(set(topics))), runner.app.out
    folder, progress, more = _absolute(to) if to else None, _absolute(checkpoint), pairs("--option", options)
    if (to is None) == (table is None):
        raise ConfigError("an export needs one target: --to or --table", hint="pass --to URL, or --table NAME")
    if runner.app.dry_run:
        _need_topics(runner, names)
        line = f"dry run: would export {', '.join(names)} to {folder or f'the table {table}'} as {kind}"
        fields = {"dry_run": True, "topics": names, "to": folder or table, "format": kind}
        return out.result("spark export", fields, [f"{line}, from the progress in {progress} on"])

    def start(rows: DataFrame) -> StreamingQuery:
        writer = rows.writeStream.format(kind).options(**more).option("checkpointLocation", progress)
        writer = writer.trigger(availableNow=True)
        return writer.toTable(table) if table is not None else writer.start(folder)

    read = {
        "isolation.level": isolation,
        "includeHeaders": str(headers).lower(),
        "failOnDataLoss": str(not skip_lost).lower(),
        "maxBytesPerTrigger": str(batch_bytes),
    }
    batches = _exported(runner, names, read, start)
    line = f"{sum(batches)} records exported in {len(batches)} batches"
    fields = {"batches": len(batches), "rows": sum(batches)}
    return out.result("spark export", fields, [line if sum(batches) else "nothing new was there to export"])


def _need_topics(runner: JobRunner, topics: tuple[str, ...]) -> None:
    for topic in topics:
        if drive(runner.store, load_topic_to_read(topic)) is None:
            raise UnknownTopicError(f"topic {topic} is not in the bucket", hint="`tiered topic list` lists the topics")


def _exported(
    runner: JobRunner, topics: tuple[str, ...], read: dict[str, str], start: Callable[[DataFrame], StreamingQuery]
) -> list[int]:
    """Read the records since the checkpoint with this library's stream source. Return the number of rows per batch.

    ``read``: options of the source. ``start``: starts the query that writes the rows. Spark's checkpoint and the
    transaction of the format make an export exactly once.
    """
    register(runner.session)
    s3 = {word: str(value) for word, value in runner.s3.items() if not word.startswith("sse")}
    options = {"subscribe": ",".join(topics), "startingOffsets": "earliest", **s3, **read}

    def query() -> list[int]:
        runner.session.conf.set(*KEPT_BATCHES)
        started = start(runner.session.readStream.format("tiered").options(**options).load(runner.url))
        try:
            started.awaitTermination()
        finally:
            started.stop()
        return [max(progress.numInputRows, 0) for progress in started.recentProgress]

    return runner.waited(f"exporting {', '.join(topics)}", query)


def _absolute(place: str) -> str:
    """Return a URL unchanged, and a path made absolute, because executors run in other folders."""
    return place if "://" in place else str(Path(place).absolute())
