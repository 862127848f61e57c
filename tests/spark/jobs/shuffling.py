"""The shuffle of a compaction in parts without a session: the sources' own code, and a dictionary between them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tests.spark.jobs.building import inline
from tiered.plan.survivors import OFFSET_BITS, code_of
from tiered.spark.jobs import two_phase
from tiered.spark.jobs.rounds import KeptRound
from tiered.spark.jobs.runner import JobFailedError, JobRun
from tiered.spark.jobs.shuffle import KeySource, SurvivorsSource

__all__ = ["inline", "inline_shuffle"]

BUCKETS = 3
"""Tasks behind the shuffle."""


def shuffle(session: None, words: dict[str, str], kept: KeptRound) -> None:
    """As the product's, by a dictionary."""
    del session
    options = {**words, "round": kept.name}
    reader = KeySource(options).reader(StructType())
    parts = reader.partitions()
    pairs = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    newest: dict[tuple[int, int], int] = {}
    for row in pairs:
        key = row["high"], row["low"]
        newest[key] = max(row["code"], newest.get(key, -1))
    dirty = code_of(kept.round.first_dirty, [part.start for part in kept.parts])
    alive = []
    for row in pairs:
        found = newest[row["high"], row["low"]]
        if found == row["code"] or found < dirty:
            alive.append(row["code"])
    writer = SurvivorsSource(options).writer(StructType(), False)
    told: list[Any] = []
    for bucket in range(BUCKETS):
        codes = sorted(code for code in alive if (code >> OFFSET_BITS) % BUCKETS == bucket)
        pieces = [codes[at : at + 7] for at in range(0, len(codes), 7)]
        told.append(writer.write(iter([pa.record_batch([pa.array(piece, pa.int64())], ["code"]) for piece in pieces])))
    writer.commit(told)


@pytest.fixture
def inline_shuffle(inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of a compaction in two phases in this process."""

    def spark(self: JobRun, title: str, query: Any) -> None:
        del title
        try:
            query()
        except Exception as error:
            raise JobFailedError(str(error), hint=f"--job {self.job_id}") from error

    monkeypatch.setattr(JobRun, "spark", spark)
    monkeypatch.setattr(JobRun, "session", lambda self: None)
    monkeypatch.setattr(two_phase, "shuffle", shuffle)
