"""The checks of the model can fail: each is broken on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.test_partition import Bench
from tiered.config import TopicConfig
from tiered.errors import InvalidTimestampError
from tiered.format.batch import encode_batch
from tiered.model import NewRecord
from tiered.testing.clock import START_MS
from tiered.testing.model import ModelLog


@pytest.mark.parametrize(("end", "complaint"), [(1, "promised 2"), (4, "middle of a call"), (6, "appended 5")])
def test_a_log_that_comes_back_wrong_is_noticed(end: int, complaint: str) -> None:
    model = ModelLog()
    model.append([NewRecord(b"a"), NewRecord(b"b")], 0)
    model.flush()
    model.append([NewRecord(b"c")] * 3, 0)
    with pytest.raises(AssertionError, match=complaint):
        model.power_cut(end)


def test_a_log_that_comes_back_at_a_call_is_accepted() -> None:
    model = ModelLog()
    model.append([NewRecord(b"a"), NewRecord(b"b")], 0)
    model.append([NewRecord(b"c")] * 3, 0)
    model.power_cut(2)
    assert (model.end, len(model.records)) == (2, 2)


def test_a_bad_time_is_told_before_a_missing_key(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "log", cleanup_policy="compact")
    future = START_MS + 2 * 3_600_000
    refused = [NewRecord(b"v", None, future)]
    for append in (bench.partition.append, lambda records: bench.partition.append_batches(encode_batch(records))):
        with pytest.raises(InvalidTimestampError):
            append(refused)
    with pytest.raises(InvalidTimestampError):
        ModelLog(config=TopicConfig(cleanup_policy="compact")).append(refused, START_MS)
