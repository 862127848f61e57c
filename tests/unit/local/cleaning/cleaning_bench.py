"""A compacted partition on a disk that fails on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.local.bench import RECORD_BYTES, TP, CaseBench
from tiered.local.disk.directory_files import CLEANER_NAME, OffsetsFile
from tiered.local.disk.files import PosixFiles
from tiered.model import NewRecord, TopicPartition
from tiered.plan.batch_filter import CleaningReport

KEYED_BYTES = RECORD_BYTES + 1
"""Size of a batch of one record with a key and a value of one byte each."""

CLEAN = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}


class CleaningBench(CaseBench):
    """Three one-record batches to a segment; keys and values are given as text."""

    def __init__(self, directory: Path, *, per_segment: int = 3, **config: Any) -> None:
        super().__init__(directory, **{**CLEAN, "segment_bytes": per_segment * KEYED_BYTES, **config})

    def put(self, *pairs: str) -> None:
        """``"a1"``: value 1 for key a; ``"a-"``: its tombstone. One batch each; the end is flushed."""
        for pair in pairs:
            self.partition.append([NewRecord(None if pair[1:] == "-" else pair[1:].encode(), pair[:1].encode())])
        self.partition.flush()

    def seal(self) -> None:
        """Everything so far becomes cleanable."""
        self.partition.roll()

    def clean(self) -> CleaningReport | None:
        """One round."""
        return self.log.cleaner.clean(TP)

    @property
    def pairs(self) -> list[str]:
        """What is in the log from its start on, as :meth:`put` takes it."""
        return [f"{(r.key or b'').decode()}{'-' if r.value is None else r.value.decode()}" for r in self.records()]

    @property
    def newest(self) -> dict[str, str]:
        """The newest value of every key."""
        return {pair[0]: pair[1:] for pair in self.pairs}


OTHER = TopicPartition("u", 0)
DIRTY = ("a1", "b1", "a2", "c1", "b2", "a3", "d1", "a4", "b3")
CLEANED = ["c1", "d1", "a4", "b3"]


def dirty(bench: CleaningBench) -> CleaningBench:
    """Three sealed segments, to be cleaned to :data:`CLEANED`."""
    bench.put(*DIRTY)
    bench.seal()
    return bench


def stored(bench: CleaningBench) -> dict[TopicPartition, int]:
    """The file ``cleaner-offset-checkpoint``."""
    return OffsetsFile(bench.directory, CLEANER_NAME, PosixFiles()).read()
