"""``tiered spark export``: this library's stream source, a checkpoint, and a format of Spark or of its connectors.

Spark's checkpoint and the format's own transaction make it exactly once. Nothing here knows how a table is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiered.errors import ConfigError, UnknownTopicError
from tiered.remote.topics import load_topic_to_read
from tiered.spark import register
from tiered.spark.jobs.run import JobRunner
from tiered.store.driver import drive

KEPT_BATCHES = ("spark.sql.streaming.numRecentProgressUpdates", "100000")
"""Batches whose number of rows Spark keeps. Its default is 100."""


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Destination of records. ``kind``: the format; ``path`` or ``table``: the place; ``options``: the format's."""

    kind: str
    checkpoint: str
    path: str | None = None
    table: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.table is None):
            raise ConfigError("an export goes to one place", hint="pass --to URL, or --table NAME")


def plan(runner: JobRunner, topics: tuple[str, ...], target: ExportTarget) -> str:
    """Return the plan in a sentence, without Spark. Raises UnknownTopicError for a topic that the bucket lacks."""
    for topic in topics:
        if drive(runner.store, load_topic_to_read(topic)) is None:
            raise UnknownTopicError(f"{topic} is not in the bucket", hint="`tiered topic list` shows what is")
    place = target.path or f"the table {target.table}"
    return (
        f"dry run: would export {', '.join(topics)} to {place} as {target.kind}, from the progress in "
        f"{target.checkpoint} on"
    )


def export(runner: JobRunner, topics: tuple[str, ...], target: ExportTarget, read: Mapping[str, str]) -> dict[str, Any]:
    """Write the records since the checkpoint. Return how many there were. Raises JobFailedError."""
    register(runner.session)
    s3 = {word: str(value) for word, value in runner.s3.items() if not word.startswith("sse")}
    options = {"subscribe": ",".join(topics), "startingOffsets": "earliest", **read}

    def query() -> list[int]:
        runner.session.conf.set(*KEPT_BATCHES)
        source = runner.session.readStream.format("tiered").options(**s3, **options).load(runner.url)
        writer = source.writeStream.format(target.kind).options(**target.options)
        writer = writer.option("checkpointLocation", target.checkpoint).trigger(availableNow=True)
        started = writer.toTable(target.table) if target.table is not None else writer.start(target.path)
        try:
            started.awaitTermination()
        finally:
            started.stop()
        return [max(progress.numInputRows, 0) for progress in started.recentProgress]

    batches = runner.waited(f"exporting {', '.join(topics)}", query)
    return {"batches": len(batches), "rows": sum(batches)}
