"""``tiered spark JOB``: the command lines of the jobs. Spark itself is imported when a job runs, not for its help."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from tiered.config import TopicConfig, parse_bytes
from tiered.errors import ConfigError
from tiered.plan.jobs import SPAN_BYTES, TWO_PHASE_BYTES
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES
from tiered.program.application import (
    Application,
    Command,
    Group,
    destructive,
    pass_application,
    split_topic,
)
from tiered.program.erasure import selection_of, selection_options
from tiered.program.output import human_bytes
from tiered.program.stores import location, open_remote, store_options
from tiered.program.tiers import refuse_internal
from tiered.spark import lacking

PROGRAM = "tiered spark"


@click.group("spark", cls=Group)
def jobs() -> None:
    """Bulk jobs over a bucket on Spark, for what outgrows one machine.

    Each is planned first, may be killed at any time, and goes on under its id: --job ID. Its receipt is
    jobs/ID/receipt.json in the bucket. Credentials come from the environment of driver and workers.
    """


def job_command(name: str) -> Callable[[Callable[..., dict[str, Any]]], click.Command]:
    """Makes a command of a function that gives the arguments of a job."""

    def make(arguments_of: Callable[..., dict[str, Any]]) -> click.Command:
        @pass_application
        @functools.wraps(arguments_of)
        def call(
            app: Application,
            *,
            job_id: str | None,
            only_plan: bool,
            master: str | None,
            settings: tuple[str, ...],
            **options: Any,
        ) -> int:
            asks = {word: options.pop(word, False) for word in ("yes", "dry_run")}
            return _run(app, name, arguments_of(**options), (job_id, only_plan, master, settings), **asks)

        for option in reversed(_SHARED):
            call = option(call)
        return jobs.command(name, cls=Command)(call)

    return make


_SHARED = (
    click.option("--job", "job_id", metavar="ID", help="go on with this job, or begin it under this name"),
    click.option("--plan", "only_plan", is_flag=True, help="print what is to be done, and do nothing"),
    click.option("--master", metavar="URL", help="local[4], yarn, k8s://..., spark://..., sc://host: Spark Connect"),
    click.option("--conf", "settings", multiple=True, metavar="K=V", help="a setting of the Spark session"),
)


def _bytes(_context: click.Context, parameter: click.Parameter, value: str) -> int:
    size = parse_bytes(value)
    if size < 1:
        raise ConfigError(f"{parameter.opts[0]} {value} is nothing", hint="for example 1GiB")
    return size


_MEMORY = click.option(
    "--memory",
    "memory_bytes",
    callback=_bytes,
    default="128MiB",
    show_default=True,
    metavar="SIZE",
    help="of a map of keys, 200 bytes each; what does not fit takes another round",
)

LEVELLED = ("gzip", "lz4", "zstd")
CODECS = ("uncompressed", "snappy", *LEVELLED)
"""Words of ``compression.type``; ``producer`` would leave all of them."""

_TOPICS = click.argument("topics", nargs=-1, metavar="[TOPIC...]")
_TASK_BYTES = click.option(
    "--task-bytes",
    callback=_bytes,
    default=human_bytes(SPAN_BYTES).replace(".0 ", ""),
    show_default=True,
    metavar="SIZE",
    help="what one task reads; a lost task is done again as a whole",
)


@job_command("scrub")
@_TOPICS
@_TASK_BYTES
def scrub(topics: tuple[str, ...], task_bytes: int) -> dict[str, Any]:
    """Verify every byte of a bucket, as `tiered check --read-data` does on one machine. Changes nothing of the log.

    Exit code 0: nothing wrong; 3: warnings; 13: something is damaged or missing.

    \b
    Examples:
      tiered spark scrub --remote s3://acme-logs/prod
      tiered spark scrub flights --remote s3://acme-logs/prod --plan
    """
    return {"topics": list(topics), "task_bytes": task_bytes}


@job_command("compact")
@_TOPICS
@_TASK_BYTES
@_MEMORY
@click.option(
    "--two-phase-above",
    "two_phase_bytes",
    callback=_bytes,
    default=human_bytes(TWO_PHASE_BYTES).replace(".0 ", ""),
    show_default=True,
    metavar="SIZE",
    help="a larger log, or one of more than 50 million records, is compacted in two phases over all tasks",
)
@click.option(
    "--sample",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="with --plan: read N parts of each such log, to tell what Spark will shuffle and not only the most of it",
)
def compact(
    topics: tuple[str, ...], task_bytes: int, memory_bytes: int, two_phase_bytes: int, sample: int
) -> dict[str, Any]:
    """Compact the topics whose cleanup.policy says so: of each key the newest record stays.

    A log is done by one task, or, if it is large, in two phases: all tasks look for keys, Spark shuffles what they
    found, all tasks write. Either way the rules, the claim and the commits are those of `tiered maintain run --only
    compact`, and so is what is left; readers and writers go on.

    \b
    Examples:
      tiered spark compact --remote s3://acme-logs/prod --plan
      tiered spark compact positions --remote s3://acme-logs/prod --memory 2GiB
      tiered spark compact positions --remote s3://acme-logs/prod --plan --two-phase-above 1GiB --sample 3
    """
    return {
        "topics": list(topics),
        "task_bytes": task_bytes,
        "memory_bytes": memory_bytes,
        "two_phase_bytes": two_phase_bytes,
        "sample": sample,
    }


@job_command("merge")
@_TOPICS
@_TASK_BYTES
def merge(topics: tuple[str, ...], task_bytes: int) -> dict[str, Any]:
    """Make large segments of small neighbours: of what sinks and quiet topics leave. Bytes of batches stay as they are.

    \b
    Examples:
      tiered spark merge --remote s3://acme-logs/prod --plan
      tiered spark merge flights --remote s3://acme-logs/prod
    """
    return {"topics": list(topics), "task_bytes": task_bytes, "memory_bytes": DEDUPE_BUFFER_BYTES}


@job_command("retention")
@_TOPICS
def retention(topics: tuple[str, ...]) -> dict[str, Any]:
    """Take what retention.ms and retention.bytes let go out of the catalog; `tiered gc run` deletes it after its grace.

    \b
    Examples:
      tiered spark retention --remote s3://acme-logs/prod --plan
    """
    return {"topics": list(topics), "task_bytes": SPAN_BYTES, "memory_bytes": DEDUPE_BUFFER_BYTES}


@job_command("reencode")
@_TOPICS
@_TASK_BYTES
@click.option("--codec", type=click.Choice(CODECS), help="the topic's compression.type by default")
@click.option("--level", type=int, metavar="N", help="of gzip, lz4 or zstd; the topic's by default")
def reencode(topics: tuple[str, ...], task_bytes: int, codec: str | None, level: int | None) -> dict[str, Any]:
    """Write segments in another codec, and those of message formats 0 and 1 in the batch format of today.

    Records keep their offsets, timestamps, headers, producers and transactions. A segment that is as it shall be is
    read and left alone. `tiered maintain run --only reencode` does the same on one machine, by compression.type alone.

    \b
    Examples:
      tiered spark reencode --remote s3://acme-logs/prod --plan
      tiered spark reencode flights --codec zstd --level 12 --remote s3://acme-logs/prod
    """
    settings = {} if codec is None else {"compression.type": codec}
    if level is not None:
        if codec not in LEVELLED:
            raise ConfigError(f"--level {level} needs one of --codec {', '.join(LEVELLED)}", hint="--codec zstd")
        settings[f"compression.{codec}.level"] = str(level)
    TopicConfig.from_properties(settings)  # raises ConfigError for a level that there is not
    return {
        "topics": list(topics),
        "task_bytes": task_bytes,
        "memory_bytes": DEDUPE_BUFFER_BYTES,
        "settings": settings,
    }


@job_command("erase")
@click.argument("selected", metavar="TOPIC[:P]")
@selection_options
@click.option("--now", is_flag=True, help="delete the old objects without gc.grace.ms; refused under pins, snapshots")
@_TASK_BYTES
@destructive
@pass_application
def erase(app: Application, *, selected: str, now: bool, task_bytes: int, **asked: Any) -> dict[str, Any]:
    """Take the records of some keys out of a topic for good, as `tiered erase` does on one machine.

    Reads every segment, asks, writes those that hold them anew without them, and reads all that is left. Keys stand in
    the bucket and in Spark's logs as hashes alone. --plan tells what is read; --dry-run reads it, and tells which
    segments hold them: --job ID goes on from there.

    Exit code 0: no object holds them any more; 3: some still do, the receipt names them.

    \b
    Examples:
      tiered spark erase users --key alice@example.org --remote s3://acme-logs/prod --dry-run
      tiered spark erase users --keys gone.txt --now --remote s3://acme-logs/prod --yes
    """
    topic, partition = split_topic(selected)
    refuse_internal(topic)
    selection = selection_of(app, **asked)
    return {"topic": topic, "partition": partition, "selection": selection, "now": now, "task_bytes": task_bytes}


def _run(
    app: Application,
    job: str,
    arguments: dict[str, Any],
    how: tuple[str | None, bool, str | None, tuple[str, ...]],
    **asks: bool,
) -> int:
    job_id, only_plan, master, settings = how
    pairs = dict(_pair(text) for text in settings)
    url = location(app).url
    try:
        # Heavy, and absent where only the log itself is installed.
        from tiered.spark.jobs.erase import blind_arguments  # noqa: PLC0415
        from tiered.spark.jobs.runner import Asks, Order, SparkOptions, Where, run_job  # noqa: PLC0415
    except ImportError as error:
        raise lacking(f"the job {job}", error) from error
    store = open_remote(app)
    try:
        where = Where(store, url, store_options(app, url))
        if job == "erase":
            arguments = blind_arguments(store, arguments)
        order = Order(job, arguments, job_id, only_plan, Asks(**asks))
        return run_job(app, where, order, SparkOptions(master, pairs))
    finally:
        store.close()


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--conf {text!r} is not K=V", hint="for example --conf spark.driver.memory=4g")
    return key, value
