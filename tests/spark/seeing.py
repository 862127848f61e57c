"""A sink that notes which offsets each batch had, and may crash behind the note. Importable by Spark's workers.

It needs no call from the JVM into the process of the test, as ``foreachBatch`` does, which may wait for ever there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

Seen = list[tuple[int, list[int]]]
"""Batch ids, each with its offsets in order."""


class CrashError(Exception):
    """The sink has the batch, and its query does not learn it."""


@dataclass(frozen=True, slots=True)
class TaskSeen(WriterCommitMessage):
    """What one task was given."""

    offsets: tuple[int, ...]


class SeeingSink(DataSource):
    """``format("tiered-seeing")``: ``path`` is the file of notes; with the option ``crash`` each commit fails."""

    @classmethod
    def name(cls) -> str:
        return "tiered-seeing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> SeeingWriter:
        return SeeingWriter(self.options["path"], crash=self.options.get("crash") == "true")


class SeeingWriter(DataSourceStreamWriter):
    def __init__(self, path: str, *, crash: bool) -> None:
        self._path = path
        self._crash = crash

    def write(self, iterator: Iterator[Row]) -> TaskSeen:
        return TaskSeen(tuple([row["offset"] for row in iterator]))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        offsets = sorted([offset for each in messages if isinstance(each, TaskSeen) for offset in each.offsets])
        with Path(self._path).open("a") as notes:
            notes.write(json.dumps([batchId, offsets]) + "\n")
        if self._crash:
            raise CrashError

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: the note stays."""


def seen_in(path: Path) -> Seen:
    """What was noted."""
    if not path.exists():
        return []
    return [(batch, offsets) for batch, offsets in map(json.loads, path.read_text().splitlines())]
