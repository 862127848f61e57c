"""``tiered local clean``: compaction by hand, or what it would do."""

from __future__ import annotations

from typing import Any

import click

from tiered.local.cleaning.cleaner import CleaningStatus
from tiered.local.cleaning.rounds import CleaningReport
from tiered.local.directory.manager import LocalLog
from tiered.model import TopicPartition
from tiered.program.application import Application, Command, pass_application, split_topic
from tiered.program.confirming import confirm
from tiered.program.doors import chosen_partitions, need_directory, need_topic
from tiered.program.output import columns, counted

MAX_ROUNDS = 1000
"""Rounds over one partition; more than one is needed only where its keys do not fit into memory."""


@click.command("clean", cls=Command, short_help="Compact partitions now, or print the plan.")
@click.argument("selected", required=False, metavar="[TOPIC[:P]]")
@click.option("--plan", "--dry-run", "plan_only", is_flag=True, help="print the plan only")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_application
def clean_command(app: Application, *, selected: str | None, plan_only: bool, yes: bool) -> int:
    """Compact partitions now, however little of them is dirty: of every key the newest record stays.

    Without a name: all that are compacted. The directory must have no writer at the moment; one that is open cleans
    itself. What a bucket holds is not compacted here.

    \b
    Examples:
      tiered local clean --plan --log-dir data
      tiered local clean flights:0 --log-dir data --yes
    """
    directory = app.need_log_dir()
    need_directory(app)
    with LocalLog.open(directory, clock=app.clock, ids=app.ids) as log:
        found = [log.cleaner.status(tp) for tp in _partitions(log, selected)]
        due = [status for status in found if status.candidate is not None and status.candidate.cleanable_bytes]
        reports: dict[TopicPartition, CleaningReport] = {}
        if due and not plan_only:
            for line in _table(found):
                app.out.say(line)
            confirm(app, "local clean", f"Compact {counted(len(due), 'partition')}?", yes=yes)
            reports = {status.tp: _clean(log, status.tp) for status in due}
    fields = {"plan_only": plan_only, "partitions": [_fields(status, reports.get(status.tp)) for status in found]}
    text = _table(found) if plan_only else [_line(tp, report) for tp, report in reports.items()]
    if not plan_only:
        for status in found:
            if status.refused:
                app.out.say(f"{status.tp} is not cleaned: {status.refused}")
    if not due:
        app.out.say("nothing is to be cleaned" if found else "no topic here is compacted: nothing is to be cleaned")
    return app.out.result("local clean", fields, text)


def _partitions(log: LocalLog, selected: str | None) -> list[TopicPartition]:
    """Those that were named; without a name those of compacted topics that are in service."""
    topics = log.topics()
    if selected is None:
        broken = log.out_of_service  # said at the open
        return [tp for tp in log.partitions() if topics[tp.topic].config.compacted and tp not in broken]
    name, partition = split_topic(selected)
    need_topic(name, topics)
    return [TopicPartition(name, number) for number in chosen_partitions(name, topics[name].partitions, partition)]


def _clean(log: LocalLog, tp: TopicPartition) -> CleaningReport:
    """Rounds until nothing is dirty, as one report."""
    total: CleaningReport | None = None
    for _ in range(MAX_ROUNDS):
        report = log.cleaner.clean(tp)
        if report is None:
            break
        if total is None:
            total = report
            continue
        total.end_offset, total.groups = report.end_offset, report.groups
        total.records_written, total.bytes_written = report.records_written, report.bytes_written
    return total or CleaningReport(-1)


def _table(found: list[CleaningStatus]) -> list[str]:
    names = ["partition", "dirty", "from", "to", "dirty bytes", "clean bytes", "segments", "become", "not cleaned"]
    rows: list[list[object]] = []
    for status in found:
        candidate = status.candidate
        if candidate is None:
            rows.append([status.tp, *["-"] * 7, status.refused])
            continue
        segments = sum(len(group) for group in status.groups)
        rows.append(
            [
                status.tp,
                f"{candidate.ratio:.0%}",
                candidate.first_dirty,
                candidate.first_uncleanable,
                candidate.cleanable_bytes,
                candidate.clean_bytes,
                segments,
                len(status.groups),
                "-",
            ]
        )
    return columns(names, rows) if rows else []


def _fields(status: CleaningStatus, report: CleaningReport | None) -> dict[str, Any]:
    candidate = status.candidate
    fields: dict[str, Any] = {"topic": status.tp.topic, "partition": status.tp.partition, "refused": status.refused}
    if candidate is not None:
        fields |= {
            "dirty_ratio": candidate.ratio,
            "first_dirty_offset": candidate.first_dirty,
            "first_uncleanable_offset": candidate.first_uncleanable,
            "dirty_bytes": candidate.cleanable_bytes,
            "clean_bytes": candidate.clean_bytes,
            "groups": [list(group) for group in status.groups],
        }
    if report is not None:
        fields |= {
            "cleaned_end_offset": report.end_offset,
            "records_read": report.records_read,
            "records_kept": report.records_written,
            "bytes_read": report.bytes_read,
            "bytes_kept": report.bytes_written,
        }
    return fields


def _line(tp: TopicPartition, report: CleaningReport) -> str:
    kept, read = report.records_written, report.records_read
    return f"{tp}: {kept:,} of {read:,} records kept, {report.bytes_written:,} of {report.bytes_read:,} bytes"
