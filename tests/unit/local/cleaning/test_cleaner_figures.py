"""What the cleaner counts, against rounds whose numbers are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.bench import TP
from tests.unit.local.cleaning.cleaning_bench import DIRTY, KEYED_BYTES, CleaningBench, dirty
from tiered.local.cleaning.cleaner import CleanerFigures
from tiered.testing.clock import START_MS


@pytest.fixture
def bench(tmp_path: Path) -> CleaningBench:
    return CleaningBench(tmp_path / "log")


def test_nothing_before_the_first_look(bench: CleaningBench) -> None:
    assert bench.log.cleaner.figures() == CleanerFigures()


def test_a_round_as_kafka_counts_it(bench: CleaningBench) -> None:
    dirty(bench).log.close()
    bench.open(cleaner_dedupe_buffer_bytes=2000, cleaner_max_bytes_per_second=KEYED_BYTES)
    bench.log.partition(TP)
    bench.clock.advance(60)
    status = bench.log.tasks.run("cleaning")
    found = bench.log.cleaner.figures()
    read, written = len(DIRTY) * KEYED_BYTES, 4 * KEYED_BYTES
    assert (found.rounds, found.bytes_read, found.bytes_written) == (1, read, written)
    assert found.recopy_ratio == written / read
    assert found.max_buffer_utilization == 4 / 9  # keys; of ten entries nine are used
    assert found.max_dirty_ratio == 0.0  # the last look found all of it clean
    assert found.max_clean_seconds == 2 * len(DIRTY)  # every batch is read twice, a nap of a second each
    assert found.last_run_ms == START_MS + 60_000
    assert (status.last_partitions, status.last_bytes) == (1, read + written)
    assert status.last_duration_ms == pytest.approx(found.max_clean_seconds * 1000, abs=1)
    assert (found.uncleanable_partitions, found.at_work) == (0, 0)


def test_how_filthy_the_filthiest_is_and_how_long_it_is_overdue(tmp_path: Path) -> None:
    bench = CleaningBench(
        tmp_path / "log", min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=1000, min_compaction_lag_ms=1000
    )
    dirty(bench)
    bench.log.tasks.run("cleaning")
    assert bench.log.cleaner.figures().max_dirty_ratio == 0.0  # all of it is too young
    assert bench.log.cleaner.figures().max_compaction_delay_ms == 0
