"""``tiered local tasks|run|metrics|clean|drop|move``: maintain log directories."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tiered.checking.check import EXIT_WARNINGS
from tiered.config import MAX_LONG
from tiered.errors import ConfigError, DiskFullError
from tiered.local.cleaning.cleaner import CleaningStatus
from tiered.local.directory.directories import LocalTier
from tiered.local.directory.figures import read_report
from tiered.local.directory.manager import LocalLog
from tiered.local.directory.tasks import TaskStatus
from tiered.local.disk.files import PosixFiles
from tiered.local.partition.partition import PartitionLog
from tiered.metrics import render
from tiered.model import TopicPartition
from tiered.plan.batch_filter import CleaningReport
from tiered.program.application import (
    Application,
    Group,
    confirm,
    destructive,
    one_partition,
    pass_application,
    split_topic,
)
from tiered.program.open_log import open_directory
from tiered.program.open_reader import chosen_partitions, folder, need_directory, need_topic
from tiered.program.output import Problem, columns, counted, human_bytes, human_duration
from tiered.times import format_time

MAX_ROUNDS = 1000
"""Most rounds over one partition. More than one is needed only if its keys do not fit into memory."""


@click.group(cls=Group, name="local")
def command() -> None:
    """Background tasks and log directories of this machine."""


@command.command("tasks", short_help="List the background tasks and how they did.")
@pass_application
def tasks_command(app: Application) -> int:
    """The tasks of a log directory: period, last run and last error, as its last writer noted them.

    \b
    Example:
      tiered local tasks --log-dir data
    """
    directory = app.need_log_dir()
    need_directory(app)
    report = read_report(directory, PosixFiles())
    tasks = report.tasks
    if not tasks:
        app.out.say("no writer has noted its tasks yet: it does so once a minute and when it closes")
    names = ["task", "every", "last run", "took", "runs", "failures", "partitions", "bytes", "last error"]
    text = columns(names, [_row(task) for task in tasks]) if tasks else []
    if report.noted_ms >= 0:
        text.append(f"noted {human_duration(max(app.clock.now_ms() - report.noted_ms, 0))} ago")
    text += [f"problem: {problem}" for problem in report.problems]
    fields = {
        "noted_ms": report.noted_ms,
        "tasks": [asdict(task) for task in tasks],
        "cleaner": asdict(report.cleaner),
        "uncleanable": report.uncleanable,
        "offline": report.offline,
        "problems": report.problems,
    }
    return app.out.result("local tasks", fields, text)


@command.command("metrics", short_help="Print the figures of a log directory.")
@pass_application
def metrics_command(app: Application) -> int:
    """Figures of a log directory as Prometheus reads them: disk, offsets, background tasks, compaction.

    It takes no lock. Tasks and compaction are as the writer noted them last, at most a minute ago; a program that has
    the log open gets them as of now from log.metrics(). Names are those of the uploader's /metrics.

    \b
    Examples:
      tiered local metrics --log-dir data
      tiered local metrics --log-dir data --json
    """
    with open_directory(app, read_only=True) as log:
        found = log.metrics()
    text = render(found).splitlines()
    return app.out.result("local metrics", {"metrics": [each.as_json() for each in found]}, text)


@command.command("run", short_help="Run one background task now.")
@click.argument("task")
@pass_application
def run_command(app: Application, task: str) -> int:
    """Run one task now, whatever its period says. The directory must have no writer at the moment.

    TASK is one of those that `tiered local tasks` lists.

    \b
    Examples:
      tiered local run retention --log-dir data
      tiered local run deletion --log-dir data
    """
    with open_directory(app) as log:
        asleep = log.roster.wake_all()
        status = log.tasks.run(task)
        if asleep is not None:
            raise asleep
    return app.out.result("local run", asdict(status), [_ran(status)])


def _ran(status: TaskStatus) -> str:
    done = f"{counted(status.last_partitions, 'partition')}, {human_bytes(status.last_bytes)}"
    return f"{status.name} ran in {status.last_duration_ms:,} ms: {done if status.last_partitions else 'nothing to do'}"


def _row(task: TaskStatus) -> list[object]:
    ran = task.last_run_ms >= 0
    return [
        task.name,
        human_duration(task.period_ms) if task.period_ms else "tick",
        format_time(task.last_run_ms) if ran else "never",
        f"{task.last_duration_ms:,} ms" if ran else "-",
        f"{task.runs:,}{' (at work)' if task.running else ''}",
        task.failures,
        task.partitions,
        human_bytes(task.bytes) if task.bytes else "-",
        Problem(task.last_error) if task.last_error else "-",
    ]


@command.command("clean", short_help="Compact partitions now, or print the plan.")
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
    with open_directory(app) as log:
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
    """Return the named partitions, without a name all of compacted topics that are in service."""
    topics = log.topics()
    if selected is None:
        broken = log.out_of_service  # reported at the open
        return [tp for tp in log.partitions() if topics[tp.topic].config.compacted and tp not in broken]
    name, partition = split_topic(selected)
    need_topic(name, topics)
    return [TopicPartition(name, number) for number in chosen_partitions(name, topics[name].partitions, partition)]


def _clean(log: LocalLog, tp: TopicPartition) -> CleaningReport:
    """Compact until nothing is dirty. Return one report."""
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


@command.command("drop", short_help="Let what the bucket holds leave the disk now.")
@click.argument("selected", metavar="TOPIC[:P]")
@click.option("--before", type=click.IntRange(min=0), metavar="OFFSET", help="only segments of earlier offsets")
@destructive
@pass_application
def drop_command(app: Application, *, selected: str, before: int | None, dry_run: bool, yes: bool) -> int:
    """Let sealed segments that the bucket holds leave the disk now, whatever local.retention.* keeps.

    The log stays as it is: it is read from the bucket there. For a disk that is full, and after `tiered erase`. The
    directory must have no writer at the moment. Segments go oldest first; with --before up to and with the one that
    holds the record before OFFSET. Exit code 3: some that were meant stay, for they are not in the bucket yet.

    \b
    Examples:
      tiered local drop users --log-dir data --dry-run
      tiered local drop users:3 --before 120000 --log-dir data --yes
    """
    topic, partition = split_topic(selected)
    with open_directory(app) as log:
        need_topic(topic, log.topics())
        numbers = chosen_partitions(topic, log.topics()[topic].partitions, partition)
        found = [_Drop(log.partition(TopicPartition(topic, number)), before) for number in numbers]
        lines = [line for drop in found for line in drop.lines()]
        if not dry_run:
            for line in lines:
                app.out.say(line)
            segments = sum(len(drop.going) for drop in found)
            confirm(app, "local drop", f"Let {counted(segments, 'segment')} leave the disk?", yes=yes)
            for drop in found:
                drop.carry_out()
    fields = {"dry_run": dry_run, "topic": topic, "partitions": [drop.fields() for drop in found]}
    return app.out.result("local drop", fields, lines, EXIT_WARNINGS if any(drop.stays for drop in found) else 0)


class _Drop:
    """Segments to delete from the disk of one partition: those that the checkpoint says are in the bucket."""

    def __init__(self, partition: PartitionLog, before: int | None) -> None:
        if partition.upload is None:
            raise ConfigError(
                f"{partition.tp} is not tiered: no bucket holds what would leave the disk",
                hint="`tiered truncate` and retention.* delete records of a log that lies on the disk alone",
            )
        self._partition = partition
        self._uploaded = partition.upload.end_offset
        view = partition.positions()
        last = view.end_offset if before is None else min(before, view.end_offset)
        meant = [each for each in partition.sealed_segments() if each.base_offset < last]
        self.going = [each for each in meant if each.end_offset <= self._uploaded]
        end = self.going[-1].end_offset if self.going else view.local_start_offset
        self.stays = max(last - end, 0)

    def carry_out(self) -> None:
        """Delete the segments. Their files are unlinked when the call returns."""
        if self.going:
            self._partition.delete_local_before(self.going[-1].end_offset)
            self._partition.to_write().retention.empty_trash(MAX_LONG)

    def lines(self) -> list[str]:
        size_bytes = sum(segment.size_bytes for segment in self.going)
        gone = f"{self._partition.tp}: {counted(len(self.going), 'segment')}, {human_bytes(size_bytes)}"
        if not self.stays:
            return [gone]
        return [
            gone,
            f"{self._partition.tp}: {counted(self.stays, 'offset')} that were meant stay: the bucket holds what is "
            f"below {self._uploaded}, as this disk knows it; `tiered-uploader sync` seals and uploads the rest",
        ]

    def fields(self) -> dict[str, Any]:
        ends = [self.going[0].base_offset, self.going[-1].end_offset] if self.going else [-1, -1]
        return {
            "partition": self._partition.tp.partition,
            "segments": len(self.going),
            "bytes": sum(segment.size_bytes for segment in self.going),
            "start_offset": ends[0],
            "end_offset": ends[1],
            "uploaded_offset": self._uploaded,
            "stays": self.stays,
        }


@command.command("move", short_help="Move a partition to another log directory.")
@click.argument("partition", metavar="TOPIC:P")
@click.argument("target", metavar="DIR", type=click.Path(file_okay=False))
@destructive
@pass_application
def move_command(app: Application, *, partition: str, target: str, dry_run: bool, yes: bool) -> int:
    """Move a partition from --log-dir to DIR; neither may have a writer. The old files are kept for a minute.

    DIR is made where it does not exist. A log over several directories is opened with all of them from then on. A
    partition that is tiered stays.

    \b
    Examples:
      tiered local move flights:0 /mnt/disk2/log --log-dir data --dry-run
      tiered local move flights:0 /mnt/disk2/log --log-dir data --yes
    """
    source, tp, place = app.need_log_dir(), one_partition(partition), folder("DIR", target)
    with open_directory(app, read_only=True) as log:
        _check(log, tp, place)
        positions = log.partition(tp).positions()
    size_bytes = sum(path.stat().st_size for path in (source / str(tp)).iterdir() if path.is_file())
    _check_space(place, size_bytes)
    fields: dict[str, Any] = {
        "dry_run": dry_run,
        "topic": tp.topic,
        "partition": tp.partition,
        "from": str(source),
        "to": str(place),
        "start_offset": positions.local_start_offset,
        "end_offset": positions.end_offset,
        "size_bytes": size_bytes,
    }
    made = "" if place.is_dir() else ", which would be made" if dry_run else ", which is made"
    if not dry_run:
        app.out.say(f"{tp}: {human_bytes(size_bytes)} from {source} to {place}{made}")
        confirm(app, "local move", f"Move {tp} to {place}?", yes=yes)
        with LocalTier.open([source, place], clock=app.clock, ids=app.ids) as logs:
            logs.move(tp, place)
            fields["end_offset"] = logs.partition(tp).positions().end_offset
    count = counted(fields["end_offset"] - fields["start_offset"], "offset")
    verb = "dry run: {} would move" if dry_run else "{} moved"
    line = f"{verb.format(tp)} to {place}{made if dry_run else ''}: {count}, {human_bytes(size_bytes)}"
    return app.out.result("local move", fields, [line])


def _check(log: LocalLog, tp: TopicPartition, target: Path) -> None:
    """Raise every error of a move before it asks or changes anything."""
    source, place = log.directory.resolve(), target.resolve()
    if (target / str(tp)).is_dir():
        raise ConfigError(f"{tp} is in {target} already", hint="name another directory")
    log.partition(tp)
    if place.is_relative_to(source) or source.is_relative_to(place):
        raise ConfigError(f"{target} and {log.directory} lie one in the other", hint="name a directory beside it")
    if tp in log.claims.read() or tp in log.uploads.read():
        raise ConfigError(f"{tp} is tiered: the bucket knows it by its volume", hint="`tiered restore` moves it")


def _check_space(target: Path, size_bytes: int) -> None:
    existing = next(path for path in (target.absolute(), *target.absolute().parents) if path.is_dir())
    space = PosixFiles().space(existing)
    if space is not None and size_bytes > space.free:
        raise DiskFullError(
            f"{target} has {human_bytes(space.free)} free, the partition needs {human_bytes(size_bytes)}",
            hint="free space there, or name a directory of another disk",
        )
