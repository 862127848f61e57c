"""The shuffle of a compaction in parts without a session: the source's code, a dictionary between the phases."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tests.spark.jobs.building import inline
from tiered.plan.survivors import OFFSET_BITS, code_of
from tiered.spark.jobs.run import Receipt, Task, TaskCall
from tiered.spark.jobs.two_phase import KeySource, Shuffled, _note_text, packer

__all__ = ["inline", "inline_shuffle"]


def live_of(shuffled: Shuffled) -> dict[int, bytes]:
    """As the product's, by a dictionary: notes and bitmaps of all parts."""
    planned, runner = shuffled._planned, shuffled._runner
    reader = KeySource({"url": runner.url, "round": json.dumps(planned.as_json())}).reader(StructType())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    newest: dict[tuple[int, int], int] = {}
    for row in rows:
        key = row["high"], row["low"]
        newest[key] = max(row["code"], newest.get(key, -1))
    dirty = code_of(planned.round.first_dirty, [part.start for part in planned.parts])
    alive = defaultdict[int, list[dict[str, Any]]](list)
    for row in rows:
        found = newest[row["high"], row["low"]]
        if row["note"] is not None or found == row["code"] or found < dirty:
            alive[row["code"] >> OFFSET_BITS].append(row)
    pack = packer([(part.start, part.end) for part in planned.parts])
    return {number: pack(iter(_batches(found))) for number, found in alive.items()}


def _batches(rows: list[dict[str, Any]]) -> list[tuple[pa.Array, pa.Array]]:
    pieces = [rows[at : at + 7] for at in range(0, len(rows), 7)][::-1]  # in no order
    return [
        (pa.array([row["code"] for row in piece], pa.int64()), pa.array([row["note"] for row in piece], pa.string()))
        for piece in pieces
    ]


@pytest.fixture
def inline_shuffle(inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of a compaction in two phases in this process."""
    kept: dict[int, dict[int, bytes]] = {}

    def notes(self: Shuffled, title: str) -> dict[int, dict[str, Any]]:
        del title
        live = kept[id(self)] = live_of(self)
        return {number: json.loads(_note_text(each)) for number, each in live.items()}

    def rewritten(
        self: Shuffled, title: str, work: Callable[..., Receipt], numbers: Sequence[int], tasks: Sequence[Task]
    ) -> list[tuple[int, str]]:
        del title
        live, call = kept[id(self)], TaskCall(work, self._runner.url, self._runner.s3)
        return [
            (number, call(json.dumps(task), live[number]))
            for number, task in zip(numbers, tasks, strict=True)
            if number in live
        ]

    monkeypatch.setattr(Shuffled, "_collect_notes", notes)
    monkeypatch.setattr(Shuffled, "_collect_rewritten", rewritten)
