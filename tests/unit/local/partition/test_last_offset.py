"""The last offset of Kafka's format: a log that ends there refuses appends instead of writing what nobody can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.local.bench import TP, Bench
from tiered.config import MAX_LONG
from tiered.errors import ConfigError, InvalidRecordError
from tiered.format.batch import encode_batch
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord
from tiered.plan.producer import ProducerStamp

TWO = [NewRecord(b"v")] * 2
WAYS: list[Callable[[WriteLog], object]] = [
    lambda log: log.append(TWO),
    lambda log: log.append_batches(encode_batch(TWO)),
    lambda log: log.append_batches(encode_batch(TWO[:1]) * 2),
    lambda log: log.append_as_producer(TWO, ProducerStamp(7, 0, 0)),
]


@pytest.mark.parametrize("append", WAYS)
def test_an_append_beyond_the_last_offset_is_refused(tmp_path: Path, append: Callable[[WriteLog], object]) -> None:
    bench = Bench(tmp_path)
    bench.partition.start_at(MAX_LONG - 1, 0)
    with pytest.raises(InvalidRecordError, match="no offsets left"):
        append(bench.partition)
    assert bench.append(b"last") == MAX_LONG - 1
    with pytest.raises(InvalidRecordError, match="no offsets left"):
        bench.append(b"none")
    assert bench.values(MAX_LONG - 1) == [b"last"]
    bench.log.close()
    bench.open()
    assert bench.partition.positions().end_offset == MAX_LONG
    bench.log.close()


def test_no_log_and_no_segment_begins_above_the_last_offset(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for call in (
        lambda: bench.partition.start_at(MAX_LONG + 1, 0),
        lambda: bench.partition.roll(MAX_LONG + 1),
    ):
        with pytest.raises(ConfigError):
            call()
    assert (TP, bench.append(b"v")) == (TP, 0)
