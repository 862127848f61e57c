"""Metrics of an open log. They have the names of the uploader's ``/metrics``: ``tiered_``, base units, ``_total``.

A value is computed when it is requested. No server and no client library is needed: pass the text of :func:`render` to
any server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PREFIX = "tiered_"

HELP: Mapping[str, str] = {
    "appender_batches_total": "Batches that buffered appenders of the topic have written.",
    "appender_buffered_bytes": "Bytes of records that wait in buffered appenders of the topic.",
    "appender_failed_records_total": "Records of buffered appenders whose append failed.",
    "appender_records_total": "Records that buffered appenders of the topic have received.",
    "appender_waits_total": "Appends that waited because the buffer was full.",
    "check_errors": "Errors that the last check found.",
    "check_last_end_timestamp_seconds": "Unix time of the end of the last check.",
    "check_local_bytes": "Bytes of segments on this disk that the last check covered.",
    "check_remote_bytes": "Bytes of segments in the bucket that the last check covered.",
    "check_warnings": "Warnings that the last check gave.",
    "cleaner_max_buffer_utilization_ratio": "Largest used part of the deduplication buffer in the last rounds.",
    "cleaner_max_clean_time_seconds": "Duration of the longest of the last rounds.",
    "cleaner_max_compaction_delay_seconds": "Longest time by which a compaction exceeds max.compaction.lag.ms.",
    "cleaner_max_dirty_ratio": "Largest dirty part of a partition, from the last selection.",
    "cleaner_read_bytes_total": "Bytes that compaction has read on this disk.",
    "cleaner_recopy_ratio": "Bytes written per byte read in the last rounds.",
    "cleaner_rounds_total": "Compaction rounds on this disk.",
    "cleaner_running_rounds": "Compaction rounds in progress.",
    "cleaner_time_since_last_run_seconds": "Time since the cleaner last selected a partition.",
    "cleaner_uncleanable_bytes": "Dirty bytes of partitions whose compaction failed.",
    "cleaner_uncleanable_partitions": "Partitions that are not compacted until the next open, because a round failed.",
    "cleaner_written_bytes_total": "Bytes that compaction has written on this disk.",
    "directory_idle_partitions": "Partitions without open files since the last clean stop.",
    "directory_offline": "1 if the directory failed and is out of service.",
    "directory_partitions": "Partitions of the directory.",
    "directory_partitions_out_of_service": "Partitions that cannot be used because they are damaged or lost.",
    "disk_free_bytes": "Free bytes of the log directory's file system.",
    "disk_total_bytes": "Size of the log directory's file system.",
    "end_offset": "Offset of the next record; a lower bound while another process appends.",
    "fenced": "1 if a newer claim owns the partition.",
    "flushed_offset": "End of the records that are fsynced.",
    "group_lag_records": "Offsets between the position of a group and the end of the partition.",
    "group_lag_seconds": "Age of the batch (in a bucket: segment) with the next record of a group; 0 at the end.",
    "local_bytes": "Bytes of the partition's segments on this disk.",
    "local_segments": "Segments of the partition on this disk, including the active one.",
    "local_start_offset": "First offset on this disk.",
    "log_start_offset": "First offset of the partition.",
    "maintenance_actions_total": "Maintenance actions on the bucket, by kind.",
    "maintenance_failed_partitions": "Partitions whose maintenance failed in the last round.",
    "maintenance_failing": "1 if the last round of maintenance failed.",
    "maintenance_fenced_total": "Actions that ended because another maintainer took the role.",
    "maintenance_last_round_timestamp_seconds": "Unix time of the end of the last round.",
    "maintenance_paused_topics": "Topics whose maintenance is paused.",
    "maintenance_read_bytes_total": "Bytes that maintenance has read from the bucket.",
    "maintenance_rounds_total": "Rounds of maintenance over the bucket.",
    "maintenance_written_bytes_total": "Bytes that maintenance has written to the bucket.",
    "memory_limit_bytes": "Memory that uploads and maintenance may use.",
    "memory_used_bytes": "Memory that uploads and maintenance use.",
    "memory_waiters": "Uploads and actions that wait for memory.",
    "partition_offline": "1 if the partition failed and is out of service.",
    "pending_delete_bytes": "Bytes of renamed files that are deleted after file.delete.delay.ms.",
    "store_bytes_total": "Bytes sent to and received from the store.",
    "store_oldest_request_seconds": "Age of the oldest request in flight.",
    "store_request_seconds_total": "Duration of all requests to the store.",
    "store_requests_total": "Requests to the store.",
    "store_silent_seconds": "Time since which no request to the store has got a response; 0 while it responds.",
    "store_slow_downs_total": "Responses of the store that asked for fewer requests (503 SlowDown).",
    "task_bytes_total": "Bytes that runs of the background task have processed.",
    "task_failing": "1 if the last run of the background task failed.",
    "task_failures_total": "Failed runs of the background task.",
    "task_last_duration_seconds": "Duration of the last run of the background task.",
    "task_last_run_timestamp_seconds": "Unix time of the last run of the background task.",
    "task_partitions_total": "Partitions that runs of the background task have processed.",
    "task_running": "1 while the background task runs.",
    "task_runs_total": "Runs of the background task.",
    "uploaded_offset": "End of the records that are committed in the bucket.",
}
"""Help text of each metric, by name without ``PREFIX``. The reference is generated from this table."""


class Metric(NamedTuple):
    """Value of a metric for one set of labels, which have a fixed order.

    The value of a metric whose name ends in ``_total`` only grows while the log is open.
    """

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the metric as JSON values, for ``--json``."""
        return {"name": self.name, "value": self.value, "labels": dict(self.labels)}


def metric(name: str, value: float, labels: Mapping[str, str] | None = None) -> Metric:
    return Metric(PREFIX + name, value, tuple((labels or {}).items()))


def help_text(name: str) -> str:
    """Return the help text of the metric ``name``, which may begin with ``tiered_``. Raises KeyError for others."""
    return HELP[name.removeprefix(PREFIX)]


def render(metrics: Iterable[Metric]) -> str:
    """Return the metrics in Prometheus's text format (0.0.4), with a help and a type line for each name."""
    by_name: dict[str, list[Metric]] = {}
    for each in metrics:
        by_name.setdefault(each.name, []).append(each)
    lines = []
    for name, group in by_name.items():
        lines.append(f"# HELP {name} {help_text(name)}")
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f"{name}{_labels(each)} {_number(each.value)}" for each in group]
    return "".join(f"{line}\n" for line in lines)


def _labels(each: Metric) -> str:
    if not each.labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in each.labels)
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
