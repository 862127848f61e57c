"""The figures of one log directory in the vocabulary of ``tiered.metrics``: live from an open log, or as noted by one.

Names: ``tiered_end_offset`` and so on with ``topic`` and ``partition``; ``tiered_task_*`` with ``task``;
``tiered_cleaner_*``; ``tiered_directory_*``. Figures of a directory carry ``log_dir``. Partitions that sleep tell their
offsets, not their size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tiered.local.directory.reports import UpkeepReport, read_report
from tiered.local.partition.partition import PartitionLog
from tiered.local.partition.writer import PartitionWriter
from tiered.metrics import Metric, metric
from tiered.model import TopicPartition

if TYPE_CHECKING:
    from tiered.local.directory.manager import LocalLog


def report_of(log: LocalLog, now_ms: int) -> UpkeepReport:
    """How the background work of an open directory did."""
    offline = log.roster.offline
    return UpkeepReport(
        now_ms,
        log.tasks.status(),
        log.cleaner.figures(),
        {str(tp): why for tp, why in sorted(log.cleaner.uncleanable.items())},
        "" if offline is None else offline.message,
    )


def directory_metrics(log: LocalLog, now_ms: int) -> list[Metric]:
    """All that is known of a directory; of one that is only read what its files tell, and its writer's report."""
    where = {"log_dir": str(log.directory)}
    space = log.files.space(log.directory)
    found = [
        metric("disk_free_bytes", space.free, where),
        metric("disk_total_bytes", space.total, where),
        metric("directory_partitions", len(log.partitions()), where),
        metric("directory_partitions_out_of_service", len(log.out_of_service), where),
    ]
    if log.read_only:
        report = read_report(log.directory, log.files)
        found += [each for tp in _usable(log) for each in _positions(log.partition(tp))]
    else:
        report = report_of(log, now_ms)
        found += _written(log, where)
    return [*found, *report_metrics(report, log.directory, now_ms)]


def _usable(log: LocalLog) -> list[TopicPartition]:
    broken = log.out_of_service
    return [tp for tp in log.partitions() if tp not in broken]


def _written(log: LocalLog, where: dict[str, str]) -> list[Metric]:
    awake = log.roster.awake()
    found = [
        metric("directory_sleeping_partitions", log.roster.sleeping_count(), where),
        metric("pending_delete_bytes", sum(writer.trash_bytes for writer in awake), where),
    ]
    for writer in awake:
        found += _partition(writer)
    ends = log.roster.recovery_points()  # of those that sleep all is durable
    for tp in sorted(ends.keys() - {writer.tp for writer in awake}):
        found += _ends(tp, ends[tp], ends[tp])
    return found


def _positions(partition: PartitionLog) -> list[Metric]:
    labels, at = _labels(partition.tp), partition.positions()
    return [
        *_ends(partition.tp, at.end_offset, at.flushed_offset),
        metric("log_start_offset", at.start_offset, labels),
        metric("local_start_offset", at.local_start_offset, labels),
        metric("uploaded_offset", at.uploaded_offset, labels),
    ]


def report_metrics(report: UpkeepReport, directory: Path, now_ms: int) -> list[Metric]:
    """Tasks and cleaner, as noted by whoever writes the directory; nothing if nobody has."""
    if report.noted_ms < 0:
        return []
    where = {"log_dir": str(directory)}
    return [
        metric("directory_offline", float(bool(report.offline)), where),
        *_tasks(report, where),
        *_cleaner(report, where, now_ms),
    ]


def _partition(writer: PartitionWriter) -> list[Metric]:
    labels = _labels(writer.tp)
    upload, sealed = writer.upload, writer.sealed
    size_bytes = sum(segment.size_bytes for segment in sealed) + writer.segments.active.size_bytes
    found = _ends(writer.tp, writer.end_offset, writer.flusher.flushed)
    found += [
        metric("log_start_offset", writer.log_start, labels),
        metric("local_start_offset", writer.segments.local_start, labels),
        metric("local_segments", len(sealed) + 1, labels),
        metric("local_bytes", size_bytes, labels),
        metric("partition_offline", float(writer.condition.offline is not None), labels),
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
    yield metric("cleaner_rounds_at_work", known.at_work, where)
    yield metric("cleaner_max_clean_time_seconds", known.max_clean_seconds, where)
    yield metric("cleaner_max_dirty_ratio", known.max_dirty_ratio, where)
    yield metric("cleaner_max_buffer_utilization_ratio", known.max_buffer_utilization, where)
    yield metric("cleaner_max_compaction_delay_seconds", known.max_compaction_delay_ms / 1000, where)
    yield metric("cleaner_recopy_ratio", known.recopy_ratio, where)
    yield metric("cleaner_uncleanable_partitions", known.uncleanable_partitions, where)
    yield metric("cleaner_uncleanable_bytes", known.uncleanable_bytes, where)
    if known.last_run_ms >= 0:
        yield metric("cleaner_time_since_last_run_seconds", max(now_ms - known.last_run_ms, 0) / 1000, where)
