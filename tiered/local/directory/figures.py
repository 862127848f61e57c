"""Metrics of one log directory, named as in ``tiered.metrics``. They come from an open log, or from its last report.

Names: ``tiered_end_offset`` and so on with ``topic`` and ``partition``; ``tiered_task_*`` with ``task``;
``tiered_cleaner_*``; ``tiered_directory_*``. Figures of a directory carry ``log_dir``. Partitions that are not open
report their offsets, not their size.

``tiered-tasks.json`` has the results of the background tasks, for people and other processes. It is written once a
minute with the recovery points, at a failure of the disk and at the end; the log itself never reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import Any

from tiered.errors import NotFoundError
from tiered.local.cleaning.cleaner import CleanerFigures
from tiered.local.directory.read_only_log import LogView
from tiered.local.directory.tasks import TaskStatus
from tiered.local.disk.files import Files
from tiered.local.partition.open_partitions import Roster
from tiered.local.partition.write_log import WriteLog
from tiered.local.transactions.group_positions import GroupLag, GroupTable
from tiered.metrics import Metric, metric
from tiered.model import Positions, TopicPartition

TASKS_NAME = "tiered-tasks.json"
VERSION = 1
MAX_GROUP_LAGS = 1_000
"""Limit of group positions that are reported, each with two metrics of its own."""


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """Report on the background tasks of one log directory. ``noted_ms``: wall clock time of the report, -1 if none.

    ``uncleanable``: reason for each partition that compaction skips. ``offline``: why the directory is out of service,
    ``""`` while it is in service.
    """

    noted_ms: int = -1
    tasks: list[TaskStatus] = field(default_factory=list)
    cleaner: CleanerFigures = field(default_factory=CleanerFigures)
    uncleanable: dict[str, str] = field(default_factory=dict)
    offline: str = ""

    @property
    def problems(self) -> list[str]:
        """Return one line for each problem: an offline directory, failed tasks, uncleanable partitions."""
        found = [f"the directory went offline: {self.offline}"] if self.offline else []
        found += [f"task {task.name} failed: {task.last_error}" for task in self.tasks if task.last_error]
        return found + [f"{tp} is not cleaned until the next open: {why}" for tp, why in self.uncleanable.items()]


def store_report(directory: Path, files: Files, report: UpkeepReport) -> None:
    """Write the report to ``tiered-tasks.json`` for other processes.

    Raises DiskFullError, or LocalIOError if the disk fails.
    """
    files.replace(directory / TASKS_NAME, json.dumps({"version": VERSION, **asdict(report)}).encode() + b"\n")


def read_report(directory: Path, files: Files) -> UpkeepReport:
    """Return the report that :func:`store_report` wrote; an empty one if the file is missing or cannot be parsed.

    Raises LocalIOError if the file cannot be read.
    """
    try:
        value: Mapping[str, Any] = json.loads(files.read(directory / TASKS_NAME))
        return UpkeepReport(
            int(value.get("noted_ms", -1)),
            [TaskStatus(**entry) for entry in value["tasks"]],
            CleanerFigures(**value.get("cleaner", {})),
            {str(tp): str(why) for tp, why in value.get("uncleanable", {}).items()},
            str(value.get("offline", "")),
        )
    except (NotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return UpkeepReport()


def directory_metrics(directory: Path, files: Files, *, held: int, broken: int) -> list[Metric]:
    """Return metrics of a directory: free and total bytes of its file system if known, and the two numbers passed.

    ``held``: number of partitions in the directory. ``broken``: number of partitions that are out of service.
    """
    where = {"log_dir": str(directory)}
    space = files.space(directory)
    sizes = [] if space is None else [("disk_free_bytes", space.free), ("disk_total_bytes", space.total)]
    return [
        *(metric(name, size, where) for name, size in sizes),
        metric("directory_partitions", held, where),
        metric("directory_partitions_out_of_service", broken, where),
    ]


def written_metrics(roster: Roster) -> list[Metric]:
    """Return the metrics of the partitions in a directory that this process writes, and two totals.

    The totals are the number of unopened partitions, and the bytes of files that wait for their deletion.
    A partition that is not open yet has only its end and its flushed offset.
    """
    where = {"log_dir": str(roster.directory)}
    awake = roster.awake()
    found = [
        metric("directory_idle_partitions", roster.sleeping_count(), where),
        metric("pending_delete_bytes", sum(writer.context.deleted.size_bytes for writer in awake), where),
    ]
    for writer in awake:
        found += _partition(writer)
    ends = roster.recovery_points()  # sleeping partitions are durable up to their end
    for tp in sorted(ends.keys() - {writer.tp for writer in awake}):
        found += _ends(tp, ends[tp], ends[tp])
    return found


def read_metrics(view: LogView, now_ms: int) -> list[Metric]:
    """Return all metrics of a directory that another process writes, read from its files.

    They cover disk space, partitions, lags of groups, tasks and cleaner. ``now_ms``: wall clock.
    """
    positions, broken = view.positions()
    return [
        *directory_metrics(view.directory, view.files, held=len(view.partitions()), broken=len(broken)),
        *(each for tp, at in positions.items() for each in _position_metrics(tp, at)),
        *group_metrics(GroupTable(view).lags(now_ms)),
        *report_metrics(read_report(view.directory, view.files), view.directory, now_ms),
    ]


def _position_metrics(tp: TopicPartition, at: Positions) -> list[Metric]:
    labels = _labels(tp)
    return [
        *_ends(tp, at.end_offset, at.flushed_offset),
        metric("log_start_offset", at.start_offset, labels),
        metric("local_start_offset", at.local_start_offset, labels),
        metric("uploaded_offset", at.uploaded_offset, labels),
    ]


def group_metrics(lags: Iterable[GroupLag]) -> list[Metric]:
    """Return two metrics for each of ``lags``: the lag in records and in seconds. The longest in seconds come first.

    Lags after the first ``MAX_GROUP_LAGS`` are left out.
    """
    found = []
    for lag in nlargest(MAX_GROUP_LAGS, lags, key=lambda lag: (lag.seconds, lag.records)):
        labels = {"group": lag.group, **_labels(lag.tp)}
        found.append(metric("group_lag_records", lag.records, labels))
        found.append(metric("group_lag_seconds", lag.seconds, labels))
    return found


def report_metrics(report: UpkeepReport, directory: Path, now_ms: int) -> list[Metric]:
    """Return the metrics of tasks and cleaner in ``report``; an empty list if no report was ever written.

    ``now_ms``: wall clock.
    """
    if report.noted_ms < 0:
        return []
    where = {"log_dir": str(directory)}
    return [
        metric("directory_offline", float(bool(report.offline)), where),
        *_tasks(report, where),
        *_cleaner(report, where, now_ms),
    ]


def _partition(writer: WriteLog) -> list[Metric]:
    labels = _labels(writer.tp)
    upload, sealed = writer.upload, writer.sealed
    size_bytes = sum(segment.size_bytes for segment in sealed) + writer.segments.active.size_bytes
    found = _ends(writer.tp, writer.end_offset, writer.durability.flushed)
    found += [
        metric("log_start_offset", writer.log_start, labels),
        metric("local_start_offset", writer.segments.local_start, labels),
        metric("local_segments", len(sealed) + 1, labels),
        metric("local_bytes", size_bytes, labels),
        metric("partition_offline", float(writer.context.offline is not None), labels),
    ]
    if upload is not None:
        found.append(metric("uploaded_offset", upload.end_offset, labels))
        found.append(metric("fenced", float(upload.fenced), labels))
    return found


def _ends(tp: TopicPartition, end: int, flushed: int) -> list[Metric]:
    return [metric("end_offset", end, _labels(tp)), metric("flushed_offset", flushed, _labels(tp))]


def _labels(tp: TopicPartition) -> dict[str, str]:
    return {"topic": tp.topic, "partition": str(tp.partition)}


def _tasks(report: UpkeepReport, where: dict[str, str]) -> Iterator[Metric]:
    for task in report.tasks:
        labels = {**where, "task": task.name}
        yield metric("task_runs_total", task.runs, labels)
        yield metric("task_failures_total", task.failures, labels)
        yield metric("task_failing", float(bool(task.last_error)), labels)
        yield metric("task_running", float(task.running), labels)
        yield metric("task_last_duration_seconds", task.last_duration_ms / 1000, labels)
        yield metric("task_partitions_total", task.partitions, labels)
        yield metric("task_bytes_total", task.bytes, labels)
        if task.last_run_ms >= 0:
            yield metric("task_last_run_timestamp_seconds", task.last_run_ms / 1000, labels)


def _cleaner(report: UpkeepReport, where: dict[str, str], now_ms: int) -> Iterator[Metric]:
    known = report.cleaner
    yield metric("cleaner_rounds_total", known.rounds, where)
    yield metric("cleaner_read_bytes_total", known.bytes_read, where)
    yield metric("cleaner_written_bytes_total", known.bytes_written, where)
    yield metric("cleaner_running_rounds", known.at_work, where)
    yield metric("cleaner_max_clean_time_seconds", known.max_clean_seconds, where)
    yield metric("cleaner_max_dirty_ratio", known.max_dirty_ratio, where)
    yield metric("cleaner_max_buffer_utilization_ratio", known.max_buffer_utilization, where)
    yield metric("cleaner_max_compaction_delay_seconds", known.max_compaction_delay_ms / 1000, where)
    yield metric("cleaner_recopy_ratio", known.recopy_ratio, where)
    yield metric("cleaner_uncleanable_partitions", known.uncleanable_partitions, where)
    yield metric("cleaner_uncleanable_bytes", known.uncleanable_bytes, where)
    if known.last_run_ms >= 0:
        yield metric("cleaner_time_since_last_run_seconds", max(now_ms - known.last_run_ms, 0) / 1000, where)
