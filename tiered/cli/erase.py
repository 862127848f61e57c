"""``tiered erase``: erase records of some keys from the bucket, and write a receipt."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import tiered
from tiered.arguments import chosen_partitions
from tiered.check.check import EXIT_WARNINGS
from tiered.erase.erase import as_fields
from tiered.erase.topic import EraseReport, erase_topic_steps, plan_fields, plan_topic_steps, stays
from tiered.errors import CorruptionError, LocalIOError, OffsetGapError, UnknownTopicError
from tiered.plan.erasure import Selection
from tiered.program.application import (
    Application,
    Command,
    confirm,
    pass_application,
    split_topic,
)
from tiered.program.erasure import (
    left_line,
    outcome_line,
    plan_table,
    question,
    selection_of,
    selection_options,
)
from tiered.program.open_log import open_in_bucket
from tiered.program.open_store import location
from tiered.program.output import Progress, counted
from tiered.read.topic import TopicReads
from tiered.remote.committer import owner_of


@click.command("erase", cls=Command, exits={3: "some objects or the disk still hold records"})
@click.argument("selected", metavar="TOPIC[:P]")
@selection_options
@click.option("--now", is_flag=True, help="delete the old objects without gc.grace.ms; refused under pins, snapshots")
@pass_application
def command(
    app: Application,
    *,
    selected: str,
    now: bool,
    **asked: Any,
) -> int:
    """Delete the records of some keys from the bucket for good.

    The command reads every segment and rewrites those that hold such records without them. All other records keep
    their offsets and bytes. Then it reads all that is left, and writes a receipt below erasures/, with hashes of the
    keys. If it is cut short, the same command continues. Readers and writers continue meanwhile.

    The old objects are deleted after gc.grace.ms, or at once with --now. Until then the exit code is 3. Records on a
    disk stay until local.retention.* or `tiered disk drop` deletes them: with --log-dir they are counted. Noncurrent
    versions of a versioned bucket stay until its owner runs the commands that the receipt holds.

    \b
    Examples:
      tiered erase users --key alice@example.org --remote s3://acme-logs/prod --dry-run
      tiered erase users --keys gone.txt --now --remote s3://acme-logs/prod --yes
      tiered erase clicks:3 --key-prefix session- --to 2026-01-01 --remote s3://acme-logs/prod --yes --json
    """
    app.need_remote()
    selection = selection_of(app, **asked)
    topic, partition = split_topic(selected)
    with open_in_bucket(app, topic) as (tiers, entry):
        numbers = chosen_partitions(topic, entry.partitions, partition)
        with Progress(app, "reading", is_bytes=True) as progress:
            plan = tiers.run(plan_topic_steps(entry, numbers, selection, progress.advance))
        disk = _on_disk(app, topic, numbers, selection)
        shown = [plan_fields(each) for each in plan.partitions]
        lines = [*plan_table(shown), *_disk_lines(topic, app.log_dir, disk), *stays(shown)]
        if app.dry_run:
            fields = {"dry_run": True, "job": plan.job_id, "partitions": shown, "disk": disk}
            return app.out.result("erase", fields, lines)
        for line in lines:
            app.out.say(line)
        confirm(app, "erase", question(shown))
        with Progress(app, "erasing", is_bytes=True) as progress:
            owner = owner_of("tiered erase")
            steps = erase_topic_steps(plan, owner, location(app), now=now, disk=disk, spend=progress.advance)
            report = tiers.run(steps)
        return _conclude(app, report, topic, disk)


def _conclude(app: Application, report: EraseReport, topic: str, disk: Sequence[dict[str, Any]]) -> int:
    left = [(one.tp, each) for one in report.partitions for each in one.left]
    for tp, each in left:
        app.out.warn(left_line(str(tp), dataclasses.asdict(each)))
    fields = {
        "dry_run": False,
        "job": report.job_id,
        "receipt": report.receipts[0] if report.receipts else "",
        "receipts": report.receipts,
        "proven": report.proven,
        "disk": disk,
        "noncurrent_versions": report.noncurrent_versions,
        "partitions": [{"topic": one.tp.topic, **as_fields(one)} for one in report.partitions],
    }
    done = sum(one.records for one in report.partitions)
    text = [outcome_line(done, len(left)), *(f"receipt: {key}" for key in report.receipts)]
    text += _disk_lines(topic, app.log_dir, disk)
    if report.noncurrent_versions:
        text.append(f"if the bucket is versioned: {counted(len(report.noncurrent_versions), 'command')} in the receipt")
    return app.out.result("erase", fields, text, EXIT_WARNINGS if left or disk else 0)


def _on_disk(app: Application, topic: str, numbers: Sequence[int], selection: Selection) -> list[dict[str, Any]]:
    """Return the number and offsets of matching records on the disk, or why they were not counted, by partition."""
    if app.log_dir is None or not app.log_dir.is_dir():
        return []
    found = []
    with tiered.open_reader(log_dir=app.log_dir) as reader:
        try:
            held = reader.topic(topic)
        except UnknownTopicError:
            return []
        for number in numbers:
            if number < held.partitions:
                one = _count(held, number, selection)
                found += [one] if one["records"] or "damaged" in one else []
    return found


def _count(held: TopicReads, number: int, selection: Selection) -> dict[str, Any]:
    records = start = end = 0
    damaged = {}
    try:
        for record in held.read(number):
            if selection.takes(record.key, record.timestamp):
                records, start, end = records + 1, start if records else record.offset, record.offset + 1
    except (CorruptionError, OffsetGapError, LocalIOError) as damage:
        damaged = {"damaged": damage.message}
    return {"partition": number, "records": records, "from": start, "to": end, **damaged}


def _disk_lines(topic: str, directory: Path | None, disk: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        f"on the disk partition {one['partition']} was not counted to its end: {one['damaged']}"
        for one in disk
        if "damaged" in one
    ]
    return lines + [
        f"on the disk partition {one['partition']} holds {counted(one['records'], 'record')} of it, offsets "
        f"{one['from']} to {one['to']}: `tiered disk drop {topic}:{one['partition']} --to {one['to']} --log-dir "
        f"{directory} --remote URL` drops what is sealed and in the bucket; beside a running writer "
        "`local.retention.ms` does"
        for one in disk
        if one["records"]
    ]
