"""The kinds of jobs, by the words of ``tiered spark JOB``. Imported where a job runs, not for its help."""

from __future__ import annotations

from typing import Final

from tiered.plan.maintenance import Kind
from tiered.spark.jobs.compact import Compact
from tiered.spark.jobs.erase import Erase
from tiered.spark.jobs.job import Job, TaskJob
from tiered.spark.jobs.scrub import Scrub
from tiered.spark.jobs.upkeep import MaintenanceJob

_OF_TASKS: tuple[TaskJob, ...] = (
    Scrub(),
    Erase(),
    Compact(),
    MaintenanceJob("merge", Kind.MERGE),
    MaintenanceJob("retention", Kind.RETENTION),
    MaintenanceJob("reencode", Kind.REENCODE),
)
JOBS: Final[dict[str, Job]] = {job.name: job for job in _OF_TASKS}
TASK_JOBS: Final[dict[str, TaskJob]] = {job.name: job for job in _OF_TASKS}
"""Those whose tasks a worker does."""
SPECULATIVE: Final = frozenset({"scrub"})
"""Jobs of whose tasks two attempts may run side by side: they change nothing that the other one reads or commits.

Of any other job one attempt would take the partition from the other (its claim), or write what is never committed.
"""
